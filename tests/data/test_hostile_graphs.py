"""Prepared graphs, with valid checksums, that somebody has made to do harm: every command refuses them in one line."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.edge_ids import first_bad_edge
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.layout import fingerprint
from marius_oac.training.local import train
from tests.graphs import NODES, RELATIONS, copy_of_graph, tiny_config
from tests.hostile import reseal, reseal_derived, reseal_graph
from tests.run_folders import says, write_config


@pytest.fixture
def folder(graph, tmp_path):
    return copy_of_graph(graph, tmp_path / "graph")


def spoil(folder, split, row, column, number):
    path = folder / f"{split}.npy"
    edges = np.load(path).astype(np.int64)
    edges[row, column] = number
    np.save(path, edges)
    reseal_graph(folder)
    return edges[row].tolist()


BAD = [(0, 2_000_000_000), (2, NODES + 7), (0, -1), (1, RELATIONS), (2, -(2**63)), (1, 2**62)]


@pytest.mark.parametrize(("column", "number"), BAD)
@pytest.mark.parametrize("extra", [(), ("encoder.layers=[{kind: sage}]",)], ids=["rows", "encoder"])
def test_ids_are_checked_before_training_begins(folder, tmp_path, command, column, number, extra):
    edge = spoil(folder, "train", 5, column, number)
    config = write_config(tmp_path / "c.yaml", tiny_config(Graph.open(folder), *extra))
    code, _, err = command("train", config, "--out", tmp_path / "run")
    assert code == 2 and says(err, "train.npy: edge 5 is", str(edge), "199 nodes and 4 relations")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    "argv", [("eval", "RUN", "--split", "valid"), ("predict", "RUN", "--head", "HEAD", "--relation", "RELATION",
                                                   "--filtered")], ids=["eval", "predict"])  # fmt: skip
def test_every_split_is_checked_by_who_reads_it(folder, tmp_path, command, split, argv):
    """Known answers are read from all splits, negatives by degree from train."""
    train(tiny_config(Graph.open(folder), "evaluation.every=0", "training.epochs=1"), tmp_path / "run")
    graph = Graph.open(folder)
    names = {"RUN": str(tmp_path / "run"), "HEAD": graph.node_names([0])[0], "RELATION": graph.relation_names([0])[0]}
    spoil(folder, split, 0, 0, 2**31 - 1)
    reseal(tmp_path / "run" / "run.json", data=Graph.open(folder).fingerprint)  # a run that goes with the graph
    code, _, err = command(*(names.get(word, word) for word in argv))
    assert code == 2 and says(err, f"{split}.npy: edge 0 is [2147483647,")


def test_a_file_is_read_through_once(folder, monkeypatch):
    calls = []
    monkeypatch.setattr("marius_oac.data.graphs.edge_ids.first_bad_edge", lambda *given: calls.append(given) or -1)
    for _ in range(3):
        Graph.open(folder).edges("train")
    assert len(calls) == 1
    spoil(folder, "train", 0, 0, 3)
    Graph.open(folder).edges("train")
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("columns", [2, 3])
def test_the_first_bad_edge_is_found(dtype, columns):
    edges = np.random.default_rng(0).integers(0, 4, (1000, columns)).astype(dtype)
    assert first_bad_edge(edges, 4, 4) == -1 and first_bad_edge(edges[:0], 4, 4) == -1
    for row, column, number in [(999, 0, 4), (500, columns - 1, -1), (0, columns - 1, np.iinfo(dtype).max)]:
        edges[row, column] = number
        assert first_bad_edge(edges, 4, 4) == row
        assert first_bad_edge(edges[:row], 4, 4) == -1
    assert first_bad_edge(edges[1:400], 4, 3) == (int(np.argmax(edges[1:400, 1] >= 3)) if columns == 3 else -1)


@pytest.mark.parametrize(
    ("array", "place", "number"),
    [("offsets", 0, 1), ("offsets", 7, 10**9), ("offsets", -1, 10), ("entries", (3, 0), NODES), ("entries", (3, 0), -1),
     ("entries", (0, 1), 2 * RELATIONS), ("entries", (9, 2), 10**6)],
)  # fmt: skip
def test_neighbours_with_valid_checksums_are_gathered_anew(folder, tmp_path, command, array, place, number):
    config = write_config(tmp_path / "c.yaml", tiny_config(Graph.open(folder), "encoder.layers=[{kind: sage}]",
                                                           "training.epochs=1"))  # fmt: skip
    assert command("train", config, "--out", tmp_path / "a")[0] == 0
    (neighbors,) = folder.glob("neighbors-*")
    path = neighbors / f"{array}.npy"
    numbers = np.load(path)
    before = numbers.copy()
    numbers[place] = number
    np.save(path, numbers)
    reseal_derived(neighbors)
    code, _, err = command("train", config, "--out", tmp_path / "b")
    assert code == 0 and any("out of range; the neighbours are gathered again" in line for line in err)
    assert np.array_equal(np.load(path), before)


def test_sorted_edges_with_valid_checksums_are_sorted_anew(folder, tmp_path, command):
    ordering = "training.ordering={kind: beta, partitions: 8, buffer: 3}"
    config = write_config(tmp_path / "c.yaml", tiny_config(Graph.open(folder), ordering, "training.epochs=1"))
    assert command("train", config, "--out", tmp_path / "a")[0] == 0
    path = tmp_path / "a" / "buckets" / "edges.npy"
    good = np.load(path)
    for change in ("swapped", "node", "relation"):
        edges = good.copy()
        if change == "swapped":
            edges[[0, -1]] = edges[[-1, 0]]
        else:
            edges[5, 0 if change == "node" else 1] = 10**6
        np.save(path, edges)
        reseal_derived(path.parent)
        code, _, err = command("resume", tmp_path / "a", "--set", "training.epochs=2")
        assert code == 0 and any("the edges are sorted again" in line for line in err), change
        assert np.array_equal(np.load(path), good)
        shutil.rmtree(tmp_path / "a")
        assert command("train", config, "--out", tmp_path / "a")[0] == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_nodes": -5}, "num_nodes must be greater than or equal to 0, not -5"),
        ({"num_nodes": 2**62}, "num_nodes must be less than or equal to"),
        ({"num_nodes": True}, "num_nodes must be a valid integer, not true"),
        ({"num_nodes": 0}, "nodes.parquet: holds 199 names, 0 are expected"),
        ({"edges": [1, 2, 3]}, "edges must be an object, not [1, 2, 3]"),
        ({"files": {}}, "files.train.npy is missing"),
    ],
)
def test_manifests_of_other_types(folder, tmp_path, command, change, said):
    reseal_graph(folder)
    path = folder / "graph.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    config = write_config(tmp_path / "c.yaml", Config.build({"data": {"path": str(folder)}}))
    code, _, err = command("train", config, "--out", tmp_path / "run")
    assert code == 2 and says(err, said)


def test_names_of_files_are_no_paths(folder, tmp_path, command):
    path = folder / "graph.json"
    content = json.loads(path.read_text())
    content["files"]["../../evil"] = content["files"]["train.npy"]
    path.write_text(json.dumps(content))
    config = write_config(tmp_path / "c.yaml", Config.build({"data": {"path": str(folder)}}))
    code, _, err = command("train", config, "--out", tmp_path / "run")
    assert code == 2 and says(err, "graph.json: is damaged: files", "'../../evil' must be the plain name of a file")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pa.table({"other": ["a"] * 199}), "one column 'name' of texts"),
        (pa.table({"name": list(range(199))}), "one column 'name' of texts"),
        (pa.table({"name": [["a"]] * 199}), "one column 'name' of texts"),
        (pa.table({"name": pa.array([None] * 199, pa.string())}), "a name is missing"),
    ],
)
def test_names_of_other_types(folder, finished, tmp_path, command, table, said):
    pq.write_table(table, folder / "nodes.parquet")
    reseal_graph(folder)
    run = shutil.copytree(finished, tmp_path / "run")
    config = Config.load(run / "config.yaml").replace(f"data.path={folder}")
    write_config(run / "config.yaml", config)
    reseal(run / "run.json", data=fingerprint(json.loads((folder / "graph.json").read_text())["files"]))
    for argv in (("predict", run, "--head", "x", "--relation", "y"), ("export", run)):
        code, _, err = command(*argv)
        assert code == 2 and says(err, said)
