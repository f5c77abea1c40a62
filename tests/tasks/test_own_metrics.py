"""Runs with metrics of a user's own, and evaluations of runs that were trained without."""

import json

import numpy as np
import pytest

from marius_oac.data.graphs.graph import Graph
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.tasks.link_prediction.trained import TrainedModel
from marius_oac.tasks.node_classification.task import NodeClassificationTask
from marius_oac.training.local import resume, train
from marius_oac.training.trained import evaluate_run
from tests.graphs import tiny_config
from tests.models import own_parts
from tests.run_folders import says, write_config
from tests.tasks.test_node_classification import configure, labelled

__all__ = ["labelled"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's file, who has trained with nothing yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(f"from {own_parts.__name__} import hit_rate, reciprocal, worst\n")
    return tmp_path / "mine.py"


def test_a_metric_stands_beside_its_siblings(graph, mine, tmp_path, command, monkeypatch):
    run, metrics = tmp_path / "run", f"evaluation.metrics=[{mine}:reciprocal, {mine}:worst]"
    train(tiny_config(graph, metrics, "training.epochs=1"), run)
    (tmp_path / "mine.py").unlink()
    summary, found = RunFolder.open(run).summary(), evaluate_run(run).values
    for prefix in ("filtered.", "filtered.heads.", "filtered.tails.", "unfiltered.", "unfiltered.heads."):
        assert summary[f"test.{prefix}reciprocal"] == summary[f"test.{prefix}mrr"] == found[f"{prefix}reciprocal"]
    worst = [found[f"filtered.{part}worst"] for part in ("heads.", "tails.", "")]
    assert max(worst[:2]) == worst[2] > 10 and found["unfiltered.worst"] >= worst[2]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (line,) = [each for each in lines if each["kind"] == "evaluation"]
    assert line["filtered.reciprocal"] == line["filtered.mrr"]
    code, out, _ = command("eval", run)
    assert code == 0 and ["filtered.worst", f"{worst[2]:,.4f}"] in [each.split() for each in out]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    code, _, err = command("eval", run)
    assert code == 2 and says(err, "mine.py: is code that you have not trained with here")


def test_a_run_is_evaluated_with_a_metric_that_it_was_not_trained_with(graph, mine, tmp_path, command):
    train(tiny_config(graph, "training.epochs=1"), tmp_path / "run")
    code, out, _ = command("eval", tmp_path / "run", "--set", f"evaluation.metrics={mine}:worst")
    assert code == 0 and "filtered.worst" in {line.split()[0] for line in out}
    code, _, err = command("eval", tmp_path / "run", "--set", f"evaluation.metrics={mine}:absent")
    assert code == 2 and says(err, "evaluation.metrics: ", "mine.py has no function 'absent'")
    resume(tmp_path / "run", ["training.epochs=2", f"evaluation.metrics={mine}:worst"], trust=True)
    assert "test.filtered.worst" in RunFolder.open(tmp_path / "run").summary()
    assert (tmp_path / "run" / "mine.py").exists()


def test_a_kept_metric_is_not_read_again(graph, mine, tmp_path):
    """The text that was checked is executed, whatever the run's folder holds since."""
    train(tiny_config(graph, f"evaluation.metrics={mine}:worst", "training.epochs=1"), tmp_path / "run")
    with TrainedModel.open(tmp_path / "run") as model:
        expected = model.evaluate().values["filtered.worst"]
        (tmp_path / "run" / "mine.py").write_text("def worst(ranks):\n    return -1.0\n")
        found = model.evaluate("test", ["threads=2"]).values["filtered.worst"]
    assert found == expected > 0


@pytest.mark.parametrize("task", ["links", "classes"])
def test_a_mistake_ends_a_run_before_it_is_made(graph, labelled, tmp_path, command, task):
    (tmp_path / "mine.py").write_text("def f(*arrays):\n    return arrays[0].missing\n")
    metrics = f"evaluation.metrics={tmp_path / 'mine.py'}:f"
    config = tiny_config(graph, metrics) if task == "links" else configure(labelled, metrics)
    code, _, err = command("train", write_config(tmp_path / "c.yaml", config), "--out", tmp_path / "run")
    assert code == 2 and says(err, "evaluation.metrics: ", "mine.py:2: AttributeError")
    assert not (tmp_path / "run").exists()


def test_a_metric_that_does_not_exist_is_null(graph, mine, tmp_path):
    (tmp_path / "mine.py").write_text("def f(ranks):\n    return float('nan')\n")
    train(tiny_config(graph, f"evaluation.metrics={mine}:f", "training.epochs=1"), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").summary()["test.filtered.f"] is None


def test_nodes_classes_have_metrics(labelled, mine, tmp_path, command):
    config = configure(labelled, f"evaluation.metrics={mine}:hit_rate", "training.epochs=2")
    summary = train(config, tmp_path / "run").summary
    assert summary["test.hit_rate"] == summary["test.accuracy"] > 0
    found = evaluate_run(tmp_path / "run").values
    assert found["hit_rate"] == found["accuracy"] == summary["test.accuracy"]
    (tmp_path / "more.py").write_text("def first(classes, scores):\n    return scores[:, 0].mean() + 0 * classes[0]\n")
    code, out, _ = command("eval", tmp_path / "run", "--set", f"evaluation.metrics={tmp_path / 'more.py'}:first")
    assert code == 0 and "first" in {line.split()[0] for line in out}


@pytest.mark.usefixtures("all_code_is_known")
def test_a_metric_of_classes_is_tried_with_as_many_as_there_are(labelled, tmp_path):
    source = "def f(classes, scores):\n    assert scores.shape[1] == 1 + classes.max()\n    return scores.shape[1]\n"
    (tmp_path / "mine.py").write_text(source)
    config = configure(labelled, f"evaluation.metrics={tmp_path / 'mine.py'}:f")
    task = NodeClassificationTask(config, Graph.open(labelled / "graph"))
    task.check()
    count = len(task.labels.names)
    assert task.metrics["f"](np.arange(count), np.zeros((count, count), np.float32)) == count
