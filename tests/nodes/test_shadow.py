"""EASGD, MA and BMUF against their oracles, on schedules that the test steps."""

import copy
import itertools
import threading
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.groups.contract import ring_bytes
from marius_oac.nodes.groups.thread_group import ThreadGroup
from tests.nodes.replicas import (
    KINDS,
    SERVERS,
    TOTAL,
    LocalSyncServers,
    Trainer,
    change_of,
    finished,
    make,
    oracle_of,
    start_of,
    trainers_of,
)
from tests.nodes.worlds import together
from tests.threads import PATIENCE


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
