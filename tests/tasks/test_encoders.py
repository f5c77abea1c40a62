"""Encoders in training: the bits of `sync` whatever the threads do, stopping, going on, evaluating, exporting."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from marius_oac import TrainedModel, open_run, resume, train
from marius_oac.batches import BlockData, EncodedBatch, NodeBatch
from marius_oac.data.graphs.graph import open_graph
from marius_oac.data.neighbors.sampling import NeighborSampler
from marius_oac.data.reading.registry import EMBEDDED
from marius_oac.errors import CheckpointError, ConfigError
from marius_oac.models.gnn.step import blocks_of
from marius_oac.runs.session import Session
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.training.trained import compare_runs, export_run
from marius_oac.types import map_arrays
from tests.graphs import NODES, jitter, run_batches, tiny_config, workers
from tests.run_folders import contents, each_with_one_of, outcome, stop_at, story

BATCHES = 30
ENCODERS = {
    "sage": ["encoder.layers=[{kind: sage, neighbors: 4}]"],
    "gcn": ["encoder.layers=[{kind: sage, neighbors: all, aggregator: gcn}]", "encoder.direction=in"],
    "gat": ["encoder.layers=[{kind: gat, neighbors: 3, heads: 2}]", "model.reciprocal=true"],
    "two layers": ["encoder.layers=[{kind: sage, neighbors: 3, dimension: 12}, {kind: gat, neighbors: 2}]",
                   "encoder.dropout=0.2", "encoder.embeddings=5"],
    "bfloat16": ["encoder.layers=[{kind: sage}]", "storage.dtype=bfloat16", "training.optimizer.kind=adam"],
    "decay": ["encoder.layers=[{kind: sage}]", "encoder.optimizer.decay=0.5", "training.optimizer.decay=0.5"],
    "all nodes": ["encoder.layers=[{kind: sage, neighbors: 2}]", "training.negatives.all=true"],
    "disk": ["encoder.layers=[{kind: sage, neighbors: 2}]", "storage.memory=20KiB", "storage.look_ahead=2"],
}  # fmt: skip
THREADS = [(16, 4), (4, 3), (16, 2), (1, 1), (16, 1)]
"""Batches in flight and workers per stage."""


class Crash(Exception):
    pass


@pytest.fixture(scope="module")
def features(graph, tmp_path_factory):
    """A file of three floats for each node."""
    path = tmp_path_factory.mktemp("features") / "features.parquet"
    values = np.random.default_rng(3).normal(size=(NODES, 3)).astype(np.float32)
    names = graph.node_names(range(graph.num_nodes))
    pq.write_table(pa.table({"name": names, "features": values[: len(names)].tolist()}), path)
    return path


@pytest.fixture
def encoded(graph):
    """A configuration of two epochs with an encoder."""
    return tiny_config(graph, *ENCODERS["two layers"])


def in_flight(graph, overrides, several, count, mode="oac"):
    config = tiny_config(graph, *overrides, f"pipeline.mode={mode}", f"pipeline.in_flight={several}", *workers(count))
    return run_batches(config, graph, BATCHES, jitter(100 * several + count))


def assert_same_bits(graph, overrides, threads, rows=True):
    expected = run_batches(tiny_config(graph, *overrides, "pipeline.mode=sync"), graph, BATCHES)
    several, count = threads
    found = in_flight(graph, overrides, several, count)
    assert found.bits == expected.bits
    assert [result.loss for result in found.results] == [result.loss for result in expected.results]
    assert (found.replaced > 0) == (rows and several > 1)


@pytest.mark.parametrize("encoder, threads", each_with_one_of(ENCODERS, THREADS))
def test_oac_has_the_bits_of_sync(graph, encoder, threads):
    assert_same_bits(graph, ENCODERS[encoder], threads)


@pytest.mark.parametrize("embeddings", [0, 4])
def test_oac_has_the_bits_of_sync_with_features(graph, features, embeddings):
    overrides = [*ENCODERS["gcn"], f"encoder.features={features}", f"encoder.embeddings={embeddings}"]
    assert_same_bits(graph, overrides, (4, 3), rows=embeddings > 0)


def test_async_has_not(graph):
    """Else the equal bits above would show nothing."""
    expected = run_batches(tiny_config(graph, *ENCODERS["sage"], "pipeline.mode=sync"), graph, BATCHES)
    assert in_flight(graph, ENCODERS["sage"], 16, 4, "async").bits != expected.bits


def test_the_order_of_arrival_is_replayed_with_the_same_bits(graph, tmp_path):
    overrides = [*ENCODERS["sage"], "pipeline.in_flight=8", *workers(2)]
    arrival = run_batches(tiny_config(graph, *overrides, "pipeline.order=arrival"), graph, BATCHES, jitter(5))
    np.save(tmp_path / "order.npy", arrival.order)
    replay = tiny_config(graph, *overrides, f"pipeline.order={tmp_path / 'order.npy'}", "pipeline.mode=sync")
    assert run_batches(replay, graph, BATCHES).bits == arrival.bits


@pytest.mark.parametrize("at", [("compute", 33), ("write", 45), ("plan", 27)])
def test_a_resumed_run_tells_the_story_of_one_that_never_stopped(encoded, tmp_path, at):
    train(encoded, tmp_path / "whole")
    with pytest.raises(Crash):
        train(encoded, tmp_path / "again", probe=stop_at(*at, Crash()))
    resume(tmp_path / "again")
    assert story(tmp_path / "again") == story(tmp_path / "whole")
    assert outcome(tmp_path / "again") == outcome(tmp_path / "whole")
    assert sorted(contents(tmp_path / "again")) == sorted(contents(tmp_path / "whole"))
    assert compare_runs(tmp_path / "whole", tmp_path / "again").same


def test_a_trained_model_is_evaluated_with_all_neighbours(encoded, graph, tmp_path):
    """Against the encoder on one block of the whole graph."""
    summary = train(encoded, tmp_path / "run").summary
    model = TrainedModel.open(tmp_path / "run")
    task = GraphTask(encoded, graph)
    encoder = task.encoder.make().eval()
    encoder.load_state_dict(
        {name.removeprefix("network."): each for name, each in model.checkpoint.dense().items() if "network." in name}
    )
    blocks = NeighborSampler(task.encoder.neighbors, [-1, -1], 0).sample(np.arange(graph.num_nodes), 0, 0)
    layers = tuple(BlockData(block.offsets, block.sources) for block in blocks.layers)
    data = EncodedBatch(head=NodeBatch(labels=blocks.inputs), blocks=layers, inputs=blocks.inputs)
    rows = torch.from_numpy(np.array(model.embeddings()[blocks.rows[blocks.inputs]]))
    with torch.no_grad():
        expected = encoder(rows, blocks_of(map_arrays(data, torch.from_numpy))).numpy()
    np.testing.assert_allclose(model.entities, expected, rtol=1e-4, atol=1e-5)
    found = model.evaluate("test").values
    assert all(summary[f"test.{key}"] == value for key, value in found.items() if key != "seconds")
    head, relation, _ = graph.edges("test")[0]
    names = graph.node_names([head])[0], graph.relation_names([relation])[0]
    relations = model.relation_values().numpy()[relation]
    scores = _complex(model.entities.astype(np.float64), model.entities[head], relations)
    best = model.predict(*names, top=3)
    assert [one.name for one in best] == graph.node_names(np.argsort(-scores)[:3])


def _complex(candidates, head, relation):
    """ComplEx's scores of all tails, the first half of the floats being real parts."""
    real = np.split(np.stack([head, relation]).astype(np.float64), 2, axis=1)
    query = (real[0] + 1j * real[1]).prod(0)
    first, second = np.split(candidates, 2, axis=1)
    return first @ query.real + second @ query.imag


def test_what_is_encoded_is_kept_and_made_again_if_damaged(encoded, tmp_path, capsys):
    train(encoded, tmp_path / "run")
    first = np.array(TrainedModel.open(tmp_path / "run").entities)
    (path,) = (tmp_path / "run" / "encoded").glob("*/entities.npy")
    path.write_bytes(path.read_bytes()[:-4] + b"oops")
    capsys.readouterr()
    assert np.array_equal(TrainedModel.open(tmp_path / "run").entities, first)
    assert "the nodes are encoded again" in capsys.readouterr().err
    resume(tmp_path / "run", ["training.epochs=6"])
    assert not np.array_equal(TrainedModel.open(tmp_path / "run").entities, first)
    assert not path.exists() and len(list((tmp_path / "run" / "encoded").glob("[0-9]*"))) == 1


def test_exports_hold_what_was_encoded_and_the_rows(encoded, graph, tmp_path):
    train(encoded, tmp_path / "run")
    out = export_run(tmp_path / "run", "npy")
    model = TrainedModel.open(tmp_path / "run")
    assert np.array_equal(np.load(out / "entities.npy"), model.entities)
    assert np.array_equal(np.load(out / "embeddings.npy"), model.embeddings())
    names = pq.read_table(out / "embeddings.names.parquet").column("name").to_pylist()
    assert names == graph.node_names(range(graph.num_nodes))


def test_features_alone_train_without_a_table(graph, features, tmp_path):
    config = tiny_config(graph, *ENCODERS["sage"], f"encoder.features={features}")
    run = train(config, tmp_path / "run")
    assert run.summary["test.filtered.mrr"] > 0 and "tables.entities.sha256" not in run.summary
    out = export_run(tmp_path / "run", "npy")
    assert sorted(path.name for path in out.glob("*.npy")) == ["entities.npy", "relations.npy"]
    assert open_run(tmp_path / "run").summary == run.summary


def test_other_features_are_refused_and_moved_ones_are_not(graph, features, tmp_path, monkeypatch):
    mine, moved = tmp_path / "mine.parquet", tmp_path / "moved.parquet"
    mine.write_bytes(features.read_bytes())
    train(tiny_config(graph, *ENCODERS["sage"], f"encoder.features={mine}"), tmp_path / "run")
    before = TrainedModel.open(tmp_path / "run").evaluate("test").values
    mine.rename(moved)
    resume(tmp_path / "run", ["training.epochs=3", f"encoder.features={moved}"])
    table = pq.read_table(moved).to_pydict()
    pq.write_table(pa.table({**table, "features": [[-x for x in row] for row in table["features"]]}), moved)
    for attempt in (
        lambda: TrainedModel.open(tmp_path / "run").evaluate("test"),
        lambda: resume(tmp_path / "run", ["training.epochs=4"]),
    ):
        with pytest.raises(CheckpointError, match=r"moved.parquet: these are other features than the run was trained"):
            attempt()
    assert before["filtered.mrr"] > 0


def test_a_run_that_cannot_be_written_is_evaluated_all_the_same(encoded, graph, tmp_path, monkeypatch, capsys):
    summary = train(encoded, tmp_path / "run").summary
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: real(path, mode) and path not in (tmp_path / "run", graph.path)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    capsys.readouterr()
    assert TrainedModel.open(tmp_path / "run").evaluate("test").values["filtered.mrr"] == summary["test.filtered.mrr"]
    said = capsys.readouterr().err
    assert "run can't be written: the nodes are encoded anew each time" in said
    assert "can't be written: neighbours and features lie in" in said
    assert not (tmp_path / "run" / "encoded").exists() and list(tmp_path.rglob("neighbors-both"))


def test_nothing_is_written_beside_the_graph_that_comes_with_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph, before = open_graph("codex-s"), sorted(EMBEDDED.rglob("*"))
    with Session(GraphTask(tiny_config(graph, *ENCODERS["sage"], "threads=1"), graph)):
        assert list(tmp_path.rglob("neighbors-both"))
    assert sorted(EMBEDDED.rglob("*")) == before and "can't be written" not in capsys.readouterr().err


def test_training_needs_no_gradient_of_features(graph, features, tmp_path):
    """What is known of nodes stays as it was given, whatever is trained on it."""
    before = features.read_bytes()
    train(tiny_config(graph, *ENCODERS["sage"], f"encoder.features={features}", "encoder.embeddings=4"), tmp_path / "r")
    assert features.read_bytes() == before


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["encoder.layers=[]"], "encoder.layers: must name at least one"),
        (["encoder.layers=[{kind: sage, dimension: 5}]"], "encoder.layers: the last one makes 5 floats of a node"),
        (["encoder.layers=[{kind: gat, merge: concat}]"], "32 floats of a node, but model.dimension"),
        (["encoder.layers=[{kind: sage}]", "encoder.embeddings=0"], "encoder.embeddings: 0, and there are no "),
        (["encoder.layers=[{kind: sage}]", "training.ordering={kind: beta, partitions: 4, buffer: 2}"],
         "training.ordering.kind: 'beta' holds some partitions of nodes in memory"),
        (["encoder.layers=[{kind: sage, neighbors: 0}]"], "encoder.layers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_key(graph, overrides, message):
    with pytest.raises(ConfigError) as error:
        tiny_config(graph, *overrides)
    assert message in str(error.value)


OWN = """
import torch
from torch import nn
from marius_oac.models.gnn.segments import neighbours

class Sum(nn.Module):
    activation = staticmethod(torch.tanh)

    def __init__(self, inputs):
        super().__init__()
        self.width = 8
        self.linear = nn.Linear(inputs, 8)

    def forward(self, values, block, lanes=None):
        own, sums = neighbours(values, block, lanes)
        return self.linear(own + 0.1 * sums)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own_layer.py").write_text(OWN)
    return tmp_path / "own_layer.py"


@pytest.mark.usefixtures("all_code_is_known")
def test_layers_of_ones_own_have_the_bits_of_sync(graph, own):
    layers = f"encoder.layers=[{{kind: sage}}, {{kind: module, module: '{own}:Sum', neighbors: 3}}]"
    assert_same_bits(graph, [layers], (16, 4))


def test_a_run_keeps_the_code_of_its_layers_and_says_when_it_changes(graph, own, tmp_path, capsys):
    config = tiny_config(graph, f"encoder.layers=[{{kind: module, module: '{own}:Sum'}}]")
    train(config, tmp_path / "run")
    assert (tmp_path / "run" / "own_layer.py").read_text() == OWN
    assert TrainedModel.open(tmp_path / "run").evaluate("test").values["filtered.mrr"] > 0
    resume(tmp_path / "run", ["training.epochs=3"])
    assert "has changed" not in capsys.readouterr().err
    model = TrainedModel.open(tmp_path / "run")
    before = np.array(model.entities)
    own.write_text(OWN.replace("0.1", "0.2"))
    assert np.array_equal(TrainedModel.open(tmp_path / "run").entities, before)  # by the text that the run has kept
    resume(tmp_path / "run", ["training.epochs=4"], trust=True)
    assert "note: own_layer.py has changed since it was last trained" in capsys.readouterr().err


def test_another_layer_than_the_checkpoints_is_one_line(graph, own, tmp_path, command):
    train(tiny_config(graph, f"encoder.layers=[{{kind: module, module: '{own}:Sum'}}]"), tmp_path / "run")
    own.write_text(OWN.replace("nn.Linear(inputs, 8)", "nn.Linear(inputs, 8, bias=False)"))
    code, _, error = command("resume", tmp_path / "run", "--set", "training.epochs=3", "--trust")
    assert code == 2 and "dense state 'network.layers.0.linear.bias'" in error[-1], error


@pytest.mark.parametrize("claim", ["not self.training", "len(own) < 150"], ids=["in a batch", "in an evaluation"])
def test_a_layer_that_fails_is_named_with_its_line(graph, own, tmp_path, command, claim):
    own.write_text(OWN.replace("        return self", f"        assert {claim}, 'no'\n        return self"))
    config = tiny_config(graph, f"encoder.layers=[{{kind: module, module: '{own}:Sum'}}]")
    (tmp_path / "config.yaml").write_text(config.dump())
    code, _, error = command("train", tmp_path / "config.yaml", "--out", tmp_path / "run")
    assert code == 2 and f"encoder.layers: {own}:16: AssertionError: no" in error[-1], error


@pytest.mark.usefixtures("all_code_is_known")
def test_a_layer_may_keep_what_it_computes(graph, own):
    """Results of our own products lie in memory that is used again, unless the user has layers."""
    own.write_text(
        OWN.replace("        own, sums", "        kept = getattr(self, 'kept', None)\n        own, sums").replace(
            "        return self",
            "        self.kept, before = (self.linear(own).detach(),) * 2\n"
            "        assert kept is None or bool((kept == self.copied).all())\n"
            "        self.copied = before.clone()\n        return self",
        )
    )
    run_batches(tiny_config(graph, f"encoder.layers=[{{kind: module, module: '{own}:Sum'}}]"), graph, 5)


@pytest.mark.usefixtures("all_code_is_known")
def test_a_layer_without_parameters_trains_relations_alone(graph, own, features):
    text = OWN.replace("self.width = 8", "self.width = inputs").replace(
        "        self.linear = nn.Linear(inputs, 8)\n", ""
    )
    own.write_text(text.replace("self.linear(own + 0.1 * sums)", "own + 0.1 * sums"))
    layers = f"encoder.layers=[{{kind: module, module: '{own}:Sum'}}]"
    overrides = [layers, f"encoder.features={features}", "model.decoder=distmult", "model.dimension=3"]
    found = run_batches(tiny_config(graph, *overrides), graph, 10)
    assert len({result.loss for result in found.results}) == 10


@pytest.mark.parametrize(
    "text, message",
    [
        (
            OWN.replace("width = 8", "width = 5").replace("inputs, 8", "inputs, 5"),
            "the last one makes 5 floats of a node",
        ),
        (OWN.replace("class Sum", "class Total"), "has no function or class 'Sum'"),
        (OWN.replace("own + 0.1 * sums", "own + sum"), "own_layer.py:16: TypeError"),
        ("import", "own_layer.py:1: "),
    ],
)
def test_mistakes_in_ones_own_layer_are_one_line(graph, own, tmp_path, command, text, message):
    own.write_text(text)
    (tmp_path / "config.yaml").write_text(
        tiny_config(graph, f"encoder.layers=[{{kind: module, module: '{own}:Sum'}}]").dump()
    )
    code, _, error = command("train", tmp_path / "config.yaml", "--out", tmp_path / "run")
    assert code == 2 and len(error) == 1 and message in error[0], error
    assert not (tmp_path / "run").exists()
