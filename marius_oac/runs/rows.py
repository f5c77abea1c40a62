"""A task's rows, described for whoever stores them elsewhere than `Task.build` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marius_oac.config.sections import OptimizerConfig, StorageConfig
from marius_oac.data.batches.rank_slice import SlicedPlanner
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.runtime.machine.binding import Binding
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.keys.table import KeyTable, SharedKeys


@dataclass(eq=False, kw_only=True)
class NumberedTables:
    """Tables that all have the rows 0 to `count` - 1, such as a graph's nodes; there may be none.

    Attributes:
        count: rows of each table.
        layouts: of each table's rows, by name, in the order of a plan's rows.
        initials: initial values of each table, by name; keys are ids.
        storage, optimizer: sections of the configuration.
        make_planner: makes a planner of the batches.
    """

    count: int
    layouts: Mapping[str, RowLayout]
    initials: Mapping[str, RowInitial]
    storage: StorageConfig
    optimizer: OptimizerConfig
    make_planner: Callable[[ExitStack], SlicedPlanner]


@dataclass(eq=False, kw_only=True)
class KeyedTables:
    """Tables of keys, such as the features of a click log, which get rows when training first meets them.

    Attributes:
        tables: the features of each table. layouts: of their rows.
        optimizer: of the rows; `penalty`: the factor of their squared values in the loss.
        admit_after: see `KeyTable`.
        pooled: names of the bags that are pooled where their rows are stored.
        most_keys: that a batch can have, of each table.
        make_key_tables: makes empty tables in a folder, with shared rows as given.
        make_planner: makes a planner, whose keys the given objects number.
        first_file: returns the number of the file that an epoch begins with; `file_of`: that of a batch.
    """

    tables: Sequence[FeatureTable]
    layouts: Mapping[str, RowLayout]
    optimizer: OptimizerConfig
    penalty: float
    admit_after: int
    pooled: Sequence[str]
    most_keys: Sequence[int]
    make_key_tables: Callable[[ExitStack, Path | None, Binding, Sequence[SharedKeys]], Sequence[KeyTable]]
    make_planner: Callable[[ExitStack, Sequence[Any]], SlicedPlanner]
    first_file: Callable[[int], int]
    file_of: Callable[[int], int]
