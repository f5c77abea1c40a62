"""Node classification: what it learns, the bits of `sync`, stopping, going on, evaluating, asking, exporting."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.nodes import write_features, write_labels
from marius_oac import open_run, resume, train
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import CheckpointError, InputError
from marius_oac.models.heads.classes import class_metrics
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.session import Session
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.tasks.encoder.memory import encoder_bytes, num_encoded
from marius_oac.tasks.node_classification.task import NodeClassificationTask
from marius_oac.tasks.node_classification.trained import TrainedClassifier
from marius_oac.training.trained import compare_runs, evaluate_run, export_run
from tests.graphs import jitter, workers
from tests.run_folders import contents, outcome, stop_at, story

CLUSTERS, BATCHES = 5, 24


class Crash(Exception):
    pass


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A graph of 300 nodes whose edges stay in their cluster but for a tenth, its labels and three poor features."""
    folder = tmp_path_factory.mktemp("labelled")
    spec = GeneratedGraph(num_nodes=300, num_edges=2400, num_clusters=CLUSTERS, seed=2)
    write_graph(spec, folder / "edges.npy")
    source = PrepareRequest(source=str(folder / "edges.npy"), out=folder / "graph", read=ReadOptions(relations=False))
    prepare(source)
    graph = Graph.open(folder / "graph")
    write_labels(spec, graph, folder / "labels.tsv")
    write_features(spec, graph, folder / "features.parquet", 3, noise=1.0)
    return folder


def configure(folder, *overrides) -> Config:
    tree = {
        "task": "node_classification",
        "device": "cpu",
        "threads": 1,
        "data": {"path": str(folder / "graph"), "labels": str(folder / "labels.tsv")},
        "model": {"dimension": 8},
        "encoder": {"layers": [{"kind": "sage", "neighbors": 5}, {"kind": "sage", "neighbors": 5}],
                    "optimizer": {"learning_rate": 0.02}},
        "training": {"batch_size": 40, "epochs": 6},
    }  # fmt: skip
    return Config.build(tree, overrides)


def open_log(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def run_batches(config, folder, probe=None):
    """Fingerprints and losses after some batches."""
    losses = {}
    with Session(NodeClassificationTask(config, Graph.open(folder / "graph")), probe=probe) as session:
        session.report_to(lambda result: losses.update({result.batch_index: result.loss}))
        session.pipeline.run(0, BATCHES)
        return [store.fingerprint() for store in session.stores], session.dense_fingerprint(), losses


def test_communities_are_told_apart(labelled, tmp_path):
    features = f"encoder.features={labelled / 'features.parquet'}"
    found = {}
    for name, overrides in {"rows": [], "features": [features], "both": [features, "encoder.embeddings=8"]}.items():
        run = train(configure(labelled, "training.epochs=20", *overrides), tmp_path / name)
        found[name] = run.summary["test.accuracy"]
        assert ("tables.entities.sha256" in run.summary) == (name != "features")
    assert min(found.values()) > 0.8, found  # one of five by chance


@pytest.mark.parametrize("layers", ["[{kind: sage}, {kind: sage, neighbors: 3}]", "[{kind: gat, neighbors: all}]"])
def test_oac_has_the_bits_of_sync(labelled, layers):
    overrides = [f"encoder.layers={layers}", "encoder.dropout=0.2", "training.optimizer.decay=0.9"]
    expected = run_batches(configure(labelled, *overrides, "pipeline.mode=sync"), labelled)
    assert len(set(expected[2].values())) == BATCHES
    for several, count in ((16, 1), (16, 4), (4, 2)):
        config = configure(labelled, *overrides, f"pipeline.in_flight={several}", *workers(count))
        assert run_batches(config, labelled, jitter(count)) == expected


@pytest.mark.parametrize("aggregator", ["mean", "gcn"])
def test_means_formed_while_planning_have_the_bits_of_those_of_the_step(labelled, aggregator, monkeypatch):
    layers = f"encoder.layers=[{{kind: sage, neighbors: 3, aggregator: {aggregator}}}, {{kind: sage, neighbors: 3}}]"
    overrides, graph = [layers, f"encoder.features={labelled / 'features.parquet'}"], Graph.open(labelled / "graph")

    def planned(*more):
        task = NodeClassificationTask(configure(labelled, *overrides, *more), graph)
        return task.planner.plan(0).data.means is not None

    assert planned() and not planned("encoder.dropout=0.1") and not planned("encoder.embeddings=8")
    for more in ([], ["encoder.dropout=0.1"], ["encoder.layers=[{kind: sage, neighbors: 3}]"]):
        task = NodeClassificationTask(configure(labelled, *overrides, *more), graph)
        plan = task.planner.plan(0)
        assert num_encoded(plan.data) == len(plan.data.head.labels)
    formed_there = run_batches(configure(labelled, *overrides), labelled)
    property_of = GraphEncoder.neighborhoods.fget
    monkeypatch.setattr(GraphEncoder, "neighborhoods", property(lambda self: replace(property_of(self), means=None)))
    assert not planned()
    assert run_batches(configure(labelled, *overrides), labelled) == formed_there


@pytest.mark.parametrize("dimension", [64, 500])
def test_the_memory_of_planned_means_is_what_a_step_holds(labelled, dimension):
    layers = f"encoder.layers=[{{kind: sage, neighbors: 5, dimension: {dimension}}}, {{kind: sage, neighbors: 1}}]"
    config = configure(labelled, layers, f"encoder.features={labelled / 'features.parquet'}")
    task = NodeClassificationTask(config, Graph.open(labelled / "graph"))
    plan, encoder = task.planner.plan(0), task.encoder
    with Session(task) as session:
        session.step.compute([], plan.data, 0)
        held = sum(each.nbytes for each in session.step._products._scratch._buffers.values())
    # Beside the scratch of products the step holds sums and what torch makes.
    assert held < encoder_bytes(plan.data, encoder.config, encoder.inputs, encoder.widths) < 3 * held


@pytest.mark.parametrize("more", [[], ["training.early_stopping.patience=1"], ["storage.memory=64KiB"]])
def test_a_resumed_run_tells_the_story_of_one_that_never_stopped(labelled, tmp_path, more):
    config = configure(labelled, *more)
    train(config, tmp_path / "whole")
    with pytest.raises(Crash):
        train(config, tmp_path / "again", probe=stop_at("compute", 7, Crash()))
    resume(tmp_path / "again")
    assert story(tmp_path / "again") == story(tmp_path / "whole")
    assert outcome(tmp_path / "again") == outcome(tmp_path / "whole")
    assert compare_runs(tmp_path / "whole", tmp_path / "again").same
    if not more:
        assert sorted(contents(tmp_path / "again")) == sorted(contents(tmp_path / "whole"))


def test_a_trained_model_is_evaluated_asked_and_exported(labelled, tmp_path, command):
    summary = train(configure(labelled), tmp_path / "run").summary
    model = TrainedClassifier.open(tmp_path / "run")
    found = evaluate_run(tmp_path / "run").values
    assert found == {key.removeprefix("test."): value for key, value in summary.items() if key.startswith("test.")}
    (last,) = [line for line in open_log(tmp_path / "run") if line["kind"] == "evaluation" and line["epoch"] == 5]
    assert model.evaluate("valid").values["accuracy"] == last["accuracy"]
    labels = NodeClassificationTask(model.config, model.graph).labels
    assert model.classes == list(labels.names) and len(model.classes) == CLUSTERS
    nodes, classes = labels.nodes["test"], labels.classes["test"]
    assert class_metrics(model.scores[nodes], classes)["accuracy"] == found["accuracy"]
    name = model.graph.node_names([nodes[0]])[0]
    answers = model.predict(name)
    assert sum(one.score for one in answers) == pytest.approx(1) and len(answers) == CLUSTERS
    assert answers[0].name == model.classes[int(model.scores[nodes[0]].argmax())]
    code, out, _ = command("predict", tmp_path / "run", "--node", name, "--top", "2")
    assert code == 0 and [line.split("\t")[1] for line in out] == [one.name for one in answers[:2]]
    out = export_run(tmp_path / "run", "npy")
    assert np.array_equal(np.load(out / "scores.npy"), model.scores)
    assert np.array_equal(np.load(out / "embeddings.npy"), model.embeddings())
    assert pq.read_table(out / "scores.names.parquet").num_rows == model.graph.num_nodes
    assert open_run(tmp_path / "run").summary == summary


def test_mistakes_are_one_line(labelled, tmp_path, command):
    train(configure(labelled), tmp_path / "run")
    for words, said in [
        (["predict", tmp_path / "run", "--head", "1"], "name the node to predict with --node"),
        (["predict", tmp_path / "run", "--node", "nobody"], "unknown node 'nobody'"),
        (["predict", tmp_path / "run", "--node", "1", "--top", "0"], "top must be at least 1"),
        (["eval", tmp_path / "run", "--set", "seed=3"], "only `threads` and `evaluation.metrics` may change here"),
        (["resume", tmp_path / "run", "--set", "encoder.dropout=0.5"], "encoder.dropout: the run was trained with"),
    ]:
        code, _, error = command(*words)
        assert code == 2 and len(error) == 1 and said in error[0], error
    others = (labelled / "labels.tsv").read_text().splitlines()
    (tmp_path / "others.tsv").write_text("\n".join(others[:-1]))
    with pytest.raises(CheckpointError, match="other labels"):
        resume(tmp_path / "run", [f"data.labels={tmp_path / 'others.tsv'}", "training.epochs=9"])
    config = json.loads(json.dumps(configure(labelled).model_dump(mode="json")))
    config["data"]["labels"] = str(tmp_path / "none.tsv")
    with pytest.raises(InputError, match="none.tsv"):
        train(Config.build(config), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_without_the_names_of_its_classes_is_one_line(labelled, tmp_path, command):
    train(configure(labelled, "training.epochs=1"), tmp_path / "run")
    (tmp_path / "run" / "classes.json").write_text("[")
    code, _, error = command("predict", tmp_path / "run", "--node", "1")
    assert code == 2 and len(error) == 1 and "classes.json: is damaged" in error[0], error
