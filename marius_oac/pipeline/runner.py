"""The pipeline: runs batches [first, last) through its stages, and returns when everything is written.

If the source of rows looks ahead, the rows of plans are assigned some batches ahead of the readers. The source learns
which rows the next batches use, and fetches them (stage `fetch`) while earlier batches are computed.

Guarantees:
- `run` returns when every batch it planned is in the store and every thread has ended; the store then holds one moment.
- In mode `oac` in plan order the rows, and the step's dense parameters, have the bits of mode `sync`, for any number
  of workers and batches in flight. In order of arrival they have the bits of a run in the recorded order.
- The first error of any stage stops all of them and is raised with its traceback; no batch after it is committed by a
  stage that has not begun to. `request_stop` ends the run early, without an error, at a batch boundary.
- Memory is bounded: at most `in_flight` batches between read and write, as many again in the cache (three times as
  many in order of arrival).
- Where numbers are `auto`, a tuner changes them between batches, up to those limits (`tuner`, `controller`).

One thread validates and computes, because validation must see the rows of the batch computed just before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from marius_oac.config.sections import PipelineConfig
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.crews import Crew
from marius_oac.pipeline.device import Device, HostDevice, TorchDevice
from marius_oac.pipeline.rows import RowSource
from marius_oac.pipeline.setting import STAGES, Limits, Setting
from marius_oac.pipeline.stages import BatchResult, Probe, Stages
from marius_oac.pipeline.tuner import Tuner
from marius_oac.runtime.channel import ArrivalChannel, Channel, OrderedChannel
from marius_oac.runtime.standstill import Activity, Waiting
from marius_oac.runtime.telemetry import Telemetry
from marius_oac.runtime.workers import Workers
from marius_oac.types import Planner, Step

_FETCHED = 2


class Pipeline:
    """Moves batches of `planner` through `source`, where their rows are, and `step`.

    Args:
        on_result: called by a write worker for each batch, one call at a time.
        probe: called by a worker with (stage, batch_index) before each stage of each batch; tests inject delays and
            errors with it.
        bind: called by each worker with its stage before its first batch (`runtime/machine/binding.py`).
        start: batches in flight and threads to begin with, where they are `auto`.

    Attributes:
        in_flight: the most batches in flight.
        tuner: measures and chooses the numbers that are `auto`; None where there are none.
    """

    def __init__(
        self,
        planner: Planner,
        source: RowSource,
        step: Step,
        config: PipelineConfig,
        device: torch.device,
        telemetry: Telemetry,
        on_result: Callable[[BatchResult], None],
        probe: Probe | None = None,
        bind: Callable[[str], object] | None = None,
        start: Setting | None = None,
    ):
        self.planner, self.source, self.step, self.config = planner, source, step, config
        self.telemetry, self.on_result, self.probe, self.bind = telemetry, on_result, probe, bind
        self.limits = Limits.of(config)
        self.in_flight, first = self.limits.most.window, start or self.limits.start()
        self.tuner = Tuner(self.limits, first, len(os.sched_getaffinity(0)), telemetry) if self.limits.adapt else None
        self._stopped, self._stop_requested = threading.Event(), threading.Event()
        self._channels: Sequence[Channel[Batch]] = ()
        self.device = self._make_device(device)

    def _make_device(self, device: torch.device) -> Device:
        shape = (self.planner.tables, self.source.layouts, self.in_flight, self.source.caching)
        if device.type != "cpu":
            return TorchDevice(device, *shape)
        return HostDevice(*shape)

    def request_stop(self) -> None:
        """Ends the current `run` after the batches that are already planned. May be called from a signal handler."""
        self._stop_requested.set()

    def channel_fill(self) -> dict[str, int]:
        """The number of batches that wait in each channel."""
        return {channel.name: len(channel) for channel in self._channels}

    def position(self, number: int) -> int:
        """See `RowExchange.position`."""
        return self._rows.position(number)

    @property
    def setting(self) -> Setting:
        """Batches in flight and threads at this moment."""
        return self.tuner.setting if self.tuner else self.limits.most

    @property
    def stop_requested(self) -> bool:
        """Whether `request_stop` has been called."""
        return self._stop_requested.is_set()

    def run(self, first: int, last: int) -> int:
        """Runs the batches numbered [first, last); all before `first` must be in the stores.

        Returns:
            The number of the next batch to run: `last`, or less after `request_stop`.

        Raises:
            DivergedError: a loss or rows are NaN, infinite or too large; the batch was not written.
            Exception: whatever a stage raised first.
        """
        run = _Run(self, first, last)
        self._channels, self._rows = run.channels, run.rows
        return run.run()


class _Run(Stages):
    """One call of `Pipeline.run`: its channels and threads."""

    pipeline: Pipeline

    def __init__(self, pipeline: Pipeline, first: int, last: int):
        setting = pipeline.setting
        super().__init__(pipeline, first, last, setting.window)
        self.next_planned = first
        self.plan_lock, self.settle_lock, self.result_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self.crews = {stage: Crew(setting.threads(stage)) for stage in STAGES}
        self.last = self.rows.planned_until(last)
        room = pipeline.in_flight
        self.planned: Channel[Batch] = OrderedChannel("planned", setting.window + setting.plan, first)
        self.looks_ahead = pipeline.source.look_ahead > 0
        self.announced: Channel[Batch] = Channel("announced", max(1, pipeline.source.look_ahead))
        # Few, because their rows take room. Rows of later batches are being fetched already.
        self.fetched: Channel[Batch] = Channel("fetched", _FETCHED)
        self.filled: Channel[Batch] = Channel("read", room)
        self.uploaded = self._compute_channel(room)
        self.computed: Channel[Batch] = Channel("computed", room)
        self.downloaded: Channel[Batch] = Channel("downloaded", room)
        ahead = (self.announced, self.fetched) if self.looks_ahead else ()
        self.channels = (self.planned, *ahead, self.filled, self.uploaded, self.computed, self.downloaded)

    def _compute_channel(self, room: int) -> Channel[Batch]:
        config = self.pipeline.config
        if config.mode in ("async", "async-delta"):
            return Channel("uploaded", room)
        if config.order == "arrival":
            return ArrivalChannel("uploaded", room, self.first, limit=room - 1)
        return OrderedChannel("uploaded", room, self.first)

    def run(self) -> int:
        if self.pipeline._stopped.is_set():
            raise RuntimeError("this pipeline has failed before; make a new one")
        self.pipeline.device.begin()
        if self.pipeline.tuner:
            self.pipeline.tuner.begin()
        with (
            Waiting("no stage of the pipeline holds a batch"),
            Workers(on_failure=self._abort, bind=self.pipeline.bind) as workers,
        ):
            self._start(workers, "plan", self._plan, self.planned.close)
            stages = (
                *self._stages_before_read(),
                ("read", self.fetched.get if self.looks_ahead else self._assigned, self.read, self.filled),
                ("upload", self.filled.get, self.upload, self.uploaded),
                ("compute", self.uploaded.get, self.compute, self.computed),
                ("download", self.computed.get, self.download, self.downloaded),
                ("write", self.downloaded.get, self._write, None),
            )
            for name, take, work, target in stages:
                done = target.close if target is not None else lambda: None
                loop = self._stage(take, work, target, self.crews.get(name))
                if name in self.crews:
                    self._start(workers, name, loop, done)
                else:
                    workers.start(name, 1, loop, done)
            workers.join()
        self.rows.end(self.next_timestamp)
        return self.rows.reached(self.next_planned)

    def _start(self, workers: Workers, stage: str, loop: Callable[[], None], done: Callable[[], None]) -> None:
        """Starts as many threads of a stage as work, and lets its crew start the others when they are first wanted."""
        crew = self.crews[stage]
        crew.started_by(workers.start(stage, crew.working, loop, done))

    def _stages_before_read(self) -> tuple[tuple[Any, ...], ...]:
        if not self.looks_ahead:
            return ()
        return (
            ("settle", self._assigned, self.rows.announce, self.announced),
            ("fetch", self.announced.get, self.fetch, self.fetched),
        )

    def _abort(self) -> None:
        self.pipeline._stopped.set()
        self.ledger.abort()
        self.rows.abort()
        for channel in self.channels:
            channel.abort()
        for crew in self.crews.values():
            crew.open()

    def _resize(self, setting: Setting) -> None:
        """Changes the window and the threads for the batches that follow."""
        self.planned.resize(setting.window + setting.plan)
        for stage, crew in self.crews.items():
            crew.resize(setting.threads(stage))
        self.ledger.resize(setting.window)

    def _stage(
        self,
        take: Callable[[], Batch],
        work: Callable[[Batch], None],
        target: Channel[Batch] | None,
        crew: Crew | None,
    ) -> Callable[[], None]:
        crew = crew or Crew(1)

        def loop() -> None:
            number = crew.enlist()
            try:
                while True:
                    crew.wait_for_work(number)
                    batch = take()
                    work(batch)
                    if target is not None:
                        target.put(batch)
            finally:
                crew.open()

        return loop

    def _plan(self) -> None:
        crew = self.crews["plan"]
        number = crew.enlist()
        try:
            while self._plan_next(crew, number):
                pass
        finally:
            crew.open()

    def _plan_next(self, crew: Crew, number: int) -> bool:
        """Plans a batch; returns whether there was one left."""
        crew.wait_for_work(number)
        with self.plan_lock:
            batch_index = self.next_planned
            if batch_index >= self.last or self.rows.stops_before(batch_index):
                return False
            self.next_planned += 1
        self.planned.put(self.plan(batch_index))
        return True

    def _assigned(self) -> Batch:
        """The next batch in plan order, with its rows assigned; one thread at a time."""
        with self.settle_lock:
            while True:
                batch = self.planned.get()
                if self.settle(batch):
                    return batch

    def _write(self, batch: Batch) -> None:
        self.write(batch)
        with self.result_lock, Activity(f"the result of batch {batch.batch_index:,} is being reported"):
            self.pipeline.on_result(self.result(batch))
            setting = self.pipeline.tuner.written() if self.pipeline.tuner else None
            if setting is not None:
                self._resize(setting)
