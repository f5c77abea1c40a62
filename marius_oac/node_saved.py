"""Checkpoints of a run over nodes: each node has written its own part, and together they are one moment.

    RUN/nodes/LAYOUT/NODE/checkpoints/SEQUENCE      a `Checkpoint` of the rows that the node carried

A layout is the names of the processes, in order, and what rows each of them carries. A run that goes on with another
layout reads the parts of the one before, which must all be at hand, and writes its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.checkpoint import Checkpoint, Checkpoints, name_of
from marius_oac.errors import CheckpointError
from marius_oac.files import disk_errors, unfinished
from marius_oac.nodes.shards import IdPlaces, Placement

NODES = "nodes"
DENSE = "dense_sync"
"""Begins the names of arrays that the agreement of dense parameters keeps."""
PLACEMENT, PLACE, PACKING = (f"{NODES}.{each}" for each in ("placement", "place", "packing"))
"""Arrays of a part: the node of each virtual shard, int32 [V]; this node's number among those that carry rows, [1]; and
`Packed.figures`."""


def layout_name(names: Sequence[str], weights: Sequence[float], nodes: np.ndarray) -> str:
    """Names who the processes are, what each should carry, and what it does, the node of each virtual shard: with other
    names or weights, or in another order, it is another."""
    who = "\n".join(names).encode() + b"\0" + np.asarray(weights, "<f8").tobytes()
    digest = hashlib.sha256(who + b"\0" + np.asarray(nodes, "<i4").tobytes())
    return f"{len(names)}-{digest.hexdigest()[:8]}"


@dataclass(frozen=True)
class Layout:
    """A folder `nodes/LAYOUT` of a run, as far as it is at hand."""

    path: Path

    @classmethod
    def all(cls, run: Path) -> list[Layout]:
        return [cls(path) for path in sorted((run / NODES).glob("[0-9]*-*")) if path.is_dir()]

    @property
    def size(self) -> int:
        return int(self.path.name.partition("-")[0])

    @property
    def parts(self) -> list[Checkpoints]:
        return [Checkpoints(path / "checkpoints") for path in sorted(self.path.iterdir()) if path.is_dir()]

    def names(self) -> list[str]:
        """Checkpoints that all processes of the layout have written, oldest first; none if not all are at hand."""
        parts = [set(part.names()) for part in self.parts]
        return sorted(set.intersection(*parts)) if len(parts) == self.size else []

    def begun(self) -> list[str]:
        """Checkpoints that all may have written; where parts are not at hand, those of any."""
        return self.names() if len(self.parts) == self.size else [name for part in self.parts for name in part.names()]

    def open(self, name: str) -> NodesCheckpoint:
        """All parts of a checkpoint. Raises CheckpointError where one is damaged."""
        parts = [part.open(name) for part in self.parts]
        carried = [part for part in parts if part.arrays()[PLACE][0] >= 0]
        carried.sort(key=lambda part: int(part.arrays()[PLACE][0]))
        first = parts[0]
        whole = NodesCheckpoint(first.path, first.sequence, first.extra, first.files, {})
        object.__setattr__(whole, "parts", carried)
        return whole


def part_name(name: str) -> str:
    """The folder in a layout of the process of this name."""
    return name.replace("/", "+")  # which no node's name has


def saved_packings(run: Path, names: Sequence[str], weights: Sequence[float], own: str) -> list[dict[str, Any]]:
    """Where these processes have had their rows before, as far as the part of the one called `own` is here: layout,
    checkpoints of this part, oldest first, node of each virtual shard, and figures."""
    found = []
    for layout in Layout.all(run):
        part = Checkpoints(layout.path / part_name(own) / "checkpoints")
        for name in reversed(part.names()):  # all of a layout have the same placement
            with suppress(CheckpointError):  # the next one tells as well; who loads this one says that it is damaged
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
    found = [(layout.names()[-1], layout.path.stat().st_mtime, layout) for layout in Layout.all(run) if layout.names()]
    if not found:
        return None
    name, _, layout = max(found, key=lambda each: each[:2])
    return layout, name


def open_whole(run: Path, name: str | None = None) -> NodesCheckpoint:
    """A checkpoint of a run over nodes, by default the newest, as if one node had written it.

    Raises:
        CheckpointError: there is none of which all parts are at hand, or it is damaged.
    """
    found = newest(run)
    if found and name == "best":
        name = found[0].parts[0].best()
        if name is None:
            raise CheckpointError("there is no best checkpoint: nothing has been evaluated yet", found[0].path)
    for layout in Layout.all(run):
        if name and name in layout.names():
            return layout.open(name)
    if name or found is None:
        which = f"checkpoint {name!r}" if name else "no checkpoint"
        raise CheckpointError(f"{which}: the parts of all nodes must lie here, and don't", run / NODES)
    return found[0].open(found[1])


def drop_after(run: Path, sequence: int, besides: Path) -> None:
    """Removes what layouts other than the one at `besides` have of later moments: the story is told anew from here.

    Several processes may do so at once.
    """
    for layout in Layout.all(run):
        for part in layout.parts if layout.path != besides else ():
            for name in reversed(part.names()):
                path = part.folder / name
                if name > name_of(sequence):
                    with disk_errors(path), suppress(FileNotFoundError):
                        os.rename(path, unfinished(path))
                    shutil.rmtree(unfinished(path), ignore_errors=True)


class Joined:
    """Arrays one behind the other, each read only where it is asked for."""

    def __init__(self, parts: Sequence[Any], order: IdPlaces | None = None):
        """`order`: row i is that of id i, wherever it lies."""
        self._parts, self._order = parts, order
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.shape = (int(self._starts[-1]), *parts[0].shape[1:])
        self.size = int(np.prod(self.shape))
        self.dtype = parts[0].dtype

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


class NodesCheckpoint(Checkpoint):
    """Reads as a `Checkpoint` does. A graph's rows are in the order of its nodes; a click log's are one node's behind
    the other's, with the keys beside them."""

    parts: Sequence[Checkpoint]

    @cached_property
    def _placement(self) -> Placement:
        return Placement(np.array(self.parts[0].arrays()[PLACEMENT]), len(self.parts))

    def tables(self) -> list[str]:
        return self.parts[0].tables()

    def array(self, table: str, part: str) -> Any:
        arrays = [each.array(table, part) for each in self.parts]
        if part not in ("values", "state", "timestamps"):
            return np.concatenate(arrays)
        keyed = f"{table}.index.keys" in self.parts[0].arrays()
        size = sum(map(len, arrays))
        return Joined(arrays, None if keyed or not size else IdPlaces(size, self._placement))

    def arrays(self) -> dict[str, np.ndarray]:
        every = [part.arrays() for part in self.parts]
        joined = {}
        for name in every[0]:
            if name not in (PLACE, PLACEMENT, PACKING) and not name.startswith(DENSE):
                offsets = np.cumsum([0, *(len(each[name.replace(".free", ".keys")]) for each in every[:-1])])
                shift = offsets if name.endswith(".free") else np.zeros(len(every), np.int64)
                moved = [each[name] + by if by else each[name] for each, by in zip(every, shift, strict=True)]
                joined[name] = np.concatenate(moved)
        return joined

    def verify(self, ending: str = "") -> None:
        for part in self.parts:
            part.verify(ending)
