"""A trained model, opened from a run's folder: evaluate it, ask it, export it, compare it with another."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import ENTITIES
from marius_oac.data.graphs import identity
from marius_oac.data.graphs.graph import Graph, open_or_prepare
from marius_oac.data.prepare.splits import Split, check_split
from marius_oac.errors import CheckpointError, InputError
from marius_oac.evaluation.evaluator import Evaluator
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.predict import Prediction, predict
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.models.link_prediction.step import RELATIONS, relation_width
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.export import Names
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runs.folder.user_code import kept_code
from marius_oac.runs.session import num_threads, reading_device
from marius_oac.storage.disk.saved_pages import PagedArray
from marius_oac.tasks.link_prediction.build import make_graph_encoder, num_model_relations

EMBEDDINGS = "embeddings"
"""The entities' own rows in an export, where an encoder makes the entities of them."""


class TrainedModel:
    """A checkpoint of a run with its graph."""

    def __init__(self, folder: RunFolder, graph: Graph, checkpoint: Checkpoint):
        self.path, self.config, self.graph, self.checkpoint = folder.path, folder.config, graph, checkpoint
        self._folder, self._device = folder, reading_device(self.config.device)

    @classmethod
    def open(
        cls,
        path: str | Path,
        checkpoint: str | None = None,
        *,
        data_path: str | Path | None = None,
        trust: bool = False,
    ) -> TrainedModel:
        """Opens a run's result: the checkpoint that its summary is about (the newest, or with early stopping the best),
        the newest of a run that has not ended, or the named one, or the "best" one; with the graph at `data_path`, or
        where it is found (`folder.places`).

        Raises:
            CheckpointError: no run or no such checkpoint, a damaged one, or another graph at the run's `data.path`.
            InputError: the run has code of somebody's own that this user has not trained with, without `trust`.
        """
        folder = RunFolder.open(path)
        if folder.config.task == "ctr":
            raise InputError("was trained on a click log: name the files to predict with --data", path)
        if folder.config.task != "graph":
            raise InputError("was trained to tell classes: name the node to predict with --node", path)
        folder.config = RunPlaces(folder, data_path).config()
        folder.config = kept_code(folder, trust)
        graph = open_or_prepare(folder.config.data.path)
        folder.check_data(graph.fingerprint, folder.config)
        return cls(folder, graph, folder.checkpoint(checkpoint))

    @cached_property
    def entities(self) -> np.ndarray | PagedArray:
        """float32 [N, model.dimension], what scores are made of: the entities' rows, or what the encoder makes of them,
        which takes a while when first asked for. Stays on disk, mapped."""
        if self.config.encoder is None:
            return self.embeddings()
        encoder = make_graph_encoder(self.config, self.graph)
        self._folder.check_data(identity.joined(self.graph.fingerprint, encoder.data), self.config)
        threads, memory = num_threads(self.config), self.config.evaluation.memory << 20
        return encoder.encoded_at(self.checkpoint, self.embeddings(), threads, self._device, memory)

    @cached_property
    def scorer(self) -> LinkScorer:
        """The model as a function from queries to scores."""
        relations = self._relations()
        if relations is not None:
            relations = relations.to(self._device)
        return LinkScorer(self.config.model, EntityReader.of_array(self.entities), relations, self._device)

    def _relations(self) -> torch.Tensor | None:
        """float32 [R, Dr] on the CPU. Raises CheckpointError where the checkpoint has others than the model needs."""
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

    def embeddings(self) -> np.ndarray | PagedArray | None:
        """float32 [N, D], the entities' rows as they were trained; None where an encoder needs none."""
        width = self.config.row_dimension
        return self.checkpoint.values(ENTITIES, self.graph.num_nodes, width) if width else None

    def evaluate(self, split: Split = "test", overrides: Iterable[str] = ()) -> Metrics:
        """Ranks the edges of a split; `overrides` are `key=value` changes of the `evaluation` section, where
        `max_edges` asks for a sample of `valid`."""
        check_split(split)
        overrides = list(overrides)
        for item in overrides:
            if not item.startswith(("evaluation.", "threads=", "seed=")):
                raise InputError("only keys of `evaluation`, `threads` and `seed` may change here", f"--set {item}")
        config = self.config.replace(*overrides)
        whole = not any(item.startswith("evaluation.max_edges=") for item in overrides)
        with torch_threads(num_threads(config)):
            values = Evaluator(config, self.graph).evaluate(self.scorer, split, whole)
        return Metrics(f"{self.path}, checkpoint {self.checkpoint.name}, {split}", values)

    def predict(
        self,
        head: str | None = None,
        relation: str | None = None,
        tail: str | None = None,
        top: int = 10,
        filtered: bool = False,
    ) -> list[Prediction]:
        """The entities that best complete an edge, best first; see `predict.predict`."""
        return predict(self.scorer, self.graph, head, relation, tail, top, filtered, self.config.evaluation.memory)

    def relation_values(self) -> torch.Tensor | None:
        """float32 [R, Dr] on the CPU; 2 R rows with reciprocal relations."""
        return None if self.scorer.relations is None else self.scorer.relations.cpu()


def row_names(config: Config, graph: Graph) -> dict[str, Names]:
    """Names of the tables' rows; a reciprocal relation is called like the relation that it reverses, with `^-1`."""
    count = graph.num_relations

    def reciprocal(ids: np.ndarray) -> list[str]:
        plain = graph.relation_names(ids % count)
        return [f"{name}^-1" if row >= count else name for row, name in zip(ids, plain, strict=True)]

    nodes = graph.node_names
    return {
        ENTITIES: nodes,
        EMBEDDINGS: nodes,
        RELATIONS: reciprocal if config.model.reciprocal else graph.relation_names,
    }
