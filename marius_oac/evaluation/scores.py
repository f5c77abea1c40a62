"""A trained model as a function from queries to scores, over entities that are read block by block.

A score has the same bits in every block, so equal embeddings tie exactly, and ranks don't depend on the sizes of blocks
or the number of threads. For that, matrix products need queries and candidates padded to multiples of 16 rows, since
they round differently at ragged edges. Distances on the CPU are summed by our kernels, one candidate per vector lane,
in the order of the dimensions. On a GPU libraries choose the kernel, and so the rounding, by the shape. There all
scores are computed in pieces of one shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.evaluation.ranks import Candidates
from marius_oac.kernels.cpu.decoders import L2, MODULI
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.own_scores import score_own
from marius_oac.models.compute.device_products import products_on
from marius_oac.models.compute.parts import blaming_own
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.models.link_prediction.decoders import KEY, Decoder, make_decoder
from marius_oac.storage.contract import ParameterStore
from marius_oac.storage.snapshots import RowArray
from marius_oac.types import Side, present

GRAIN = 16  # queries and candidates are padded to multiples of it
MIN_TILE = 64  # queries; fewer would be inefficient
CPU_BLOCK = 1 << 14  # candidates
CPU_SCORE_BYTES = 96 << 20  # 8 million scores; more would not fit the caches
DEVICE_BLOCK = 1 << 16
DEVICE_PRODUCTS = (512, 1 << 13)  # queries and candidates of a piece
DEVICE_DISTANCES = (16, 1 << 12)  # smaller, since a piece has a difference for each dimension
SCORE_BYTES = 12  # of a score and the column of a known answer
STRIP = 512  # candidates whose distances a core sums at once; they fit its caches with their embeddings


@dataclass(frozen=True)
class EntityReader:
    """Reads embeddings.

    Attributes:
        num_rows: N.
        dimension: D.
        read: returns the embeddings, float32 [n, D], of rows, int64 [n], ascending and unique.
    """

    num_rows: int
    dimension: int
    read: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of_array(cls, values: RowArray) -> EntityReader:
        """Reads from an array or a memmap, float32 [N, D]."""
        return cls(len(values), values.shape[1], values.__getitem__)

    @classmethod
    def of_store(cls, store: ParameterStore) -> EntityReader:
        """Reads the values of a store, without optimizer state."""

        def read(rows: np.ndarray) -> np.ndarray:
            whole = np.empty((len(rows), store.layout.width), np.float32)
            store.read(rows, whole, np.empty(len(rows), np.int64))
            return whole[:, : store.layout.dimension]

        return cls(store.num_rows, store.layout.dimension, read)

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The embeddings of any rows, int64 [n], in any order: float32 [n, dimension]."""
        unique, inverse = np.unique(rows, return_inverse=True)
        return self.read(unique)[inverse]


@dataclass(frozen=True)
class LinkScorer:
    """Scores candidates with a trained model.

    Attributes:
        model: the decoder, its norm, and whether relations are reciprocal: then heads are predicted as the tails of
            (tail, relation + R, ?).
        entities: the entities' embeddings.
        relations: float32 [R, Dr], or [2 R, Dr] if reciprocal, on `device`; None: the decoder uses no relations.
        device: where scores are computed.
    """

    model: ModelConfig
    entities: EntityReader
    relations: torch.Tensor | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @cached_property
    def decoder(self) -> Decoder:
        """The model's decoder."""
        return make_decoder(self.model)

    @cached_property
    def _distance(self) -> int | None:
        """The kernel that computes the scores; None: the decoder computes them."""
        if self.device.type != "cpu":
            return None
        return present(self.decoder.compiled).similarity if self.decoder.distance else None

    @property
    def _in_pieces(self) -> bool:
        """Whether scores are computed in pieces of one shape, since their rounding may depend on it."""
        return self.device.type != "cpu" or self.decoder.compiled is None

    @property
    def piece(self) -> tuple[int, int]:
        """Queries and candidates are padded to multiples of these numbers. A GPU, or a decoder of yours, scores so many
        a time."""
        if not self._in_pieces:
            return GRAIN, GRAIN
        return DEVICE_DISTANCES if self.decoder.distance or self.decoder.compiled is None else DEVICE_PRODUCTS

    def queries(self, given: np.ndarray, relations: np.ndarray | None, side: Side) -> torch.Tensor:
        """The queries for the ends on `side`, float32 [>= n, D], padded with zero rows.

        Args:
            given: ids of the other ends, int64 [n].
            relations: int64 [n]; ignored if the decoder uses no relations.
        """
        anchor = torch.from_numpy(self.entities.take(given)).to(self.device)
        relation = None
        if self.decoder.uses_relations:
            ids, table = present(relations), present(self.relations)
            if self.model.reciprocal and side is Side.HEAD:
                ids, side = ids + len(table) // 2, Side.TAIL
            relation = table[torch.from_numpy(ids).to(self.device)]
        with self._by_decoder():
            query = self.decoder.query(anchor, relation, side)
        padded = query.new_zeros((rounded_up(len(query), self.piece[0]), query.shape[1]))
        padded[: len(query)] = query
        return padded

    def vectors(self, candidates: Candidates) -> torch.Tensor:
        """The embeddings of m candidates for `scores`: float32 [D, >= m], padded with zero columns."""
        if isinstance(candidates, range):
            values = self.entities.read(np.arange(candidates.start, candidates.stop))
        else:
            values = self.entities.take(candidates)
        count = rounded_up(len(values), self.piece[1])
        if self._distance is None:
            padded = np.zeros((count, self.entities.dimension), np.float32).T
        else:
            padded = np.zeros((self.entities.dimension, count), np.float32)
        padded[:, : len(values)] = values.T
        vectors = torch.from_numpy(padded).to(self.device)
        # Bits of a user's products may depend on the address; torch's own memory is aligned.
        return vectors.clone() if self.decoder.compiled is None and self.device.type == "cpu" else vectors

    def scores(self, queries: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """The scores, float32 [n, m], C order, of queries [n, D] and vectors [D, m], both padded."""
        if self._in_pieces:
            with self._by_decoder(), self._one_thread():
                return self._by_pieces(queries, vectors.T)
        if self._distance is None:
            with self._by_decoder():
                return self.decoder.score(queries, vectors.T).contiguous()
        scores = torch.empty(len(queries), vectors.shape[1])
        arrays = queries.numpy(), vectors.numpy(), scores.numpy()
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            try:
                starts = range(0, len(scores), GRAIN)
                parts = [threads.submit(_sum_distances, self._distance, first, *arrays) for first in starts]
                for part in parts:
                    part.result()
            except BaseException:  # after a signal, parts that have not begun are dropped
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        return scores

    def among(self, given: np.ndarray, relations: np.ndarray | None, side: Side, candidates: np.ndarray) -> np.ndarray:
        """Scores of each query with candidates of its own, float32 [n, m]. Candidates with equal embeddings have the
        same score.

        Args:
            given, relations: see `queries`.
            candidates: ids of entities, int64 [n, m].
        """
        rows, columns = np.unique(candidates, return_inverse=True)
        columns = columns.reshape(candidates.shape)
        values, queries = self.entities.read(rows), self.queries(given, relations, side)[: len(given)]
        if self.device.type != "cpu" or self.decoder.compiled is None:
            return self._among_in_torch(queries, torch.from_numpy(np.ascontiguousarray(values)), columns)
        scores = np.empty(candidates.shape, np.float32)
        kind, arrays = self.decoder.compiled.similarity, (queries.contiguous().numpy(), np.ascontiguousarray(values))
        with ThreadPoolExecutor(torch.get_num_threads()) as threads:
            step = max(1, -(-len(scores) // torch.get_num_threads()))
            parts = [slice(first, first + step) for first in range(0, len(scores), step)]
            for part in [
                threads.submit(score_own, kind, arrays[0][each], arrays[1], columns[each], scores[each])
                for each in parts
            ]:
                part.result()
        return scores

    def _among_in_torch(self, queries: torch.Tensor, values: torch.Tensor, columns: np.ndarray) -> np.ndarray:
        """Candidates are padded, as in `vectors`."""
        count = columns.shape[1]
        padded = np.pad(columns, ((0, 0), (0, -count % GRAIN)), mode="edge")
        with self._by_decoder(), self._one_thread():
            vectors = values.to(self.device)[torch.from_numpy(padded).to(self.device)]
            scores = self.decoder.score(queries.unsqueeze(1), vectors)[:, 0, :count]
        return scores.cpu().numpy()

    @contextmanager
    def _by_decoder(self) -> Iterator[None]:
        """Within the block the decoder computes, its products in float32."""
        with blaming_own(self.model.decoder, KEY), products_on(self.device, "float32"):
            yield

    def _one_thread(self) -> AbstractContextManager[None]:
        return torch_threads(1) if self.device.type == "cpu" else nullcontext()

    def _by_pieces(self, queries: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        scores = queries.new_empty((len(queries), len(candidates)))
        for row in range(0, len(queries), self.piece[0]):
            rows = slice(row, row + self.piece[0])
            for column in range(0, len(candidates), self.piece[1]):
                columns = slice(column, column + self.piece[1])
                scores[rows, columns] = self.decoder.score(queries[rows], candidates[columns])
        return scores


@dataclass(frozen=True)
class Blocks:
    """How much is in memory at once.

    Attributes:
        tile: queries that are scored at once.
        block: candidates that they are scored against.
        queries: queries that are kept for the next block.
    """

    tile: int
    block: int
    queries: int

    @classmethod
    def fit(cls, scorer: LinkScorer, num_candidates: int, memory: int) -> Blocks:
        """Sizes that need `memory` MiB, half for scores and a quarter each for candidates and queries, but at least
        one piece of scores."""
        budget, dimension, (rows, columns) = memory << 20, scorer.entities.dimension, scorer.piece
        on_cpu = scorer.device.type == "cpu"
        scores = min(budget // 2, CPU_SCORE_BYTES if on_cpu else budget) // SCORE_BYTES
        limits = (CPU_BLOCK if on_cpu else DEVICE_BLOCK, budget // 4 // (12 * dimension), scores // max(MIN_TILE, rows))
        block = min(rounded_up(num_candidates, columns), *(_rounded_down(limit, columns) for limit in limits))
        queries = budget // 4 // (8 * dimension + 128)
        tile = _rounded_down(min(scores // block, queries), rows)
        return cls(tile, block, max(tile, queries))


def rounded_up(count: int, grain: int) -> int:
    """The next multiple of `grain`, at least one."""
    return max(-(-count // grain), 1) * grain


def _rounded_down(count: int, grain: int) -> int:
    return max(count // grain, 1) * grain


@compiled
def _sum_distances(kind: int, first: int, queries: np.ndarray, vectors: np.ndarray, scores: np.ndarray) -> None:
    """Writes the scores of the 16 queries from `first` on."""
    width, count = vectors.shape
    half = width // 2
    for start in range(0, count, STRIP):
        stop = min(start + STRIP, count)
        for i in range(first, first + GRAIN):
            sums = scores[i, start:stop]
            sums[:] = 0
            if kind == MODULI:
                for k in range(half):
                    re, im = queries[i, k], queries[i, half + k]
                    re_there, im_there = vectors[k, start:stop], vectors[half + k, start:stop]
                    for j in range(sums.size):
                        x, y = re - re_there[j], im - im_there[j]
                        sums[j] -= np.sqrt(x * x + y * y)
                continue
            for k in range(width):
                here, there = queries[i, k], vectors[k, start:stop]
                for j in range(sums.size):
                    x = here - there[j]
                    sums[j] -= x * x if kind == L2 else abs(x)
            if kind == L2:
                for j in range(sums.size):
                    sums[j] = -np.sqrt(-sums[j])
