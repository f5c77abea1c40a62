"""Handwritten loss and gradient of a batch for the CPU, followed by the row optimizer. `autograd` gives the formula.

A batch has five stages. The tasks of one stage may run in any order and on any thread:
1. gather the candidates into one array, and prepare the relations for the decoder;
2. for tiles (side, chunk, block of edges): queries Q, scores S = Q N^T, losses, S := gradient with respect to the
   scores, dQ = S N; in parallel list the places of each entity and relation;
3. dN = S^T Q for blocks of candidates (side, chunk, block); stages 2 and 3 alternate over waves of tiles, so that
   scores need bounded memory;
4. relations: sum the gradients, update the rows;
5. entities: sum the gradients, update the rows.
For distances, kernels replace the matrix products.

Guarantees:
- The bits of the result depend on the inputs, not on the number of threads: block sizes don't depend on it, no two
  tasks write to the same place, every sum has a fixed order, and a product runs on one thread (`compute_threads`).
- The bits don't depend on the addresses of the caller's arrays: arguments of products are copied to aligned memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.kernels.cpu import decoders as geometry
from marius_oac.kernels.cpu import edges as kernels
from marius_oac.kernels.cpu import losses as loss_kernels
from marius_oac.kernels.cpu.row_updates import Rule
from marius_oac.models.compute.multiply import Multiply, by_numpy
from marius_oac.models.compute.row_optimizers import RowUpdate
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.tiles import Tile, blocks, stretches
from marius_oac.models.link_prediction.decoders import Decoder, make_decoder
from marius_oac.models.link_prediction.losses import make_loss
from marius_oac.models.link_prediction.regularizers import penalized
from marius_oac.runtime.thread_pool import Task, ThreadPool
from marius_oac.types import Side, present

TILE_EDGES = 256  # at least, if the chunk has as many; fewer make products inefficient
_MAX_TILE_EDGES = 1024
_TILE_SCORES = 1 << 17  # the target, 512 KiB, which stay in a core's cache from one product to the next
_WAVE_SCORES = 1 << 25  # in memory at once: 128 MiB
_BLOCK_CANDIDATES = 256
_BLOCK_ROWS = 512
_BLOCK_RELATIONS = 64
_COPY_ROWS = 4096


class Relations(NamedTuple):
    """The dense table, float32 [R, Dr + state], None for a decoder without relations, and its update."""

    table: np.ndarray | None
    rule: RowUpdate


@lru_cache(maxsize=32)
def waves_of(sides: int, offsets: tuple[int, ...], candidates: int) -> list[list[Tile]]:
    """Cuts a batch into tiles, and groups these into waves, depending only on the batch's shape.

    Raises:
        ValueError: a chunk has no edges, so that its candidates would get no gradients.
    """
    if any(first >= last for first, last in zip(offsets[:-1], offsets[1:], strict=True)):
        raise ValueError(f"a chunk without edges: {offsets}")
    size = max(TILE_EDGES, min(_MAX_TILE_EDGES, _TILE_SCORES // candidates))
    size = max(1, min(size, _WAVE_SCORES // candidates))
    waves: list[list[Tile]] = [[]]
    offset = 0
    for s in range(sides):
        for chunk, (first, last) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            for start, stop in blocks(first, last, size):
                scores = (stop - start) * candidates
                if waves[-1] and offset + scores > _WAVE_SCORES:
                    waves.append([])
                    offset = 0
                waves[-1].append(Tile(s, chunk, start, stop, offset))
                offset += scores
    return waves


@dataclass(frozen=True)
class _Batch:
    """The arrays of a batch in all stages.

    `candidates` and `candidate_gradients` are float32 [S C, K, D]; if all entities are candidates, the former is
    [1, N, D], the latter [S, N, D]. `listed`, int64 [S C K], are the sampled negatives.
    """

    rows: np.ndarray
    listed: np.ndarray
    edges: kernels.Edges
    work: kernels.Work
    form: kernels.Form
    loss: loss_kernels.LossRule
    offsets: tuple[int, ...]
    candidates: np.ndarray
    candidate_gradients: np.ndarray

    def group(self, tile: Tile) -> int:
        return tile.s * (len(self.offsets) - 1) + tile.chunk

    def listed_of(self, tile: Tile) -> np.ndarray:
        """The local indices, int64 [K], of the sampled negatives that a tile's edges share."""
        per_group = self.candidates.shape[1]
        return self.listed[self.group(tile) * per_group : (self.group(tile) + 1) * per_group]

    def candidates_of(self, tile: Tile) -> np.ndarray:
        return self.candidates[self.group(tile) if self.form.sampled else 0]


def needs_distances(decoder: Decoder) -> bool:
    """Whether the gradient needs the distances beside the gradients by scores, which take the scores' place."""
    return decoder.compiled is not None and decoder.compiled.similarity == geometry.L2


def is_handwritten(config: Config) -> bool:
    """Whether decoder and loss are in the kernels."""
    return make_decoder(config.model).compiled is not None and make_loss(config.training.loss).code is not None


def _form_of(config: Config, decoder: Decoder) -> kernels.Form:
    regularization = config.training.regularization
    form, similarity, phases = present(decoder.compiled)
    penalty = kernels.NO_PENALTY
    if penalized(regularization):
        cubes = kernels.CUBED_MODULI if decoder.complex_moduli else kernels.CUBES
        penalty = kernels.SQUARES if regularization.kind == "l2" else cubes
    return kernels.Form(form, similarity, penalty, phases, not config.training.negatives.all, np.float32(0))


class HandwrittenGradient:
    """Computes batches on `thread_pool`, with the products of `multiply`."""

    def __init__(self, config: Config, thread_pool: ThreadPool, multiply: Multiply = by_numpy) -> None:
        self._multiply = multiply
        self._model, self._training, self._thread_pool = config.model, config.training, thread_pool
        self._scratch = Scratch()
        sides = (Side.TAIL,) if config.model.reciprocal else (Side.HEAD, Side.TAIL)
        self._sides = np.array(sides, np.int64)
        decoder = make_decoder(config.model)
        self._form, self._loss = _form_of(config, decoder), make_loss(config.training.loss)
        self._keeps_distances = needs_distances(decoder)

    def compute(self, rows: np.ndarray, data: EdgeBatch[np.ndarray], rule: RowUpdate, relations: Relations) -> float:
        """Updates `rows`, float32 [n, D + state], and the batch's relations in place. Returns the loss with penalty."""
        batch = self._open(rows, data, relations)
        edges, size, count = batch.edges, batch.edges.heads.size, len(rows)
        first = self._scratch.take("first", count + 1, dtype=np.int64)
        places = self._scratch.take("places", 2 * size + batch.listed.size, dtype=np.int64)
        beside_tiles: list[Task] = [partial(kernels.invert, edges.heads, edges.tails, batch.listed, first, places)]
        relation_penalties, beside_products = self._relation_tasks(batch, relations, beside_tiles)
        self._differentiate(batch, beside_tiles, beside_products)
        penalties = self._scratch.take("penalties", count, dtype=np.float64)
        shared = (edges, batch.work, first, places, penalties)
        self._thread_pool.run(
            [
                partial(self._update_entities, batch.form, rule, rows, begin, end, shared)
                for begin, end in blocks(0, count, _BLOCK_ROWS)
            ]
        )
        loss = float(batch.work.losses.mean())
        if self._form.penalty == kernels.NO_PENALTY:
            return loss
        weight = self._training.regularization.weight
        return loss + weight / size * float(penalties.sum() + relation_penalties.sum())

    def _update_entities(
        self, form: kernels.Form, update: RowUpdate, rows: np.ndarray, begin: int, end: int, shared: tuple[Any, ...]
    ) -> None:
        def kernel(rule: Rule) -> None:
            kernels.update_entities(form, rule, rows, begin, end, *shared, self._gradient())

        update.run(kernel, rows, slice(begin, end), self._model.dimension)

    def _update_relations(
        self, form: kernels.Form, relations: Relations, picks: np.ndarray, begin: int, end: int, shared: tuple[Any, ...]
    ) -> None:
        table = present(relations.table)

        def kernel(rule: Rule) -> None:
            kernels.update_relations(form, rule, table, begin, end, picks, *shared, self._gradient())

        width = self._model.dimension // 2 if form.phases else self._model.dimension
        relations.rule.run(kernel, table, picks[begin:end], width)

    def _gradient(self) -> np.ndarray:
        """An array, float32 [D], in which a task sums one gradient."""
        return np.empty(self._model.dimension, np.float32)

    def _own(self, name: str, array: np.ndarray) -> np.ndarray:
        """A flat int64 copy, so that kernels are compiled for one type of array."""
        copy = self._scratch.take(name, array.size, dtype=np.int64)
        copy[:] = array.reshape(-1)
        return copy

    def _open(self, rows: np.ndarray, data: EdgeBatch[np.ndarray], relations: Relations) -> _Batch:
        """Runs stage 1, and allocates the arrays of the other stages."""
        take, dimension, sampled = self._scratch.take, self._model.dimension, not self._training.negatives.all
        heads, tails = self._own("heads", data.heads), self._own("tails", data.tails)
        sides, size = len(self._sides), heads.size
        if sampled:
            negatives, offsets = present(data.negatives), data.chunk_offsets
            listed = self._own("negatives", negatives)
            groups, per_group = sides * (len(offsets) - 1), negatives.shape[2]
            candidates = take("candidates", groups, per_group, dimension)
            flat = candidates.reshape(-1, dimension)
            tasks = [
                partial(kernels.gather, rows, listed[begin:end], flat[begin:end])
                for begin, end in blocks(0, listed.size, _COPY_ROWS)
            ]
        else:
            listed, offsets = self._own("negatives", np.empty(0, np.int64)), (0, size)
            groups, per_group = sides, len(rows)
            candidates = take("candidates", 1, per_group, dimension)
            tasks = [
                partial(kernels.copy_values, rows[begin:end], candidates[0, begin:end])
                for begin, end in blocks(0, per_group, _COPY_ROWS)
            ]
        if relations.table is None:
            local, formed = self._own("relations", np.zeros(size, np.int64)), take("formed", 1, dimension)
        else:
            local = self._own("relations", present(data.relations))
            picks = self._own("picks", present(data.relation_rows))
            formed = take("formed", picks.size, dimension)
            (kernels.gather_phases if self._form.phases else kernels.gather)(relations.table, picks, formed)
        self._thread_pool.run(tasks)
        gradients = take("candidate_gradients", groups, per_group, dimension)
        work = kernels.Work(
            relations=formed,
            queries=take("queries", sides, size, dimension),
            query_gradients=take("query_gradients", sides, size, dimension),
            positives=take("positives", sides, size),
            candidate_gradients=gradients.reshape(-1, dimension),
            losses=take("losses", sides, size, dtype=np.float64),
        )
        edges = kernels.Edges(heads, tails, local, self._sides)
        form = self._form._replace(share=np.float32(self._training.regularization.weight / size))
        loss = self._loss_rule(sides * size, per_group if sampled else max(per_group - 1, 1))
        return _Batch(rows, listed, edges, work, form, loss, offsets, candidates, gradients)

    def _loss_rule(self, terms: int, negatives: int) -> loss_kernels.LossRule:
        loss = self._training.loss
        floats = (1 / terms, 1 / negatives, loss.margin, loss.temperature)
        return loss_kernels.LossRule(present(self._loss.code), *(np.float32(value) for value in floats))

    def _relation_tasks(
        self, batch: _Batch, relations: Relations, beside_tiles: list[Task]
    ) -> tuple[np.ndarray, list[Task]]:
        """Returns the array that stage 4 fills with the relations' penalties, and its tasks. Adds a task to stage 2
        that lists the places of relations."""
        if relations.table is None:
            return np.zeros(0), []
        edges = batch.edges
        count = len(batch.work.relations)
        picks = self._scratch.take("picks", count, dtype=np.int64)
        first = self._scratch.take("relation_first", count + 1, dtype=np.int64)
        places = self._scratch.take("relation_places", edges.relations.size, dtype=np.int64)
        nothing = edges.relations[:0]
        beside_tiles.append(partial(kernels.invert, edges.relations, nothing, nothing, first, places))
        penalties = self._scratch.take("relation_penalties", count, dtype=np.float64)
        shared = (batch.rows, edges, batch.work, (first, places), penalties)
        return penalties, [
            partial(self._update_relations, batch.form, relations, picks, begin, end, shared)
            for begin, end in blocks(0, count, _BLOCK_RELATIONS)
        ]

    def _differentiate(self, batch: _Batch, beside_tiles: list[Task], beside_products: list[Task]) -> None:
        """Runs stages 2 and 3. The extra tasks run beside the first wave of stage 2 and the last of stage 3."""
        per_group = batch.candidates.shape[1]
        waves = waves_of(len(self._sides), batch.offsets, per_group)
        size = max(wave[-1].offset + (wave[-1].stop - wave[-1].start) * per_group for wave in waves)
        scores = self._scratch.take("scores", size)
        distances = self._scratch.take("distances", size) if self._keeps_distances else None
        begun: set[int] = set()
        for number, wave in enumerate(waves):
            tiles: list[Task] = [partial(self._tile, batch, tile, scores, distances) for tile in wave]
            self._thread_pool.run(tiles + beside_tiles if number == 0 else tiles)
            products: list[Task] = []
            for stretch in stretches(wave):
                group = batch.group(stretch)
                for begin, end in blocks(0, per_group, _BLOCK_CANDIDATES):
                    products.append(partial(self._candidates, batch, stretch, scores, begin, end, group in begun))
                begun.add(group)
            self._thread_pool.run(beside_products + products if number == len(waves) - 1 else products)

    @np.errstate(invalid="ignore", over="ignore")  # The pipeline reports a diverged loss, not NumPy.
    def _tile(self, batch: _Batch, tile: Tile, scores: np.ndarray, distances: np.ndarray | None) -> None:
        s, _, start, stop, _ = tile
        edges, work, kind = batch.edges, batch.work, self._form.similarity
        kernels.open_tile(batch.form, batch.rows, edges, work, s, start, stop)
        queries, gradients = work.queries[s, start:stop], work.query_gradients[s, start:stop]
        positives, candidates = work.positives[s, start:stop], batch.candidates_of(tile)
        tile_scores = tile.of(scores, len(candidates))
        if kind == geometry.INNER:
            self._multiply(queries, candidates.T, tile_scores)
        else:
            kernels.distance_scores(kind, queries, candidates, tile_scores)
        if distances is not None:
            tile_distances = tile.of(distances, len(candidates))
            tile_distances[:] = tile_scores
        targets = (edges.tails if self._sides[s] == Side.TAIL else edges.heads)[start:stop]
        if batch.form.sampled:
            kernels.leave_out_targets(tile_scores, targets, batch.listed_of(tile))
        else:
            kernels.take_targets(tile_scores, targets, positives)
        loss_kernels.differentiate(batch.loss, tile_scores, positives, work.losses[s, start:stop])
        if not batch.form.sampled:
            kernels.put_targets(tile_scores, targets, positives)
        if distances is not None:
            kernels.divide_by_distances(tile_scores, tile_distances)
        if kind == geometry.INNER:
            self._multiply(tile_scores, candidates, gradients)
        else:
            gradients[:] = 0
            kernels.add_distance_gradients(kind, tile_scores, queries, candidates, gradients)
        if batch.form.sampled:
            kernels.close_tile(batch.form, batch.rows, edges, work, s, start, stop)

    @np.errstate(invalid="ignore", over="ignore")
    def _candidates(self, batch: _Batch, stretch: Tile, scores: np.ndarray, begin: int, end: int, begun: bool) -> None:
        """Computes the gradients of the candidates [begin, end) of a stretch; adds them to those there if `begun`."""
        candidates = batch.candidates_of(stretch)
        coefficients = stretch.of(scores, len(candidates))[:, begin:end].T
        queries = batch.work.queries[stretch.s, stretch.start : stretch.stop]
        into = batch.candidate_gradients[batch.group(stretch), begin:end]
        if self._form.similarity != geometry.INNER:
            if not begun:
                into[:] = 0
            kernels.add_distance_gradients(self._form.similarity, coefficients, candidates[begin:end], queries, into)
        elif begun:
            more = np.empty_like(into)
            self._multiply(coefficients, queries, more)
            into += more
        else:
            self._multiply(coefficients, queries, into)
