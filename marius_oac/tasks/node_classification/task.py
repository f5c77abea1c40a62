"""Node classification, as a task of the training loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_oac.batches import NodeBatch
from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.data.batches.nodes import NodePlanner
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.labels import Labels, read_labels
from marius_oac.data.splits import Split
from marius_oac.errors import InputError
from marius_oac.evaluation.own_metrics import Metric, class_metrics_of
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.models.compute.update import Update
from marius_oac.models.compute.user_code import named_code, own_files
from marius_oac.models.gnn.step import EncodedStep
from marius_oac.models.heads.classes import ClassesHead, class_metrics
from marius_oac.runs.arithmetic import Sample, picked
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.task import Components, Schedule
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.tasks.encoder.sample import SEEDS, encoded, rows_of
from marius_oac.tasks.graph import TaskOnGraph, edges_in_memory, order_fingerprint
from marius_oac.tasks.node_classification.memory import plan_memory

LABELS = "data.labels"
CLASSES = "classes.json"
"""The file of a run that names the classes, in the order of their scores."""


def make_classes_encoder(config: NodeClassificationConfig, graph: Graph, classes: int) -> GraphEncoder:
    """Makes the encoder, whose outputs are the scores of the classes."""
    section = config.encoder.resolved(config.model.dimension, classes)
    return GraphEncoder(section, graph, config.seed, classes, edges_in_memory)


def measured(scores: np.ndarray, classes: np.ndarray, own: Mapping[str, Metric]) -> dict[str, float]:
    """Returns `class_metrics` of scores, float32 [n, classes], and classes, int64 [n], and the user's metrics."""
    return {**class_metrics(scores, classes), **{name: metric(classes, scores) for name, metric in own.items()}}


class NodeClassificationTask(TaskOnGraph):
    """Training and evaluating an encoder that classifies the nodes of a graph."""

    config: NodeClassificationConfig

    def __init__(self, config: NodeClassificationConfig, graph: Graph):
        self.config, self.graph = config, graph
        self.labels: Labels = read_labels(Path(config.data.labels), graph)

    @property
    def fingerprint(self) -> str:
        """Digests of the graph, its labels, the nodes' features and the recorded order."""
        others = {LABELS: self.labels.fingerprint, **self.encoder.data}
        others |= order_fingerprint(self.config.pipeline.order)
        return identity.joined(self.graph.fingerprint, others)

    def run_files(self) -> Mapping[str, str]:
        """The names of the classes, and the user's own code."""
        return {CLASSES: json.dumps(self.labels.names, indent=1), **own_files(named_code(self.config))}

    @cached_property
    def encoder(self) -> GraphEncoder:
        """The graph encoder, which computes a score of each class."""
        return make_classes_encoder(self.config, self.graph, len(self.labels.names))

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The user's metrics by name."""
        return class_metrics_of(self.config.evaluation.metrics, len(self.labels.names))

    @cached_property
    def planner(self) -> NodePlanner:
        """Plans batches of shuffled nodes."""
        nodes, classes = self.labels.nodes["train"], self.labels.classes["train"]
        batch_size, seed = self.config.training.batch_size, self.config.seed
        return NodePlanner(nodes, classes, self.graph.num_nodes, batch_size, seed, self.encoder.neighborhoods)

    @cached_property
    def schedule(self) -> Schedule:
        """Epochs over all nodes labelled for training."""
        return Schedule(self.planner.epoch_ends(self.config.training.epochs))

    def check(self) -> None:
        """Raises InputError if there are no nodes to validate on, too few batches in a recorded order, or mistakes in
        the user's metrics."""
        if self.config.training.early_stopping and not self.has("valid"):
            raise InputError("needs nodes to validate on, and there are none", "training.early_stopping")
        self._check_order()
        _ = self.metrics

    def plan_memory(self, folder: Path, held: int | None = None) -> MemoryPlan:
        """See `Task.plan_memory`."""
        return plan_memory(self.config, self.graph, self.planner, self.encoder, folder, held)

    def make_step(self, device: torch.device, threads: int, update: Update) -> EncodedStep:
        """See `Task.make_step`."""
        return self.encoder.step(ClassesHead(device, threads), update, device, self.config.compute)

    def sample(self, device: torch.device, threads: int) -> Sample:
        """See `Task.sample`."""
        step = self.make_step(device, threads, Update.here(self.config.training.optimizer))
        data = encoded(self.encoder, NodeBatch(labels=picked(SEEDS, len(self.labels.names), 3)))
        return Sample(step, data, rows_of(self.config))

    @property
    def validates_on_a_sample(self) -> bool:
        """False: all nodes are encoded anyway."""
        return False

    def summary(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def has(self, split: Split) -> bool:
        """Whether nodes are labelled for the split."""
        return len(self.labels.nodes[split]) > 0

    def evaluate(
        self, parts: Components, split: Split, whole: bool = True, among: Sharing = UNSHARED
    ) -> dict[str, float]:
        """Encodes all nodes; returns metrics over those of the split, on the leading process."""
        with self.encoder.encoded(parts, self.folder, self.config.evaluation.memory << 20, among) as scores:
            if among.rank:
                return {}
            return measured(scores[self.labels.nodes[split]], self.labels.classes[split], self.metrics)
