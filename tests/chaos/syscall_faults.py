"""System calls that fail, one by one: `python -m tests.chaos faults`.

A command runs once while `system_calls.c`, which is compiled here and loaded first, counts its calls on files.
Then it runs again and again, and each time one of them fails, or that one and all later ones of its kind. It must end
well, or in one line and exit code 2; nothing may be half-written or lost, and going on must end as if nothing had
happened.
"""

import ctypes
import errno
import itertools
import os
import random
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marius_oac.runs.checkpoints.retention import Checkpoints
from tests.chaos.children import Case, Said, call
from tests.chaos.small_runs import make_all, must
from tests.run_folders import contents, outcome

KINDS = ("open", "read", "write", "flush", "rename", "remove", "mkdir", "reserve", "resize", "map")
"""As `system_calls.c` numbers them."""
HALF, ONCE, ALWAYS = -1, False, True
_FULL = ((errno.ENOSPC, ALWAYS), (errno.ENOSPC, ONCE), (errno.EIO, ONCE))
WAYS = {
    "open": (
        (errno.EMFILE, ONCE),
        (errno.EIO, ONCE),
        (errno.ENOMEM, ONCE),
        (errno.EINTR, ONCE),
        (errno.EMFILE, ALWAYS),
    ),
    "read": ((errno.EIO, ONCE), (HALF, ONCE), (errno.EINTR, ONCE), (errno.EIO, ALWAYS), (HALF, ALWAYS)),
    "write": (*_FULL, (HALF, ONCE), (errno.EINTR, ONCE)),
    "flush": ((errno.EIO, ONCE), (errno.ENOSPC, ALWAYS), (errno.EINTR, ONCE)),
    "rename": _FULL,
    "remove": ((errno.EIO, ONCE), (errno.EACCES, ALWAYS)),
    "mkdir": _FULL,
    "reserve": (*_FULL, (errno.EINTR, ONCE)),
    "resize": _FULL,
    "map": ((errno.ENOMEM, ONCE), (errno.ENOMEM, ALWAYS)),
}
MOST_PLACES = 60
"""Of a command's calls of one kind those that fail; every one of them where there are no more."""
SOURCE = Path(__file__).with_name("system_calls.c")
MORE = ("--set", "training.epochs=2")


@dataclass(frozen=True)
class Scenario:
    """A command whose calls fail, `HERE` standing for the folder of all.

    Attributes:
        before: commands that are not disturbed.
        product: what the command makes or changes, below HERE/held; None: it only reads.
    """

    argv: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    product: str | None = "run"


def _train(task: str) -> tuple[str, ...]:
    return ("train", f"HERE/{task}.yaml", "--out", "HERE/held/run")


_RUN, _DATA = "HERE/held/run", "HERE/day_0.parquet"
SCENARIOS = {
    **{task: Scenario(_train(task)) for task in ("memory", "disk", "clicks")},
    **{f"{task}, resumed": Scenario(("resume", _RUN, *MORE), (_train(task),)) for task in ("memory", "disk", "clicks")},
    "prepare": Scenario(("prepare", "HERE/edges.npy", "--out", "HERE/held/out"), product="out"),
    "export": Scenario(("export", _RUN, "--out", "HERE/held/out"), (_train("disk"),), "out"),
    "predict": Scenario(("predict", _RUN, "--data", _DATA, "--out", "HERE/held/out.parquet"), (_train("clicks"),),
                        "out.parquet"),
    "eval": Scenario(("eval", _RUN), (_train("disk"),), None),
    "verify": Scenario(("verify", _RUN), (_train("memory"),), None),
}  # fmt: skip


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def environment(folder: Path) -> dict[str, str]:
    """What a child needs in its environment. Raises RuntimeError where there is no compiler, or it says no."""
    if compiler() is None:
        raise RuntimeError("there is no C compiler (cc) on this machine")
    library = folder / "system_calls.so"
    command = [compiler(), "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{SOURCE} can't be compiled: {done.stderr}")
    return {"LD_PRELOAD": str(library)}


class _Calls:
    """Of this process, on files below a folder."""

    def __init__(self, folder: Path):
        self._library, self._folder = ctypes.CDLL(os.environ["LD_PRELOAD"]), os.fsencode(folder)

    def begin(self, kind: int = -1, number: int = 0, error: int = 0, always: bool = False) -> None:
        """Call `number`, from 1, of this kind fails from now on; by default none."""
        self._library.chaos_watch(self._folder, kind, ctypes.c_long(number), error, int(always))

    def end(self) -> list[int]:
        """How many there were of each kind."""
        seen = (ctypes.c_long * len(KINDS))()
        self._library.chaos_stop(seen)
        return list(seen)


class _Played:
    """A scenario, and cases of what may fail in it."""

    def __init__(self, name: str, here: Path, calls: _Calls):
        self.name, self.scenario, self.here, self.held, self._calls = name, SCENARIOS[name], here, here / "held", calls
        self.product = self.held / self.scenario.product if self.scenario.product else None
        shutil.rmtree(self.held)
        self.held.mkdir()
        for argv in self.scenario.before:
            must(*self._words(argv))
        self.aside = here.parent / f"{name.replace(' ', '-')}-held"
        shutil.copytree(self.held, self.aside)
        self._first = self._names()
        calls.begin()
        try:
            self._said = must(*self._words(self.scenario.argv))
        finally:
            self.counts = calls.end()
        self._whole = self._end()

    def _words(self, argv: Sequence[str]) -> list[str]:
        return [word.replace("HERE", str(self.here)) for word in argv]

    @property
    def _trains(self) -> bool:
        return self.scenario.product == "run"

    def _names(self) -> list[str]:
        return Checkpoints(self.held / "run" / "checkpoints").names()

    def _end(self) -> object:
        """What must be the same."""
        if self.product is None:
            return None
        if self._trains:
            return outcome(self.product)
        return contents(self.product) if self.product.is_dir() else self.product.read_bytes()

    def cases(self, seed: int) -> list[Case]:
        """Of each way to fail every call, or as many as MOST_PLACES."""
        found = []
        for number, kind in enumerate(KINDS):
            count, chance = self.counts[number], random.Random(f"{seed}/{self.name}/{kind}")
            step = max(1, count // MOST_PLACES)
            for error, always in WAYS[kind]:
                for place in range(1 + chance.randrange(step), count + 1, step):
                    what = "does half" if error == HALF else errno.errorcode[error]
                    change = f"{kind} {place} of {count}{' and all later ones' if always else ''}: {what}"
                    given = (number, place, error, always)
                    found.append(Case(self.name, change, lambda given=given: self.run(*given)))
        random.Random(f"{seed}/{self.name}").shuffle(found)
        return found

    def run(self, *given) -> tuple[list[Said], str | None]:
        shutil.rmtree(self.held)
        shutil.copytree(self.aside, self.held)
        self._calls.begin(*given)
        try:
            said = [call(*self._words(self.scenario.argv))]
        finally:
            self._calls.end()
        return said, self._fault(said)

    def _fault(self, said: list[Said]) -> str | None:
        first = said[0]
        if first.fault:
            return first.fault
        if self.product is None:
            same = first.code or _without_times(first.out) == _without_times(self._said)
            return None if same else f"wrong: it says {first.out}"
        if max(self._names(), default="") < max(self._first, default=""):
            return f"lost: of the checkpoints {self._first} are there {self._names()}"
        there = self.product.exists()
        if there and not self._trains:
            return None if self._end() == self._whole else "lost: half of it was written"
        if not there or first.code:
            said.append(call(*self._words(self._again(there))))
        if said[-1].fault or said[-1].code:
            return said[-1].fault or f"lost: {said[-1].err[-1:]}, after {first.err[-1:]}"
        if self._end() != self._whole:
            return f"lost: it has not ended as if nothing had happened, after {first.err[-1:]}"
        left = [str(path) for path in self.held.rglob(".*") if path.suffix in (".unfinished", ".part")]
        return f"wrong: left behind: {left}, after {first.err[-1:]}" if left and first.code else None

    def _again(self, there: bool) -> tuple[str, ...]:
        return ("resume", _RUN, *(MORE if self.scenario.before else ())) if there else self.scenario.argv


def _without_times(lines: Sequence[str]) -> list[str]:
    return [re.sub(r"[0-9.]+ s\b|seconds .*", "", line) for line in lines]


def cases(folder: Path, seed: int) -> list[Case]:
    """Those of all scenarios, in turns and in an order that the seed gives."""
    here = folder / "here"
    shutil.rmtree(here, ignore_errors=True)
    for each in folder.glob("*-held"):
        shutil.rmtree(each)
    make_all(here)
    calls = _Calls(here)
    found = [_Played(name, here, calls).cases(seed) for name in SCENARIOS]
    return [case for turn in itertools.zip_longest(*found) for case in turn if case]
