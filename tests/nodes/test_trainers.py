"""What the benchmarks of quality stand on: trainers that are threads of one process train as launched ones do."""

import subprocess
import sys

import pytest
import yaml

from benchmarks.nodes import trainers
from benchmarks.nodes.trainers import Trained, train_together
from marius_oac.config.ctr import CtrConfig
from marius_oac.nodes.spread.keyed import KeyedRows
from marius_oac.runs.folder.folder import RunFolder
from tests.click_logs import generated_days


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    days = generated_days(tmp_path_factory.mktemp("log"), 3000)
    return days | {
        "data": days["data"] | {"shuffle": 3000},
        "pipeline": {"mode": "sync"},
        "training": {"batch_size": 64, "epochs": 2},
        "nodes": {"dense": {"kind": "kstep", "k": 7, "warm_up": 20}},
    }


@pytest.mark.slow
def test_trainers_in_threads_end_where_launched_ones_do(tmp_path, tree):
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "marius_oac", "train", config, "--out", run, "--local-nodes", "2"]
    launched = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert launched.returncode == 0, launched.stderr
    summary = RunFolder.open(run).summary()
    found = train_together(CtrConfig.build(tree), 2)
    assert {f"test.{name}": value for name, value in found.test.items()}.items() <= summary.items()
    assert found.dense["syncs"] == summary["dense.syncs"] > 0
    epochs = [line for line in RunFolder.open(run).metrics.lines() if line["kind"] == "epoch"]
    assert found.train_loss == pytest.approx(sum(line["loss"] for line in epochs) / len(epochs), rel=1e-6)


def test_the_first_error_is_raised_and_nobody_waits_for_who_had_it(tree, monkeypatch):
    routed = KeyedRows.routed

    def failing(self, plan):
        if self.part.place is None and plan.batch_index == 5:
            raise ZeroDivisionError("a defect")
        return routed(self, plan)

    monkeypatch.setattr(KeyedRows, "routed", failing)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        train_together(CtrConfig.build(tree), 2)


def test_runs_that_are_kept_are_not_run_again(tmp_path, monkeypatch):
    asked = []

    def train(config, count):
        asked.append((config, count))
        return Trained({"auc": 0.1}, 0.2, {"syncs": 3})

    monkeypatch.setattr(trainers, "train_together", train)
    for _ in range(2):
        runs = trainers.Runs(tmp_path / "runs.jsonl")
        assert runs.train("one", "its config", 2) == Trained({"auc": 0.1}, 0.2, {"syncs": 3})
        runs.train("other", "another", 4)
        runs.train("one", "its config", 2)
    assert asked == [("its config", 2), ("another", 4)]
