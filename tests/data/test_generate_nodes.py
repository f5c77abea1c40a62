"""Labels and features of generated graphs: what they follow from, and what can be guessed from them."""

import dataclasses

import numpy as np
import pytest

from benchmarks.generate import nodes as generate_nodes
from benchmarks.generate.graph import GeneratedGraph, _Law, write_graph
from benchmarks.generate.nodes import write_features, write_labels
from marius_oac.data.graphs.features import open_features
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.labels import read_labels
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare

SPEC = GeneratedGraph(num_nodes=3000, num_edges=30_000, seed=4, num_clusters=10)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generate_nodes, "CHUNK_NODES", 512)
    monkeypatch.setattr(generate_nodes, "_BATCH_NODES", 700)


def prepared(spec, folder, suffix):
    source = folder / f"edges{suffix}"
    write_graph(spec, source)
    prepare(PrepareRequest(source=str(source), out=folder / suffix[1:], read=ReadOptions(relations=False)))
    return Graph.open(folder / suffix[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("generated")


@pytest.fixture(scope="module")
def graph(folder):
    return prepared(SPEC, folder, ".tsv")


def numbers(graph):
    """The generated graph's number of each node."""
    return np.array([int(name.removeprefix("/m/")) for name in graph.node_names(range(graph.num_nodes))])


def labelled(labels):
    """{id: (split, class's name)}"""
    return {
        int(node): (split, labels.names[number])
        for split in labels.nodes
        for node, number in zip(labels.nodes[split], labels.classes[split], strict=True)
    }


def test_labels_are_clusters_and_features_tell_of_them(graph, tmp_path):
    write_labels(SPEC, graph, tmp_path / "labels.tsv")
    found = labelled(read_labels(tmp_path / "labels.tsv", graph))
    clusters = SPEC.clusters(numbers(graph))
    assert sorted(found) == list(range(graph.num_nodes))
    assert all(label == str(clusters[node]) for node, (_, label) in found.items())
    edges = graph.edges("train")
    assert np.mean(clusters[edges[:, 0]] == clusters[edges[:, 1]]) == pytest.approx(0.9 + 0.1 / 10, abs=0.02)

    write_features(SPEC, graph, tmp_path / "features.parquet", 16)
    features = np.asarray(open_features(tmp_path / "features.parquet", graph, tmp_path / "laid"))
    assert features.shape == (graph.num_nodes, 16) and features.dtype == np.float32
    centers = np.stack([features[clusters == cluster].mean(axis=0) for cluster in range(10)])
    assert np.linalg.norm(centers, axis=1) == pytest.approx(np.ones(10), abs=0.2)
    assert (features - centers[clusters]).std(axis=0) == pytest.approx(np.full(16, 0.5), abs=0.04)
    around, degrees = np.zeros_like(features), np.zeros(graph.num_nodes)
    for here, there in ((0, 1), (1, 0)):
        np.add.at(around, edges[:, here], features[edges[:, there]])
        np.add.at(degrees, edges[:, here], 1)
    around /= np.maximum(degrees, 1)[:, None]
    alone, together = (np.mean(nearest(values, centers) == clusters) for values in (features, around))
    assert 0.4 < alone < 0.75 and together > alone + 0.2


def nearest(values, centers):
    return ((values[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)


def test_what_a_node_gets_depends_on_its_number_alone(graph, folder, tmp_path):
    fewer = prepared(dataclasses.replace(SPEC, num_edges=1500), folder, ".npy")  # named 17, not /m/0000017
    assert fewer.num_nodes < graph.num_nodes and fewer.node_names([0])[0].isdecimal()
    labels, features = [], []
    for number, each in enumerate((graph, fewer)):
        write_labels(SPEC, each, tmp_path / f"{number}.csv", (0.3, 0.2, 0.1))
        write_features(SPEC, each, tmp_path / f"{number}.parquet", 4)
        named = numbers(each)
        labels.append(
            {named[node]: value for node, value in labelled(read_labels(tmp_path / f"{number}.csv", each)).items()}
        )
        features.append(
            dict(zip(named, open_features(tmp_path / f"{number}.parquet", each, tmp_path / "laid"), strict=True))
        )
    in_both = set(numbers(graph)) & set(numbers(fewer))
    assert len(in_both) > 500
    for node in in_both:
        assert labels[0].get(node) == labels[1].get(node)
        assert np.array_equal(features[0][node], features[1][node])


def test_shares_and_seeds(graph, tmp_path):
    def written(spec, shares):
        write_labels(spec, graph, tmp_path / "labels.tsv", shares)
        return labelled(read_labels(tmp_path / "labels.tsv", graph))

    found = written(SPEC, (0.3, 0.2, 0.1))
    splits = [split for split, _ in found.values()]
    counts = np.array([splits.count(split) for split in ("train", "valid", "test")])
    assert counts / graph.num_nodes == pytest.approx(np.array([0.3, 0.2, 0.1]), abs=0.04)
    assert found == written(SPEC, (0.3, 0.2, 0.1)) != written(dataclasses.replace(SPEC, seed=5), (0.3, 0.2, 0.1))
    assert {split for split, _ in written(SPEC, (1.0, 0.0, 0.0)).values()} == {"train"}


def test_clusters_undo_the_scattering():
    for nodes in (1, 2, 7, 1000, (1 << 31) - 1, 1 << 31, (1 << 40) + 1):
        spec = GeneratedGraph(num_nodes=nodes, num_edges=1, num_clusters=min(nodes, 5), seed=2)
        ranks = np.unique(np.linspace(0, nodes - 1, 500).astype(np.int64))
        assert np.array_equal(spec.clusters(_Law(spec)._scatter(ranks)), ranks % spec.num_clusters)


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda graph, folder: write_labels(SPEC, graph, folder / "a.tsv", (0.5, 0.5, 0.1)), "shares: three numbers"),
        (lambda graph, folder: write_labels(SPEC, graph, folder / "a.tsv", (0.5, -0.1, 0.1)), "shares: three numbers"),
        (lambda graph, folder: write_labels(SPEC, graph, folder / "a.tsv", (0.5, 0.1)), "shares: three numbers"),
        (lambda graph, folder: write_labels(SPEC, graph, folder / "a.parquet"), "as .tsv or .csv, not '.parquet'"),
        (lambda graph, folder: write_features(SPEC, graph, folder / "a.npy", 4), "as .parquet, not '.npy'"),
        (
            lambda graph, folder: write_features(SPEC, graph, folder / "a.parquet", 0),
            "width: must be at least 1, not 0",
        ),
        (lambda graph, folder: write_features(SPEC, graph, folder / "a.parquet", 4, -1), "noise: must be at least 0"),
        (lambda graph, folder: write_features(SPEC, graph, folder / "a.parquet", 4, np.nan), "noise: must be at least"),
    ],
)
def test_what_cannot_be_written(graph, tmp_path, write, message):
    with pytest.raises(InputError, match=message):
        write(graph, tmp_path)
    assert not list(tmp_path.iterdir())


def test_graphs_of_something_else(graph, tmp_path):
    smaller = dataclasses.replace(SPEC, num_nodes=100)
    with pytest.raises(InputError, match="has other nodes than the generated graph"):
        write_labels(smaller, graph, tmp_path / "a.tsv")
    (tmp_path / "e.tsv").write_text("anna\tberta\n")
    prepare(PrepareRequest(source=str(tmp_path / "e.tsv"), out=tmp_path / "e", valid_fraction=0, test_fraction=0))
    with pytest.raises(InputError, match="e: has other nodes than the generated graph"):
        write_features(SPEC, Graph.open(tmp_path / "e"), tmp_path / "a.parquet", 4)


def test_the_command_makes_what_training_takes(tmp_path, capsys):
    out = tmp_path / "communities"
    sizes = ["--nodes", "300", "--edges", "2000", "--communities", "4", "--features", "5"]
    assert generate_nodes.main(["--out", str(out), *sizes]) == 0
    graph = Graph.open(out / "graph")
    labels = read_labels(out / "labels.tsv", graph)
    assert len(labels.names) == 4 and graph.num_relations == 0
    assert open_features(out / "features.parquet", graph, tmp_path / "laid").shape == (graph.num_nodes, 5)
    assert sorted(path.name for path in out.iterdir()) == ["features.parquet", "graph", "labels.tsv"]
    assert generate_nodes.main(["--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_an_error_leaves_nothing(tmp_path, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate_nodes, "write_features", stop)
    sizes = ["--nodes", "300", "--edges", "2000", "--communities", "4"]
    assert generate_nodes.main(["--out", str(tmp_path / "communities"), *sizes]) == 130
    assert list(tmp_path.iterdir()) == []
