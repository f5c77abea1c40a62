"""Workers, shards and the coordinator without network, threads or clock: messages are delivered one at a time, in any
order that connections allow, and workers die and come.

A batch's gradient is 1 at the batch's own place and 0 elsewhere, so that what the steps add up to says which batches
were applied, where, and how often.
"""

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from marius_oac.nodes.gba.aggregator import DenseAggregator, RowAggregator
from marius_oac.nodes.gba.coordinator import Coordinator
from marius_oac.nodes.gba.dispatcher import WAIT, Dispatcher
from marius_oac.nodes.transport.messages import Malformed

ROWS = 6


def rows_of(batch):
    return np.flatnonzero(np.random.default_rng(batch).integers(0, 2, ROWS))


class Shard:
    """`applied`: the weight of each batch in all steps; `rows_applied`: in how many steps each row had some of it."""

    def __init__(self, mode, end, first, step):
        self.mode, self.tags = mode, np.full(ROWS, -1, np.int64)
        self.dense = DenseAggregator(mode, end, step, first)
        self.rows = RowAggregator(mode, end, self.tags.__getitem__, step, first)
        self.applied, self.rows_applied = np.zeros(end), np.zeros((ROWS, end))
        self.taken, self.refused = [], 0

    @property
    def step(self):
        return self.dense.step

    def push(self, batch, token):
        own, rows, step = np.zeros(len(self.applied), np.float32), rows_of(batch), self.step
        own[batch] = 1
        try:
            self._take(
                self.dense.add(batch, token, own), self.rows.add(batch, token, rows, np.tile(own, (rows.size, 1)))
            )
        except Malformed:
            self.refused += 1
        else:
            if self.mode.counts(token, step):
                self.taken.append(batch)
        return self.step

    def fill(self, tokens):
        for token in tokens:
            self._take(self.dense.fill(token), self.rows.fill(token))
        return self.step

    def refuse(self, batches):
        settled = [self.dense.refuse(batch) for batch in batches]
        assert settled == [self.rows.refuse(batch) for batch in batches]
        return settled, self.step

    def flush(self):
        count = self.dense._places
        self._take(self.dense.flush(), self.rows.flush(), count)

    def _take(self, dense, found, count=None):
        assert (dense is None) == (found is None) and self.dense.step == self.rows.step
        if dense is not None:
            rows, averages = found
            self.applied += dense * (count or self.mode.aggregate)
            self.rows_applied[rows] += averages > 0
            self.tags[rows] = self.step - 1


@dataclass
class Worker:
    name: int
    life: int
    dispatch: tuple | None = None
    ended: bool = False
    acks: dict = field(default_factory=dict)


class World:
    """Args:
    mode: of all.
    batches, shards, workers: how many; there is always somebody while there is something to do.
    seed: of the interleaving.
    deaths, joins: so many workers die, and come: for the first time or again.
    """

    def __init__(self, mode, batches, shards, workers, seed, deaths=0, joins=0):
        self.draw, self.deaths, self.joins = random.Random(seed), deaths, joins
        self.ahead = seed % 3  # batches that a worker reserves before it asks
        first, self.first_step = self.draw.choice([(0, 0), (7, 3)])
        self.batches = range(first, first + batches)
        self.shards = [Shard(mode, first + batches, first, self.first_step) for _ in range(shards)]
        self.coordinator = Coordinator(Dispatcher(mode, first, first + batches, self.first_step), shards)
        self.workers, self.lives, self.lost, self.dispatched = {}, {}, [], []
        self.known, self.missed = {}, set()  # the latest life of each worker that has asked; lives known to be over
        self.queues = {}  # connection: messages in order; the connection's kind says who takes them
        for name in range(workers):
            self.join(name)

    def run(self):
        while events := self.events():
            kind, what = self.draw.choice(events)
            getattr(self, kind)(what)
        assert self.coordinator.finished, "stuck"
        assert all(each.ended for each in self.workers.values()), "somebody waits for ever"
        for shard in self.shards:
            shard.flush()
        return self

    def events(self):
        found = [("deliver", each) for each, queue in self.queues.items() if queue]
        found += [("push", each) for each in self.workers.values() if each.dispatch]
        if not found and not self.coordinator.finished and not self.workers:
            return [("join", len(self.lives))]
        if self.deaths and self.workers and self.draw.random() < 0.1:
            found.append(("die", self.draw.choice(list(self.workers))))
        if self.joins and self.draw.random() < 0.1:
            gone = [each for each in self.lives if each not in self.workers]
            found.append(("join", self.draw.choice([*gone, len(self.lives)])))
            self.joins -= 1
        return found

    def send(self, *connection_and_message):
        *connection, message = connection_and_message
        self.queues.setdefault(tuple(connection), deque()).append(message)

    def join(self, name):
        self.lives[name] = self.lives.get(name, -1) + 1
        worker = self.workers[name] = Worker(name, self.lives[name])
        self.send("ask", name, worker.life, ("ask",))

    def die(self, name):
        """Of what it had sent an end is lost, on each connection; then the coordinator notices."""
        self.deaths -= 1
        worker = self.workers.pop(name)
        for (kind, *who), queue in self.queues.items():
            if kind in ("ask", "push") and who[:2] == [name, worker.life]:
                for _ in range(self.draw.randint(0, len(queue))):
                    queue.pop()
        self.send("ask", name, worker.life, ("gone",))

    def push(self, worker):
        batch, token = worker.dispatch
        worker.dispatch, worker.acks[batch] = None, {}
        for shard in range(len(self.shards)):
            self.send("push", worker.name, worker.life, shard, (batch, token))
        self.send("ask", worker.name, worker.life, ("ask",))  # it waits for no ack

    def deliver(self, connection):
        kind, *who = connection
        getattr(self, f"at_{kind}")(*who, *self.queues[connection].popleft())

    def at_push(self, name, life, shard, batch, token):
        self.send("ack", name, life, shard, (batch, self.shards[shard].push(batch, token)))

    def at_ack(self, name, life, shard, batch, step):
        worker = self.workers.get(name)
        if worker is not None and worker.life == life:
            acks = worker.acks[batch]
            acks[shard] = step
            if len(acks) == len(self.shards):
                del worker.acks[batch]
                self.send("ask", name, life, ("done", batch, [acks[each] for each in range(len(self.shards))]))

    def at_ask(self, name, life, what, *rest):
        """At the coordinator, on a connection of its own for each life."""
        if (name, life) in self.missed:
            return
        known = self.known.get(name, -1)
        if known < life:
            if known >= 0 and (name, known) not in self.missed:  # it is back before it was missed
                self.gone(name)
            self.known[name] = life
        if what == "ask":
            self.reserve(name)
            dispatch = self.coordinator.ask(name)
            if dispatch is not WAIT:
                self.dispatched += [dispatch.batch] if dispatch else []
                self.send("told", name, life, ("deal", dispatch))
        elif what == "done":
            self.wake(self.coordinator.done(name, *rest))
        else:
            self.gone(name)

    def reserve(self, name):
        for _ in range(self.draw.randint(0, self.ahead)):
            if not self.coordinator.expects(name) and len(self.coordinator.dispatcher.reserved(name)) < self.ahead:
                self.coordinator.dispatcher.reserve(name)
        self.wake(self.coordinator.dispatcher.woken())

    def gone(self, name):
        self.missed.add((name, self.known[name]))
        batches = self.coordinator.gone(name)
        if batches is None:
            return
        for shard in range(len(self.shards)):
            self.send("order", shard, ("refuse", name, batches))

    def wake(self, names):
        for name in names:
            self.send("told", name, self.known[name], ("again", None))

    def at_told(self, name, life, what, dispatch):
        worker = self.workers.get(name)
        if worker is None or worker.life != life:
            return
        if what == "again":
            self.send("ask", name, life, ("ask",))
        elif dispatch is None:
            worker.ended = True
        else:
            worker.dispatch = dispatch

    def at_order(self, shard, what, *rest):
        """At a shard."""
        if what == "refuse":
            name, batches = rest
            self.send("answer", shard, (name, *self.shards[shard].refuse(batches)))
        else:
            self.send("answer", shard, (None, None, self.shards[shard].fill(*rest)))

    def at_answer(self, shard, name, settled, step):
        if name is None:
            self.wake(self.coordinator.stepped(shard, step))
            return
        verdict = self.coordinator.answered(shard, name, settled, step)
        self.lost += verdict.lost
        assert all(each.dense.settled(batch) for each in self.shards for batch in verdict.done)
        self.wake(verdict.woken)
        for each, tokens in enumerate(verdict.fills):
            if tokens:
                self.send("order", each, ("fill", tokens))
