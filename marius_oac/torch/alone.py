"""One batch after the other, in the user's thread: where batches are so small that threads would cost more than they
save.

The stages are those of the pipeline; each batch passes through all of them before the next one begins, as in mode sync.
"""

from __future__ import annotations

from typing import Any

from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.runner import Pipeline
from marius_oac.pipeline.stages import Stages
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.signals import uninterrupted
from marius_oac.torch.pipeline import LoopStep, OpenBatch
from marius_oac.types import present


class Alone:
    """Takes batches from `first` on through all stages, for as long as it is asked to. Called by one thread at a time.

    Guarantees: Ctrl-C comes before or after a call of `take` or `give_back`, never within.

    Attributes:
        next: the number of the next batch; all before it are in the store, but the one that the user has.
        error: what a stage raised; None: nothing. Afterwards there are no more batches.
    """

    def __init__(self, pipeline: Pipeline, step: LoopStep, first: int, last: int):
        self._stages, self._step, self.next = Stages(pipeline, first, last, window=1), step, first
        self._batch: Batch | None = None
        self._values: list[Any] = []
        self._opened: OpenBatch | None = None
        self.error: BaseException | None = None
        pipeline.device.begin()

    def take(self) -> OpenBatch | None:
        """The next batch, with the user until `give_back`. None: there is none, or a stage has failed."""
        with uninterrupted():
            if self.error is not None:
                return None
            try:
                self._opened = self._open()
            except Closed:
                return None
            except BaseException as error:  # noqa: BLE001 - all that a stage raises ends the loop, which raises it
                self.error = error
                return None
            return self._opened

    def _open(self) -> OpenBatch:
        stages, batch = self._stages, self._stages.plan(self.next)
        stages.settle(batch)
        stages.read(batch)
        stages.upload(batch)
        self._values = stages.begin_compute(batch)
        self._batch, self.next = batch, self.next + 1
        return self._step.open(self._values, batch.data)

    def wait_until_written(self, until: int) -> bool:
        """Whether every batch that was handed back is in the store."""
        return self.error is None

    def end(self) -> None:
        """Writes the batch that the user has if an optimizer has changed it. Raises what a stage raised."""
        if self._opened is not None and self._opened.trained:
            self.give_back()
        if self.error is not None:
            raise self.error

    def give_back(self) -> None:
        """Writes the batch that the user has, if there is one."""
        with uninterrupted():
            opened, self._opened = self._opened, None
            if opened is None:
                return
            try:
                self._write(opened, present(self._batch))
            except BaseException as error:  # noqa: BLE001 - see `take`
                self.error = error

    def _write(self, opened: OpenBatch, batch: Batch) -> None:
        stages = self._stages
        opened.take_back(self._values, batch.data)
        stages.end_compute(batch, self._values, 0.0)
        stages.cache(batch)
        stages.download(batch)
        stages.write(batch)
