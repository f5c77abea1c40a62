"""`marius-oac nodes check`: one line for each node, and what is wrong by its name."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marius_oac import __version__
from marius_oac.config.cluster import ClusterConfig
from marius_oac.nodes.launch.check import Found, _of_all, check

ROOT = Path(__file__).parents[2]
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
host=$1; shift
case $host in
127.0.0.2) exec {python} {liar};;
127.0.0.3) echo 'Permission denied (publickey).' >&2; exit 255;;
127.0.0.4) exit 7;;
*) exec sh -c "$*";;
esac
"""
LIAR = """
import json, socket, sys, time
sys.stdin.readline()
for line in (
    {"versions": {"marius_oac": "0.0.1", "torch": None}, "clock": 0, "host": "liar", "machine": "liar",
     "addresses": {}, "cores": 1, "memory": 1 << 30, "free_memory": 1 << 29, "free_disk": 1 << 30, "port": None,
     "taken": {"29500": "address already in use"}},
    {"clock": time.time() - 100},
):
    print(json.dumps(line), flush=True)
    asked = sys.stdin.readline()
to = json.loads(asked)
socket.create_connection((to["address"], to["port"])).close()
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Hosts that behave each in its way."""
    (tmp_path / "liar.py").write_text(LIAR)
    (tmp_path / "ssh").write_text(SSH.format(python=sys.executable, liar=tmp_path / "liar.py"))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def cluster(*nodes, **keys):
    return ClusterConfig.model_validate({"nodes": list(nodes)} | keys)


def test_nodes_on_this_machine_are_fine(command):
    code, out, err = command("nodes", "check", "--local-nodes", "2")
    assert (code, err) == (0, [])
    assert out[0].split()[:3] == ["node", "address", "versions"]
    for line, name in zip(out[1:3], ("node0", "node1"), strict=True):
        assert line.startswith(name) and line.endswith("ok") and f"{__version__}, torch 2." in line and "GB/s" in line
    assert out[3] == "" and out[4].startswith("not checked: ") and len(out) == 5


def test_one_node_alone_has_nobody_to_measure(command):
    code, out, _ = command("nodes", "check", "--local-nodes", "1")
    assert code == 0 and "GB/s" not in out[1]


def test_what_is_wrong_is_named_with_its_node(ssh, tmp_path, command):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "nodes.yaml").write_text(
            f"nodes:\n- {{name: a, address: 127.0.0.1, port: {port}, memory: 4000TB, interface: none0}}\n"
            "- {name: liar, address: 127.0.0.2, disk: 2GiB, memory: 768MiB}\n- {name: shut, address: 127.0.0.3}\n"
            "- {name: dumb, address: 127.0.0.4}\n"
        )
        code, out, _ = command("nodes", "check", tmp_path / "nodes.yaml")
    assert code == 1
    rows = {line.split()[0]: line for line in out[1:5]}
    assert rows["a"].endswith("wrong") and rows["liar"].endswith("wrong")
    assert rows["shut"].endswith("unreachable") and rows["dumb"].endswith("unreachable")
    assert "not measured" in rows["a"] and "none" in rows["liar"]
    wrong = out[6:-1]
    assert f"node a: can't listen at 127.0.0.1, port {port}: address already in use" in wrong
    assert any(line.startswith("node a: interface: ") and "has no interface none0" in line for line in wrong)
    assert f"node liar: has marius_oac 0.0.1, here it is {__version__}" in wrong
    assert "node liar: has no torch" in wrong
    assert any(line.startswith("node liar: does not reach node a at 127.0.0.1, port ") for line in wrong)
    assert "node liar: can't listen at 127.0.0.2, port 29500: address already in use" in wrong
    assert "node liar: memory: 768 MiB, but 512 MiB are free" in wrong
    assert "node liar: disk: 2.00 GiB, but 1.00 GiB are free" in wrong
    assert "node shut: Permission denied (publickey)." in wrong
    assert "node dumb: has ended with exit code 7" in wrong
    (clock,) = [line for line in wrong if line.startswith("node liar: its clock is ")]
    assert clock.endswith("s behind") and abs(float(clock.split()[5]) - 100) < 30


def test_a_secret_that_is_missing_is_said(ssh, tmp_path, monkeypatch):
    monkeypatch.delenv("MARIUS_OAC_SECRET", raising=False)
    report = check(cluster({"address": "127.0.0.1"}, secret=str(tmp_path / "none")))
    assert not report.ok and report.wrong == [f"secret: {tmp_path}/none: no such file or directory"]


def test_the_probe_answers_only_those_who_know_the_secret(tmp_path):
    """A stranger is not measured with, and does not keep the node that comes after from it."""
    with subprocess.Popen(
        [sys.executable, "-m", "marius_oac.nodes.launch.probe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as probe:  # fmt: skip

        def ask(value):
            probe.stdin.write(json.dumps(value) + "\n")
            probe.stdin.flush()

        ask({"secret": "s" * 64, "address": "127.0.0.1", "ports": [0], "path": []})
        port = json.loads(probe.stdout.readline())["port"]
        ask({"do": "receive"})
        with socket.create_connection(("127.0.0.1", port), 30) as stranger:
            stranger.sendall(b"x" * 64)
            assert stranger.recv(1) == b""
        with socket.create_connection(("127.0.0.1", port), 30) as friend:
            friend.sendall(b"s" * 64)
            for _ in range(20):
                friend.sendall(b"0")
                assert friend.recv(1) == b"0"
            friend.sendall((3).to_bytes(8, "little") + b"abc")
            assert friend.recv(1) == b"1"
        assert json.loads(probe.stdout.readline()) == {"num_bytes": 3}
        begin = time.time()
        ask({"do": "clock"})
        assert begin <= json.loads(probe.stdout.readline())["clock"] <= time.time()
        probe.stdin.close()
        assert probe.wait(30) == 0


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["nodes"], "the following arguments are required: action"),
        (["nodes", "check"], "one of the arguments file --local-nodes is required"),
        (["nodes", "check", "x.yaml", "--local-nodes", "2"], "not allowed with argument"),
        (["nodes", "check", "--local-nodes", "0"], "--local-nodes: must be at least 1, not 0"),
        (["nodes", "check", "no/such.yaml"], "no/such.yaml: no such file or directory"),
    ],
)
def test_wrong_arguments(command, argv, parts):
    code, out, err = command(*argv)
    assert (code, out, len(err)) == (2, [], 1) and parts in err[0]


def test_nodes_of_one_machine_share_what_is_free_there_when_it_is_least():
    """Each probe has asked at a moment of its own; nodes of other machines have their own."""
    config = cluster(*({"name": name, "address": "127.0.0.1", "memory": "3GiB"} for name in "abc"))

    def wrong(*free):
        facts = [{"machine": machine, "free_memory": each << 30} for machine, each in zip("mmo", free, strict=True)]
        return _of_all(config, [Found(*each) for each in zip(config.nodes, facts, strict=True)], True)

    assert wrong(6, 6, 3) == []
    assert wrong(6, 5, 3) == wrong(5, 6, 3) == ["node a, b: memory: 6.00 GiB in all, but 5.00 GiB are free there"]
