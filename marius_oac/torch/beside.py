"""Batches of a user's loop in a pipeline whose threads run beside it."""

from __future__ import annotations

import threading

from marius_oac.pipeline.runner import Pipeline
from marius_oac.pipeline.stages import BatchResult
from marius_oac.runtime.channel import Channel
from marius_oac.runtime.signals import wait_for
from marius_oac.runtime.workers import Workers
from marius_oac.torch.hand_over import HandOver
from marius_oac.torch.pipeline import OpenBatch
from marius_oac.torch.planner import Fed


class Beside:
    """Runs a pipeline from batch `first` on, which takes batches from `feed` and offers them by `hand_over`.

    Guarantees: the threads end with `end`, however often that is interrupted.
    """

    def __init__(self, pipeline: Pipeline, feed: Channel[Fed], hand_over: HandOver[OpenBatch], first: int, last: int):
        self._pipeline, self._feed, self._hand_over = pipeline, feed, hand_over
        self._first, self._last, self._written = first, last, first
        self._changed, self._ended = threading.Condition(), False
        self._workers = Workers(on_failure=self.stop)

    def start(self) -> None:
        """Starts the threads."""
        self._workers.start("loop", 1, self._run, lambda: None)

    def _run(self) -> None:
        try:
            self._pipeline.run(self._first, self._last)
        finally:
            self._hand_over.end()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def stop(self) -> None:
        """Wakes whoever waits: the pipeline has failed."""
        self._feed.abort()
        self._hand_over.abort()

    def written(self, result: BatchResult) -> None:
        """Called by the pipeline with each batch that is in the store."""
        with self._changed:
            self._written = result.batch_index + 1
            self._changed.notify_all()

    def take(self) -> OpenBatch | None:
        """The next batch, with the user until `give_back`. None: there is none, or the pipeline has failed."""
        return self._hand_over.take()

    def give_back(self) -> None:
        """Hands the batch that the user has back, if there is one."""
        self._hand_over.give_back()

    def wait_until_written(self, until: int) -> bool:
        """Waits until every batch before `until` is in the store. Returns whether they are."""
        with self._changed:
            wait_for(self._changed, lambda: self._ended or self._written >= until)
            return self._written >= until

    def end(self) -> None:
        """Lets all batches pass and waits for the threads. Raises the first error of the pipeline."""
        self._feed.close()
        self._hand_over.drain()
        self._workers.join()
