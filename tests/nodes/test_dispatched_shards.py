"""Shards and the desk that deals batches, as state machines: against Algorithm 2, whatever comes when."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.gba.coordinator import Coordinator
from marius_oac.nodes.gba.dispatch_server import DispatchServer
from marius_oac.nodes.gba.dispatcher import Dispatcher
from marius_oac.nodes.gba.modes import Mode, make_mode
from marius_oac.nodes.shards.dispatched_shard import DispatchedShard
from marius_oac.nodes.transport.messages import (
    Answer,
    Dispatch,
    Done,
    Enter,
    Fill,
    Filled,
    Finished,
    Kind,
    Malformed,
    Pull,
    Push,
    Refuse,
    Reserve,
    Token,
    parse,
)  # fmt: skip
from tests.nodes.dispatched_world import DIMENSION, ROWS, World
from tests.nodes.wire import framed, tell

NOTHING = np.zeros(0, np.bool_)
KINDS = ("gba", "async", "bsp", "hop-bs", "hop-bw")


@st.composite
def worlds(draw, **fixed):
    kind, trainers, parts = draw(st.sampled_from(KINDS)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    mode = make_mode(
        kind, trainers, parts, 1, b1=draw(st.integers(0, 2)), b2=draw(st.integers(1, 7)),
        b3=draw(st.integers(0, trainers - 1)), threshold=draw(st.integers(0, 2)),
        decay=draw(st.sampled_from(["threshold", "polynomial", "exponential"])),
        rows_over=draw(st.sampled_from(["holders", "gradients"])),
    )  # fmt: skip
    about = {
        "first": draw(st.sampled_from([0, 9])),
        "batches": draw(st.integers(1, 6)),
        "shards": draw(st.integers(1, 3)),
        "tables": draw(st.integers(1, 2)),
        "trainers": trainers,
        "seed": draw(st.integers(0, 2**32)),
        "dense": draw(st.booleans()),
        "decay": draw(st.sampled_from([1.0, 0.5])),
        "window": draw(st.integers(1, 2)),
        "slow": draw(st.sampled_from([0, 0.97])),
    } | fixed
    return World(mode, parts, **about)


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_shards_are_algorithm_2_whatever_comes_when(world):
    world.run()
    mode, metrics = world.mode, [node.metrics() for node in world.nodes]
    buffers = [oracle.buffer for oracle in world.oracles]
    assert metrics[0]["dense.staleness_max"] == max([0, *buffers[0].staleness])
    assert metrics[0]["tokens"] == world.batches * world.parts
    if mode.kind == "gba":
        tokens = sorted(token for each in world.trainers for token in each.tokens)
        assert [each["rows.staleness_max"] for each in metrics] == [max([0, *each.row_staleness]) for each in buffers]
        assert tokens == [world.first + number // mode.aggregate for number in range(len(tokens))]


@settings(deadline=None, max_examples=30)
@given(worlds(batches=20), st.integers(1, 150))
def test_who_wants_to_stop_stops_all_at_a_whole_global_batch(world, moment):
    world.stops_after = moment
    world.run()
    (end,) = {number for each in world.trainers for number in each.finished}
    assert end <= (world.first + world.batches) * world.parts


def test_a_stop_before_anything_is_dealt_deals_nothing():
    world = World(make_mode("gba", 2, 2, 1), 2, 9, 5, 2, 1, 2, 1)
    for each in world.trainers:
        each.wants_to_stop = True
    world.stops_after = 0
    world.run()
    assert [each.finished for each in world.trainers] == [[18], [18]]
    assert [each.dispatched for each in world.trainers] == [[], []]


def late(seed, **rules):
    """What is dropped of dense gradients, and how stale they are, with a slow trainer."""
    world = World(make_mode("gba", 3, 2, 1, **rules), 2, 0, 20, 2, 1, 3, seed, slow=0.99).run()
    found = world.nodes[0].metrics()
    return found["dense.dropped"], found["dense.staleness_max"], found["rows.dropped"]


def test_the_world_has_late_gradients_that_are_dropped():
    """Else the tests above would show little."""
    found = [late(seed, threshold=0) for seed in range(5)]
    assert all(dropped and stale > 1 for dropped, stale, _ in found) and sum(rows for *_, rows in found)
    assert not any(dropped for dropped, *_ in (late(seed, decay="polynomial") for seed in range(5)))


@pytest.mark.parametrize("wrong", ["tags", "clock", "weights", "rate", "epoch"])
def test_the_world_would_find_another_algorithm(wrong, monkeypatch):
    if wrong == "tags":
        monkeypatch.setattr(DispatchedShard, "_tags", lambda self, table: lambda rows: np.full(rows.size, -1))
    if wrong == "weights":
        monkeypatch.setattr(Mode, "weights", lambda self, staleness: np.ones(staleness.size, np.float32))
    if wrong == "clock":
        monkeypatch.setattr("marius_oac.nodes.gba.modes.Clock.timestamp", lambda self, step: step + 1)
    if wrong in ("rate", "epoch"):
        real = DispatchedShard._finish

        def forgetful(self, *averages):
            if wrong == "rate":  # of rows; the epoch gives that of the dense parameters
                self._factor = 1.0
            else:
                self._epoch = 0
            real(self, *averages)

        monkeypatch.setattr(DispatchedShard, "_finish", forgetful)
    with pytest.raises(AssertionError):
        for seed in range(10):
            mode = make_mode("gba", 3, 2, 1, threshold=0)
            World(mode, 2, 0, 20, 2, 1, 3, seed, slow=0.99, decay=0.5).run()


class Said:
    """What a recorded run has said so far to each shard."""

    def __init__(self, world):
        self.world = world
        self.pulled, self.pushed, self.entered, self.out, self.through = set(), set(), set(), {}, set()

    def hear(self, rank, node, frames, replies):
        match parse(frames):
            case Pull(number):
                self.pulled.add((rank, node, number))
            case Push(number):
                self.pushed.add((rank, node, number))
            case Enter(number):
                self.entered.add((rank, number))
            case Done(number):
                del self.out[number]
        for peer, reply in replies:
            match reply:
                case Token(number):
                    self.entered.discard((peer, number))
                    self.out[number] = peer
                case Dispatch(final=True):
                    self.through.add(peer)

    def nonsense(self):
        """Messages that nobody sends now: (rank, shard, frames)."""
        world, trainers = self.world, range(len(self.world.trainers))
        yield from ((0, node, []) for node in range(world.shards))
        for kind in (
            Kind.ROWS,
            Kind.PATCH,
            Kind.APPLIED,
            Kind.FOUND,
            Kind.SYNC,
            Kind.DISPATCH,
            Kind.TOKEN,
            Kind.FINISHED,
        ):
            yield 0, 0, framed(kind, 1)
        for node in range(1, world.shards):
            for kind in (Kind.RESERVE, Kind.ENTER, Kind.DONE):
                yield 0, node, framed(kind, 1)
        yield from self.nonsense_of_batches()
        for rank in trainers:
            yield rank, 0, framed(Kind.ENTER, 10**6)
            yield rank, 0, framed(Kind.DONE, 10**6, [np.zeros(world.shards, np.int64), np.zeros(1)])
        for rank in self.through:
            yield rank, 0, framed(Kind.RESERVE, 0)
        for rank, number in self.entered:
            yield rank, 0, framed(Kind.ENTER, number)
            yield (rank + 1) % len(trainers), 0, framed(Kind.ENTER, number)
        for number, rank in self.out.items():
            steps = np.zeros(world.shards, np.int64)
            if len(trainers) > 1:
                yield (rank + 1) % len(trainers), 0, framed(Kind.DONE, number, [steps, np.zeros(1)])
            yield rank, 0, framed(Kind.DONE, number)
            yield rank, 0, framed(Kind.DONE, number, [steps[1:], np.zeros(1)])
            yield rank, 0, framed(Kind.DONE, number, [np.append(steps, 0), np.zeros(1)])
            yield rank, 0, [framed(Kind.DONE, number)[0], b"1234567"]
            yield rank, 0, framed(Kind.DONE, number, [steps])
            yield rank, 0, framed(Kind.DONE, number, [steps, np.full(1, np.nan)])

    def nonsense_of_batches(self):
        world = self.world
        for rank, node, number in self.pulled - self.pushed:
            yield rank, node, world.pull(number, node).frames()  # again
            good, dense = self.gradients(number, node)
            header = framed(Kind.PUSH, number)[0]
            bad = [[], [*good, *good, *dense], [*good, *dense, dense[0]], dense]
            bad += [[good[0][:-1], *good[1:], *dense]] * bool(good[0].size)
            bad += [[*good, dense[0][:-1]], [*good, np.append(dense[0], 1)], [*good, np.full_like(dense[0], np.nan)]]
            bad += [[*good, np.append(dense[0][:-1], epoch)] for epoch in (-1, 0.5, np.inf)]
            for arrays in bad:
                yield rank, node, [header, *(each.astype(np.float32).tobytes() for each in arrays)]
            yield rank, node, [header, *(each.tobytes() for each in good), b"123"]
        for rank, node, number in self.pushed:
            yield rank, node, self.push(number, node)  # again
        for node in range(world.shards):
            yield 0, node, self.push(10**6, node)  # never pulled
            for arrays in ([], [np.arange(1)] * (world.tables + 1), [np.array([ROWS])] * world.tables):
                yield 0, node, framed(Kind.PULL, 10**6, arrays)
            yield 0, node, [framed(Kind.PULL, 10**6)[0], *[b"1234"] * world.tables]

    def gradients(self, number, node):
        world = self.world
        sizes = [world.rows_of(number, node, table).size for table in range(world.tables)]
        first, end = world.dispatching.bounds[node : node + 2]
        return [np.ones(size * DIMENSION, np.float32) for size in sizes], [np.ones(end - first + 1, np.float32)]

    def push(self, number, node):
        good, dense = self.gradients(number, node)
        return framed(Kind.PUSH, number, [*good, *dense])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1])
def test_what_nobody_sends_is_refused_and_changes_nothing(kind, seed):
    """Between all messages of a run all sorts of nonsense; the run says and ends what it would have without."""
    world = World(make_mode(kind, 3, 2, 1, b2=3), 2, 0, 6, 2, 2, 3, seed, slow=0.9).run()
    again = World(world.mode, 2, 0, 6, 2, 2, 3, seed)
    said, tried = Said(again), set()
    for rank, node, frames in world.delivered:
        for who, where, bad in said.nonsense():
            with pytest.raises(Malformed):
                tell(again.nodes[where], who, bad)
            tried.add(bad[0][4] if bad else None)
        replies = tell(again.nodes[node], rank, frames)
        expected = world.replies.pop(0)
        assert [(peer, *(bytes(each) for each in reply.frames())) for peer, reply in replies] == expected
        said.hear(rank, node, frames, replies)
    assert tried >= {Kind.PULL, Kind.PUSH, Kind.RESERVE, Kind.ENTER, Kind.DONE, Kind.TOKEN, Kind.SYNC}
    for node in again.nodes:
        node.flush()
    assert [node.metrics() for node in again.nodes] == [node.metrics() for node in world.nodes]
    for mine, theirs in zip(again.stores, world.stores, strict=True):
        assert [table.store.fingerprint() for table in mine] == [table.store.fingerprint() for table in theirs]


def test_a_trainer_that_pulls_and_never_pushes_fills_no_memory():
    world = World(make_mode("async", 2, 2, 1), 2, 0, 90, 1, 1, 2, 0)
    for number in range(6):
        tell(world.nodes[0], 1, world.pull(number, 0).frames())
    with pytest.raises(Malformed, match="too far ahead"):
        tell(world.nodes[0], 1, world.pull(6, 0).frames())
    assert tell(world.nodes[0], 0, world.pull(6, 0).frames())


def test_who_has_pushed_a_batch_or_comes_again_may_pull_more():
    world = World(make_mode("async", 2, 2, 1), 2, 0, 90, 1, 1, 2, 0)
    (node,) = world.nodes
    for number in range(6):
        tell(node, 1, world.pull(number, 0).frames())
    for number in range(3):
        gradients = [np.ones((rows.size, DIMENSION), np.float32) for rows in world.pull(number, 0).asked]
        dense = np.zeros(node._slice.values().size + 1, np.float32)
        tell(node, 1, Push(number, [*gradients, dense], token=number).frames())
        tell(node, 1, world.pull(6 + number, 0).frames())
        with pytest.raises(Malformed, match="too far ahead"):
            tell(node, 1, world.pull(20 + number, 0).frames())
    node.gone(1)
    assert node._begun[1] == 0 == len(node._pulls)
    for number in range(20, 26):
        tell(node, 1, world.pull(number, 0).frames())
    with pytest.raises(Malformed, match="too far ahead"):
        tell(node, 1, world.pull(26, 0).frames())


def test_dense_parameters_are_not_told_where_there_are_none():
    world = World(make_mode("async", 1, 1, 1), 1, 0, 3, 1, 1, 1, 0, dense=False)
    with pytest.raises(Malformed):
        world.state_of(0)


@pytest.mark.parametrize("kind", ["hop-bs", "hop-bw"])
def test_who_waits_for_others_hears_that_nothing_more_is_dealt(kind):
    """Asked to stop, the desk lets everybody go on who has a batch: nobody else would."""
    for seed in range(10):
        mode = make_mode(kind, 3, 2, 1, b1=0)
        World(mode, 2, 0, 20, 1, 1, 3, seed, stops_after=20 + 10 * seed, window=2).run()


def desk_with_elastic_worker(batches):
    """A desk of one trainer, rank 0, whose process has the shard; rank 1 is a guest."""
    return DispatchServer(Coordinator(Dispatcher(make_mode("gba", 1, 1, 1), 0, batches), 1), [0], 1, 1)


def ask(desk, rank):
    """A trainer asks, pulls and pushes one batch; what was said then."""
    (_, dispatch), *rest = desk.handle(rank, Reserve())
    if not dispatch.final:
        desk.handle(rank, Enter(dispatch.batch_index, 7))
        desk.handle(rank, Done(dispatch.batch_index, np.zeros(1, np.int64), np.zeros(1)))
    return [(type(dispatch), dispatch.final), *((to, type(message)) for to, message in rest)]


def test_guests_wait_until_a_trainer_asks_and_after_the_last_batch():
    desk = desk_with_elastic_worker(2)
    assert desk.handle(1, Reserve()) == [] and desk.waiting_workers == [1]
    told = desk.handle(0, Reserve())
    assert [(to, type(each), each.batch_index) for to, each in told] == [(0, Dispatch, 0), (1, Dispatch, 1)]
    assert desk.waiting_workers == [] and ask(desk, 1) == [(Dispatch, True)]
    assert desk.handle(1, Reserve()) == [] and desk.waiting_workers == [1]


def test_a_guest_that_leaves_when_all_is_done_troubles_nobody():
    """Its roll call would reach the desk of the next stretch, and all would be told again that this one is finished."""
    desk = desk_with_elastic_worker(2)
    assert ask(desk, 0) == ask(desk, 1) == [(Dispatch, False)]
    assert ask(desk, 1) == [(Dispatch, True), (1, Finished)]
    assert ask(desk, 0) == [(Dispatch, True), (0, Finished)]
    assert desk.gone(1) == []


def test_a_guest_that_leaves_before_is_missed_once_and_all_finish_then():
    desk = desk_with_elastic_worker(2)
    ask(desk, 0), desk.handle(1, Reserve())
    assert ask(desk, 0) == [(Dispatch, True)]
    ((to, call),) = desk.gone(1)
    assert (to, type(call), call.worker) == (0, Refuse, 1) and not call.batches.size
    with pytest.raises(Malformed, match="which nobody asked for"):
        desk.handle(0, Answer(5, NOTHING))
    with pytest.raises(Malformed, match="which that trainer does not have"):
        desk.handle(1, Answer(1, NOTHING))
    ((to, end),) = desk.handle(0, Answer(1, NOTHING))
    assert (to, type(end)) == (0, Finished) and desk.metrics()["batches_lost"] == 1


def test_of_the_dead_a_batch_that_every_shard_has_is_counted_and_no_other_is():
    desk = desk_with_elastic_worker(4)
    ask(desk, 0)
    for settled, reserved in ((True, 1), (False, 2)):
        dispatches = [desk.handle(1, Reserve())[0][1] for _ in range(reserved)]
        desk.handle(1, Enter(dispatches[0].batch_index, 5))
        ((_, call),) = desk.gone(1)
        desk.handle(0, Answer(call.worker, np.array([settled])))
        assert desk.metrics()["examples"] == 7 + 5
    assert desk.metrics()["batches_lost"] == 2 and not desk._out


def test_nothing_is_finished_before_every_shard_has_filled_its_places():
    """Else a shard's answer would reach the desk of the next stretch."""
    desk = DispatchServer(Coordinator(Dispatcher(make_mode("gba", 2, 2, 1), 0, 2), 2), [0, 1], 2, 2)
    for rank, steps in ((0, [0, 0]), (2, None)):
        (_, dispatch), *_ = desk.handle(rank, Reserve())
        desk.handle(rank, Enter(dispatch.batch_index, 0))
        if steps:
            desk.handle(rank, Done(dispatch.batch_index, np.array(steps), np.zeros(1)))
    for rank in (0, 1):
        assert [type(message) for _, message in desk.handle(rank, Reserve())] == [Dispatch]
    assert [(to, type(message)) for to, message in desk.gone(2)] == [(0, Refuse), (1, Refuse)]
    for settled in ([], [True, True]):
        with pytest.raises(Malformed, match=f"{len(settled)} batches of worker 2, which nobody asked for"):
            desk.handle(0, Answer(2, np.array(settled, np.bool_), 0, 1))
    assert desk.handle(0, Answer(2, np.array([True]), 0, 1)) == []  # it has the guest's batch
    ((to, fill),) = desk.handle(1, Answer(2, np.array([False]), 1))
    assert (to, type(fill)) == (1, Fill) and fill.tokens.tolist() == [0]
    with pytest.raises(Malformed, match="slots that nobody asked for"):
        desk.handle(0, Filled(2, 0, 1))
    told = desk.handle(1, Filled(2, 1, 1))
    assert [(to, type(message)) for to, message in told] == [(0, Finished), (1, Finished)]
