"""All modes under random interleavings of several shards and workers, with deaths and joins."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.gba.coordinator import Coordinator
from marius_oac.nodes.gba.dispatcher import Dispatch, Dispatcher
from marius_oac.nodes.gba.modes import Mode
from tests.nodes.modes_world import ROWS, World, rows_of

KINDS = ("sync", "gba", "async", "bsp", "hop-bs", "hop-bw")


def mode_of(kind, aggregate=2, **rules):
    return Mode(kind=kind, aggregate=1 if kind in ("async", "hop-bs") else aggregate, **rules)


def check(world):
    """What holds at rest."""
    mode, shards = world.coordinator.dispatcher.mode, world.shards
    assert len(world.dispatched) == len(set(world.dispatched)), "none is dealt twice"
    assert sorted({*world.dispatched, *world.lost}) == list(world.batches), (
        "each is dealt, or lost by who had reserved it"
    )
    assert world.ahead or sorted(world.dispatched) == list(world.batches)
    assert sorted(world.lost) == sorted(set(world.lost)), "each is lost once"
    assert world.coordinator.dispatcher.batches_lost == len(world.lost)
    torn = {batch for batch in world.lost if any(batch in shard.taken for shard in shards)}
    assert not any(all(batch in shard.taken for shard in shards) for batch in torn), "what all have is not lost"
    survivors = [batch for batch in world.batches if batch not in world.lost]
    assert len({shard.step for shard in shards}) == 1
    for shard in shards:
        assert len(shard.taken) == len(set(shard.taken))
        weight = np.round(shard.applied, 5)
        assert not weight[: world.batches.start].any() and set(weight.tolist()) <= {0.0, 1.0}
        assert not weight[[batch for batch in world.lost if batch not in torn]].any()
        dropped = shard.dense.metrics()["dropped"]
        assert np.count_nonzero(weight[survivors] == 0) <= dropped <= np.count_nonzero(weight == 0)
        if mode.kind not in ("gba", "hop-bw"):
            assert dropped == 0 and (weight[survivors] == 1).all(), "every other batch is applied"
            for batch in survivors:
                assert np.flatnonzero(shard.rows_applied[:, batch]).tolist() == rows_of(batch).tolist()
            assert shard.rows_applied.max(initial=0) <= 1
        if mode.kind != "hop-bw":
            assert set(survivors) <= set(shard.taken) <= set(survivors) | torn
            assert shard.step - world.first_step == math.ceil((len(survivors) + len(torn)) / mode.aggregate)
        if mode.kind in ("sync", "hop-bw"):
            assert shard.dense.metrics()["staleness_max"] == 0


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_lost_batches_are_the_only_loss_and_nobody_waits_for_the_dead(data):
    mode = mode_of(
        data.draw(st.sampled_from(KINDS)),
        data.draw(st.integers(1, 5)),
        threshold=data.draw(st.integers(0, 4)),
        bound=data.draw(st.integers(0, 3)),
    )
    check(
        World(
            mode,
            data.draw(st.integers(0, 30)),
            data.draw(st.integers(1, 3)),
            data.draw(st.integers(1, 6)),
            data.draw(st.integers(0, 2**32)),
            deaths=data.draw(st.sampled_from((0, 0, 3, 8))),
            joins=data.draw(st.sampled_from((0, 3))),
        ).run()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_without_deaths_nothing_is_lost(kind):
    for seed in range(20):
        world = World(mode_of(kind, 3), 25, 2, 4, seed).run()
        check(world)
        assert not world.lost


def torn_somewhere(**changes):
    """Whether batches are torn in these runs: else the tests would show little."""
    return sum(
        any(batch in shard.taken for batch in world.lost for shard in world.shards)
        for seed in range(30)
        if (world := World(mode_of("gba", 3), 30, 3, 5, seed, deaths=6, joins=3, **changes).run())
    )


def test_the_simulation_tears_batches_and_refuses_what_comes_later():
    assert torn_somewhere() >= 5
    refused = 0
    for seed in range(60):
        world = World(mode_of("async"), 30, 3, 5, seed, deaths=6, joins=3).run()
        refused += sum(shard.refused for shard in world.shards)
    assert refused >= 5


@pytest.mark.parametrize("kind", KINDS)
def test_the_simulation_would_find_places_that_nobody_fills(kind, monkeypatch):
    real = Coordinator.answered

    def forgetful(self, *arguments):
        verdict = real(self, *arguments)
        return verdict._replace(fills=[[] for _ in verdict.fills])

    monkeypatch.setattr(Coordinator, "answered", forgetful)
    with pytest.raises(AssertionError):
        for seed in range(200):
            check(World(mode_of(kind, 3), 30, 3, 5, seed, deaths=8, joins=3).run())


@pytest.mark.parametrize("kind", ["sync", "hop-bw", "hop-bs"])
def test_the_simulation_would_find_who_waits_for_the_dead(kind, monkeypatch):
    monkeypatch.setattr(type(Dispatcher(mode_of(kind), 0, 1)._schedule), "lost", lambda self, worker, tokens: None)
    with pytest.raises(AssertionError, match="stuck|waits for ever"):
        for seed in range(200):
            World(mode_of(kind, 3), 30, 2, 4, seed, deaths=3).run()


def test_a_worker_that_is_back_waits_for_its_roll_call():
    coordinator = Coordinator(Dispatcher(mode_of("gba"), 0, 9), 2)
    assert coordinator.ask(0) == Dispatch(0, 0) and coordinator.gone(0) == [0]
    coordinator.ask(0)
    assert coordinator.answered(0, 0, [True], 0) == ([[], []], [], [], [])
    assert not coordinator.finished
    assert coordinator.answered(1, 0, [False], 0) == ([[], [0]], [], [0], [0])
    assert coordinator.ask(0) == Dispatch(1, 0)


def test_who_came_back_and_went_again_is_called_once():
    coordinator = Coordinator(Dispatcher(mode_of("gba"), 0, 9), 1)
    coordinator.ask(0), coordinator.gone(0), coordinator.ask(0)
    assert coordinator.gone(0) is None
    assert coordinator.answered(0, 0, [False], 0) == ([[]], [], [0], [])


def test_rows_differ_between_batches():
    assert len({tuple(rows_of(batch)) for batch in range(20)}) > 5 and ROWS == 6
