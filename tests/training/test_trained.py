"""A trained model opened from its run: the numbers of the summary, predictions against brute force, exports."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from marius_oac import TrainedModel, open_run
from marius_oac.errors import CheckpointError, InputError
from marius_oac.evaluation import quality
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.training import local as training
from marius_oac.training.trained import export_run
from tests.graphs import tiny_config, tiny_graph


def test_evaluating_gives_the_numbers_of_the_summary(finished):
    model, summary = TrainedModel.open(finished), open_run(finished).summary
    found = model.evaluate("test")
    assert {f"test.{key}": value for key, value in found.values.items() if key != "seconds"} == {
        key: value for key, value in summary.items() if key.startswith("test.") and key != "test.seconds"
    }
    assert str(found).splitlines()[0] == f"{finished}, checkpoint 0000000050, test"
    assert model.evaluate("valid").values["filtered.mrr"] == summary["valid.filtered.mrr"]
    assert "filtered.mrr" not in model.evaluate("train", ["evaluation.filtered=false"]).values
    with pytest.raises(InputError, match=r"--set model.dimension=3: only keys of"):
        model.evaluate("test", ["model.dimension=3"])


def test_the_parts_that_are_measured_make_up_the_whole(finished, monkeypatch):
    model, summary = TrainedModel.open(finished), open_run(finished).summary
    found = model.quality()
    for groups in (found.relations, found.degrees):
        counts, mrrs = zip(*((each.count, each.mrr) for each in groups), strict=True)
        assert sum(counts) == 2 * found.measured == 2 * summary["test.edges"] and found.split == "test"
        assert np.average(mrrs, weights=counts) == pytest.approx(summary["test.filtered.mrr"])
    assert found.plane.rows == model.graph.num_nodes
    monkeypatch.setattr(quality, "MOST_EDGES", 5)
    assert model.quality().measured == 5


def test_a_run_of_a_gpu_that_is_not_here_is_evaluated_asked_and_exported(finished, tmp_path, command):
    run = shutil.copytree(finished, tmp_path / "run")
    with RunFolder.open(run) as folder:
        folder.write_config(folder.config.replace("device=cuda:7"))
    note = "note: the run was trained on cuda:7, which is not here: computing on cpu, where last bits may differ"
    code, out, err = command("eval", run)
    assert code == 0 and note in err
    there = [line.replace(str(finished), str(run)) for line in command("eval", finished)[1]]
    assert [line for line in out if "seconds" not in line] == [line for line in there if "seconds" not in line]
    assert command("export", run)[0] == 0
    assert command("predict", run, "--head", "0", "--relation", "0")[0] == 0
    code, _, err = command("resume", run, "--set", "training.epochs=3")
    assert code == 2 and "there is no cuda:7" in err[-1]


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize("reciprocal", ["false", "true"])
def test_predictions_against_brute_force(graph, tmp_path, filtered, side, reciprocal):
    training.train(tiny_config(graph, "model.decoder=distmult", f"model.reciprocal={reciprocal}"), tmp_path / "run")
    model = TrainedModel.open(tmp_path / "run")
    entities = model.checkpoint.array("entities", "values").astype(np.float64)
    relations = model.relation_values().numpy().astype(np.float64)
    edges = np.concatenate([graph.edges(split) for split in ("train", "valid", "test")])
    relation, given = 1, int(edges[edges[:, 1] == 1][0, 0 if side == "head" else 2])
    row = relation + (graph.num_relations if reciprocal == "true" and side == "tail" else 0)
    scores = entities @ (entities[given] * relations[row])
    column, asked = (0, 2) if side == "head" else (2, 0)
    known = set(edges[(edges[:, 1] == relation) & (edges[:, column] == given)][:, asked].tolist())
    assert known
    expected = [i for i in np.argsort(-scores, kind="stable") if not (filtered and i in known)][:20]
    names = {side: graph.node_names([given])[0], "relation": graph.relation_names([relation])[0]}
    found = model.predict(**names, top=20, filtered=filtered)
    assert [one.name for one in found] == graph.node_names(expected)
    assert np.allclose([one.score for one in found], scores[expected], rtol=1e-4)


@pytest.mark.parametrize("reciprocal", ["false", "true"])
def test_exports_hold_the_tables_with_their_names(graph, tmp_path, reciprocal):
    training.train(tiny_config(graph, f"model.reciprocal={reciprocal}"), tmp_path / "run")
    out = export_run(tmp_path / "run", "safetensors")
    model = TrainedModel.open(tmp_path / "run")
    found = load_file(out / "embeddings.safetensors")
    assert np.array_equal(found["entities"], model.checkpoint.array("entities", "values"))
    assert np.array_equal(found["relations"], model.relation_values().numpy())
    names = graph.relation_names(range(4))
    assert pq.read_table(out / "relations.names.parquet").column("name").to_pylist() == names + (
        [f"{name}^-1" for name in names] if reciprocal == "true" else []
    )
    assert pq.read_table(out / "entities.names.parquet").column("name").to_pylist() == graph.node_names(
        range(graph.num_nodes)
    )


def test_a_model_without_relations(tmp_path):
    graph = tiny_graph(tmp_path / "graph", relations=0)
    training.train(tiny_config(graph, "model.decoder=dot"), tmp_path / "run")
    model = TrainedModel.open(tmp_path / "run")
    assert len(model.predict(tail=graph.node_names([3])[0], top=4)) == 4 and model.relation_values() is None
    out = export_run(tmp_path / "run", "npy", tmp_path / "out")
    assert sorted(path.name for path in out.iterdir()) == ["entities.names.parquet", "entities.npy"]


def test_a_named_checkpoint(finished):
    assert TrainedModel.open(finished, "0000000025").checkpoint.batch_index == 25
    assert TrainedModel.open(finished, "best").checkpoint.name in ("0000000025", "0000000050")
    with pytest.raises(CheckpointError, match="there is no checkpoint 'newest'"):
        TrainedModel.open(finished, "newest")


def test_what_is_no_split_and_no_configuration_is_told_in_one_line(finished, tmp_path):
    for name in ("tset", "", None, 3):
        with pytest.raises(InputError, match="^split: must be train, valid or test, not "):
            TrainedModel.open(finished).evaluate(name)
    for config in ("config.yaml", {"data": {"path": "g"}}, None):
        with pytest.raises(InputError, match="^config: a Config is needed, such as Config.load"):
            training.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
