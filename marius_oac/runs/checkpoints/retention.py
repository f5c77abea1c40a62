"""The checkpoints of a run: listing, saving, and removing those that are no longer needed.

A checkpoint is a folder of ten digits that holds a manifest (`checkpoint.py`); everything else in `checkpoints/` is
left alone. A checkpoint is written under a temporary name, flushed to the disk, and renamed. Before it is removed it
loses its name, and the disk knows that: a checkpoint that has its name is complete. What a killed process left under a
temporary name is removed by the next one.

Beside the folder lies `saved.json`, the name of the newest checkpoint that every process of the run has saved, written
when all have it and before an older one is removed. It distinguishes a run whose checkpoints are lost from one that was
stopped before its first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from marius_oac.errors import CheckpointError, InputError
from marius_oac.runs.checkpoints.checkpoint import (
    DENSE,
    MANIFEST,
    Checkpoint,
    name_of,
    read_checkpoint,
    write_checkpoint,
)
from marius_oac.runs.checkpoints.manifest import Best, Saved
from marius_oac.runs.checkpoints.origin import Origin
from marius_oac.runs.checkpoints.pins import Missing, alone_with
from marius_oac.runtime.files.atomic import (
    check_no_link,
    clean,
    disk_errors,
    make_folder,
    remove_file,
    sealed,
    sync,
    unfinished,
    write_atomically,
)
from marius_oac.runtime.files.untrusted import parse_sealed, read_if_there
from marius_oac.runtime.standstill import Activity
from marius_oac.storage.backing import Backing
from marius_oac.storage.contract import ParameterStore, backing_of
from marius_oac.storage.saved import REFERENCES

FOLDER = "checkpoints"
BEST = "best.json"
NAME = r"[0-9]{10}"
SAVED = "saved.json"
START = "start"
"""In place of a checkpoint's name: the beginning of the run."""


def read_saved(rows: Path) -> str | None:
    """The name in a folder's `saved.json`, "" if there is no checkpoint yet; None if there is no such file.
    Raises CheckpointError if it is damaged."""
    content = read_if_there(rows / SAVED, CheckpointError)
    if content is None:
        return None
    return parse_sealed(content, rows / SAVED, Saved, CheckpointError).checkpoint or ""


def write_saved(rows: Path, name: str) -> None:
    """Writes `saved.json`; "": no checkpoint yet."""
    write_atomically(rows / SAVED, saved_bytes(name))


def saved_bytes(name: str) -> bytes:
    """The content of `saved.json`, with its checksum."""
    return sealed({"checkpoint": name or None})


class Checkpoints:
    """The checkpoints of one run, oldest first.

    Args:
        before: what an error about a damaged one says of the one before it, with {} for its name.
        run, part: of `Origin`, which all of them must have; None: unknown.

    Attributes:
        origin: what is saved has.
    """

    def __init__(
        self,
        folder: Path,
        before: str = "the one before it: --checkpoint {}",
        run: str | None = None,
        part: str | None = None,
    ):
        self.folder, self._before, self._run, self._part = folder, before, run, part
        self.origin = Origin(run=run, part=part or "")
        self._kept: dict[str, Backing] = {}  # of checkpoints that refer to rows elsewhere: what keeps those

    def saved_as(self, session: str, number: int, parts: int) -> None:
        """What is saved from now on is a part of what processes save together; see `Origin`."""
        self.origin = self.origin.model_copy(update={"session": session, "number": number, "parts": parts})

    def names(self) -> list[str]:
        """Names of the complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        with os.scandir(self.folder) as entries:
            return sorted(entry.name for entry in entries if _is_checkpoint(entry))

    def clean(self) -> None:
        """Removes what a killed process left unfinished. Raises InputError if the folder is a symbolic link."""
        check_no_link(self.folder)
        if self.folder.is_dir():
            clean(self.folder, files=re.escape(BEST), folders=NAME)

    def open(
        self,
        name: str | None = None,
        verify: bool = True,
        pinned: bool = False,
        same: Checkpoint | None = None,
        as_read: bool = False,
    ) -> Checkpoint:
        """The named checkpoint ("best": the best one), or the newest; `pinned`: see `read_checkpoint`, `same`:
        `Checkpoint.verify`, `as_read`: `Checkpoint.checked_as_read` instead.

        Raises:
            Missing: there is none, or none of that name.
            CheckpointError: it is damaged; the message offers the one before it.
        """
        names = self.names()
        if not names:
            raise Missing("there is no checkpoint yet", self.folder)
        if name == "best":
            name = self.best()
            if name is None:
                raise Missing("there is no best checkpoint: nothing has been evaluated yet", self.folder)
        if name is not None and name not in names:
            raise Missing(f"there is no checkpoint {name!r}; there are {', '.join(names)}", self.folder)
        chosen = name or names[-1]
        with self.offering_before(chosen):
            checkpoint = self.read(chosen, pinned)
            if as_read:
                return checkpoint.checked_as_read()
            if verify:
                checkpoint.verify(same=same)
            return checkpoint

    def read(self, name: str, pinned: bool = False) -> Checkpoint:
        """A checkpoint that is there, its manifest checked, and whose it is. Raises as `open` does."""
        checkpoint = read_checkpoint(self.folder / name, pinned)
        if wrong := checkpoint.origin.foreign(self._run, self._part):
            checkpoint.close()
            raise CheckpointError(wrong, checkpoint.path)
        return checkpoint

    @contextmanager
    def offering_before(self, chosen: str) -> Iterator[None]:
        """Within the block, errors about a damaged checkpoint offer the one before it."""
        try:
            yield
        except Missing:
            raise
        except CheckpointError as error:
            before = [other for other in self.names() if other < chosen]
            offer = f"; {self._before.format(before[-1])}" if before else "; there is none before it"
            raise CheckpointError(error.message + offer, error.where) from None

    def best(self) -> str | None:
        """Name of the best checkpoint by the validation metric, or None."""
        path = self.folder / BEST
        content = read_if_there(path, CheckpointError)
        if content is None:
            return None
        return parse_sealed(content, path, Best, CheckpointError).name

    def mark_best(self, name: str | None) -> None:
        """Keeps this checkpoint, whatever its age, until another one is marked; None: there is no best one."""
        if name is None:
            with disk_errors(self.folder / BEST):
                remove_file(self.folder / BEST)
        else:
            with disk_errors(self.folder):
                make_folder(self.folder)  # it may be another layout's checkpoint, and this one have none yet
            write_atomically(self.folder / BEST, sealed({"name": name}))

    def save(
        self,
        batch_index: int,
        stores: Sequence[ParameterStore],
        dense: Mapping[str, Any],
        extra: Mapping[str, Any],
        keep: int,
        arrays: Mapping[str, np.ndarray] = MappingProxyType({}),
        written: Callable[[], None] = lambda: None,
        alike: bool = False,
    ) -> Checkpoint:
        """Writes a checkpoint and removes all but the `keep` newest, the best one, and those that are being read, which
        the next call removes. The pipeline must be drained.

        `extra` is plain data for the manifest, `arrays` what becomes files of their own, by names such as `users.keys`.
        `written` is called when it is complete, before any other is removed. `alike`: see `Origin`.

        Raises:
            DivergedError: a number is NaN or infinite; such a checkpoint would push a good one out.
            InputError: the disk is full, or can't be written; the older checkpoints are as they were.
        """
        path, origin = self.folder / name_of(batch_index), self.origin.model_copy(update={"alike": alike})
        temporary = unfinished(path)
        with disk_errors(path), Activity(f"checkpoint {path.name} is being saved"):
            make_folder(self.folder)
            self._discard(temporary)
            try:
                temporary.mkdir()
                write_checkpoint(temporary, batch_index, stores, dense, extra, arrays, origin)
                os.rename(temporary, path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync(self.folder)
        saved = read_checkpoint(path)
        self._keep(saved, backing_of(stores))  # of several backings none keeps anything, for each copies its rows
        written()
        names = self.names()
        kept = {*names[-keep:], self.best()}
        self._remove_free([name for name in names if name not in kept])
        return saved

    def remove_all(self) -> None:
        """Removes all checkpoints but those that are being read."""
        self._remove_free(self.names())

    def _remove_free(self, names: Sequence[str]) -> None:
        for name in names:
            with Activity(f"checkpoint {name} is being removed"), alone_with(self.folder / name / MANIFEST) as free:
                if free:
                    self._remove(name)

    @contextmanager
    def alone_after(self, batch_index: int) -> Iterator[None]:
        """Within the block no process reads a later checkpoint, or can begin to. Raises InputError if one does."""
        with ExitStack() as stack:
            for name in self.names():
                manifest = self.folder / name / MANIFEST
                if name > name_of(batch_index) and not stack.enter_context(alone_with(manifest)):
                    raise InputError("is being read by another process; go back when that has ended", manifest.parent)
            yield

    def drop_after(self, batch_index: int) -> None:
        """Removes later checkpoints, the newest first; called within `alone_after`."""
        for name in reversed(self.names()):
            if name > name_of(batch_index):
                self._remove(name)

    def keep_for(self, stores: Sequence[ParameterStore]) -> None:
        """Empties the run's stores, which keep what its checkpoints refer to from now on.

        What a damaged checkpoint refers to is unknown; no run can continue from it.
        """
        backing = backing_of(stores)
        backing.forget()
        self._kept.clear()
        for name in self.names():
            try:
                checkpoint = self.read(name)
                checkpoint.verify(f".{REFERENCES}.npy")
            except CheckpointError:
                continue
            self._keep(checkpoint, backing)

    def _keep(self, checkpoint: Checkpoint, backing: Backing) -> None:
        for references in checkpoint.references():
            backing.keep(references)
            self._kept[checkpoint.name] = backing

    def _remove(self, name: str) -> None:
        path = self.folder / name
        kept = [np.array(each) for each in read_checkpoint(path).references()] if name in self._kept else []
        with disk_errors(path):
            self._discard(unfinished(path))
            os.rename(path, unfinished(path))
            sync(self.folder)  # else a power cut could bring its name back, and not all of its files
            self._discard(unfinished(path))
        for each in kept:  # not before: what a checkpoint with a name refers to is never overwritten
            self._kept[name].let_go(each)
        self._kept.pop(name, None)

    @staticmethod
    def _discard(temporary: Path) -> None:
        """Removes a folder of a temporary name, if it is there."""
        check_no_link(temporary)
        if temporary.exists():
            shutil.rmtree(temporary)


def _is_checkpoint(entry: os.DirEntry[str]) -> bool:
    """Whether it was made by `save`; it may be damaged since."""
    plain = re.fullmatch(NAME, entry.name) and entry.is_dir(follow_symlinks=False)
    return bool(plain) and any(os.path.lexists(os.path.join(entry.path, name)) for name in (MANIFEST, DENSE))
