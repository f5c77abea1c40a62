"""Runs whose initial values a function of the user's gives: the same rows wherever they lie."""

import subprocess
import sys

import numpy as np
import pytest

from marius_oac.data.graphs.graph import Graph
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.session import Session
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.tasks.node_classification.task import NodeClassificationTask
from marius_oac.training.local import resume, train
from tests.graphs import jitter, run_batches, tiny_config, workers
from tests.models import own_parts
from tests.run_folders import says, write_config
from tests.tasks.test_node_classification import configure, labelled
from tests.tasks.test_own_parts import digests

__all__ = ["labelled"]

OWN = own_parts.__file__
VECTORS = f"model.init={OWN}:vectors"
PLACES = {
    "memory": [],
    "disk": ["storage.memory=1MiB", "storage.page=4KiB"],
    "mmap": ["storage.io=mmap"],
    "bfloat16": ["storage.dtype=bfloat16"],
}


def rows_at_the_start(config, graph):
    with Session(GraphTask(config, graph)) as session:
        (store,) = session.stores
        return next(store.blocks()).rows.copy()


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("place", ["memory", "disk", "mmap"])
def test_rows_start_with_the_values_of_the_function(graph, place):
    found = rows_at_the_start(tiny_config(graph, VECTORS, *PLACES[place]), graph)
    np.testing.assert_array_equal(found[:, :8], own_parts.VECTORS[: graph.num_nodes])
    assert (found[:, 8:] == 0).all()


@pytest.mark.usefixtures("all_code_is_known")
def test_nodes_to_classify_start_with_the_values_of_the_function(labelled, tmp_path):
    """Their rows' width is the encoder's, not the model's."""
    (tmp_path / "mine.py").write_text("def f(ids, numbers):\n    numbers[:] = ids[:, None] / 4\n    return numbers\n")
    config = configure(labelled, f"model.init={tmp_path / 'mine.py'}:f", "encoder.embeddings=5")
    with Session(NodeClassificationTask(config, Graph.open(labelled / "graph"))) as session:
        rows = next(session.stores[0].blocks()).rows
    np.testing.assert_array_equal(rows[:, :5], np.repeat(np.arange(len(rows))[:, None] / 4, 5, 1))


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("own", [False, True])
def test_a_checkpoint_needs_no_function_to_be_read(graph, own):
    config = tiny_config(graph, *[VECTORS] * own, *PLACES["disk"])
    with Session(GraphTask(config, graph)) as session:
        snapshot = session.stores[0].snapshot()
        written = next(snapshot.blocks)["slots"] >= 0
    assert written.size > 3 and (written.all() if own else not written.any())
    assert snapshot.about["rows"]["first_rows"] == (0 if own else graph.num_nodes)


@pytest.mark.usefixtures("all_code_is_known")
def test_random_numbers_are_those_of_the_packages_uniform_values(graph, tmp_path):
    (tmp_path / "mine.py").write_text("def half(ids, numbers):\n    return numbers / 2\n")
    own = rows_at_the_start(tiny_config(graph, f"model.init={tmp_path / 'mine.py'}:half"), graph)
    uniform = rows_at_the_start(tiny_config(graph, "model.init=uniform", "model.init_scale=0.5"), graph)
    np.testing.assert_array_equal(own, uniform)


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("place", PLACES)
def test_oac_has_the_bits_of_sync(graph, place):
    config = tiny_config(graph, f"model.init={OWN}:mixed", *PLACES[place])
    expected = run_batches(config.replace("pipeline.mode=sync"), graph, 20)
    found = run_batches(config.replace("pipeline.in_flight=8", *workers(2)), graph, 20, jitter(8))
    assert found.bits == expected.bits and found.replaced > 0
    if place in ("disk", "mmap"):
        memory = tiny_config(graph, f"model.init={OWN}:mixed", "pipeline.mode=sync")
        assert expected.bits == run_batches(memory, graph, 20).bits


def test_a_run_on_disk_is_resumed_and_evaluated(graph, tmp_path, command, monkeypatch):
    """Also after the function has changed: rows that no batch has had are the run's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "mine.py").write_text(f"from {own_parts.__name__} import vectors as f\n")
    init = f"model.init={tmp_path / 'mine.py'}:f"
    short = ["training.negatives.count=1", "training.batch_size=8"]
    whole = train(tiny_config(graph, init, *short), tmp_path / "whole")
    config = tiny_config(graph, init, *short, *PLACES["disk"])
    train(config.replace("training.epochs=1"), tmp_path / "run")
    assert "own_parts" in (tmp_path / "run" / "mine.py").read_text()
    (tmp_path / "mine.py").write_text("def f(ids, numbers):\n    return numbers\n")
    resume(tmp_path / "run", ["training.epochs=2"], trust=True)
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    (tmp_path / "mine.py").unlink()
    code, lines, _ = command("eval", tmp_path / "run", "--trust")
    assert code == 0 and lines[1].split() == ["filtered.mrr", f"{whole.summary['test.filtered.mrr']:.4f}"]
    assert command("compare", tmp_path / "run", tmp_path / "whole")[0] == 0
    assert command("verify", tmp_path / "run")[0] == 0


def test_a_mistake_ends_a_run_with_one_line(graph, tmp_path, command):
    (tmp_path / "mine.py").write_text("def f(ids, numbers):\n    return numbers - numbers.mean(0)\n")
    config = write_config(tmp_path / "c.yaml", tiny_config(graph, f"model.init={tmp_path / 'mine.py'}:f"))
    code, _, err = command("train", config, "--out", tmp_path / "run")
    assert code == 2 and says(err, "model.init: ", "mine.py:f: a row has other values where other rows stand beside it")


@pytest.mark.slow
@pytest.mark.parametrize("init", ["normal", f"{OWN}:vectors"])
def test_two_nodes_have_the_same_rows_in_memory_and_on_disk(graph, tmp_path, init):
    ends = []
    for name, mode in (("memory", "sync"), ("disk", "oac")):
        config = tiny_config(graph, f"model.init={init}", f"pipeline.mode={mode}", *PLACES[name])
        words = ["train", write_config(tmp_path / f"{name}.yaml", config), "--local-nodes", 2, "--out", tmp_path / name]
        subprocess.run([sys.executable, "-m", "marius_oac", *map(str, words)], check=True, timeout=200)
        ends.append((digests(tmp_path / name), RunFolder.open(tmp_path / name).summary()["test.filtered.mrr"]))
    assert ends[0] == ends[1]
