"""The counts of what is on its way, and of what was refused."""

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.refusals import PAUSE, Refusals
from marius_oac.nodes.transport.windows import ReceiveWindow, SendWindow
from marius_oac.nodes.transport.wire import Malformed


@given(st.integers(1, 9), st.integers(1, 40), st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_on_its_way_is_bounded_and_nobody_waits_for_ever(queue, most, data):
    """Random sizes and a random order of sends, hand-outs and news of them; the sender is told by the rule alone."""
    limits = Limits(max_bytes=most, queue=queue)
    sender, receiver = SendWindow(limits), ReceiveWindow(limits)
    waiting, news = deque(), deque()
    sizes = data.draw(st.lists(st.integers(0, most), max_size=40))
    left = deque(sizes)
    while left or waiting:
        can = [bool(left) and sender.fits(left[0]), bool(waiting), bool(news)]
        assert any(can), "sender and receiver wait for each other"
        what = data.draw(st.sampled_from([number for number, possible in enumerate(can) if possible]))
        if what == 0:
            size = left.popleft()
            receiver.arrived(sender.add(size), size)
            waiting.append(size)
            assert len(waiting) <= queue and 2 * sum(waiting) <= 3 * most
        elif what == 1:
            if receiver.take(waiting.popleft()):
                news.append(receiver.tell())
        else:
            sender.taken(news.popleft())


def test_who_does_not_keep_to_it():
    limits = Limits(max_bytes=100, queue=2)
    receiver = ReceiveWindow(limits)
    for number in (0, 2):
        with pytest.raises(Malformed, match="out of order"):
            receiver.arrived(number, 1)
    receiver.arrived(1, 60)
    with pytest.raises(Malformed, match="queue"):
        receiver.arrived(2, 60)
    receiver.arrived(2, 40)
    with pytest.raises(Malformed, match="queue"):
        receiver.arrived(3, 0)
    sender = SendWindow(limits)
    sender.add(1)
    sender.add(1)
    sender.taken(1)
    for count in (0, 3):
        with pytest.raises(Malformed, match="impossible"):
            sender.taken(count)
    sender.taken(2)


def test_refusals_are_counted_and_said_now_and_then():
    now, lines = [100.0], []
    refusals = Refusals(lines.append, lambda: now[0])
    refusals.say()
    refusals.count("noise", "a connection")
    refusals.say()
    for _ in range(5):
        refusals.count("noise", "another")
        refusals.say()
    refusals.count("replay", "a third")
    refusals.say()
    assert lines == ["refused a connection: noise", "refused a third: replay"]
    now[0] += PAUSE
    refusals.say()
    refusals.say()
    assert lines[2:] == ["refused another: noise (5 times, 6 in all)"]
    assert refusals.counts == Counter(noise=6, replay=1)
    refusals.counts.clear()
    assert refusals.counts.total() == 7
