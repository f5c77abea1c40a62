"""A search of real runs, as a user types it."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from marius_oac.cli.commands import main
from marius_oac.config.space import SpaceConfig
from marius_oac.insight.tune.study import STUDY, Trials
from marius_oac.training.local import open_run
from tests.forked import anew

pytestmark = pytest.mark.slow

SPACE = """
startup: 2
space:
  training.optimizer.learning_rate: {low: 0.01, high: 1.0, log: true}
  training.batch_size: [500, 1000]
"""
SETTINGS = {"training.epochs": 2, "evaluation.every": 1, "model.dimension": 16, "training.negatives.count": 50}


@pytest.fixture
def words(tmp_path):
    base = Path(__file__).parents[3] / "examples" / "codex-s.yaml"
    (tmp_path / "space.yaml").write_text(SPACE)
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    return ["tune", str(base), "--space", str(tmp_path / "space.yaml"), "--trials", "3", *settings, "--out"]


def start(words, out):
    with anew():
        return subprocess.Popen([sys.executable, "-m", "marius_oac", *words, str(out)], stderr=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip


def wait_for(path, process):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


def table(out):
    """Of all trials, without times."""
    trials = Trials(out / STUDY, SpaceConfig.model_validate(yaml.safe_load(SPACE))).all()
    return [(each.state.name, each.value, each.params, each.intermediate_values) for each in trials]


def test_killed_and_stopped_it_has_the_outcome_of_one_that_was_not(words, tmp_path, capfd):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main([*words, str(whole)]) == 0
    told = capfd.readouterr().out
    assert "the best on test, by which nothing was chosen: filtered.mrr" in told
    for number, sent, code in ((0, signal.SIGKILL, -9), (1, signal.SIGINT, 130)):
        process = start(words, killed)
        wait_for(killed / "runs" / f"{number:04d}" / "metrics.jsonl", process)
        process.send_signal(sent)
        process.communicate(timeout=60)
        assert process.returncode == code
    assert [row[0] for row in table(killed)] == ["COMPLETE", "RUNNING"]
    assert main([*words, str(killed)]) == 0
    assert table(killed) == table(whole)
    assert (killed / "best.yaml").read_text() == (whole / "best.yaml").read_text()
    best = re.search(r"runs/\d{4}", told)[0]
    assert (
        open_run(killed / best).summary["tables.entities.sha256"]
        == (open_run(whole / best).summary["tables.entities.sha256"])
    )
    assert main(["train", str(whole / "best.yaml"), "--out", str(tmp_path / "again")]) == 0
    assert (
        open_run(tmp_path / "again").summary["tables.entities.sha256"]
        == (open_run(whole / best).summary["tables.entities.sha256"])
    )


def test_two_processes_share_a_search(words, tmp_path):
    out = tmp_path / "two"
    first = start([*words[:-1], "--keep", "--out"], out)
    wait_for(out / "runs" / "0000", first)
    assert main([*words[:-1], "--keep", "--out", str(out)]) == 0
    first.communicate(timeout=120)
    assert first.returncode == 0
    assert sorted(path.name for path in (out / "runs").iterdir()) == ["0000", "0001", "0002"]
    assert [row[0] for row in table(out)] == ["COMPLETE"] * 3


def test_a_trial_whose_learning_diverges_is_told(words, tmp_path, capfd):
    (tmp_path / "space.yaml").write_text("space: {training.optimizer.learning_rate: [1.0e+30]}\n")
    assert main([*words, str(tmp_path / "out")]) == 2
    assert "all of the first 3 trials failed; the last: diverged" in capfd.readouterr().err
