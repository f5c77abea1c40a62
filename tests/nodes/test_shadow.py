"""EASGD, MA and BMUF against their oracles, on schedules that the test steps; their ends; training that never waits."""

import copy
import itertools
import threading
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import NodeLost
from marius_oac.nodes.allreduce import AllReduce
from marius_oac.nodes.group import ring_bytes
from marius_oac.nodes.kstep import KStep
from marius_oac.nodes.shadow import Averaging, Bmuf, Easgd
from marius_oac.nodes.sync_server import LocalSyncServers, SyncServer
from marius_oac.nodes.thread_group import ThreadGroup
from marius_oac.runtime.channel import Closed
from tests.nodes import naive
from tests.nodes.stepping import Gate
from tests.nodes.worlds import together
from tests.threads import PATIENCE, in_thread, joined

SHAPES = [(2, 3), (4,), ()]
TOTAL = 11
SERVERS = [1, 0, 1]  # of the three tensors
KINDS = {
    "easgd": {},
    "ma": {},
    "bmuf": {"eta": 0.7},
    "bmuf with momentum": {"eta": 0.7, "momentum": 0.6},
    "bmuf with nesterov": {"eta": 0.7, "momentum": 0.6, "nesterov": True},
}


def tensors_of(flat):
    flat = torch.tensor(flat, dtype=torch.float32)
    return [part.view(shape).clone() for part, shape in zip(flat.split([6, 4, 1]), SHAPES, strict=True)]


def flat_of(tensors):
    return np.concatenate([tensor.detach().reshape(-1).numpy() for tensor in tensors]).astype(np.float64)


def start_of(seed):
    return np.random.default_rng(seed).standard_normal(TOTAL).astype(np.float32)


def change_of(seed, rank, step):
    """What an iteration of training adds to a replica."""
    return np.random.default_rng([seed, rank, step]).standard_normal(TOTAL).astype(np.float32)


def make(kind, group, servers, gap=1, background=False, gate=None, alpha=0.3):
    if kind == "easgd":
        return Easgd(group, alpha, gap, background, gate, servers=servers, assign=lambda sizes: SERVERS)
    if kind == "ma":
        return Averaging(group, alpha, gap, background, gate)
    return Bmuf(group, alpha, gap, background, gate, **KINDS[kind])


def oracle_of(kind, start, alpha=0.3):
    if kind == "easgd":
        return naive.Easgd(start, alpha)
    return naive.Ma(start, alpha) if kind == "ma" else naive.Bmuf(start, alpha, **KINDS[kind])


class Trainer:
    """A replica that `train` changes."""

    def __init__(self, sync, seed, rank):
        self.sync, self.seed, self.rank, self.steps = sync, seed, rank, 0
        self.parameters = [each.requires_grad_() for each in tensors_of(start_of(seed))]
        sync.attach(self.parameters)

    def train(self):
        with torch.no_grad():
            for tensor, change in zip(
                self.parameters, tensors_of(change_of(self.seed, self.rank, self.steps)), strict=True
            ):
                tensor.add_(change)
        self.sync.updated(self.steps)
        self.steps += 1

    def values(self):
        return flat_of(self.parameters)


def trainers_of(kind, count, seed, **settings_):
    """Trainers in this thread; their gates."""
    servers = LocalSyncServers(2, 0.3)
    gates = [Gate() for _ in range(count)]
    groups = ThreadGroup.members(count)
    made = together(
        groups,
        lambda group: Trainer(
            make(kind, group, servers, background=True, gate=gates[group.rank], **settings_), seed, group.rank
        ),
    )
    return made, gates


def finished(trainers, gates):
    for gate in gates:
        gate.open()
    together(
        [SimpleNamespace(trainer=each, abort=each.sync.stop) for each in trainers],
        lambda one: one.trainer.sync.finish(),
    )
    metrics = [each.sync.metrics() for each in trainers]
    for each in trainers:
        each.sync.stop()
    return metrics


@pytest.mark.parametrize("kind", KINDS)
def test_background_is_its_oracle_on_a_scripted_schedule(kind):
    """Training goes on between copy and exchange, and between exchange and drawing; nothing of it is undone."""
    count, seed = 3, 7
    trainers, gates = trainers_of(kind, count, seed)
    oracle = oracle_of(kind, start_of(seed))
    w = [start_of(seed).astype(np.float64) for _ in range(count)]

    def train(rank, times):
        for _ in range(times):
            w[rank] += change_of(seed, rank, trainers[rank].steps)
            trainers[rank].train()

    for trainer in trainers:
        trainer.sync.start()
    for rank in range(count):
        train(rank, 1)
    for turn in range(6):
        if kind == "easgd":
            ranks = np.random.default_rng(turn).permutation(count)
            for rank in ranks:
                easgd_turn(turn, rank, w, oracle, gates, train)
        else:
            for gate in gates:
                gate.arrived("copied")
            copies = [each.copy() for each in w]
            for rank in range(count):
                train(rank, (turn + rank) % 3)
            for gate in gates:
                gate.let_go()
            received = oracle.exchange(copies)
            for rank, gate in enumerate(gates):
                gate.arrived("received")
                train(rank, 1 + (turn + rank) % 2)
                w[rank] = oracle.interpolate(w[rank], received)
                gate.let_go()
        for rank in range(count):
            gates[rank].arrived("drawn")
            np.testing.assert_allclose(trainers[rank].values(), w[rank], rtol=0, atol=1e-6 * (turn + 5))
            train(rank, 1)
            gates[rank].let_go()
    metrics = finished(trainers, gates)
    iterations = sum(trainer.steps for trainer in trainers)
    assert all(each["iterations"] == iterations for each in metrics)
    assert len({trainer.values().tobytes() for trainer in trainers}) == 1


def on_server(server):
    """Which numbers lie there."""
    return np.concatenate([np.full(size, at == server) for size, at in zip([6, 4, 1], SERVERS, strict=True)])


def easgd_turn(turn, rank, w, oracle, gates, train):
    """Server by server: the tensors of server 0, then those of server 1."""
    for server in (0, 1):
        mine = on_server(server)
        gates[rank].arrived("copied")
        copy = w[rank].copy()
        train(rank, (turn + server) % 2)
        gates[rank].let_go()
        gates[rank].arrived("received")
        before = oracle.w_ps.copy()
        received = np.where(mine, oracle.exchange(copy), before)
        oracle.w_ps = received
        train(rank, 1)
        w[rank] = np.where(mine, oracle.interpolate(w[rank], received), w[rank])
        gates[rank].let_go()


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(list(KINDS)), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9), st.floats(0.1, 1),
    st.integers(0, 99),
)  # fmt: skip
def test_foreground_is_its_oracle_every_gap_iterations(kind, count, gap, steps, alpha, seed):
    """All trainers in step; EASGD's come to the servers in the order of their ranks, since the test makes them."""
    servers = LocalSyncServers(2, alpha)
    turn = Turns(count)

    def work(group):
        trainer = Trainer(make(kind, group, servers, gap, alpha=alpha), seed, group.rank)
        found = []
        trainer.sync.start()
        for _ in range(steps):
            with turn(group.rank) if kind == "easgd" else nullcontext():
                trainer.train()
            found.append(trainer.values())
        counted = trainer.sync.metrics()
        group.barrier()  # nobody's last exchange comes before another's training
        trainer.sync.finish()
        trainer.sync.stop()
        return found, counted, trainer.values()

    outcomes = together(ThreadGroup.members(count), work)
    oracle = oracle_of(kind, start_of(seed), alpha)
    w = [start_of(seed).astype(np.float64) for _ in range(count)]
    for step in range(steps):
        for rank in range(count):
            w[rank] += change_of(seed, rank, step)
        if (step + 1) % gap == 0:
            w = exchanged(kind, oracle, w)
        for rank, (found, _, _) in enumerate(outcomes):
            np.testing.assert_allclose(found[step], w[rank], rtol=0, atol=1e-5)
    finals = ended(kind, oracle, w)
    for _, counted, values in outcomes:
        for part in (on_server(0), on_server(1)):  # who came first differs from server to server
            assert any(np.allclose(values[part], each[part], rtol=0, atol=1e-5) for each in finals)
        assert values.tobytes() == outcomes[0][2].tobytes()
        syncs, sent = steps // gap, 4 * TOTAL if kind == "easgd" else ring_bytes(4 * (TOTAL + 1), count)
        assert (counted["syncs"], counted["bytes"]) == (syncs, syncs * sent)
        assert counted["average_sync_gap"] == (steps / syncs if syncs else 0)


def exchanged(kind, oracle, w):
    """All replicas after a synchronisation in the order of ranks."""
    if kind == "easgd":
        return [oracle.interpolate(each, oracle.exchange(each)) for each in w]
    received = oracle.exchange(w)
    return [oracle.interpolate(each, received) for each in w]


def ended(kind, oracle, w):
    """What all replicas may become in the end: EASGD's come to the servers in any order."""
    if kind != "easgd":
        return [oracle.exchange(w)]
    oracles = []
    for order in itertools.permutations(w):
        oracles.append(copy.deepcopy(oracle))
        for each in order:
            oracles[-1].exchange(each)
    return [each.w_ps for each in oracles]


class Turns:
    """`with turns(rank)`: one after the other, by rank, over and over."""

    def __init__(self, count):
        self._changed, self._count, self._next = threading.Condition(), count, 0

    @contextmanager
    def __call__(self, rank):
        with self._changed:
            assert self._changed.wait_for(lambda: self._next == rank, PATIENCE)
        yield
        with self._changed:
            self._next = (rank + 1) % self._count
            self._changed.notify_all()


@pytest.mark.parametrize("kind", KINDS)
def test_training_never_waits_for_the_background(kind):
    """The thread is held in the middle of an exchange; training makes a thousand iterations and changes its replica."""
    trainers, gates = trainers_of(kind, 2, 3)
    for trainer in trainers:
        trainer.sync.start()
    for trainer, gate in zip(trainers, gates, strict=True):
        trainer.train()
        gate.arrived("copied")
    versions = [each._version for each in trainers[0].parameters]
    for trainer in trainers:
        for _ in range(1000):
            trainer.train()
        assert trainer.sync.metrics()["syncs"] == 0
    assert [each._version for each in trainers[0].parameters] == [each + 1000 for each in versions]
    metrics = finished(trainers, gates)
    assert metrics[0]["iterations"] == 2002


def test_drawing_between_forward_and_backward_is_no_error():
    """autograd refuses parameters whose version changed; the background must not change it."""
    trainers, (gate,) = trainers_of("ma", 1, 3)
    (trainer,) = trainers
    trainer.sync.start()
    trainer.train()
    gate.arrived("copied")
    loss = (trainer.parameters[1] ** 2).sum()
    for point in ("received", "drawn"):
        gate.let_go()
        gate.arrived(point)
    loss.backward()
    finished(trainers, [gate])


@pytest.mark.parametrize("kind", ["ma", "bmuf with nesterov", "easgd"])
@pytest.mark.parametrize("background", [False, True])
def test_trainers_of_different_pace_end_together(kind, background):
    """One makes no iteration at all, one 40: nobody is left waiting, and all have the same parameters; twice."""
    servers, count = LocalSyncServers(2, 0.3), 3

    def work(group):
        trainer = Trainer(make(kind, group, servers, 3, background), 5, group.rank)
        values = []
        for _ in range(2):
            trainer.sync.start()
            for _ in range(20 * group.rank):
                trainer.train()
            trainer.sync.finish()
            values.append(trainer.values().tobytes())
        trainer.sync.stop()
        return values, trainer.sync.metrics()["iterations"]

    outcomes = together(ThreadGroup.members(count), work)
    assert outcomes == [outcomes[0]] * count
    assert outcomes[0][1] == 2 * (20 + 40)


def test_a_pause_leaves_replicas_as_they_are():
    def work(group):
        trainer = Trainer(make("ma", group, None, 100), 5, group.rank)
        trainer.sync.start()
        trainer.train()
        before = trainer.values()
        trainer.sync.pause()
        return before.tobytes() == trainer.values().tobytes(), before.tolist()

    (first, mine), (second, other) = together(ThreadGroup.members(2), work)
    assert first and second and mine != other


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_checkpoint_keeps_is_enough(kind):
    """Stopped between two synchronisations and taken up by other objects: the bits of a run that went on."""

    def run(group, servers, steps, kept=None):
        trainer = Trainer(make(kind, group, servers, gap=4), 8, group.rank)
        if kept is not None:
            values, state, trainer.steps = kept
            for tensor, value in zip(trainer.parameters, values, strict=True):
                tensor.data.copy_(value)
            trainer.sync.load(state)
        trainer.sync.start()
        for _ in range(steps):
            trainer.train()
        trainer.sync.pause()
        return [each.detach().clone() for each in trainer.parameters], trainer.sync.state(), trainer.steps

    def played(steps, kept=None):
        servers = LocalSyncServers(2, 0.3)
        return together(ThreadGroup.members(1), lambda group: run(group, servers, steps, kept and kept[group.rank]))

    whole, parts = played(19), played(13, played(6))
    for (values, state, _), (again, same, _) in zip(whole, parts, strict=True):
        assert flat_of(values).tobytes() == flat_of(again).tobytes()
        assert state.keys() == same.keys() and all(torch.equal(state[name], same[name]) for name in state)


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_another_run_are_gone_on_with_as_if_training_had_begun_with_them(kind):
    """Those that a checkpoint of other nodes gave; w_ps and w_global must not stay at the initial ones."""

    def run(group, servers, seed, later):
        trainer = Trainer(make(kind, group, servers), seed, group.rank)
        if later is not None:
            with torch.no_grad():
                for tensor, value in zip(trainer.parameters, tensors_of(start_of(later)), strict=True):
                    tensor.copy_(value)
            trainer.sync.begin_anew()
            trainer.seed = later
        trainer.train()
        trainer.sync.finish()
        return trainer.values()

    ends = []
    for seed, later in ((1, 2), (2, None)):
        servers = LocalSyncServers(2, 0.3)
        ends.append(together(ThreadGroup.members(1), lambda group, s=servers, a=seed, b=later: run(group, s, a, b))[0])
    assert np.array_equal(*ends)


def test_a_state_of_another_kind_is_refused():
    (group,) = ThreadGroup.members(1)
    sync = make("bmuf", group, None)
    sync.attach(tensors_of(start_of(1)))
    with pytest.raises(ValueError, match="state of dense agreement {}, but this one has {'since'"):
        sync.load({})


def test_the_first_error_of_a_thread_stops_everybody():
    """Rank 0's thread fails; its training hears of it at its next update, and the other once rank 0 has stopped."""
    boom = RuntimeError("boom")

    def fail(point):
        raise boom

    groups = ThreadGroup.members(2)
    gates = [fail, lambda point: None]
    first, second = together(
        groups, lambda group: Trainer(make("ma", group, None, 1, True, gates[group.rank]), 1, group.rank)
    )
    for trainer in (first, second):
        trainer.sync.start()
    deadline = time.monotonic() + PATIENCE
    with pytest.raises(RuntimeError) as caught:
        while time.monotonic() < deadline:
            first.train()
    assert caught.value is boom
    second.sync.updated(0)
    with pytest.raises(RuntimeError) as caught:
        first.sync.pause()
    assert caught.value is boom
    first.sync.stop()
    with pytest.raises(NodeLost, match="rank 0: has aborted"):
        second.sync.finish()
    second.sync.stop()
    second.sync.stop()


@pytest.mark.parametrize("kind", ["ma", "easgd"])
def test_a_run_that_stops_wakes_its_thread(kind):
    """It waits for iterations, or in a call for a trainer that never comes."""
    for iterations in (0, 1):
        trainers, gates = trainers_of(kind, 2, 1)
        for gate in gates:
            gate.open()
        trainers[0].sync.start()
        for _ in range(iterations):
            trainers[0].train()
        joined(*in_thread(trainers[0].sync.stop))
        assert threading.active_count() == 1
        trainers[1].sync.stop()


def test_a_model_without_dense_parameters_has_nothing_to_do():
    (group,) = ThreadGroup.members(1)
    for sync in (
        Averaging(group, 0.5, 1, True),
        Averaging(group, 0.5, 1, False),
        AllReduce(group),
        KStep(group, 1, 1, 1),
    ):
        sync.start()
        sync.finish()
        assert sync.metrics()["syncs"] == 0
        sync.stop()


def test_sync_servers_refuse_what_does_not_fit():
    server = SyncServer(0.5)
    with pytest.raises(ValueError, match="no parameters yet"):
        server.read()
    server.write(torch.zeros(3))
    with pytest.raises(ValueError, match=r"float32 \(2,\), but w_ps is torch.float32 \(3,\)"):
        server.exchange(torch.zeros(2))
    servers = LocalSyncServers(1, 0.5)
    servers.abort()
    with pytest.raises(Closed):
        servers.read(0)
    with pytest.raises(ValueError, match="2 parameters on sync servers, but there are 1"):
        Easgd(ThreadGroup.members(1)[0], 0.5, 1, False, servers=servers, assign=lambda sizes: [0, 0]).attach(
            [torch.zeros(1)]
        )
