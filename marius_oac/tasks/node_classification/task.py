"""Node classification, as a task of the training loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import torch

from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.data.batches.nodes import NodePlanner
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.labels import Labels, read_labels
from marius_oac.errors import InputError
from marius_oac.models.gnn.step import EncodedStep
from marius_oac.models.heads.classes import ClassesHead, class_metrics
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.stores import Tables
from marius_oac.runs.task import Components, Schedule, Task
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.tasks.encoder.build import GraphEncoder, own_layers
from marius_oac.tasks.link_prediction.build import (
    edges_in_memory,
    entity_initial,
    entity_layout,
    in_order,
    order_fingerprint,
    read_order,
)
from marius_oac.tasks.node_classification.memory import plan_memory

LABELS = "data.labels"
CLASSES = "classes.json"
"""The file of a run that names the classes, in the order of their scores."""


def make_classes_encoder(config: NodeClassificationConfig, graph: Graph, classes: int) -> GraphEncoder:
    """It makes a score of each class."""
    section = config.encoder.resolved(config.model.dimension, classes)
    return GraphEncoder(section, graph, config.seed, classes, edges_in_memory)


class NodeClassificationTask(Task):
    """Training and evaluating an encoder that tells the classes of a graph's nodes."""

    decisive_metric = "accuracy"

    def __init__(self, config: NodeClassificationConfig, graph: Graph):
        self.config, self.graph = config, graph
        self.labels: Labels = read_labels(Path(config.data.labels), graph)

    @property
    def fingerprint(self) -> str:
        """Of the graph, of its labels, and of what else is known of its nodes."""
        others = {LABELS: self.labels.fingerprint, **self.encoder.data}
        others |= order_fingerprint(self.config.pipeline.order)
        return identity.joined(self.graph.fingerprint, others)

    def run_files(self) -> Mapping[str, str]:
        return {CLASSES: json.dumps(self.labels.names, indent=1), **own_layers(self.config.encoder)}

    @cached_property
    def encoder(self) -> GraphEncoder:
        return make_classes_encoder(self.config, self.graph, len(self.labels.names))

    @cached_property
    def planner(self) -> NodePlanner:
        """Of shuffled nodes."""
        nodes, classes = self.labels.nodes["train"], self.labels.classes["train"]
        batch_size, seed = self.config.training.batch_size, self.config.seed
        return NodePlanner(nodes, classes, self.graph.num_nodes, batch_size, seed, self.encoder.neighborhoods)

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule(self.planner.epoch_ends(self.config.training.epochs))

    def check(self) -> None:
        if self.config.training.early_stopping and not self.has("valid"):
            raise InputError("needs nodes to validate on, and there are none", "training.early_stopping")
        needed, order = self.schedule.last, self.config.pipeline.order
        if order not in ("plan", "arrival") and (recorded := len(read_order(order))) < needed:
            raise InputError(f"{recorded:,} batches are recorded, {needed:,} are to be trained", order)

    def plan_memory(self, folder: Path) -> MemoryPlan:
        return plan_memory(self.config, self.graph, self.planner, self.encoder, folder)

    def _all_row_bytes(self) -> int:
        return sum(table.num_rows * entity_layout(self.config).row_bytes for table in self.planner.tables)

    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        rows = {table.name: table.num_rows for table in self.planner.tables}
        layouts = {name: entity_layout(self.config) for name in rows}
        place = Tables(self.config.storage, self.folder, layouts, rows, stack, binding)
        stores = [place.make(name, count, entity_initial(self.config, name)) for name, count in rows.items()]
        step = self.make_step(device, threads)
        stack.callback(step.close)
        return Components(in_order(self.config, self.planner), stores, step, device, place.tier)

    def make_step(self, device: torch.device, threads: int) -> EncodedStep:
        """The step, with the encoder at its initial values."""
        training, section = self.config.training, self.encoder.config
        return EncodedStep(
            self.encoder.make(), ClassesHead(device, threads), section.embeddings, training.optimizer,
            section.optimizer, self.config.seed, device, self.encoder.own,
        )  # fmt: skip

    def has(self, split: str) -> bool:
        return len(self.labels.nodes[split]) > 0

    def evaluate(self, parts: Components, split: str, whole: bool = True) -> dict[str, float]:
        """Metrics over a split's nodes; all nodes are encoded."""
        with self.encoder.encoded(parts, self.folder, self.config.evaluation.memory << 20) as scores:
            return class_metrics(scores[self.labels.nodes[split]], self.labels.classes[split])
