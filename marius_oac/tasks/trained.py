"""The results of runs: what the trained models of all tasks have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.config.task import TaskConfig
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph, open_graph
from marius_oac.data.splits import Split, check_split
from marius_oac.errors import InputError
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.predict import Prediction
from marius_oac.evaluation.quality import Quality
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.export import Names
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runs.folder.user_code import kept_code
from marius_oac.runs.session import num_threads, reading_device
from marius_oac.runtime.closing import Closable
from marius_oac.storage.snapshots import RowArray
from marius_oac.tasks.encoder.build import GraphEncoder

EMBEDDINGS = "embeddings"
"""The nodes' own rows in an export, if an encoder computes what is predicted with from them."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to predict: files of a click log, the classes of a node, or what completes an edge. See `predict_files` and
    `predict` of the trained models."""

    data: Sequence[str] = ()
    out: str | Path | None = None
    node: str | None = None
    head: str | None = None
    relation: str | None = None
    tail: str | None = None
    top: int = 10
    filtered: bool = False


class Exported(NamedTuple):
    """The tables of an export, float32 [rows, width], the names of their rows, and further files, text by name."""

    tables: Mapping[str, RowArray]
    names: Mapping[str, Names]
    texts: Mapping[str, str]


class TrainedRun(Closable):
    """A checkpoint of a run.

    Attributes:
        task: the `task` of the configurations of such runs.
        path: the run's folder.
    """

    task: ClassVar[str]
    config: TaskConfig
    checkpoint: Checkpoint

    def __init__(self, folder: RunFolder, checkpoint: str | None):
        """`folder.config` must have the present paths of its files; `checkpoint` is as in `open`."""
        self._folder, self.path, self.config = folder, folder.path, folder.config

    @classmethod
    def open(
        cls,
        path: str | Path,
        checkpoint: str | None = None,
        *,
        data_path: str | Path | None = None,
        trust: bool = False,
    ) -> Self:
        """Opens a run's result.

        Args:
            path: the run's folder.
            checkpoint: the name of a checkpoint, or "best". None: the one that the run's summary is about (the newest,
                or with early stopping the best); the newest of a run that has not ended.
            data_path: where the data lies now; None: where it is found (`folder.places`).
            trust: run the user's own code that the run has kept, also if this user has not trained with it.

        Raises:
            CheckpointError: no run or no such checkpoint, a damaged one, or other data than the run was trained on.
            InputError: a run of another task, or with code that is not trusted.
        """
        folder = RunFolder.open(path)
        if folder.config.task != cls.task:
            raise InputError(folder.config.how_to_ask, path)
        folder.config = RunPlaces(folder, data_path).config()
        folder.config = kept_code(folder, trust)
        return cls(folder, checkpoint)

    @staticmethod
    @abstractmethod
    def understands(question: Question) -> bool:
        """Returns whether such a model can answer it."""

    @abstractmethod
    def answer(self, question: Question) -> Path | list[Prediction]:
        """Returns predictions, best first, or the file that they were written to."""

    @abstractmethod
    def evaluate(self, data: str | Sequence[str] = "test", /, overrides: Iterable[str] = ()) -> Metrics:
        """Evaluates on a split, or on files where the run was trained on files.

        Raises:
            InputError: there is no such split or file, or an override of `key=value` is not possible.
        """

    @abstractmethod
    def quality(self) -> Quality:
        """Measures parts of the test split, or of valid where there is none: what a report draws. Raises as
        `evaluate`."""

    @classmethod
    @abstractmethod
    def exported_from(cls, path: str | Path, checkpoint: str | None, **opened: Any) -> Exported:
        """Returns what is exported of a run's result; see `open`."""

    @classmethod
    @abstractmethod
    def names_in(cls, folder: RunFolder, checkpoint: Checkpoint, data_path: str | Path | None) -> Mapping[str, Names]:
        """Returns the names of a checkpoint's rows by table; empty if they are in data that are not at `data_path`, or
        where they are looked for if it is None."""

    def title(self, data: str) -> str:
        """Returns the title of an evaluation on `data`."""
        return f"{self.path}, checkpoint {self.checkpoint.name}, {data}"

    def close(self) -> None:
        """Frees what `open` has made."""
        return


class TrainedOnGraph(TrainedRun):
    """A checkpoint of a run on a graph, with the graph."""

    config: Config | NodeClassificationConfig

    def __init__(self, folder: RunFolder, checkpoint: str | None):
        super().__init__(folder, checkpoint)
        self.graph = open_graph(self.config.data.path)
        folder.check_data(self.graph.fingerprint, self.config)
        self.checkpoint = folder.checkpoint(checkpoint)

    @abstractmethod
    def exported(self) -> Exported:
        """Returns what is exported."""

    @classmethod
    def exported_from(cls, path: str | Path, checkpoint: str | None, **opened: Any) -> Exported:
        """See `TrainedRun.exported_from`."""
        return cls.open(path, checkpoint, **opened).exported()

    @staticmethod
    @abstractmethod
    def row_names(config: Any, graph: Graph) -> Mapping[str, Names]:
        """Returns the names of the tables' rows."""

    @classmethod
    def names_in(cls, folder: RunFolder, checkpoint: Checkpoint, data_path: str | Path | None) -> Mapping[str, Names]:
        """See `TrainedRun.names_in`."""
        config: Any = RunPlaces(folder, data_path).config()
        try:
            graph = open_graph(config.data.path)
            folder.check_data(graph.fingerprint, config)
        except InputError:  # bits can be compared without the graph
            if data_path is not None:
                raise
            return {}
        return cls.row_names(config, graph)

    @staticmethod
    def _split(data: str | Sequence[str]) -> Split:
        if isinstance(data, Sequence) and not isinstance(data, str):
            raise InputError("the run was trained on a graph; it is evaluated on its splits", "--data")
        return check_split(data)

    @cached_property
    def _device(self) -> torch.device:
        return reading_device(self.config.device)

    def embeddings(self) -> RowArray | None:
        """Returns the nodes' own rows as they were trained, float32 [N, D]; None if they have none."""
        width = self.config.row_dimension
        return self.checkpoint.values(ENTITIES, self.graph.num_nodes, width) if width else None

    def _encoded(self, encoder: GraphEncoder) -> np.ndarray:
        """What `encoder` makes of all nodes, float32 [N, W], mapped."""
        self._folder.check_data(identity.joined(self.graph.fingerprint, encoder.data), self.config)
        threads, memory = num_threads(self.config), self.config.evaluation.memory << 20
        return encoder.encoded_at(self.checkpoint, self.embeddings(), threads, self._device, memory)
