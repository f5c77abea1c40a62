"""Evaluation as a configuration asks for it: split, candidates, filter; known answers are collected once per split."""

from __future__ import annotations

import numpy as np

from marius_oac.config import Config
from marius_oac.data.filters import KnownAnswers
from marius_oac.data.graph import Graph, Split
from marius_oac.data.splits import SPLITS
from marius_oac.errors import ConfigError
from marius_oac.evaluate import DrawnCandidates, evaluate
from marius_oac.scoring import LinkScorer


def check_evaluation(config: Config, graph: Graph) -> None:
    """Raises ConfigError where the graph can't be evaluated as the configuration asks.

    Candidates are drawn with replacement, so more of them than entities would be possible; but the rank among them
    would mean nothing that ranking against all entities doesn't say better.
    """
    candidates = config.evaluation.candidates
    if candidates != "all" and candidates > graph.num_nodes:
        raise ConfigError(
            f"{candidates:,} candidates, but the graph has {graph.num_nodes:,} nodes; use all", "evaluation.candidates"
        )
    if config.training.early_stopping and not graph.num_edges["valid"]:
        raise ConfigError("needs edges to validate on, and the graph has none", "training.early_stopping")


class Evaluator:
    """Evaluates models on the splits of one graph. Raises what `check_evaluation` raises."""

    def __init__(self, config: Config, graph: Graph):
        check_evaluation(config, graph)
        self._config, self._graph = config, graph
        self._known: dict[Split, KnownAnswers] = {}

    def edges(self, split: Split) -> np.ndarray:
        """The edges to rank: all of the split, or of validation an evenly spread `evaluation.max_edges`."""
        edges = self._graph.edges(split)
        most = self._config.evaluation.max_edges
        if split == "valid" and 0 < most < len(edges):
            return edges[np.arange(most) * len(edges) // most]
        return edges

    def evaluate(self, scorer: LinkScorer, split: Split) -> dict[str, float]:
        """Metrics such as `filtered.mrr`; see `evaluate.Evaluation.as_dict`."""
        config, edges = self._config.evaluation, self.edges(split)
        drawn = None
        if config.candidates != "all":
            train = self._graph.edges("train")
            drawn = DrawnCandidates(config.candidates, train, self._config.seed, config.degree_fraction)
        known = self._known_answers(split, edges) if config.filtered else None
        return evaluate(scorer, edges, known, drawn, config.memory).as_dict()

    def _known_answers(self, split: Split, edges: np.ndarray) -> KnownAnswers:
        if split not in self._known:
            relations = 0 if self._config.model.decoder == "dot" else self._graph.num_relations
            self._known[split] = KnownAnswers.build((self._graph.edges(name) for name in SPLITS), edges, relations)
        return self._known[split]
