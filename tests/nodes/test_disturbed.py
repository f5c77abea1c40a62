"""Training over nodes, for real, where something is late, missing or wrong: processes on this machine, disturbed."""

import itertools
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from benchmarks.generate.log import LogSpec, write_day
from marius_oac.runs.checkpoints.retention import read_saved
from marius_oac.runs.folder.folder import RunFolder
from tests.graphs import tiny_config, workers
from tests.run_folders import write_config

pytestmark = pytest.mark.usefixtures("forked_programs")
ROOT = Path(__file__).parents[2]
AHEAD = ["pipeline.in_flight=8", *workers(3)]
BATCHES = 75


def start(how, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "MARIUS_OAC_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.nodes.disturbed", *map(str, arguments)], text=True, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment | {"DISTURB": json.dumps(how), "MARIUS_OAC_SECRET": "0" * 64},
    )  # fmt: skip


def said(process, code=0):
    text, _ = process.communicate(timeout=240)
    assert process.returncode == code and "Traceback" not in text, text
    return text


@pytest.fixture(scope="module")
def configs(graph, tmp_path_factory):
    """A graph and a click log of 75 batches each, most of whose rows are in the next batch, too."""
    folder = tmp_path_factory.mktemp("configs")
    spec = LogSpec(categorical=3, numeric=2, keys=300, skew=1.05)
    write_day(folder / "day.parquet", 0, 64 * BATCHES, spec)
    write_day(folder / "next.parquet", 1, 500, spec)
    clicks = {
        "task": "ctr", "threads": 1,
        "data": {"train": str(folder / "day.parquet"), "valid": str(folder / "next.parquet"), **spec.schema()},
        "model": {"network": "deepfm", "dimension": 4, "hidden": [16]},
        "training": {"batch_size": 64, "epochs": 1},
    }  # fmt: skip
    (folder / "clicks.yaml").write_text(yaml.safe_dump(clicks))
    write_config(folder / "graph.yaml", tiny_config(graph, "training.epochs=3", "evaluation.every=0"))
    return folder


@pytest.fixture(scope="module")
def trained(configs, tmp_path_factory):
    """`trained(task, count, mode, how)`: the summary of a run, trained once."""
    folder, summaries = tmp_path_factory.mktemp("trained"), {}

    def summary_of(task, count, mode, **how):
        key = f"{task}-{count}-{mode}-{how}"
        if key not in summaries:
            sets = [word for each in (f"pipeline.mode={mode}", *AHEAD) for word in ("--set", each)]
            path = folder / str(len(summaries))
            said(start(how, "train", configs / f"{task}.yaml", "--local-nodes", count, *sets, "--out", path))
            summaries[key] = RunFolder.open(path).summary()
        return summaries[key]

    return summary_of


def bits(summary):
    """Tables with the optimizer's state, dense parameters with theirs."""
    found = {name: value for name, value in summary.items() if name.endswith("sha256")}
    assert len(found) >= 2 and summary["training.batches"] == BATCHES
    return found


CASES = [("graph", 2, 1), ("clicks", 3, 1), *itertools.product(("clicks", "graph"), (2, 3), (2,))]


@pytest.mark.slow
@pytest.mark.parametrize("task, count, seed", CASES)
def test_whatever_is_late_the_bits_are_those_of_one_batch_at_a_time(trained, task, count, seed):
    delayed = trained(task, count, "oac", seed=seed)
    assert delayed["training.replaced_rows"] > 1000  # what was pulled was old, and was sent again
    assert bits(delayed) == bits(trained(task, count, "sync"))


@pytest.mark.slow
@pytest.mark.parametrize("task, count, seed", CASES[:2])
def test_without_patches_what_is_late_changes_the_bits(trained, task, count, seed):
    """So the test above would find rows that were not validated."""
    forgetful = trained(task, count, "oac", seed=seed, forget=True)
    assert forgetful["training.replaced_rows"] == 0
    assert bits(forgetful) != bits(trained(task, count, "sync"))


@pytest.mark.slow
def test_a_trainer_that_says_what_none_says_ends_the_run_in_a_line(configs, tmp_path):
    how = {"again": [1, 20]}
    text = said(
        start(how, "train", configs / "clicks.yaml", "--local-nodes", 2, "--out", tmp_path / "run"),
        code=1,
    )
    why = "node node1: it sent an invalid message: batch 20 is pulled again"
    assert [line for line in text.splitlines() if line.startswith("marius-oac: ") and why in line], text


@pytest.fixture
def two_nodes(configs, tmp_path):
    """`two_nodes(how, stack)` -> the processes of both."""
    nodes = tmp_path / "nodes.yaml"
    entries = [{"name": name, "address": "127.0.0.1", "cores": 1} for name in "ab"]
    nodes.write_text(yaml.safe_dump({"timeout": 15, "nodes": entries}))
    common = ("train", configs / "clicks.yaml", "--nodes", nodes, "--out", tmp_path / "run")
    return lambda how, stack: [stack.enter_context(start(how, *common, "--node", name)) for name in "ab"]


@pytest.mark.slow
def test_the_others_wait_for_an_evaluation_as_long_as_it_takes(two_nodes):
    with ExitStack() as stack:
        for process in two_nodes({"evaluation": 25}, stack):
            said(process)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["a", "ab"])
def test_an_evaluation_is_stopped_at_once_and_the_others_are_told(two_nodes, tmp_path, stopped):
    with ExitStack() as stack:
        both = two_nodes({"evaluation": 1000}, stack)
        for process in both:
            while process.stdout.readline() != "evaluating\n":
                assert process.poll() is None
        for process in both[: len(stopped)]:
            process.terminate()
        for process in both:
            assert "Traceback" not in process.communicate(timeout=60)[0]
            assert process.returncode == 143
    assert read_saved(tmp_path / "run") == f"{BATCHES:010}"
