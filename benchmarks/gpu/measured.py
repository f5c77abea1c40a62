"""A pipeline that is run for some seconds: examples per second, what its threads and its device did, what binds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.gpu.place import Place
from marius_oac.config.link_prediction import Config
from marius_oac.config.sections import PipelineConfig
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.models.link_prediction.step import LinkPredictionStep, entity_width, relation_width
from marius_oac.pipeline.rows import LocalSource
from marius_oac.pipeline.runner import Pipeline
from marius_oac.pipeline.stages import BatchResult
from marius_oac.runs.session import Session
from marius_oac.runs.task import Task
from marius_oac.runtime.telemetry import Telemetry
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore


class Measured:
    """Runs a pipeline whose results go to `results`."""

    def __init__(self, place: Place):
        self._place = place
        self.results: list[BatchResult] = []

    def of(self, pipeline: Pipeline, telemetry: Telemetry, first: int, seconds: float) -> tuple[dict[str, Any], int]:
        """What was found in some seconds, and the number of the next batch, where `first` is that of this one."""
        _, first = self._run(pipeline, first, 4)  # buffers are made, kernels compiled
        trial = self._place.pick(16, 4)
        took, first = self._run(pipeline, first, trial)
        batches = max(8, int(seconds * trial / took))
        self.results.clear()
        telemetry.take()
        took, first = self._run(pipeline, first, batches)
        return {
            "examples_per_second": sum(result.examples for result in self.results) / took,
            "batches": batches,
            "milliseconds": 1e3 * took / batches,
            "replaced": sum(result.replaced for result in self.results) / batches,
            **busy(telemetry.take(), batches, took, pipeline.config),
        }, first

    def _run(self, pipeline: Pipeline, first: int, batches: int) -> tuple[float, int]:
        began = time.perf_counter()
        reached = pipeline.run(first, first + batches)
        self._place.wait()
        return time.perf_counter() - began, reached


class Trained:
    """Link prediction over edges in memory; its table lives as long as it does.

    `measured` makes a pipeline of the given settings and runs it for some seconds; batches go on where the last ones
    ended.
    """

    def __init__(self, place: Place, config: Config, edges: np.ndarray, nodes: int, relations: int):
        self._place, self._config, self._next = place, config, 0
        with ExitStack() as stack:
            values = np.random.default_rng(1).normal(0, 0.1, (relations, relation_width(config))).astype(np.float32)
            self._step = LinkPredictionStep(config, relations, place.device, 1, values)
            stack.callback(self._step.close)
            self._planner = EdgePlanner(edges, nodes, relations, config)
            initial = RowInitial("uniform", 1e-3, 0, "entities")
            self._store = MemoryStore("entities", nodes, RowLayout(*entity_width(config)), initial)
            stack.callback(self._store.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Trained:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measured(self, seconds: float, *overrides: str) -> dict[str, Any]:
        measured, telemetry = Measured(self._place), Telemetry()
        config = self._config.replace(*overrides).pipeline
        report, source = measured.results.append, LocalSource([self._store], config.mode)
        pipeline = Pipeline(self._planner, source, self._step, config, self._place.device, telemetry, report)
        found, self._next = measured.of(pipeline, telemetry, self._next, seconds)
        return found


def measured_task(place: Place, task: Task, seconds: float) -> dict[str, Any]:
    """Trains a task for some seconds."""
    measured = Measured(place)
    with Session(task) as session:
        session.report_to(measured.results.append)
        return measured.of(session.pipeline, session.telemetry, 0, seconds)[0]


def busy(stages: Mapping[str, float], batches: int, took: float, config: PipelineConfig) -> dict[str, Any]:
    """Milliseconds per batch of each stage's threads and of each stream of the device (`device.upload`, ...), and which
    of them could do least in the time.

    A stream is busy with a batch from its first operation to its last one, gaps between kernels included.
    """
    each = {stage: 1e3 * seconds / batches for stage, seconds in stages.items()}
    workers = config.workers.model_dump()
    binds, least = max(((stage, ms / workers.get(stage, 1)) for stage, ms in each.items()), key=lambda item: item[1])
    return {
        "binds": f"{binds}, {least:.2f} ms a batch",
        "busy": stages["device.compute"] / took,
        "stages": ", ".join(f"{stage} {ms:.2f}" for stage, ms in each.items()),
    }
