"""Runs on Ray, in `.venv-ray` (`make test-ray`): an instance of the run's own, and a cluster that loses a node."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from marius_oac.runs.folder.folder import RunFolder

pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PATIENCE = 300
HEALTH = {"health_check_initial_delay_ms": 2000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A graph of 300 batches, with a checkpoint each 20."""
    tree = {
        "data": {"path": "codex-s"},
        "model": {"decoder": "complex", "dimension": 16},
        "training": {"batch_size": 330, "epochs": 3, "negatives": {"count": 20, "chunks": 3}},
        "checkpoint": {"every_batches": 20, "keep": 3},
        "evaluation": {"candidates": 100},
    }
    path = tmp_path_factory.mktemp("config") / "graph.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def started(*words, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
        "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore",
    } | variables  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "marius_oac", *map(str, words)], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def ended(process):
    text, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, text


def digests(path):
    return {name: value for name, value in RunFolder.open(path).summary().items() if name.endswith("sha256")}


def checkpoints(path):
    return sorted(each.name for each in path.glob("nodes/*/node0/checkpoints/0*"))


def until(what, process):
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def descendants(pid):
    return psutil.Process(pid).children(recursive=True)


def nothing_left(processes):
    return not psutil.wait_procs(processes, timeout=20)[1]


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    """The digests of a run on so many nodes of this machine, trained once."""
    folder, found = tmp_path_factory.mktemp("trained"), {}

    def digests_of(count):
        if count not in found:
            code, text = ended(started("train", config, "--out", folder / f"{count}", "--local-nodes", count))
            assert code == 0, text
            found[count] = digests(folder / f"{count}")
        return found[count]

    return digests_of


def test_an_instance_of_its_own_is_stopped_and_goes_on_to_the_same_bits(config, tmp_path, trained):
    """It listens on the loopback alone, says how it trains, and leaves a checkpoint and no process behind."""
    run = started("train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 2)
    until(lambda: checkpoints(tmp_path / "run"), run)
    there = descendants(run.pid)
    listening, trainers = set(), 0
    for each in there:
        with suppress(psutil.NoSuchProcess):  # it has ended
            connections = each.net_connections("inet")
            listening |= {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
            trainers += "marius_oac.training.trainer" in " ".join(each.cmdline())
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"} and listening
    assert trainers == 2
    os.kill(run.pid, signal.SIGINT)
    code, text = ended(run)
    assert code == 130 and "go on with: marius-oac resume" in text and "Traceback" not in text
    assert nothing_left(there)
    assert (tmp_path / "run" / "saved.json").exists() or checkpoints(tmp_path / "run")
    again = started("resume", tmp_path / "run", "--on", "ray", "--trainers", 2)
    code, text = ended(again)
    assert code == 0 and digests(tmp_path / "run") == trained(2), text


def test_a_lost_node_is_replaced_and_the_bits_are_those_of_an_undisturbed_run(config, tmp_path, trained, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster()
    try:
        small = {"object_store_memory": 80 << 20}
        cluster.add_node(num_cpus=0, include_dashboard=False, _system_config=HEALTH, **small)
        first = [cluster.add_node(num_cpus=1, **small) for _ in range(3)]
        cluster.wait_for_nodes()
        words = ["train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 3]
        run = started(*words, RAY_ADDRESS=cluster.address)
        until(lambda: checkpoints(tmp_path / "run"), run)
        cluster.remove_node(first[1], allow_graceful=False)
        cluster.add_node(num_cpus=1, **small)
        code, text = ended(run)
        assert code == 0 and "started again (1), from the last checkpoint" in text, text
        assert digests(tmp_path / "run") == trained(3)
    finally:
        cluster.shutdown()


def test_a_killed_driver_leaves_nothing(config, tmp_path):
    run = started("train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 2)
    until(lambda: checkpoints(tmp_path / "run"), run)
    there = descendants(run.pid)
    run.kill()
    run.communicate(timeout=PATIENCE)
    assert nothing_left(there)


def test_a_mistake_that_a_trainer_finds_is_one_line(config, tmp_path):
    words = ["train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 2, "--set", "data.path=gone"]
    code, text = ended(started(*words))
    assert code == 2 and "gone" in text and "started again" not in text and "Traceback" not in text
