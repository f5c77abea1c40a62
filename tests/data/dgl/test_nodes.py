"""Labels and features of dgl's nodes become files in the graph's folder, and come back; the command line too."""

import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from marius_oac.cli.commands import main
from marius_oac.data.graphs.features import open_features
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.labels import COLUMNS, read_labels
from marius_oac.errors import InputError, how_to_install
from marius_oac.prepare.dgl.csv_folders import prepare_dgl_csv
from marius_oac.prepare.dgl.graphs import prepare_dgl, write_dgl
from marius_oac.prepare.dgl.nodes import FEATURES_FILE, LABELS_FILE
from tests.data.dgl.test_layers import dgl  # noqa: F401 - a fixture

MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
NODES = 40


@pytest.fixture
def labelled(dgl):  # noqa: F811
    """A graph whose last five nodes have no edges, and whose every fifth node has no label."""
    rng = np.random.default_rng(0)
    graph = dgl.graph(tuple(torch.from_numpy(rng.integers(NODES - 5, size=200)) for _ in range(2)), num_nodes=NODES)
    graph.ndata["label"] = torch.arange(NODES) % 3 + 4
    for number, mask in enumerate(MASKS.values()):
        graph.ndata[mask] = torch.arange(NODES) % 5 == number + (torch.arange(NODES) % 5 == 3) * (number == 0) * 3
    graph.ndata["feat"] = torch.arange(NODES * 6, dtype=torch.float32).view(NODES, 2, 3) / 7
    return graph


def check_files(given, folder):
    """The folder's files say of the graph's nodes what the DGLGraph says."""
    graph = Graph.open(folder)
    ids = np.array([int(name) for name in graph.node_names(range(graph.num_nodes))])
    assert len(ids) < NODES
    labels = read_labels(folder / "labels.tsv", graph)
    assert labels.names == ("4", "5", "6")
    for split, mask in MASKS.items():
        nodes = np.flatnonzero(given.ndata[mask].numpy()[ids])
        assert labels.nodes[split].tolist() == nodes.tolist()
        assert np.array_equal(labels.classes[split] + 4, given.ndata["label"].numpy()[ids[nodes]])
    features = open_features(folder / "features.parquet", graph, folder / "features")
    assert np.array_equal(features, given.ndata["feat"].reshape(NODES, -1).numpy()[ids])
    return graph, ids


def test_nodes_of_a_graph_become_files_and_come_back(labelled, tmp_path, dgl):  # noqa: F811
    prepared = prepare_dgl(labelled, tmp_path / "graph")
    assert prepared.path == tmp_path / "graph" and prepared.edges == {"train": 200, "valid": 0, "test": 0}
    graph, ids = check_files(labelled, tmp_path / "graph")
    files = tmp_path / "graph" / "labels.tsv", tmp_path / "graph" / "features.parquet"
    write_dgl(graph, tmp_path / "back.bin", *files)
    back = dgl.load_graphs(str(tmp_path / "back.bin"))[0][0]
    known = sum(labelled.ndata[mask] for mask in MASKS.values()).bool()[ids]
    assert torch.equal(back.ndata["label"], torch.where(known, labelled.ndata["label"][ids], -1))
    assert torch.equal(back.ndata["feat"], labelled.ndata["feat"].view(NODES, -1)[ids])
    for mask in MASKS.values():
        assert torch.equal(back.ndata[mask], labelled.ndata[mask][ids])
    prepare_dgl(tmp_path / "back.bin", tmp_path / "again")
    assert Graph.open(tmp_path / "again").num_edges == graph.num_edges
    with pytest.raises(InputError, match="back.bin: exists already"):
        write_dgl(graph, tmp_path / "back.bin")
    with pytest.raises(InputError, match="none.bin: can't be written"):
        write_dgl(graph, tmp_path / "back.bin" / "none.bin")


def test_fractions_that_are_asked_for_are_drawn(labelled, tmp_path):
    assert prepare_dgl(labelled, tmp_path / "graph", valid_fraction=0.1).edges == {"train": 180, "valid": 20, "test": 0}


def test_several_types_of_nodes(dgl, tmp_path, capsys):  # noqa: F811
    def ids(*numbers):
        return torch.tensor(numbers)

    graph = dgl.heterograph(
        {("user", "likes", "film"): (ids(0, 1, 1), ids(0, 0, 1)), ("user", "knows", "user"): (ids(0, 1), ids(1, 2))}
    )
    graph.nodes["film"].data["label"] = ids(1, 0)
    graph.nodes["film"].data["train_mask"] = ids(1, 1).bool()
    graph.nodes["user"].data["feat"] = torch.ones(3, 2)
    prepare_dgl(graph, tmp_path / "graph")
    text = (tmp_path / "graph" / "labels.tsv").read_text()
    assert text == "name\tlabel\tsplit\nfilm/0\t1\ttrain\nfilm/1\t0\ttrain\n"
    assert not (tmp_path / "graph" / "features.parquet").exists()
    assert "features are left out: not all types of nodes have as many" in capsys.readouterr().err
    graph.nodes["film"].data["feat"] = torch.zeros(2, 2)
    prepare_dgl(graph, tmp_path / "other")
    table = pq.read_table(tmp_path / "other" / "features.parquet")
    rows = zip(table.column("name").to_pylist(), table.column("features").to_pylist(), strict=True)
    assert all(row == ([1, 1] if name.startswith("user") else [0, 0]) for name, row in rows)


@pytest.mark.parametrize("change, said", [
    (lambda data: data.update(label=torch.ones(NODES, 2)), "labels are left out: one whole number, or one name"),
    (lambda data: [data.pop(mask) for mask in MASKS.values()], "labels are left out: no node has a mask"),
])  # fmt: skip
def test_labels_that_are_none_are_left_out_aloud(labelled, tmp_path, capsys, change, said):
    change(labelled.ndata)
    prepare_dgl(labelled, tmp_path / "graph")
    assert said in capsys.readouterr().err
    assert not (tmp_path / "graph" / "labels.tsv").exists() and (tmp_path / "graph" / "features.parquet").exists()


def test_a_node_in_two_splits(labelled, tmp_path):
    labelled.ndata["val_mask"] = labelled.ndata["train_mask"]
    with pytest.raises(InputError, match="^dgl: node '0' is in two splits"):
        prepare_dgl(labelled, tmp_path / "graph")
    assert not list(tmp_path.iterdir())


META = "dataset_name: one\nedge_data:\n- file_name: edges.csv\nnode_data:\n- file_name: nodes.csv\n"


def write(folder, nodes, edges="src_id,dst_id\na,b\nb,c\n", meta=META):
    folder.mkdir()
    for name, text in (("meta.yaml", meta), ("nodes.csv", nodes), ("edges.csv", edges)):
        (folder / name).write_text(text)
    return folder


def test_csv_that_others_wrote(tmp_path, command):
    nodes = 'node_id,label,train_mask,test_mask,feat\nd,x,1,0,"9,9"\na,x,1,0,"1, 2.5"\nb,y,0,1,"3,4"\nc,z,0,0,"5,6"\n'
    folder = write(tmp_path / "csv", nodes)
    code, out, _ = command("prepare", folder, "--out", tmp_path / "graph")
    assert code == 0 and "3 nodes, 0 relations, 2 / 0 / 0 edges" in out[0]
    assert (tmp_path / "graph" / "labels.tsv").read_text() == "name\tlabel\tsplit\na\tx\ttrain\nb\ty\ttest\n"
    table = pq.read_table(tmp_path / "graph" / "features.parquet").to_pylist()
    assert {row["name"]: row["features"] for row in table} == {"a": [1, 2.5], "b": [3, 4], "c": [5, 6]}


@pytest.mark.parametrize("nodes, message", [
    ('node_id,feat\na,"1,2"\nb,"1"\nc,"1,2"\n', r"nodes.csv: 'feat' has 1 to 2 numbers"),
    ('node_id,feat\na,"1,x"\nb,"1,2"\nc,"1,2"\n', r"nodes.csv: 'feat' must be numbers with commas between them"),
    ("node_id,feat\na,1\nb,2\n", r"nodes.csv: edges have a node that is none: 'c'"),
    ("id,feat\na,1\n", r"nodes.csv: has no column 'node_id': id, feat"),
    ("node_id,label,train_mask\na,u,1\nb,u,\n", r"nodes.csv: row 2 has no value in column 'train_mask'$"),
    ("node_id,label,train_mask\na,u,yes\nb,u,no\n", r"nodes.csv: can't be read: .* bool: invalid value 'yes'"),
    ("node_id,label,train_mask\na,u,1\nb,u,2\n", r"nodes.csv: can't be read: .* bool: invalid value '2'"),
    ("node_id,feat\na,1\nb,2\n\nc,3\nb,4\na,5\n", r"nodes.csv: row 4: node 'b' stands in row 2 already$"),
    ("node_id,feat\n7,1\n3,2\n7,3\n", r"nodes.csv: row 3: node '7' stands in row 1 already$"),
    ("node_id,feat\na,1\n,2\n", r"nodes.csv: row 2 has an empty 'node_id'$"),
    ("node_id,label,train_mask\na,u\tv,1\n", r"nodes.csv: a name or label can't stand in labels.tsv"),
])  # fmt: skip
def test_what_is_wrong_with_nodes_is_named(tmp_path, nodes, message):
    folder = write(tmp_path / "csv", nodes)
    with pytest.raises(InputError, match=message):
        prepare_dgl_csv(folder, tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["csv"]


def test_the_command_line_takes_dgls_files(labelled, tmp_path, command, dgl):  # noqa: F811
    dgl.save_graphs(str(tmp_path / "graph.bin"), [labelled])
    code, out, _ = command("prepare", tmp_path / "graph.bin", "--out", tmp_path / "graph")
    assert code == 0 and "200 / 0 / 0 edges" in out[0]
    check_files(labelled, tmp_path / "graph")
    labelled.edata["relation"] = torch.arange(200) % 3
    dgl.save_graphs(str(tmp_path / "graph.bin"), [labelled])
    assert ", 3 relations" in command("prepare", tmp_path / "graph.bin", "--out", tmp_path / "three")[1][0]
    plain = command("prepare", tmp_path / "graph.bin", "--out", tmp_path / "none", "--no-relations")
    assert ", 0 relations" in plain[1][0]
    for words, said in (
        (["graph.bin", "--out", "graph"], "exists already"),
        (["graph.bin", "--out", "new", "--columns", "a,b"], "dgl says itself what its columns are"),
        (["none.bin", "--out", "new"], "none.bin: can't be read"),
    ):
        paths = [tmp_path / word if "." in word or word in ("graph", "new") else word for word in words]
        code, _, err = command("prepare", *paths)
        assert code == 2 and len(err) == 1 and said in err[0]


def test_the_help_says_what_the_files_are(capsys):
    assert main(["prepare", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"{LABELS_FILE} ({', '.join(COLUMNS)}) and {FEATURES_FILE} (name, features)" in words


def test_the_command_line_without_dgl(tmp_path, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "dgl", None)
    (tmp_path / "graph.bin").write_bytes(b"")
    code, _, err = command("prepare", tmp_path / "graph.bin", "--out", tmp_path / "graph")
    assert code == 2 and len(err) == 1 and how_to_install("dgl") in err[0]
    assert not (tmp_path / "graph").exists()
