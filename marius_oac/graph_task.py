"""Link prediction on a graph, as a task of the training loop."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import torch

from marius_oac.config import Config
from marius_oac.data.batches import EdgePlanner, ReorderedPlanner
from marius_oac.data.graph import Graph
from marius_oac.errors import InputError
from marius_oac.evaluator import Evaluator, check_evaluation
from marius_oac.graph_memory import plan_memory
from marius_oac.graph_parts import make_planner, make_step, make_store, read_order
from marius_oac.memory import MemoryPlan
from marius_oac.models.link_prediction import RELATIONS, relation_width
from marius_oac.scoring import EntityReader, LinkScorer
from marius_oac.task import Parts, Road, Task


class GraphTask(Task):
    """Training and evaluating the embeddings of one graph."""

    def __init__(self, config: Config, graph: Graph):
        self.config, self.graph = config, graph
        self._evaluator: Evaluator | None = None

    @property
    def decisive_metric(self) -> str:
        return "filtered.mrr" if self.config.evaluation.filtered else "unfiltered.mrr"

    @property
    def fingerprint(self) -> str:
        return self.graph.fingerprint

    @cached_property
    def _planner(self) -> EdgePlanner | ReorderedPlanner:
        return make_planner(self.config, self.graph)

    @property
    def road(self) -> Road:
        per_epoch = self._planner.batches_per_epoch
        return Road(range(per_epoch, self.config.training.epochs * per_epoch + 1, per_epoch))

    def check(self) -> None:
        check_evaluation(self.config, self.graph)
        if isinstance(self._planner, ReorderedPlanner):
            needed, recorded = self.road.last, len(read_order(self.config.pipeline.order))
            if recorded < needed:
                raise InputError(
                    f"{recorded:,} batches are recorded, {needed:,} are to be trained", self.config.pipeline.order
                )

    def plan_memory(self, folder: Path) -> MemoryPlan:
        return plan_memory(self.config, self.graph, folder)

    def build(self, stack: ExitStack, device: torch.device, threads: int) -> Parts:
        tables = self._planner.tables
        stores = [stack.enter_context(make_store(self.config, table.name, table.num_rows)) for table in tables]
        step = make_step(self.config, self.graph, device, threads)
        stack.callback(step.close)
        return Parts(self._planner, stores, step, device)

    def has(self, split: str) -> bool:
        return self.graph.num_edges[split] > 0

    def evaluate(self, parts: Parts, split: str) -> dict[str, float]:
        """Ranks the edges of a split; validation may be limited to `evaluation.max_edges`."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.config, self.graph)
        relations = parts.step.dense_state().get(RELATIONS)
        width = relation_width(self.config)
        scorer = LinkScorer(
            self.config.model,
            EntityReader.of_store(parts.stores[0]),
            None if relations is None else relations[:, :width],
            parts.device,
        )
        return self._evaluator.evaluate(scorer, split)
