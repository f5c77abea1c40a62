"""What a process's connections do when one of them fails."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from marius_oac.config.cluster import SECRET_VARIABLE, ClusterConfig
from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.shards.connections import Connections, check_port, security_of
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.zmq_server import ZmqServer
from tests.threads import PATIENCE

NOBODY = "127.0.0.1:1"


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv(SECRET_VARIABLE, "0" * 64)
    return ClusterConfig.local(3, 3).model_copy(update={"timeout": 0.8})


@pytest.fixture
def server(cluster):
    """That of node0, which knows node1."""
    security = security_of(cluster)
    with ZmqServer("127.0.0.1:0", "node0", {1: "node1"}, security, Limits(), 2.0, lambda line: None) as server:
        yield server


def connect(cluster, monkeypatch, stack, *addresses):
    """Node1, which carries no rows, to servers at these addresses."""
    (group,) = ThreadGroup.members(1)
    monkeypatch.setattr(group, "gather", lambda value: list(addresses))
    monkeypatch.setattr(group, "rank", 1)
    monkeypatch.setattr(group, "barrier", lambda: None)
    place = SimpleNamespace(cluster=cluster, rank=1)
    crowd = Crowd([True] * len(addresses))
    return Connections(place, group, True, 1, crowd=crowd)(stack, None, [ValueFormat(4)], lambda plan: 1.0)


def test_a_server_that_is_not_there_leaves_no_connection_to_the_others(cluster, server, monkeypatch):
    before = set(threading.enumerate())
    with pytest.raises(NodeLost, match="node2"), ExitStack() as stack:
        connect(cluster, monkeypatch, stack, server.address, None, NOBODY)
    assert set(threading.enumerate()) == before  # a thread that is left keeps the process from ending


def test_a_trainer_that_fails_among_its_batches_is_lost_to_all_servers(cluster, server, monkeypatch):
    """One without a server of its own would else have left in peace, and the others would wait for its gradients."""
    with ExitStack() as stack:
        source = connect(cluster, monkeypatch, stack, server.address, None, None)
        source.begin(0, 9, None, lambda: False).abort()
    guard = threading.Timer(PATIENCE, server.abort)
    guard.start()
    with pytest.raises(NodeLost, match="node1.*lost"):
        server.receive()
    guard.cancel()
    guard.join()
    server.abort()


def test_a_port_that_is_taken_is_refused_before_anything_is_written(cluster, server):
    port = int(server.address.rpartition(":")[2])
    node = SimpleNamespace(address="127.0.0.1")
    check_port(SimpleNamespace(node=node, port=0, carries=True))
    check_port(SimpleNamespace(node=node, port=port, carries=False))
    with pytest.raises(InputError, match=f"port {port}: Address already in use"):
        check_port(SimpleNamespace(node=node, port=port, carries=True))
    with pytest.raises(InputError, match="can't listen at no.such.host.invalid"):
        check_port(SimpleNamespace(node=SimpleNamespace(address="no.such.host.invalid"), port=port, carries=True))


def test_each_begins_with_the_server_behind_itself(cluster, monkeypatch):
    """All would come to the first one at once, else."""
    asked = []

    def client(where, name, *_):
        asked.append(name)
        return SimpleNamespace(name=name, close=lambda: None)

    monkeypatch.setattr("marius_oac.nodes.shards.connections.ZmqClient", client)
    with ExitStack() as stack:
        source = connect(cluster, monkeypatch, SimpleNamespace(enter_context=lambda each: each.thing
                         if hasattr(each, "thing") else each), "0", None, "2")  # fmt: skip
        assert asked == ["node2", "node0"]
        assert [each.name for each in source.connections] == ["node0", "node2"] and stack
