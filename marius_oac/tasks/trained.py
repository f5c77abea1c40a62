"""The results of runs: what the trained models of all tasks have in common."""

from __future__ import annotations

from abc import ABC
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.config.task import TaskConfig
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import open_or_prepare
from marius_oac.errors import InputError
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runs.folder.user_code import kept_code
from marius_oac.runs.session import num_threads, reading_device
from marius_oac.storage.snapshots import RowArray
from marius_oac.tasks.encoder.build import GraphEncoder

_HOW_TO_ASK = {
    "ctr": "was trained on a click log: name the files to predict with --data",
    "graph": "was trained for link prediction: name an entity with --head or --tail",
    "node_classification": "was trained for node classification: name the node to predict with --node",
}


EMBEDDINGS = "embeddings"
"""The nodes' own rows in an export, if an encoder computes what is predicted with from them."""


class TrainedRun(ABC):
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
            raise InputError(_HOW_TO_ASK[folder.config.task], path)
        folder.config = RunPlaces(folder, data_path).config()
        folder.config = kept_code(folder, trust)
        return cls(folder, checkpoint)

    def title(self, data: str) -> str:
        """Returns the title of an evaluation on `data`."""
        return f"{self.path}, checkpoint {self.checkpoint.name}, {data}"


class TrainedOnGraph(TrainedRun):
    """A checkpoint of a run on a graph, with the graph."""

    config: Config | NodeClassificationConfig

    def __init__(self, folder: RunFolder, checkpoint: str | None):
        super().__init__(folder, checkpoint)
        self.graph = open_or_prepare(self.config.data.path)
        folder.check_data(self.graph.fingerprint, self.config)
        self.checkpoint = folder.checkpoint(checkpoint)

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
