"""Several trainers read Parquet logs together: each decodes its own stretches, and gives the others their examples.

    owner     decodes a span of its own and converts it, as one process would; packs the examples of each trainer
    trainer   asks the owners of a block's spans for its examples, and joins them

Guarantees:
- A trainer gets the examples that it would have read by itself, bit by bit, and their order.
- Digests of row groups go with the examples. So every trainer knows those of all row groups that it has examples of,
  compares them with those of earlier readings, whoever read, and records them with its checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.batches.rank_slice import RankSlice
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import LazyBlock, LogFile
from marius_oac.data.logs.formats import open_log
from marius_oac.data.logs.lent import LentMemory
from marius_oac.data.logs.packed import pack, unpack
from marius_oac.data.logs.parquet import ParquetLog, Range
from marius_oac.data.logs.pieces import DIGITS, Pieces
from marius_oac.data.logs.schema import RawBlock
from marius_oac.data.logs.spans import Spans, groups_of_file, most_rows, spans_of
from marius_oac.data.reading.readers import check_readable
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.permutation import Permutation
from marius_oac.runtime.closing import Closable
from marius_oac.types import present

_DIGEST_BYTES = DIGITS // 2
_LENT = 2  # spans whose portions' memory is used again: one is decoded while trainers get another
_KEPT = 2  # readings before the newest whose spans are kept


@dataclass(frozen=True)
class Portion:
    """One trainer's examples of a span.

    Attributes:
        digests: uint8 [g, 16], of each row group that the span has rows of; 0: not known.
        content: uint8 [bytes], see `packed`.
    """

    digests: np.ndarray
    content: np.ndarray


class Exchange(Protocol):
    """How a trainer gets its portions from their owners."""

    def fetch(
        self, wanted: Sequence[tuple[int, int, int]], parse: Callable[[int, Portion], LogBlock]
    ) -> list[LogBlock]:
        """Returns what `parse` makes of the portions of these (owner, visit, span), numbered in their order. A
        ValueError of it means that the owner sent nonsense. One thread asks at a time."""


class LogReading:
    """What all trainers know alike of a log that they read together. Any number of threads may use it.

    Args:
        visits: (pass, file) of each reading of a file, in order.
        block_rows: of a planner's blocks.
        shares: the parts of each batch that each trainer computes, which are consecutive.
    """

    def __init__(
        self,
        config: CtrConfig,
        files: Sequence[LogFile],
        visits: Sequence[tuple[int, int]],
        block_rows: int,
        pieces: Sequence[Pieces],
        shares: Sequence[Sequence[RankSlice]],
    ):
        self.config, self.files, self.visits, self.block_rows, self.pieces = config, files, visits, block_rows, pieces
        self.shares = shares
        self._most_rows = most_rows(config.data)
        self._lock = threading.Lock()
        self._known: dict[int, Spans] = {}

    def file(self, visit: int) -> LogFile:
        """The file of a reading."""
        return self.files[self.visits[visit][1]]

    def pieces_of(self, visit: int) -> Pieces:
        """The digests of its file."""
        return self.pieces[self.visits[visit][1]]

    def spans(self, visit: int) -> Spans:
        """The spans of a reading. Raises InputError if the file is missing or has changed."""
        with self._lock:
            if visit not in self._known:
                file, data = self.file(visit), self.config.data
                groups = groups_of_file(file.path, data, file.rows, self.pieces_of(visit))
                spans = spans_of(groups, self.block_rows, visit, len(self.shares), self._most_rows)
                self._known = {each: found for each, found in self._known.items() if each >= visit - _KEPT}
                self._known[visit] = spans
            return self._known[visit]

    def block(self, visit: int, number: int) -> Range:
        """The rows of a block."""
        first = number * self.block_rows
        return first, min(first + self.block_rows, self.file(visit).rows)

    def places(self, trainer: int, visit: int, number: int) -> np.ndarray:
        """Which examples of a block a trainer needs, int64 [k], ascending."""
        first, end = self.block(visit, number)
        batch, found = self.config.training.batch_size, []
        for at in range(0, end - first, batch):
            parts = [each.of_batch(min(batch, end - first - at)) for each in self.shares[trainer]]
            found.append(np.arange(min(part[0] for part in parts), max(part[1] for part in parts)) + at)
        places = np.concatenate(found)
        if not self.config.data.shuffle:
            return places
        return np.sort(shuffle_of(self.config, *self.visits[visit], number, end - first).permute(places))


def shuffle_of(config: CtrConfig, number: int, file: int, block: int, size: int) -> Permutation:
    """The shuffle of a block of so many examples in pass `number`: place i has example `permute(i)`."""
    return Permutation(size, config.seed, number, f"shuffle of file {file}, block {block}")


class OwnSpans(Closable):
    """Decodes the spans that a trainer owns. One thread uses it; fastest in their order."""

    def __init__(self, reading: LogReading, trainer: int):
        self._reading, self._trainer = reading, trainer
        self._visit, self._ahead = -1, iter(())
        self._blocks: Generator[RawBlock, None, None] | None = None
        self._memory = LentMemory(_LENT)

    def owns(self, visit: int, span: int) -> bool:
        """Whether the trainer owns such a span. Raises InputError as `LogReading.spans`."""
        if not 0 <= visit < len(self._reading.visits) or self._reading.file(visit).format != "parquet":
            return False
        owners = self._reading.spans(visit).owners
        return span < owners.size and int(owners[span]) == self._trainer

    def following(self, visit: int, span: int) -> tuple[int, int] | None:
        """The (visit, span) that it owns next, in this reading or the next one; None: it is not there.

        Raises:
            InputError: as `LogReading.spans`.
        """
        for each, first in ((visit, span + 1), (visit + 1, 0)):
            if each < len(self._reading.visits) and self._reading.file(each).format == "parquet":
                found = self._reading.spans(each).owned(self._trainer, first)
                if found.size:
                    return each, int(found[0])
        return None

    def portions(self, visit: int, span: int) -> list[Portion]:
        """Each trainer's portion of one of its spans.

        Raises:
            InputError: as `BlockReader.lazy_block` and `LazyBlock.examples`.
        """
        reading = self._reading
        spans = reading.spans(visit)
        first, end = spans.rows(span)
        try:
            block = self._decoded(visit, span, end - first)
        except BaseException:
            self.close()  # what was being read has ended
            raise
        digests = np.concatenate([_digest(reading.pieces_of(visit), group) for group in spans.groups_of(span)])
        number = first // reading.block_rows
        low, chosen = first - number * reading.block_rows, []
        for trainer in range(len(reading.shares)):
            places = reading.places(trainer, visit, number)
            chosen.append(places[slice(*np.searchsorted(places, (low, low + end - first)))] - low)
        return [Portion(digests, content) for content in pack(block, chosen, self._memory)]

    def _decoded(self, visit: int, span: int, rows: int) -> LogBlock:
        """All examples of a span of so many."""
        raw, file = self._raw(visit, span), self._reading.file(visit)
        if raw is None or len(raw) != rows:
            raise InputError(f"{file.rows:,} examples were counted, others are found: the file has changed", file.path)
        return LazyBlock(raw, self._reading.config.data, True, file.path).examples(np.arange(rows))

    def _raw(self, visit: int, span: int) -> RawBlock | None:
        if visit != self._visit or next(self._ahead, None) != span:
            self.close()
            reading, spans, file = self._reading, self._reading.spans(visit), self._reading.file(visit)
            check_readable(file.path)
            log = open_log(file.path, reading.config.data, True)
            own = spans.owned(self._trainer, span).tolist()
            self._blocks = cast(ParquetLog, log).ranges([spans.rows(each) for each in own], reading.pieces_of(visit))
            self._visit, self._ahead = visit, iter(own[1:])
        return next(present(self._blocks), None)

    def close(self) -> None:
        """Closes the file that is open; decoding opens it again."""
        self._visit = -1
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None


class SharedLog:
    """A trainer's examples of the blocks of a log that several trainers read together; one thread at a time asks."""

    def __init__(self, reading: LogReading, trainer: int, exchange: Exchange):
        self._reading, self._trainer, self._exchange = reading, trainer, exchange

    def read(self, visit: int, number: int) -> tuple[np.ndarray, LogBlock]:
        """Which examples of a block the trainer needs, int64 [k], ascending, and these examples.

        Raises:
            InputError: the file is missing or has changed. What `Exchange.fetch` raises.
        """
        reading = self._reading
        spans = reading.spans(visit)
        within = spans.within(*reading.block(visit, number))
        places = reading.places(self._trainer, visit, number)
        start = number * reading.block_rows

        def parse(asked: int, portion: Portion) -> LogBlock:
            span = within[asked]
            first, end = spans.rows(span)
            block = unpack(portion.content, reading.config.data)
            low, high = np.searchsorted(places, (first - start, end - start))
            groups = spans.groups_of(span)
            if block.size != high - low or portion.digests.size != _DIGEST_BYTES * len(groups):
                raise ValueError(f"{block.size} examples, not {high - low}, or digests of other row groups")
            for group, digest in zip(groups, portion.digests.reshape(-1, _DIGEST_BYTES), strict=True):
                if digest.any():
                    learnt = digest.tobytes().hex()
                    reading.pieces_of(visit).learn(1 + group, learnt, f"row group {group}")
            return block

        blocks = self._exchange.fetch([(int(spans.owners[each]), visit, each) for each in within], parse)
        return places, LogBlock.join([block for block in blocks if block.size])


def _digest(pieces: Pieces, group: int) -> np.ndarray:
    """That of a row group, uint8 [16]; 0: it is not known."""
    known = pieces.known()
    found = known[1 + group] if 1 + group < len(known) else None
    return np.frombuffer(bytes.fromhex(found or "00" * _DIGEST_BYTES), np.uint8)
