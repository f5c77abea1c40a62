"""Gathers the rows of a batch for a network, and updates them from the network's gradients.

`TableColumns` describes the features of a table. `ArrayRows` works on NumPy arrays with kernels, `TensorRows` (in
`tensor_rows`) on tensors with torch. Both gather the rows into `Gathered`, take the gradients in the same form, and
update the rows in place. A row is [embedding D | first-order weight, if the network has them | optimizer state].

Guarantees:
- The bits depend only on the inputs: blocks don't depend on the number of threads, and every sum has a fixed order.
- On the CPU the gathered arrays are in aligned memory, valid until the next `gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from marius_oac.batches import Jagged, TableIndices
from marius_oac.kernels.cpu import bags as kernels
from marius_oac.kernels.cpu.row_updates import Rule
from marius_oac.models.compute.row_optimizers import RowUpdate
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.tiles import blocks
from marius_oac.runtime.thread_pool import Task, ThreadPool

_BLOCK_EXAMPLES = 256
_BLOCK_WORK = 4096  # rows and their occurrences
_NOWHERE = np.zeros(1, np.int64)


@dataclass(frozen=True)
class BagColumn:
    """A multi-valued feature; `field` is its index among the schema's fields."""

    name: str
    pooling: str
    field: int


@dataclass(frozen=True)
class SequenceColumn:
    """A sequence of at most `max_values` rows."""

    name: str
    max_values: int


@dataclass(frozen=True)
class TableColumns:
    """The features of one table.

    Attributes:
        name: of the table.
        dimension: D, floats of an embedding; 0: rows are only first-order weights.
        singles: the single-valued features' indices among the schema's fields, in the order of `TableIndices.singles`.
        bags, sequences: the other features, in config order.
    """

    name: str
    dimension: int
    singles: tuple[int, ...] = ()
    bags: tuple[BagColumn, ...] = ()
    sequences: tuple[SequenceColumn, ...] = ()


def values_of(bag: Jagged[Any]) -> Any:
    """The number of values of each example in a bag, int64 [B], an array or tensor as the bag's."""
    return bag.offsets[1:] - bag.offsets[:-1] if bag.counts is None else bag.counts


class Fields(NamedTuple):
    """The fields of all tables: the number of floats of each, and its first column in [B, sum of them]."""

    dimensions: tuple[int, ...]
    columns: tuple[int, ...]

    @classmethod
    def of(cls, layout: Sequence[TableColumns]) -> Fields:
        """The fields of these tables.

        Raises:
            ValueError: the tables don't have each of the fields 0 to F - 1 once.
        """
        found = sorted(
            (field, table.dimension)
            for table in layout
            for field in (*table.singles, *(bag.field for bag in table.bags))
        )
        if [field for field, _ in found] != list(range(len(found))):
            raise ValueError(f"fields {[field for field, _ in found]} are not 0 to {len(found) - 1}, each once")
        dimensions = tuple(dimension for _, dimension in found)
        return cls(dimensions, tuple(sum(dimensions[:field]) for field in range(len(dimensions))))


class Gathered(NamedTuple):
    """The rows as a network's inputs, or the gradients with respect to them; float32 arrays or tensors.

    Attributes:
        values: [B, W], all fields (see `Fields`).
        weights: [B, F], first-order weights, or None.
        padded: [B * L, D] of each sequence, table by table, padded with zeros.
        lengths: int64 [B] of each sequence.
    """

    values: Any
    weights: Any
    padded: tuple[Any, ...]
    lengths: tuple[Any, ...]


@dataclass(frozen=True)
class _Picks:
    """Copies of a batch's local rows of one table, int64.

    Attributes:
        single: [f, B].
        fields: [f], the fields of `single`.
        bags: [V], of all bag features, concatenated.
        bag_offsets: [g, B + 1], into `bags`.
        scales: float32 [g, B], the factor of the sum of each bag.
        sequences: values and offsets of each.
    """

    single: np.ndarray
    fields: np.ndarray
    bags: np.ndarray
    bag_offsets: np.ndarray
    scales: np.ndarray
    sequences: tuple[tuple[np.ndarray, np.ndarray], ...]


Occurrences = tuple[np.ndarray, list[np.ndarray]]
"""Of a table's rows: first int64 [1 + sequences, n + 1] and places, int64; those of row i in the fields, or in a
sequence, are places[k][first[k, i]:first[k, i + 1]]."""


class ArrayRows:
    """Rows in NumPy arrays. The work runs on `thread_pool`.

    Args:
        layout: of each table.
        weighted: whether rows have a first-order weight after the embedding.
    """

    def __init__(self, layout: Sequence[TableColumns], weighted: bool, thread_pool: ThreadPool) -> None:
        self._layout, self._weighted, self._thread_pool = tuple(layout), int(weighted), thread_pool
        self._scratch, self._fields = Scratch(), Fields.of(layout)
        self._columns = np.array(self._fields.columns, np.int64)
        self._picks: tuple[_Picks, ...] = ()
        self._lists: list[Occurrences] = []

    def gather(
        self, rows: Sequence[np.ndarray], tables: Sequence[TableIndices[np.ndarray]], listing: bool = True
    ) -> Gathered:
        """The network's inputs from the rows, float32 [n, D + weight + state] of each table.

        Args:
            tables: the local rows of each table.
            listing: also prepare for `update`.

        Raises:
            ValueError: a sequence has more than `max_values` values.
        """
        size = tables[0].singles.shape[1]
        values = self._scratch.take("values", size, sum(self._fields.dimensions))
        weights = self._scratch.take("weights", size, len(self._columns)) if self._weighted else None
        self._picks = tuple(map(self._own_picks, self._layout, tables))
        padded, lengths, tasks = [], [], self._list_tasks(rows) if listing else []
        inputs = self._inputs(values, weights)
        for table, picks, table_rows in zip(self._layout, self._picks, rows, strict=True):
            sheets = []
            for sequence, (_, offsets) in zip(table.sequences, picks.sequences, strict=True):
                sheets.append(
                    self._scratch.take(f"{sequence.name}.padded", size * sequence.max_values, table.dimension)
                )
                lengths.append(self._scratch.take(f"{sequence.name}.lengths", size, dtype=np.int64))
                np.subtract(offsets[1:], offsets[:-1], out=lengths[-1])
                if lengths[-1].max() > sequence.max_values:
                    raise ValueError(f"{lengths[-1].max()} values of {sequence.name}: more than {sequence.max_values}")
            for begin, end in blocks(0, size, _BLOCK_EXAMPLES):
                tasks.append(partial(self._gather_block, table, picks, table_rows, inputs, sheets, begin, end))
            padded += sheets
        self._thread_pool.run(tasks)
        return Gathered(values, weights, tuple(padded), tuple(lengths))

    def update(self, rows: Sequence[np.ndarray], gradients: Gathered, rule: RowUpdate, weight: float) -> float:
        """Updates the rows of the last `gather` in place.

        Args:
            rows: as gathered.
            gradients: in C order. Its arrays are overwritten; `lengths` are not read.
            rule: the row optimizer's update.
            weight: of the L2 penalty, the factor of a row's value in its gradient.

        Returns:
            The sum of the squares of the rows' values before the update; 0 without a weight.
        """
        inputs = self._inputs(gradients.values, gradients.weights)
        self._share_out(inputs)
        tasks, penalties, sheets = [], [], list(gradients.padded)
        for number, (table, table_rows) in enumerate(zip(self._layout, rows, strict=True)):
            sources = [inputs]
            for _ in table.sequences:
                sources.append(kernels.Inputs(sheets.pop(0), np.empty((0, 0), np.float32), _NOWHERE))
            penalties.append(self._scratch.take(f"{number}.penalties", len(table_rows), dtype=np.float64))
            lists = self._lists[number]
            shared = (table.dimension, sources, lists, rule, np.float32(weight), table_rows, penalties[-1])
            tasks += [partial(self._update_block, *shared, *bounds) for bounds in _row_blocks(lists)]
        self._thread_pool.run(tasks)
        return float(sum(each.sum() for each in penalties)) if weight else 0.0

    def _inputs(self, values: np.ndarray, weights: np.ndarray | None) -> kernels.Inputs:
        return kernels.Inputs(values, np.empty((0, 0), np.float32) if weights is None else weights, self._columns)

    def _own(self, name: str, array: np.ndarray) -> np.ndarray:
        """An int64 copy, so that kernels are compiled for one type of array."""
        copy = self._scratch.take(name, *array.shape, dtype=np.int64)
        copy[:] = array
        return copy

    def _own_picks(self, table: TableColumns, indices: TableIndices[np.ndarray]) -> _Picks:
        single, size = self._own(f"{table.name}.single", indices.singles), indices.singles.shape[1]
        count = sum(bag.values.size for bag in indices.bags)
        bags = self._scratch.take(f"{table.name}.bags", count, dtype=np.int64)
        offsets = self._scratch.take(f"{table.name}.bag_offsets", len(table.bags), size + 1, dtype=np.int64)
        scales = self._scratch.take(f"{table.name}.bag_scales", len(table.bags), size)
        base = 0
        for i, (column, bag) in enumerate(zip(table.bags, indices.bags, strict=True)):
            bags[base : base + bag.values.size] = bag.values
            offsets[i] = bag.offsets
            offsets[i] += base
            scales[i] = 1
            if column.pooling == "mean":
                scales[i] /= np.maximum(values_of(bag), 1)
            base += bag.values.size
        sequences = tuple(
            (self._own(f"{column.name}.values", each.values), self._own(f"{column.name}.offsets", each.offsets))
            for column, each in zip(table.sequences, indices.sequences, strict=True)
        )
        return _Picks(single, np.array(table.singles, np.int64), bags, offsets, scales, sequences)

    def _gather_block(
        self,
        table: TableColumns,
        picks: _Picks,
        rows: np.ndarray,
        inputs: kernels.Inputs,
        sheets: Sequence[np.ndarray],
        begin: int,
        end: int,
    ) -> None:
        dimension = table.dimension
        if table.singles:
            kernels.gather(rows, dimension, picks.single, picks.fields, begin, end, inputs)
        for i, bag in enumerate(table.bags):
            own = picks.bags, picks.bag_offsets[i], picks.scales[i]
            kernels.pool(rows, dimension, *own, bag.field, begin, end, inputs)
        for (values, offsets), sheet in zip(picks.sequences, sheets, strict=True):
            kernels.pad(rows, dimension, values, offsets, begin, end, sheet)

    def _list_tasks(self, rows: Sequence[np.ndarray]) -> list[Task]:
        """Tasks that list each row's occurrences: for each table those in fields, then those in each sequence."""
        self._lists, tasks = [], list[Task]()
        for number, (table, picks) in enumerate(zip(self._layout, self._picks, strict=True)):
            first = self._scratch.take(
                f"{number}.first", 1 + len(table.sequences), len(rows[number]) + 1, dtype=np.int64
            )
            places = self._scratch.take(f"{number}.places", picks.single.size + picks.bags.size, dtype=np.int64)
            bag_fields = np.array([bag.field for bag in table.bags], np.int64)
            fields = (picks.single, picks.fields, picks.bags, picks.bag_offsets, bag_fields)
            tasks.append(partial(kernels.invert_fields, *fields, first[0], places))
            lists = [places]
            for i, (sequence, (values, offsets)) in enumerate(zip(table.sequences, picks.sequences, strict=True)):
                lists.append(self._scratch.take(f"{sequence.name}.places", values.size, dtype=np.int64))
                shared = (values, offsets, sequence.max_values, first[i + 1], lists[-1])
                tasks.append(partial(kernels.invert_sequence, *shared))
            self._lists.append((first, lists))
        return tasks

    def _share_out(self, inputs: kernels.Inputs) -> None:
        size, tasks = inputs.values.shape[0], []
        for table, picks in zip(self._layout, self._picks, strict=True):
            for i, bag in enumerate(table.bags):
                if bag.pooling == "mean":
                    task = partial(kernels.share_out, table.dimension, picks.scales[i], bag.field)
                    tasks += [partial(task, *bounds, inputs) for bounds in blocks(0, size, _BLOCK_EXAMPLES)]
        self._thread_pool.run(tasks)

    def _update_block(
        self,
        dimension: int,
        sources: Sequence[kernels.Inputs],
        lists: Occurrences,
        update: RowUpdate,
        weight: np.float32,
        rows: np.ndarray,
        penalties: np.ndarray,
        begin: int,
        end: int,
    ) -> None:
        first, places = lists
        sums = np.zeros((end - begin, dimension + self._weighted), np.float32)
        for i, source in enumerate(sources):
            kernels.add_gradients(first[i], places[i], source, dimension, begin, end, sums)

        def kernel(rule: Rule) -> None:
            kernels.update(rule, weight, begin, end, sums, rows, penalties)

        update.run(kernel, rows, slice(begin, end), sums.shape[1])


def _row_blocks(lists: Occurrences) -> list[tuple[int, int]]:
    """Cuts a table's rows into ranges with about the same work. Frequent rows have low numbers, so even ranges would
    differ."""
    first, _ = lists
    count = first.shape[1] - 1
    work = first.sum(0) + np.arange(count + 1)
    inner = np.searchsorted(work, np.arange(_BLOCK_WORK, work[-1], _BLOCK_WORK))
    cuts = np.unique([0, *inner, count]).tolist()
    return list(zip(cuts[:-1], cuts[1:], strict=True))
