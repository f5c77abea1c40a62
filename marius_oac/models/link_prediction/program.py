"""The stages of a batch as a program: tasks in phases, for `kernels.cpu.lanes` or, one by one, `staged`."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu import lanes
from marius_oac.kernels.cpu.bfloat16_gemm import VECTOR
from marius_oac.models.compute.tiles import Tile, blocks, stretches

Waves = tuple[tuple[Tile, ...], ...]


class Sizes(NamedTuple):
    """How many rows a task has, at most; `packed` in vectors of 16 candidates."""

    copied: int
    packed: int
    candidates: int
    relations: int
    entities: int


class Shape(NamedTuple):
    """What a program depends on.

    Attributes:
        per_group: candidates of a group, which is a chunk on one side.
        chunks: of each side.
        copied: candidates that are gathered or, if they are not `sampled`, copied.
        packed: groups of candidates that are rounded in place of that; 0: none.
        relations, entities: rows that are updated.
    """

    per_group: int
    chunks: int
    copied: int
    packed: int
    sampled: bool
    relations: int
    entities: int


class Program(NamedTuple):
    """See `lanes.run`; the last two phases update relations and entities, in this order.

    Attributes:
        tasks: int64 [T, COLUMNS].
        phases: int64 [P + 1].
    """

    tasks: np.ndarray
    phases: np.ndarray


def make_program(waves: Waves, shape: Shape, sizes: Sizes, together: bool) -> Program:
    """The program of a batch.

    Args:
        waves: the tiles whose scores are in memory at once.
        together: whether relations are updated beside the last products, so that their own phase is empty.
    """
    if shape.packed:
        copied = _packs(shape.packed, shape.per_group, sizes.packed)
    else:
        copied = _ranges(lanes.GATHER if shape.sampled else lanes.COPY, shape.copied, sizes.copied)
    products = list(_products(waves, shape.per_group, shape.chunks, shape.relations > 0, sizes.candidates))
    relations = _ranges(lanes.RELATIONS, shape.relations, sizes.relations)
    if together:
        products[-1], relations = np.concatenate((relations, products[-1])), relations[:0]
    phases = [copied, *products, relations, _ranges(lanes.ENTITIES, shape.entities, sizes.entities)]
    return Program(np.concatenate(phases), np.cumsum([0, *map(len, phases)]))


def _ranges(kind: int, count: int, size: int) -> np.ndarray:
    """Tasks for [0, count), in the fewest ranges of at most `size`; int64 [., COLUMNS]."""
    cuts = blocks(0, count, size)
    tasks = np.zeros((len(cuts), lanes.COLUMNS), np.int64)
    if cuts:
        tasks[:, 0], tasks[:, 1:3] = kind, cuts
    return tasks


@lru_cache(maxsize=32)
def _packs(groups: int, per_group: int, size: int) -> np.ndarray:
    """The tasks that round all candidates of the groups."""
    cuts = [(VECTOR * begin, min(VECTOR * end, per_group)) for begin, end in blocks(0, -(-per_group // VECTOR), size)]
    tasks = [(lanes.PACK, group, *cut) for group in range(groups) for cut in cuts]
    return np.pad(np.array(tasks, np.int64), ((0, 0), (0, lanes.COLUMNS - 4)))


@lru_cache(maxsize=32)
def _products(waves: Waves, per_group: int, chunks: int, has_relations: bool, size: int) -> tuple[np.ndarray, ...]:
    """The phases of tiles and of candidates, in turns."""

    def place(tile: Tile) -> tuple[int, ...]:
        return tile.s, tile.start, tile.stop, tile.offset, tile.s * chunks + tile.chunk

    phases, begun = list[np.ndarray](), set[int]()
    for number, wave in enumerate(waves):
        tiles = [(lanes.TILE, *place(tile), 0, 0, 0) for tile in wave]
        if number == 0:
            tiles.append((lanes.INVERT_ENTITIES, *[0] * (lanes.COLUMNS - 1)))
            tiles += [(lanes.INVERT_RELATIONS, *[0] * (lanes.COLUMNS - 1))] * has_relations
        candidates = []
        for each in stretches(list(wave)):
            *_, group = place(each)
            for begin, end in blocks(0, per_group, size):
                candidates.append((lanes.CANDIDATES, *place(each), begin, end, group in begun))
            begun.add(group)
        phases += [np.array(tiles, np.int64), np.array(candidates, np.int64)]
    return tuple(phases)
