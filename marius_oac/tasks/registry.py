"""All tasks: to add one, add its entry, and its configuration to `config.task`. What serves every task asks here, and
names none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marius_oac.config.base import BaseConfig
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.config.task import TaskConfig
from marius_oac.data.graphs.graph import open_graph
from marius_oac.data.logs.run_log import RunLog
from marius_oac.models.compute.multiply import Layer
from marius_oac.runs.task import Task
from marius_oac.tasks.ctr.build import largest_layer as of_clicks
from marius_oac.tasks.ctr.task import resume_ctr_task, start_ctr_task
from marius_oac.tasks.ctr.trained import TrainedClickModel
from marius_oac.tasks.encoder.build import largest_layer as of_encoder
from marius_oac.tasks.link_prediction.build import largest_layer as of_links
from marius_oac.tasks.link_prediction.build import settled_on, settled_on_given
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.tasks.link_prediction.trained import TrainedModel
from marius_oac.tasks.node_classification.task import NodeClassificationTask
from marius_oac.tasks.node_classification.trained import TrainedClassifier
from marius_oac.tasks.trained import TrainedRun


class Resume(Protocol):
    """Makes the task of a run that continues, on its `log` if its data can grow, and then on `data`."""

    def __call__(self, config: Any, log: RunLog | None, data: Sequence[str]) -> Task: ...


@dataclass(frozen=True)
class TaskEntry:
    """A task.

    Attributes:
        config: the class of its configurations.
        start: makes the task of a new run, with its data; also returns remarks for the user. Defaults that depend on
            the data are filled in.
        resume: makes that of a run that continues.
        trained: the class of a run's result.
        default_name: of a run's folder.
        decided: fills in the metric by which runs are compared, where that depends on the data.
        largest_layer: the sizes of a step's largest products; None: it has none that `compute.products` is about.
    """

    config: type[BaseConfig]
    start: Callable[[Any], tuple[Task, Sequence[str]]]
    resume: Resume
    trained: type[TrainedRun]
    default_name: Callable[[Any], str]
    decided: Callable[[Any], Any]
    largest_layer: Callable[[Any], Layer | None]


def _start_links(config: Config) -> tuple[Task, Sequence[str]]:
    graph = open_graph(config.data.path)
    config, notes = settled_on(config, graph)
    return GraphTask(config, graph), notes


def _decided(config: Config) -> Config:
    return settled_on_given(config, open_graph(config.data.path))


def _as_it_is(config: Any) -> Any:
    return config


def _start_classes(config: NodeClassificationConfig) -> tuple[Task, Sequence[str]]:
    return NodeClassificationTask(config, open_graph(config.data.path)), ()


def _again(start: Callable[[Any], tuple[Task, Sequence[str]]]) -> Resume:
    return lambda config, log, data: start(config)[0]


def _of_graph(config: Config | NodeClassificationConfig) -> str:
    return Path(os.path.realpath(config.data.path)).name


def _of_network(config: CtrConfig) -> str:
    return Path(config.model.network.partition(":")[0]).stem


def _of_classes(config: NodeClassificationConfig) -> Layer:
    return of_encoder(config.encoder, config.model.dimension, config.training.batch_size)


TASKS = {
    "graph": TaskEntry(Config, _start_links, _again(_start_links), TrainedModel, _of_graph, _decided, of_links),
    "node_classification": TaskEntry(
        NodeClassificationConfig, _start_classes, _again(_start_classes), TrainedClassifier, _of_graph, _as_it_is,
        _of_classes,
    ),
    "ctr": TaskEntry(CtrConfig, start_ctr_task, resume_ctr_task, TrainedClickModel, _of_network, _as_it_is, of_clicks),
}  # fmt: skip
"""By the `task` of a configuration."""


def entry_of(config: TaskConfig) -> TaskEntry:
    """Returns the entry of a configuration's task."""
    return TASKS[config.task]
