"""Ends what is left of an instance of Ray when the process that has started it ends, for whatever reason.

`python -P -m marius_oac.nodes.launch.on_ray.reaper FOLDER` waits for the end of its standard input, which that process
holds open. Then it kills all other processes that have a file in FOLDER open, as each of Ray's has its log, and removes
it. Ray's own agents would look for their cluster for a minute or more after it was killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen

_ROUNDS = 100  # of looking and killing: a process may start another one meanwhile


@contextmanager
def reaping(folder: str) -> Iterator[None]:
    """Has the processes that use a folder killed, and the folder removed, when the block ends or this process does."""
    words = [sys.executable, "-P", "-m", "marius_oac.nodes.launch.on_ray.reaper", folder]
    with Popen(words, stdin=PIPE, start_new_session=True, bufsize=0) as process:
        try:
            yield
        finally:
            process.communicate()


def users_of(folder: str, spared: int) -> list[int]:
    """Returns the processes that have a file in a folder open, but this one and `spared`."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdecimal() and int(each.name) not in (os.getpid(), spared):
            with suppress(OSError):  # it has ended, or is another user's
                links = (os.readlink(one) for one in (each / "fd").iterdir())
                if any(link.startswith(folder + os.sep) for link in links):
                    found.append(int(each.name))
    return found


def main(folder: str) -> None:
    """Waits for the end of standard input; see the head of this module."""
    starter = os.getppid()  # Ray's library may have files open there until it ends
    sys.stdin.buffer.read()
    for _ in range(_ROUNDS):
        users = users_of(folder, starter)
        for pid in users:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not users:
            break
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
