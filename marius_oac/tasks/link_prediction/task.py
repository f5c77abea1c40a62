"""Link prediction on a graph, as a task of the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.buckets import BucketSchedule
from marius_oac.data.batches.edges import EdgePlanner, GraphPlanner
from marius_oac.data.batches.orderings import epoch_io
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.splits import Split
from marius_oac.evaluation.evaluator import Evaluator, check_evaluation, is_sampled
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.models.compute.dense_moments import RELATIONS
from marius_oac.models.compute.update import Update
from marius_oac.models.compute.user_code import named_code, own_files
from marius_oac.models.gnn.step import EncodedStep
from marius_oac.models.link_prediction.step import LinkPredictionStep, relation_width
from marius_oac.runs.arithmetic import Sample
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.task import Components, Schedule
from marius_oac.runtime.files.scratch import scratch_folder
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.tasks.graph import TaskOnGraph, entity_layout, order_fingerprint
from marius_oac.tasks.link_prediction import build, sample
from marius_oac.tasks.link_prediction.memory import plan_memory

BUCKETS = "buckets"
"""The folder of a run that holds its edges in a partition ordering."""


class GraphTask(TaskOnGraph):
    """Training and evaluating the embeddings of one graph."""

    config: Config

    def __init__(self, config: Config, graph: Graph):
        self.config, self.graph = config, graph
        self._evaluator: Evaluator | None = None

    @property
    def fingerprint(self) -> str:
        """Digests of the graph, of the nodes' features and of the recorded order."""
        others = (self.encoder.data if self.encoder else {}) | order_fingerprint(self.config.pipeline.order)
        return identity.joined(self.graph.fingerprint, others)

    @cached_property
    def encoder(self) -> GraphEncoder | None:
        """The graph encoder; None: the entities' rows are scored themselves."""
        return build.make_graph_encoder(self.config, self.graph)

    @cached_property
    def planner(self) -> EdgePlanner:
        """Plans batches of shuffled edges; checks edges and configuration."""
        return build.make_planner(self.config, self.graph, self.encoder)

    @cached_property
    def _schedule(self) -> EdgePlanner | BucketSchedule:
        """Knows how many batches each epoch has."""
        shuffled = self.config.training.ordering.kind == "shuffle"
        return self.planner if shuffled else build.make_schedule(self.config, self.graph)

    @cached_property
    def schedule(self) -> Schedule:
        """Epochs over all training edges."""
        return Schedule(self._schedule.epoch_ends(self.config.training.epochs))

    def check(self) -> None:
        """Raises InputError if the evaluation or the recorded order doesn't fit the graph."""
        check_evaluation(self.config, self.graph)
        self._check_order()

    def run_files(self) -> Mapping[str, str]:
        """The user's own code."""
        return own_files(named_code(self.config))

    def plan_memory(self, folder: Path, held: int | None = None) -> MemoryPlan:
        """See `Task.plan_memory`."""
        return plan_memory(self.config, self.graph, folder, held, self.encoder)

    def _planner(self, stack: ExitStack) -> GraphPlanner:
        if not isinstance(self._schedule, BucketSchedule):
            return self.planner
        # Without a run, as in a measurement, the sorted edges are removed when the session ends.
        folder = self.folder or stack.enter_context(scratch_folder())
        return build.make_bucket_planner(self.config, self.graph, self._schedule, folder / BUCKETS)

    def make_step(self, device: torch.device, threads: int, update: Update) -> EncodedStep | LinkPredictionStep:
        """See `Task.make_step`."""
        if self.encoder:
            return build.make_encoded_step(self.config, self.graph, self.encoder, device, threads, update)
        return build.make_step(self.config, self.graph, device, threads, update)

    def sample(self, device: torch.device, threads: int) -> Sample:
        """See `Task.sample`."""
        relations = build.num_model_relations(self.config, self.graph)
        return sample.links(self.config, relations, self.encoder, device, threads)

    def has(self, split: Split) -> bool:
        """Whether the split has edges."""
        return self.graph.num_edges[split] > 0

    @property
    def validates_on_a_sample(self) -> bool:
        """Whether `evaluation.max_edges` is less than the edges of `valid`."""
        return is_sampled(self.config, self.graph)

    def evaluate(
        self, parts: Components, split: Split, whole: bool = True, among: Sharing = UNSHARED
    ) -> dict[str, float]:
        """Ranks the edges of a split, or, unless `whole`, at most `evaluation.max_edges` of `valid`."""
        if self.encoder is None:
            return self._evaluate(parts.readers[0], parts, split, whole, among)
        with self.encoder.encoded(parts, self.folder, self.config.evaluation.memory << 20, among) as entities:
            return self._evaluate(EntityReader.of_array(entities), parts, split, whole, among)

    def _evaluate(
        self, entities: EntityReader, parts: Components, split: Split, whole: bool, among: Sharing
    ) -> dict[str, float]:
        """Ranks the edges of a split with the entities' embeddings from `entities`."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.config, self.graph)
        relations = parts.step.dense_state().get(RELATIONS)
        values = None if relations is None else relations[:, : relation_width(self.config)]
        scorer = LinkScorer(self.config.model, entities, values, parts.device)
        return self._evaluator.evaluate(scorer, split, whole, among)

    def summary(self) -> dict[str, Any]:
        """With a partition ordering, what an epoch should move between disk and buffer (`orderings.epoch_io`)."""
        ordering = self.config.training.ordering
        if ordering.kind == "shuffle":
            return {}
        io = epoch_io(ordering, self.graph.num_nodes, entity_layout(self.config).row_bytes)
        return {f"ordering.{name}_per_epoch": value for name, value in asdict(io).items()}
