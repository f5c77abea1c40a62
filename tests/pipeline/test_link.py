"""The emulated link: exact on a clock of the test's own, a lower bound on the real one, and it stops."""

import threading
import time

import pytest

from marius_oac.config.sections import LinkConfig
from marius_oac.pipeline import link as module
from marius_oac.pipeline.link import Link
from marius_oac.runtime.channel import Closed
from tests.threads import in_thread, joined


class Clock:
    """Stands in for the `time` module and the `stopped` event: waiting moves it on."""

    def __init__(self):
        self.now, self.waits = 100.0, []

    def perf_counter(self):
        return self.now

    def wait(self, seconds):
        self.waits.append(seconds)
        return False


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_transfers_queue_up_and_the_latency_does_not_occupy_the_link(clock):
    link = Link(LinkConfig(bandwidth=2, latency=1000), clock)  # 2 GB/s, 1 ms
    link.transfer(2_000_000_000)  # 1 s
    link.transfer(1_000_000_000)  # 0.5 s after it
    clock.now += 0.25  # both are under way still
    link.transfer(0)
    clock.now += 100  # the link has long been free
    link.transfer(4_000_000)
    assert clock.waits == pytest.approx([1.001, 1.501, 1.251, 0.003])


def test_a_late_caller_does_not_wait_for_what_has_arrived(clock):
    link = Link(LinkConfig(bandwidth=1), clock)
    link.transfer(0)
    assert clock.waits == [0.0]


def test_no_transfer_returns_early():
    link = Link(LinkConfig(bandwidth=0.001, latency=2000), threading.Event())  # 1 byte a microsecond
    begin = time.perf_counter()
    threads = [in_thread(lambda: link.transfer(5000)) for _ in range(3)]
    for thread, outcome in threads:
        joined(thread, outcome)
    assert time.perf_counter() - begin >= 3 * 0.005 + 0.002


def test_a_stop_ends_every_wait():
    stopped = threading.Event()
    link = Link(LinkConfig(bandwidth=1e-9), stopped)  # a byte a second
    threads = [in_thread(lambda: link.transfer(1_000_000)) for _ in range(2)]
    stopped.set()
    assert all(isinstance(joined(thread, outcome), Closed) for thread, outcome in threads)
    with pytest.raises(Closed):
        link.transfer(0)
