"""Checkpoints of a run over nodes: each node has written its own part, and together they are one moment.

    RUN/nodes/LAYOUT/NODE/checkpoints/SEQUENCE      a `Checkpoint` of the rows that the node carried

A layout is the names of the processes, in order, and what rows each of them carries. A run that goes on with another
layout reads the parts of the one before, which must all be at hand, and writes its own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from marius_oac.errors import CheckpointError
from marius_oac.runs.checkpoints.checkpoint import PLACEMENT, SERVES, Checkpoint, name_of
from marius_oac.runs.checkpoints.origin import check_together
from marius_oac.runs.checkpoints.pins import Missing
from marius_oac.runs.checkpoints.retention import BEST, SAVED, Checkpoints, read_saved
from marius_oac.runtime.files.atomic import check_no_link, disk_errors, sync, unfinished
from marius_oac.storage.placement import IdPlaces, Placement

NODES = "nodes"
DENSE = "dense_sync"
"""Begins the names of arrays that the agreement of dense parameters keeps."""
PLACE, PACKING = f"{NODES}.place", f"{NODES}.packing"
"""Arrays of a part: this node's number among those that carry rows, [1]; and `Packed.figures`."""

_LAYOUT = re.compile(r"[1-9][0-9]{0,5}-[^.]+")


def layout_name(names: Sequence[str], weights: Sequence[float], nodes: np.ndarray) -> str:
    """The name of a layout: a digest of the processes' names and weights, in order, and of the node of each virtual
    shard."""
    who = "\n".join(names).encode() + b"\0" + np.asarray(weights, "<f8").tobytes()
    digest = hashlib.sha256(who + b"\0" + np.asarray(nodes, "<i4").tobytes())
    return f"{len(names)}-{digest.hexdigest()[:8]}"


@dataclass(frozen=True)
class Layout:
    """A folder `nodes/LAYOUT` of a run, as far as it is at hand."""

    path: Path

    @classmethod
    def all(cls, run: Path) -> list[Layout]:
        """The layouts of a run; folders with other names are ignored."""
        found = sorted((run / NODES).glob("[0-9]*-*"))
        return [cls(path) for path in found if _LAYOUT.fullmatch(path.name) and path.is_dir()]

    @property
    def size(self) -> int:
        """The number of processes that carry rows."""
        return int(self.path.name.partition("-")[0])

    @property
    def parts(self) -> list[Checkpoints]:
        """The checkpoints of the processes whose parts are at hand, by name."""
        return [
            Checkpoints(path / "checkpoints", part=identity_of(path))
            for path in sorted(self.path.iterdir())
            if path.is_dir()
        ]

    def names(self) -> list[str]:
        """Checkpoints that all processes of the layout have written, oldest first; none if not all are at hand."""
        parts = [set(part.names()) for part in self.parts]
        return sorted(set.intersection(*parts)) if len(parts) == self.size else []

    def begun(self) -> list[str]:
        """Checkpoints that all processes may have written: those of any process, if parts are missing or don't record
        which checkpoints are complete."""
        common, saved = self.names(), [read_saved(part.folder.parent) for part in self.parts]
        known = [each for each in saved if each is not None]
        if common or (known and len(self.parts) == self.size):
            return sorted({*common, *filter(None, known)})
        return [name for part in self.parts for name in part.names()]

    def open(self, name: str, run: str, pinned: bool = False, as_read: bool = False) -> ShardedCheckpoint:
        """All parts of a checkpoint of the run whose `id` is `run`; `pinned`: see `read_checkpoint`, `as_read`:
        `Checkpoint.checked_as_read`. Raises CheckpointError if one is damaged or another's, or Missing."""
        parts = [part.open(name, pinned=pinned, as_read=as_read) for part in self.parts]
        parts.sort(key=lambda each: each.origin.number)
        for part in parts:
            if wrong := part.origin.foreign(run, None):
                raise CheckpointError(wrong, part.path)
        check_together([(str(part.path), part.facts()) for part in parts])
        numbered = [(int(_array_of(part, PLACE)[0]), part) for part in parts]
        found = sorted(((place, part) for place, part in numbered if place >= 0), key=lambda each: each[0])
        places, carried = [place for place, _ in found], [part for _, part in found]
        trainers = [part for part in parts if not part.has(SERVES)] or parts
        if not found or places != list(range(len(found))):
            raise CheckpointError(f"is damaged: its parts are those of the nodes {places}", trainers[0].path)
        return ShardedCheckpoint.of(trainers, carried)


def _array_of(part: Checkpoint, name: str) -> np.ndarray:
    """An array of a part about its placement. Raises CheckpointError if it is missing or empty."""
    found = part.arrays_of(name).get(name)
    if found is None or not found.size or found.dtype.kind != "i":
        raise CheckpointError(f"is damaged: {name} is missing or empty", part.path)
    return found


def identity_of(part: Path) -> str:
    """What the checkpoints in the folder of a part are known by, see `Origin.part`."""
    return f"{part.parent.name}/{part.name}"


def part_name(name: str) -> str:
    """The folder in a layout of the process of this name."""
    return name.replace("/", "+")  # which no node's name has


def saved_packings(run: Path, names: Sequence[str], weights: Sequence[float], own: str) -> list[dict[str, Any]]:
    """Earlier placements of these processes, as far as the part of the one named `own` is here: layout, checkpoints of
    this part, oldest first, node of each virtual shard, and figures."""
    found = []
    for layout in Layout.all(run):
        part = Checkpoints(layout.path / part_name(own) / "checkpoints")
        for name in reversed(part.names()):  # all of a layout have the same placement
            with suppress(CheckpointError):  # another one will do; loading this one reports the damage
                saved = part.open(name, verify=False)
                for each in (PLACEMENT, PACKING):
                    saved.verify(f"{each}.npy")
                nodes, figures = (np.array(saved.array(*each.split("."))) for each in (PLACEMENT, PACKING))
                if layout.path.name == layout_name(names, weights, nodes):
                    about = {"nodes": nodes.tolist(), "figures": figures.tolist()}
                    found.append({"layout": layout.path.name, "checkpoints": part.names()} | about)
                break
    return found


def newest(run: Path) -> tuple[Layout, str] | None:
    """The layout that has the newest complete checkpoint, and its name."""
    there = [(layout, layout.names()) for layout in Layout.all(run)]
    found = [(names[-1], layout.path.stat().st_mtime, layout) for layout, names in there if names]
    if not found:
        return None
    name, _, layout = max(found, key=lambda each: each[:2])
    return layout, name


def parts_of(run: Path) -> list[Checkpoints]:
    """The parts of all layouts that are at hand."""
    return [part for layout in Layout.all(run) for part in layout.parts]


def open_whole(run: Path, id: str, name: str | None = None) -> ShardedCheckpoint:
    """A checkpoint of a run over nodes, by default the newest, as if one node had written it; pinned.

    Args:
        run: its folder; `id`: of its `run.json`.

    Raises:
        Missing: there is none of which all parts are at hand.
        CheckpointError: it is damaged, or its parts don't belong together.
    """
    found = newest(run)
    if found and name == "best":
        name = found[0].parts[0].best()
        if name is None:
            raise Missing("there is no best checkpoint: nothing has been evaluated yet", found[0].path)
    for layout in Layout.all(run):
        if name in layout.names():
            return layout.open(name, id, pinned=True)
    if name is not None or found is None:
        which = "no checkpoint" if name is None else f"checkpoint {name!r}"
        raise Missing(f"{which}: the parts of all nodes must lie here, and don't", run / NODES)
    return found[0].open(found[1], id, pinned=True)


def drop_after(run: Path, batch_index: int, besides: Path) -> None:
    """Removes later checkpoints of layouts other than the one at `besides`, and what names them, since training
    continues from here.

    Several processes may do so at once. Raises InputError, and removes nothing, if a part is a symbolic link.
    """
    parts = [part for layout in Layout.all(run) if layout.path != besides for part in layout.parts]
    later = [part.folder / name for part in parts for name in reversed(part.names()) if name > name_of(batch_index)]
    for path in later:
        check_no_link(path, run)
    for part in parts:  # before what they name is gone
        _forget_later(part, name_of(batch_index))
    for path in later:
        with disk_errors(path), suppress(FileNotFoundError):
            os.rename(path, unfinished(path))
            sync(path.parent)
        shutil.rmtree(unfinished(path), ignore_errors=True)


def _forget_later(part: Checkpoints, name: str) -> None:
    saved, best = part.folder.parent / SAVED, part.folder / BEST
    noted: dict[Path, Callable[[], str | None]] = {saved: partial(read_saved, part.folder.parent), best: part.best}
    for path, read in noted.items():
        with suppress(CheckpointError), disk_errors(path):  # a damaged one names nothing
            if (read() or "") > name:
                path.unlink(missing_ok=True)


class Joined:
    """Concatenated arrays, which are read when they are indexed."""

    def __init__(self, parts: Sequence[Any], order: IdPlaces | None = None):
        """`order`: where the row of each id lies; None: rows are numbered one part after another."""
        self._parts, self._order = parts, order
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.shape = (int(self._starts[-1]), *parts[0].shape[1:])
        self.size = int(np.prod(self.shape))
        self.dtype = parts[0].dtype
        self.nbytes = self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows)
        if rows.ndim == 0:
            return self[rows[None]][0]
        if self._order is None:
            nodes = np.searchsorted(self._starts, rows, side="right") - 1
            places = rows - self._starts[nodes]
        else:
            nodes, places = self._order.find(rows)
        found = np.empty((rows.size, *self.shape[1:]), self.dtype)
        for node, part in enumerate(self._parts):
            mine = np.flatnonzero(nodes == node)
            if mine.size:
                sorted_places, back = np.unique(places[mine], return_inverse=True)
                found[mine] = part[sorted_places][back]
        return found


class ShardedCheckpoint(Checkpoint):
    """The parts of all nodes, read like one `Checkpoint`. A graph's rows are in the order of its nodes; those of a
    click log are one part after another, as are their keys."""

    parts: Sequence[Checkpoint]
    trainers: Sequence[Checkpoint]

    @classmethod
    def of(cls, trainers: Sequence[Checkpoint], parts: Sequence[Checkpoint]) -> Self:
        """The parts that hold rows, in order, and those of trainers; what is no row is that of the first trainer."""
        first = trainers[0]
        about = first.path, first.batch_index, first.extra, first.files
        whole = cls(*about, {}, checked=first.checked, origin=first.origin)
        object.__setattr__(whole, "parts", parts)
        object.__setattr__(whole, "trainers", trainers)
        return whole

    @cached_property
    def placement(self) -> Placement:
        """Which part has the rows of each virtual shard. Raises CheckpointError if it is damaged."""
        try:
            return Placement(np.array(_array_of(self.parts[0], PLACEMENT)), len(self.parts))
        except ValueError as error:
            raise CheckpointError(f"is damaged: {PLACEMENT}: {error}", self.parts[0].path) from None

    def close(self) -> None:
        """Ends the pins of all parts."""
        for part in self.parts:
            part.close()

    def tables(self) -> list[str]:
        """Names of the tables, the same in all parts."""
        return self.parts[0].tables()

    def array(self, table: str, part: str) -> Any:
        """A part of a table over all nodes, read when it is indexed."""
        arrays = [each.array(table, part) for each in self.parts]
        if part not in ("values", "state", "timestamps"):
            return np.concatenate([each[:] for each in arrays])
        keyed = self.parts[0].has(f"{table}.index.keys")
        size = sum(map(len, arrays))
        if keyed or not size:
            return Joined(arrays)
        places = IdPlaces(size, self.placement)
        if list(map(len, arrays)) != list(map(places.num_rows, range(len(arrays)))):
            raise CheckpointError(f"is damaged: {table} has not the rows that belong to each node", self.path)
        return Joined(arrays, places)

    def arrays(self) -> dict[str, np.ndarray]:
        """The keys of all nodes, one node after another."""
        every = [part.arrays() for part in self.parts]
        joined = {}
        for name in every[0]:
            if name not in (PLACE, PLACEMENT, PACKING, SERVES) and not name.startswith(DENSE):
                offsets = np.cumsum([0, *(len(each[name.replace(".free", ".keys")]) for each in every[:-1])])
                shift = offsets if name.endswith(".free") else np.zeros(len(every), np.int64)
                moved = [each[name] + by if by else each[name] for each, by in zip(every, shift, strict=True)]
                joined[name] = np.sum(moved, axis=0) if name.endswith(".dropped") else np.concatenate(moved)
        return joined

    def dense(self) -> dict[str, Any]:
        """Those of the first trainer."""
        return self.trainers[0].dense()

    def checksums(self) -> dict[str, str]:
        """None: an array lies in a file of each part."""
        return {}

    def verify(self, ending: str = "", same: Checkpoint | None = None) -> None:
        """Checks the files of all parts."""
        for part in self.parts:
            part.verify(ending, same)
