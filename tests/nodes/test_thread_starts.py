"""A signal that comes while a thread is started leaves no thread behind: whoever started it ends it again."""

import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from marius_oac.nodes.groups.heartbeat import Heartbeat
from marius_oac.nodes.launch.frozen import repeated
from marius_oac.nodes.launch.tunnel import LOOPBACK, StoreGate, StoreProxy
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.spans import SpanServer
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.transport.contract import Limits, Security
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.signals import StopSignal
from tests.nodes.test_protocol_simulation import OPTIMIZER, store
from tests.threads import PATIENCE

SECURE = Security(secret=b"s" * 32, run="r")
NOW = ["a", "b"]


def served():
    network = Network()
    doors = [(network.server(name, {rank: name}, Limits()), [rank]) for rank, name in enumerate(NOW)]
    with ShardServer(Shard([NumberedTable(store(0), OPTIMIZER)], 1), doors, lambda error: None):
        pass


def source():
    network = Network()
    network.server("a", {0: "a"}, Limits())
    made = RemoteSource([network.client("a", 0)], [], True, 4, lambda *given: None, lambda: None)
    made.reconcile = lambda message: None
    with made:
        pass


def spans():
    own = SimpleNamespace(close=lambda: None)
    with SpanServer(SimpleNamespace(), own, 1, 9, lambda role: None):
        pass


def proxy():
    gate = StoreGate(f"{LOOPBACK}:0", 1, NOW, SECURE, PATIENCE, print)
    try:
        StoreProxy(gate.address, "a", 1, SECURE, PATIENCE, PATIENCE)
    finally:
        gate.abort()
        gate.close()


def frozen():
    with repeated(lambda: None, 60.0, "looks"):
        pass


STARTS = {
    "looks": frozen,
    "transport": lambda: ZmqServer(f"{LOOPBACK}:0", "a", {}, SECURE),
    "tunnel": lambda: StoreGate(f"{LOOPBACK}:0", 1, NOW, SECURE, PATIENCE, print),
    "tunnel, accepting": proxy,
    "heartbeat": lambda: Heartbeat(dist.HashStore(), LOOPBACK, 0, ["a"], PATIENCE, lambda slot: None),
    "shard, endpoint 0": served,
    "shard, endpoint 1": served,
    "nodes": source,
    "reconciliation": source,
    "spans": spans,
}


def late(thread, gate):
    """Has `start` end by a signal before the thread runs: it runs when the gate is open."""
    runs = thread._bootstrap_inner

    def run():
        gate.wait(PATIENCE)
        runs()

    def interrupted(seconds=None):
        raise StopSignal(15)

    thread._bootstrap_inner, thread._started.wait = run, interrupted


@pytest.mark.parametrize("when", ["it runs", "it will run", "it will not"])
@pytest.mark.parametrize("name", STARTS)
def test_a_thread_whose_start_is_interrupted_ends(name, when, monkeypatch):
    before, started, gate = set(threading.enumerate()), [], threading.Event()
    start = threading.Thread.start

    def interrupted(thread):
        if thread.name != name:
            start(thread)
            return
        started.append(thread)
        if when == "it will run":
            late(thread, gate)
        if when != "it will not":
            start(thread)
        raise StopSignal(15)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(StopSignal):
        STARTS[name]()
    gate.set()
    assert len(started) == 1
    for thread in set(threading.enumerate()) - before:
        with suppress(RuntimeError):  # its start was not waited for, which `join` takes for none
            thread.join(PATIENCE)
    end = time.monotonic() + PATIENCE
    while set(threading.enumerate()) - before and time.monotonic() < end:
        threading.Event().wait(0.01)
    assert set(threading.enumerate()) <= before
