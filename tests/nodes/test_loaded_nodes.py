"""Emulated slow nodes, for real: they change nothing but the time, and mode auto rides them out."""

import json

import pytest

from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.runs.folder.folder import RunFolder
from tests.nodes import test_node_training as over_nodes
from tests.nodes.test_node_training import SMOOTH, digests, run

pytestmark = pytest.mark.usefixtures("forked_programs")
configs = over_nodes.configs
SECONDS = 0.1  # of a batch at full speed: far more than it takes here
BEGIN, END = 8.0, 20.0
MARGIN = 0.3  # processes that wait for a core make sync slower; twice as fast, as under load, it never gets by that

FEW = ["--set", "training.batch_size=256"]


def loaded(*entries):
    return ["--set", f"nodes.load={json.dumps(entries)}"]


def test_who_can_not_go_on_waits_for_no_emulated_batch():
    aborted = []
    for end in (lambda source: source.fail(OSError()), lambda source: source.abort()):
        source = RemoteSource([], [ValueFormat(4)], True, 4, lambda *_: None, lambda: aborted.append(True))
        assert not source.stopped.is_set()
        end(source)
        assert source.stopped.is_set()
    assert aborted == [True]


@pytest.mark.slow
def test_a_load_changes_no_bits_in_lockstep(configs, tmp_path):
    common = ("train", configs / "clicks.yaml", "--local-nodes", 2, "--set", SMOOTH, *FEW, "--out")
    run(*common, tmp_path / "plain")
    said = run(*common, tmp_path / "slow", *loaded({"trainers": [1], "factor": 3, "seconds": 0.02}))
    assert "note: emulated load: trainer 1 takes 3 times as long" in said
    assert digests(tmp_path / "slow") == digests(tmp_path / "plain")
    plain, slow = (RunFolder.open(tmp_path / name).summary() for name in ("plain", "slow"))
    assert "load.emulated_batches" not in plain
    assert slow["load.emulated_batches"] == slow["training.batches"]
    assert slow["training.seconds"] >= slow["load.emulated_seconds"] >= 0.05 * slow["training.batches"]
    text = run("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", tmp_path / "none",
               *loaded({"trainers": [2], "factor": 3}), code=2)  # fmt: skip
    assert "there is no trainer 2: there are 2, from 0" in text and not (tmp_path / "none").exists()


@pytest.mark.slow
def test_auto_goes_to_gba_while_a_trainer_is_slow_and_back(configs, tmp_path):
    """One of two trainers is 4 x slower for some seconds: the run switches to gba meanwhile, and says why."""
    path = tmp_path / "run"
    load = loaded({"trainers": [0, 1], "seconds": SECONDS}, {"trainers": [1], "factor": 4, "begin": BEGIN, "end": END})
    auto = ["--set", "nodes.mode=auto", "--set", f"nodes.auto={{every: 6, margin: {MARGIN}}}"]
    said = run("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", path, *auto, *load,
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
    assert summary["load.emulated_seconds"] > 0 and summary["dealt.tokens"] > 0
