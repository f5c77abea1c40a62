"""A trained node classification, opened from its run: evaluate it, ask it for a node's class, export its scores."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np

from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph, open_or_prepare
from marius_oac.data.graphs.labels import read_labels
from marius_oac.data.prepare.splits import Split, check_split
from marius_oac.errors import CheckpointError, InputError
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.predict import Prediction
from marius_oac.models.heads.classes import class_metrics
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runs.folder.user_code import kept_code
from marius_oac.runs.session import num_threads, reading_device
from marius_oac.runtime.files.untrusted import parse_json
from marius_oac.storage.disk.saved_pages import PagedArray
from marius_oac.tasks.node_classification.task import CLASSES, LABELS, make_classes_encoder


class TrainedClassifier:
    """A checkpoint of a run with its graph.

    Attributes:
        classes: their names, in the order of the scores.
    """

    def __init__(self, folder: RunFolder, graph: Graph, checkpoint: Checkpoint):
        self.path, self.config, self.graph, self.checkpoint = folder.path, folder.config, graph, checkpoint
        self._folder = folder
        self.classes = _read_classes(folder)

    @classmethod
    def open(
        cls,
        path: str | Path,
        checkpoint: str | None = None,
        *,
        data_path: str | Path | None = None,
        trust: bool = False,
    ) -> TrainedClassifier:
        """Opens a run's result; `checkpoint` and `data_path` as in `TrainedModel.open`.

        Raises:
            CheckpointError: no run or no such checkpoint, a damaged one, or another graph at the run's `data.path`.
        """
        folder = RunFolder.open(path)
        config = folder.config
        if not isinstance(config, NodeClassificationConfig):
            raise InputError("was not trained to tell classes of nodes", path)
        folder.config = RunPlaces(folder, data_path).config()
        config = folder.config = kept_code(folder, trust)
        graph = open_or_prepare(config.data.path)
        folder.check_data(graph.fingerprint, config)
        return cls(folder, graph, folder.checkpoint(checkpoint))

    @cached_property
    def scores(self) -> np.ndarray:
        """float32 [N, classes], before the softmax; mapped."""
        encoder = make_classes_encoder(self.config, self.graph, len(self.classes))
        self._folder.check_data(identity.joined(self.graph.fingerprint, encoder.data), self.config)
        device, threads = reading_device(self.config.device), num_threads(self.config)
        memory = self.config.evaluation.memory << 20
        return encoder.encoded_at(self.checkpoint, self.embeddings(), threads, device, memory)

    def embeddings(self) -> np.ndarray | PagedArray | None:
        """float32 [N, D], the nodes' own rows; None where they have none."""
        width = self.config.row_dimension
        return self.checkpoint.values(ENTITIES, self.graph.num_nodes, width) if width else None

    def evaluate(self, split: Split = "test", overrides: Iterable[str] = ()) -> Metrics:
        """Accuracy, log loss and macro F1 over a split's nodes; `overrides` are `key=value` changes of `threads`."""
        check_split(split)
        for item in overrides:
            if not item.startswith("threads="):
                raise InputError("only `threads` may change here", f"--set {item}")
        labels = read_labels(Path(self.config.data.labels), self.graph)
        self._folder.check_data(identity.joined(self.graph.fingerprint, {LABELS: labels.fingerprint}), self.config)
        if not len(labels.nodes[split]):
            raise InputError(f"no node is labelled for {split}", self.config.data.labels)
        self.config = self.config.replace(*overrides)
        values = class_metrics(self.scores[labels.nodes[split]], labels.classes[split])
        return Metrics(f"{self.path}, checkpoint {self.checkpoint.name}, {split}", values)

    def predict(self, node: str, top: int = 10) -> list[Prediction]:
        """The likeliest classes of a node with their probabilities, best first.

        Raises:
            InputError: an unknown name, or `top` below 1.
        """
        if top < 1:
            raise InputError(f"top must be at least 1, not {top}", "predict")
        place = self.graph.node_ids([node])[0]
        scores = np.array(self.scores[place], np.float64)
        shares = np.exp(scores - scores.max())
        order = np.argsort(-shares, kind="stable")[:top]
        return [Prediction(self.classes[one], float(shares[one] / shares.sum())) for one in order]


def _read_classes(folder: RunFolder) -> list[str]:
    return parse_json(folder.read_file(CLASSES), folder.path / CLASSES, list[str], CheckpointError)
