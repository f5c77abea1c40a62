"""A shard in lockstep against the naive rule, message by message: who is answered when, with which rows. Trainers pull
and push in any order, send what nobody sends, fall silent, and others go on in their place."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.nodes import thousand
from marius_oac.nodes.parts.blocks import blocks_of, parts_of
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.transport.messages import Malformed, Patch, Pull, Push, Rows
from tests.nodes.naive_lockstep import NaiveLockstep
from tests.nodes.test_protocol_simulation import DIMENSION, OPTIMIZER, ROWS, bits, store

AHEAD, TABLES = 3, 2


class World:
    """The shard and the rule; `tell` gives both a message and compares what they say."""

    def __init__(self, tables, trainers, parts, first, changed, draw):
        self.tables, self.trainers, self.parts, self.draw = tables, trainers, parts, draw
        self.shard, self.naive = Shard(tables, trainers, ahead=AHEAD, parts=parts), NaiveLockstep(
            trainers, AHEAD, first, changed
        )  # fmt: skip
        self.shard.begin(first)

    def step(self, trainer):
        """One message of this trainer; mostly one that makes sense."""
        batch = self.naive.applied() + 1 + self.draw.randrange(-1, AHEAD + 1)
        mine = [number for number, who in self.naive.answered if who == trainer]
        behind = sorted(number for number in mine if (number, trainer) not in self.naive.pushed)
        if behind and self.draw.random() < 0.5:
            self.push(trainer, behind[0] if self.draw.random() < 0.8 else batch)
        else:
            following = 1 + max((number for number, who in self.naive.pulled if who == trainer), default=batch)
            self.pull(trainer, following if self.naive.pulled and self.draw.random() < 0.7 else batch)

    def pull(self, trainer, batch):
        rows = [[self.draw.randrange(ROWS) for _ in range(self.draw.randrange(ROWS))] for _ in self.tables]
        message = Pull(max(batch, 0), [np.array(each, np.int64) for each in rows])
        self.compare(trainer, message, self.naive.pull(trainer, message.batch_index, rows))

    def push(self, trainer, batch):
        rows = self.naive.pulled.get((batch, trainer), [[]] * TABLES)
        blocks = 1 if self.parts is None else len(blocks_of(parts_of(trainer, self.trainers, self.parts), self.parts))
        share = 0.0 if batch % 3 == 0 or self.draw.random() < 0.2 else self.draw.random()  # some batches change nothing
        if blocks == 1 or not share:
            changed = [] if self.parts and not share else [(at, row) for at, own in enumerate(rows) for row in own]
            frames = [self.gradients(len(own)) for own in rows]
        else:
            frames, changed = [], []
            for table, own in enumerate(rows):
                has = np.array([[self.draw.random() < 0.6 for _ in own] for _ in range(blocks)], np.bool_)
                frames += [np.packbits(has, axis=1), self.gradients(int(has.sum()))]
                changed += [(table, row) for at, row in enumerate(own) if has[:, at].any()]
        message = Push(max(batch, 0), frames, share)
        self.compare(trainer, message, self.naive.push(trainer, batch, changed))

    def gradients(self, count):
        return np.array([[self.draw.gauss(0, 1) for _ in range(DIMENSION)] for _ in range(count)], np.float32).reshape(
            count, DIMENSION
        )

    def compare(self, trainer, message, expected):
        if expected is None:
            before = bits([table.store for table in self.tables])
            with pytest.raises(Malformed):
                self.shard.handle(trainer, message)
            assert bits([table.store for table in self.tables]) == before
            return
        found = [self.seen(*each) for each in self.shard.handle(trainer, message)]
        assert found == expected and self.shard.applied == self.naive.applied()

    def seen(self, to, message):
        """A message of the shard as the rule says it; its values must be those of the rows, as they are by now."""
        if isinstance(message, Rows):
            asked = self.naive.pulled[message.batch_index, to]
            for table, rows, values in zip(self.tables, asked, message.values, strict=True):
                assert np.array_equal(values, now(table)[rows])
            return to, "rows", message.batch_index, message.final
        if isinstance(message, Patch):
            asked, places = self.naive.pulled[message.batch_index, to], message.newer[::2]
            if message.batch_index == self.shard.applied + 1:  # of several batches at once, the last one's
                for table, rows, at, values in zip(self.tables, asked, places, message.newer[1::2], strict=True):
                    assert np.array_equal(values, now(table)[np.array(rows, np.int64)[at]])
            return to, "patch", message.batch_index, [each.tolist() for each in places]
        return to, "applied", message.batch_index


def now(table):
    return next(table.store.blocks()).rows[:, :DIMENSION]


@given(st.integers(0, 2**32), st.sampled_from([None, 3, 8]))
def test_a_shard_answers_when_the_rule_says(seed, parts):
    draw, first, changed = random.Random(seed), 0, {}
    tables = [NumberedTable(store(number), OPTIMIZER) for number in range(TABLES)]
    for _ in range(3):  # sets of trainers: some join or leave between two batches
        world = World(tables, draw.randint(1, parts or 4), parts, first, changed, draw)
        there = list(range(world.trainers))
        for _ in range(30 + 10 * world.trainers):
            world.step(draw.choice(there))
            if len(there) > 1 and draw.random() < 0.01:  # one is gone: nothing more is applied
                there.remove(draw.choice(there))
        first = world.shard.applied + 1


@pytest.mark.parametrize("trainers, parts", [(1, 1), (2, 8), (3, 8)])
def test_a_batch_to_which_no_trainer_adds_anything_is_applied(trainers, parts):
    table = NumberedTable(store(0), OPTIMIZER)
    shard, before = Shard([table], trainers, parts=parts), bits([table.store])
    for batch in range(2):
        for trainer in range(trainers):
            shard.handle(trainer, Pull(batch, [np.arange(2)]))
        for trainer in range(trainers):
            out = shard.handle(trainer, Push(batch, [np.ones((2, DIMENSION), np.float32)], 0.0))
        assert shard.applied == batch and [to for to, _ in out] == list(range(trainers))
    assert bits([table.store]) == before


def test_the_benchmark_of_many_trainers_runs(capsys):
    thousand.main(["--trainers", "8", "--rows", "4", "--in-flight", "2", "--batches", "2"])
    head, _, row = capsys.readouterr().out.splitlines()
    assert head.startswith("| trainers |") and row.startswith("| 8 |")
