"""Everything that trains, built from a config and a graph, and closed in the reverse order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from marius_oac.config import Config
from marius_oac.data.batches import EdgePlanner, ReorderedPlanner
from marius_oac.data.graph import Graph, Split
from marius_oac.errors import ConfigError, InputError
from marius_oac.evaluator import Evaluator, check_evaluation, torch_threads
from marius_oac.models.link_prediction import RELATIONS, LinkPredictionStep, relation_width
from marius_oac.models.optimizers import RowOptimizer
from marius_oac.pipeline.runner import BatchResult, Pipeline, Probe
from marius_oac.runtime.telemetry import Telemetry
from marius_oac.scoring import EntityReader, LinkScorer
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from marius_oac.types import Planner


def pick_device(name: str) -> torch.device:
    """The torch device of a config: `auto` is the first GPU, or the CPU. Raises ConfigError where there is none."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ConfigError(f"there is no {name}: torch finds {count} GPUs here", "device")
        return torch.device("cuda", device.index or 0)
    return device


def num_threads(config: Config) -> int:
    """Threads that compute on the CPU."""
    return config.threads or len(os.sched_getaffinity(0))


def entity_layout(config: Config) -> RowLayout:
    dimension = config.model.dimension
    state = RowOptimizer(config.training.optimizer).state_width(dimension)
    return RowLayout(dimension, state, config.storage.dtype)


def num_model_relations(config: Config, graph: Graph) -> int:
    """Relations that the model knows: twice as many where every edge also stands reversed."""
    return graph.num_relations * (2 if config.model.reciprocal else 1)


def make_planner(config: Config, graph: Graph) -> Planner:
    """The planner of the training edges; with a recorded order, batches come in that order."""
    planner = EdgePlanner(graph.edges("train"), graph.num_nodes, graph.num_relations, config)
    order = config.pipeline.order
    return planner if order in ("plan", "arrival") else ReorderedPlanner(planner, read_order(order))


def check_fits(config: Config, graph: Graph) -> None:
    """Raises InputError where config and graph don't fit together, with the key; before anything is written."""
    pick_device(config.device)
    planner = make_planner(config, graph)
    check_evaluation(config, graph)
    if isinstance(planner, ReorderedPlanner):
        needed, recorded = config.training.epochs * planner.batches_per_epoch, len(read_order(config.pipeline.order))
        if recorded < needed:
            raise InputError(f"{recorded:,} batches are recorded, {needed:,} are to be trained", config.pipeline.order)


def read_order(path: str) -> np.ndarray:
    """A computation order that a run recorded, int64 [batches]: entry t is the batch that was computed t-th."""
    try:
        order = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a NumPy file"
        raise InputError(f"order 'plan', 'arrival' or a recorded order.npy is needed: {reason}", path) from None
    if order.ndim != 1 or order.dtype != np.int64 or not np.array_equal(np.sort(order), np.arange(len(order))):
        raise InputError("is not the order of a run: each batch must stand in it once", path)
    return order


class Session:
    """Graph, planner, tables, step and pipeline of one run.

    The initial values of tables and relations are a pure function of (seed, table, row).
    """

    def __init__(self, config: Config, graph: Graph, trace: Path | None = None, probe: Probe | None = None):
        self.config, self.graph = config, graph
        self.device = pick_device(config.device)
        self.threads = num_threads(config)
        self.evaluator = Evaluator(config, graph)
        self._report: Callable[[BatchResult], None] = lambda result: None
        with ExitStack() as stack:
            self.planner = make_planner(config, graph)
            self.telemetry = stack.enter_context(Telemetry(trace))
            self.stores = [
                stack.enter_context(self._store(table.name, table.num_rows)) for table in self.planner.tables
            ]
            self.step = self._make_step()
            stack.callback(self.step.close)
            self.pipeline = Pipeline(
                self.planner, self.stores, self.step, config.pipeline, self.device, self.telemetry,
                lambda result: self._report(result), probe,
            )  # fmt: skip
            self._stack = stack.pop_all()

    def _store(self, name: str, num_rows: int) -> MemoryStore:
        model, optimizer = self.config.model, RowOptimizer(self.config.training.optimizer)
        initial = RowInitial(model.init, model.init_scale, self.config.seed, name, optimizer.initial_state)
        return MemoryStore(name, num_rows, entity_layout(self.config), initial)

    def _make_step(self) -> LinkPredictionStep:
        count, width = num_model_relations(self.config, self.graph), relation_width(self.config)
        relations = None
        if count and width:
            relations = np.empty((count, width), np.float32)
            model = self.config.model
            initial = RowInitial(model.init, model.init_scale, self.config.seed, RELATIONS)
            initial.fill(np.arange(count), relations, width)
        return LinkPredictionStep(self.config, count, self.device, self.threads, relations)

    def report_to(self, report: Callable[[BatchResult], None]) -> None:
        """From now on `report` gets each batch's result."""
        self._report = report

    def evaluate(self, split: Split) -> dict[str, float]:
        """Metrics of the present embeddings on a split; validation may be limited to `evaluation.max_edges`."""
        relations = self.step.dense_state().get(RELATIONS)
        width = relation_width(self.config)
        scorer = LinkScorer(
            self.config.model,
            EntityReader.of_store(self.stores[0]),
            None if relations is None else relations[:, :width],
            self.device,
        )
        with torch_threads(self.threads):
            return self.evaluator.evaluate(scorer, split)

    def dense_fingerprint(self) -> str:
        """SHA-256 of the dense parameters and their optimizer state, by name."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.step.dense_state().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
