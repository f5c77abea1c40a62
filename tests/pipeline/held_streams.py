"""Streams that are held for random whiles, so that work without an order happens out of order where it can.

On a GPU nothing says which of two operations without an order comes first, and the usual one hides a mistake. Here a
stream that is entered, or about to record an event, is held first: what should wait for it, and doesn't, is early.
"""

import random
import threading
from contextlib import contextmanager

from marius_oac.pipeline.streams import Streams

CYCLES = (0, 0, 0, 100_000, 1_000_000, 4_000_000)
"""Of the GPU's clock: up to two milliseconds."""


class StreamsOver(Streams):
    """Those of another; what differs is for a subclass to say."""

    def __init__(self, streams):
        self._streams = streams

    def begin(self):
        self._streams.begin()

    def on(self, stream):
        return self._streams.on(stream)

    def record(self, stream):
        return self._streams.record(stream)

    def wait(self, stream, event):
        self._streams.wait(stream, event)

    def synchronize(self, event):
        self._streams.synchronize(event)

    def seconds(self, first, second):
        return self._streams.seconds(first, second)

    def empty(self, shape, dtype):
        return self._streams.empty(shape, dtype)

    def staging(self, shape, dtype):
        return self._streams.staging(shape, dtype)


class HeldStreams(StreamsOver):
    """`sleep(cycles)` holds the stream that the calling thread has entered."""

    def __init__(self, streams, sleep, seed=0):
        super().__init__(streams)
        self._sleep, self._random, self._lock = sleep, random.Random(seed), threading.Lock()

    def _hold(self):
        with self._lock:
            cycles = self._random.choice(CYCLES)
        if cycles:
            self._sleep(cycles)

    @contextmanager
    def on(self, stream):
        with self._streams.on(stream):
            self._hold()
            yield

    def record(self, stream):
        with self._streams.on(stream):
            self._hold()
        return self._streams.record(stream)
