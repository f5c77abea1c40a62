"""A toy task whose result depends on every bit of the order: overlapping batches, chaos, a dense parameter."""

from dataclasses import dataclass

import numpy as np
import torch

from marius_oac.config.sections import PipelineConfig
from marius_oac.pipeline.rows import LocalSource
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runtime.telemetry import Telemetry
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from marius_oac.types import BatchData, Plan, TableSpec

STAGES = ("plan", "settle", "read", "upload", "validate", "compute", "download", "write")
"""Of a pipeline whose rows are in memory, as metrics name them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ToyData(BatchData):
    x: np.ndarray


class ToyPlanner:
    """`per_batch` of `num_rows` rows of two tables in each batch, drawn from (seed, sequence)."""

    def __init__(self, num_rows=40, per_batch=12, batches=60, seed=0):
        self.tables = (TableSpec("a", num_rows, per_batch), TableSpec("b", num_rows // 2, per_batch // 2))
        self.batches_per_epoch, self.seed = batches, seed

    def plan(self, batch_index):
        rng = np.random.default_rng([self.seed, batch_index])
        rows = [np.sort(rng.choice(t.num_rows, t.max_batch_rows, replace=False)) for t in self.tables]
        return Plan(batch_index, rows, ToyData(x=rng.random(4)), examples=4)

    def assign_rows(self, plan):
        return plan


class ToyStep:
    """value <- 3.7 v (1 - v) mixed with the batch and a dense state that remembers the order."""

    def __init__(self):
        self.dense = 0.5
        self.order = []

    def compute(self, rows, data, timestamp):
        total = 0.0
        for values in map(np.asarray, rows):  # the same arithmetic on arrays and on CPU tensors
            bounded = abs(values) % 1.0
            values[:] = 3.7 * bounded * (1 - bounded) * 0.9 + 0.1 * self.dense
            total += float(values.sum())
        self.dense = (self.dense * 3.9 * (1 - self.dense) + float(data.x[0]) * 0.01 + total * 1e-6) % 1.0
        return total

    def dense_state(self):
        return {"dense": torch.tensor(self.dense)}


def toy_stores(planner, dtype="float32"):
    layout = RowLayout(3, 2, dtype)
    return [MemoryStore(t.name, t.num_rows, layout, RowInitial("uniform", 1.0, 0, t.name)) for t in planner.tables]


def run_toy(
    planner=None,
    probe=None,
    device=None,
    dtype="float32",
    first=0,
    last=None,
    stores=None,
    step=None,
    start=None,
    **config,
):
    """Runs the toy; returns (fingerprints of both tables, dense value, results by timestamp, pipeline)."""
    planner = planner or ToyPlanner()
    step = step or ToyStep()
    stores = stores or toy_stores(planner, dtype)
    results = []
    settings = PipelineConfig(**config)
    source = LocalSource(stores, settings.mode)
    pipeline = Pipeline(
        planner, source, step, settings, torch.device("cpu"), Telemetry(), results.append, probe, start=start
    )
    if device is not None:
        pipeline.device = device(pipeline)
    end = pipeline.run(first, planner.batches_per_epoch if last is None else last)
    results.sort(key=lambda result: result.timestamp)
    assert [result.timestamp for result in results] == list(range(first, end))
    return [store.fingerprint() for store in stores], step.dense, results, pipeline
