"""Evaluates models as configured: split, candidates, filter. Known answers are collected once."""

from __future__ import annotations

import numpy as np

from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.given import MRR, GivenNegatives
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.splits import SPLITS, Split
from marius_oac.errors import ConfigError, InputError
from marius_oac.evaluation import quality
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.given import evaluate_given, given_ranks
from marius_oac.evaluation.link_prediction import DrawnCandidates, evaluate, ranks
from marius_oac.evaluation.own_metrics import Metric, ranking_metrics
from marius_oac.evaluation.quality import Quality
from marius_oac.evaluation.scores import LinkScorer
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.kernels.cpu.permutation import Permutation
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.storage.snapshots import RowArray
from marius_oac.types import Side


def check_evaluation(config: Config, graph: Graph) -> dict[str, Metric]:
    """Returns the user's metrics by name. Raises ConfigError if the graph can't be evaluated as configured.

    Candidates are drawn with replacement, so there could be more of them than entities. But then ranking against all
    entities is cheaper and more exact.
    """
    candidates = config.evaluation.candidates
    if candidates == "given":
        _check_given(config, graph)
    elif candidates != "all" and candidates > graph.num_nodes:
        raise ConfigError(
            f"{candidates:,} candidates, but the graph has {graph.num_nodes:,} nodes; use all", "evaluation.candidates"
        )
    if config.training.early_stopping and not graph.num_edges["valid"]:
        raise ConfigError("needs edges to validate on, and the graph has none", "training.early_stopping")
    return ranking_metrics(config.evaluation.metrics)


def _check_given(config: Config, graph: Graph) -> None:
    metric, decisive = graph.metric, config.evaluation.decisive
    if metric is None:
        raise ConfigError("given, but the graph has no negatives of its own", "evaluation.candidates")
    if decisive and (decisive == MRR) != (metric == MRR):
        raise ConfigError(f"{decisive}, but the graph's negatives are for {metric}", "evaluation.decisive")
    if metric != MRR and config.evaluation.metrics:
        raise ConfigError(f"are functions of ranks, and {metric} has none", "evaluation.metrics")


def is_sampled(config: Config, graph: Graph) -> bool:
    """Whether evaluations between epochs use only a sample of the validation edges."""
    return 0 < config.evaluation.max_edges < graph.num_edges["valid"]


class Evaluator:
    """Evaluates models on the splits of one graph. Raises ConfigError as `check_evaluation`."""

    def __init__(self, config: Config, graph: Graph):
        self._own = check_evaluation(config, graph)
        self._config, self._graph = config, graph
        self._known: KnownAnswers | None = None

    def edges(self, split: Split, whole: bool = True) -> np.ndarray:
        """The edges to rank, int32 or int64 [E, 2 or 3]: all of the split; if not `whole`, of validation a sample of
        `evaluation.max_edges`, drawn by the seed."""
        edges, places = self._graph.edges(split), self._places(split, whole)
        return edges if places is None else edges[places]

    def _places(self, split: Split, whole: bool) -> np.ndarray | None:
        """Of the edges to rank in the split, int64 [E], ascending; None: all."""
        if whole or split != "valid" or not is_sampled(self._config, self._graph):
            return None
        places = Permutation(self._graph.num_edges[split], self._config.seed, 0, "validation")
        return np.sort(places.permute(np.arange(self._config.evaluation.max_edges)))

    def evaluate(
        self, scorer: LinkScorer, split: Split, whole: bool = True, among: Sharing = UNSHARED
    ) -> dict[str, float]:
        """Metrics such as `filtered.mrr`, or with negatives of the graph `mrr`; see `edges`, `Evaluation.as_dict` and
        `evaluate_given`. Of several processes only the leading one gets them. Raises as `evaluate`."""
        config, edges = self._config.evaluation, self.edges(split, whole)
        if config.candidates == "given":
            negatives, places = self._negatives(split), self._places(split, whole)
            return evaluate_given(scorer, edges, negatives, places, config.memory, self._own, among) or {}
        known = self._known_answers(split, edges, whole) if config.filtered else None
        found = evaluate(scorer, edges, known, self._drawn(), config.memory, own=self._own, among=among)
        return found.as_dict() if found else {}

    def _negatives(self, split: Split) -> GivenNegatives:
        if split == "train":
            raise InputError("has no negatives of its own; --set evaluation.candidates=all", split)
        return self._graph.negatives(split)

    def quality(self, scorer: LinkScorer, split: Split, table: RowArray) -> Quality:
        """How well the edges of a split, or a sample of them, are ranked by relation and by degree of the answer, and
        the entities' rows `table`, float32 [N, D], on a plane. Raises as `evaluate`."""
        graph, seed = self._graph, self._config.seed
        whole = self.edges(split)
        places = quality.sample(len(whole), quality.MOST_EDGES, seed)
        edges = np.ascontiguousarray(whole[places])
        found, sides = self._ranks(scorer, split, edges, places)
        related = graph.num_relations > 1 and len(sides) > 0
        return Quality(
            split,
            len(edges),
            relations=quality.by_relation(found, edges[:, 1], graph.relation_names) if related else (),
            degrees=quality.by_degree(
                found, edges[:, sides].T, quality.degrees_of(graph.edges("train"), graph.num_nodes)
            ) if sides else (),
            plane=quality.plane(table, seed),
        )  # fmt: skip

    def _ranks(
        self, scorer: LinkScorer, split: Split, edges: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        """The ranks of ends of edges, float64 [ends, E], and the columns of these ends; none where only pairs are
        scored."""
        config = self._config.evaluation
        if config.candidates == "given":
            negatives = self._negatives(split)
            doubled = given_ranks(scorer, edges, negatives, places, config.memory) if negatives.sides else {}
            sides = [0 if side is Side.HEAD else -1 for side in doubled]
            return np.array(list(doubled.values())) / 2, sides
        known = self._answers_of(edges) if config.filtered else None
        return ranks(scorer, edges, known, self._drawn(), config.memory), [0, -1]

    def _drawn(self) -> DrawnCandidates | None:
        """The candidates that answers are ranked among; None: all entities."""
        config = self._config.evaluation
        if not isinstance(config.candidates, int):
            return None
        train = self._graph.edges("train")
        return DrawnCandidates(config.candidates, train, self._config.seed, config.degree_fraction)

    def _answers_of(self, edges: np.ndarray) -> KnownAnswers:
        relations = self._graph.num_relations * make_decoder(self._config.model).uses_relations
        return KnownAnswers.build((self._graph.edges(name) for name in SPLITS), edges, relations)

    def _known_answers(self, split: Split, edges: np.ndarray, whole: bool) -> KnownAnswers:
        """The known answers of these edges. Those for evaluations between epochs are kept."""
        if not whole and self._known is not None:
            return self._known
        self._known = None  # frees memory for the new ones
        known = self._answers_of(edges)
        self._known = None if whole else known
        return known
