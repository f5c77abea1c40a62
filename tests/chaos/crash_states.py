"""Crashes at every operation on files: `python -m tests.chaos crash`.

Commands run once in this process while `crash_disk.Disk` watches what they write and flush. Then the folder is laid out
as a crash at one of those moments may have left it, and the same command, or `resume`, goes on. It must end as if
nothing had happened; nothing that was acknowledged before the crash may be gone.
"""

import itertools
import os
import random
import shutil
import sys
import threading
import zlib
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from marius_oac.runs.checkpoints.checkpoint import name_of
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from tests.chaos.children import Case, Said, call
from tests.chaos.crash_disk import WAYS, Disk, Moment, Tree, lay, left_by
from tests.chaos.small_runs import make_all, must
from tests.run_folders import contents, outcome

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
MORE = ("--set", "training.epochs=2")
NOTHING, EVERYTHING = "", "~"
"""What is acknowledged before a run has a checkpoint, and when a command has ended."""
WRITTEN_NEXT = (".owner.unfinished", "owner.json.unfinished")
"""What is left of these is in nobody's way: whoever trains next writes them, and so removes it."""
_watchers: list[Callable] = []


@dataclass(frozen=True)
class Scenario:
    """A command that is watched, `HERE` standing for the folder of all.

    Attributes:
        before: commands that are not watched.
        again: what goes on after the crash, where the command's product is there; None: the product is whole then.
        product: what the command makes, below HERE/held.
        noted: what is acknowledged from the beginning; a checkpoint's name, or None.
    """

    argv: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    again: tuple[str, ...] | None = ("resume", "HERE/held/run")
    product: str = "run"
    noted: str | None = None


def _train(task: str) -> tuple[str, ...]:
    return ("train", f"HERE/{task}.yaml", "--out", "HERE/held/run")


_EXPORT = ("export", "HERE/run", "--format", "parquet", "--out", "HERE/held/out")
_PREDICT = ("predict", "HERE/run", "--data", "HERE/day_0.parquet", "--out", "HERE/held/out.parquet")
_AWAY = ("train", "HERE/memory.yaml", "--out", "HERE/run")
_CLICKS = ("train", "HERE/clicks.yaml", "--out", "HERE/run")
SCENARIOS = {
    **{task: Scenario(_train(task)) for task in ("memory", "disk", "clicks")},
    **{f"{task}, resumed": Scenario(("resume", "HERE/held/run", *MORE), (_train(task),),
                                    ("resume", "HERE/held/run", *MORE), noted="newest")
       for task in ("memory", "disk", "clicks")},
    **{f"{task}, taken back": Scenario(("resume", "HERE/held/run", "--checkpoint", "OLDEST"), (_train(task),),
                                       noted="OLDEST") for task in ("memory", "disk")},
    "from the start": Scenario(("resume", "HERE/held/run", "--checkpoint", "start"), (_train("disk"),), noted=NOTHING),
    "prepare": Scenario(("prepare", "HERE/edges.npy", "--out", "HERE/held/out"), again=None, product="out"),
    "export": Scenario(_EXPORT, (_AWAY,), None, "out"),
    "predict": Scenario(_PREDICT, (_CLICKS,), None, "out.parquet"),
}  # fmt: skip


class _Watch:
    """Looks at a disk before each operation of this process on files, and at each flush."""

    def __init__(self, folder: Path, noted: str | None):
        self.moments: list[Moment] = []
        self.noted, self._disk, self._lock = noted, Disk(folder), threading.RLock()

    def note(self, what: str) -> None:
        with self._lock:
            self.look(f"{what} is acknowledged")
            self.noted = what

    def look(self, event: str) -> None:
        with self._lock:
            self.moments.append(self._disk.look(event, self.noted))

    def audit(self, event: str, args: tuple) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_CREAT | os.O_TRUNC)
        if event in CHANGES or writes:
            with self._lock:
                self.look(f"{event} {args[0]}")
                if event == "os.rename":
                    self._disk.renames(Path(os.fsdecode(args[0])), Path(os.fsdecode(args[1])))

    def flush(self, descriptor: int) -> None:
        with self._lock:
            where = os.readlink(f"/proc/self/fd/{descriptor}")
            self.look(f"flush {where}")
            self._disk.flush(descriptor)
            self.look(f"flushed {where}")


def _audit(event: str, args: tuple) -> None:
    for watcher in _watchers:
        watcher.audit(event, args)


@contextmanager
def _watched(folder: Path, noted: str | None):
    """Everything within the block, and what of it this program acknowledges."""
    watch, made, saved = _Watch(folder, noted), RunFolder.create, RunFolder.note_saved

    def create(*args, **given):
        run = made(*args, **given)
        watch.note(NOTHING)
        return run

    def note_saved(run: RunFolder, batch_index: int) -> None:
        saved(run, batch_index)
        watch.note(name_of(batch_index))

    RunFolder.create, RunFolder.note_saved = staticmethod(create), note_saved
    os.fsync = os.fdatasync = watch.flush
    _watchers.append(watch)
    try:
        yield watch
    finally:
        _watchers.clear()
        os.fsync = os.fdatasync = lambda descriptor: None
        RunFolder.create, RunFolder.note_saved = staticmethod(made), saved
    watch.note(EVERYTHING)
    watch.look("the end")


class _Played:
    """A scenario, played once, and cases of what a crash may leave of it."""

    def __init__(self, name: str, here: Path):
        self.name, self.scenario, self.here, self.work = name, SCENARIOS[name], here, here / "held"
        self.product = self.work / self.scenario.product
        lay({}, self.work)
        shutil.rmtree(here / "run", ignore_errors=True)
        for argv in self.scenario.before:
            must(*self._words(argv))
        names = Checkpoints(self.product / "checkpoints").names()
        self.oldest = names[0] if names else ""
        self.aside = here.parent / f"{name.replace(' ', '-')}-run"
        noted = {"newest": names[-1] if names else None, "OLDEST": self.oldest}.get(
            self.scenario.noted, self.scenario.noted
        )
        words = self._words(self.scenario.argv)
        with _watched(self.work, noted) as watch:
            must(*words)
        self.moments, self.whole = watch.moments, self._end()
        if (here / "run").exists():
            (here / "run").rename(self.aside)

    def _words(self, argv: tuple[str, ...]) -> list[str]:
        at = getattr(self, "oldest", "")
        return [word.replace("HERE", str(self.here)).replace("OLDEST", at) for word in argv]

    def _end(self) -> object:
        """What must be the same."""
        if self.scenario.again:
            return outcome(self.product)
        return contents(self.product) if self.product.is_dir() else self.product.read_bytes()

    def cases(self, seed: int) -> list[Case]:
        """All of them once, those with the fewest things lost last."""
        seen, found = set(), []
        for number, moment in enumerate(self.moments):
            for place, way in enumerate(WAYS):
                tree = left_by(moment, way, random.Random(f"{seed}/{self.name}/{number}/{place}"))
                key = hash((moment.noted, tuple(tree.items())))
                if key not in seen:
                    seen.add(key)
                    change = f"{way} left at {number} of {len(self.moments)}, before {moment.event}"
                    found.append(Case(self.name, change, lambda moment=moment, tree=tree: self.run(moment, tree)))
        return found

    def run(self, moment: Moment, tree: Tree) -> tuple[list[Said], str | None]:
        lay(tree, self.work)
        if self.aside.exists():
            self.aside.rename(self.here / "run")
        try:
            said: list[Said] = []
            return said, self._fault(moment, said, zlib.crc32(moment.event.encode()))
        finally:
            if (self.here / "run").exists():
                (self.here / "run").rename(self.aside)

    def _fault(self, moment: Moment, said: list[Said], chance: int) -> str | None:
        there, noted = self.product.exists(), moment.noted
        if noted is not None and not there:
            return f"lost: {self.scenario.product} is gone"
        if self.scenario.again and there:
            names = Checkpoints(self.product / "checkpoints").names()
            if noted not in (None, EVERYTHING) and max(names, default="") < noted:
                return f"lost: checkpoint {noted} was acknowledged; there are {names}"
            if chance % 4 == 0 and names:
                said.append(call("eval", self.product))
        again = self.scenario.again if there else self.scenario.argv
        if again:
            said.append(call(*self._words(again)))
        for each in said:
            if each.fault or each.code:
                return each.fault or f"lost: {each.err[-1:]}"
        if self._end() != self.whole:
            return "lost: it has not ended as if nothing had happened"
        if chance % 5 == 0 and self.scenario.again:
            said.append(call("verify", self.product))
            if said[-1].code:
                return f"wrong: {said[-1].out}"
        left = [str(path) for path in self.work.rglob(".*") if path.suffix in (".unfinished", ".part")]
        left = [path for path in left if not path.endswith(WRITTEN_NEXT)]
        return f"wrong: left behind: {left}" if left and again else None


def cases(folder: Path, seed: int) -> list[Case]:
    """Those of all scenarios, in turns and in an order that the seed gives."""
    here = folder / "here"
    shutil.rmtree(here, ignore_errors=True)
    for each in folder.glob("*-run"):
        shutil.rmtree(each)
    make_all(here)
    if not _audit_hooked:
        sys.addaudithook(_audit)
        _audit_hooked.append(True)
    found = []
    for name in SCENARIOS:
        some = _Played(name, here).cases(seed)
        random.Random(seed).shuffle(some)
        found.append(some)
    return [case for turn in itertools.zip_longest(*found) for case in turn if case]


_audit_hooked: list[bool] = []
