"""Trainers to which batches are dispatched, and shards, without network, threads or clock: messages are delivered one
at a time, in any order that connections allow. Beside each shard Algorithm 2 as it is written says what it must have:
`naive_gba`.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from marius_oac.config.sections import DenseOptimizerConfig, OptimizerConfig
from marius_oac.models.compute.network_parameters import NetworkParameters
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.dense.allreduce import bounds_of
from marius_oac.nodes.shards.dispatched_rows import Dispatching
from marius_oac.nodes.shards.dispatched_shard import make_dispatched_shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.transport.messages import Applied, Done, Enter, Found, Kind, Pull, Push, Reserve, array, parse
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from tests.nodes.naive_gba import NaiveBuffer
from tests.nodes.wire import framed, tell

DIMENSION, ROWS, SIZE, RATE, DENSE_RATE, AHEAD, EPOCH = 3, 7, 8, 0.1, 0.2, 6, 4


class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.values = nn.Parameter(torch.linspace(-1, 1, SIZE))


def make_dispatching(mode, parts, shards, dense=True, decay=1.0):
    config = DenseOptimizerConfig(kind="sgd", learning_rate=DENSE_RATE, decay=decay)
    served = NetworkParameters(Vector(), config) if dense else None
    return Dispatching(
        mode=mode, parts=parts, bounds=bounds_of(served, shards), carriers=range(shards), dense=None, served=served
    )


def make_tables(node, count):
    optimizer = RowOptimizer(OptimizerConfig(kind="sgd", learning_rate=RATE))
    initials = [RowInitial("normal", 0.1, 3, f"node {node}, table {number}") for number in range(count)]
    stores = [MemoryStore("rows", ROWS, RowLayout(DIMENSION, 0), initial, ROWS) for initial in initials]
    return [NumberedTable(store, optimizer) for store in stores]


def everything(tables):
    """Values [ROWS, D] and timestamps [ROWS] of each table."""
    return [(each.read(np.arange(ROWS)), each.timestamps(np.arange(ROWS))) for each in tables]


class Oracle:
    """What a shard must have; is told what it was told."""

    def __init__(self, world, node, tables, dense):
        self.world, self.node = world, node
        self.buffer = NaiveBuffer(world.mode, dense.size, world.first)
        self.rows = [values.astype(np.float64) for values, _ in everything(tables)]
        self.timestamps = [np.full(ROWS, -1) for _ in tables]
        self.dense = dense.astype(np.float64)
        self.rate = 1.0

    def push(self, batch, token, share, gradients, dense):
        """A step's learning rates are those of the epoch of the last batch pushed before it is taken."""
        self.rate, rows = self.world.rate_of(batch), {}
        for table, part in enumerate(gradients):
            rows |= {(table, row): part[place] for place, row in enumerate(self.world.rows_of(batch, self.node, table))}
        self.take(self.buffer.push(batch, token, dense, rows if share else {}))

    def take(self, averages):
        if averages is None:
            return
        dense, rows = averages
        step, world = self.buffer.step - 1, self.world
        when = world.first + (step - world.first) * world.mode.aggregate // world.parts
        self.dense -= DENSE_RATE * self.rate * dense
        for (table, row), gradient in rows.items():
            self.rows[table][row] -= RATE * self.rate * gradient
            self.timestamps[table][row] = when


@dataclass
class Inside:
    """A batch between token and push."""

    token: int
    values: dict[int, list] = field(default_factory=dict)


class Trainer:
    """Says what `DispatchedRows` says, with `window` batches between pull and push and as many reserved as it likes."""

    def __init__(self, world, rank, window, reserves):
        self.world, self.rank, self.window, self.reserves = world, rank, window, reserves
        self.asking = self.through = self.wants_to_stop = False
        self.reserved, self.entering, self.inside, self.acks = deque(), None, {}, {}
        self.finished, self.dispatched, self.tokens = [], [], []

    def events(self):
        if not self.through and not self.asking and len(self.reserved) < self.reserves:
            yield "reserve"
        if self.reserved and self.entering is None and len(self.inside) < self.window:
            yield "enter"
        if self.inside and len(self.inside[min(self.inside)].values) == self.world.shards:
            yield "compute"  # in the order dealt

    def reserve(self):
        self.asking = True
        self.world.send(self.rank, 0, Reserve(self.wants_to_stop))

    def enter(self):
        self.entering = self.reserved.popleft()
        self.world.send(self.rank, 0, Enter(self.entering, 0))

    def compute(self):
        number, world = min(self.inside), self.world
        inside, self.acks[number] = self.inside.pop(number), {}
        share = world.share_of(number)
        for node in range(world.shards):
            *rows, last = inside.values[node] if world.dense else (*inside.values[node], None)
            gradients = [each * np.float32(0.5) + np.float32(0.01 * (number % 7 + 1)) for each in rows]
            if last is not None:
                dense = last * np.float32(0.3) + np.float32(0.02 * (number % 5) - 0.03) * np.float32(share > 0)
                gradients.append(np.append(dense, np.float32(world.epoch_of(number))))
            world.send(self.rank, node, Push(number, gradients, share, world.rate_of(number), token=inside.token))

    def take(self, node, frames):
        message = parse(frames)
        getattr(self, f"take_{message.kind.name.lower()}")(node, message)

    def take_dispatch(self, node, message):
        assert node == 0 and self.asking and not self.through
        self.asking, self.through = False, message.final
        if not message.final:
            self.reserved.append(message.batch_index)
            self.dispatched.append(message.batch_index)

    def take_token(self, node, message):
        assert node == 0 and self.entering == message.batch_index
        self.entering, self.inside[message.batch_index] = None, Inside(message.token)
        self.tokens.append(message.token)
        for each in range(self.world.shards):
            self.world.send(self.rank, each, self.world.pull(message.batch_index, each))

    def take_rows(self, node, message):
        found, world = [], self.world
        for table in range(world.tables):
            count = world.rows_of(message.batch_index, node, table).size
            found.append(array(message.values[table], np.float32, count, DIMENSION).copy())
        if world.dense:
            found.append(array(message.values[-1], np.float32, -1).copy())
        assert len(message.values) == len(found)
        self.inside[message.batch_index].values[node] = found

    def take_applied(self, node, message):
        acks = self.acks[message.batch_index]
        assert node not in acks
        acks[node] = message.step
        if len(acks) == self.world.shards:
            del self.acks[message.batch_index]
            steps = np.array([acks[each] for each in range(len(acks))])
            self.world.send(self.rank, 0, Done(message.batch_index, steps, np.zeros(1)))

    def take_finished(self, node, message):
        assert node == 0 and self.through and not (self.reserved or self.entering or self.inside or self.acks)
        self.finished.append(message.batch_index)


class World:
    """Args:
    mode, parts: of the stretch, which begins with global batch `first` and has `batches` of them.
    shards, tables, trainers: how many.
    seed: of the interleaving, the rows and the shares.
    dense: whether there are dense parameters.
    decay: what learning rates are multiplied with, once more in every epoch.
    stops_after: so many deliveries, then a trainer wants to stop.
    """

    def __init__(
        self, mode, parts, first, batches, shards, tables, trainers, seed,
        dense=True, decay=1.0, stops_after=None, window=1, slow=0,
    ):  # fmt: skip
        self.mode, self.parts, self.first, self.batches = mode, parts, first, batches
        self.shards, self.tables, self.seed, self.dense, self.decay = shards, tables, seed, dense, decay
        self.stops_after, self.slow, self.draw = stops_after, slow, random.Random(seed)
        self.stores = [make_tables(node, tables) for node in range(shards)]
        self.nodes = self.make_nodes(trainers, self.stores)
        initial, bounds = torch.linspace(-1, 1, SIZE).numpy(), self.dispatching.bounds
        self.oracles = [
            Oracle(self, node, tables, initial[bounds[node] : bounds[node + 1]])
            for node, tables in enumerate(self.stores)
        ]
        self.trainers = [Trainer(self, rank, window, 1 + (seed + rank) % 2) for rank in range(trainers)]
        self.up = {(rank, node): deque() for rank in range(trainers) for node in range(shards)}
        self.down = {connection: deque() for connection in self.up}
        self.delivered, self.replies = [], []

    def make_nodes(self, trainers, stores):
        self.dispatching = make_dispatching(self.mode, self.parts, self.shards, self.dense, self.decay)
        stretch = self.first, self.first + self.batches
        about = (trainers, AHEAD, self.dispatching, stretch)
        nodes = [make_dispatched_shard(tables, *about, node) for node, tables in enumerate(stores)]
        for each in nodes:
            each.begin(self.first)
        return nodes

    def rows_of(self, batch, node, table):
        draw = np.random.default_rng([self.seed, batch, node, table])
        return np.flatnonzero(draw.random(ROWS) < 0.4)

    def share_of(self, batch):
        return 0.0 if np.random.default_rng([self.seed, batch]).random() < 0.1 else 1 / self.parts

    def epoch_of(self, batch):
        """Epochs end within a stretch, and within a step of asynchronous modes."""
        return batch // self.parts // EPOCH

    def rate_of(self, batch):
        return self.decay ** self.epoch_of(batch)

    def pull(self, batch, node):
        return Pull(batch, [self.rows_of(batch, node, table) for table in range(self.tables)])

    def send(self, rank, node, message):
        self.up[rank, node].append([bytes(frame) for frame in message.frames()])

    def run(self):
        """To the end, whatever it takes."""
        while events := self.events():
            kind, what = self.draw.choice(events)
            if kind == "up":
                self.deliver(*what, self.up[what].popleft())
            elif kind == "down":
                self.trainers[what[0]].take(what[1], self.down[what].popleft())
            else:
                getattr(self.trainers[what], kind)()
        for node, oracle in zip(self.nodes, self.oracles, strict=True):
            node.flush()
            oracle.take(oracle.buffer.flush())
        self.check()
        return self

    def events(self):
        found = [("up", each) for each, queue in self.up.items() if queue]
        found += [("down", each) for each, queue in self.down.items() if queue]
        lazy = [(event, each.rank) for each in self.trainers for event in each.events()]
        # The first trainer computes late, again and again, so that its gradients are stale.
        eager = [each for each in lazy if each != ("compute", 0) or self.draw.random() >= self.slow]
        return found + eager or lazy

    def deliver(self, rank, node, frames):
        self.delivered.append((rank, node, frames))
        if self.stops_after is not None and len(self.delivered) >= self.stops_after:
            self.trainers[-1].wants_to_stop = True
        out, message = tell(self.nodes[node], rank, frames), parse(frames)
        said = [(peer, *(bytes(frame) for frame in reply.frames())) for peer, reply in out]
        self.replies.append(said)
        for peer, *reply in said:
            self.down[peer, node].append(reply)
        if isinstance(message, Push):
            self.pushed(node, message, out)
        elif isinstance(message, Pull):
            self.pulled(node, message, out)

    def pushed(self, node, message, out):
        rest = message.gradients
        oracle = self.oracles[node]
        counts = [self.rows_of(message.batch_index, node, table).size for table in range(self.tables)]
        parts = [
            array(frame, np.float32, count, DIMENSION) for frame, count in zip(rest[: self.tables], counts, strict=True)
        ]
        dense = array(rest[-1], np.float32, -1)[:-1] if self.dense else np.zeros(0, np.float32)
        oracle.push(message.batch_index, message.token, message.share, parts, dense)
        ((_, applied),) = out
        assert isinstance(applied, Applied)
        assert (applied.batch_index, applied.step) == (message.batch_index, oracle.buffer.step)
        self.compare(node)

    def pulled(self, node, message, out):
        ((_, found),) = out
        oracle, rows = (
            self.oracles[node],
            [self.rows_of(message.batch_index, node, each) for each in range(self.tables)],
        )
        expected = [values[mine] for values, mine in zip(oracle.rows, rows, strict=True)]
        expected += [oracle.dense] * self.dense
        assert found.final and len(found.values) == len(expected)
        for mine, theirs in zip(found.values, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

    def compare(self, node):
        oracle = self.oracles[node]
        for (values, timestamps), theirs, when in zip(
            everything(self.stores[node]), oracle.rows, oracle.timestamps, strict=True
        ):
            np.testing.assert_allclose(values, theirs, rtol=1e-5, atol=1e-6)
            assert np.array_equal(timestamps, when)

    def check(self):
        """What holds at the end."""
        dispatched = [batch for each in self.trainers for batch in each.dispatched]
        end = {number for each in self.trainers for number in each.finished}
        assert [len(each.finished) for each in self.trainers] == [1] * len(self.trainers) and len(end) == 1
        assert sorted(dispatched) == list(range(self.first * self.parts, *end)), "each is dealt once"
        assert not next(iter(end)) % self.parts, "it ends with a whole global batch"
        assert self.stops_after is not None or end == {(self.first + self.batches) * self.parts}
        for node, oracle in enumerate(self.oracles):
            self.compare(node)
            assert oracle.buffer.seen == set(dispatched)
            if self.dense and oracle.dense.size:
                own = array(self.state_of(node), np.float32, -1)
                np.testing.assert_allclose(own, oracle.dense, rtol=1e-5, atol=1e-6)
        assert len({oracle.buffer.step for oracle in self.oracles}) == 1

    def state_of(self, node):
        ((_, message),) = tell(self.nodes[node], 0, framed(Kind.DENSE, 5))
        assert isinstance(message, Found) and message.number == 5
        return message.values
