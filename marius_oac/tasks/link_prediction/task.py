"""Link prediction on a graph, as a task of the training loop."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.buckets import BucketSchedule
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.data.batches.orderings import epoch_io
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph
from marius_oac.errors import InputError
from marius_oac.evaluation.evaluator import Evaluator, check_evaluation, is_sampled
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.models.link_prediction.step import RELATIONS, relation_width
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.stores import Tables
from marius_oac.runs.task import Components, Schedule, Task
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.tasks.encoder.build import GraphEncoder, own_layers
from marius_oac.tasks.link_prediction.build import (
    entity_initial,
    entity_layout,
    in_order,
    make_bucket_planner,
    make_encoded_step,
    make_graph_encoder,
    make_planner,
    make_schedule,
    make_step,
    order_fingerprint,
    read_order,
)
from marius_oac.tasks.link_prediction.memory import plan_memory

BUCKETS = "buckets"
"""The folder of a run that holds its edges in a partition ordering."""


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
        """Of the graph, and of what is known of its nodes."""
        others = (self.encoder.data if self.encoder else {}) | order_fingerprint(self.config.pipeline.order)
        return identity.joined(self.graph.fingerprint, others)

    @cached_property
    def encoder(self) -> GraphEncoder | None:
        return make_graph_encoder(self.config, self.graph)

    @cached_property
    def _shuffled(self) -> EdgePlanner:
        """Has checked edges and configuration; makes the batches where nothing else is asked for."""
        return make_planner(self.config, self.graph, self.encoder)

    @property
    def planner(self) -> EdgePlanner:
        """Of shuffled edges."""
        return self._shuffled

    @cached_property
    def _schedule(self) -> EdgePlanner | BucketSchedule:
        """Knows how many batches each epoch has."""
        shuffled = self._shuffled
        return shuffled if self.config.training.ordering.kind == "shuffle" else make_schedule(self.config, self.graph)

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self._schedule.epoch_ends(self.config.training.epochs))

    def check(self) -> None:
        check_evaluation(self.config, self.graph)
        needed, order = self.schedule.last, self.config.pipeline.order
        if order not in ("plan", "arrival") and (recorded := len(read_order(order))) < needed:
            raise InputError(f"{recorded:,} batches are recorded, {needed:,} are to be trained", order)

    def run_files(self) -> Mapping[str, str]:
        return own_layers(self.config.encoder) if self.config.encoder else {}

    def plan_memory(self, folder: Path) -> MemoryPlan:
        return plan_memory(self.config, self.graph, folder, encoder=self.encoder)

    def _all_row_bytes(self) -> int:
        return sum(table.num_rows * entity_layout(self.config).row_bytes for table in self._shuffled.tables)

    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        planner = self._shuffled
        if isinstance(self._schedule, BucketSchedule):
            # Without a run, as in a measurement, the sorted edges go when the session ends.
            folder = self.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            planner = make_bucket_planner(self.config, self.graph, self._schedule, folder / BUCKETS)
        rows = {table.name: table.num_rows for table in planner.tables}
        layouts = {name: entity_layout(self.config) for name in rows}
        place = Tables(self.config.storage, self.folder, layouts, rows, stack, binding)
        stores = [place.make(name, count, entity_initial(self.config, name)) for name, count in rows.items()]
        step = (
            make_encoded_step(self.config, self.graph, self.encoder, device, threads)
            if self.encoder
            else make_step(self.config, self.graph, device, threads)
        )
        stack.callback(step.close)
        return Components(in_order(self.config, planner), stores, step, device, place.tier)

    def has(self, split: str) -> bool:
        return self.graph.num_edges[split] > 0

    @property
    def validates_on_a_sample(self) -> bool:
        return is_sampled(self.config, self.graph)

    def evaluate(self, parts: Components, split: str, whole: bool = True) -> dict[str, float]:
        """Ranks the edges of a split, or, between epochs, `evaluation.max_edges` of those to validate on."""
        if self.encoder is None:
            return self.evaluate_rows(EntityReader.of_store(parts.stores[0]), parts, split, whole)
        with self.encoder.encoded(parts, self.folder, self.config.evaluation.memory << 20) as entities:
            return self.evaluate_rows(EntityReader.of_array(entities), parts, split, whole)

    def evaluate_rows(
        self, entities: EntityReader, parts: Components, split: str, whole: bool = True
    ) -> dict[str, float]:
        """The same, with the entities' rows from anywhere."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.config, self.graph)
        relations = parts.step.dense_state().get(RELATIONS)
        width = relation_width(self.config)
        scorer = LinkScorer(
            self.config.model,
            entities,
            None if relations is None else relations[:, :width],
            parts.device,
        )
        return self._evaluator.evaluate(scorer, split, whole)

    def summary(self) -> dict[str, Any]:
        """With a partition ordering what each epoch should move between disk and buffer (`orderings.epoch_io`)."""
        ordering = self.config.training.ordering
        if ordering.kind == "shuffle":
            return {}
        io = epoch_io(ordering, self.graph.num_nodes, entity_layout(self.config).row_bytes)
        return {f"ordering.{name}_per_epoch": value for name, value in asdict(io).items()}
