"""Sets of the Open Graph Benchmark: `prepare` on folders of their layout, and what it says of wrong ones."""

import gzip
import json
import os
import shutil

import numpy as np
import pytest
import torch

from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.registry import DATASETS, find_dataset
from marius_oac.errors import InputError
from marius_oac.prepare import ogb
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runtime.files.npy import GrowingNpyWriter
from marius_oac.types import Side
from tests.hostile import reseal_graph
from tests.ogb_folders import NODES, RELATIONS, SAVED, SETS, TYPES, K, splits_of, write_ogb_folder

BEGINS = {"disease": 0, "drug": 15, "protein": 35}  # in the order of their names
ENDS = {"triples": ("head", "tail"), "typed": ("head", "tail"), "sources": ("source_node", "target_node")}


def prepared(folder, name, out, **options):
    return prepare(PrepareRequest(source=name, from_dir=folder, out=out, **options))


def own_ids(content, name):
    """Ids of the whole graph, from those within a type."""
    end = name.removesuffix("_neg")
    begins = np.array([BEGINS[each] for each in content.get(f"{end}_type", ())] or [0] * len(content[name]))
    return np.asarray(content[name]) + begins.reshape([-1] + [1] * (np.ndim(content[name]) - 1))


def expected_edges(kind, content):
    if kind == "pairs":
        return np.asarray(content["edge"])
    columns = [own_ids(content, end) for end in ENDS[kind]]
    return np.stack(columns if kind == "sources" else [columns[0], content["relation"], columns[1]], 1)


def test_a_file_beside_the_graph_s_own_is_none_of_its_negatives(tmp_path):
    """No digest is known of it, so it would change results of a graph that is said to be the same."""
    prepared(write_ogb_folder(tmp_path / "raw", "ogbl-citation2"), "ogbl-citation2", tmp_path / "g")
    shutil.copy(tmp_path / "g" / "valid_tail_negatives.npy", tmp_path / "g" / "valid_head_negatives.npy")
    assert set(Graph.open(tmp_path / "g").negatives("valid").sides) == {Side.TAIL}


@pytest.mark.parametrize("name", ["ogbl-wikikg2", "ogbl-biokg"])
def test_ids_are_never_floats(tmp_path, name, monkeypatch):
    """NumPy makes floats of uint64 and int64 together."""
    content, kinds, real = splits_of(SETS[name][1]), set(), GrowingNpyWriter.append
    for each in content.values():
        each |= {key: each[key].astype(np.uint64) for key in ("head", "head_neg", "relation") if key in each}
    monkeypatch.setattr(GrowingNpyWriter, "append", lambda self, rows: kinds.add(rows.dtype.kind) or real(self, rows))
    prepared(write_ogb_folder(tmp_path / "raw", name, content), name, tmp_path / "g")
    edges = Graph.open(tmp_path / "g").edges("test").tolist()
    assert kinds == {"i"} and edges == expected_edges(SETS[name][1], content["test"]).astype(np.int64).tolist()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("saved, chunk", [(SAVED[0], ogb.CHUNK_IDS), *((each, 50) for each in SAVED)], ids=str)
def test_the_graph_is_what_the_files_hold(tmp_path, name, saved, chunk, monkeypatch):
    monkeypatch.setattr(ogb, "CHUNK_IDS", chunk)
    kind = SETS[name][1]
    content = splits_of(kind)
    found = prepared(write_ogb_folder(tmp_path / "raw", name, content, **saved), name, tmp_path / "g")
    graph, related = Graph.open(tmp_path / "g"), kind in ("triples", "typed")
    assert (graph.num_nodes, graph.num_relations) == (NODES, RELATIONS * related)
    assert found.metric == graph.metric == find_dataset(name).ogb.metric
    for split, one in content.items():
        assert graph.edges(split).tolist() == expected_edges(kind, one).tolist()
        assert graph.edges(split).dtype == np.int32
    for split in ("valid", "test"):
        negatives, one = graph.negatives(split), content[split]
        if kind == "pairs":
            assert negatives.pairs.tolist() == one["edge_neg"].tolist() and not negatives.sides
            continue
        keys = {Side.TAIL: "target_node_neg"} if kind == "sources" else {Side.HEAD: "head_neg", Side.TAIL: "tail_neg"}
        assert set(negatives.sides) == set(keys) and negatives.pairs is None
        for side, key in keys.items():
            assert negatives.sides[side].tolist() == own_ids(one, key).tolist()
            assert negatives.sides[side].shape == (len(graph.edges(split)), K)
    names = (
        [f"{each}:{i}" for each in sorted(TYPES) for i in range(TYPES[each])]
        if kind == "typed"
        else map(str, range(60))
    )
    assert graph.node_names(range(NODES)) == list(names)
    assert sorted(os.listdir(tmp_path)) == ["g", "raw"] and "work" not in os.listdir(tmp_path / "g")


def test_tensors_are_read_as_arrays_are(tmp_path):
    content = splits_of("triples")
    tensors = {split: {key: torch.from_numpy(each) for key, each in one.items()} for split, one in content.items()}
    for name, one in (("a", content), ("t", tensors)):
        prepared(write_ogb_folder(tmp_path / f"raw-{name}", "ogbl-wikikg2", one), "wikikg2", tmp_path / name)
    assert Graph.open(tmp_path / "a").fingerprint == Graph.open(tmp_path / "t").fingerprint


def test_other_counts_than_ogbs_are_told(tmp_path, capsys):
    found = prepared(write_ogb_folder(tmp_path / "raw", "ogbl-ddi"), "ogbl-ddi", tmp_path / "g")
    assert "these are not the counts that OGB publishes: ogbl-ddi: 4,267 nodes" in capsys.readouterr().err
    assert str(found).endswith("with OGB's negatives for valid and test; evaluations compute hits@20")


def test_the_registry_has_ogbs_sums():
    """Nodes and edges of https://ogb.stanford.edu/docs/linkprop."""
    published = {
        "ogbl-ppa": (576_289, 30_326_273), "ogbl-collab": (235_868, 1_285_465), "ogbl-ddi": (4_267, 1_334_889),
        "ogbl-citation2": (2_927_963, 30_561_187), "ogbl-wikikg2": (2_500_604, 17_137_181),
        "ogbl-biokg": (93_773, 5_088_434),
    }  # fmt: skip
    assert {one.name: (one.nodes, sum(one.edges)) for one in DATASETS if one.ogb} == published


def changed(split, **changes):
    def change(content, folder):
        content[split] |= changes
        for key in [key for key, value in changes.items() if value is None]:
            del content[split][key]

    return change


def raw(text, name="num-node-list.csv.gz", compressed=True):
    def change(content, folder):
        (folder / "raw" / name).write_bytes(gzip.compress(text) if compressed else text)

    return change


def at(split, key, place, value):
    def change(content, folder):
        content[split][key][place] = value

    return change


WIKI, BIO, COLLAB, CITE, DDI = "ogbl-wikikg2", "ogbl-biokg", "ogbl-collab", "ogbl-citation2", "ogbl-ddi"
WRONG = [
    (WIKI, at("train", "head", 5, NODES), r"train.pt: 'head': row 5 \(from 0\) has the number 60, but"),
    (WIKI, at("valid", "tail", 7, -1), r"valid.pt: 'tail': row 7 \(from 0\) has the number -1, but"),
    (WIKI, at("test", "relation", 9, 3), r"test.pt: 'relation': row 9 \(from 0\) has the number 3, but there are 3"),
    (WIKI, at("train", "relation", 9, -1), r"train.pt: 'relation': row 9 .* number -1"),
    (WIKI, at("train", "relation", 9, 2**40), "train.pt: 'relation' has the number 1,099,511,627,776"),
    (WIKI, at("valid", "head_neg", (3, 2), 99), r"valid.pt: 'head_neg': row 3 \(from 0\) has the number 99, but"),
    (WIKI, changed("test", tail_neg=None), "test.pt: has no 'tail_neg'; it has head, head_neg, tail, relation"),
    (WIKI, changed("test", tail_neg=np.zeros((29, 7), int)), r"'tail_neg' is an array \[29, 7\]; "),
    (WIKI, changed("test", tail_neg=np.zeros((30, 0), int)), "test.pt: 'tail_neg' is empty"),
    (WIKI, changed("test", tail_neg=np.zeros((30, 7))), "'tail_neg': numbers of type 'f8'; "),
    (WIKI, changed("train", tail=np.zeros((300, 1), int)), r"'tail' is an array \[300, 1\]; "),
    (WIKI, changed("valid", head=np.zeros(0, int), tail=np.zeros(0, int)), "valid.pt: there are no edges"),
    (COLLAB, at("test", "edge", (2, 1), 60), r"test.pt: 'edge': row 2 \(from 0\) has the number 60, but"),
    (COLLAB, at("test", "edge_neg", (119, 0), 61), r"test.pt: 'edge_neg': row 119 \(from 0\) has the number 61"),
    (COLLAB, changed("valid", edge_neg=np.zeros((5, 3), int)), r"'edge_neg' is an array \[5, 3\]; "),
    (COLLAB, changed("valid", edge_neg=np.zeros((0, 2), int)), "'edge_neg' is empty"),
    (CITE, changed("train", source_node=None), "train.pt: has no 'source_node'"),
    (BIO, at("train", "head_type", 4, "gene"), "train.pt: head_type: there are no nodes of type 'gene'"),
    (BIO, changed("valid", tail_type=["drug"]), "valid.pt: 'tail_type' is no list of 40 texts"),
    (BIO, at("valid", "tail_neg", (0, 0), 25), r"'tail_neg': row 0 \(from 0\) has the number 25, but"),
    (BIO, raw(b"a,a\n1,2\n", "num-node-dict.csv.gz"), "num-node-dict.csv.gz: a line of types and a line with"),
    (BIO, raw(b"a,b\n1\n", "num-node-dict.csv.gz"), "num-node-dict.csv.gz: a line of types and a line with"),
    (DDI, raw(b"60\n60\n"), "num-node-list.csv.gz: the number of nodes is expected"),
    (DDI, raw(b"many\n"), "num-node-list.csv.gz: the number of nodes is expected"),
    (DDI, raw(b"0\n"), "num-node-list.csv.gz: the number of nodes is expected"),
    (DDI, raw(b""), "num-node-list.csv.gz: the number of nodes is expected"),
    (DDI, raw(b"9" * 5000), "num-node-list.csv.gz: the number of nodes is expected"),
    (DDI, raw(b"\xff\xfe\n"), "num-node-list.csv.gz: the number of nodes is expected"),
    (DDI, raw(b"601\n"), "num-node-list.csv.gz: 601 nodes, but the 300 edges of train have fewer ends"),
    (DDI, raw(b"60\n", compressed=False), "num-node-list.csv.gz: not a gzip file, or a damaged one"),
    (DDI, raw(gzip.compress(b"60\n")[:-4], compressed=False), "the compressed file is truncated"),
]  # fmt: skip


@pytest.mark.parametrize("name, change, said", WRONG, ids=[f"{n}-{number}" for number, (n, *_) in enumerate(WRONG)])
def test_wrong_files_are_refused_and_nothing_is_left(tmp_path, name, change, said):
    content = splits_of(SETS[name][1])
    folder = write_ogb_folder(tmp_path / "raw", name, content)
    change(content, folder)
    for split, one in content.items():
        torch.save(one, folder / "split" / SETS[name][0] / f"{split}.pt")
    with pytest.raises(InputError, match=said) as caught:
        prepared(folder, name, tmp_path / "g")
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == ["raw"]


def test_a_missing_file_and_options_for_other_data(tmp_path):
    folder = write_ogb_folder(tmp_path / "raw", "ogbl-ppa")
    for options in ({"unseen": "keep"}, {"duplicates": "drop"}, {"seed": 3}, {"valid_fraction": 0.1}):
        (option,) = options
        with pytest.raises(InputError, match=f"{option}: is for other data: OGB's sets have their splits"):
            prepared(folder, "ogbl-ppa", tmp_path / "g", **options)
    (folder / "split" / "throughput" / "valid.pt").unlink()
    with pytest.raises(InputError, match=r"valid\.pt: is missing; ogbl-ppa is expected here as OGB's pack"):
        prepared(folder, "ogbl-ppa", tmp_path / "g")
    with pytest.raises(InputError, match="none: no such folder"):
        prepared(tmp_path / "none", "ogbl-ppa", tmp_path / "g")


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ogb.GrowingNpyWriter, "append", full)
    with pytest.raises(InputError, match="the disk is full; nothing was kept"):
        prepared(write_ogb_folder(tmp_path / "raw", "ogbl-ppa"), "ogbl-ppa", tmp_path / "g")
    assert os.listdir(tmp_path) == ["raw"]


@pytest.fixture(scope="module")
def of_mrr(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mrr")
    prepared(write_ogb_folder(folder / "raw", "ogbl-wikikg2"), "ogbl-wikikg2", folder / "g")
    return folder / "g"


def metric(name):
    return lambda folder: reseal_graph(folder, negatives={"metric": name})


def file(name, array):
    def change(folder):
        np.save(folder / name, array)
        reseal_graph(folder)

    return change


def without(name):
    def change(folder):
        (folder / name).unlink()
        content = json.loads((folder / "graph.json").read_text())
        del content["files"][name]
        (folder / "graph.json").write_text(json.dumps(content))

    return change


TAILS = "valid_tail_negatives.npy"
HOSTILE = [
    (metric("rocauc"), "graph.json: is damaged: negatives.metric must be one of mrr, hits@10"),
    (metric(7), "graph.json: is damaged: negatives.metric must be a valid string"),
    (metric("hits@50"), "graph.json: is damaged: files.valid_negatives.npy is missing"),
    (without(TAILS), f"graph.json: is damaged: files.{TAILS} is missing"),
    (file(TAILS, np.zeros((39, K), np.int32)), rf"{TAILS}: holds int32 \[39, 7\]; int32 or int64 \[40, any\]"),
    (file(TAILS, np.zeros((40, K))), rf"{TAILS}: holds float64"),
    (file(TAILS, np.zeros(40, np.int32)), rf"{TAILS}: holds int32 \[40\]"),
    (lambda folder: (folder / TAILS).write_bytes(b"x"), f"{TAILS}: is damaged"),
]  # fmt: skip


@pytest.mark.parametrize("change, said", HOSTILE)
def test_prepared_graphs_with_wrong_negatives_are_refused(of_mrr, tmp_path, change, said):
    shutil.copytree(of_mrr, tmp_path / "g")
    change(tmp_path / "g")
    with pytest.raises(InputError, match=said):
        Graph.open(tmp_path / "g")


def test_negatives_belong_to_the_fingerprint(of_mrr, tmp_path):
    shutil.copytree(of_mrr, tmp_path / "g")
    file(TAILS, np.zeros((40, K), np.int32))(tmp_path / "g")
    assert Graph.open(tmp_path / "g").fingerprint != Graph.open(of_mrr).fingerprint
