"""What a graph decides where the user does not: its decoder, and how much of it validation takes between epochs."""

import json

import numpy as np
import pytest

from marius_oac import Config, TrainedModel, open_run, train
from marius_oac.errors import InputError
from marius_oac.evaluation.evaluator import Evaluator
from marius_oac.runs.folder.folder import RunFolder
from tests.graphs import tiny_config, tiny_graph
from tests.run_folders import story


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A graph without relations."""
    return tiny_graph(tmp_path_factory.mktemp("plain"), relations=0)


def test_a_graph_without_relations_gets_dot(plain, tmp_path, command):
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"data": {"path": str(plain.path)}, "training": {"epochs": 1}, "threads": 1}))
    code, _, err = command("train", path, "--out", tmp_path / "run", "--set", "model.dimension=8")
    assert code == 0 and "note: the graph has no relations: model.decoder is dot" in err
    assert RunFolder.open(tmp_path / "run").config.model.decoder == "dot"
    code, _, err = command("resume", tmp_path / "run", "--set", "training.epochs=2")
    assert code == 0 and open_run(tmp_path / "run").summary["training.epochs"] == 2
    assert not any("model.decoder" in line for line in err)


def test_a_decoder_that_is_asked_for_is_not_exchanged(plain, graph, tmp_path, command):
    with pytest.raises(InputError, match="model.decoder: complex needs relations, but this graph has none; use dot"):
        train(tiny_config(plain, "model.decoder=complex"), tmp_path / "run")
    train(tiny_config(graph, "training.epochs=1"), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").config.model.decoder == "complex"
    again = Config.build({"data": {"path": "g"}}).replace("threads=1").replace("seed=3")
    assert "decoder" not in again.model.model_fields_set, "a copy leaves open what was open"
    explicit = Config.build({"data": {"path": "g"}, "model": {"decoder": "complex"}}).replace("threads=1")
    assert "decoder" in explicit.model.model_fields_set


def evaluated(run, split="valid"):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["edges"] for line in lines if line["kind"] == "evaluation" and line["split"] == split]


def test_validation_between_epochs_takes_a_sample_and_the_end_takes_all(graph, tmp_path, command):
    path = tmp_path / "c.yaml"
    path.write_text(tiny_config(graph, "evaluation.max_edges=30").dump())
    code, _, err = command("train", path, "--out", tmp_path / "run")
    told = [line for line in err if "validation" in line]
    assert code == 0 and told == [
        "note: between epochs validation takes 30 of 100 edges (evaluation.max_edges); the end takes all"
    ]
    summary = open_run(tmp_path / "run").summary
    assert evaluated(tmp_path / "run") == [30, 30] and summary["valid.edges"] == summary["test.edges"] == 100
    model = TrainedModel.open(tmp_path / "run")
    assert model.evaluate("valid").values["filtered.mrr"] == summary["valid.filtered.mrr"]
    assert model.evaluate("valid", ["evaluation.max_edges=30"]).values["edges"] == 30
    code, _, err = command("resume", tmp_path / "run", "--set", "training.epochs=3")
    assert code == 0 and not any("takes 30" in line for line in err) and evaluated(tmp_path / "run") == [30] * 3


def test_the_result_with_early_stopping_is_that_of_its_checkpoint_on_all_edges(graph, tmp_path):
    config = tiny_config(graph, "evaluation.max_edges=30", "training.early_stopping.patience=1", "training.epochs=6")
    summary = train(config, tmp_path / "run").summary
    assert summary["valid.edges"] == 100
    whole = TrainedModel.open(tmp_path / "run", summary["checkpoint"]).evaluate("valid").values
    assert whole["filtered.mrr"] == summary["valid.filtered.mrr"]


def test_no_sample_where_all_edges_are_few_or_asked_for(graph, tmp_path):
    assert Config.build({"data": {"path": "x"}}).evaluation.max_edges == 10_000
    for most in (0, 100, 10_000):
        config = tiny_config(graph, f"evaluation.max_edges={most}", "training.epochs=1")
        summary = train(config, tmp_path / str(most)).summary
        assert evaluated(tmp_path / str(most)) == [100] and "valid.edges" not in summary
    assert story(tmp_path / "0") == story(tmp_path / "100")


def test_the_sample_is_the_seeds(graph):
    def sample(*overrides):
        return Evaluator(tiny_config(graph, "evaluation.max_edges=30", *overrides), graph).edges("valid", whole=False)

    first, whole = sample(), graph.edges("valid")
    assert np.array_equal(first, sample()) and not np.array_equal(first, sample("seed=1"))
    places = [np.flatnonzero((whole == edge).all(1)) for edge in first]
    assert all(len(place) for place in places) and len(first) == 30
    assert len({tuple(edge) for edge in first.tolist()}) >= 29, "edges are drawn without replacement"
    spread = np.histogram([place[0] for place in places], 3, (0, 100))[0]
    assert spread.min() >= 3, "they come from everywhere"
    assert len(Evaluator(tiny_config(graph, "evaluation.max_edges=30"), graph).edges("valid")) == 100
