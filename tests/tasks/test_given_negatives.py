"""Runs on graphs with negatives of their own: which metrics they report, and by which a checkpoint is the best."""

import json
import subprocess
import sys

import numpy as np
import pytest
import yaml

import marius_oac
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.errors import ConfigError, InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.tasks.link_prediction.build import settled_on
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.types import Side
from tests.evaluation import naive_given
from tests.evaluation.test_given import naive_scores
from tests.graphs import tiny_config
from tests.ogb_folders import SETS, write_ogb_folder

DECISIVE = {"ogbl-wikikg2": "mrr", "ogbl-biokg": "mrr", "ogbl-citation2": "mrr", "ogbl-collab": "hits@50"}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ogb")
    for name in DECISIVE:
        raw = write_ogb_folder(folder / f"raw-{name}", name)
        prepare(PrepareRequest(source=name, from_dir=raw, out=folder / name))
    return {name: Graph.open(folder / name) for name in DECISIVE}


def naive(model, graph, split):
    """The metric by the documentation, from the trained embeddings in double precision."""
    negatives, edges = graph.negatives(split), np.array(graph.edges(split))
    if negatives.sides:
        scores = [naive_scores(model.scorer, edges, side, table) for side, table in negatives.sides.items()]
        return float(np.mean([naive_given.mrr(*each) for each in scores]))
    positive, negative = (
        naive_scores(model.scorer, pairs, Side.TAIL, pairs[:, 1:])[0] for pairs in (edges, np.array(negatives.pairs))
    )
    return naive_given.hits(50, positive, negative)


@pytest.mark.parametrize("name", DECISIVE)
def test_a_run_is_evaluated_by_the_rule_of_its_graph(graphs, tmp_path, name, command):
    graph, metric = graphs[name], DECISIVE[name]
    run = marius_oac.train(
        tiny_config(graph, "training.epochs=4", "training.early_stopping.patience=9"), tmp_path / "r"
    )
    model = marius_oac.TrainedModel.open(tmp_path / "r")
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    curve = [line[metric] for line in lines if line["kind"] == "evaluation"]
    assert len(curve) == 4 and run.summary[f"valid.{metric}"] == max(curve)
    assert run.summary["training.best_epoch"] == 1 + curve.index(max(curve))
    assert run.summary[f"test.{metric}"] == pytest.approx(naive(model, graph, "test"), rel=1e-9)
    assert model.evaluate("valid").values[metric] == pytest.approx(naive(model, graph, "valid"), rel=1e-9) == max(curve)
    assert f"  test.{metric} " in str(run) and not any("filtered" in key for key in run.summary)
    assert model.config.evaluation.candidates == "given" and model.config.decisive_metric == metric
    code, out, _ = command("eval", tmp_path / "r", "--split", "valid")
    assert code == 0 and any(line.split()[:1] == [metric] for line in out)
    assert not any("heads" in line for line in out)
    values = model.evaluate("test", ["evaluation.candidates=all"]).values
    assert {"filtered.mrr", "unfiltered.mrr"} <= set(values)
    with pytest.raises(InputError, match="train: has no negatives of its own; --set evaluation.candidates=all"):
        model.evaluate("train")
    quality = model.quality()
    assert quality.plane is not None and bool(quality.degrees) == (metric == "mrr")
    assert bool(quality.relations) == (SETS[name][1] in ("triples", "typed"))


def test_a_report_shows_the_metric(graphs, tmp_path, command):
    marius_oac.train(tiny_config(graphs["ogbl-collab"], "training.epochs=1"), tmp_path / "r")
    assert command("report", tmp_path / "r")[0] == 0
    assert "test.hits@50" in (tmp_path / "r" / "report.html").read_text()


def test_resumed_runs_and_samples(graphs, tmp_path):
    config = tiny_config(graphs["ogbl-wikikg2"], "training.epochs=1", "evaluation.max_edges=11")
    run = marius_oac.train(config, tmp_path / "r")
    more = marius_oac.resume(tmp_path / "r", ["training.epochs=2"])
    assert {"valid.mrr", "test.mrr", "test.heads.hits@10"} <= set(run.summary) == set(more.summary)
    lines = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert [line["edges"] for line in lines if line["kind"] == "evaluation"] == [11, 11]
    assert more.summary["valid.edges"] == 40


def test_encoded_entities_are_scored(graphs, tmp_path):
    extra = ("encoder.layers=[{kind: sage}]", "training.epochs=1", "model.dimension=8")
    run = marius_oac.train(tiny_config(graphs["ogbl-wikikg2"], *extra), tmp_path / "r")
    assert 0 < run.summary["test.mrr"] <= 1


def test_defaults_follow_the_graph_and_what_is_set_stays(graphs, graph):
    found = {name: settled_on(tiny_config(each), each)[0].evaluation for name, each in graphs.items()}
    assert {name: each.decisive for name, each in found.items()} == DECISIVE
    assert all(each.candidates == "given" for each in found.values())
    for name in ("ogbl-wikikg2", "ogbl-collab"):
        config, notes = settled_on(tiny_config(graphs[name], "evaluation.candidates=all"), graphs[name])
        assert config.evaluation.candidates == "all" and config.decisive_metric == "filtered.mrr"
        assert not any("negatives" in note for note in notes)
    config, notes = settled_on(tiny_config(graphs["ogbl-collab"], "evaluation.decisive=hits@10"), graphs["ogbl-collab"])
    assert config.decisive_metric == "hits@10" and config.evaluation.candidates == "given"
    assert "the graph has negatives of its own: evaluations compute OGB's hits@50" in notes
    assert "the graph has no relations: model.decoder is dot" in notes and config.model.decoder == "dot"
    assert settled_on(tiny_config(graph), graph)[0].evaluation.candidates == "all"
    copied = Config.build({"data": {"path": "g"}}).replace("threads=1").replace("seed=3")
    assert "candidates" not in copied.evaluation.model_fields_set, "a copy leaves open what was open"
    explicit = Config.build({"data": {"path": "g"}, "evaluation": {"candidates": "all"}}).replace("threads=1")
    assert "candidates" in explicit.evaluation.model_fields_set


@pytest.mark.parametrize(
    "name, overrides, said",
    [
        (None, ["candidates=given"], "evaluation.candidates: given, but the graph has no negatives of its own"),
        ("ogbl-collab", ["decisive=mrr"], "evaluation.decisive: mrr, but the graph's negatives are for hits@50"),
        ("ogbl-biokg", ["decisive=hits@50"], "evaluation.decisive: hits@50, but the graph's negatives are for mrr"),
        (
            "ogbl-collab",
            ["metrics=[own_parts.py:worst_rank]"],
            "evaluation.metrics: are functions of ranks, and hits@50",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(graphs, graph, name, overrides, said):
    chosen = graph if name is None else graphs[name]
    config = settled_on(tiny_config(chosen, *(f"evaluation.{each}" for each in overrides)), chosen)[0]
    with pytest.raises(ConfigError, match=said):
        GraphTask(config, chosen).check()


@pytest.mark.parametrize("name", ["ogbl-biokg", "ogbl-collab"])
def test_a_first_configuration_takes_them(graphs, name, command, monkeypatch):
    monkeypatch.setattr("marius_oac.prepare.init.graph._FEW_NODES", 10)
    code, out, _ = command("init", graphs[name].path)
    text = "\n".join(out)
    assert code == 0 and f"better {DECISIVE[name]}" in text
    config = settled_on(Config.build(yaml.safe_load(text)), graphs[name])[0]
    assert config.evaluation.candidates == "given" and config.decisive_metric == DECISIVE[name]


def test_what_does_nothing_is_said(graphs):
    from marius_oac.config.idle import idle_settings

    config = Config.build({"data": {"path": "x"}}, ["evaluation.decisive=mrr"])
    assert "evaluation.decisive does nothing here: evaluation.candidates is 'all'" in idle_settings(config)
    config = Config.build({"data": {"path": "x"}}, ["evaluation.candidates=given", "evaluation.degree_fraction=0.5"])
    assert "evaluation.degree_fraction does nothing here: evaluation.candidates is 'given'" in idle_settings(config)


@pytest.mark.slow
def test_over_nodes_the_rule_is_the_same(graphs, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        f"data: {{path: {graphs['ogbl-wikikg2'].path}}}\nmodel: {{dimension: 8}}\n"
        "training: {epochs: 1, batch_size: 100}\n"
    )
    words = ["train", config, "--out", tmp_path / "r", "--local-nodes", "2"]
    subprocess.run([sys.executable, "-m", "marius_oac", *map(str, words)], check=True, capture_output=True)
    summary = marius_oac.open_run(tmp_path / "r").summary
    model = marius_oac.TrainedModel.open(tmp_path / "r")
    assert summary["test.mrr"] == pytest.approx(naive(model, graphs["ogbl-wikikg2"], "test"), rel=1e-9)
    assert not any("filtered" in key for key in summary)


@pytest.mark.slow
def test_a_search_compares_trials_by_the_metric_of_the_graph(graphs, tmp_path, command):
    config, space = tmp_path / "c.yaml", tmp_path / "s.yaml"
    config.write_text(
        f"data: {{path: {graphs['ogbl-collab'].path}}}\nmodel: {{dimension: 8}}\n"
        "training: {epochs: 2, batch_size: 100}\n"
    )
    space.write_text("space:\n  training.optimizer.learning_rate: {low: 0.01, high: 0.1}\nsampler: random\n")
    code, out, err = command("tune", config, "--space", space, "--trials", "2", "--out", tmp_path / "t")
    assert code == 0, err
    assert any("valid hits@50" in line for line in out)
    (best,) = (line for line in out if line.startswith("the best on test"))
    assert "hits@50" in best
