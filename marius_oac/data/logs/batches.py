"""Plans batches of a click log: files in order, with rows for keys.

A batch never crosses the end of a file, so training on one file a day has the same batches as training on all of them
at once. A segment is a range of files and a number of passes over them; a continued run has another segment.

Guarantees:
- `plan` may be called by any number of threads in any order; `assign_rows` gets the plans in order, one at a time.
- The decisions of `assign_rows` (numbers of new rows, admission) are a function of the plans before: rows are numbered
  in the order in which their keys first appear in the log, regardless of threads.
- Memory holds the blocks of the log that are being divided into batches, one more than there are threads.
- Of each block only the examples of the planner's share are converted, and parsed as far as the format allows.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from marius_oac.batches import ClickBatch, Jagged, TableIndices
from marius_oac.config.ctr import CtrConfig
from marius_oac.data.batches.rank_slice import WHOLE, RankSlice
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import BlockReader, LazyBlock, LogFile
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.tables import FeatureTable, TableKeys
from marius_oac.data.logs.together import Exchange, LogReading, OwnSpans, SharedLog, shuffle_of
from marius_oac.kernels.cpu.permutation import Permutation
from marius_oac.kernels.cpu.relabel import relabel
from marius_oac.runtime.thread_pool import ALONE, ThreadPool
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.types import Plan, TableSpec, present

_BLOCK_EXAMPLES = 1 << 16  # of a block without shuffling, large enough to parse efficiently


@dataclass(frozen=True)
class LogSegment:
    """Files [first, last) of the log, read `passes` times. With `by_file` an epoch ends after every file."""

    first: int
    last: int
    passes: int
    by_file: bool = False


@dataclass(frozen=True)
class LogPlan(Plan[ClickBatch[np.ndarray]]):
    """A plan whose rows may not all be known yet.

    Attributes:
        keys: of each table.
        distinct: the different ones of them.
        ids: int64 [m] of each table, the row of each different key, -1 if it has none.
        file: the number of the log's file.
    """

    keys: Sequence[TableKeys] = ()
    distinct: Sequence[DistinctKeys] = ()
    ids: Sequence[np.ndarray] = ()
    file: int = 0


class LogSchedule:
    """Knows which examples each batch has, and where epochs end.

    Attributes:
        visits: (pass, file) of each reading of a file, in order.
        ends: the number of batches up to the end of each epoch.
    """

    def __init__(self, files: Sequence[LogFile], segments: Sequence[LogSegment], batch_size: int):
        self._files, self._size = files, batch_size
        self.visits: list[tuple[int, int]] = []
        self._starts: list[int] = []
        self.ends: list[int] = []
        batches = 0
        for segment in segments:
            for number in range(segment.passes):
                for file in range(segment.first, segment.last):
                    self.visits.append((number, file))
                    self._starts.append(batches)
                    batches += -(-files[file].rows // batch_size)
                    if segment.by_file or file == segment.last - 1:
                        self.ends.append(batches)
        self._array = np.array(self._starts, np.int64)

    def visit(self, batch_index: int) -> int:
        """The index in `visits` of a batch."""
        return int(np.searchsorted(self._array, batch_index, side="right")) - 1

    def file_of(self, batch_index: int) -> int:
        """The number of the file with a batch's examples."""
        return self.visits[self.visit(batch_index)][1]

    def first_file(self, epoch: int) -> int:
        """The number of the file that an epoch begins with."""
        return self.file_of(self.ends[epoch - 1] if epoch else 0)

    def place(self, batch_index: int) -> tuple[int, int, int, int]:
        """(pass, file, first example, end) of a batch."""
        visit = self.visit(batch_index)
        number, file = self.visits[visit]
        first = (batch_index - self._starts[visit]) * self._size
        return number, file, first, min(first + self._size, self._files[file].rows)


class LogPlanner:
    """A `types.Planner` over click logs.

    Args:
        config: the run's.
        files: of the whole schedule, in order.
        schedule: which examples each batch has.
        tables: of `feature_tables`.
        key_tables: the rows of each table's keys: objects with `find`, `admit`, `seen_in`, `counts_keys` and
            `capacity` of `storage.keys.table.KeyTable`.
        pieces: of each file, to check that its contents haven't changed; None: not checked.
        pool: tells a batch's keys apart.

    Attributes:
        share: the part of each batch that is planned; see `with_share`.
    """

    def __init__(
        self,
        config: CtrConfig,
        files: Sequence[LogFile],
        schedule: LogSchedule,
        tables: Sequence[FeatureTable],
        key_tables: Sequence[Any],
        pieces: Sequence[Pieces] | None = None,
        pool: ThreadPool = ALONE,
    ):
        self._pool = pool
        self._config, self._schedule, self._feature_tables, self._key_tables = config, schedule, tables, key_tables
        self._files = files
        self.share = WHOLE
        size, shuffle = config.training.batch_size, config.data.shuffle
        self._block_examples = -(-max(shuffle, _BLOCK_EXAMPLES if not shuffle else 0) // size) * size
        self._pieces = pieces
        self._together: SharedLog | None = None
        self._reader = BlockReader(files, config.data, pieces=pieces)
        self._blocks = _Blocks(config.pipeline.most_workers("plan") + 1)
        self.tables = [
            TableSpec(table.name, keys.capacity, min(keys.capacity, size * table.max_ids))
            for table, keys in zip(tables, key_tables, strict=True)
        ]

    def plan(self, batch_index: int) -> LogPlan:
        """Plans batch `batch_index`; without rows if a key has no row yet."""
        number, file, first, end = self._schedule.place(batch_index)
        skip, stop, part = self.share.of_batch(end - first)
        examples = self._examples(self._schedule.visit(batch_index), first + skip, first + stop)
        keys = [table_keys(table, examples) for table in self._feature_tables]
        named = zip(self._feature_tables, keys, strict=True)
        distinct = [DistinctKeys.of(table.name, *each.asked, self._pool) for table, each in named]
        ids = [table.find(*each.asked) for table, each in zip(self._key_tables, distinct, strict=True)]
        data = ClickBatch(
            epoch=number, share=float(part), numbers=examples.numbers, labels=examples.labels, weights=examples.weights
        )
        plan = LogPlan(batch_index, (), data, stop - skip if part else 0, keys, distinct, ids, file)
        return self._relabelled(plan) if all((each >= 0).all() for each in ids) else plan

    def assign_rows(self, plan: LogPlan) -> Plan:
        """Assigns rows to new keys, in the order of the log, and returns the plan with all rows."""
        for table, keys, ids in zip(self._key_tables, plan.distinct, plan.ids, strict=True):
            table.admit(*keys.asked, ids, keys.counts if table.counts_keys else None, distinct=True)
            table.seen_in(ids, plan.file)
        settled = plan if plan.rows else self._relabelled(plan)
        # Without the keys, since many plans wait if rows come from disk.
        return Plan(settled.batch_index, settled.rows, settled.data, settled.examples)

    def close(self) -> None:
        """Closes the files."""
        self._reader.close()

    def read_together(
        self, shares: Sequence[Sequence[RankSlice]], trainer: int, exchange: Exchange
    ) -> tuple[LogPlanner, OwnSpans] | None:
        """A copy of this planner that reads Parquet together with those of the other trainers, and what decodes the
        spans that this trainer owns; None: there is no Parquet.

        Args:
            shares: the parts of each batch that each trainer computes, which are consecutive.
            trainer: this one, by number.
        """
        if len(shares) == 1 or all(file.format != "parquet" for file in self._files):
            return None
        about = self._config, self._files, self._schedule.visits, self._block_examples
        reading = LogReading(*about, present(self._pieces), shares)
        planner = copy.copy(self)
        planner._together = SharedLog(reading, trainer, exchange)
        return planner, OwnSpans(reading, trainer)

    def _examples(self, visit: int, first: int, end: int) -> LogBlock:
        """The examples [first, end) of a file, which are in one block, in the order of this pass."""
        number, file = self._schedule.visits[visit]
        block = first // self._block_examples
        start = block * self._block_examples
        size = min(self._block_examples, self._files[file].rows - start)
        shuffle = shuffle_of(self._config, number, file, block, size) if self._config.data.shuffle else None
        places = np.arange(first - start, end - start)
        wanted = shuffle.permute(places) if shuffle else places
        read = self._read(visit, block, size, shuffle, wanted)
        at = np.searchsorted(read.numbers, wanted)
        return read.examples.take(at) if shuffle else read.examples.slice(at[0], at[-1] + 1)

    def _read(self, visit: int, block: int, size: int, shuffle: Permutation | None, wanted: np.ndarray) -> _Read:
        """Examples of a block, among them those that are wanted, int64 [k]."""
        number, file = self._schedule.visits[visit]
        together = self._together
        if together is not None and self._files[file].format == "parquet":
            return self._blocks.get((visit, block), lambda: _Read(*together.read(visit, block)))

        def lazy() -> LazyBlock:
            return self._reader.lazy_block(file, block, self._block_examples)

        if self.share.dispatched:
            return _Read.of(self._blocks.get((file, block, None), lazy), wanted)
        share, batch_size = self.share, self._config.training.batch_size
        # A share's examples of a block depend on the pass only if they are shuffled and not all examples.
        kind = (share, number if shuffle and share != WHOLE else 0)

        def own() -> _Read:
            places = share.of_batches(size, batch_size)
            return _Read.of(lazy(), shuffle.permute(places) if shuffle and share != WHOLE else places)

        return self._blocks.get((file, block, kind), own)

    def _relabelled(self, plan: LogPlan) -> LogPlan:
        rows, tables = [], []
        for number, (table, spec) in enumerate(zip(self._feature_tables, self.tables, strict=True)):
            local = plan.ids[number].copy()
            rows.append(relabel(local, spec.num_rows).copy())
            tables.append(table_indices(table, plan.keys[number], local[plan.distinct[number].numbers]))
        return replace(plan, rows=rows, data=replace(plan.data, tables=tuple(tables)))


def table_keys(table: FeatureTable, examples: LogBlock) -> TableKeys:
    """The keys of a table's features in a block of examples, concatenated: singles, bags, sequences."""
    bags = [examples.bags[name] for name in (*table.bags, *table.sequences)]
    parts = [examples.keys[name] for name in table.singles] + [bag.keys for bag in bags]
    checks = [examples.checks[name] for name in table.singles] + [bag.checks for bag in bags]
    zeros = [
        np.zeros(part.size, np.uint32) if check is None else check for part, check in zip(parts, checks, strict=True)
    ]
    names = (*table.singles, *table.bags, *table.sequences)
    counts = {name: part.size for name, part in zip(names, parts, strict=True)}
    offsets = {name: bag.offsets for name, bag in zip((*table.bags, *table.sequences), bags, strict=True)}
    return TableKeys(
        table.vocabulary_column(counts), np.concatenate(parts), np.concatenate(zeros), offsets, examples.size
    )


def table_indices(table: FeatureTable, keys: TableKeys, local: np.ndarray) -> TableIndices[np.ndarray]:
    """A batch's local rows of one table, from the local row of each id, int64 [n]."""
    at, jagged = len(table.singles) * keys.examples, []
    singles = local[:at].reshape(len(table.singles), keys.examples)
    for name in (*table.bags, *table.sequences):
        offsets = keys.offsets[name]
        jagged.append(Jagged(local[at : at + offsets[-1]], offsets))
        at += offsets[-1]
    return TableIndices(singles, tuple(jagged[: len(table.bags)]), tuple(jagged[len(table.bags) :]))


@dataclass(frozen=True)
class _Read:
    """Examples of a block: their indices in the block, int64 [k], ascending, and the examples."""

    numbers: np.ndarray
    examples: LogBlock

    @classmethod
    def of(cls, block: LazyBlock, numbers: np.ndarray) -> _Read:
        ordered = np.sort(numbers)
        return cls(ordered, block.examples(ordered))


_Made = TypeVar("_Made")


class _Blocks:
    """A cache of what was made of the blocks that are being divided into batches. It drops the least recently used."""

    def __init__(self, held: int):
        self._held = held
        self._lock = threading.Lock()
        self._made: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """The result of `make`, cached by the key."""
        with self._lock:
            made = self._made.pop(key, None)
            if made is None:
                made = make()
                while len(self._made) >= self._held:
                    self._made.popitem(last=False)
            self._made[key] = made
            return made
