"""Several processes of a run on one machine: each is bound to cores of its own, threads of its shard among them."""

import os
import queue
import threading
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from marius_oac.config.cluster import SECRET_VARIABLE, ClusterConfig
from marius_oac.config.ctr import CtrConfig
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.shards.connections import Connections
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.runs import session
from marius_oac.runtime.machine import processes as machine
from marius_oac.runtime.machine.binding import Binding, Seat
from tests.nodes.test_protocol_simulation import DIMENSION, OPTIMIZER, store
from tests.nodes.worlds import together
from tests.threads import PATIENCE

CPU = torch.device("cpu")


@pytest.fixture
def recorded(machine_tree, monkeypatch):
    """`recorded(NAME)`: this machine is that one."""

    def take(name):
        found = machine.read(machine_tree(name))
        monkeypatch.setattr(machine, "read", lambda: found)

    return take


def home_of(peers, **keys):
    tree = {"task": "ctr", "data": {"train": "x.csv", "categorical": ["a"]}, **keys}
    task = SimpleNamespace(folder=None)
    return SimpleNamespace(task=task, config=CtrConfig.build(tree), peers=peers, table_bytes=lambda: 0)


def bound(count, device=lambda rank: CPU, **keys):
    """What each of the processes finds."""
    groups = ThreadGroup.members(count)
    return together(groups, lambda group: session.bind(home_of(ClusterPeers(group), **keys), device(group.rank)))


def test_eight_local_nodes_compute_on_all_cores(recorded, capsys):
    """`--local-nodes 8` on 126 CPUs: each has 15 threads."""
    recorded("two_sockets")
    found = bound(8, threads=15)
    computing = [set(each.cpus("compute")) for each in found]
    assert len(set().union(*computing)) == sum(map(len, computing)) == 126
    assert capsys.readouterr().err.count("threads are bound") == 1


def test_gpus_of_one_socket_have_cores_of_their_own(recorded, monkeypatch):
    """Zhao et al., Figure 1: GPUs 0 to 3 are next to CPU 0."""
    recorded("four_sockets")
    buses = [*range(0x1A, 0x1E), *range(0x5E, 0x62)]

    def properties(device):
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=buses[device.index], pci_device_id=0)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    found = bound(8, lambda rank: torch.device("cuda", rank))
    cores = [each.cpus("compute") for each in found]
    assert len(set(cores)) == 8 and [each.seats["compute"].nodes for each in found] == [(0,)] * 4 + [(1,)] * 4


def test_unbound_trainers_share_the_cpus_of_one_node(recorded):
    recorded("virtual_machine")
    for keys in ({}, {"binding": "off"}):
        found = bound(2, **keys)
        assert [each.threads() for each in found] == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
        assert not any(each.seats for each in found)


def test_what_a_process_tells_is_plain():
    told = machine.LocalProcess("kernel", "0-3", ["sda"])
    process = machine._seated(SimpleNamespace(), machine.LocalProcess(**asdict(told)))
    assert process.disks == ["sda"] and process.gpu is None


class Watched(Binding):
    """Says who has been bound to what."""

    def bind_thread(self, role):
        found = super().bind_thread(role)
        self.told.put((role, threading.get_native_id(), threading.current_thread().name))
        return found


def affinity(thread):
    return set(os.sched_getaffinity(thread))


def comm(thread):
    return Path(f"/proc/self/task/{thread}/comm").read_text().strip()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one CPU everything is bound to it")
def test_threads_that_serve_receive_and_carry_sit_where_the_table_says(monkeypatch):
    """Of two processes, of which one has rows: doors, lines, and the threads of ZeroMQ itself."""
    monkeypatch.setenv(SECRET_VARIABLE, "0" * 64)
    one, other, *_ = sorted(os.sched_getaffinity(0))
    seats = {"network": Seat((one,), (0,)), "serve": Seat((other,), (0,)), "receive": Seat((other,), (0,))}
    cluster, before = ClusterConfig.local(2, 2), set(os.listdir("/proc/self/task"))

    def work(group):
        place = SimpleNamespace(cluster=cluster, rank=group.rank, node=SimpleNamespace(address="127.0.0.1"), port=0)
        binding = Watched(seats, None, "")
        object.__setattr__(binding, "told", queue.Queue())
        allowed = os.sched_getaffinity(0)
        with ExitStack() as stack:
            tables = None if group.rank else [NumberedTable(store(0), OPTIMIZER)]
            Connections(place, group, True, 4)(stack, tables, [ValueFormat(DIMENSION)], lambda plan: 1.0, binding)
            assert os.sched_getaffinity(0) == allowed, "who connects is not bound for good"
            told = [binding.told.get(timeout=PATIENCE) for _ in range(2 if group.rank else 4)]
            bound = {(role, name): affinity(thread) for role, thread, name in told if role != "network"}
            group.barrier()
            if not group.rank:
                new = set(os.listdir("/proc/self/task")) - before
                carriers = [affinity(int(each)) for each in new if comm(each).startswith("ZMQbg/IO")]
                assert carriers and all(each == {one} for each in carriers)
            group.barrier()
        return bound

    first, second = together(ThreadGroup.members(2, names=["node0", "node1"]), work)
    assert first == dict.fromkeys(
        [("serve", "shard, endpoint 0"), ("serve", "shard, endpoint 1"), ("receive", "nodes")], {other}
    )
    assert second == {("receive", "nodes"): {other}}
