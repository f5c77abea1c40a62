"""EASGD, MA and BMUF in a run: training never waits for them; ends, pauses, checkpoints, errors."""

import threading
import time

import numpy as np
import pytest
import torch

from marius_oac.errors import NodeLost
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.kstep import KStep
from marius_oac.nodes.dense.shadow import Averaging, Easgd
from marius_oac.nodes.dense.sync_server import SyncServer
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.runtime.channel import Closed
from tests.nodes.replicas import (
    KINDS,
    LocalSyncServers,
    Trainer,
    finished,
    flat_of,
    make,
    start_of,
    tensors_of,
    trainers_of,
)
from tests.nodes.worlds import together
from tests.threads import PATIENCE, in_thread, joined


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
        trainer = Trainer(make(kind, group, servers, sync_every=4), 8, group.rank)
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
    with pytest.raises(ValueError, match="the state has the tensors {}, but this dense agreement has {'since'"):
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
    before = threading.active_count()
    for iterations in (0, 1):
        trainers, gates = trainers_of(kind, 2, 1)
        for gate in gates:
            gate.open()
        trainers[0].sync.start()
        for _ in range(iterations):
            trainers[0].train()
        joined(*in_thread(trainers[0].sync.stop))
        assert threading.active_count() == before
        trainers[1].sync.stop()


def test_a_model_without_dense_parameters_has_nothing_to_do():
    (group,) = ThreadGroup.members(1)
    for sync in (
        Averaging(group, 0.5, 1, True),
        Averaging(group, 0.5, 1, False),
        AllReduce(group),
        KStep(group, 1, 1),
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
    with pytest.raises(ValueError, match="2 parameters are assigned to sync servers, not 1"):
        Easgd(ThreadGroup.members(1)[0], 0.5, 1, False, servers=servers, assign=lambda sizes: [0, 0]).attach(
            [torch.zeros(1)]
        )
