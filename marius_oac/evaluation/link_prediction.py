"""Evaluates link prediction on a set of edges: each edge's tail is ranked among the candidates for (head, relation, ?),
and its head among those for (?, relation, tail).

Entities are read block by block, so memory is bounded for any number of them. Queries are cut into tiles. Threads score
tiles, and count, piece by piece, the candidates of a block that are better than the answers. No scores are kept.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from marius_oac.data.graphs.negatives import draw_nodes
from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation.blocks import Blocks
from marius_oac.evaluation.filters import Answers, KnownAnswers
from marius_oac.evaluation.own_metrics import Metric
from marius_oac.evaluation.ranks import (
    HITS,
    NO_METRICS,
    Candidates,
    RankingMetrics,
    SideMetrics,
    doubled_ranks,
    known_columns,
    own_columns,
)
from marius_oac.evaluation.scores import LinkScorer
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.kernels.cpu.random import stream_key
from marius_oac.kernels.cpu.ranks import NAN
from marius_oac.runtime.progress import Progress
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.types import Side

DRAW_EDGES = 1024  # consecutive edges that share drawn candidates; the draw for a seed depends on it


@dataclass(frozen=True)
class DrawnCandidates:
    """Candidates drawn for every 1024 edges and side, with replacement, as a pure function of the seed.

    Attributes:
        count: of candidates.
        edges: the training edges, int32 or int64 [E, 2] or [E, 3], C order.
        seed: of the draw.
        degree_fraction: the fraction drawn by degree in `edges`; the others are drawn uniformly.
    """

    count: int
    edges: np.ndarray
    seed: int
    degree_fraction: float = 0.0

    def draw(self, num_entities: int, side: Side, group: int) -> np.ndarray:
        """The candidates of the edges [1024 * group, 1024 * (group + 1)), int64 [count], ascending."""
        key = stream_key(self.seed, "evaluation", side, group)
        return np.sort(draw_nodes(key, self.edges, num_entities, self.count, self.degree_fraction))


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        unfiltered: metrics of ranks among all candidates.
        filtered: metrics without known answers; None: none were given.
        count: the number of edges.
        seconds: the time it took.
    """

    unfiltered: SideMetrics
    filtered: SideMetrics | None
    count: int
    seconds: float

    def as_dict(self) -> dict[str, float]:
        """Metrics by name: `filtered.mrr`, `filtered.hits@10`, `filtered.heads.mrr`, `unfiltered.mrr`, ..., `edges` and
        `seconds`."""
        filtered = self.filtered.as_dict() if self.filtered else {}
        return {**filtered, **self.unfiltered.as_dict(), "edges": self.count, "seconds": self.seconds}


def evaluate(
    scorer: LinkScorer,
    edges: np.ndarray,
    known: KnownAnswers | None = None,
    drawn: DrawnCandidates | None = None,
    memory: int = 256,
    hits: Sequence[int] = HITS,
    own: Mapping[str, Metric] = NO_METRICS,
    among: Sharing = UNSHARED,
) -> Evaluation | None:
    """Ranks both ends of every edge. Returns None on all but the leading one of several processes.

    Args:
        edges: int32 or int64 [E, 3] (head, relation, tail) or [E, 2] (head, tail).
        known: the known answers of these edges, in this order, for filtered metrics; None: there are none.
        drawn: candidates to rank against; None: all entities.
        memory: MiB to use, besides `known` and some 100 bytes per edge.
        hits: the k of Hits@k.
        own: the user's metrics by name, functions of ranks.
        among: the processes that rank the same edges together.

    Raises:
        InputError: there are no edges.
        MariusOacError: a score is NaN.
        ValueError: `known` is of another number of edges.
    """
    started = time.perf_counter()
    num_candidates = drawn.count if drawn else scorer.entities.num_rows
    counts = _counts(scorer, edges, known, drawn, memory, among)
    if among.rank:
        return None

    def metrics(filtered: bool) -> SideMetrics:
        heads, tails = (doubled_ranks(counts[side], filtered) for side in (Side.HEAD, Side.TAIL))
        parts = (np.concatenate((heads, tails)), heads, tails)
        return SideMetrics(*(RankingMetrics.of(ranks, filtered, num_candidates, hits, own) for ranks in parts))

    filtered = None if known is None else metrics(True)
    return Evaluation(metrics(False), filtered, len(edges), time.perf_counter() - started)


def ranks(
    scorer: LinkScorer,
    edges: np.ndarray,
    known: KnownAnswers | None = None,
    drawn: DrawnCandidates | None = None,
    memory: int = 256,
) -> np.ndarray:
    """The ranks of heads and tails, float64 [2, E], filtered where there are known answers; see `evaluate`, which has
    the arguments and errors."""
    counts = _counts(scorer, edges, known, drawn, memory, UNSHARED)
    return np.stack([doubled_ranks(counts[side], known is not None) for side in (Side.HEAD, Side.TAIL)]) / 2


def _counts(
    scorer: LinkScorer,
    edges: np.ndarray,
    known: KnownAnswers | None,
    drawn: DrawnCandidates | None,
    memory: int,
    among: Sharing,
) -> np.ndarray:
    """The counts of `_Ranking`, which are complete on the leading process; see `evaluate`."""
    if not len(edges):
        raise InputError("there are no edges to evaluate")
    if known is not None and known.num_queries != len(edges):
        raise ValueError(f"known answers of {known.num_queries} edges, but {len(edges)} are to be ranked")
    num_candidates = drawn.count if drawn else scorer.entities.num_rows
    scores = 2 * len(among.share(len(edges))) * num_candidates
    with (
        torch.inference_mode(),
        scorer.threads() as threads,
        Progress("ranking", "scores", scores, shown=among.rank == 0) as progress,
    ):
        ranking = _Ranking(scorer, edges, known, Blocks.fit(scorer, num_candidates, memory), among, threads, progress)
        ranking.against_drawn(drawn) if drawn else ranking.against_all()
        ranking.collect()
    return ranking.counts


class _Tile:
    """Queries of one side that are scored together.

    Attributes:
        places: the edges' indices among all ranked edges, int64 [n].
        targets: ids of the answers, int64 [n].
        vectors: the queries, float32 [>= n, D], padded.
        true: scores of the answers, float32 [n], once they are known.
        counts: int64 [5, n], see `kernels.cpu.ranks.BETTER`.
    """

    def __init__(self, scorer: LinkScorer, edges: np.ndarray, answers: Answers | None, side: Side, places: np.ndarray):
        part = edges[places].astype(np.int64)
        given, asked = (0, -1) if side is Side.TAIL else (-1, 0)
        self.side, self.places, self.targets, self._answers = side, places, part[:, asked].copy(), answers
        self.vectors = scorer.queries(part[:, given], part[:, 1], side)
        self.true = torch.zeros(len(places), device=scorer.device)
        self.counts = torch.zeros((5, len(places)), dtype=torch.int64, device=scorer.device)

    def settle(self, scorer: LinkScorer) -> None:
        """Scores the answers."""
        self.true = scorer.own_scores(self.vectors, self.targets)

    def count(self, scorer: LinkScorer, vectors: torch.Tensor, candidates: Candidates) -> None:
        """Compares the answers with the candidates of a block, which have these vectors."""
        own = own_columns(self.targets, candidates)
        known = known_columns(self._answers, self.places, candidates)
        scorer.count(self.vectors, vectors, self.true, own, known, len(candidates), self.counts)


class _Ranking:
    """The state of an evaluation; `counts` is int64 [2, 5, E], by `Side`, see `kernels.cpu.ranks.BETTER`. Those of
    other processes' queries are 0 until `collect`."""

    def __init__(
        self, scorer: LinkScorer, edges: np.ndarray, known: KnownAnswers | None, blocks: Blocks, among: Sharing,
        threads: ThreadPool, progress: Progress,
    ) -> None:  # fmt: skip
        self._scorer, self._edges, self._known, self._blocks = scorer, edges, known, blocks
        self._among, self._own, self._threads, self._progress = among, among.share(len(edges)), threads, progress
        self.counts = np.zeros((len(Side), 5, len(edges)), np.int64)

    def against_all(self) -> None:
        """Ranks the answers among all entities."""
        size, number, step = self._blocks.tile, self._scorer.entities.num_rows, self._blocks.block
        parts = []
        for side, column in ((Side.HEAD, 0), (Side.TAIL, -1)):
            # Answers are read in the order of a table that may be on disk.
            order = np.argsort(self._edges[self._own.start : self._own.stop, column], kind="stable") + self._own.start
            parts += [(side, order[i : i + size]) for i in range(0, len(order), size)]
        at_once = max(self._blocks.queries // size, 1)
        for first in range(0, len(parts), at_once):
            blocks = (range(i, min(i + step, number)) for i in range(0, number, step))
            self._rank(parts[first : first + at_once], blocks)

    def against_drawn(self, drawn: DrawnCandidates) -> None:
        """Ranks the answers among drawn candidates."""
        size, step = self._blocks.tile, min(self._blocks.block, self._blocks.listed)
        groups = np.arange(self._own.start, self._own.stop) // DRAW_EDGES
        for group in np.unique(groups).tolist():
            places = self._own.start + np.flatnonzero(groups == group)
            for side in Side:
                candidates = drawn.draw(self._scorer.entities.num_rows, side, group)
                parts = [(side, places[i : i + size]) for i in range(0, len(places), size)]
                self._rank(parts, (candidates[i : i + step] for i in range(0, len(candidates), step)))

    def _rank(self, parts: Sequence[tuple[Side, np.ndarray]], blocks: Iterable[Candidates]) -> None:
        answers = [None, None] if self._known is None else self._known.sides
        tiles = [_Tile(self._scorer, self._edges, answers[side], side, places) for side, places in parts]
        for _ in self._together(tiles, lambda tile: tile.settle(self._scorer)):
            pass
        for block in blocks:
            vectors = self._scorer.vectors(block)
            count = partial(_Tile.count, scorer=self._scorer, vectors=vectors, candidates=block)
            for now in self._together(tiles, count):
                self._check(now)
                self._progress.add(sum(len(tile.places) for tile in now) * len(block))
        for tile in tiles:
            self.counts[tile.side][:, tile.places] = tile.counts.cpu().numpy()

    def _together(self, tiles: Sequence[_Tile], work: Callable[[_Tile], None]) -> Iterator[Sequence[_Tile]]:
        """Does the work of some tiles after others, and yields them; few at a time, since signals and other processes
        wait for them."""
        for i in range(0, len(tiles), 2 * self._threads.count):
            now = tiles[i : i + 2 * self._threads.count]
            self._threads.run([partial(work, tile) for tile in now])
            yield now
            self._among.turn()

    def _check(self, tiles: Sequence[_Tile]) -> None:
        for tile in tiles:
            if tile.counts[NAN].any():
                place = tile.places[int(tile.counts[NAN].argmax())]
                raise MariusOacError(
                    f"a score is NaN, for the {tile.side.name.lower()} of edge {place} of the evaluated ones: the "
                    "embeddings hold NaN, or are so large that their products overflow"
                )

    def collect(self) -> None:
        """Completes the counts on the leading process. Collective."""
        if self._among.count == 1:
            return
        for counts in self.counts:
            mine = np.ascontiguousarray(counts[:, self._own.start : self._own.stop].T)
            found = self._among.collected(io.BytesIO(mine.tobytes()), counts.nbytes)
            if self._among.rank == 0:
                counts[:] = np.frombuffer(found.read(), np.int64).reshape(-1, len(counts)).T
