"""Batches change hands one at a time, and whoever waits is woken."""

import pytest

from marius_oac.runtime.channel import Closed
from marius_oac.torch.hand_over import HandOver
from tests.threads import in_thread, joined


def test_a_hand_over_waits_until_the_batch_is_back():
    place = HandOver()
    offering = in_thread(lambda: place.offer("one"))
    assert place.take() == "one" and offering[0].is_alive()
    place.give_back()
    assert joined(*offering) is True
    place.drain()
    assert place.offer("two") is False and place.take() is None
    place.abort()
    with pytest.raises(Closed):
        place.offer("three")


def test_an_aborted_hand_over_wakes_both_sides():
    for wakes in ("abort", "end"):
        place = HandOver()
        taking = in_thread(place.take)
        getattr(place, wakes)()
        assert joined(*taking) is None
    place = HandOver()
    offering = in_thread(lambda: place.offer("one"))
    assert place.take() == "one"
    place.abort()
    assert isinstance(joined(*offering), Closed)
