"""The ledger of timestamps: window, MFT and STE against sets, and every wait ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.pipeline.ledger import Ledger
from marius_oac.runtime.channel import Closed
from tests.threads import in_thread, joined, watched


@settings(deadline=None, max_examples=100)
@given(st.data(), st.integers(0, 9), st.integers(1, 5), st.integers(1, 20))
def test_every_interleaving_of_batches_that_arrive_in_any_order(data, first, in_flight, batches):
    """Batches enter in turn, are validated and written in any order; timestamps follow the order of validation.
    Meanwhile the window changes, and batches that nobody has read too early are left out of the cache."""
    ledger = Ledger(first, in_flight)
    widest, closed_until, resizes = in_flight, first - 1, 5
    entered, mft_at_read, computed, written = 0, {}, 0, set()

    def mft():
        return next(t for t in range(first - 1, first + batches) if t + 1 not in written)

    unwritten = []
    while len(written) < batches:
        moves = [("validate", n) for n in mft_at_read] + [("write", t) for t in unwritten]
        if entered < batches and mft() >= max(first + entered - in_flight, closed_until):
            moves.append(("enter", first + entered))
        if resizes:
            moves.append(("resize", 0))
        assert moves, "the window has closed for good"
        move, number = data.draw(st.sampled_from(moves))
        if move == "enter":
            mft_at_read[number] = mft()
            assert ledger.enter(number) == mft_at_read[number]
            entered += 1
        elif move == "validate":
            assert ledger.validating(number) == min(mft_at_read.values())
            del mft_at_read[number]
            unwritten.append(first + computed)
            cached = ledger.needs_caching(first + computed)
            assert cached == (in_flight > 1 or bool(mft_at_read))
            closed_until = closed_until if cached else first + computed
            computed += 1
        elif move == "resize":
            in_flight, resizes = data.draw(st.integers(1, 6)), resizes - 1
            widest = max(widest, in_flight)
            ledger.resize(in_flight)
        else:
            ledger.finish(number)
            unwritten.remove(number)
            written.add(number)
        assert ledger.maximum_finished == mft()
        assert entered - len(written) <= widest


def test_a_batch_beyond_the_window_waits_for_the_mft():
    ledger = watched(Ledger(first=10, in_flight=2))
    assert ledger.enter(10) == 9 and ledger.enter(11) == 9
    waiting = in_thread(lambda: ledger.enter(12))
    ledger._changed.parked()  # 1. 12 waits for 10
    ledger.finish(11)  # 2. out of turn: the MFT stays
    ledger._changed.parked()
    assert not waiting[1]
    ledger.finish(10)  # 3. the MFT goes to 11 at once
    assert joined(*waiting) == 11
    assert ledger.validating(10) == 9 and ledger.validating(12) == 9  # 11, still to be validated, noted 9


def test_abort_ends_every_wait_and_every_later_one():
    ledger = watched(Ledger(first=0, in_flight=1))
    waiting = []
    for batch_index in (1, 2, 3):
        waiting.append(in_thread(lambda batch_index=batch_index: ledger.enter(batch_index)))
        ledger._changed.parked()
    ledger.abort()
    assert all(isinstance(joined(*pair), Closed) for pair in waiting)
    with pytest.raises(Closed):
        ledger.enter(0)


def test_a_wider_window_lets_those_in_that_wait_but_none_before_a_batch_that_is_not_cached():
    ledger = watched(Ledger(first=0, in_flight=1))
    assert ledger.enter(0) == -1 and ledger.validating(0) == -1
    assert not ledger.needs_caching(0)  # 1. with a window of one: batch 0 is in no cache
    waiting = in_thread(lambda: ledger.enter(1))
    ledger._changed.parked()
    ledger.resize(3)
    ledger._changed.parked()  # 2. the window has room for 1, which must not read before 0 is written
    assert not waiting[1]
    ledger.finish(0)
    assert joined(*waiting) == 0
    waiting = in_thread(lambda: ledger.enter(4))
    ledger._changed.parked()
    ledger.resize(4)  # 3. wide enough
    assert joined(*waiting) == 0
