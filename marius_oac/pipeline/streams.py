"""Orders the work of a device: three streams, and events on them.

`TorchDevice` uses a device only through this module, so that tests can use another implementation, which records each
operation and reports pairs without an order (tests/pipeline/stream_order.py).

Guarantees, of CUDA's (a CPU's operations have happened when their call returns, so it needs none):
- Operations of one stream run in the order in which they were queued; those of two streams in any order, or at once.
- What is queued after `wait` on a stream runs after all that was queued before `record` on the other.
- `synchronize` returns when all that was queued before `record` is done; nothing else waits for the device.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from marius_oac.pipeline.pinned import PinnedMemory

Stream = Literal["up", "compute", "down"]


class Streams(ABC):
    """The streams of one device: copies to it, its computations, copies from it."""

    @abstractmethod
    def begin(self) -> None:
        """Waits for work on the device that was queued outside of these streams, such as copies of parameters."""

    @abstractmethod
    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """A context in which operations on tensors of the device are queued on `stream`."""

    @abstractmethod
    def record(self, stream: Stream) -> Any:
        """Returns an event that passes when all that is queued on the stream is done."""

    @abstractmethod
    def wait(self, stream: Stream, event: Any) -> None:
        """Makes what is queued on the stream from now on run after the event."""

    @abstractmethod
    def synchronize(self, event: Any) -> None:
        """Blocks the calling thread until the event has passed."""

    @abstractmethod
    def seconds(self, first: Any, second: Any) -> float:
        """The time on the device from one event to another, in seconds; the calling thread has seen both pass."""

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor on the device, kept as long as the streams."""

    @abstractmethod
    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor on the host that the device's streams copy to and from."""


class HostStreams(Streams):
    """Streams of a CPU, where work is done when its call returns; an event is the time at which it was recorded."""

    def begin(self) -> None:
        """Returns at once: no work is queued."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """An empty context: the calling thread does the work."""
        return nullcontext()

    def record(self, stream: Stream) -> Any:
        """Returns the present time, in seconds."""
        return time.perf_counter()

    def wait(self, stream: Stream, event: Any) -> None:
        """Returns at once: what was recorded is done."""

    def synchronize(self, event: Any) -> None:
        """Returns at once: what was recorded is done."""

    def seconds(self, first: float, second: float) -> float:
        """See `Streams.seconds`."""
        return second - first

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Streams.empty`."""
        return torch.empty(shape, dtype=dtype)

    def staging(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """See `Streams.staging`."""
        return torch.empty(shape, dtype=dtype)


class CudaStreams(Streams):
    """Streams of a GPU. A thread that waits for an event sleeps until it has passed."""

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
