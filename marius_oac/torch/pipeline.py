"""The pipeline under a user's loop: its source also stops the loop, and its buffers grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marius_oac.errors import InputError
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import Device, HostDevice
from marius_oac.pipeline.rows import LocalRows, LocalSource, RowExchange
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runtime.aligned import aligned_empty
from marius_oac.storage.backing import TooSmallError
from marius_oac.torch.at_hand import Room, Rows
from marius_oac.torch.hand_over import HandOver
from marius_oac.torch.planner import Fed, LoopBatch
from marius_oac.torch.tables import Table
from marius_oac.types import present

_GROWTH = 1.25


class OpenBatch:
    """A batch with the user: what the loader gave, and its rows of each table."""

    def __init__(self, fed: Fed, rows: Sequence[Rows]):
        self.fed, self.rows = fed, rows

    def take_back(self, rows: Sequence[np.ndarray], data: Any) -> None:
        """Writes changed rows back to where they came from, float32 [n, width] of each table, and notes their tables in
        `data`."""
        for place, each in enumerate(self.rows):
            if each.stepped:
                each.take_back(rows[place])
                data.changed.add(place)

    @property
    def trained(self) -> bool:
        """Whether an optimizer has changed rows of it."""
        return any(rows.stepped for rows in self.rows)


class LoopStep:
    """The pipeline's step: hands the batch to the user and waits until it is back."""

    rows_type = Rows

    def __init__(self, tables: Sequence[Table], hand_over: HandOver[OpenBatch]):
        self._tables, self._hand_over, self._rooms = tables, hand_over, [Room() for _ in tables]

    def compute(self, rows: Sequence[np.ndarray], data: LoopBatch, timestamp: int) -> float:
        """Returns 0: the loss is the user's. Raises Closed where all stops."""
        opened = self.open(rows, data)
        if self._hand_over.offer(opened):
            opened.take_back(rows, data)
        return 0.0

    def open(self, rows: Sequence[np.ndarray], data: Any) -> OpenBatch:
        """A batch with these rows, float32 [n, width] of each table, for the user."""
        number = data.fed.batch_index
        opened = [
            self.rows_type(number, table.name, table.dimension, rows[place], data.order[place], data.distinct[place],
                 data.local[place], self._rooms[place])
            for place, table in enumerate(self._tables)
        ]  # fmt: skip
        return OpenBatch(data.fed, opened)

    def dense_state(self) -> Mapping[str, Any]:
        """Empty: dense parameters are the user's."""
        return {}

    def load_dense_state(self, state: Mapping[str, Any]) -> None:
        """Takes nothing: dense parameters are the user's."""

    def close(self) -> None:
        """Returns at once: there are no threads."""


class LoopSource(LocalSource):
    """The tables' stores; where the pipeline stops, `stop` is called too, and wakes who feeds it or waits for it."""

    def __init__(self, tables: Sequence[Table], mode: str, stop: Callable[[], None]):
        super().__init__([table.store for table in tables], mode)
        self.stop = stop

    def begin(self, first: int, last: int, device: Device, stop_requested: Callable[[], bool]) -> RowExchange:
        """See `RowSource.begin`."""
        return _LoopRows(self, device, stop_requested)


class _LoopRows(LocalRows):
    def __init__(self, source: LoopSource, device: Device, stop_requested: Callable[[], bool]):
        super().__init__(source, device, stop_requested)
        self._stop = source.stop

    def announce(self, batch: Batch) -> None:
        try:
            super().announce(batch)
        except TooSmallError as error:
            raise InputError(f"{error.what}, or smaller batches", "memory") from None

    def _changed(self, batch: Batch) -> Iterable[int]:
        """Not those tables whose rows nothing has changed. Later batches don't miss them: they are what batches before
        this one have written, or will have before a later one reads without the cache. And in mode async what others
        have made of them since would be lost, for nothing."""
        changed: set[int] = batch.plan.data.changed
        return changed

    def abort(self) -> None:
        super().abort()
        self._stop()


class GrowingDevice(HostDevice):
    """The CPU, with buffers that grow with the batches."""

    def borrow(self, batch: Batch) -> None:
        """See `Device.borrow`."""
        super().borrow(batch)
        buffers = present(batch.resident)
        timestamps, values = list(buffers.timestamps), list(buffers.values)
        for table, rows in enumerate(batch.plan.rows):
            if len(rows) > len(timestamps[table]):
                room = int(_GROWTH * len(rows))
                timestamps[table] = aligned_empty((room,), np.int64)
                values[table] = aligned_empty((room, self._layouts[table].width), np.float32)
        buffers.timestamps, buffers.values = timestamps, values


class LoopPipeline(Pipeline):
    """A pipeline on a device whose buffers grow."""

    def _make_device(self, device: torch.device) -> Device:
        return GrowingDevice(self.planner.tables, self.source.layouts, self.in_flight, self.source.caching)
