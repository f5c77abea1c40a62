"""Kernels compiled ahead of a run, by processes of their own, while the run imports libraries and reads its data.

Numba compiles a kernel when it is first called, one at a time in a process: on a machine's first run that would be ten
seconds. `signatures.txt` has what runs compile. The processes (`compile`) take lines from it and leave machine code in
Numba's cache; a run that wants a kernel before it is there waits for it (`once`). A line too many or too few costs time
and nothing else.

Guarantees:
- Nothing is started where it would not help: one core, no place for a cache, `NUMBA_DISABLE_JIT`, or everything was
  compiled before. To see that takes a millisecond or two and imports no numba.
- The processes end with the block of `compiling`, however it ends, and when this process is killed.
- What goes wrong there is not an error: the run compiles what is missing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from marius_oac.runtime.console import say
from marius_oac.runtime.files.owned import exchangeable
from marius_oac.runtime.standstill import Activity

RECORD = Path(__file__).with_name("signatures.txt")
MOST_PROCESSES = 4  # the longest chain of kernels takes a third of the time of all
PATIENCE = 60.0  # seconds without a kernel; the longest takes two

_HERE = Path(__file__).resolve().parent
_START = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv.pop(1))\n"
    "from marius_oac.kernels.compile import main\n"
    "main()"
)  # no `-m`, which would import from the present folder


class Line:
    """A line of the record: groups, and a kernel with the types of its arguments."""

    def __init__(self, text: str):
        groups, self.call = text.split(" ", 1)
        self.groups = frozenset(groups.split(","))

    @property
    def module(self) -> str:
        """The kernel's module, without `marius_oac.`."""
        return self.call.partition("(")[0].rpartition(".")[0]


@functools.cache
def record() -> list[Line]:
    """All lines, in the order in which to take them: a function stands before those that call it."""
    with suppress(OSError):
        return [Line(line) for line in RECORD.read_text("utf-8").splitlines() if not line.startswith("#")]
    return []


def wanted(groups: Collection[str]) -> list[Line]:
    """The lines of some groups."""
    return [line for line in record() if line.groups.intersection(groups)]


class _Processes:
    def __init__(self, groups: Collection[str], done: Path):
        self.total, self.owner = len(wanted(groups)), os.getpid()
        self._lock, self._count, self.said = threading.Lock(), 0, False
        words = [json.dumps([each for each in sys.path if each]), str(os.getpid()), str(done), str(RECORD), *groups]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", _START, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # so that it can be forked
            start_new_session=True,  # Ctrl-C is for the run, which ends them
        )  # fmt: skip

    def step(self) -> int:
        """Waits for kernels. Returns how many were finished; 0: there are no more."""
        with self._lock:
            pipe = self._process.stdout
            if pipe is None or pipe.closed or self._count >= self.total:
                return 0
            with Activity(f"compilation beside this process stands at {self._count} of {self.total} kernels"):
                if not select.select([pipe], [], [], PATIENCE)[0]:
                    return 0
                found = len(pipe.read(1 << 10) or b"")
            self._count += found
            return found

    def tell(self) -> None:
        """Says what is waited for, once."""
        if not self.said and not self._ended():
            self.said = True
            say(f"compiling {self.total} kernels, once for this machine")

    def wait(self) -> None:
        """Waits for all kernels, and says so."""
        if self._ended():
            return
        self.tell()
        from marius_oac.runtime.progress import make_bar  # loads tqdm

        bar = make_bar(" kernels", self.total, desc="compiling", initial=self._count)
        while found := self.step():
            if bar is not None:
                bar.update(found)
        if bar is not None:
            bar.close()

    def _ended(self) -> bool:
        """Whether nothing more will come, without waiting."""
        pipe = self._process.stdout
        while pipe is not None and select.select([pipe], [], [], 0)[0]:
            if not self.step():
                return True
        return False

    def close(self) -> None:
        """Ends the processes."""
        if self.owner != os.getpid():
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with self._lock:
            if self._process.stdout is not None:
                self._process.stdout.close()


_running: _Processes | None = None


class _Here:
    """What this process compiles itself. Only who holds Numba's lock changes it."""

    depth = 0
    seconds = 0.0
    quiet = True


@contextmanager
def compiling_here() -> Iterator[None]:
    """Within the block this process compiles a kernel, or waits for another process that does; blocks may be nested.
    During a run it says so, once, unless that was said of processes beside it."""
    if _Here.depth:
        yield
        return
    beside = _running if _running is not None and _running.owner == os.getpid() else None
    if beside is not None:
        beside.tell()
    if not _Here.quiet and (beside is None or not beside.said):
        _Here.quiet = True
        say("compiling kernels, once for this machine")
    _Here.depth, began = 1, time.perf_counter()
    try:
        yield
    finally:
        _Here.depth = 0
        _Here.seconds += time.perf_counter() - began


def seconds_here() -> float:
    """The seconds that this process has spent in `compiling_here` so far: they tell nothing of a run's speed."""
    return _Here.seconds


@contextmanager
def compiling(groups: Collection[str]) -> Iterator[None]:
    """Within the block kernels of these groups are compiled beside this process, unless that goes on already."""
    before, _Here.quiet = _Here.quiet, False
    try:
        with _beside(groups):
            yield
    finally:
        _Here.quiet = before


@contextmanager
def _beside(groups: Collection[str]) -> Iterator[None]:
    global _running
    if _running is not None or (done := _missing(groups)) is None:
        yield
        return
    try:
        _running = _Processes(groups, done)
    except OSError:  # no memory for a process, no such Python
        yield
        return
    try:
        yield
    finally:
        _running.close()
        _running = None


def goes_on() -> bool:
    """Waits until one more kernel has been compiled beside this process. Returns False when none is to come."""
    running = _running
    if running is None or running.owner != os.getpid():
        return False
    running.tell()
    return running.step() > 0


def wait() -> None:
    """Waits until all is compiled, before a time is measured; says so where it is not at once."""
    if _running is not None and _running.owner == os.getpid():
        _running.wait()


def _missing(groups: Collection[str]) -> Path | None:
    """The file that says that all has been compiled, if it is not there; None: nothing is to be done."""
    if not wanted(groups) or os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0") or not sys.executable:
        return None
    if processes() < 2 or (folder := cache_folder()) is None:
        return None
    done = folder / f"marius_oac.{'.'.join(sorted(groups))}.{_stamp(groups)}.compiled"
    return None if done.exists() else done


def processes() -> int:
    """How many processes compile."""
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


def cache_folder() -> Path | None:
    """A folder beside Numba's cache; None where there is no place, or others could write there, too."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return None if exchangeable(Path(given)) else Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in (_HERE / "cpu" / "__pycache__", Path(home) / "numba"):
        near = next(each for each in (folder, *folder.parents) if each.exists())
        if os.access(near, os.W_OK | os.X_OK) and (folder.parent == _HERE / "cpu" or not exchangeable(folder)):
            return folder
    return None


def _stamp(groups: Collection[str]) -> str:
    """Digits that change with all on which machine code depends: sources, record, versions, processor, settings."""
    found = hashlib.sha256(f"{sys.version} {platform.machine()} {processor()}".encode())
    modules = {_HERE.parent.joinpath(*line.module.split(".")).with_suffix(".py") for line in wanted(groups)}
    numba = find_spec("numba")
    if numba is not None and numba.origin:
        modules.add(Path(numba.origin).with_name("_version.py"))
    for path in sorted({*modules, *_HERE.glob("*.py"), *_HERE.glob("cpu/*.py"), RECORD}):
        with suppress(OSError):
            found.update(path.read_bytes())
    for name in sorted(name for name in os.environ if name.startswith("NUMBA_")):
        found.update(f"{name}={os.environ[name]}".encode())
    return found.hexdigest()[:16]


def processor() -> str:
    """What /proc/cpuinfo says about the first core, without what changes."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = file.read(1 << 13).partition("\n\n")[0].splitlines()
        kinds = ("vendor", "model", "cpu family", "stepping", "flags", "Features", "CPU ")
        return "\n".join(line for line in lines if line.startswith(kinds))
    return ""
