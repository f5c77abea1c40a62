"""Handwritten loss and gradient of a batch for the CPU, followed by the row optimizer. `autograd` gives the formula.

A batch has five stages. The tasks of one stage may run in any order and on any thread:
1. gather the candidates into one array, and prepare the relations for the decoder;
2. for tiles (side, chunk, block of edges): queries Q, scores S = Q N^T, losses, S := gradient with respect to the
   scores, dQ = S N; in parallel list the places of each entity and relation;
3. dN = S^T Q for blocks of candidates (side, chunk, block); stages 2 and 3 alternate over waves of tiles, so that
   scores need bounded memory;
4. relations: sum the gradients, update the rows;
5. entities: sum the gradients, update the rows.
For distances, kernels replace the matrix products. With `compute.precision: bfloat16` products have rounded inputs, and
stage 1 rounds the candidates (`panels`, `kernels.cpu.bfloat16_lanes`).

All stages are one call of a kernel on each thread (`kernels.cpu.lanes`), without Python between them, which took a
sixth of a batch. Products of a library that kernels cannot call are made between smaller kernels, stage by stage; and
rows that a user's optimizer updates, after the kernel.

Guarantees:
- The bits of the result depend on the inputs, not on the number of threads: block sizes don't depend on it, no two
  tasks write to the same place, every sum has a fixed order, and a product runs on one thread (`compute_threads`).
- The bits don't depend on the addresses of the caller's arrays: arguments of products are copied to aligned memory.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.kernels.cpu import bfloat16_lanes, lanes
from marius_oac.kernels.cpu import decoders as geometry
from marius_oac.kernels.cpu import edges as kernels
from marius_oac.kernels.cpu import losses as loss_kernels
from marius_oac.models.compute.multiply import BFLOAT16, Multiply, by_numpy
from marius_oac.models.compute.row_optimizers import RowUpdate
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.tiles import Tile, blocks
from marius_oac.models.link_prediction import panels
from marius_oac.models.link_prediction.decoders import Decoder, make_decoder
from marius_oac.models.link_prediction.losses import make_loss
from marius_oac.models.link_prediction.program import Shape, Sizes, Waves, make_program
from marius_oac.models.link_prediction.regularizers import penalized
from marius_oac.models.link_prediction.staged import run_phases
from marius_oac.runtime import blas
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.types import Side, present

TILE_EDGES = 256  # at least, if the chunk has as many; fewer make products inefficient
_MAX_TILE_EDGES = 1024
_TILE_SCORES = 1 << 17  # the target, 512 KiB, which stay in a core's cache from one product to the next
_WAVE_SCORES = 1 << 25  # in memory at once: 128 MiB
_BLOCK_CANDIDATES = 256
_BLOCK_ROWS = 512
_BLOCK_RELATIONS = 64
_COPY_ROWS = 4096
_PACK_VECTORS = 8


class Relations(NamedTuple):
    """The dense table, float32 [R, Dr + state], None for a decoder without relations, and its update."""

    table: np.ndarray | None
    rule: RowUpdate


@lru_cache(maxsize=32)
def waves_of(sides: int, offsets: tuple[int, ...], candidates: int, rounded: bool = False) -> Waves:
    """Cuts a batch into tiles, and groups these into waves, depending only on the batch's shape.

    If inputs of products are `rounded`, tiles are smaller, and all but a chunk's last have an even number of edges.

    Raises:
        ValueError: a chunk has no edges, so that its candidates would get no gradients.
    """
    if any(first >= last for first, last in zip(offsets[:-1], offsets[1:], strict=True)):
        raise ValueError(f"a chunk without edges: {offsets}")
    least, target = (panels.TILE_EDGES, panels.TILE_SCORES) if rounded else (TILE_EDGES, _TILE_SCORES)
    size = max(least, min(_MAX_TILE_EDGES, target // candidates))
    size = max(1, min(size, _WAVE_SCORES // candidates))
    waves: list[list[Tile]] = [[]]
    offset = 0
    for s in range(sides):
        for chunk, (first, last) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            for start, stop in (panels.pairwise if rounded else blocks)(first, last, size):
                scores = (stop - start) * candidates
                if waves[-1] and offset + scores > _WAVE_SCORES:
                    waves.append([])
                    offset = 0
                waves[-1].append(Tile(s, chunk, start, stop, offset))
                offset += scores
    return tuple(map(tuple, waves))


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
        self._model, self._training, self._thread_pool = config.model, config.training, thread_pool
        self._scratch, self._multiply = Scratch(), multiply
        sides = (Side.TAIL,) if config.model.reciprocal else (Side.HEAD, Side.TAIL)
        self._sides = np.array(sides, np.int64)
        decoder = make_decoder(config.model)
        self._form, self._loss = _form_of(config, decoder), make_loss(config.training.loss)
        self._keeps_distances = needs_distances(decoder)
        self._sgemm = blas.sgemm() if multiply is by_numpy else 0
        self._rounded = config.compute.precision == BFLOAT16 and self._form.similarity == geometry.INNER
        self._in_lanes = self._rounded or self._sgemm > 0 or self._form.similarity != geometry.INNER
        self._gradient = np.empty((thread_pool.count, config.model.dimension), np.float32)

    def compute(self, rows: np.ndarray, data: EdgeBatch[np.ndarray], rule: RowUpdate, relations: Relations) -> float:
        """Updates `rows`, float32 [n, D + state], and the batch's relations in place. Returns the loss with penalty."""
        size, sampled = data.heads.size, self._form.sampled
        offsets = data.chunk_offsets if sampled else (0, size)
        chunks, per_group = len(offsets) - 1, present(data.negatives).shape[2] if sampled else len(rows)
        waves = waves_of(len(self._sides), offsets, per_group, self._rounded)
        batch = self._arrays(rows, data, rule, relations, chunks, per_group, waves)
        self._run(batch, waves, chunks, (rule, relations.rule))
        loss = float(batch.work.losses.mean())
        if self._form.penalty == kernels.NO_PENALTY:
            return loss
        weight = self._training.regularization.weight
        return loss + weight / size * float(batch.penalties.sum() + batch.relation_penalties.sum())

    def _run(self, batch: lanes.Arrays, waves: Waves, chunks: int, updates: tuple[RowUpdate, RowUpdate]) -> None:
        by_kernels = self._in_lanes and all(each.after is None for each in updates)
        shape = Shape(
            batch.per_group, chunks, len(batch.candidates), self._packed(chunks), self._form.sampled, batch.picks.size,
            len(batch.rows),
        )  # fmt: skip
        sizes = Sizes(_COPY_ROWS, _PACK_VECTORS, _BLOCK_CANDIDATES, _BLOCK_RELATIONS, _BLOCK_ROWS)
        program = make_program(waves, shape, sizes, together=by_kernels)
        last = len(program.phases) - 1
        in_lanes = 0 if not self._in_lanes else last if by_kernels else last - 2
        if in_lanes:
            counters = self._scratch.take("counters", last * lanes.WORDS, dtype=np.int64)
            counters[:] = 0
            schedule = (program.tasks, program.phases[: in_lanes + 1], counters)
            if self._rounded:
                rounded = panels.make_panels(batch, waves, chunks, len(self._gradient), self._scratch)
                run = partial(bfloat16_lanes.run, batch, rounded, *schedule)
            else:
                run = partial(lanes.run, batch, self._sgemm, *schedule)
            self._thread_pool.run([partial(run, lane) for lane in range(self._thread_pool.count)])
        run_phases(program, range(in_lanes, last), batch, updates, self._multiply, self._thread_pool)

    def _packed(self, chunks: int) -> int:
        """Groups of candidates that are rounded."""
        return 0 if not self._rounded else len(self._sides) * chunks if self._form.sampled else 1

    def _arrays(
        self,
        rows: np.ndarray,
        data: EdgeBatch[np.ndarray],
        rule: RowUpdate,
        relations: Relations,
        chunks: int,
        per_group: int,
        waves: Waves,
    ) -> lanes.Arrays:
        """Allocates the arrays of all stages, and prepares the relations for the decoder."""
        take, dimension, sampled = self._scratch.take, self._model.dimension, self._form.sampled
        size, sides, count = data.heads.size, len(self._sides), len(rows)
        listed = self._own("negatives", present(data.negatives) if sampled else np.empty(0, np.int64))
        groups = sides * chunks
        local, picks, formed, table = self._relations_of(data, relations)
        work = kernels.Work(
            relations=formed,
            queries=take("queries", sides, size, dimension),
            query_gradients=take("query_gradients", sides, size, dimension),
            positives=take("positives", sides, size),
            candidate_gradients=take("candidate_gradients", groups * per_group, dimension),
            losses=take("losses", sides, size, dtype=np.float64),
        )
        num_scores = max(wave[-1].offset + (wave[-1].stop - wave[-1].start) * per_group for wave in waves)
        weight = self._training.regularization.weight
        return lanes.Arrays(
            form=self._form._replace(share=np.float32(weight / size)),
            loss=self._loss_rule(sides * size, per_group if sampled else max(per_group - 1, 1)),
            rule=rule.rule,
            relation_rule=relations.rule.rule,
            rows=rows,
            edges=kernels.Edges(self._own("heads", data.heads), self._own("tails", data.tails), local, self._sides),
            work=work,
            listed=listed,
            candidates=take("candidates", 0 if self._rounded else len(listed) if sampled else per_group, dimension),
            per_group=per_group,
            scores=take("scores", 0 if self._rounded else num_scores),
            distances=take("distances", num_scores if self._keeps_distances else 0),
            first=take("first", count + 1, dtype=np.int64),
            places=take("places", 2 * size + listed.size, dtype=np.int64),
            relation_first=take("relation_first", picks.size + 1, dtype=np.int64),
            relation_places=take("relation_places", size, dtype=np.int64),
            picks=picks,
            table=table,
            penalties=take("penalties", count, dtype=np.float64),
            relation_penalties=take("relation_penalties", picks.size, dtype=np.float64),
            gradient=self._gradient,
            more=take("more", len(self._gradient) if len(waves) > 1 else 0, _BLOCK_CANDIDATES, dimension),
        )

    def _relations_of(self, data: EdgeBatch[np.ndarray], relations: Relations) -> tuple[np.ndarray, ...]:
        """The edges' relations in local indices, their rows in the table, what the decoder wants of them, the table."""
        if relations.table is None:
            local = self._own("relations", np.zeros(data.heads.size, np.int64))
            formed = self._scratch.take("formed", 1, self._model.dimension)
            return local, self._own("picks", local[:0]), formed, formed
        picks = self._own("picks", present(data.relation_rows))
        formed = self._scratch.take("formed", picks.size, self._model.dimension)
        (kernels.form_phases if self._form.phases else kernels.form_relations)(relations.table, picks, formed)
        return self._own("relations", present(data.relations)), picks, formed, relations.table

    def _own(self, name: str, array: np.ndarray) -> np.ndarray:
        """A flat int64 copy, so that kernels are compiled for one type of array."""
        copy = self._scratch.take(name, array.size, dtype=np.int64)
        copy[:] = array.reshape(-1)
        return copy

    def _loss_rule(self, terms: int, negatives: int) -> loss_kernels.LossRule:
        loss = self._training.loss
        floats = (1 / terms, 1 / negatives, loss.margin, loss.temperature)
        return loss_kernels.LossRule(present(self._loss.code), *(np.float32(value) for value in floats))
