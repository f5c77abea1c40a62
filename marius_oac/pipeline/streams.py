"""What orders the work of a device: three streams and events on them.

`TorchDevice` and what it carries speak to a device only through here, so that tests can take another implementation,
which sees each operation and reports pairs without an order (tests/pipeline/stream_order.py).

Guarantees, of CUDA's (a CPU's operations have happened when their call returns, so it needs none):
- Operations of one stream happen in the order in which they were put there; those of two in any, or at once.
- What comes after `wait` on a stream happens after all that came before `record` on the other.
- `synchronize` returns when all that came before `record` has happened; nothing else waits for the device.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
import torch

from marius_oac.pipeline.pinned import PinnedMemory

Stream = Literal["up", "compute", "down"]


class Streams(ABC):
    """The streams of one device: copies to it, its computations, copies from it."""

    @abstractmethod
    def begin(self) -> None:
        """Returns when all has happened that was put on the device outside of these streams: copies of parameters."""

    @abstractmethod
    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Within it, operations on tensors of the device are put on `stream`."""

    @abstractmethod
    def record(self, stream: Stream) -> Any:
        """An event: all that is on the stream by now."""

    @abstractmethod
    def wait(self, stream: Stream, event: Any) -> None:
        """What is put on the stream from now on happens after the event."""

    @abstractmethod
    def synchronize(self, event: Any) -> None:
        """The calling thread goes on when the event has happened."""

    @abstractmethod
    def seconds(self, first: Any, second: Any) -> float:
        """Time on the device from one event to another; both have happened, for the calling thread."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Room on the device, to be kept as long as the streams."""

    @abstractmethod
    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Room on the host that the device's streams copy to and from."""

    @abstractmethod
    def move(self, array: np.ndarray) -> torch.Tensor:
        """A copy of the array on the device, made on the stream that has been entered, for that and for `compute`."""


class HostStreams(Streams):
    """Of a CPU; an event is the time at which it was recorded."""

    def begin(self) -> None:
        """Nothing is under way."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """All work is done by the calling thread."""
        return nullcontext()

    def record(self, stream: Stream) -> Any:
        """The present time."""
        return time.perf_counter()

    def wait(self, stream: Stream, event: Any) -> None:
        """What was recorded has happened."""

    def synchronize(self, event: Any) -> None:
        """What was recorded has happened."""

    def seconds(self, first: float, second: float) -> float:
        """See `Streams.seconds`."""
        return second - first

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Streams.empty`."""
        return torch.empty(shape, dtype=dtype)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Streams.staging`."""
        return torch.empty(shape, dtype=dtype)

    def move(self, array: np.ndarray) -> torch.Tensor:
        """See `Streams.move`."""
        return torch.tensor(array)


class CudaStreams(Streams):
    """Of a GPU. A thread that waits for an event sleeps until it has happened."""

    def __init__(self, device: torch.device):
        self._device, self._pinned = device, PinnedMemory(device)
        self._streams = {name: torch.cuda.Stream(device) for name in ("up", "compute", "down")}

    def begin(self) -> None:
        """See `Streams.begin`."""
        torch.cuda.synchronize(self._device)

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """See `Streams.on`."""
        return torch.cuda.stream(self._streams[stream])

    def record(self, stream: Stream) -> Any:
        """See `Streams.record`."""
        return self._streams[stream].record_event(torch.cuda.Event(enable_timing=True, blocking=True))

    def wait(self, stream: Stream, event: Any) -> None:
        """See `Streams.wait`."""
        self._streams[stream].wait_event(event)

    def synchronize(self, event: Any) -> None:
        """See `Streams.synchronize`."""
        event.synchronize()

    def seconds(self, first: Any, second: Any) -> float:
        """See `Streams.seconds`."""
        return float(first.elapsed_time(second)) / 1000

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Streams.empty`."""
        return torch.empty(shape, dtype=dtype, device=self._device)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Streams.staging`."""
        return self._pinned.empty(shape, dtype)

    def move(self, array: np.ndarray) -> torch.Tensor:
        """See `Streams.move`."""
        moved = torch.tensor(array).pin_memory().to(self._device, non_blocking=True)
        moved.record_stream(self._streams["compute"])  # else its room could be given away while `compute` reads it
        return moved
