"""Each guarantee at the head of `channel.py`, forced with events: nothing here waits for time to pass."""

import random
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.runtime.channel import ArrivalChannel, Channel, Closed, OrderedChannel


def item(batch_index):
    return SimpleNamespace(batch_index=batch_index)


def in_thread(work):
    """Runs `work` beside the test; returns (thread, list that gets the outcome)."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except Closed as closed:
            outcome.append(closed)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def joined(thread, outcome):
    thread.join(30)
    assert not thread.is_alive()
    return outcome[0]


def make(kind, capacity=2):
    return {
        "plain": lambda: Channel("c", capacity),
        "ordered": lambda: OrderedChannel("c", capacity, first=0),
        "arrival": lambda: ArrivalChannel("c", capacity, first=0, limit=1),
    }[kind]()


KINDS = ("plain", "ordered", "arrival")


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_channel_makes_put_wait_for_a_get(kind):
    channel = make(kind)
    channel.put(item(0))
    channel.put(item(1))
    thread, outcome = in_thread(lambda: channel.put(item(2)))
    assert len(channel) == 2 and not outcome
    assert channel.get().batch_index == 0
    assert joined(thread, outcome) is None and len(channel) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_close_hands_out_what_waits_and_then_ends(kind):
    channel = make(kind)
    channel.put(item(0))
    channel.close()
    assert channel.get().batch_index == 0
    with pytest.raises(Closed):
        channel.get()
    with pytest.raises(Closed):
        channel.put(item(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_waiting_get_is_woken(kind, end):
    channel = make(kind)
    thread, outcome = in_thread(channel.get)
    getattr(channel, end)()
    assert isinstance(joined(thread, outcome), Closed)


@pytest.mark.parametrize("kind", KINDS)
def test_abort_drops_what_waits_and_wakes_a_put(kind):
    channel = make(kind, capacity=1)
    channel.put(item(0))
    thread, outcome = in_thread(lambda: channel.put(item(1)))
    channel.abort()
    assert isinstance(joined(thread, outcome), Closed)
    with pytest.raises(Closed):
        channel.get()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_an_ordered_channel_hands_out_in_order_whoever_puts(count, capacity, producers, seed):
    channel = OrderedChannel("c", capacity, first=7)
    order = list(range(7, 7 + count))
    random.Random(seed).shuffle(order)
    # Each producer brings its numbers in ascending order, as workers do that draw them from one counter.
    shares = [sorted(order[n::producers]) for n in range(producers)]
    threads = [in_thread(lambda share=share: [channel.put(item(n)) for n in share]) for share in shares]
    assert [channel.get().batch_index for _ in range(count)] == list(range(7, 7 + count))
    for thread, outcome in threads:
        joined(thread, outcome)


def test_an_ordered_channel_refuses_a_number_twice():
    channel = OrderedChannel("c", 3, first=0)
    channel.put(item(1))
    with pytest.raises(ValueError, match="twice"):
        channel.put(item(1))


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(12)), st.integers(0, 4))
def test_nobody_is_overtaken_more_often_than_the_limit(arrivals, limit):
    """The consumer takes whenever it may; the rest arrive in the given order."""
    channel = ArrivalChannel("c", len(arrivals), first=0, limit=limit)
    taken, waiting = [], list(arrivals)
    while len(taken) < len(arrivals):
        if channel._ready():
            taken.append(channel.get().batch_index)
        else:
            channel.put(item(waiting.pop(0)))
    assert sorted(taken) == list(range(12))
    for place, batch_index in enumerate(taken):
        assert sum(other > batch_index for other in taken[:place]) <= limit


def test_without_starvation_the_first_to_come_is_the_first_served():
    channel = ArrivalChannel("c", 4, first=0, limit=3)
    for n in (2, 0, 1):
        channel.put(item(n))
    assert [channel.get().batch_index for _ in range(3)] == [2, 0, 1]


def test_a_channel_holds_at_least_one():
    with pytest.raises(ValueError, match="at least 1"):
        Channel("c", 0)
