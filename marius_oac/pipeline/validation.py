"""Validation: replaces the rows of a batch, just before it is computed, by their newest versions on the device.

Optimistic Asynchrony Control, section 3.2, "Validation", and 3.3, "Cache Eviction". The cache needs no table over all
rows: it is the list of the last batches' own buffers, which hold their new rows under sorted row ids.

One thread owns a cache: the one that computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from marius_oac.kernels.cpu.newer_rows import replace_older as _replace_older
from marius_oac.kernels.gpu import choice
from marius_oac.pipeline.batch import Batch

Replace = Callable[..., Any]

_ROWS, _COLUMNS = 16, 128
"""The tile of a kernel."""


def replace_older(
    newer_rows: np.ndarray,
    newer_values: np.ndarray,
    newer_timestamp: int,
    rows: np.ndarray,
    timestamps: np.ndarray,
    values: np.ndarray,
    replaced: int = 0,
) -> int:
    """Copies `newer_values` over the rows that both hold and whose timestamp is smaller.

    Row ids are int64, sorted and unique: `newer_rows` [m], `rows` [n]; `newer_values` float32 [m, width];
    `timestamps` int64 [n] and `values` float32 [n, width] are changed in place.

    Returns:
        `replaced` and how many rows were.
    """
    return replaced + int(_replace_older(newer_rows, newer_values, newer_timestamp, rows, timestamps, values))


def replace_older_torch(
    newer_rows: torch.Tensor,
    newer_values: torch.Tensor,
    newer_timestamp: int,
    rows: torch.Tensor,
    timestamps: torch.Tensor,
    values: torch.Tensor,
    replaced: int | torch.Tensor = 0,
) -> torch.Tensor:
    """The same on tensors of any device, with torch's operations; it returns a 0-d tensor, so that nothing waits for
    the device."""
    if not len(rows) or not len(newer_rows):
        return _counter(replaced, values)
    place = torch.searchsorted(newer_rows, rows).clamp_(max=len(newer_rows) - 1)
    hit = (newer_rows[place] == rows) & (timestamps < newer_timestamp)
    values.copy_(torch.where(hit[:, None], newer_values[place], values))
    timestamps.masked_fill_(hit, newer_timestamp)
    return replaced + hit.sum()


def replace_older_fused(
    newer_rows: torch.Tensor,
    newer_values: torch.Tensor,
    newer_timestamp: int,
    rows: torch.Tensor,
    timestamps: torch.Tensor,
    values: torch.Tensor,
    replaced: int | torch.Tensor = 0,
) -> torch.Tensor:
    """The same in one kernel, which moves no row but those that it replaces; `replaced` is changed in place."""
    from marius_oac.kernels.gpu.jit import launch
    from marius_oac.kernels.gpu.rows import replace_older as kernel

    (count, width), replaced = values.shape, _counter(replaced, values)
    launch(
        kernel, (-(-count // _ROWS) * (len(newer_rows) > 0),), newer_rows, newer_values, newer_values.stride(0),
        newer_timestamp, len(newer_rows), rows, timestamps, values, values.stride(0), count, width, replaced,
        ROWS=_ROWS, COLUMNS=_COLUMNS,
    )  # fmt: skip
    return replaced


def _counter(replaced: int | torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if isinstance(replaced, torch.Tensor):
        return replaced
    return torch.full((), replaced, dtype=torch.int64, device=values.device)


def replacing(device: torch.device) -> Replace:
    """How rows are replaced on a device."""
    return replace_older_fused if choice.chosen(device) else replace_older_torch


class Cache:
    """The batches whose new rows later batches may still need, oldest first; `release` is called with each evicted
    one."""

    def __init__(self, replace: Replace, release: Callable[[Batch], None]):
        self._replace, self._release = replace, release
        self._batches: deque[Batch] = deque()
        self.num_rows = 0

    def evict(self, safe_to_evict: int) -> None:
        """Drops the batches whose timestamp is <= `safe_to_evict`."""
        while self._batches and self._batches[0].timestamp <= safe_to_evict:
            batch = self._batches.popleft()
            self.num_rows -= sum(map(len, batch.plan.rows))
            self._release(batch)

    def validate(self, batch: Batch) -> Any:
        """Replaces outdated rows of `batch`; returns how many (int or 0-d tensor)."""
        replaced = 0
        for newer in reversed(self._batches):  # newest first: no row is copied twice
            if newer.timestamp <= batch.mft_at_read:
                break  # it and all earlier ones were in the store before the batch began to read
            for table in range(len(batch.plan.rows)):
                newer_rows, _, newer_values = newer.rows_in(newer.resident, table)
                rows, timestamps, values = batch.rows_in(batch.resident, table)
                replaced = self._replace(newer_rows, newer_values, newer.timestamp, rows, timestamps, values, replaced)
        return replaced

    def add(self, batch: Batch) -> None:
        """Keeps a computed batch; timestamps must ascend."""
        self._batches.append(batch)
        self.num_rows += sum(map(len, batch.plan.rows))

    @property
    def oldest(self) -> int | None:
        """The smallest timestamp held, or None."""
        return self._batches[0].timestamp if self._batches else None
