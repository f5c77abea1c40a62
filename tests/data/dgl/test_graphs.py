"""Graphs to dgl and back, and dgl's CSV format, which needs no dgl."""

import re

import numpy as np
import pytest
import torch

from marius_oac.data.graphs.graph import Graph
from marius_oac.dgl import prepare_dgl, to_dgl_graph
from marius_oac.errors import InputError
from marius_oac.prepare.dgl.csv_folders import prepare_dgl_csv
from tests.data.dgl.test_layers import dgl  # noqa: F401 - a fixture

SPLITS = ("train", "valid", "test")


def triples(graph):
    """Edges of each split, by names."""
    found = {}
    for split in SPLITS:
        edges = np.asarray(graph.edges(split))
        columns = [graph.node_names(edges[:, 0]), graph.node_names(edges[:, -1])]
        if edges.shape[1] == 3:
            columns.insert(1, graph.relation_names(edges[:, 1]))
        found[split] = list(zip(*columns, strict=True))
    return found


def by_ids(graph):
    return {split: [tuple(map(str, edge)) for edge in graph.edges(split).tolist()] for split in SPLITS}


@pytest.fixture(scope="module", params=[True, False], ids=["relations", "plain"])
def prepared(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    rng = np.random.default_rng(0)
    lines = ["\t".join((f"n{h}", f"r{r}", f"n{t}")) for h, r, t in rng.integers((30, 4, 30), size=(300, 3))]
    (folder / "edges.tsv").write_text("\n".join(lines) + "\n")
    from marius_oac.data.reading.edge_file import ReadOptions
    from marius_oac.prepare.prepare import PrepareRequest, prepare

    out = folder / "graph"
    prepare(PrepareRequest(source=str(folder / "edges.tsv"), out=out, read=ReadOptions(relations=request.param)))
    return Graph.open(out)


def test_a_graph_goes_to_dgl_and_comes_back(dgl, prepared, tmp_path):  # noqa: F811
    there = to_dgl_graph(prepared)
    assert there.num_nodes() == prepared.num_nodes and there.num_edges() == sum(prepared.num_edges.values())
    prepare_dgl(there, tmp_path / "back")
    assert triples(Graph.open(tmp_path / "back")) == by_ids(prepared)
    dgl.save_graphs(str(tmp_path / "file.bin"), [there])
    prepare_dgl(tmp_path / "file.bin", tmp_path / "again")
    assert Graph.open(tmp_path / "again").fingerprint == Graph.open(tmp_path / "back").fingerprint
    (tmp_path / "broken.bin").write_bytes(b"nothing of dgl's")
    with pytest.raises(InputError, match=r"broken.bin: can't be read by dgl"):
        prepare_dgl(tmp_path / "broken.bin", tmp_path / "none")


def test_types_become_relations_and_names(dgl, tmp_path):  # noqa: F811
    def ids(*numbers):
        return torch.tensor(numbers)

    graph = dgl.heterograph(
        {
            ("user", "likes", "film"): (ids(0, 1, 1), ids(0, 0, 1)),
            ("user", "knows", "user"): (ids(0,), ids(1,)),
            ("film", "likes", "film"): (ids(1,), ids(0,)),
        }
    )  # fmt: skip
    prepare_dgl(graph, tmp_path / "graph", valid_fraction=0.0, test_fraction=0.0)
    assert sorted(triples(Graph.open(tmp_path / "graph"))["train"]) == [
        ("film/1", "film/likes/film", "film/0"),
        ("user/0", "knows", "user/1"),
        ("user/0", "user/likes/film", "film/0"),
        ("user/1", "user/likes/film", "film/0"),
        ("user/1", "user/likes/film", "film/1"),
    ]


def write(folder, meta, **files):
    folder.mkdir(exist_ok=True)
    (folder / "meta.yaml").write_text(meta)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


SEVERAL = """
dataset_name: several
separator: ";"
edge_data:
- {file_name: likes.csv, etype: [user, likes, film], src_id_field: who}
- {file_name: knows.csv, etype: [user, knows, user]}
node_data: []
"""


def test_csv_of_several_types(tmp_path):
    likes, knows = "who;dst_id;weight\na;7;0.5\nb;7;1.5\n", "src_id;dst_id\na;b\n"
    folder = write(tmp_path / "csv", SEVERAL, likes=likes, knows=knows)
    prepare_dgl_csv(folder, tmp_path / "graph", valid_fraction=0.0, test_fraction=0.0)
    assert sorted(triples(Graph.open(tmp_path / "graph"))["train"]) == [
        ("user/a", "knows", "user/b"),
        ("user/a", "likes", "film/7"),
        ("user/b", "likes", "film/7"),
    ]


def test_csv_of_one_type_with_relations_and_splits(tmp_path):
    edges = "src_id,dst_id,relation,train_mask,val_mask,test_mask\n0,1,4,1,0,0\n1,2,5,False,True,False\n2,1,4,0,0,1\n"
    folder = write(tmp_path / "csv", ONE, edges=edges + "2,0,5,1,0,0\n7,8,4,0,0,0\n")
    prepare_dgl_csv(folder, tmp_path / "graph")
    found = triples(Graph.open(tmp_path / "graph"))
    assert found["train"] == [("0", "4", "1"), ("2", "5", "0")]
    assert found["valid"] == [("1", "5", "2")] and found["test"] == [("2", "4", "1")]


ONE = "dataset_name: one\nedge_data:\n- file_name: edges.csv\nnode_data: []\n"


MARKS = "a mask is true or false, or 1 or 0"
NO_MASK = r"can't be read: In CSV column #2: .*CSV conversion error to bool: invalid value"


@pytest.mark.parametrize("meta, edges, message", [
    (ONE, "src_id,to\n1,2\n", r"edges.csv: has no column 'dst_id': src_id, to"),
    (ONE, "src_id,dst_id\n1,2,3\n", r"edges.csv: can't be read: .*Row #2: Expected 2"),
    (ONE, "", r"edges.csv: the file is empty"),
    (ONE, "src_id,dst_id,graph_id\n1,2,0\n1,2,1\n", r"edges.csv: holds several graphs"),
    (ONE.replace("edges.csv", "other.csv"), "", r"other.csv: no such file"),
    ("version: 2.0.0\n" + ONE, "", r"meta.yaml: version 2.0.0 of dgl's CSV format; 1.0.0 is known"),
    ("dataset_name: one\n", "", "meta.yaml: is damaged: edge_data is missing"),
    ("- 1\n", "", "meta.yaml: must be a mapping of keys"),
    (ONE, "src_id,dst_id\n1,2\n1,\n", r"edges.csv: row 2 has no value in column 'dst_id'$"),
    (ONE, "src_id,dst_id\n\na,b\n\n,b\n", r"edges.csv: row 2 has an empty 'src_id'$"),
    (ONE, "src_id,dst_id\n1,2\n-1,2\n", r"edges.csv: row 2: id -1 is negative$"),
    (ONE, "src_id,dst_id\n1,2\n1.5,2\n", r"edges.csv: ids must be integers, not float64 .*; row 2 holds 1.5$"),
    (ONE, "src_id,relation,dst_id\n1,x,2\n1,,2\n", r"edges.csv: row 2 has an empty 'relation'$"),
    (ONE, "src_id,dst_id,train_mask\n1,2,1\n2,3,\n", r"edges.csv: row 2 has no value in column 'train_mask'$"),
    (ONE, "src_id,dst_id,train_mask\n1,2,true\n2,3,\n", r"edges.csv: row 2 has no value in column 'train_mask'$"),
    (ONE, "src_id,dst_id,val_mask\n1,2,True\n2,3,no\n", rf"edges.csv: {NO_MASK} 'no'"),
    (ONE, "src_id,dst_id,test_mask\n1,2,1\n2,3,2\n", rf"edges.csv: {NO_MASK} '2'"),
    (ONE, "src_id,dst_id,test_mask\n1,2,1.0\n2,3,0.5\n", rf"edges.csv: {NO_MASK} '1.0'"),
])  # fmt: skip
def test_what_is_wrong_with_a_folder_is_named(tmp_path, meta, edges, message):
    folder = write(tmp_path / "csv", meta, edges=edges)
    with pytest.raises(InputError, match=message):
        prepare_dgl_csv(folder, tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize("edges, message", [
    ("src_id,dst_id\n", "the graph has no edges"),
    ("src_id,dst_id,train_mask\n", "the graph has no edges"),
    ("src_id,dst_id,train_mask,val_mask\n1,2,0,1\n2,3,0,0\n", "the edges have masks, and train_mask is true for none"),
    ("src_id,dst_id,train_mask\n1,2,0\n", "the edges have masks, and train_mask is true for none"),
])  # fmt: skip
def test_graphs_with_nothing_to_train_on(tmp_path, edges, message):
    folder = write(tmp_path / "csv", ONE, edges=edges)
    with pytest.raises(InputError) as caught:
        prepare_dgl_csv(folder, tmp_path / "graph")
    assert str(caught.value) == f"{folder}: {message}"


def test_masks_of_some_edges_alone(tmp_path):
    likes, knows = "who;dst_id;train_mask\na;7;1\n", "src_id;dst_id\na;b\n"
    folder = write(tmp_path / "csv", SEVERAL, likes=likes, knows=knows)
    with pytest.raises(InputError) as caught:
        prepare_dgl_csv(folder, tmp_path / "graph")
    assert str(caught.value) == f"{folder}: some edges have masks and others none"


def test_files_without_exactly_one_graph_or_without_edges(dgl, tmp_path):  # noqa: F811
    def said(*graphs):
        dgl.save_graphs(str(tmp_path / "g.bin"), list(graphs))
        with pytest.raises(InputError) as caught:
            prepare_dgl(tmp_path / "g.bin", tmp_path / "graph")
        assert [path.name for path in tmp_path.iterdir()] == ["g.bin"]
        return str(caught.value).removeprefix(f"{tmp_path}/")

    some = dgl.graph((torch.tensor([0, 1]), torch.tensor([1, 0])))
    assert said(some, some, some) == "g.bin: holds 3 graphs; one is needed"
    assert said(dgl.graph(([], []), num_nodes=3)) == "g.bin: the graph has no edges"
    for relation, held in ((torch.tensor([0, -1]), "-1"), (torch.tensor([0.5, 1]), "float32 [2]")):
        some.edata["relation"] = relation
        assert said(some) == f"g.bin: 'relation' of the edges holds {held}; whole numbers from 0 are needed"


@pytest.mark.parametrize("mask", [[1, 0, 2], [1.0, 0.0, 1.0], [[True], [True], [True]]])
def test_masks_that_are_none(dgl, tmp_path, mask):  # noqa: F811
    graph = dgl.graph((torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])))
    graph.edata["val_mask"] = torch.tensor(mask)
    said = "2 (of number 2)" if 2 in mask else f"{str(graph.edata['val_mask'].dtype)[6:]} {list(np.shape(mask))}"
    with pytest.raises(InputError, match=f"^dgl: edges _E: 'val_mask' holds {re.escape(said)}; {MARKS}$"):
        prepare_dgl(graph, tmp_path / "graph")
    graph.edata.pop("val_mask")
    graph.ndata["train_mask"] = torch.tensor(mask)
    with pytest.raises(InputError, match=f"^dgl: 'train_mask' holds {re.escape(said)}; {MARKS}$"):
        prepare_dgl(graph, tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_masks_of_small_integers_and_words(dgl, tmp_path):  # noqa: F811
    graph = dgl.graph((torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])))
    graph.edata["train_mask"] = torch.tensor([1, 0, 1], dtype=torch.uint8)
    prepare_dgl(graph, tmp_path / "graph")
    assert triples(Graph.open(tmp_path / "graph"))["train"] == [("0", "1"), ("2", "0")]
    edges = "src_id,dst_id,train_mask\n0,1,True\n1,2,False\n2,0,True\n"
    prepare_dgl_csv(write(tmp_path / "csv", ONE, edges=edges), tmp_path / "other")
    assert triples(Graph.open(tmp_path / "other"))["train"] == [("0", "1"), ("2", "0")]


def test_a_folder_without_a_description_is_named(tmp_path):
    with pytest.raises(InputError, match="meta.yaml: no such file"):
        prepare_dgl_csv(tmp_path, tmp_path / "graph")
