"""The values of a click log's column whose embeddings are most similar to that of one value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.log_columns import CategoricalConfig
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.data.logs.values import keys_of, value_of
from marius_oac.errors import InputError, shown
from marius_oac.evaluation.nearest import Neighbor, nearest_rows
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.storage.keys.table import is_shared
from marius_oac.tasks.ctr.names import KeyTexts

Value = str | int
MEMORY = 256
"""MiB that a question takes."""


@dataclass(frozen=True)
class ColumnRows:
    """The rows of a column's values in a checkpoint: of all features with the same vocabulary.

    Attributes:
        table: that they are in.
        rows: their numbers, ascending, int64 [n].
        keys, checks: of their values, int64 [n] and uint32 [n].
    """

    feature: CategoricalConfig
    table: FeatureTable
    rows: np.ndarray
    keys: np.ndarray
    checks: np.ndarray

    @classmethod
    def of(cls, column: str, config: CtrConfig, tables: Sequence[FeatureTable], checkpoint: Checkpoint) -> ColumnRows:
        """Those of a column. Raises InputError where it has no embeddings."""
        features = {each.name: each for each in config.data.keyed()}
        if column not in features:
            raise InputError(f"no such column; those with embeddings: {', '.join(features)}", shown(column))
        table = next(each for each in tables if column in each.vocabularies)
        if not table.dimension:
            raise InputError("the model has a weight of each value, and no embeddings", column)
        arrays, name = checkpoint.arrays(), f"{table.name}.index"
        mine = arrays[f"{name}.vocabularies"] == table.vocabularies[column]
        mine &= ~is_shared(arrays[f"{name}.keys"])
        mine[arrays[f"{name}.free"]] = False
        rows = np.flatnonzero(mine)
        return cls(features[column], table, rows, arrays[f"{name}.keys"][rows], arrays[f"{name}.checks"][rows])

    def find(self, values: Sequence[Value]) -> np.ndarray:
        """The place of each value among the rows, int64 [n]; -1 for one that has none. Raises as `keys_of`."""
        if not len(self.rows):
            return np.full(len(values), -1)
        keys, checks = keys_of(values, self.feature, texts=bool(self.checks.any()))
        order = np.argsort(self.keys, kind="stable")
        found = order[np.minimum(np.searchsorted(self.keys, keys, sorter=order), len(order) - 1)]
        return np.where((self.keys[found] == keys) & (self.checks[found] == checks), found, -1)


def nearest_values(
    held: ColumnRows, checkpoint: Checkpoint, value: Value, k: int, among: Iterable[Value] | None, texts: KeyTexts
) -> list[Neighbor]:
    """See `TrainedClickModel.nearest`."""
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}", "nearest")
    (place,) = held.find([value]).tolist()
    if place < 0:
        raise InputError(f"has no embedding of {shown(value)}: it was not trained on", held.feature.name)
    names = dict[int, str]()
    rows = held.rows
    if among is not None:
        asked = list(among)
        for number, each in zip(held.find(asked).tolist(), asked, strict=True):
            if number >= 0:
                names.setdefault(int(held.rows[number]), str(each))
        rows = np.array(sorted(names), np.int64)
    table, row = checkpoint.array(held.table.name, "values"), int(held.rows[place])
    found, similarities = nearest_rows(table, row, k, MEMORY, rows, held.table.dimension)
    places = np.searchsorted(held.rows, found).tolist()
    keys, checks = held.keys[places], held.checks[places]
    numbers = np.full(len(places), held.table.vocabularies[held.feature.name], np.uint16)
    told = [
        names.get(number) or text or value_of(key, check, held.feature)
        for number, text, key, check in zip(
            found.tolist(), texts.names(numbers, keys, checks), keys.tolist(), checks.tolist(), strict=True
        )
    ]
    return [Neighbor(*pair) for pair in zip(told, similarities.tolist(), strict=True)]
