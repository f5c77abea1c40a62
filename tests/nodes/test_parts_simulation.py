"""Virtual parts through the protocol: trainers and shards under random interleavings, one to eight trainers, the same
bits of rows; and pushes of several blocks that nobody sends."""

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.nodes.parts.batch import OnePart, PartedBatch, block_sums, frames_of
from marius_oac.nodes.parts.blocks import blocks_of, parts_of
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.transport.messages import Malformed, Pull, Push
from marius_oac.types import BatchData
from tests.nodes.test_parts import naive_sums
from tests.nodes.test_protocol_simulation import (
    DIMENSION,
    EPSILON,
    OPTIMIZER,
    RATE,
    ROWS,
    Trainer,
    bits,
    gradient,
    simulate,
    store,
)  # fmt: skip
from tests.nodes.wire import tell

PARTS = 8


class PartTrainer(Trainer):
    """Computes some parts of each batch: `parts[number][part][shard]` are their rows."""

    def __init__(self, rank, own, shards, ahead, parts, shares):
        super().__init__(rank, own, shards, ahead)
        self.parts, self.shares = parts, shares

    def compute(self, share):
        number = self.computed
        self.computed += 1
        values = self.values.pop(number)
        trainers = len(self.trainers)
        own = parts_of(self.rank, trainers, PARTS)
        live = [part for part in own if self.shares[number][part]]
        for shard, mine in enumerate(self.batches[number]):
            at = [np.searchsorted(mine, self.parts[number][part][shard]) for part in live]
            data = PartedBatch(
                own=tuple(
                    OnePart(part, BatchData(share=self.shares[number][part]), [index])
                    for part, index in zip(live, at, strict=True)
                ),
                blocks=blocks_of(own, PARTS),
            )
            found = [[gradient(values[shard][index], number, part)] for part, index in zip(live, at, strict=True)]
            sums, whole = block_sums(data, found, [(mine.size, DIMENSION)]) if live else [], 1.0
            if data.alone and live:
                (frames,), whole = found, self.shares[number][live[0]]
            elif len(sums) > 1:
                frames = frames_of(sums, 0, np.arange(mine.size))
            else:
                frames = [sums[0].tables[0][1] if live else np.zeros((mine.size, DIMENSION), np.float32)]
            yield shard, Push(number, frames, whole if live else 0.0)


def trained(parts, shares, trainers, shards, ahead, choose):
    """The stores of the shards after these trainers have trained all batches."""
    batches = []
    for rank in range(trainers):
        own = parts_of(rank, trainers, PARTS)
        batches.append([
            [np.unique(np.concatenate([batch[part][shard] for part in own if share[part]] or [batch[own[0]][shard]]))
             for shard in range(shards)]
            for batch, share in zip(parts, shares, strict=True)
        ])  # fmt: skip

    def make(rank, mine, count, far):
        found = PartTrainer(rank, mine, count, far, parts, shares)
        found.trainers = batches
        return found

    tables = [NumberedTable(store(node), OPTIMIZER) for node in range(shards)]
    return simulate(batches, shards, [1.0] * trainers, ahead, choose, make, tables, parts=PARTS)


def by_hand(parts, shares, shards):
    """One batch after the other with the naive tree: values float32 of each shard, and which rows were updated."""
    values = [next(store(node).blocks()).rows[:, :DIMENSION].copy() for node in range(shards)]
    squares = [np.zeros_like(each) for each in values]
    for number, (batch, share) in enumerate(zip(parts, shares, strict=True)):
        for shard in range(shards):
            rows = [each[shard] for each in batch]
            found = [gradient(values[shard][own], number, part) for part, own in enumerate(rows)]
            for row, total in enumerate(naive_sums(rows, found, share, PARTS, ROWS)):
                if total is not None:
                    squares[shard][row] += total**2
                    values[shard][row] -= (
                        np.float32(RATE) * total / (np.sqrt(squares[shard][row]) + np.float32(EPSILON))
                    )
    return values


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 5))
@example(1, 2, 4)
@settings(deadline=None, max_examples=2)
def test_any_number_of_trainers_and_any_interleaving_has_the_same_bits(seed, shards, ahead):
    draw = np.random.default_rng(seed)
    parts = [
        [[np.sort(draw.permutation(ROWS)[: draw.integers(0, ROWS + 1)]) for _ in range(shards)] for _ in range(PARTS)]
        for _ in range(3)
    ]
    shares = [[0.0 if draw.random() < 0.2 else float(draw.random()) for _ in range(PARTS)] for _ in parts]
    found = [trained(parts, shares, trainers, shards, ahead, random.Random(seed).choice) for trainers in (1, 3, 8)]
    for each in found:
        assert bits(each) == bits(found[0])
    for each, values in zip(found[0], by_hand(parts, shares, shards), strict=True):
        assert np.allclose(next(each.blocks()).rows[:, :DIMENSION], values, atol=1e-6)


ONES = np.ones((2, DIMENSION), np.float32)


@pytest.mark.parametrize(
    "frames",
    [
        [ONES],
        [np.zeros((2, 1), np.uint8), ONES],
        [np.array([[0x80], [0x40], [0]], np.uint8), ONES],
        [np.array([[0x80], [0xC0]], np.uint8), ONES],
        [np.array([[0x80], [0x40]], np.uint8), ONES, ONES],
    ],
    ids=["no bits", "no rows", "three blocks", "more bits than rows", "three frames"],
)
def test_blocks_that_do_not_fit_are_refused_and_change_nothing(frames):
    shard = Shard([NumberedTable(store(0), OPTIMIZER)], 3, parts=8)  # trainer 0 has parts 0, 1 in two blocks: 0 to 1
    before = bits([shard.tables[0].store])
    for rank in range(3):
        tell(shard, rank, Pull(0, [np.arange(2)]).frames())
    with pytest.raises(Malformed):
        tell(shard, 1, Push(0, frames).frames())
    assert bits([shard.tables[0].store]) == before
    tell(shard, 1, Push(0, [np.array([[0x80], [0x40]], np.uint8), ONES]).frames())


def test_a_push_of_share_0_adds_nothing():
    shard = Shard([NumberedTable(store(0), OPTIMIZER)], 2, parts=2)
    tell(shard, 0, Pull(0, [np.arange(2)]).frames())
    tell(shard, 1, Pull(0, [np.arange(4)]).frames())
    tell(shard, 0, Push(0, [ONES]).frames())
    tell(shard, 1, Push(0, [np.ones((4, DIMENSION), np.float32)], 0.0).frames())
    assert shard.tables[0].timestamps(np.arange(4)).tolist() == [0, 0, -1, -1]
