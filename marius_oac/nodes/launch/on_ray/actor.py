"""A Ray actor that starts and watches one process of a run.

Guarantees:
- The process is killed with the actor (PR_SET_PDEATHSIG), and where it is stopped for `timeout`. It ends if the driver
  is silent for so long: first in an orderly way, after another `timeout` at once.
- The run's secret is in the process's environment, the job on its standard input; neither is on a command line.
- Requests to stop come with `poll`, at most once in each; its interval bounds how late they are.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marius_oac.config.cluster import SECRET_VARIABLE
from marius_oac.nodes.launch.cluster import this_machine
from marius_oac.nodes.launch.frozen import Watched
from marius_oac.nodes.launch.parent import PARENT, bound
from marius_oac.types import present

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BLOCK = 1 << 16
_LOOK = 0.1  # seconds between two looks at the process


class TrainerActor:
    """One process of a run, on the node where Ray has put the actor."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="trainer")
        self._ready, self._ended = threading.Event(), threading.Event()
        self._heard = time.monotonic()
        self._asked = 0
        self._job: dict[str, Any] = {}

    def facts(self, address: str) -> dict[str, Any]:
        """What the driver must know of this node: its machine, and two ports that are free at an address."""
        machine = this_machine()
        return {"machine": f"{machine.host} {machine.boot}", "cores": machine.cores, "ports": free_ports(address, 2)}

    def start(self, words: Sequence[str], job: Mapping[str, Any], secret: str, folder: str, timeout: float) -> int:
        """Starts the process, `python WORDS...`, in the folder if it is on this node; returns its pid.

        Args:
            job: plain JSON values, for its standard input.
            secret: of the run.
            timeout: seconds after which a silent driver is lost.
        """
        self._job = {"words": list(words), "job": dict(job), "secret": secret, "folder": folder, "timeout": timeout}
        self._heard = time.monotonic()
        self._thread.start()
        self._ready.wait()
        if self._process is None:
            raise RuntimeError("the process could not be started")
        return self._process.pid

    def poll(self, asked: int, wait: float) -> tuple[bytes, bytes, int | None]:
        """Returns new output and errors of the process, and its exit code if it has ended; waits for up to `wait`
        seconds if there is nothing.

        Args:
            asked: how often it was asked to stop by now.
        """
        self._heard = time.monotonic()
        process = present(self._process)
        if self._asked < asked:
            self._asked += 1
            process.send_signal(signal.SIGINT if self._asked == 1 else signal.SIGTERM)
        ended = self._ended.wait(0 if self._asked < asked else wait)
        found, errors = (_read(present(stream).fileno()) for stream in (process.stdout, process.stderr))
        return found, errors, process.returncode if ended and not found and not errors else None

    def _run(self) -> None:
        """Starts the process and waits for it. The process gets SIGKILL when this thread ends."""
        try:
            about = self._job
            folder = about["folder"] if Path(about["folder"]).is_dir() else None
            variables = {**os.environ, SECRET_VARIABLE: about["secret"], PARENT: str(os.getpid())}
            process = subprocess.Popen(
                bound([sys.executable, *about["words"]]), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, cwd=folder, env=variables, start_new_session=True, bufsize=0,
            )  # fmt: skip
            for stream in (process.stdout, process.stderr):
                os.set_blocking(present(stream).fileno(), False)
            self._process = process
            self._ready.set()
            with suppress(BrokenPipeError), present(process.stdin) as given:  # it may have ended
                given.write(json.dumps(about["job"]).encode())
            self._watch(process, about["timeout"])
            self._ended.set()
        finally:
            self._ready.set()

    def _watch(self, process: subprocess.Popen[bytes], timeout: float) -> None:
        asked, frozen = 0, Watched(lambda: [process.pid], timeout)
        while True:
            try:
                process.wait(_LOOK)
                return
            except subprocess.TimeoutExpired:
                silent = time.monotonic() - self._heard
            frozen.look()
            if silent > timeout * (asked + 1):
                asked += 1
                process.send_signal(signal.SIGINT if asked == 1 else signal.SIGKILL)


def free_ports(address: str, count: int) -> list[int]:
    """Returns ports that are free at an address. None is one that the system may give to a connection meanwhile."""
    first, last = (int(number) for number in _EPHEMERAL.read_text().split())
    candidates = [port for port in range(10000, 65536) if not first <= port <= last]
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        try:
            with socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET):
                found.append(port)
        except OSError:
            continue
    return found


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _BLOCK)
    except BlockingIOError:
        return b""
