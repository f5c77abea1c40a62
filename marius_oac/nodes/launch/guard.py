"""Runs a command as long as a launcher holds its standard input open and is heard of.

`python -m marius_oac.nodes.launch.guard TIMEOUT COMMAND...` runs it.

The first line of standard input is the run's secret, which therefore appears on no command line. After it come single
bytes: `ALIVE`, each quarter of `TIMEOUT` seconds, and `STOP`. That, silence for `TIMEOUT` after an `ALIVE`, and the end
of the input ask the command to stop: the first time with SIGTERM, then with SIGINT. ssh passes on no signals, but
closes the input when it ends, for whatever reason. So what a launcher started elsewhere ends with the launcher, or with
the way to it. A cluster manager's SIGTERM to every process of a node reaches a trainer several times: all are SIGTERM,
so that they are one request (`runtime/signals.py`).

Guarantees: the command has ended when this process ends, and is killed with it (`parent.py`). Its exit code is passed
on. A command that does not stop in time, or is frozen (`frozen.py`), is killed. Without a first line nothing is
started.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from marius_oac.config.cluster import SECRET_VARIABLE
from marius_oac.nodes.launch.frozen import frozen_end
from marius_oac.nodes.launch.parent import PARENT, bound
from marius_oac.runtime.signals import STOPPING, Requests, handled, woken_by_signals

PATIENCE = 660.0  # seconds from the first request to stop: a checkpoint may have to be written
ALIVE, STOP = b".", b"!"


def main(timeout: float, command: Sequence[str]) -> int:
    """Runs the command; returns its exit code, or 128 + the signal that ended it."""
    with open(0, "rb", buffering=0, closefd=False) as unbuffered:  # the selector must see all that follows
        secret = unbuffered.readline().decode("ascii", "replace").strip()
    if not secret:
        return 1  # the launcher has ended
    variables = {**os.environ, SECRET_VARIABLE: secret, PARENT: str(os.getpid())}
    with subprocess.Popen(bound(command), stdin=subprocess.DEVNULL, env=variables, start_new_session=True) as process:
        requests = Requests()

        def pass_on(number: int, frame: object) -> None:
            if requests.add(number):
                process.send_signal(number)

        try:
            with handled(STOPPING, pass_on), frozen_end(lambda: [process.pid], timeout):
                _watch(process, timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _watch(process: subprocess.Popen[bytes], timeout: float) -> None:
    """Returns when the process has ended, or has not stopped in time."""
    deadline: float | None = None
    lease: float | None = None
    asking = iter((signal.SIGTERM, signal.SIGINT))
    ended = os.pidfd_open(process.pid)
    with selectors.DefaultSelector() as selector, woken_by_signals(selector) as bell:
        selector.register(ended, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            ready = [key.fd for key, _ in selector.select(_left(deadline or lease))]
            if ended in ready or (deadline and not ready):
                break
            if bell.fileno() in ready:
                bell.recv(4096)
            said = os.read(0, 4096) if 0 in ready else b""
            if ALIVE in said:
                lease = time.monotonic() + timeout
            if 0 in ready and not said:
                selector.unregister(0)
            for _ in range(said.count(STOP) if said else int(0 in ready or not ready)):
                process.send_signal(next(asking, signal.SIGINT))
                deadline = deadline or time.monotonic() + PATIENCE
    os.close(ended)


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
