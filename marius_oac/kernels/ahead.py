"""Kernels compiled beside a run that finds some missing, by processes of their own.

Numba compiles a kernel when it is first called, one at a time in a process: on a machine's first run that would be
twenty seconds. `signatures.txt` has what runs compile. The processes take its lines and leave machine code in Numba's
cache; each passes over what another is at (`once`), and the run compiles what it needs and does not find. A line too
many or too few costs time and nothing else.

Guarantees:
- Nothing is started where it would not help: one core, no place for a cache, or all that is called was compiled before.
- The processes end with the block of `compiling`, however it ends, and when this process is killed.
- What goes wrong there is not an error: the run compiles what is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marius_oac.runtime.closing import end_with
from marius_oac.runtime.console import say
from marius_oac.runtime.files.owned import exchangeable

RECORD = Path(__file__).with_name("signatures.txt")
USED = "marius_oac.lock"  # is in a folder of the cache that was used
MOST_PROCESSES = 3  # beside the run; the longest chain of kernels takes a third of the time of all

_HERE = Path(__file__).resolve().parent
_START = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv.pop(1))\n"
    "from marius_oac.kernels.ahead import main\n"
    "main()"
)  # no `-m`, which would import from the present folder


def record() -> list[tuple[set[str], str]]:
    """Groups, and a kernel with the types of its arguments; a function stands before those that call it."""
    lines = (line.split(" ", 1) for line in RECORD.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [(set(groups.split(",")), call) for groups, call in lines]


class _Run:
    """The block of `compiling` that this process is in; and what it compiles itself, holding Numba's lock."""

    groups: Collection[str] = ()
    processes: list[subprocess.Popen[bytes]]
    told = True
    depth = 0
    seconds = 0.0


@contextmanager
def compiling(groups: Collection[str]) -> Iterator[None]:
    """Within the block, once a kernel is missing, those of these groups are compiled beside this process."""
    if _Run.groups:
        yield
        return
    _Run.groups, _Run.processes, _Run.told, owner = groups, [], False, os.getpid()
    try:
        if (folder := cache_folder()) and not (folder / USED).exists():  # all are missing
            _start()
        yield
    finally:
        for process in _Run.processes if os.getpid() == owner else ():
            process.kill()
            process.wait()
        _Run.groups, _Run.told = (), True


def begun() -> None:
    """A kernel is being compiled, here or by another process: says so, once for a run, and starts the processes."""
    if not _Run.told:
        _Run.told = True
        say("compiling kernels, once for this machine")
        _start()


def _start() -> None:
    count = min(len(os.sched_getaffinity(0)) - 1, MOST_PROCESSES)
    if _Run.processes or count < 1 or cache_folder() is None or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    path, nothing = json.dumps([each for each in sys.path if each]), subprocess.DEVNULL
    words = [sys.executable, "-P", "-W", "ignore", "-c", _START, path, str(os.getpid()), str(RECORD), *_Run.groups]
    with suppress(OSError):  # no memory for a process, no such Python
        for _ in range(count):
            _Run.processes.append(
                # Ctrl-C is for the run, which ends them.
                subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
            )


def main() -> None:
    """`PARENT RECORD GROUP...`, the arguments of a process that compiles: its parent, and what to compile."""
    global RECORD
    end_with(int(sys.argv[1]))
    RECORD, groups = Path(sys.argv[2]), sys.argv[3:]
    from marius_oac.kernels.signatures import kernel_of  # imports numba

    for own, call in record():
        if own.intersection(groups):
            with suppress(Exception):  # the run compiles it, or says what is wrong
                kernel, types = kernel_of(call)
                kernel.compile(types, patient=False)


@contextmanager
def compiling_here() -> Iterator[None]:
    """Within the block this process compiles or loads a kernel, or waits for another one that does; may be nested."""
    began = time.perf_counter()
    _Run.depth += 1
    try:
        yield
    finally:
        _Run.depth -= 1
        if not _Run.depth:
            _Run.seconds += time.perf_counter() - began


def seconds_here() -> float:
    """The seconds that this process has spent in `compiling_here` so far: they tell nothing of a run's speed."""
    return _Run.seconds


def cache_folder() -> Path | None:
    """The folder in which compiled code is kept; None where there is no place, or others could write there, too. Who
    can write beside the sources could as well change Python's own bytecode, which lies there."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return None if exchangeable(Path(given)) else Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    beside = _HERE / "cpu" / "__pycache__"
    for folder in (beside, Path(home) / "numba"):
        near = next(each for each in (folder, *folder.parents) if each.exists())
        if os.access(near, os.W_OK | os.X_OK) and (folder == beside or not exchangeable(folder)):
            return folder
    return None
