"""What nodes compare before they train."""

import json
import random
import time

import pytest

from marius_oac.config.cluster import ClusterConfig
from marius_oac.errors import InputError
from marius_oac.nodes.launch.agree import CLOCKS_APART, compare, statement
from marius_oac.nodes.launch.cluster import Machine, Place

NODES = [{"address": f"10.0.0.{k}", "name": f"n{k}", "memory": "4GiB", "cores": 4} for k in range(4)]
CLUSTER = ClusterConfig.model_validate({"nodes": NODES})


def said(index, host=None, cluster=CLUSTER, **keys):
    machine = Machine(host or f"host{index}", "boot", {}, 6, 6 << 30)
    one = statement(Place(cluster, cluster.nodes[index], index, 0, None), "digest", machine)
    return json.loads(json.dumps(one)) | {"clock": 1000.0} | keys


def refusal(*changed):
    """Of four nodes, in any order, with some said otherwise."""
    every = [changed[index] if index < len(changed) and changed[index] else said(index) for index in range(4)]
    found = set()
    for _ in range(5):
        random.Random(0).shuffle(every)
        with pytest.raises(InputError) as caught:
            compare(every)
        found.add(str(caught.value))
    assert len(found) == 1 and "\n" not in (text := found.pop())
    return text


def test_nodes_that_agree():
    compare([said(index) for index in range(4)])
    compare([said(2)])


def test_the_clock_is_now():
    one = statement(Place(CLUSTER, CLUSTER.nodes[0], 0, 0, None), "digest")
    assert abs(one["clock"] - time.time()) < 5 and one["versions"].keys() == {"marius_oac", "torch"}


def test_differences_name_the_node():
    versions = said(0)["versions"]
    assert refusal(None, said(1, versions=versions | {"marius_oac": "0.0.9"})) == (
        f"node n1: has marius_oac 0.0.9, node n0 has {versions['marius_oac']}"
    )
    assert refusal(None, None, said(2, versions=versions | {"torch": "2.11.0"})) == (
        f"node n2: has torch 2.11.0, node n0 has {versions['torch']}"
    )
    assert refusal(None, said(1, config="other")) == "node n1: its config is not the one of node n0"
    assert refusal(None, said(1, data="other")) == "node n1: its data is not the one of node n0"
    assert refusal(None, None, None, said(3, nodes="x")) == "node n3: its nodes.yaml is not the one of node n0"
    assert refusal(None, said(1, problem="log/*.csv: no such file")) == "node n1: log/*.csv: no such file"
    assert refusal(None, said(1, rank=0, node="n1")) == "node n1: two processes claim to be its number 0"


def test_clocks_apart():
    compare([said(0), said(1, clock=1000.0 + CLOCKS_APART), said(2), said(3)])
    assert refusal(None, said(1, clock=1060.0)) == (
        "node n1: its clock is 60.0 s ahead of the others'; at most 5 s are allowed"
    )
    assert "node n3: its clock is 7200.0 s behind" in refusal(None, None, None, said(3, clock=1000.0 - 7200))


def test_nodes_on_one_machine_share_what_it_has():
    assert refusal(said(0, "x"), said(1, "x")) == "node n0, n1: cores: 8 in all, but the machine has 6"
    cheap = ClusterConfig.model_validate({"nodes": [node | {"cores": 2} for node in NODES]})
    every = [said(index, "x" if index < 2 else None, cheap) for index in range(4)]
    with pytest.raises(InputError, match="node n0, n1: memory: 8.00 GiB in all, but the machine has 6.00 GiB"):
        compare(every)


def test_disks(tmp_path):
    tree = {"nodes": [{"address": "a", "memory": "1GiB", "disk": "4000TB", "path": [str(tmp_path / "new")]}]}
    cluster = ClusterConfig.model_validate(tree)
    with pytest.raises(InputError, match="node a: disk: 3725290.30 GiB, but the disks under `path` have "):
        compare([said(0, cluster=cluster)])
    small = ClusterConfig.model_validate({"nodes": [tree["nodes"][0] | {"disk": "1MB"}]})
    compare([said(0, cluster=small)])
