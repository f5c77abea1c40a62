"""A trained link prediction, opened from a run's folder, to be evaluated, queried or exported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.splits import Split
from marius_oac.errors import CheckpointError, InputError
from marius_oac.evaluation.evaluator import Evaluator
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.nearest import Neighbor, nearest_rows
from marius_oac.evaluation.own_metrics import admit_metrics
from marius_oac.evaluation.predict import Prediction, predict
from marius_oac.evaluation.quality import Quality
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.models.compute.dense_moments import RELATIONS
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.models.link_prediction.step import relation_width
from marius_oac.runs.export import Names
from marius_oac.runs.session import num_threads
from marius_oac.storage.snapshots import RowArray
from marius_oac.tasks.link_prediction.build import make_graph_encoder, num_model_relations
from marius_oac.tasks.trained import EMBEDDINGS, Exported, Question, TrainedOnGraph


class TrainedModel(TrainedOnGraph):
    """A trained link prediction: a checkpoint of a run with its graph."""

    task = "graph"
    config: Config

    @cached_property
    def entities(self) -> RowArray:
        """What scores are computed from, float32 [N, model.dimension], mapped: the entities' rows, or what the encoder
        makes of them, which is computed when first asked for."""
        encoder = make_graph_encoder(self.config, self.graph)
        if encoder:
            return self._encoded(encoder)
        return self.checkpoint.values(ENTITIES, self.graph.num_nodes, self.config.row_dimension)

    @cached_property
    def scorer(self) -> LinkScorer:
        """Computes scores with the model."""
        relations = self._relations()
        if relations is not None:
            relations = relations.to(self._device)
        return LinkScorer(self.config.model, EntityReader.of_array(self.entities), relations, self._device)

    def _relations(self) -> torch.Tensor | None:
        """float32 [R, Dr] on the CPU. Raises CheckpointError if the checkpoint has others than the model needs."""
        count, width = num_model_relations(self.config, self.graph), relation_width(self.config)
        if not (count and width):
            return None
        found = self.checkpoint.dense().get(RELATIONS)
        if found is None or found.dtype != torch.float32 or found.dim() != 2 or len(found) != count:
            what = "none" if found is None else f"{found.dtype} {list(found.shape)}"
            raise CheckpointError(f"has relations {what}; float32 [{count}, ...] are needed", self.checkpoint.path)
        if found.shape[1] < width:
            raise CheckpointError(f"has relations of {found.shape[1]} floats, not {width}", self.checkpoint.path)
        return found[:, :width]

    @staticmethod
    def understands(question: Question) -> bool:
        """See `TrainedRun.understands`."""
        return not question.data and not question.node

    def answer(self, question: Question) -> list[Prediction]:
        """See `predict`."""
        asked = question.head, question.relation, question.tail
        return self.predict(*asked, top=question.top, filtered=question.filtered)

    def evaluate(self, split: str | Sequence[str] = "test", overrides: Iterable[str] = ()) -> Metrics:
        """Evaluates by ranking the edges of a split; `overrides` are `key=value` changes of the `evaluation` section,
        where `max_edges` asks for a sample of `valid`."""
        split = self._split(split)
        overrides = list(overrides)
        for item in overrides:
            if not item.startswith(("evaluation.", "threads=", "seed=")):
                raise InputError("only keys of `evaluation`, `threads` and `seed` may change here", f"--set {item}")
        config = self.config.replace(*overrides)
        admit_metrics(config.evaluation.metrics, self.config.evaluation.metrics)
        whole = not any(item.startswith("evaluation.max_edges=") for item in overrides)
        with torch_threads(num_threads(config)):
            values = Evaluator(config, self.graph).evaluate(self.scorer, split, whole)
        return Metrics(self.title(split), values)

    def quality(self) -> Quality:
        """MRR by relation and degree on a sample of edges, and a plane of the entities; see `Evaluator.quality`."""
        split: Split = "test" if self.graph.num_edges["test"] else "valid"
        with torch_threads(num_threads(self.config)):
            return Evaluator(self.config, self.graph).quality(self.scorer, split, self.entities)

    def predict(
        self,
        head: str | None = None,
        relation: str | None = None,
        tail: str | None = None,
        top: int = 10,
        filtered: bool = False,
    ) -> list[Prediction]:
        """Returns the entities that best complete an edge, best first; see `evaluation.predict.predict`."""
        return predict(self.scorer, self.graph, head, relation, tail, top, filtered, self.config.evaluation.memory)

    def nearest(self, name: str, k: int = 10) -> list[Neighbor]:
        """Returns the `k` entities whose embeddings are most similar to that of the entity `name`, which is not among
        them, by cosine similarity: the most similar first, equal ones by id. Takes `evaluation.memory` MiB.

        Raises:
            InputError: there is no entity of that name, or `k` is below 1.
            MariusOacError: an embedding holds NaN or an infinite number.
        """
        if k < 1:
            raise InputError(f"k must be at least 1, not {k}", "nearest")
        (row,) = self.graph.node_ids([name]).tolist()
        rows, similarities = nearest_rows(self.entities, row, k, self.config.evaluation.memory)
        return [Neighbor(*pair) for pair in zip(self.graph.node_names(rows), similarities.tolist(), strict=True)]

    def exported(self) -> Exported:
        """See `TrainedOnGraph.exported`."""
        tables, own, relations = {ENTITIES: self.entities}, self.embeddings(), self.relation_values()
        if self.config.encoder and own is not None:
            tables[EMBEDDINGS] = own
        if relations is not None:
            tables[RELATIONS] = relations.numpy()
        return Exported(tables, self.row_names(self.config, self.graph), {})

    def relation_values(self) -> torch.Tensor | None:
        """Returns the relations, float32 [R, Dr] on the CPU; 2 R rows if they are reciprocal, None if there are
        none."""
        return None if self.scorer.relations is None else self.scorer.relations.cpu()

    @staticmethod
    def row_names(config: Config, graph: Graph) -> dict[str, Names]:
        """See `TrainedOnGraph.row_names`; a reciprocal relation is called like the relation that it reverses, with
        `^-1`."""
        count = graph.num_relations

        def reciprocal(ids: np.ndarray) -> list[str]:
            plain = graph.relation_names(ids % count)
            return [f"{name}^-1" if row >= count else name for row, name in zip(ids, plain, strict=True)]

        relations = reciprocal if config.model.reciprocal else graph.relation_names
        return {ENTITIES: graph.node_names, EMBEDDINGS: graph.node_names, RELATIONS: relations}
