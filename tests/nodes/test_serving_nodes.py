"""Nodes with `trainers: 0`, which only serve: launched, and what is decided before."""

import secrets
import subprocess
import sys

import pytest
import yaml

from marius_oac.config.cluster import ClusterConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.runs.checkpoints.parts import SERVES, Layout
from marius_oac.runs.folder.folder import RunFolder
from tests.nodes import test_node_training as over_nodes
from tests.nodes.test_node_training import BATCHES, SMOOTH, digests, run
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("forked_programs")
configs = over_nodes.configs
PATIENCE = 240


def train(folder, names, *command, **different):
    """The command on nodes of these names, each started by itself; `different`: keys of some of them."""
    meeting, *ports = free_ports(1 + len(names))
    nodes = [
        {"name": name, "address": "127.0.0.1", "port": port} | different.get(name, {})
        for name, port in zip(names, ports, strict=True)
    ]
    path = folder / f"{names}.yaml"
    path.write_text(yaml.safe_dump({"port": meeting, "timeout": 20, "nodes": nodes}))
    words = [sys.executable, "-m", "marius_oac", *map(str, command), "--nodes", str(path)]
    about = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    about["env"] = over_nodes.os.environ | {"MARIUS_OAC_SECRET": secrets.token_hex(32)}
    started = [subprocess.Popen([*words, "--node", name], **about) for name in names]
    try:
        said = [each.communicate(timeout=PATIENCE)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    assert [each.returncode for each in started] == [0] * len(names), said
    return said


SERVER = {"trainers": 0}


@pytest.mark.slow
@pytest.mark.parametrize("task, parts", [("clicks", "null"), ("graph", 4)])
def test_a_node_that_only_serves_changes_no_bit(configs, tmp_path, task, parts):
    """It comes first by name, and between the two that train; from its checkpoint the run goes on, to the same bits."""
    often = ["--set", "checkpoint.every_batches=40", "--set", f"nodes.parts={parts}"]
    command = ["train", configs / f"{task}.yaml", "--set", SMOOTH, *often]
    run(*command, "--local-nodes", 2, "--out", tmp_path / "two")
    served = tmp_path / "served"
    train(tmp_path, "bac", *command, "--out", served, a=SERVER, c={"shards": False})
    assert digests(served) == digests(tmp_path / "two")
    (layout,) = Layout.all(served)
    assert [SERVES in part.open(part.names()[-1]).arrays() for part in layout.parts] == [True, False, False]
    assert RunFolder.open(served).checkpoint().dense().keys()
    train(tmp_path, "bac", "resume", served, "--checkpoint", "0000000040", a=SERVER, c={"shards": False})
    assert digests(served) == digests(tmp_path / "two")


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["{mode: gba}", "{switch: [{at: 30, mode: gba}]}", "{dense: {kind: easgd}}"])
def test_a_node_that_only_serves_has_its_part_of_what_is_dense(configs, tmp_path, nodes):
    path, modes = tmp_path / "run", ["--set", f"nodes={nodes}", "--set", "checkpoint.every_batches=40"]
    train(tmp_path, "bac", "train", configs / "clicks.yaml", "--out", path, *modes, a=SERVER)
    summary = RunFolder.open(path).summary()
    assert summary["training.batches"] == BATCHES and summary["valid.auc"] > 0.6
    if "gba" in nodes:
        assert summary["dealt.tokens"] == summary["dealt.dense_gradients"] == 2 * (BATCHES - 30 * ("30" in nodes))


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([SERVER, SERVER], "no node has trainers: nobody would train"),
        ([SERVER, {}], "node n0: trainers: 0, but the first node evaluates and decides, and must train"),
        ([{}, SERVER | {"shards": False}], "node n1: trainers: 0, and it carries no shards: it would do nothing"),
        ([{}, SERVER | {"gpus": 1}], "node n1: gpus: 1 for 0 trainers"),
        ([{}, {"trainers": -1}], "node n1: trainers: must be"),
    ],
)
def test_who_would_train_nothing_or_do_nothing_is_refused_in_one_line(tmp_path, nodes, said):
    path = tmp_path / "nodes.yaml"
    entries = [{"name": f"n{k}", "address": "127.0.0.1", "port": 3000 + k} | node for k, node in enumerate(nodes)]
    path.write_text(yaml.safe_dump({"nodes": entries}))
    with pytest.raises(ConfigError) as refused:
        ClusterConfig.load(path)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_trainers_are_numbered_as_if_nobody_else_were_there():
    crowd = Crowd([True, False, True, False], outside=2)
    assert [crowd.peer(rank) for rank in range(4)] == [0, 2, 1, 3]
    assert (crowd.within, crowd.trainers, crowd.own, crowd.serving) == (2, 4, 6, [1, 3])
