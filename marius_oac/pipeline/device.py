"""Where batches are computed: on the host itself, or on a torch device with pinned staging buffers and streams.

`HostDevice` shares memory with the store's threads: one buffer is staging, resident and cache at once, and upload and
download move nothing. `TorchDevice` copies; on CUDA from pinned memory, with one
stream each for upload, compute and download, ordered by events (`streams`); on a CPU device with plain copies, which is
how its logic is tested without a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from marius_oac.kernels.cpu.bfloat16 import round_to_bfloat16
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute.arranged import arranged
from marius_oac.pipeline.batch import Batch, Buffers, Pool
from marius_oac.pipeline.packing import Packing, data_bytes, rows_bytes
from marius_oac.pipeline.streams import CudaStreams, HostStreams, Streams
from marius_oac.pipeline.validation import Replace, replace_older, replacing
from marius_oac.runtime.aligned import aligned_empty
from marius_oac.storage.contract import RowLayout
from marius_oac.types import BatchData, TableSpec, present

Room = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
SLACK = 1.25
"""Room for the data of batches, in that of the first one: some have more neighbours or values than others."""

Span = tuple[float, float]
"""Begin and end of something, in seconds before now."""


def buffer_bytes(tables: Sequence[TableSpec], layouts: Iterable[RowLayout], data: BatchData) -> int:
    """Bytes of one set of buffers of a device that copies: of the most rows that a batch may have, with their ids and
    timestamps, and of data like that of the first batch."""
    rows = rows_bytes([table.max_batch_rows for table in tables], [layout.width for layout in layouts])
    return rows + int(SLACK * data_bytes(data))


class Device(ABC):
    """Buffers and transfers for batches of the given tables.

    `in_flight` batches may be under way and, when `caching`, as many again be held by the cache (pipeline/ledger.py).
    """

    replace: Replace

    def __init__(self, tables: Sequence[TableSpec], layouts: Sequence[RowLayout], in_flight: int, caching: bool):
        self._tables, self._layouts = tables, layouts
        self._resident = Pool("device", (3 if caching else 1) * in_flight, self._make_resident)

    def begin(self) -> None:
        """Called before the first of a run of batches."""
        return

    def arranges(self) -> bool:
        """Whether `arrange` has anything to do."""
        return False

    def arrange(self, batch: Batch) -> None:
        """Computes on the host what the device needs of a batch beside its plan; before `borrow`."""
        return

    def borrow(self, batch: Batch) -> None:
        """Gives the batch the buffer that the store is read into."""
        batch.staging = batch.resident = self._resident.take()

    @abstractmethod
    def upload(self, batch: Batch) -> None:
        """Makes the batch's data and its rows in the staging buffer available to the step."""

    def computing(self, batch: Batch) -> AbstractContextManager[Any]:
        """A context for validation, compute, and all other uses of the rows before they are downloaded."""
        return nullcontext()

    def round(self, batch: Batch) -> None:
        """Rounds new values to the store's precision; called inside `computing`."""
        for table, layout in enumerate(self._layouts):
            if layout.value_dtype == "bfloat16":
                self._round(batch.rows_in(batch.resident, table)[2][:, : layout.dimension])

    @abstractmethod
    def download(self, batch: Batch) -> Mapping[str, Span]:
        """Makes the batch's new rows available to the store; returns when they are.

        Returns:
            When the device was busy with each stage of the batch, if it works asynchronously.
        """

    def written(self, batch: Batch, cached: bool) -> None:
        """Called when the store has the rows; a cached batch keeps its resident buffer until `evicted`."""
        if not cached:
            self._resident.give_back(batch.resident)

    def evicted(self, batch: Batch) -> None:
        """Called when the cache has dropped the batch; frees its resident buffer."""
        self._resident.give_back(batch.resident)

    @abstractmethod
    def _make_resident(self) -> Buffers: ...

    @abstractmethod
    def _round(self, values: Any) -> None: ...

    def _shapes(self) -> Iterator[tuple[int, int]]:
        for table, layout in zip(self._tables, self._layouts, strict=True):
            yield table.max_batch_rows, layout.width


class HostDevice(Device):
    """The CPU: nothing is copied."""

    replace = staticmethod(replace_older)

    def upload(self, batch: Batch) -> None:
        """Copies nothing: the batch's own data and rows are used."""
        batch.data, present(batch.resident).rows = batch.plan.data, batch.plan.rows

    def download(self, batch: Batch) -> Mapping[str, Span]:
        """Copies nothing."""
        return {}

    def _make_resident(self) -> Buffers:
        shapes = list(self._shapes())
        return Buffers(
            rows=(),  # those of a batch's plan are used
            timestamps=[aligned_empty((count,), np.int64) for count, _ in shapes],
            values=[aligned_empty(shape, np.float32) for shape in shapes],
        )

    def _round(self, values: np.ndarray) -> None:
        round_to_bfloat16(values)


class TorchDevice(Device):
    """A torch device. On CUDA every copy is asynchronous; nothing but the download's end waits for the device.

    `streams` are the device's own, unless a test gives others.
    """

    def __init__(
        self,
        device: torch.device,
        tables: Sequence[TableSpec],
        layouts: Sequence[RowLayout],
        in_flight: int,
        caching: bool,
        streams: Streams | None = None,
    ):
        super().__init__(tables, layouts, in_flight, caching)
        self.replace = replacing(device)
        self._streams = streams or (CudaStreams(device) if device.type == "cuda" else HostStreams())
        self._staging = Pool("staging", in_flight, Buffers)
        self._device, self._widths = device, [layout.width for layout in layouts]
        self._outgrown: list[torch.Tensor] = []  # work that is queued may still use them

    def begin(self) -> None:
        """Waits until copies of parameters to the device have finished."""
        self._streams.begin()

    def arranges(self) -> bool:
        """Whether the device has kernels that need the order of sums."""
        return choice.chosen(self._device)

    def arrange(self, batch: Batch) -> None:
        """Finds the order of sums, and the places of all arrays in a block."""
        rows = batch.plan.rows
        data = arranged(batch.plan.data, rows, self._device)
        batch.packing = Packing([len(each) for each in rows], self._widths, data)

    def borrow(self, batch: Batch) -> None:
        """Takes a staging buffer, which the store is read into, and a resident one."""
        if batch.packing is None:
            self.arrange(batch)
        packing = present(batch.packing)
        batch.staging, batch.resident = self._staging.take(), self._resident.take()
        for buffers, room in ((batch.staging, self._streams.staging), (batch.resident, self._streams.empty)):
            block = self._fitting(buffers, packing, room)
            buffers.values, buffers.timestamps, buffers.rows = (
                [place.of(block) for place in places] for places in (packing.values, packing.timestamps, packing.rows)
            )

    def upload(self, batch: Batch) -> None:
        """Starts one copy of rows, ids, timestamps and data to the device."""
        with self._streams.on("up"):
            free_after = present(batch.resident).free_after
            if free_after is not None:
                self._streams.wait("up", free_after)
            batch.began["upload"] = self._streams.record("up")
            self._copy_up(batch)
            batch.uploaded = self._streams.record("up")

    @contextmanager
    def computing(self, batch: Batch) -> Iterator[None]:
        """Within it, work goes to the compute stream, after the upload."""
        self._streams.wait("compute", batch.uploaded)
        with self._streams.on("compute"):
            batch.began["compute"] = self._streams.record("compute")
            yield
            batch.computed = self._streams.record("compute")

    def download(self, batch: Batch) -> Mapping[str, Span]:
        """Copies the rows back and waits for the copy."""
        with self._streams.on("down"):
            self._streams.wait("down", batch.computed)
            batch.began["download"] = self._streams.record("down")
            for table in range(len(batch.plan.rows)):
                values = batch.rows_in(batch.resident, table)[2]
                batch.rows_in(batch.staging, table)[2].copy_(values, non_blocking=True)
            done = self._streams.record("down")
        self._streams.synchronize(done)
        ended = {"upload": batch.uploaded, "compute": batch.computed, "download": done}
        return {
            stage: (self._streams.seconds(began, done), self._streams.seconds(ended[stage], done))
            for stage, began in batch.began.items()
        }

    def written(self, batch: Batch, cached: bool) -> None:
        """Frees the staging buffer, and unless the batch is cached the resident one."""
        self._staging.give_back(batch.staging)
        batch.data, batch.packing = BatchData(), None  # a cached batch needs its rows alone
        super().written(batch, cached)

    def evicted(self, batch: Batch) -> None:
        # A validation that reads this buffer may still be queued.
        """Frees the resident buffer for when the compute stream has done what is queued."""
        present(batch.resident).free_after = self._streams.record("compute")
        super().evicted(batch)

    def _copy_up(self, batch: Batch) -> None:
        packing, staging, resident = present(batch.packing), present(batch.staging), present(batch.resident)
        for staged, rows in zip(staging.rows, batch.plan.rows, strict=True):
            np.copyto(staged.numpy(), rows)  # not torch's copy, which refuses read-only arrays, such as plans share
        packing.put(staging.block)
        used = slice(0, packing.num_bytes)
        resident.block[used].copy_(staging.block[used], non_blocking=True)
        batch.data = packing.data(resident.block)

    def _fitting(self, buffers: Buffers, packing: Packing, room: Room) -> torch.Tensor:
        """The buffers' block, made with the first batch, for the largest number of rows; and anew for a batch with more
        data than any before."""
        block: torch.Tensor | None = buffers.block
        if block is None or block.numel() < packing.num_bytes:
            if block is not None:
                self._outgrown.append(block)
            buffers.block = block = room((buffer_bytes(self._tables, self._layouts, packing.source),), torch.uint8)
        return block

    def _make_resident(self) -> Buffers:
        return Buffers()

    def _round(self, values: torch.Tensor) -> None:
        values.copy_(values.to(torch.bfloat16))
