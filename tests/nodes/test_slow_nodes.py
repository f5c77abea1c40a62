"""Slow nodes of the benchmarks, for real: they change nothing but the time, and mode auto rides them out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from marius_oac.runs.folder.folder import RunFolder
from tests.nodes import test_node_training as over_nodes
from tests.nodes.test_node_training import SMOOTH, digests, run

pytestmark = pytest.mark.usefixtures("forked_programs")
configs = over_nodes.configs
SECONDS = 0.1  # of a batch at full speed: far more than it takes here
BEGIN, END = 8.0, 20.0
MARGIN = 0.3  # processes that wait for a core make sync slower; twice as fast, as under load, it never gets by that

FEW = ["--set", "training.batch_size=256"]


def run_slow(loads, *arguments):
    """Returns what the run says."""
    command = [sys.executable, "-m", "benchmarks.nodes.slow_trainers", json.dumps(loads), *map(str, arguments)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_load_changes_no_bits_in_lockstep(configs, tmp_path):
    common = ("train", configs / "clicks.yaml", "--local-nodes", 2, "--set", SMOOTH, *FEW, "--out")
    run(*common, tmp_path / "plain")
    run_slow([{"trainers": [1], "factor": 3, "seconds": 0.02}], *common, tmp_path / "slow")
    assert digests(tmp_path / "slow") == digests(tmp_path / "plain")
    slow = RunFolder.open(tmp_path / "slow").summary()
    assert slow["training.seconds"] >= 0.06 * slow["training.batches"]


@pytest.mark.slow
def test_auto_goes_to_gba_while_a_trainer_is_slow_and_back(configs, tmp_path):
    """One of two trainers is 4 x slower for some seconds: the run switches to gba meanwhile, and says why."""
    path = tmp_path / "run"
    loads = [{"trainers": [0, 1], "seconds": SECONDS}, {"trainers": [1], "factor": 4, "begin": BEGIN, "end": END}]
    auto = ["--set", "nodes.mode=auto", "--set", f"nodes.auto={{every: 6, margin: {MARGIN}}}"]
    said = run_slow(loads, "train", configs / "clicks.yaml", "--local-nodes", 2, "--out", path, *auto,
                    "--set", "training.epochs=3")  # fmt: skip
    lines = [line for line in RunFolder.open(path).metrics.lines() if line["kind"] == "mode"]
    assert [line["mode"] for line in lines[:3]] == ["sync", "gba", "gba"]  # the trial
    assert all(line["reason"].startswith("trial") for line in lines[:4])
    switches = [line for line in lines[4:] if line["switches"]]
    assert [line["mode"] for line in switches] == ["gba", "sync"]
    assert switches[0]["expected.gba"] > 1.5 * switches[0]["expected.sync"]
    assert f"  gba from batch {switches[0]['batch'] + 1:,} on: {switches[0]['reason']}" in said
    assert all(line["was"] == before["mode"] for before, line in zip(lines, lines[1:], strict=False))
    summary = RunFolder.open(path).summary()
    assert summary["dealt.tokens"] > 0
