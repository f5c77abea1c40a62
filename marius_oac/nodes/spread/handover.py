"""Brings the keys of a checkpoint, with their rows, to the processes that carry them now, where other processes have
written it.

Each process that carries rows reads an equal part of every file, once, and sends each row to the process that it
belongs to. Were every process to read its own rows, it would have to read nearly all blocks of all files: the rows of
keys lie in the order in which training met them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from marius_oac.errors import CheckpointError
from marius_oac.nodes.groups.contract import Group
from marius_oac.storage.contract import ROWS_PER_BLOCK, RowLayout
from marius_oac.storage.snapshots import SavedTable

NOBODY = -1
"""In place of a process: the row is not needed any more."""


@dataclass(frozen=True)
class Handover:
    """All processes of a group, which call its methods together.

    Attributes:
        carriers: ranks of the processes that carry rows, in the order of the placement's nodes.
        agreed: `Peers.agreed` of these processes.
    """

    group: Group
    carriers: Sequence[int]
    agreed: Callable[[Callable[[], Any]], Any]

    @property
    def place(self) -> int | None:
        """The number of this process among the carriers; None: it carries no rows."""
        return self.carriers.index(self.group.rank) if self.group.rank in self.carriers else None

    @property
    def leads(self) -> bool:
        """Whether this process is the first that carries rows."""
        return self.group.rank == self.carriers[0]

    def share(self, count: int) -> range:
        """Returns which of `count` rows this process reads."""
        place, size = self.place, len(self.carriers)
        if place is None:
            return range(0)
        return range(count * place // size, count * (place + 1) // size)

    def blocks(self, count: int) -> Iterator[range]:
        """Yields this process's share in blocks, as many for each process; the last ones may be empty."""
        mine, longest = self.share(count), -(-count // len(self.carriers))
        for first in range(0, longest, ROWS_PER_BLOCK):
            yield mine[first : first + ROWS_PER_BLOCK]

    def send(self, width: int, read: Callable[[], tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        """Sends the rows that `read` returns, [n, ...] of `width` bytes each, a multiple of 4, to their owners.

        Args:
            read: returns the rows and the owner of each, int [n]: the number of a carrier, or NOBODY.

        Returns:
            What each carrier has sent to this process, float32 [m, width / 4] of the same bits, by its number; in the
            order in which it read the rows.

        Raises:
            InputError: `read` did so, here or on another process, which it names.
        """
        found, owners = self.agreed(read)
        rows = np.ascontiguousarray(found).reshape(-1).view(np.float32).reshape(len(owners), width // 4)
        counts = np.bincount(owners + 1, minlength=len(self.carriers) + 1)  # NOBODY's come first
        order = np.argsort(owners, kind="stable")[counts[0] :]
        return self._exchanged(rows[order], self.group.gather(counts[1:].tolist()))

    def _exchanged(self, rows: np.ndarray, counts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """`rows` are grouped by owner; `counts[r][p]` of rank r's belong to carrier p."""
        rank, width = self.group.rank, rows.shape[1]
        of_rank = [0] * self.group.size
        for place, carrier in enumerate(self.carriers):
            of_rank[carrier] = counts[rank][place]
        sent = torch.from_numpy(rows).split(of_rank)
        mine = self.place
        received = [torch.empty((0 if mine is None else theirs[mine], width), dtype=torch.float32) for theirs in counts]
        self.group.all_to_all([each.contiguous() for each in sent], received)
        return [received[carrier].numpy() for carrier in self.carriers]


def row_bytes(layout: RowLayout) -> int:
    """Returns the width of what `whole_rows` makes."""
    return 4 * layout.width + 8


def whole_rows(saved: SavedTable, rows: range) -> np.ndarray:
    """Reads consecutive rows of a table: float32 [n, values | state | timestamp], the last one two columns of bits.
    Raises CheckpointError if there are fewer."""
    found, timestamps = saved.read(slice(rows.start, rows.stop))
    if not len(found) == len(timestamps) == len(rows):
        raise CheckpointError(f"is damaged: table {saved.name!r} has fewer rows than keys", saved.path)
    saved.check_timestamps(timestamps)
    return np.concatenate((found, np.ascontiguousarray(timestamps).view(np.float32).reshape(-1, 2)), axis=1)


def cut(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the timestamps, int64 [n], and values with state of what `whole_rows` made."""
    return np.ascontiguousarray(rows[:, -2:]).view(np.int64)[:, 0], np.ascontiguousarray(rows[:, :-2])
