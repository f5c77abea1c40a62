"""Which trainer decodes which rows of Parquet logs, where several trainers read them together.

A *stretch* is the fewest consecutive row groups with STRETCH_ROWS or more. It is decoded by one trainer, its *owner*:
stretch s of reading v of a file (`LogSchedule.visits`) by trainer (v + s) mod N. A *span* is the part of a block of the
planner that lies in one stretch, or a part of that if a message would be too large. All trainers find the same spans:
they follow from the file's footer, which has the same digest on all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import BagConfig, SequenceConfig
from marius_oac.data.logs.formats import open_log
from marius_oac.data.logs.parquet import ParquetLog, Range
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.reading.readers import check_readable
from marius_oac.errors import InputError

STRETCH_ROWS = 1 << 16
MOST_SPAN_BYTES = 64 << 20
"""Of a span's examples, as messages hold them (`packed`)."""


@dataclass(frozen=True)
class Spans:
    """The spans of one reading of a file.

    Attributes:
        edges: int64 [n + 1]; span i has the rows [edges[i], edges[i + 1]).
        owners: int64 [n], the trainer that decodes each.
        groups: int64 [g + 1], the first row of each row group, and the end.
    """

    edges: np.ndarray
    owners: np.ndarray
    groups: np.ndarray

    def rows(self, span: int) -> Range:
        """The rows of a span."""
        return int(self.edges[span]), int(self.edges[span + 1])

    def within(self, first: int, end: int) -> range:
        """The spans that rows [first, end), a block, consist of."""
        low, high = np.searchsorted(self.edges, (first, end))
        return range(int(low), int(high))

    def groups_of(self, span: int) -> range:
        """The row groups that a span has rows of, and empty ones between them."""
        first, end = self.rows(span)
        low = np.searchsorted(self.groups, first, side="right") - 1
        return range(int(low), int(np.searchsorted(self.groups, end)))

    def owned(self, trainer: int, span: int) -> np.ndarray:
        """The spans of a trainer from `span` on, int64 [k]."""
        return span + np.flatnonzero(self.owners[span:] == trainer)


def spans_of(groups: Sequence[int], block_rows: int, visit: int, trainers: int, most_rows: int) -> Spans:
    """The spans of reading `visit` of a file.

    Args:
        groups: the number of rows of each row group.
        block_rows: of the planner's blocks.
        most_rows: of a span.
    """
    starts, size, first = [0], 0, 0
    for rows in groups:
        size += rows
        if size >= STRETCH_ROWS:
            first += size
            size = 0
            starts.append(first)
    rows = sum(groups)
    blocks = range(0, rows, block_rows)
    cuts = itertools.chain.from_iterable(range(at, min(at + block_rows, rows), most_rows) for at in blocks)
    edges = np.unique(np.fromiter((*starts, *cuts, rows), np.int64))
    owners = (visit + np.searchsorted(starts, edges[:-1], side="right") - 1) % trainers
    return Spans(edges, owners, np.concatenate([[0], np.cumsum(groups)]))


def groups_of_file(path: Path, config: LogConfig, rows: int, pieces: Pieces) -> list[int]:
    """The number of rows of each row group of a Parquet log.

    Raises:
        InputError: the file is missing, or has changed.
    """
    check_readable(path)
    log = open_log(path, config, True)
    if not isinstance(log, ParquetLog) or log.rows(pieces) != rows:
        raise InputError(f"{rows:,} examples were counted: the file has changed", path)
    return log.groups


def most_rows(config: LogConfig) -> int:
    """The most rows that a span may have."""
    bags: tuple[BagConfig | SequenceConfig, ...] = (*config.multi_valued, *config.sequences)
    ids = len(config.single_valued()) + sum(each.max_values for each in bags)
    return max(1, MOST_SPAN_BYTES // (4 + 4 * config.num_numbers + 12 * ids + 8 * len(bags)))
