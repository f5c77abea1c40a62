"""What a device's kernels need of a batch beside its plan, made on the host by the worker that copies it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from marius_oac.batches import ClickBatch, EdgeBatch, EdgeOrder, EncodedBatch, SumOrder, TableIndices
from marius_oac.kernels.cpu.tiles import invert
from marius_oac.kernels.gpu import choice
from marius_oac.types import present

_NONE = np.empty(0, np.int64)


def arranged(data: Any, rows: Sequence[np.ndarray], device: torch.device) -> Any:
    """The data of a batch with the order of sums over its `rows`, if the device has kernels that need it; else as it
    is."""
    if not choice.chosen(device):
        return data
    if isinstance(data, ClickBatch):
        pairs = zip(data.tables, rows, strict=True)
        return replace(data, tables=tuple(_of_table(table, len(own)) for table, own in pairs))
    if isinstance(data, EncodedBatch) and isinstance(data.head, EdgeBatch):
        return replace(data, head=_of_edges(data.head, len(data.blocks[-1].offsets) - 1))
    return _of_edges(data, len(rows[0])) if isinstance(data, EdgeBatch) else data


def _of_table(table: TableIndices[np.ndarray], num_rows: int) -> TableIndices[np.ndarray]:
    picks = [table.singles.reshape(-1), *(each.values for each in (*table.bags, *table.sequences))]
    return replace(table, order=order_of(np.concatenate(picks) if len(picks) > 1 else picks[0], num_rows))


def _of_edges(data: EdgeBatch[np.ndarray], num_rows: int) -> EdgeBatch[np.ndarray]:
    others = np.arange(num_rows) if data.negatives is None else data.negatives.reshape(-1)
    rows = _sorted(num_rows, data.heads, data.tails, others)
    relations = None if data.relations is None else order_of(data.relations, len(present(data.relation_rows)))
    bounds = None if data.negatives is None else np.array(data.chunk_offsets, np.int64)
    return replace(data, order=EdgeOrder(rows, relations, bounds))


def order_of(keys: np.ndarray, count: int) -> SumOrder[np.ndarray]:
    """The places of each of `count` keys in `keys`, int64 [P]."""
    return _sorted(count, keys, _NONE, _NONE)


def _sorted(count: int, *keys: np.ndarray) -> SumOrder[np.ndarray]:
    """The places in three lists, one behind the other."""
    first, places = np.empty(count + 1, np.int64), np.empty(sum(map(len, keys)), np.int64)
    invert(*keys, first, places)
    return SumOrder(places, first)
