"""nodes.yaml: every kind of mistake is one line that names file, line, node and key."""

import pytest

from marius_oac.config.cluster import ClusterConfig, read_secret
from marius_oac.errors import ConfigError


def load(text, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(text)
    return ClusterConfig.load(path)


def refusal(call, tmp_path):
    with pytest.raises(ConfigError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text and caught.value.exit_code == 2
    return text.replace(f"{tmp_path}/", "")


def test_two_addresses_are_enough(tmp_path):
    cluster = load("nodes: [{address: a}, {address: b}]", tmp_path)
    assert [node.name for node in cluster.nodes] == ["a", "b"]
    assert (cluster.size, cluster.port, cluster.encryption, cluster.timeout) == (2, 29400, False, 60.0)
    assert [cluster.node_port(node) for node in cluster.nodes] == [29401, 29401]
    assert all(node.trainers == 1 and node.shards == 1.0 and node.processes == 1 for node in cluster.nodes)


def test_an_ipv6_address_needs_no_name(tmp_path):
    found = load("nodes: [{address: '::1'}, {address: '::1', name: b, port: 2000}]", tmp_path)
    assert [node.name for node in found.nodes] == ["::1", "b"]


def test_one_entry_more_is_one_node_more(tmp_path):
    before = load("nodes: [{address: a}, {address: b}]", tmp_path)
    after = load("nodes: [{address: a}, {address: b}, {address: c}]", tmp_path)
    assert after.nodes[:2] == before.nodes and after.size == 3
    assert after.model_copy(update={"nodes": before.nodes}) == before


def test_short_forms(tmp_path):
    text = "nodes: [{address: a, gpus: 2, trainers: 2, shards: 2.5, memory: 4GiB, disk: 1TB, path: /ssd}]"
    (node,) = load(text, tmp_path).nodes
    assert (node.gpus, node.shards, node.memory, node.path) == ((0, 1), 2.5, 4 << 30, ("/ssd",))
    (node,) = load(
        "nodes: [{address: '10.0.0.1', gpus: [3], trainers: 1, shards: false}, {address: b}]", tmp_path
    ).nodes[:1]
    assert (node.name, node.gpus, node.shards) == ("10.0.0.1", (3,), 0.0)


def test_what_is_the_same_on_all_nodes_has_one_digest(tmp_path):
    text = "secret: here\nnodes: [{address: a, cores: 4}, {address: b, python: /usr/bin/python3}]"
    cluster = load(text, tmp_path)
    assert cluster.digest() == load(text.replace("here", "there").replace("usr", "opt"), tmp_path).digest()
    assert cluster.digest() != load(text.replace("4", "5"), tmp_path).digest()
    assert cluster.digest() != load(text.replace("secret: here", "timeout: 5"), tmp_path).digest()


def test_nodes_on_this_machine():
    cluster = ClusterConfig.local(3, 8)
    assert [node.name for node in cluster.nodes] == ["node0", "node1", "node2"]
    assert cluster.free_ports and all(cluster.node_port(node) == 0 and node.cores == 2 for node in cluster.nodes)
    assert ClusterConfig.local(3, 2).nodes[0].cores == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "nodes.yaml: must be a mapping of keys, such as `nodes: [{address: a}, {address: b}]`"),
        ("nodes: [", "nodes.yaml:1: expected the node content, but found '<stream end>'"),
        ("port: 29400\n", "nodes.yaml: nodes: this key is required"),
        ("nodes: []\n", "nodes.yaml:1: nodes: must name at least one, not []"),
        ("nodes: 3\n", "nodes.yaml:1: nodes: must be a list"),
        ("nodes:\n- 3\n", "nodes.yaml:2: nodes.0: must be a section of keys, not 3"),
        ("nodes:\n- name: q\n", "nodes.yaml:2: node q: address: this key is required"),
        ("timout: 3\nnodes: [{address: a}]", "nodes.yaml:1: timout: unknown key 'timout'; did you mean 'timeout'?"),
        ("nodes:\n- address: a\n- address: b\n  core: 3\n",
         "nodes.yaml:4: node b: core: unknown key 'core'; did you mean 'cores'?"),
        ("nodes:\n- address: a\n- address: a\n", "nodes.yaml:3: node a: name: is the name of the entry in line 2, too"),
        ("nodes:\n- address: a\n  address: b\n", "nodes.yaml:3: nodes.0.address: this key stands here twice"),
        ("nodes:\n- {name: x, address: a}\n- {name: y, address: a}\n",
         "nodes.yaml:3: node y: port: port 29401 of a is taken by node x; give it another"),
        ("nodes:\n- {name: x, address: a, trainers: 2}\n- {name: y, address: a, port: 29402}\n",
         "nodes.yaml:3: node y: port: port 29402 of a is taken by node x; give it another"),
        ("nodes: [{address: a, port: 29400}]",
         "nodes.yaml:1: node a: port: port 29400 of a is taken by the rendezvous; give it another"),
        ("nodes: [{address: a, port: 65535, trainers: 2}]",
         "nodes.yaml:1: node a: port: its 2 servers would need port 65536; 65535 is the last"),
        ("nodes: [{address: a}, {address: localhost}]",
         "nodes.yaml:1: node localhost: address: means each machine itself; other nodes can't reach it there"),
        ("port: 80\nnodes: [{address: a}]", "nodes.yaml:1: port: must be greater than or equal to 1024, not 80"),
        ("timeout: 0\nnodes: [{address: a}]", "nodes.yaml:1: timeout: must be greater than 0, not 0"),
        ("nodes: [{address: 10}]", "nodes.yaml:1: nodes.0: address: must be text, not 10"),
        ("nodes: [{address: '-oProxyCommand=x', name: b}]",
         "nodes.yaml:1: node b: address: must be a name of letters, digits and . _ : - , not '-oProxyCommand=x'"),
        ("nodes: [{address: a, name: 'a b'}]",
         "nodes.yaml:1: node a b: name: must be a name of letters, digits and . _ : - , not 'a b'"),
        ("nodes: [{address: a, shards: false}]", "nodes.yaml: no node has shards: nobody would keep the rows"),
        ("elastic_workers: 1\nnodes:\n- {address: 127.0.0.1, shards: false}\n- {address: localhost}\n",
         "nodes.yaml:4: node localhost: port: not given, so it takes any that is free, where elastic "
         "workers would not find it; give one"),
        ("nodes: [{address: a, trainers: 0}]", "nodes.yaml: no node has trainers: nobody would train"),
        ("nodes: [{address: a, shards: some}]", "nodes.yaml:1: node a: shards: must be a number, not 'some'"),
        ("nodes: [{address: a, shards: -1}]",
         "nodes.yaml:1: node a: shards: must be greater than or equal to 0, not -1"),
        ("nodes:\n- address: a\n  cores: 1\n  trainers: 2\n",
         "nodes.yaml:3: node a: cores: 1 for 2 trainers; each needs one"),
        ("nodes: [{address: a, gpus: 2}]", "nodes.yaml:1: node a: gpus: 2 for 1 trainers; each computes on one"),
        ("nodes: [{address: a, gpus: [1, 1], trainers: 2}]", "nodes.yaml:1: node a: gpus: a number stands here twice"),
        ("nodes: [{address: a, gpus: many}]",
         "nodes.yaml:1: node a: gpus: must be a number of GPUs, or a list of theirs"),
        ("nodes: [{address: a, memory: lots}]",
         "nodes.yaml:1: node a: memory: must be a size such as 4GiB, not 'lots'"),
        ("nodes: [{address: a, disk: 4GiB}]",
         "nodes.yaml:1: node a: disk: needs `memory`, else all rows are in memory"),
        ("nodes: [{address: b}, {address: a, memory: 1GiB, path: /ssd, shards: false}]",
         "nodes.yaml:1: node a: path: set, but it carries no shards"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(text, expected, tmp_path):
    assert refusal(lambda: load(text, tmp_path), tmp_path) == expected


def test_a_file_that_is_not_there(tmp_path):
    said = refusal(lambda: ClusterConfig.load(tmp_path / "nodes.yaml"), tmp_path)
    assert said == "nodes.yaml: no such file or directory"


def test_the_secret_is_read_beside_the_file_or_from_the_environment(tmp_path):
    cluster = load("secret: s\nnodes: [{address: a}]", tmp_path)
    assert refusal(lambda: read_secret(cluster, {}), tmp_path) == "secret: s: no such file or directory"
    path = tmp_path / "s"
    path.write_text("ab" * 32 + "\n")
    path.chmod(0o644)
    assert refusal(lambda: read_secret(cluster, {}), tmp_path) == (
        "secret: s: others than its owner may use it (mode 644): chmod 600 s"
    )
    path.chmod(0o600)
    assert read_secret(cluster, {}) == "ab" * 32
    assert read_secret(cluster, {"MARIUS_OAC_SECRET": "cd" * 16}) == "cd" * 16
    path.write_text("short")
    assert "has 5 characters; 32 or more are needed" in refusal(lambda: read_secret(cluster, {}), tmp_path)
    assert "MARIUS_OAC_SECRET: has 1 " in refusal(lambda: read_secret(cluster, {"MARIUS_OAC_SECRET": "x"}), tmp_path)
    without = load("nodes: [{address: a}]", tmp_path)
    assert refusal(lambda: read_secret(without, {}), tmp_path).startswith("secret: the nodes need a secret: set ")


def test_no_message_holds_the_secret(tmp_path):
    said = refusal(lambda: read_secret(ClusterConfig.local(1, 1), {"MARIUS_OAC_SECRET": "hush"}), tmp_path)
    assert "hush" not in said
