"""Training over nodes, for real: processes on this machine, with the command that a user types."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
import yaml

from benchmarks.generate.log import LogSpec, write_day
from marius_oac.cli import commands as cli
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.verification import verify
from tests.run_folders import contents, flip_a_byte, says, slow

pytestmark = pytest.mark.usefixtures("forked_programs")
SMOOTH = "training.optimizer.initial_accumulator=0.1"
"""Adagrad's first step is the gradient's sign, which rounding turns where it is near zero; this makes it smooth."""
BATCHES = 80


def start(*arguments, **environment):
    command = [sys.executable, "-m", "marius_oac", *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "MARIUS_OAC_SECRET"))}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=clean | environment
    )


def run(*arguments, code=0):
    process = start(*arguments)
    text, _ = process.communicate(timeout=240)
    assert process.returncode == code, text
    return text


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """A graph and a click log of some 80 batches each."""
    folder = tmp_path_factory.mktemp("configs")
    spec = LogSpec(categorical=4, numeric=3, keys=3000, skew=1.05)
    write_day(folder / "day.parquet", 0, 64 * BATCHES, spec)
    write_day(folder / "next.parquet", 1, 2000, spec)
    clicks = {
        "task": "ctr",
        "data": {"train": str(folder / "day.parquet"), "valid": str(folder / "next.parquet"), **spec.schema()}
        | {"numeric": ["n0", {"name": "n1", "transform": "quantiles"}, {"name": "n2", "transform": "log1p"}]},
        "model": {"network": "deepfm", "dimension": 4, "hidden": [16]},
        "training": {"batch_size": 64, "epochs": 1, "embedding_l2": 1e-4},
    }
    graph = {
        "data": {"path": "codex-s"},
        "model": {"decoder": "complex", "dimension": 16},
        "training": {
            "batch_size": 33000 // BATCHES, "epochs": 1, "negatives": {"count": 20, "chunks": 3},
            "regularization": {"kind": "n3", "weight": 0.01},
        },
        "evaluation": {"candidates": 100},
    }  # fmt: skip
    for name, tree in (("clicks", clicks), ("graph", graph)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    return folder


def rows_of(path):
    """Values and state of every table by name: a graph's rows in the order of its nodes, a click log's by key."""
    folder = RunFolder.open(path)
    whole = folder.checkpoint()
    found, arrays = {}, whole.arrays()
    for table in whole.tables():
        rows = np.concatenate([np.asarray(whole.array(table, part)[:]) for part in ("values", "state")], axis=1)
        if folder.config.task == "ctr":
            names = [arrays[f"{table}.index.{part}"] for part in ("keys", "vocabularies")]
            found[f"{table} keys"] = np.stack([name[np.lexsort(names)].astype(np.int64) for name in names])
            rows = rows[np.lexsort(names)]
        found[table] = rows
    return found | {name: tensor.numpy() for name, tensor in whole.dense().items()}


def furthest(first, second):
    one, other = rows_of(first), rows_of(second)
    assert one.keys() == other.keys()
    return max(np.abs(one[name].astype(np.float64) - other[name]).max() for name in one if one[name].size)


@pytest.fixture(scope="module")
def trained(configs, tmp_path_factory):
    """Trains a task on so many nodes, 0: on the single box, for so many epochs, once; gives the folder."""
    folder, there = tmp_path_factory.mktemp("trained"), set()

    def path_of(task, count, epochs=1):
        path, length = folder / f"{task}-{count}-{epochs}", ["--set", f"training.epochs={epochs}"]
        if path not in there:
            command = ["train", configs / f"{task}.yaml", "--set", SMOOTH, *length, "--out", path]
            if count:
                run(*command, "--local-nodes", count)
            else:
                assert cli.main([str(word) for word in command]) == 0
            there.add(path)
        return path

    return path_of


def digests(path):
    return {name: value for name, value in RunFolder.open(path).summary().items() if name.endswith("sha256")}


@pytest.mark.parametrize("count, epochs", [(2, 1), slow(1, 1), slow(2, 3), slow(4, 3)])
@pytest.mark.parametrize("task", ["graph", "clicks"])
def test_nodes_train_as_one_box(trained, task, count, epochs):
    """One node has the bits of the single box, several come within 1e-5, also after more than 200 batches."""
    apart = furthest(trained(task, 0, epochs), trained(task, count, epochs))
    assert apart == 0 if count == 1 else 0 < apart <= 1e-5
    batches = RunFolder.open(trained(task, count, epochs)).summary()["training.batches"]
    assert batches >= epochs * BATCHES and (epochs == 1 or batches > 200)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["clicks", "graph"])
def test_pulling_ahead_has_the_bits_of_one_batch_at_a_time(configs, tmp_path, trained, task):
    run(
        "train", configs / f"{task}.yaml", "--local-nodes", 2, "--set", SMOOTH, "--set", "pipeline.mode=sync",
        "--out", tmp_path / "sync",
    )  # fmt: skip
    ahead = trained(task, 2)
    assert digests(tmp_path / "sync") == digests(ahead)
    assert RunFolder.open(ahead).summary()["training.replaced_rows"] > 0


@pytest.mark.slow
def test_freely_nodes_end_elsewhere(configs, tmp_path, trained):
    common = ["train", configs / "clicks.yaml", "--local-nodes", 2, "--set", SMOOTH, "--out"]
    free = ["--set", "pipeline.mode=async"]
    assert "lockstep" in run(*common, tmp_path / "async", *free, code=2)  # as gradients of a batch can't be summed
    run(*common, tmp_path / "async", *free, "--set", "nodes.dense.kind=easgd")
    summary = RunFolder.open(tmp_path / "async").summary()
    assert summary["dense.syncs"] > 0
    assert digests(tmp_path / "async") != digests(trained("clicks", 2))


@pytest.mark.slow
@pytest.mark.parametrize("dense", ["kstep", "bmuf"])
def test_replicas_of_the_network_go_on_as_they_were(configs, tmp_path, dense):
    """A run that is resumed between two merges has the bits of one that was not interrupted."""
    how = {
        "kstep": "{kind: kstep, k: 7, warm_up: 10}",
        "bmuf": "{kind: bmuf, background: false, sync_every: 7, momentum: 0.5}",
    }
    path, often = tmp_path / "run", ["--set", "checkpoint.every_batches=30", "--set", "checkpoint.keep=9"]
    nodes = ["--local-nodes", 2]
    run("train", configs / "clicks.yaml", *nodes, *often, "--set", f"nodes.dense={how[dense]}", "--out", path)
    whole = rows_of(path)
    run("resume", path, *nodes, "--checkpoint", "0000000030")
    again = rows_of(path)
    assert all(np.array_equal(whole[name], again[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("task, counts", [("clicks", (2, 3)), ("graph", (2, 3)), ("clicks", (4, 5, 3))])
def test_other_nodes_go_on_with_the_same_tables(tmp_path, trained, task, counts):
    first, path = trained(task, counts[0]), tmp_path / "run"
    shutil.copytree(first, path)
    for count in counts[1:]:
        run("resume", path, "--local-nodes", count)
        assert digests(path) == digests(first)


@pytest.mark.slow
def test_the_best_checkpoint_of_rows_on_disk_is_gone_back_to(configs, tmp_path):
    """Pages that are in memory must not stand for those of the checkpoint."""
    common = ["train", configs / "clicks.yaml", "--local-nodes", 1, "--out"]
    stops = ["--set", "training.epochs=3", "--set", "training.early_stopping={patience: 1, min_delta: 1.0}"]
    run(*common, tmp_path / "best", *stops, "--set", "storage.memory=16MiB")
    run(*common, tmp_path / "one")
    summary = RunFolder.open(tmp_path / "best").summary()
    assert summary["training.epochs"] == 2 and summary["disk.bytes_written"] > 0
    assert digests(tmp_path / "best") == digests(tmp_path / "one")


@pytest.mark.slow
def test_a_run_over_nodes_is_evaluated_exported_and_compared(command, tmp_path, trained):
    box, one, two = (trained("graph", count) for count in (0, 1, 2))
    code, out, _ = command("compare", box, one)
    assert code == 0 and "the same bits" in "\n".join(out)
    assert command("compare", box, two)[0] == 1
    assert command("export", two, "--format", "npy", "--out", tmp_path / "exported")[0] == 0
    assert np.array_equal(np.load(tmp_path / "exported" / "entities.npy"), rows_of(two)["entities"][:, :16])
    code, out, _ = command("eval", two, "--split", "test")
    assert code == 0 and "filtered.mrr" in "\n".join(out)


def test_all_parts_of_a_run_over_nodes_are_verified(command, tmp_path, trained):
    run = tmp_path / "run"
    shutil.copytree(trained("clicks", 2), run)
    code, out, _ = command("verify", run)
    assert code == 0 and len(out) == 1, out
    each = {path.name: path for path in sorted(run.rglob("*")) if path.is_file()}  # the last one of every kind
    for path in (path for name, path in each.items() if name not in (".lock", "config.yaml")):
        flip_a_byte(path)
        found = verify(run).damaged
        assert any(line.startswith(f"{path}: ") for line in found), (path, found)
        flip_a_byte(path)
    parts = sorted(run.glob("nodes/*/*"))
    victims = [parts[0] / "saved.json", parts[1] / "run.json"]
    victims += [next(part.glob("checkpoints/*/*.values.npy")) for part in parts]
    for path in victims:
        flip_a_byte(path)
    code, out, _ = command("verify", run)
    assert code == 2 and len(out) == 5
    for path in victims:
        assert any(line.startswith(f"  damaged: {path}: ") for line in out), (path, out)
    shutil.rmtree(parts[1])
    for path in (victims[0], victims[2]):
        flip_a_byte(path)
    code, out, _ = command("verify", run)
    assert code == 0 and out[1:] == [f"  not checked: {parts[0].parent}: the parts of 1 nodes lie elsewhere"]


def wait_for_batches(path, process, count):
    """Returns when the run has said that it has computed so many batches."""
    metrics = path / "metrics.jsonl"
    while process.poll() is None:
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        if any(json.loads(line).get("batch", -1) + 1 >= count for line in lines):
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate()[0])


OFTEN = ["--set", "metrics.every_batches=4", "--set", "checkpoint.every_batches=16"]
LONG = [*OFTEN, "--set", "training.epochs=2"]


def kill(process, path, after, victim):
    """Kills one of two nodes that train; returns what the command said."""
    wait_for_batches(path, process, after)
    workers = [each for each in psutil.Process(process.pid).children(recursive=True) if "RANK" in each.environ()]
    chosen = sorted(workers, key=lambda each: int(each.environ()["RANK"]))[victim]
    with suppress(psutil.NoSuchProcess):
        chosen.kill()
    text, _ = process.communicate(timeout=120)
    assert process.returncode != 0 and "Traceback" not in text, text
    assert not [each for each in workers if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    return text


def interrupt(process, path, after):
    """Stops a run by Ctrl-C; returns what the command said."""
    wait_for_batches(path, process, after)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 130, text
    return text


@pytest.mark.slow
def test_after_ctrl_c_and_a_kill_a_run_goes_on_to_the_same_tables(configs, tmp_path, trained):
    """Ctrl-C stops all nodes at one batch; the loss of one ends all."""
    path, nodes = tmp_path / "run", ["--local-nodes", 2]
    process = start("train", configs / "clicks.yaml", *nodes, "--out", path, "--set", SMOOTH, *OFTEN)
    text = interrupt(process, path, 20)
    assert f"go on with: marius-oac resume {path} --local-nodes 2\n" in text, text
    last = {part.parent.name: max(each.name for each in part.iterdir()) for part in path.glob("nodes/*/*/checkpoints")}
    assert len(last) == 2 and len(set(last.values())) == 1
    stopped = int(last["node0"])
    assert "node" in kill(start("resume", path, *nodes), path, stopped + 8, 1)
    run("resume", path, *nodes)
    assert digests(path) == digests(trained("clicks", 2))


@pytest.fixture(scope="module")
def uninterrupted(configs, tmp_path_factory):
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    run("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", path, *LONG)
    return digests(path)


def kill_one(configs, path, after, victim):
    return kill(start("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", path, *LONG), path, after, victim)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_is_killed_ends_the_run_which_goes_on_to_the_same_tables(configs, tmp_path, uninterrupted, victim):
    path = tmp_path / "run"
    assert "node" in kill_one(configs, path, 40, victim)
    run("resume", path, "--local-nodes", 2)
    assert digests(path) == uninterrupted


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_kill_at_random_moments(configs, tmp_path, uninterrupted, number):
    chance = random.Random(number)
    path = tmp_path / "run"
    kill_one(configs, path, chance.randrange(4, 150), chance.randrange(2))
    run("resume", path, "--local-nodes", 2)
    assert digests(path) == uninterrupted


@pytest.mark.slow
def test_parts_that_are_not_at_hand_are_asked_for(command, tmp_path, trained):
    path = tmp_path / "run"
    shutil.copytree(trained("clicks", 2), path)
    (layout,) = (path / "nodes").iterdir()
    (layout / "node1").rename(tmp_path / "elsewhere")
    text = run("resume", path, "--local-nodes", 1, code=2)
    assert "copy" in text and "Traceback" not in text
    code, _, err = command("eval", path, "--split", "valid")
    assert code == 2 and says(err, "must lie here")


@pytest.mark.slow
def test_nodes_that_are_started_again_go_on_to_the_same_tables(configs, tmp_path, uninterrupted):
    """With `restarts` torchrun starts the nodes again after a loss, and they go on from the last checkpoint."""
    nodes, path = tmp_path / "nodes.yaml", tmp_path / "run"
    entries = [{"name": name, "address": "127.0.0.1", "cores": 1} for name in "ab"]
    nodes.write_text(yaml.safe_dump({"restarts": 2, "timeout": 30, "nodes": entries}))
    common = ("train", configs / "clicks.yaml", "--nodes", nodes, "--out", path, *LONG)
    both = [start(*common, "--node", name, MARIUS_OAC_SECRET="0" * 64) for name in "ab"]
    wait_for_batches(path, both[0], 40)
    children = psutil.Process(both[1].pid).children(recursive=True)
    (trainer,) = (each for each in children if each.environ().get("RANK"))
    trainer.kill()
    texts = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    assert any("started again" in text for text in texts)
    assert digests(path) == uninterrupted


@pytest.mark.slow
def test_a_node_without_its_checkpoints_is_named_and_the_others_keep_theirs(configs, tmp_path):
    path, nodes = tmp_path / "run", ["--local-nodes", 2]
    run("train", configs / "clicks.yaml", *nodes, "--out", path, "--set", "checkpoint.every_batches=16")
    first = digests(path)
    (layout,) = (path / "nodes").iterdir()
    checkpoints = layout / "node1" / "checkpoints"
    more = ["--set", "training.epochs=2"]
    shutil.copytree(checkpoints, tmp_path / "kept")
    newest = max(each.name for each in checkpoints.iterdir() if each.is_dir())
    for lost in ("all of them", "the newest"):
        shutil.rmtree(checkpoints if lost == "all of them" else checkpoints / newest)
        before = contents(path)
        text = run("resume", path, *nodes, *more, code=2)
        assert "node node1: lacks checkpoint " + newest in text and "Traceback" not in text
        assert contents(path) == before
        shutil.rmtree(checkpoints, ignore_errors=True)
        shutil.copytree(tmp_path / "kept", checkpoints)
    run("resume", path, *nodes, *more)
    second = digests(path)
    shutil.rmtree(checkpoints)
    run("resume", path, *nodes, "--set", "training.epochs=1", "--checkpoint", "start")
    assert digests(path) == first != second
