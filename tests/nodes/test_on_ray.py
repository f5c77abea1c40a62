"""Runs on Ray, in `.venv-ray` (`make test-ray`): an instance of the run's own, and a cluster that loses nodes."""

import json
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
from tests.ports import free_ports

pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PATIENCE = 600
SMALL = {"object_store_memory": 80 << 20}
HEALTH = {"health_check_initial_delay_ms": 2000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory):
    """Ray leaves a token in the home of whoever starts a cluster, and later clusters then ask for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


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
    """Without RAY_ADDRESS no cluster is at hand: also not that of the other tests, which Ray notes in its folder."""
    if "RAY_ADDRESS" not in variables:
        variables["RAY_TMPDIR"] = str(Path(words[words.index("--out") + 1]).parent)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
        "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore",
    } | variables  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "marius_oac", *map(str, words)], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def ray(*words):
    command = [str(Path(sys.executable).parent / "ray"), *map(str, words)]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


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
    """The digests of an undisturbed run on nodes of this machine, trained once for each kind of run."""
    folder, found = tmp_path_factory.mktemp("trained"), {}

    def digests_of(count, *sets):
        if sets not in found:
            out = folder / str(len(found))
            code, text = ended(started("train", config, "--out", out, "--local-nodes", count, *sets))
            assert code == 0, text
            found[sets] = digests(out)
        return found[sets]

    return digests_of


@pytest.fixture(scope="module")
def cluster():
    """Three nodes with a CPU each, beside the one that has none and the dashboard, where jobs are submitted."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        found = Cluster()
        try:
            (port,) = free_ports(1)
            found.add_node(num_cpus=0, include_dashboard=True, dashboard_port=port, _system_config=HEALTH, **SMALL)
            found.jobs = f"http://127.0.0.1:{port}"
            for _ in range(3):
                found.add_node(num_cpus=1, **SMALL)
            found.wait_for_nodes()
            yield found
        finally:
            found.shutdown()


def a_trainer_s_node(cluster, number=-1):
    return sorted(cluster.worker_nodes, key=lambda node: node.unique_id)[number]


def test_an_instance_of_its_own_is_stopped_with_a_checkpoint(config, tmp_path):
    """It listens on the loopback alone, and leaves no process behind."""
    run = started("train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 2)
    until(lambda: checkpoints(tmp_path / "run"), run)
    there = descendants(run.pid)
    listening, trainers = set(), 0
    for each in there:
        with suppress(psutil.NoSuchProcess):  # it has ended
            connections = each.net_connections("inet")
            listening |= {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
            trainers += "marius_oac.nodes.training.trainer" in " ".join(each.cmdline())
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1"} and listening
    assert trainers == 2
    os.kill(run.pid, signal.SIGINT)
    code, text = ended(run)
    assert code == 130 and "go on with: marius-oac resume" in text and "Traceback" not in text
    assert nothing_left(there)
    assert (tmp_path / "run" / "saved.json").exists() or checkpoints(tmp_path / "run")


def test_a_lost_node_is_replaced_and_the_bits_are_those_of_an_undisturbed_run(config, cluster, tmp_path, trained):
    words = ["train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 3]
    run = started(*words, RAY_ADDRESS=cluster.address)
    until(lambda: checkpoints(tmp_path / "run"), run)
    before = checkpoints(tmp_path / "run")[-1]
    began = time.monotonic()
    cluster.remove_node(a_trainer_s_node(cluster), allow_graceful=False)
    cluster.add_node(num_cpus=1, **SMALL)
    until(lambda: checkpoints(tmp_path / "run")[-1] > before, run)
    print(f"seconds until the next checkpoint: {time.monotonic() - began:.1f}")
    code, text = ended(run)
    assert code == 0 and "started again (1), from the last checkpoint" in text, text
    assert digests(tmp_path / "run") == trained(3)


def test_a_job_goes_on_with_fewer_is_stopped_and_goes_on_with_more_to_the_same_bits(config, cluster, tmp_path, trained):
    """Of 2..3 trainers on three nodes, one of which is lost for good."""
    run, parts = tmp_path / "run", ("--set", "nodes.parts=8")
    words = ["--on", "ray", "--trainers", "2..3"]
    work = [sys.executable, "-m", "marius_oac", "train", config, "--out", run, *parts, *words, "--timeout", "15"]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "RAY_JOB_STOP_WAIT_TIME_S": "60"}
    given = ["--runtime-env-json", json.dumps({"env_vars": environment}), "--submission-id", "one"]
    job = ray("job", "submit", "--address", cluster.jobs, *given, "--", *work)
    until(lambda: checkpoints(run), job)
    cluster.remove_node(a_trainer_s_node(cluster), allow_graceful=False)
    until(lambda: list(run.glob("nodes/2-*/node0/checkpoints/0*")), job)
    assert ended(ray("job", "stop", "--address", cluster.jobs, "one"))[0] == 0
    text = ended(job)[1]
    assert "no room for 3 trainers for 15 s; 2 are tried" in text and "stopped" in text.lower(), text
    assert "go on with: marius-oac resume" in text and "Traceback" not in text, text
    cluster.add_node(num_cpus=1, **SMALL)
    # On a busy machine it takes longer than 15 s to give the room of the old trainers to new ones.
    code, text = ended(started("resume", run, *words, "--timeout", PATIENCE, RAY_ADDRESS=cluster.address))
    assert code == 0 and digests(run) == trained(2, *parts), text
    assert max(run.glob("nodes/*/node0/saved.json"), key=lambda file: file.stat().st_mtime).parts[-3].startswith("3-")


def test_a_killed_driver_leaves_nothing(config, tmp_path):
    run = started("train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 2)
    until(lambda: checkpoints(tmp_path / "run"), run)
    there = descendants(run.pid)
    run.kill()
    run.communicate(timeout=PATIENCE)
    assert nothing_left(there)


def example(name, *arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [sys.executable, ROOT / "examples" / name, *arguments], env=environment | {"RAY_ADDRESS": "local"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_the_example_of_ray_train_goes_on_after_a_worker_is_killed(tmp_path):
    run = example("ray_train.py", tmp_path)
    until(lambda: list(tmp_path.glob("checkpoints/*/0*")), run)
    workers = [each for each in descendants(run.pid) if "RayTrainWorker" in "".join(each.cmdline())]
    workers[0].kill()
    code, text = ended(run)
    assert code == 0 and "epoch 3: loss" in text, text
    assert {each.name for each in tmp_path.glob("checkpoints/*/0*")} == {"0000000200", "0000000300"}


def test_the_example_of_ray_tune_gives_the_best_trial_and_its_run(tmp_path):
    code, text = ended(example("ray_tune.py", tmp_path, "2"))
    assert code == 0 and "MRR 0." in text, text
    assert RunFolder.open(text.partition("its run: ")[2].splitlines()[0]).summary()["training.epochs"] == 4


def test_a_mistake_that_a_trainer_finds_is_one_line(config, cluster, tmp_path):
    words = ["train", config, "--out", tmp_path / "run", "--on", "ray", "--trainers", 2, "--set", "data.path=gone"]
    code, text = ended(started(*words, RAY_ADDRESS=cluster.address))
    assert code == 2 and "gone" in text and "started again" not in text and "Traceback" not in text
