"""Who a process is: from torchrun's variables and the machine's addresses, or a refusal that names the node."""

import psutil
import pytest

from marius_oac.config.cluster import ClusterConfig
from marius_oac.errors import InputError
from marius_oac.nodes.launch.cluster import (
    Machine,
    check_machine,
    endpoint,
    find_place,
    listening_at,
    names,
    this_machine,
)

HERE = Machine(
    "hostb", "boot", {"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.2", "fe80::1"), "ib0": ("10.9.0.2",)}, 8, 1 << 34
)


def cluster(*nodes, **keys):
    return ClusterConfig.model_validate({"nodes": list(nodes)} | keys)


def torchrun(world, local, together):
    return {"WORLD_SIZE": str(world), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(together)}


THREE = cluster(
    {"name": "a", "address": "10.0.0.1", "trainers": 2},
    {"name": "b", "address": "10.0.0.2", "trainers": 3, "cores": 7, "gpus": [4, 5, 6]},
    {"name": "c", "address": "10.0.0.3", "shards": False},
)


def refusal(call):
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_rank_is_the_place_in_the_file_whatever_torchrun_counts():
    places = [find_place(THREE, None, HERE, torchrun(6, local, 3) | {"RANK": "0"}) for local in range(3)]
    assert [place.rank for place in places] == [2, 3, 4] and all(place.size == 6 for place in places)
    assert [place.port for place in places] == [29401, 29402, 29403]
    assert [place.device for place in places] == ["cuda:4", "cuda:5", "cuda:6"]
    assert all(place.threads == 2 and place.interface == "eth0" and place.carries for place in places)
    assert places[1].environment() == {"RANK": "3", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
    assert names(THREE) == ["a", "a/1", "b", "b/1", "b/2", "c"]


def test_the_ranks_of_all_places_are_each_number_once():
    found = [
        find_place(THREE, node.name, HERE, torchrun(6, local, node.processes)).rank
        for node in THREE.nodes
        for local in range(node.processes)
    ]
    assert found == list(range(6))


def test_a_node_is_found_by_host_name_too():
    place = find_place(cluster({"address": "hosta"}, {"address": "hostb"}), None, HERE, torchrun(2, 0, 1))
    assert place.node.name == "hostb" and place.rank == 1 and place.device is None and place.threads is None


def test_nodes_on_this_machine_share_a_torchrun():
    local = ClusterConfig.local(3, 8)
    places = [find_place(local, None, HERE, torchrun(3, number, 3)) for number in range(3)]
    assert [place.node.name for place in places] == ["node0", "node1", "node2"]
    assert [(place.rank, place.local, place.port, place.interface) for place in places] == [
        (0, 0, 0, "lo"), (1, 0, 0, "lo"), (2, 0, 0, "lo"),
    ]  # fmt: skip


def test_several_nodes_of_one_address_are_told_apart_by_name():
    two = cluster({"name": "x", "address": "10.0.0.2"}, {"name": "y", "address": "10.0.0.2", "port": 30000})
    assert find_place(two, "y", HERE, torchrun(2, 0, 1)).rank == 1
    assert find_place(two, None, HERE, torchrun(2, 1, 2)).node.name == "y"
    assert refusal(lambda: find_place(two, None, HERE, torchrun(2, 0, 1))) == (
        "node x, y: nodes.yaml gives it 2 processes, torchrun started 1: --nproc-per-node 2, or `--node NAME` says "
        "which of these nodes this is"
    )


def test_refusals_name_the_node():
    strangers = cluster({"address": "10.0.0.7"}, {"address": "10.0.0.8"})
    assert refusal(lambda: find_place(strangers, None, HERE, torchrun(2, 0, 1))) == (
        "nodes.yaml: this machine (hostb, 10.0.0.2, fe80::1, 10.9.0.2) is none of the nodes (10.0.0.7, 10.0.0.8); add "
        "an entry, or say which it is with --node"
    )
    assert refusal(lambda: find_place(THREE, "d", HERE, {})) == "--node: nodes.yaml has no node d; it has a, b, c"
    assert refusal(lambda: find_place(THREE, None, HERE, torchrun(6, 0, 1))) == (
        "node b: nodes.yaml gives it 3 processes, torchrun started 1: --nproc-per-node 3"
    )
    assert refusal(lambda: find_place(THREE, None, HERE, torchrun(3, 0, 3))) == (
        "node b: nodes.yaml has 6 processes (a 2, b 3, c 1), torchrun started 3"
    )
    assert "torchrun did not start this process: 'WORLD_SIZE'" in refusal(lambda: find_place(THREE, None, HERE, {}))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"interface": "eth7"}, "node 10.0.0.2: interface: hostb has no interface eth7; it has lo, eth0, ib0"),
        ({"interface": "ib0"}, "node 10.0.0.2: interface: ib0 does not have 10.0.0.2; it has 10.9.0.2"),
        ({"cores": 9}, "node 10.0.0.2: cores: 9, but hostb has 8 for this program"),
        ({"memory": "17GiB"}, "node 10.0.0.2: memory: 17.00 GiB, but hostb has 16.00 GiB"),
    ],
)
def test_a_machine_that_is_not_as_its_entry_says(keys, expected):
    (node,) = cluster({"address": "10.0.0.2"} | keys).nodes
    assert refusal(lambda: check_machine(node, HERE)) == expected


def test_what_fits_the_machine():
    (node,) = cluster({"address": "10.0.0.2", "interface": "eth0", "cores": 8, "memory": "16GiB"}).nodes
    assert check_machine(node, HERE) == "eth0"
    (node,) = cluster({"address": "no-such-host.invalid"}).nodes
    assert check_machine(node, HERE) is None


def test_this_machine():
    machine = this_machine()
    assert machine.is_at("127.0.0.1") and machine.is_at(machine.host) and machine.is_at("localhost")
    assert set(machine.addresses) == set(psutil.net_if_addrs()) and "127.0.0.1" in machine.addresses["lo"]
    assert machine.cores >= 1 and machine.memory == psutil.virtual_memory().total
    assert not machine.is_at("203.0.113.7")


def test_an_ipv6_address_stands_in_brackets_before_a_port():
    assert [endpoint(host, 7) for host in ("10.0.0.2", "hostb", "fe80::1")] == ["10.0.0.2:7", "hostb:7", "[fe80::1]:7"]
    assert listening_at("::1", 7) == "[::1]:7" and listening_at("127.0.0.1", 0) == "127.0.0.1:0"
    with pytest.raises(OSError):
        listening_at("no-such-host.invalid", 7)
