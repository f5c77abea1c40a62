"""Reads the rows of batches from their stores, validates them, and writes them back.

`LocalRows` uses stores of this process, and a cache of the newest rows. For rows on other nodes `marius_oac.nodes` has
another implementation of the contract.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from marius_oac.models.compute.soundness import LARGEST_VALUE
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import Device
from marius_oac.pipeline.validation import Cache
from marius_oac.storage.contract import ParameterStore, RowLayout, backing_of


class RowExchange(ABC):
    """The rows of one call of `Pipeline.run`.

    Guarantees asked of every implementation: `wait`, `read` and `write` may be called by several threads at once, for
    different batches; `announce` and `fetch` by one each, in plan order; `validate` and `computed` by the one that
    computes, in computation order. After `validate` a batch's rows are those that a batch-at-a-time run would have, if
    the mode promises that. `announce`, `fetch` and `wait` are called if the source looks ahead.
    """

    def planned_until(self, last: int) -> int:
        """The end of the batches to plan: `last`, unless batches are dispatched to this process."""
        return last

    def position(self, number: int) -> int:
        """The position of the run, as far as this process knows, when its batches before `number` are written."""
        return number

    def reached(self, planned: int) -> int:
        """Called after `end`: the next batch to run; `planned` is the next one that this process would plan."""
        return planned

    @abstractmethod
    def stops_before(self, batch_index: int) -> bool:
        """Whether the run ends before this batch, because the user wants to stop."""

    def announce(self, batch: Batch) -> None:
        """Declares which rows the batch will use, and notes its claim. Waits while too many batches are announced."""
        return

    def fetch(self, batch: Batch) -> None:
        """Starts to bring the rows of an announced batch to where `read` finds them."""
        return

    def wait(self, batch: Batch) -> None:
        """Waits until the rows of a fetched batch are there, where they stay until `write`."""
        return

    @abstractmethod
    def read(self, batch: Batch) -> None:
        """Fills the batch's staging buffer with values, and with timestamps if validation needs them."""

    @abstractmethod
    def validate(self, batch: Batch, safe_to_evict: int) -> None:
        """Replaces the rows of the resident buffer that earlier batches have changed since they were read.

        No batch that is still to be validated needs cached rows with timestamps up to `safe_to_evict`.
        """

    @abstractmethod
    def computed(self, batch: Batch) -> None:
        """Called when the step has computed: the resident buffer holds the new rows. Unless the batch is `cached` no
        other one reads before it is written."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Writes the rows of the staging buffer back, and ends the batch's claim."""

    @abstractmethod
    def end(self, timestamp: int) -> None:
        """Called when every batch is written; `timestamp` is that of the next one."""

    def abort(self) -> None:
        """Makes every call that waits, now or later, raise `Closed`."""
        return


class RowSource(ABC):
    """Where a pipeline's rows are.

    Attributes:
        layouts: of each table's rows, as the staging buffers have them.
        validates: whether `validate` is called.
        caching: batches keep their resident buffers after `write`, until evicted.
        largest: the largest absolute value that a computed row may have (see `soundness`).
        look_ahead: the number of batches that may be announced but not fetched yet; 0: rows need no fetching.
    """

    layouts: Sequence[RowLayout]
    validates: bool
    caching: bool
    largest: float = math.inf
    look_ahead: int = 0

    def metrics(self) -> dict[str, float]:
        """Traffic of the rows that this process holds so far, by the names of a run's metrics."""
        return {}

    @abstractmethod
    def begin(self, first: int, last: int, device: Device, stop_requested: Callable[[], bool]) -> RowExchange:
        """The exchange for batches [first, last), or as many of them as begin before the user wants to stop."""


class LocalSource(RowSource):
    """Stores of this process.

    Args:
        stores: one per table; they share one backing.
        mode: of the pipeline.
    """

    largest = LARGEST_VALUE

    def __init__(self, stores: Sequence[ParameterStore], mode: str):
        self.stores, self.mode = [store.held() for store in stores], mode
        self.layouts = [store.layout for store in stores]
        self.validates = self.caching = mode == "oac"
        self.backing = backing_of(stores)
        self.look_ahead = self.backing.look_ahead

    def metrics(self) -> dict[str, float]:
        """See `RowSource.metrics`."""
        return self.backing.metrics()

    def begin(self, first: int, last: int, device: Device, stop_requested: Callable[[], bool]) -> RowExchange:
        """See `RowSource.begin`."""
        return LocalRows(self, device, stop_requested)


class LocalRows(RowExchange):
    """The rows of `source` in one run of batches."""

    def __init__(self, source: LocalSource, device: Device, stop_requested: Callable[[], bool]):
        self._stop_requested = stop_requested
        self._stores, self._caching, self._mode = source.stores, source.caching, source.mode
        self._backing = source.backing
        self._cache = Cache(device.replace, device.evicted)

    def stops_before(self, batch_index: int) -> bool:
        """See `RowExchange.stops_before`."""
        return self._stop_requested()

    def announce(self, batch: Batch) -> None:
        """See `RowExchange.announce`."""
        batch.claim = self._backing.announce(batch.batch_index, batch.plan.rows)

    def fetch(self, batch: Batch) -> None:
        """See `RowExchange.fetch`."""
        self._backing.fetch(batch.claim)

    def wait(self, batch: Batch) -> None:
        """See `RowExchange.wait`."""
        self._backing.wait(batch.claim)

    def read(self, batch: Batch) -> None:
        """Reads values and timestamps from the stores."""
        for table, store in enumerate(self._stores):
            _, timestamps, values = batch.rows_in(batch.staging, table)
            store.read(batch.plan.rows[table], np.asarray(values), np.asarray(timestamps))

    def validate(self, batch: Batch, safe_to_evict: int) -> None:
        """Takes newer rows from the cache."""
        batch.cached_rows = self._cache.num_rows
        self._cache.evict(safe_to_evict)
        batch.replaced = self._cache.validate(batch)

    def computed(self, batch: Batch) -> None:
        """Puts the batch into the cache, if one of the next may have read its rows too early."""
        if self._caching and batch.cached:
            self._cache.add(batch)

    def write(self, batch: Batch) -> None:
        """Commits the rows, or overwrites or adds as the mode does."""
        for table in self._changed(batch):
            store, rows = self._stores[table], batch.plan.rows[table]
            _, timestamps, values = (np.asarray(part) for part in batch.rows_in(batch.staging, table))
            if self._mode == "async":
                batch.lost += store.overwrite(rows, values, batch.timestamp, timestamps)
            elif self._mode == "async-delta":
                store.add(rows, values, batch.timestamp)
            else:
                batch.refused += store.commit(rows, values, batch.timestamp)
        self._backing.release(batch.claim)

    def _changed(self, batch: Batch) -> Iterable[int]:
        """Numbers of the tables to write: all."""
        return range(len(self._stores))

    def end(self, timestamp: int) -> None:
        """Empties the cache."""
        self._cache.evict(timestamp)

    def abort(self) -> None:
        """See `RowExchange.abort`."""
        self._backing.abort()
