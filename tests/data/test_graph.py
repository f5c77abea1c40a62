"""Graph folders: names and ids, mapped edges, damage, versions, and the embedded data set from several processes."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.data import layout
from marius_oac.data.graphs.graph import Graph, open_graph
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare
from tests.hostile import reseal_graph

CODEX_S = {"train": 32_888, "valid": 1_827, "test": 1_828}


@pytest.fixture(scope="module")
def codex():
    return open_graph("codex-s")


def test_embedded_data_set(codex):
    assert (codex.num_nodes, codex.num_relations, codex.num_edges) == (2_034, 42, CODEX_S)
    assert codex.dtype == np.int32
    for split, rows in CODEX_S.items():
        edges = codex.edges(split)
        assert isinstance(edges, np.memmap) and not edges.flags.writeable and edges.shape == (rows, 3)
    assert open_graph("CoDEx-S") == codex == Graph.open(codex.path)
    (head, relation, tail) = codex.edges("train")[0]
    assert codex.node_names([head, tail]) + codex.relation_names([relation]) == ["Q7604", "Q188", "P1412"]


def test_names_and_ids_are_inverse(codex):
    ids = np.random.default_rng(0).permutation(codex.num_nodes)
    names = codex.node_names(ids)
    assert names == [sorted(codex.node_names(range(codex.num_nodes)))[i] for i in ids]
    assert np.array_equal(codex.node_ids(names), ids) and codex.node_ids(names).dtype == np.int64
    assert codex.relation_ids([*codex.relation_names([41, 3]), codex.relation_names([41])[0]]).tolist() == [41, 3, 41]
    assert codex.node_names([]) == [] and codex.node_ids([]).tolist() == []


def test_unknown_names_and_ids(codex):
    with pytest.raises(InputError, match=r"^unknown node 'Q2068323'; near: Q206832, "):
        codex.node_ids(["Q7604", "Q2068323"])
    with pytest.raises(InputError, match=r"^unknown relation '%%'$"):
        codex.relation_ids(["%%"])
    with pytest.raises(InputError, match=r"^nodes: there is no id 2034: ids are 0 to 2033$"):
        codex.node_names([0, 2034])
    with pytest.raises(InputError, match=r"^relations: there is no id -1: ids are 0 to 41$"):
        codex.relation_names([-1])


def test_no_list_of_near_names_in_a_large_graph(codex, monkeypatch):
    monkeypatch.setattr("marius_oac.data.graphs.names.NEAR_NAMES_LIMIT", 100)
    with pytest.raises(InputError, match=r"^unknown node 'Q2068323'$"):
        codex.node_ids(["Q2068323"])


def test_names_in_many_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "NAME_ROWS", 7)
    prepare(PrepareRequest(source="codex-s", out=tmp_path / "g"))
    assert pq.read_metadata(tmp_path / "g" / "nodes.parquet").num_row_groups == -(-2034 // 7)
    graph = Graph.open(tmp_path / "g")
    ids = np.random.default_rng(0).integers(0, graph.num_nodes, 300)
    assert np.array_equal(graph.node_ids(graph.node_names(ids)), ids)


def test_without_relations_and_empty_splits(tmp_path):
    (tmp_path / "g.tsv").write_text("a\tb\n")
    prepare(PrepareRequest(source=str(tmp_path / "g.tsv"), out=tmp_path / "g"))
    graph = Graph.open(tmp_path / "g")
    assert graph.num_relations == 0 and graph.edges("train").tolist() == [[0, 1]]
    assert graph.edges("valid").shape == graph.edges("test").shape == (0, 2)
    with pytest.raises(InputError, match="this graph has no relations"):
        graph.relation_ids(["r"])


@pytest.fixture
def folder(codex, tmp_path):
    return shutil.copytree(codex.path, tmp_path / "g")


FILES = ["train.npy", "valid.npy", "test.npy", "nodes.parquet", "relations.parquet"]


@pytest.mark.parametrize("name", FILES)
def test_damage_is_named(folder, name):
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: is damaged: its checksum differs"):
        Graph.open(folder)
    path.write_bytes(content[:-1])
    with pytest.raises(InputError, match=f"{name}: is damaged: .* bytes, .* are expected"):
        Graph.open(folder, verify=False)
    path.unlink()
    with pytest.raises(InputError, match=f"{name}: is missing"):
        Graph.open(folder)


def change_manifest(folder, **changes):
    path = folder / "graph.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "graph.json: belongs to something else than a prepared graph"),
        ({"version": 2}, "graph.json: format version 2, but this program reads version 1"),
        ({"edges": {"train": 1}}, "graph.json: is damaged: edges.valid is missing"),
        ({"num_nodes": "many"}, "graph.json: is damaged: num_nodes must be a valid integer, not 'many'"),
        ({"files": {}}, "graph.json: is damaged: files.train.npy is missing"),
        ({"num_nodes": 2035}, "nodes.parquet: holds 2,034 names, 2,035 are expected"),
        ({"num_relations": 0}, r"train.npy: holds int32 \[32888, 3\]; int32 or int64 \[32888, 2\] is expected"),
        ({"edges": CODEX_S | {"test": 5}}, r"test.npy: holds int32 \[1828, 3\]; int32 or int64 \[5, 3\] is expected"),
    ],
)
def test_manifests_that_lie(folder, changes, message):
    change_manifest(folder, **changes)
    with pytest.raises(InputError, match=message):
        Graph.open(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '"x"', "\0"])
def test_manifests_that_are_none(folder, content):
    (folder / "graph.json").write_text(content)
    with pytest.raises(InputError, match="graph.json: "):
        Graph.open(folder)


def test_pickled_arrays_are_never_opened(folder):
    np.save(folder / "train.npy", np.array([[print, 1]], object), allow_pickle=True)
    reseal_graph(folder)
    with pytest.raises(InputError, match="train.npy: holds Python objects, which are never opened"):
        Graph.open(folder, verify=False)


def test_what_is_no_graph(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tr\tb\n")
    for name, message in (
        (tmp_path, "is not a graph folder: it has no graph.json"),
        (tmp_path / "a.tsv", r"is a file; prepare it first: marius-oac prepare .*a.tsv --out FOLDER"),
        (tmp_path / "none", "no such graph folder"),
        ("fb15k237", "fb15k-237: prepare it first: marius-oac prepare fb15k-237 --out FOLDER"),
        ("codex_s", "codex_s: no such file, and no known data set of that name; did you mean codex-s"),
    ):
        with pytest.raises(InputError, match=message):
            open_graph(name)
    with pytest.raises(InputError, match="no such graph folder"):
        Graph.open(tmp_path / "none")


def test_fingerprints_tell_graphs_apart(tmp_path):
    same = prepare(PrepareRequest(source="codex-s", out=tmp_path / "same"))
    other = prepare(PrepareRequest(source="codex-s", out=tmp_path / "other", duplicates="drop", unseen="keep"))
    fewer = prepare(PrepareRequest(train=tmp_path / "t.tsv", out=tmp_path / "fewer")) if _few(tmp_path) else None
    assert same.fingerprint == other.fingerprint != fewer.fingerprint


def _few(folder):
    return (folder / "t.tsv").write_text("a\tr\tb\n")


def test_the_embedded_graph_is_what_its_files_become(tmp_path, codex):
    """Parquet's bytes depend on its library, and so does the fingerprint: that of the embedded one does not."""
    prepare(PrepareRequest(source="codex-s", out=tmp_path / "g"))
    made = Graph.open(tmp_path / "g")
    for split in CODEX_S:
        assert np.array_equal(made.edges(split), codex.edges(split))
    assert made.node_names(range(2_034)) == codex.node_names(range(2_034))
    assert made.relation_names(range(42)) == codex.relation_names(range(42))
    manifests = [json.loads((graph.path / "graph.json").read_text()) for graph in (made, codex)]
    for each in manifests:
        del each["files"], each["sources"]
    assert manifests[0] == manifests[1]


def test_names_do_not_show_how_they_came(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "NAME_ROWS", 10)
    names = [f"n{i}" for i in range(57)]
    layout.write_names(tmp_path / "a.parquet", [pa.array(names)])
    layout.write_names(tmp_path / "b.parquet", [pa.array(names[:3]), pa.array([], pa.string()), pa.array(names[3:])])
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert pq.read_table(tmp_path / "a.parquet").column("name").to_pylist() == names
