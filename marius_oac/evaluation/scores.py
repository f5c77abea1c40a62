"""A trained model as a function from queries to scores, over entities that are read block by block.

A score has the same bits in every block, so equal embeddings tie exactly, and ranks don't depend on the sizes of blocks
or the number of threads. For that, all scores are computed in pieces of one shape, padded with zeros: libraries choose
the kernel, and so the rounding, by the shape. Distances on the CPU are summed by our kernels, one candidate per vector
lane, in the order of the dimensions.
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
from marius_oac.evaluation.ranks import Candidates, count_on_device, no_columns
from marius_oac.kernels.cpu import ranks as kernels
from marius_oac.kernels.cpu.decoders import INNER
from marius_oac.kernels.cpu.own_scores import score_own
from marius_oac.kernels.cpu.ranks import Columns
from marius_oac.models.compute.device_products import products_on
from marius_oac.models.compute.parts import blaming_own
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.models.link_prediction.decoders import KEY, Decoder, make_decoder
from marius_oac.runtime import blas
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.storage.contract import ParameterStore
from marius_oac.storage.snapshots import RowArray
from marius_oac.types import Side, present

GRAIN = 16  # candidates of a query's own are padded to a multiple of it
PRODUCTS = (2048, 2048)  # queries and candidates of a piece
DISTANCES = (64, 1 << 10)  # smaller, since a piece has a difference for each dimension


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
    def _sgemm(self) -> int:
        return blas.sgemm()

    @cached_property
    def on_cores(self) -> bool:
        """Whether kernels compute the scores, each on the thread that calls it. Else torch does."""
        mine = self.decoder.compiled
        return self.device.type == "cpu" and mine is not None and (mine.similarity != INNER or self._sgemm > 0)

    @property
    def piece(self) -> tuple[int, int]:
        """Queries and candidates of a piece; theirs are padded to multiples of these numbers."""
        if self.on_cores:
            return kernels.ROWS, kernels.COLUMNS
        return DISTANCES if self.decoder.distance or self.decoder.compiled is None else PRODUCTS

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
        """The embeddings of m candidates for `scores`, padded with zeros: float32 [pieces, D, columns of a piece] for
        kernels, else [>= m, D]."""
        if isinstance(candidates, range):
            values = self.entities.read(np.arange(candidates.start, candidates.stop))
        else:
            values = self.entities.take(candidates)
        (_, columns), dimension = self.piece, self.entities.dimension
        count = rounded_up(len(values), columns)
        if not self.on_cores:
            padded = np.zeros((count, dimension), np.float32)
            padded[: len(values)] = values
            # Bits of a user's products may depend on the address; torch's own memory is aligned.
            return torch.from_numpy(padded).to(self.device, copy=True)
        whole = len(values) // columns
        panels = np.zeros((count // columns, dimension, columns), np.float32)
        panels[:whole] = values[: whole * columns].reshape(whole, columns, dimension).transpose(0, 2, 1)
        if whole < len(panels):
            panels[whole, :, : len(values) - whole * columns] = values[whole * columns :].T
        return torch.from_numpy(panels)

    def scores(self, queries: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """The scores, float32 [n, >= m], C order, of queries [n, D] and `vectors`, both padded; within `threads`."""
        if not self.on_cores:
            with self._by_decoder(), self._one_thread():
                return self._by_pieces(queries, vectors)
        (rows, columns), piece = self.piece, np.empty(self.piece, np.float32)
        scores = np.empty((len(queries), len(vectors) * columns), np.float32)
        true, counts, none = torch.zeros(rows), torch.zeros((5, rows), dtype=torch.int64), no_columns(rows)
        for i in range(0, len(scores), rows):
            for p in range(len(vectors)):
                part = queries[i : i + rows], vectors[p : p + 1]
                self._rank(*part, piece, true, none, none, columns, counts)
                scores[i : i + rows, p * columns : (p + 1) * columns] = piece
        return torch.from_numpy(scores)

    def own_scores(self, queries: torch.Tensor, candidates: np.ndarray) -> torch.Tensor:
        """The score of each query, padded, with one candidate, int64 [n]: float32 [n]."""
        rows = self.piece[0]
        starts = range(0, len(candidates), rows)
        parts = ((queries[i : i + rows], self.vectors(candidates[i : i + rows])) for i in starts)
        return torch.cat([self.scores(*part).diagonal()[:rows] for part in parts])[: len(candidates)].contiguous()

    def count(
        self, queries: torch.Tensor, vectors: torch.Tensor, true: torch.Tensor, own: Columns, known: Columns,
        width: int, counts: torch.Tensor,
    ) -> None:  # fmt: skip
        """Adds to the counts what the scores of n queries and `width` candidates have, see `kernels.rank`; within
        `threads`.

        Args:
            true: the scores of the queries' answers, float32 [n].
            counts: int64 [5, n], see `kernels.BETTER`.
            own, known: the columns of the answers themselves, and of other known ones; used up.
        """
        if self.on_cores:
            self._rank(queries, vectors, np.empty(self.piece, np.float32), true, own, known, width, counts)
            return
        scores = self.scores(queries, vectors)
        if scores.device.type == "cpu":
            kernels.count_scores(scores.numpy(), true.numpy(), own, known, width, counts.numpy())
        else:
            count_on_device(scores, true, counts, own, known, width)

    @contextmanager
    def threads(self) -> Iterator[ThreadPool]:
        """A pool of threads that score. Within the block each product is computed by the thread that asks for it."""
        with blas.one_thread_per_product() if self.on_cores else nullcontext():
            pool = ThreadPool(torch.get_num_threads() if self.on_cores else 1)
            try:
                yield pool
            finally:
                pool.close()

    def _rank(
        self, queries: torch.Tensor, vectors: torch.Tensor, piece: np.ndarray, true: torch.Tensor, own: Columns,
        known: Columns, width: int, counts: torch.Tensor,
    ) -> None:  # fmt: skip
        kind, given = present(self.decoder.compiled).similarity, (queries.numpy(), vectors.numpy(), piece)
        kernels.rank(kind, self._sgemm, *given, true.numpy(), own, known, width, counts.numpy())

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


def rounded_up(count: int, grain: int) -> int:
    """The next multiple of `grain`, at least one."""
    return max(-(-count // grain), 1) * grain
