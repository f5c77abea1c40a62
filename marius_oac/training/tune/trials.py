"""What is known of the trials of a search, in its folder.

| file | |
|---|---|
| `search.json` | the config and the space that all trials share |
| `trials/0007.json` | trial 7: its values, how it ended, and its validation results |
| `trials/0007.log` | what its process said |
| `runs/0007` | its run; only that of the best is kept |

Each file appears as a whole. All that a search goes on from is in them: nothing but the newest evaluations of running
trials is lost with a process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from marius_oac.config.space import Value
from marius_oac.errors import InputError, shown
from marius_oac.runs.folder.about import differences
from marius_oac.runtime.files.atomic import (
    check_no_link,
    check_place,
    disk_errors,
    json_text,
    make_folder,
    open_own,
    write_atomically,
)
from marius_oac.runtime.files.untrusted import Count, Described, parse_json, read_if_there

SEARCH = "search.json"
MOST_TRIALS = 10_000

State = Literal["running", "complete", "pruned", "failed"]


class Trial(Described):
    """One trial.

    Attributes:
        state: running (also if its process was lost), complete, pruned (stopped early) or failed.
        values: those of the keys that are searched.
        curve: (epochs done, decisive metric on valid) of each evaluation so far.
        value: the decisive metric on valid of the checkpoint that is the run's result, of a complete trial.
        test: the run's final metrics on the test data; nothing is chosen by them.
        seconds: of training and evaluation.
        why: what the process of a failed trial said last.
    """

    number: Count
    state: State = "running"
    values: dict[str, Value | None]
    curve: tuple[tuple[Count, float], ...] = ()
    value: float | None = None
    test: dict[str, float] = {}
    seconds: float = 0.0
    why: str = ""

    def told(self) -> str:
        """Its values, on one line."""
        return " ".join(f"{key.rpartition('.')[2]}={short(value)}" for key, value in self.values.items())


def short(value: Value | None) -> str:
    """A value of a setting in few characters."""
    return f"{value:.4g}" if isinstance(value, float) else "null" if value is None else str(value)


class TrialsFolder:
    """The folder of a search. `locked` holds it."""

    def __init__(self, path: Path):
        self.path = path

    def file(self, number: int, suffix: str) -> Path:
        """`trials/0007.json`, or another file of the trial."""
        return self.path / "trials" / f"{number:04d}.{suffix}"

    def run(self, number: int) -> Path:
        """The folder of the trial's run."""
        return self.path / "runs" / f"{number:04d}"

    @contextmanager
    def locked(self, shared: dict[str, Any]) -> Iterator[None]:
        """Makes the folder, or goes on with the one that is there, while no other process does.

        Args:
            shared: config and space, as plain values.

        Raises:
            InputError: it is something else, or a search over other settings, or another process is at it.
        """
        check_place(self.path)
        if self.path.exists() and not (self.path / SEARCH).is_file() and any(self.path.iterdir()):
            raise InputError("exists already, and is no search; choose another --out", self.path)
        with disk_errors(self.path), ExitStack() as stack:
            for folder in (self.path, self.path / "trials", self.path / "runs"):
                check_no_link(folder, self.path.parent)
                make_folder(folder)
            lock = open_own(self.path / ".lock", os.O_RDWR)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError("another process is searching in this folder", self.path) from None
            self._check(shared)
            yield

    def _check(self, shared: dict[str, Any]) -> None:
        path = self.path / SEARCH
        content = read_if_there(path)
        if content is None:
            write_atomically(path, json_text(shared, indent=1))
            return
        for key, before, now in differences(parse_json(content, path, dict[str, Any]), shared):
            raise InputError(
                f"was begun with {key} {shown(before)}, and now it is {shown(now)}; choose another --out", self.path
            )

    def trials(self) -> list[Trial]:
        """All trials, by number. Raises InputError where one is damaged or missing."""
        found = list[Trial]()
        while len(found) < MOST_TRIALS:
            path = self.file(len(found), "json")
            content = read_if_there(path)
            if content is None:
                return found
            trial = parse_json(content, path, Trial)
            if trial.number != len(found):
                raise InputError(f"is damaged: it is of trial {trial.number}", path)
            found.append(trial)
        raise InputError(f"holds more than {MOST_TRIALS:,} trials", self.path)

    def write(self, trial: Trial) -> None:
        """Writes the trial's file."""
        write_atomically(self.file(trial.number, "json"), json_text(trial.model_dump(), indent=1))

    def remove_run(self, number: int) -> None:
        """Removes the run of a trial, if it is there."""
        path = self.run(number)
        check_no_link(path, self.path)
        with disk_errors(path):
            if path.exists():
                shutil.rmtree(path)
