import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.link_prediction import OrderingConfig
from marius_oac.data.batches.orderings import beta_states, beta_swaps, epoch_io, epoch_order
from tests.data import naive_orderings as naive
from tests.data.test_random import chi_square_is_plausible, needs_jit

EXAMPLES = 20 if numba.config.DISABLE_JIT else 80


@st.composite
def sizes(draw, most=40):
    partitions = draw(st.integers(3, most))
    return partitions, draw(st.integers(2, partitions - 1))


@st.composite
def orderings(draw):
    """BETA, or COMET with groups of one to four partitions."""
    if draw(st.booleans()):
        partitions, buffer = draw(sizes(16))
        return OrderingConfig(kind="beta", partitions=partitions, buffer=buffer)
    (groups, held), size = draw(sizes(9)), draw(st.integers(1, 4))
    return OrderingConfig(kind="comet", partitions=size * groups, buffer=size * held, logical=groups)


@settings(deadline=None, max_examples=EXAMPLES)
@given(sizes())
def test_beta_swaps_one_partition_at_a_time_and_as_often_as_published(size):
    states = [set(state) for state in beta_states(*size).tolist()]
    assert states == naive.beta(*size)
    assert all(len(one - two) == len(two - one) == 1 for one, two in zip(states, states[1:], strict=False))
    assert len(states) - 1 == beta_swaps(*size) >= naive.fewest_swaps(*size)
    pairs = {(i, j) for state in states for i in state for j in state}
    assert len(pairs) == size[0] ** 2


def test_swaps_by_hand():
    """With two places only one pair is new at a time, which leaves no choice; the others were counted on paper."""
    assert [beta_swaps(partitions, 2) for partitions in (3, 4, 5, 32)] == [2, 5, 9, 495]
    assert [naive.fewest_swaps(partitions, 2) for partitions in (3, 4, 5, 32)] == [2, 5, 9, 495]
    assert beta_states(4, 3).tolist() == [[0, 1, 2], [0, 1, 3], [2, 1, 3]]
    assert (beta_swaps(6, 3), naive.fewest_swaps(6, 3)) == (7, 6)
    assert (beta_swaps(16, 4), naive.fewest_swaps(16, 4)) == (42, 38)


@pytest.mark.parametrize("size", [(4, 1), (4, 4), (3, 5)])
def test_a_buffer_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match="a buffer must hold 2 to"):
        beta_states(*size)


@settings(deadline=None, max_examples=EXAMPLES)
@given(orderings(), st.integers(0, 5), st.integers(0, 30))
def test_every_bucket_has_one_state_that_holds_it(ordering, seed, epoch):
    order, partitions = epoch_order(ordering, seed, epoch), ordering.partitions
    states = [set(state) for state in order.states.tolist()]
    assert order.states.shape[1] == ordering.buffer and all(len(state) == ordering.buffer for state in states)
    assert np.array_equal(order.states, np.sort(order.states, axis=1))
    for i in range(partitions):
        for j in range(partitions):
            holding = [s for s, state in enumerate(states) if {i, j} <= state]
            assert order.state_of[i, j] in (holding[:1] if ordering.kind == "beta" else holding)
    group = partitions // ordering.groups
    moved = [len(two - one) for one, two in zip(states, states[1:], strict=False)]
    assert set(moved) == {group}
    io = epoch_io(ordering, 1000, 12)
    assert (io.swaps, io.loads) == (sum(moved), sum(moved) + ordering.buffer)
    assert io.bytes_read == io.bytes_written == 12_000 * io.loads // partitions
    assert io.swaps >= group * naive.fewest_swaps(ordering.groups, ordering.groups_in_buffer)


@settings(deadline=None, max_examples=EXAMPLES // 4)
@given(orderings(), st.integers(0, 5), st.integers(0, 30))
def test_an_epoch_is_the_naive_one(ordering, seed, epoch):
    from marius_oac.config.link_prediction import Config

    config = Config.build({"data": {"path": "g"}, "seed": seed, "training": {"ordering": ordering.model_dump()}})
    order = epoch_order(ordering, seed, epoch)
    states, chosen = naive.epoch(config, epoch)
    assert [set(state) for state in order.states.tolist()] == states
    assert {bucket: order.state_of[bucket] for bucket in chosen} == chosen


def test_epochs_and_seeds_have_orders_of_their_own():
    ordering = OrderingConfig(kind="comet", partitions=16, buffer=4)
    orders = [epoch_order(ordering, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for number, one in enumerate(orders):
        for two in orders[:number]:
            assert not np.array_equal(one.states, two.states) and not np.array_equal(one.state_of, two.state_of)
    again = epoch_order(ordering, 0, 0)
    assert np.array_equal(again.states, orders[0].states) and np.array_equal(again.state_of, orders[0].state_of)


@needs_jit
def test_comet_draws_groups_and_states_evenly():
    ordering = OrderingConfig(kind="comet", partitions=8, buffer=4)  # groups of 2, two of which are in the buffer
    together, first, last = np.zeros(8), 0, 0
    for seed in range(2000):
        order = epoch_order(ordering, seed, 0)
        partner = {tuple(state) for state in order.states.tolist()}
        shared = set.intersection(*(set(state) for state in partner if 0 in state))
        (mate,) = shared - {0}
        together[mate] += 1
        holding = [s for s, state in enumerate(order.states.tolist()) if 0 in state]
        first += order.state_of[0, 0] == holding[0]
        last += order.state_of[0, 0] == holding[-1]
    assert chi_square_is_plausible(together[1:], np.full(7, 2000 / 7))
    # each group is in three states, and all are as likely
    assert abs(first - 2000 / 3) < 100 and abs(last - 2000 / 3) < 100
