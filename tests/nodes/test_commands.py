"""The commands that start nodes, as `--dry-run` prints them, and what is refused before any runs."""

import os
import shlex
import sys
from types import SimpleNamespace

import pytest

from marius_oac.config.cluster import START_VARIABLE, ClusterConfig
from marius_oac.errors import InputError
from marius_oac.nodes.launch.launch import Request, local_cluster
from marius_oac.nodes.launch.parent import MET, TOLD, has_told
from marius_oac.nodes.launch.remote import commands
from marius_oac.nodes.training import cluster as node_training
from tests.graphs import tiny_config
from tests.run_folders import says, write_config

NODES = """\
timeout: 30
nodes:
- {name: a, address: 10.0.0.1}
- {name: b, address: hostb, python: /opt/py thon, directory: "/a b"}
"""


@pytest.fixture
def config(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "SLURM_JOB_ID", "MARIUS_OAC_SECRET"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "nodes.yaml").write_text(NODES)
    return write_config(tmp_path / "config.yaml", tiny_config(graph, "training.epochs=1"))


def test_by_ssh(command, config, tmp_path):
    before = sorted(tmp_path.iterdir())
    code, out, err = command("train", config, "--nodes", "nodes.yaml", "--dry-run", "--out", "x")
    assert (code, err) == (0, [])
    python = sys.executable
    options = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
    rest = f"-P -m marius_oac train {config} --nodes nodes.yaml --out x --node"
    assert out[0] == "# each reads the run's secret from its standard input, and stops when that ends"
    there = f"cd {tmp_path} && exec {python} -P -m marius_oac.nodes.launch.guard 30 {python} {rest} a"
    assert out[1] == f"ssh {options} 10.0.0.1 {shlex.quote(there)}"
    assert shlex.split(out[2])[-2:] == [
        "hostb",
        f"cd '/a b' && exec '/opt/py thon' -P -m marius_oac.nodes.launch.guard 30 '/opt/py thon' {rest} b",
    ]
    assert len(out) == 3 and sorted(tmp_path.iterdir()) == before


def test_under_slurm(command, config, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    code, out, _ = command("resume", tmp_path, "--nodes", "nodes.yaml", "--dry-run")
    step = "srun --nodes=1 --ntasks=1 --nodelist={} --cpu-bind=none --unbuffered {}"
    here, rest = sys.executable, f"-P -m marius_oac resume {tmp_path} --nodes nodes.yaml --node"
    first, second = step.format("a", f"--chdir={tmp_path}"), step.format("b", "'--chdir=/a b'")
    assert code == 0 and out[1:] == [
        f"{first} {here} -P -m marius_oac.nodes.launch.guard 30 {here} {rest} a",
        f"{second} '/opt/py thon' -P -m marius_oac.nodes.launch.guard 30 '/opt/py thon' {rest} b",
    ]


def test_what_is_typed_cannot_become_a_command():
    cluster = ClusterConfig.model_validate({"nodes": [{"address": "a", "directory": "/tmp; rm -rf x"}]})
    ((_, words),) = commands(cluster, ["train", "$(reboot)", "--out", "a b'c"], {})
    assert words[-2] == "a"
    there = shlex.split(words[-1])
    assert there[:3] == ["cd", "/tmp; rm -rf x", "&&"] and "$(reboot)" in there and "a b'c" in there


def test_on_this_machine(command, config):
    code, out, err = command("train", config, "--local-nodes", "3", "--dry-run")
    assert (code, err) == (0, [])
    assert out == [
        "MARIUS_OAC_SECRET=$(openssl rand -hex 32) TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONSAFEPATH=1 "
        "python -m torch.distributed.run --standalone --nproc-per-node 3 "
        f"-m marius_oac train {config} --local-nodes 3"
    ]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--dry-run"], "--dry-run: needs --nodes FILE, or --local-nodes N"),
        (["--node", "a"], "--node: needs --nodes FILE, or --local-nodes N"),
        (["--node", "a", "--local-nodes", "2"], "--local-nodes starts all of them"),
        (["--local-nodes", "-1"], "--local-nodes: must be at least 1, not -1"),
        (["--local-nodes", "two"], "invalid int value: 'two'"),
        (["--local-nodes", "2", "--nodes", "x"], "not allowed with argument"),
        (["--nodes", "none.yaml"], "none.yaml: no such file or directory"),
        (["--nodes", "nodes.yaml", "--node", "aa"], "--node: nodes.yaml has no node aa"),
        (["--nodes", "nodes.yaml", "--node", "a"], "the nodes need a secret"),
    ],
)
def test_refused_before_anything_starts(command, config, tmp_path, options, part):
    before = sorted(tmp_path.iterdir())
    for argv in (["train", config], ["resume", tmp_path]):
        code, out, err = command(*argv, *options)
        assert (code, out, len(err)) == (2, [], 1) and says(err, part)
    assert sorted(tmp_path.iterdir()) == before


def test_a_config_that_is_wrong_is_refused_before_anything_starts(command, config):
    code, out, err = command("train", config, "--local-nodes", "2", "--set", "training.epochs=0")
    assert (code, out, len(err)) == (2, [], 1) and says(err, "training.epochs")


def test_without_ssh(command, config, monkeypatch):
    monkeypatch.setenv("PATH", "")
    code, _, err = command("train", config, "--nodes", "nodes.yaml")
    assert code == 2 and says(err, "node a: there is no ssh here to start it with")


def torchrun(monkeypatch, **more):
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "TORCHELASTIC_USE_AGENT_STORE": "True", "MARIUS_OAC_SECRET": "s" * 64} | more  # fmt: skip
    monkeypatch.delenv(START_VARIABLE, raising=False)  # another test's agent may have set it
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is restored
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "marius_oac.nodes.launch.launch.end_with_parent", lambda: None
    )  # the tests' own parent is no agent


def test_inside_torchrun_it_trains(command, config, tmp_path, monkeypatch):
    torchrun(monkeypatch)
    seen = []
    monkeypatch.setattr(node_training, "train_on_nodes", lambda *args, **keys: seen.append((args, keys)))
    monkeypatch.setattr(node_training, "resume_on_nodes", lambda *args, **keys: seen.append((args, keys)))
    assert command("train", config, "--local-nodes", "2", "--out", "x", "--trace")[0] == 0
    assert command("resume", tmp_path, "--local-nodes", "2", "--checkpoint", "best")[0] == 0
    (given, place, out), keys = seen[0]
    assert (given.training.epochs, place.rank, place.node.name, str(out), keys) == (1, 1, "node1", "x", {"trace": True})
    (run, place, overrides), keys = seen[1]
    assert (run, place.rank, overrides) == (tmp_path, 1, [])
    assert keys == {"data": (), "data_path": None, "checkpoint": "best", "trace": False, "trust": False}


def test_agents_wait_for_each_other_as_long_as_a_run_may_take_to_end(command, config, monkeypatch):
    """One that was killed before it came may be missed by the others alone: in 2 x `timeout`."""
    seen = []
    monkeypatch.setattr("marius_oac.nodes.launch.launch.run", lambda processes: seen.append(processes) or 0)
    monkeypatch.setenv("MARIUS_OAC_SECRET", "s" * 64)
    assert command("train", config, "--nodes", "nodes.yaml", "--node", "a")[0] == 0
    assert [(each.timeout, each.patience) for each in seen] == [(30, 60)]


def test_an_agent_is_told_when_all_processes_have_met(tmp_path, monkeypatch):
    torchrun(monkeypatch)
    monkeypatch.setenv(TOLD, str(tmp_path))
    meets = lambda *_: has_told(tmp_path, os.getpid(), MET)  # noqa: E731
    monkeypatch.setattr(node_training.TorchGroup, "from_environment", meets)
    place = SimpleNamespace(rank=1, environment=dict, cluster=local_cluster(2), interface=None)
    assert node_training.open_group(place) is False and meets()


def test_only_the_first_process_says_the_result(command, config, monkeypatch):
    monkeypatch.setattr(node_training, "train_on_nodes", lambda *args, **keys: "the result")
    for rank, said in (("0", ["the result"]), ("1", [])):
        torchrun(monkeypatch, RANK=rank, LOCAL_RANK=rank)
        assert command("train", config, "--local-nodes", "2") == (0, said, [])


def test_inside_torchrun_without_a_secret(command, config, monkeypatch):
    torchrun(monkeypatch)
    monkeypatch.delenv("MARIUS_OAC_SECRET")
    code, _, err = command("train", config, "--local-nodes", "2")
    assert code == 2 and says(err, "the nodes need a secret")


def test_torchruns_own_store_is_not_trusted_twice(command, config, monkeypatch):
    torchrun(monkeypatch, TORCHELASTIC_MAX_RESTARTS="3")
    code, _, err = command("train", config, "--local-nodes", "2")
    assert code == 2 and says(err, "--max-restarts: torchrun needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1")


def test_wanted():
    assert not Request([]).wanted and Request([], local=2).wanted
    with pytest.raises(InputError):
        assert Request([], node="a").wanted
