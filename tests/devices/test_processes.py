"""Processes on a GPU's path, with CPU tensors: nodes have the bits of `sync`, a killed run those of a whole one."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from marius_oac.runs.folder.folder import RunFolder
from tests.click_logs import generated_days
from tests.copying import PROGRAM
from tests.nodes.test_node_training import digests, furthest

pytestmark = pytest.mark.usefixtures("forked_programs")
EXAMPLES, SIZE = 6400, 64
GRAPH = {
    "data": {"path": "codex-s"}, "device": "cpu", "threads": 1,
    "model": {"decoder": "complex", "dimension": 16},
    "training": {"batch_size": 330, "epochs": 1, "negatives": {"count": 20},
                 "optimizer": {"initial_accumulator": 0.1}},
    "evaluation": {"candidates": 100},
}  # fmt: skip


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    training = {"batch_size": SIZE, "epochs": 1, "optimizer": {"initial_accumulator": 0.1}}
    clicks = generated_days(folder, EXAMPLES) | {"training": training}
    for name, tree in (("clicks", clicks), ("graph", GRAPH)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    return folder


def run(program, *words, codes=(0,), **environment):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, *program, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": str(root)} | environment, cwd=root, timeout=240,
    )  # fmt: skip
    assert done.returncode in codes, done.stdout
    return done.returncode


@pytest.mark.slow
@pytest.mark.parametrize("task", ["clicks", "graph"])
def test_nodes_have_the_bits_of_one_batch_at_a_time(configs, tmp_path, task):
    def train(name, *words, program=PROGRAM):
        run(program, "train", configs / f"{task}.yaml", "--out", tmp_path / name, *words)
        return tmp_path / name

    two = ["--local-nodes", 2]
    ahead = train("oac", *two, "--set", "pipeline.in_flight=8")
    assert digests(ahead) == digests(train("sync", *two, "--set", "pipeline.mode=sync"))
    assert RunFolder.open(ahead).summary()["training.replaced_rows"] > 0
    if task == "clicks":
        return
    assert furthest(ahead, train("one")) <= 1e-5
    assert 0 < furthest(ahead, train("kernels", *two, program=("-m", "marius_oac"))) <= 1e-4, "another path"


@pytest.mark.slow
@pytest.mark.parametrize("task, where", [("graph", "memory"), ("clicks", "disk"), ("clicks", "nodes")])
def test_a_killed_run_goes_on_to_the_same_bits(configs, tmp_path, task, where):
    nodes = ["--local-nodes", 2] if where == "nodes" else []
    settings = ["checkpoint.every_batches=9", "pipeline.in_flight=8"] + ["storage.memory=300KiB"] * (where == "disk")
    common = ["train", configs / f"{task}.yaml", *nodes, *itertools.chain(*(("--set", each) for each in settings))]
    run(PROGRAM, *common, "--out", tmp_path / "whole")
    path, killed = tmp_path / "run", tmp_path / "killed"
    how = {"codes": (1,) if nodes else (-signal.SIGKILL,), "MARIUS_OAC_TEST_KILL": f"40:{killed}"}
    run(PROGRAM, *common, "--out", path, **how)
    assert killed.exists() and not (path / "summary.json").exists()
    run(PROGRAM, "resume", path, *nodes)
    assert digests(path) == digests(tmp_path / "whole")
