"""What every task can do over nodes: `oac` has the bits of `sync`, and an evaluation that of one box within a seed's
spread."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.nodes import write_features, write_labels
from benchmarks.nodes.trainers import train_together
from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.rank_slice import WHOLE, RankSlice, with_share
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.home import Home
from marius_oac.runs.segments import Segments
from marius_oac.training.local import start_task, train
from tests.click_logs import ctr_config, small_log
from tests.nodes.test_node_training import OFTEN, digests, kill, run, start
from tests.nodes.worlds import together
from tests.run_folders import slow
from tests.tasks.test_node_classification import configure

pytestmark = pytest.mark.usefixtures("forked_programs", "all_code_is_known")
SAGE = "encoder.layers=[{kind: sage, neighbors: 3, dimension: 12}, {kind: gat, neighbors: 2}]"
LINKS = {
    "an encoder": [SAGE, "encoder.dropout=0.2", "encoder.embeddings=5"],
    "features alone": ["encoder.layers=[{kind: sage, neighbors: 4}]", "encoder.embeddings=0", "FEATURES"],
    "all negatives": ["training.negatives.all=true"],
    "an ordering": ["training.ordering={kind: comet, partitions: 8, buffer: 4}"],
}
OWN = """
import torch
class Layer(torch.nn.Module):
    activation = staticmethod(torch.relu)
    def __init__(self, inputs):
        super().__init__()
        self.width, self.linear = 8, torch.nn.Linear(inputs, 8)
    def forward(self, values, block, lanes):
        return self.linear(values[:block.num_outputs])
"""


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """A graph of 240 nodes in five clusters, its labels and features, and a layer of a user's file."""
    folder = tmp_path_factory.mktemp("labelled")
    spec = GeneratedGraph(num_nodes=240, num_edges=1500, num_clusters=5, seed=2)
    write_graph(spec, folder / "edges.npy")
    read = ReadOptions(relations=False)
    prepare(PrepareRequest(source=str(folder / "edges.npy"), out=folder / "graph", read=read, valid_fraction=0.1,
                           test_fraction=0.1))  # fmt: skip
    graph = Graph.open(folder / "graph")
    write_labels(spec, graph, folder / "labels.tsv")
    write_features(spec, graph, folder / "features.parquet", 3, noise=1.0)
    (folder / "mine.py").write_text(OWN)
    return folder


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """Three days of clicks, each with users that the one before had not."""
    folder = tmp_path_factory.mktemp("days")
    return [small_log(folder / f"day_{day}.parquet", seed=day, new=25 * day) for day in range(3)]


def links(folder, *overrides):
    tree = {
        "device": "cpu",
        "threads": 1,
        "data": {"path": str(folder / "graph")},
        "model": {"decoder": "dot", "dimension": 8, "init_scale": 0.3},
        "training": {"batch_size": 101, "epochs": 2, "negatives": {"count": 8, "chunks": 2}},
    }
    given = [each.replace("FEATURES", f"encoder.features={folder / 'features.parquet'}") for each in overrides]
    return Config.build(tree, given)


def classes(folder, *overrides):
    return configure(folder, "training.batch_size=30", "training.epochs=3", *overrides)


def clicks(days, *overrides):
    return ctr_config(
        days, "data.shuffle=300", "keys.capacity=400", "keys.drop_after=1", "training.progressive=true",
        "training.epochs=1", *overrides, test=days[-1],
    )  # fmt: skip


def one_after_another(config, nodes):
    """What trainers over nodes find, with batches in flight and, the same, with one at a time."""
    ahead, alone = (train_together(config.replace(f"pipeline.mode={mode}"), nodes) for mode in ("oac", "sync"))
    assert ahead.digests == alone.digests
    for name in ahead.test.keys() - {"seconds"}:
        assert ahead.test[name] == alone.test[name]
    return ahead


@pytest.mark.parametrize("name", LINKS)
def test_links_of_every_kind_have_the_bits_of_sync(labelled, name):
    found = one_after_another(links(labelled, *LINKS[name]), 2)
    assert ("entities" in found.digests) == (name != "features alone")
    assert found.replaced > 0 or name == "features alone"


@pytest.mark.parametrize("nodes", [2, slow(3)])
def test_classes_have_the_bits_of_sync(labelled, nodes):
    found = one_after_another(classes(labelled), nodes)
    assert found.replaced > 0 and found.test["accuracy"] > 0.5


def test_a_layer_of_the_users_own_has_the_bits_of_sync(labelled):
    layers = f"encoder.layers=[{{kind: module, module: '{labelled / 'mine.py'}:Layer', neighbors: 3}}]"
    assert one_after_another(links(labelled, layers), 2).replaced > 0


@pytest.mark.parametrize("nodes", [2, slow(3)])
def test_keys_are_admitted_in_the_order_of_batches_and_trainers(days, tmp_path, nodes):
    config = clicks(days, "keys.admit_after=3")
    found, alone = one_after_another(config, nodes), train(config, tmp_path / "alone")
    assert any(found.summary[name] for name in found.summary if name.endswith(".waiting"))
    assert found.test["auc"] == pytest.approx(alone.summary["test.auc"], abs=0.03)


@pytest.mark.parametrize("parts", [4, slow(None)])
def test_batches_are_predicted_by_all_trainers_together(days, parts):
    """With virtual parts they have the same bits on any number of trainers, and so have the metrics."""
    config = clicks(days, "training.progressive_by=batch", f"nodes.parts={parts or 'null'}", "data.shuffle=0")
    one, two = (train_together(config, count) for count in (1, 2))
    assert len(one.predicted) == len(two.predicted) == 3
    for mine, theirs in zip(one.predicted, two.predicted, strict=True):
        assert mine["examples"] == theirs["examples"] == 300
        assert mine == theirs if parts else theirs == pytest.approx(mine, rel=0.02)
    assert one.predicted[-1]["auc"] > 0.5


@pytest.mark.parametrize("nodes", [2, slow(3)])
def test_keys_are_dropped_as_on_one_box(days, tmp_path, nodes):
    config = clicks(days)
    found, alone = one_after_another(config, nodes), train(config, tmp_path / "alone")
    names = [name for name in alone.summary if name.endswith((".keys", ".dropped"))]
    assert {name: found.summary[name] for name in names} == {name: alone.summary[name] for name in names}
    assert any(found.summary[name] for name in names if name.endswith(".dropped"))
    assert found.test["auc"] == pytest.approx(alone.summary["test.auc"], abs=0.02)


@pytest.mark.parametrize("make", [classes, lambda folder: links(folder, SAGE)])
def test_the_slices_of_several_trainers_are_the_batch(labelled, make):
    """Also where there are more trainers than examples: an example that is lent is not counted."""
    config = make(labelled)
    whole = start_task(config).planner
    batch = whole.plan(1)
    for count in (2, 3, 200):
        plans = [with_share(whole, RankSlice(rank, count)).plan(1) for rank in range(count)]
        assert sum(plan.examples for plan in plans) == batch.examples
        assert sum(plan.data.share for plan in plans) == pytest.approx(1)
        assert all((plan.examples > 0) == (plan.data.share > 0) for plan in plans)
        for name in ("labels", "heads"):
            if hasattr(batch.data.head, name):
                parts = [len(getattr(plan.data.head, name)) for plan in plans if plan.examples]
                assert sum(parts) == len(getattr(batch.data.head, name))
    labels = [with_share(whole, RankSlice(rank, 2)).plan(1).data.head for rank in range(2)]
    if config.task == "node_classification":
        assert np.array_equal(np.concatenate([each.labels for each in labels]), batch.data.head.labels)
    assert whole.share == WHOLE


def test_what_is_measured_before_an_epoch_is_measured_when_all_have_dropped(days, monkeypatch):
    task, done, measured = start_task(clicks(days)), [], threading.Event()
    monkeypatch.setattr(task, "before_epoch", lambda *given: (done.append("measured"), measured.set()))

    def work(group):
        node = NodesHome(task, group, [1.0, 1.0], None, None)

        def drop(epoch):
            if group.rank:
                measured.wait(0.3)  # which it is not, however long this takes
            done.append("dropped")

        monkeypatch.setattr(node.rows, "before_epoch", drop)
        node.before_epoch(SimpleNamespace(step=SimpleNamespace(dense_state=dict)), 1)

    together(ThreadGroup.members(2), work)
    assert done == ["dropped", "dropped", "measured", "measured"]


def test_no_question_of_the_loop_is_answered_by_silence():
    """What was inherited over nodes would be the answer of one machine."""
    asked = {name for name in vars(Home) if not name.startswith("_")}
    assert asked - {"config", "table_bytes"} <= set(vars(NodesHome))
    assert {name for name in vars(Segments) if not name.startswith("_")} == Segments.__abstractmethods__


@pytest.fixture(scope="module")
def configs(labelled, days, tmp_path_factory):
    """Files with a configuration of each kind."""
    folder = tmp_path_factory.mktemp("configs")
    layer = f"encoder.layers=[{{kind: module, module: '{labelled / 'mine.py'}:Layer', neighbors: 3}}]"
    made = {name: links(labelled, *overrides) for name, overrides in LINKS.items()}
    made |= {"classes": classes(labelled), "own layer": links(labelled, layer), "dropped keys": clicks(days)}
    made["admitted keys"] = clicks(days, "keys.admit_after=3")
    for name, config in made.items():
        (folder / f"{name}.yaml").write_text(config.dump())
    return folder


def measured(path):
    """The decisive metrics of a run's summary."""
    names = ("test.filtered.mrr", "test.accuracy", "test.auc")
    return [value for name, value in RunFolder.open(path).summary().items() if name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LINKS, "classes", "own layer", "dropped keys", "admitted keys"])
def test_what_a_user_types_goes_on_where_it_was_killed(configs, tmp_path, name):
    """With two nodes, one of them lost, and with three: the metrics are those of one box."""
    train_it = ["train", configs / f"{name}.yaml", *OFTEN, "--out"]
    run(*train_it, tmp_path / "oac", "--local-nodes", 2)
    run(*train_it, tmp_path / "sync", "--local-nodes", 2, "--set", "pipeline.mode=sync")
    assert digests(tmp_path / "oac") == digests(tmp_path / "sync")
    kill(start(*train_it, tmp_path / "lost", "--local-nodes", 2), tmp_path / "lost", 5, 1)
    run("resume", tmp_path / "lost", "--local-nodes", 2)
    assert digests(tmp_path / "lost") == digests(tmp_path / "oac")
    run(*train_it, tmp_path / "three", "--local-nodes", 3)
    run(*train_it, tmp_path / "three-sync", "--local-nodes", 3, "--set", "pipeline.mode=sync")
    assert digests(tmp_path / "three") == digests(tmp_path / "three-sync")
    run(*train_it, tmp_path / "one")
    (one,) = measured(tmp_path / "one")
    for there in ("oac", "three"):
        assert measured(tmp_path / there) == pytest.approx([one], abs=0.05)
    said = run("eval", tmp_path / "three")
    assert "Traceback" not in said and run("verify", tmp_path / "three")
