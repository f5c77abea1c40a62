"""Checkpoints that stay in the memory of the processes that made them, for others of the same machine to go on from.

A change of the number of trainers needs no checkpoint on disk if all rows lie in memory: each process of the new group
copies its rows straight from the tables of their owners (`PeerMemory`), packed as they are.

Guarantees:
- `Held` keeps this process's part readable and unchanged until `close`, also when its tables are closed.
- Either all processes hold their parts or none does.
- Nothing is written: a process that dies before the others have read its part ends the run, which resumes from its last
  checkpoint on disk, to the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.torch import load, save

from marius_oac.errors import CheckpointError, size_text
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.session import Session
from marius_oac.runs.sharded.checkpoint import PLACE, ShardedCheckpoint
from marius_oac.runtime.closing import Closable
from marius_oac.runtime.console import logger
from marius_oac.runtime.machine import cgroups
from marius_oac.runtime.machine.peer_memory import may_read, readable
from marius_oac.storage.contract import ParameterStore
from marius_oac.storage.peer_table import PeerArray, PeerTable, about_array, about_table
from marius_oac.storage.snapshots import SavedTable
from marius_oac.types import present

_SPARE = 1.1  # times the memory of all tables, in which the new ones must fit beside the old ones


class Held(Closable):
    """This process's part of a checkpoint in memory: what `Checkpoints.save` would write.

    Attributes:
        part: describes it, as plain data. about: those of all processes, which `hold` sets.
    """

    def __init__(
        self,
        batch_index: int,
        stores: Sequence[ParameterStore],
        dense: Mapping[str, Any],
        extra: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
    ):
        on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in dense.items()}
        tensors = np.frombuffer(save(on_cpu), np.uint8)
        kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        tables = {store: present(store.memory()) for store in stores}
        self._memory = [*kept.values(), tensors, *tables.values()]
        self.part: dict[str, Any] = {
            "pid": os.getpid(), "place": int(kept[PLACE][0]), "batch_index": batch_index, "extra": dict(extra),
            "dense": about_array(tensors), "arrays": {name: about_array(array) for name, array in kept.items()},
            "tables": {store.name: about_table(store, memory) for store, memory in tables.items()},
        }  # fmt: skip
        self.about: list[dict[str, Any]] = []
        self._stack = ExitStack()
        self._stack.enter_context(readable())

    def close(self) -> None:
        """Frees the memory."""
        self._memory.clear()
        self._stack.close()


def hold(session: Session, batch_index: int, extra: Mapping[str, Any], joining: int) -> Held | None:
    """Holds a checkpoint of this moment. Collective.

    Args:
        batch_index, extra: see `Checkpoint`.
        joining: how many processes will join.

    Returns:
        None, the same on all processes, if a table is not in memory, or the memory has no room for all tables once more
        and for the processes that join, which the first one says; or if the kernel does not let processes read each
        other's memory.
    """
    task, peers = session.task, session.task.peers
    if not _has_room(session, joining):
        return None
    dense, arrays = session.step.dense_state(), task.state_arrays()
    held = Held(batch_index, session.stores, dense, extra, arrays)
    held.about = peers.gather(held.part)
    if peers.any(not all(may_read(part["pid"]) for part in held.about)):
        held.close()
        return None
    return held


def _has_room(session: Session, joining: int) -> bool:
    size, plan = sum(store.nbytes for store in session.stores), session.task.memory_plan
    besides = max(0, plan.total("host", mapped=False) - size) if plan else 0
    in_memory = all(store.memory() is not None for store in session.stores)
    every = session.task.peers.gather([in_memory, size, besides, cgroups.free_memory()])
    if not all(there for there, *_ in every):
        return False
    needed = int(_SPARE * sum(size for _, size, *_ in every)) + joining * max(besides for _, _, besides, _ in every)
    free = min(free for *_, free in every)
    if needed > free and session.task.peers.leads:
        logger.info(
            f"rows go through a checkpoint on disk: to copy them takes {size_text(needed)} of memory, and "
            f"{size_text(free)} are free"
        )
    return needed <= free


@dataclass(frozen=True)
class _Part(Checkpoint):
    """One process's part; `about` is `Held.part`."""

    about: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, about: Mapping[str, Any]) -> Self:
        path = Path(f"memory of process {about['pid']}")
        return cls(path, about["batch_index"], about["extra"], {}, {}, about=about)

    def tables(self) -> list[str]:
        return sorted(self.about["tables"])

    def table(self, name: str) -> SavedTable:
        return PeerTable(name, self.path, self.about["tables"][name])

    def has(self, name: str) -> bool:
        return name in self.about["arrays"]

    def part(self, table: str, part: str) -> PeerArray:
        if not self.has(f"{table}.{part}"):
            raise CheckpointError(f"has no {table}.{part}", self.path)
        return PeerArray.load(self.about["arrays"][f"{table}.{part}"])

    def arrays_of(self, begins: str) -> dict[str, np.ndarray]:
        found = {name: about for name, about in self.about["arrays"].items() if name.startswith(begins)}
        return {name: PeerArray.load(about)[:] for name, about in found.items()}

    def dense(self) -> dict[str, Any]:
        return load(PeerArray.load(self.about["dense"])[:].tobytes())


class InMemoryCheckpoint(ShardedCheckpoint):
    """The parts that processes hold, read like one checkpoint."""

    @classmethod
    def load(cls, about: Sequence[Mapping[str, Any]]) -> Self:
        """From `Held.about`."""
        parts = [_Part.load(each) for each in sorted(about, key=lambda each: each["place"]) if each["place"] >= 0]
        return cls.of(parts[:1], parts)
