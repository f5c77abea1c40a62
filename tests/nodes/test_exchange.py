"""The trainer's side of rows on other nodes, where it meets its limits."""

import threading

import numpy as np
import pytest

from marius_oac.errors import InputError
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.in_process import Network
from marius_oac.pipeline.batch import Batch
from marius_oac.runtime.channel import Closed
from marius_oac.storage.placement import Placement, route_keys
from marius_oac.types import BatchData
from tests.threads import PATIENCE


def test_a_batch_that_no_message_holds_is_the_users_to_make_smaller():
    network, keys = Network(), np.arange(100)
    with network.server("a", {0: "a"}, Limits(max_bytes=500)):
        route = route_keys(Placement.by_number(1), np.zeros(100, np.uint16), keys, np.zeros(100, np.uint32))
        plan = RoutedPlan(7, (keys,), BatchData(), 100, routes=[route])
        ready, formats = threading.Event(), [ValueFormat(4)]
        source = RemoteSource([network.client("a", 0)], formats, True, 4, lambda *stretch: ready.set(), lambda: None)
        with source, pytest.raises(InputError, match="training.batch_size: batch 7: .* make batches smaller"):
            source.begin(0, 9, None, lambda: False).read(Batch(plan))
        assert ready.is_set()


@pytest.mark.parametrize("failing", [0, 1])
def test_a_connection_that_can_not_be_closed_leaves_no_thread(monkeypatch, failing):
    """A thread that is left would keep the process from ending."""
    network, before = Network(), set(threading.enumerate())
    servers = [network.server(name, {0: "a"}, Limits()) for name in "ab"]
    clients = [network.client(name, 0) for name in "ab"]
    source = RemoteSource(clients, [ValueFormat(4)], True, 4, lambda *stretch: None, lambda: None)
    source.reconcile = lambda message: None

    def close(client=clients[failing], closed=clients[failing].close):
        closed()
        raise OSError(client.name)

    def fail(error, real=source.fail):
        assert not threading.Event().wait(0.05)  # the receiving thread takes its time
        real(error)

    monkeypatch.setattr(clients[failing], "close", close)
    monkeypatch.setattr(source, "fail", fail)
    guard = threading.Timer(PATIENCE, source._to_reconcile.put, [None])
    before = {*before, guard}
    guard.start()
    with pytest.raises(OSError, match=clients[failing].name), source:
        assert len(set(threading.enumerate()) - before) == 2
    assert set(threading.enumerate()) == before and all(isinstance(error, Closed) for error in source._errors)
    guard.cancel()
    guard.join()
    for server in servers:
        server.close()


def test_who_can_not_go_on_is_stopped():
    aborted = []
    for end in (lambda source: source.fail(OSError()), lambda source: source.abort()):
        source = RemoteSource([], [ValueFormat(4)], True, 4, lambda *_: None, lambda: aborted.append(True))
        assert not source.stopped.is_set()
        end(source)
        assert source.stopped.is_set()
    assert aborted == [True]
