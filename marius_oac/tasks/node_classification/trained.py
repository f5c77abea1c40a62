"""A trained node classification, opened from a run's folder, to be evaluated, queried or exported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.labels import read_labels
from marius_oac.errors import CheckpointError, InputError
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.own_metrics import admit_metrics, class_metrics_of
from marius_oac.evaluation.predict import Prediction
from marius_oac.evaluation.quality import Quality, plane
from marius_oac.runs.export import Names
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runtime.files.untrusted import parse_json
from marius_oac.storage.snapshots import RowArray
from marius_oac.tasks.node_classification.task import CLASSES, LABELS, make_classes_encoder, measured
from marius_oac.tasks.trained import EMBEDDINGS, Exported, Question, TrainedOnGraph
from marius_oac.types import present

SCORES = "scores"
"""The table of the nodes' scores in an export."""


class TrainedClassifier(TrainedOnGraph):
    """A trained node classification: a checkpoint of a run with its graph.

    Attributes:
        classes: their names, in the order of the scores.
    """

    task = "node_classification"
    config: NodeClassificationConfig

    def __init__(self, folder: RunFolder, checkpoint: str | None):
        super().__init__(folder, checkpoint)
        text = folder.read_file(CLASSES)
        self.classes: list[str] = parse_json(text, folder.path / CLASSES, list[str], CheckpointError)

    @cached_property
    def scores(self) -> np.ndarray:
        """Scores before the softmax, float32 [N, classes], mapped; computed when first asked for."""
        return self._encoded(make_classes_encoder(self.config, self.graph, len(self.classes)))

    @staticmethod
    def understands(question: Question) -> bool:
        """See `TrainedRun.understands`."""
        return not question.data and bool(question.node)

    def answer(self, question: Question) -> list[Prediction]:
        """See `predict`."""
        return self.predict(present(question.node), top=question.top)

    @staticmethod
    def row_names(config: NodeClassificationConfig, graph: Graph) -> dict[str, Names]:
        """See `TrainedOnGraph.row_names`."""
        return {ENTITIES: graph.node_names}

    def exported(self) -> Exported:
        """See `TrainedOnGraph.exported`."""
        tables, own = {SCORES: cast(RowArray, self.scores)}, self.embeddings()
        if own is not None:
            tables[EMBEDDINGS] = own
        return Exported(tables, dict.fromkeys(tables, self.graph.node_names), {})

    def evaluate(self, split: str | Sequence[str] = "test", overrides: Iterable[str] = ()) -> Metrics:
        """Evaluates accuracy, log loss and macro F1 over a split's nodes; `overrides` are `key=value` changes of
        `threads` and `evaluation.metrics`."""
        split = self._split(split)
        for item in overrides:
            if not item.startswith(("threads=", "evaluation.metrics=")):
                raise InputError("only `threads` and `evaluation.metrics` may change here", f"--set {item}")
        labels = read_labels(Path(self.config.data.labels), self.graph)
        self._folder.check_data(identity.joined(self.graph.fingerprint, {LABELS: labels.fingerprint}), self.config)
        if not len(labels.nodes[split]):
            raise InputError(f"no node is labelled for {split}", self.config.data.labels)
        before, self.config = self.config, self.config.replace(*overrides)
        admit_metrics(self.config.evaluation.metrics, before.evaluation.metrics)
        own = class_metrics_of(self.config.evaluation.metrics, len(self.classes))
        values = measured(self.scores[labels.nodes[split]], labels.classes[split], own)
        return Metrics(self.title(split), values)

    def quality(self) -> Quality:
        """A plane of the nodes' scores of classes; see `TrainedRun.quality`."""
        return Quality("", 0, plane=plane(cast(RowArray, self.scores), self.config.seed))

    def predict(self, node: str, top: int = 10) -> list[Prediction]:
        """Returns the likeliest classes of a node with their probabilities, best first.

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
