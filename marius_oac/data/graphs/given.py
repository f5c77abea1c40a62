"""Negatives that come with a graph, for valid and test, and the metric that is computed with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from marius_oac.config.sections import GivenMetric
from marius_oac.data.layout import EDGE_NEGATIVES, HEAD_NEGATIVES, TAIL_NEGATIVES
from marius_oac.errors import InputError, shown
from marius_oac.runtime.files.untrusted_arrays import map_npy
from marius_oac.types import Side, present

MRR = "mrr"
METRICS = get_args(GivenMetric)


@dataclass(frozen=True)
class GivenNegatives:
    """Of a split. Files are mapped; ids are checked by `checked` before they are used.

    Attributes:
        metric: `mrr`, with negatives for each edge, or `hits@K`, with pairs that all edges share.
        sides: of `mrr`: ids of nodes in the place of an edge's head or tail, int32 or int64 [E, K], by `Side`; tails
            are always there.
        pairs: of `hits@K`: heads and tails, int32 or int64 [n, 2]; None: it is `mrr`.
        paths: of the files, by `Side`; of pairs under None.
    """

    metric: str
    sides: Mapping[Side, np.ndarray]
    pairs: np.ndarray | None
    paths: Mapping[Side | None, Path]

    def checked(self, side: Side | None, rows: np.ndarray | slice, num_nodes: int) -> np.ndarray:
        """These rows of a side, or of the pairs, as int64 [n, K or 2]. Raises InputError if an id is out of range."""
        table = present(self.pairs) if side is None else self.sides[side]
        found = np.asarray(table[rows]).astype(np.int64)
        if found.size and not 0 <= found.min() <= found.max() < num_nodes:
            wrong = found[(found < 0) | (found >= num_nodes)][0]
            raise InputError(f"has the id {wrong}, but the graph has {num_nodes:,} nodes", self.paths[side])
        return found


def files_of(metric: str, split: str, there: Mapping[str, object]) -> dict[Side | None, str]:
    """The names of a split's files, by `Side`, or under None; heads need not be there."""
    if metric != MRR:
        return {None: EDGE_NEGATIVES.format(split)}
    names: dict[Side | None, str] = {Side.TAIL: TAIL_NEGATIVES.format(split)}
    if (head := HEAD_NEGATIVES.format(split)) in there:
        names[Side.HEAD] = head
    return names


def check_metric(metric: str, path: Path) -> str:
    """The metric. Raises InputError if a manifest has another than there are."""
    if metric not in METRICS:
        raise InputError(f"is damaged: negatives.metric must be one of {', '.join(METRICS)}, not {shown(metric)}", path)
    return metric


def open_negatives(metric: str, paths: Mapping[Side | None, Path], edges: int) -> GivenNegatives:
    """Maps a split's negatives. Raises InputError if a file has another type or shape than it must have."""
    types = np.int32, np.int64
    if metric != MRR:
        return GivenNegatives(metric, {}, map_npy(paths[None], types, (None, 2)), paths)
    sides = {side: map_npy(path, types, (edges, None)) for side, path in paths.items() if side is not None}
    return GivenNegatives(metric, sides, None, paths)
