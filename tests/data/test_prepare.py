"""Preparing against the naive oracle: every format, option and split, byte for byte where threads could matter."""

import dataclasses
import errno
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.generate.graph import GeneratedGraph, write_graph
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading import database
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.data.splits import STRATUM_EDGES, DrawnSplits
from marius_oac.errors import InputError
from marius_oac.prepare import assemble, copies, encode, numbering, repetitions
from marius_oac.prepare.prepare import PreparedGraph, PrepareRequest, prepare
from tests.data import naive_prepare

SPLITS = naive_prepare.SPLITS
repetitions_of = repetitions._hashes
ROWS = {
    "train": [("b", "likes", "a"), ("a", "likes", "c"), ("ü", "hates", "b"), ("b", "likes", "a")],
    "valid": [("c", "likes", "b"), ("a", "likes", "c"), ("new", "likes", "a")],
    "test": [("a", "knows", "b"), ("ü", "hates", "c")],
}


def write_tsv(path, rows):
    path.write_bytes("".join("\t".join(map(str, row)) + "\n" for row in rows).encode())
    return path


def write_splits(folder, rows):
    return {split: write_tsv(folder / f"{split}.tsv", rows[split]) for split in rows if rows[split]}


def assert_graph_is(summary: PreparedGraph, expected: dict):
    graph = Graph.open(summary.path)
    assert graph.num_nodes == len(expected["nodes"])
    assert graph.node_names(range(graph.num_nodes)) == expected["nodes"]
    assert graph.num_relations == len(expected["relations"])
    if expected["relations"]:
        assert graph.relation_names(range(graph.num_relations)) == expected["relations"]
    for split in SPLITS:
        assert graph.edges(split).tolist() == expected["edges"][split]
    assert summary.edges == {split: len(expected["edges"][split]) for split in SPLITS} == graph.num_edges
    assert summary.duplicates == expected["duplicates"]
    assert summary.unseen_edges == {split: expected["unseen_edges"][split] for split in ("valid", "test")}
    assert (summary.unseen_nodes, summary.unseen_relations) == (expected["unseen_nodes"], expected["unseen_relations"])
    assert summary.copies == expected["copies"]
    assert summary.copy == (expected["copy"] and " ".join(map(str, expected["copy"])))
    assert summary.fingerprint == graph.fingerprint


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
@pytest.mark.parametrize("unseen", ["skip", "keep"])
def test_given_splits(tmp_path, unseen, duplicates):
    files = write_splits(tmp_path, ROWS)
    summary = prepare(PrepareRequest(out=tmp_path / "g", unseen=unseen, duplicates=duplicates, **files))
    expected = naive_prepare.prepare(ROWS, unseen, duplicates)
    assert_graph_is(summary, expected)
    assert (expected["duplicates"], expected["unseen_nodes"], expected["unseen_relations"]) == (2, 1, 1)
    assert f"2 duplicates, {'dropped' if duplicates == 'drop' else 'kept'}" in str(summary)
    assert "1 nodes and 1 relations that train lacks" in str(summary)
    copies = "1 edges of valid equal an edge of train, as: a likes c (--duplicates drop leaves them out)"
    assert (copies in str(summary)) == (duplicates == "keep")
    assert os.listdir(tmp_path / "g") != [] and not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_disk_without_room_for_what_is_mapped_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    files = write_splits(tmp_path, ROWS)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InputError, match="the disk is full; nothing was kept"):
        prepare(PrepareRequest(out=tmp_path / "g", duplicates="drop", **files))
    assert sorted(os.listdir(tmp_path)) == before


names = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\t\r\n\0#\ufeff"), min_size=1, max_size=3
)
few = st.sampled_from(["a", "b", "B", "é", "𝄞", '"', "a b", "NULL", "null", "1", "01", "-1"])
triples = st.lists(st.tuples(few | names, few, few | names), max_size=12)


@settings(deadline=None, max_examples=40)
@given(
    train=triples.filter(bool),
    valid=triples,
    test=triples,
    unseen=st.sampled_from(["skip", "keep"]),
    duplicates=st.sampled_from(["keep", "drop"]),
    relations=st.booleans(),
)
def test_any_names(train, valid, test, unseen, duplicates, relations):
    rows = {"train": train, "valid": valid, "test": test}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_splits(folder, rows)
        fractions = {"valid_fraction": 0.0, "test_fraction": 0.0} if len(files) == 1 else {}
        read = ReadOptions(relations=relations)
        request = PrepareRequest(
            out=folder / "g", read=read, unseen=unseen, duplicates=duplicates, **files, **fractions
        )
        summary = prepare(request)
        if not relations:
            rows = {split: [(row[0], row[2]) for row in rows[split]] for split in rows}
        assert_graph_is(summary, naive_prepare.prepare(rows, unseen, duplicates))


def check_drawn(rows, relations, unseen, duplicates, shares, seed):
    """Prepares them in chunks of three edges and files of a few repetitions, and compares all with the oracle."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as small:
        limits = {assemble: {"CHUNK_EDGES": 3}, copies: {"CHUNK_EDGES": 4}}
        for module, values in (limits | {repetitions: {"SORTED_EDGES": 6, "CHUNK_EDGES": 5}}).items():
            for limit, value in values.items():
                small.setattr(module, limit, value)
        source = write_tsv(Path(name) / "g.tsv", rows)
        read, fractions = ReadOptions(relations=relations), {"valid_fraction": shares[0], "test_fraction": shares[1]}
        options = {"unseen": unseen, "duplicates": duplicates, "seed": seed, "read": read, **fractions}
        rows = rows if relations else [(row[0], row[2]) for row in rows]
        expected = naive_prepare.prepare_one(
            rows, lambda count: DrawnSplits(count, *shares, seed).of(np.arange(count)).tolist(), unseen, duplicates
        )
        request = PrepareRequest(source=str(source), out=Path(name) / "g", **options)
        if unseen != "train" and not expected["edges"]["train"]:
            with pytest.raises(InputError, match="no edge is left to train on"):
                prepare(request)
            return expected
        assert_graph_is(prepare(request), expected)
        if unseen == "train":
            trained = np.unique(Graph.open(request.out).edges("train")[:, [0, -1]])
            assert len(trained) == len({name for row in rows for name in (row[0], row[-1])})
        return expected


@settings(deadline=None, max_examples=25)
@given(
    rows=st.lists(st.tuples(few, st.sampled_from("rst"), few), min_size=1, max_size=25),
    relations=st.booleans(),
    unseen=st.sampled_from(["train", "train", "keep"]),
    duplicates=st.sampled_from(["keep", "drop"]),
    shares=st.sampled_from([(0.2, 0.1), (0.45, 0.45), (0.0, 0.9)]),
    seed=st.integers(0, 3),
)
def test_drawn_splits_of_any_edges(rows, relations, unseen, duplicates, shares, seed):
    check_drawn(rows, relations, unseen, duplicates, shares, seed)


@pytest.mark.parametrize("seed", range(3))
def test_drawn_splits_of_rare_names_and_many_copies(seed):
    random = np.random.default_rng(seed)
    rows = [(f"n{a}", f"r{r}", f"n{b}") for a, r, b in random.integers(0, (25, 20, 25), (40, 3))]
    rows += [rows[place] for place in random.integers(0, 40, 100)]
    found = check_drawn(rows, True, "train", "keep", (0.45, 0.45), seed)
    assert sum(found["copies"].values()) > 20 and sum(found["unseen_edges"].values()) > 5, found


def test_names_go_to_train_by_default_where_splits_are_drawn(tmp_path):
    rows = [(f"n{number}", "r", f"m{number // 4}") for number in range(100)]
    source = write_tsv(tmp_path / "g.tsv", rows)
    request = PrepareRequest(source=str(source), out=tmp_path / "a", valid_fraction=0.2, test_fraction=0.1)
    summary = prepare(request)
    assert summary == dataclasses.replace(
        prepare(dataclasses.replace(request, out=tmp_path / "b", unseen="train")), path=summary.path
    )
    assert summary.edges == {"train": 100, "valid": 0, "test": 0} and summary.num_nodes == 125
    assert "  30 edges went to train instead (20 for valid and 10 for test were drawn): it had none of " in str(summary)
    assert json.loads((tmp_path / "a" / "graph.json").read_text())["options"]["unseen"] == "train"
    with pytest.raises(InputError, match="unseen: edges go to train where splits are drawn, and these are given: skip"):
        prepare(PrepareRequest(train=source, valid=source, out=tmp_path / "c", unseen="train"))
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "g.tsv"]


@pytest.fixture(scope="module")
def generated():
    return GeneratedGraph(num_nodes=500, num_edges=3000, num_relations=7, seed=3)


@pytest.mark.parametrize("suffix", [".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet"])
def test_formats_give_the_same_graph(tmp_path, generated, suffix):
    source = tmp_path / f"g{suffix}"
    write_graph(generated, source)
    reference = tmp_path / "reference.tsv"
    write_graph(generated, reference)
    assert (
        prepare(PrepareRequest(source=str(source), out=tmp_path / "a")).fingerprint
        == prepare(PrepareRequest(source=str(reference), out=tmp_path / "b")).fingerprint
    )


def as_parquet(path, ids):
    pq.write_table(pa.table({"head": ids[:, 0], "relation": ids[:, 1], "tail": ids[:, 2]}), path)


def as_npy(path, ids):
    np.save(path, np.asfortranarray(ids) if path.stem == "fortran" else ids)


@pytest.mark.parametrize(
    ("name", "write"),
    [("g.npy", as_npy), ("fortran.npy", as_npy), ("g.parquet", as_parquet)],
    ids=["npy", "fortran", "parquet"],
)
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint8])
def test_integer_ids_keep_their_order(tmp_path, name, write, dtype):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 200, (400, 3)).astype(dtype)
    write(tmp_path / name, ids)
    summary = prepare(
        PrepareRequest(source=str(tmp_path / name), out=tmp_path / "g", valid_fraction=0, test_fraction=0)
    )
    assert_graph_is(summary, naive_prepare.prepare({"train": [tuple(row) for row in ids.tolist()]}))


@pytest.mark.parametrize(("relations", "nodes", "rare"), [(150, 290, True), (150, 301, False), (90, 20, False)])
def test_more_relations_than_a_graph_has_are_asked_about(tmp_path, relations, nodes, rare):
    lines = [f"n{n % nodes}\tr{n % relations}\tn{(n + 1) % nodes}\n" for n in range(max(nodes, relations))]
    (tmp_path / "g.tsv").write_text("".join(lines))
    summary = prepare(PrepareRequest(source=str(tmp_path / "g.tsv"), out=tmp_path / "g"))
    assert (summary.num_nodes, summary.num_relations) == (nodes, relations)
    assert ("are the columns head, relation and tail? (--columns" in str(summary)) == rare


def test_dense_integer_ids_stay_what_they_are(tmp_path):
    ids = np.stack([np.arange(100), np.arange(100)[::-1]], axis=1)
    np.save(tmp_path / "g.npy", ids)
    prepare(PrepareRequest(source=str(tmp_path / "g.npy"), out=tmp_path / "g", valid_fraction=0, test_fraction=0))
    graph = Graph.open(tmp_path / "g")
    assert graph.edges("train").tolist() == ids.tolist() and graph.num_relations == 0


def test_ids_to_the_last_below_2_63(tmp_path):
    ids = np.array([[2**63 - 1, 0], [2**53 + 1, 2**53]], dtype=np.uint64)
    np.save(tmp_path / "g.npy", ids)
    prepare(PrepareRequest(source=str(tmp_path / "g.npy"), out=tmp_path / "g", valid_fraction=0, test_fraction=0))
    assert Graph.open(tmp_path / "g").node_names([0, 1, 2, 3]) == ["0", str(2**53), str(2**53 + 1), str(2**63 - 1)]


def test_fractions_are_exact_seeded_and_leave_the_order(tmp_path, generated):
    source = tmp_path / "g.tsv"
    write_graph(generated, source)
    request = PrepareRequest(source=str(source), out=tmp_path / "a", unseen="keep", valid_fraction=0.1, seed=5)
    first = prepare(request)
    assert first.edges == {"train": 2550, "valid": 300, "test": 150}
    again = prepare(dataclasses.replace(request, out=tmp_path / "b"))
    other = prepare(dataclasses.replace(request, out=tmp_path / "c", seed=6))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    graph = Graph.open(first.path)
    rows = [tuple(row) for row in generated.edges().tolist()]
    whole = Counter()
    for split in SPLITS:
        edges = graph.edges(split)
        heads, tails = graph.node_names(edges[:, 0]), graph.node_names(edges[:, 2])
        relations = graph.relation_names(edges[:, 1])
        split_rows = [
            (int(h[3:]), int(r[3:]), int(t[3:])) for h, r, t in zip(heads, relations, tails, strict=True)
        ]  # "/m/0000042", "/r/7"
        places = iter(rows)
        assert all(row in places for row in split_rows)  # a subsequence: the file's order is kept
        whole.update(split_rows)
    assert whole == Counter(rows)


def test_duplicates_leave_before_fractions_are_drawn(tmp_path):
    rows = [(f"n{i % 10}", "r", f"n{i % 7}") for i in range(140)]
    write_tsv(tmp_path / "g.tsv", rows)
    summary = prepare(
        PrepareRequest(
            source=str(tmp_path / "g.tsv"), out=tmp_path / "g", duplicates="drop", unseen="keep", valid_fraction=0.5
        )
    )
    assert summary.duplicates == 70 and summary.edges == {"train": 31, "valid": 35, "test": 4}


@settings(deadline=None, max_examples=60)
@example(edges=4 * STRATUM_EDGES + 1, valid=0.5, test=0.25, seed=0, cut=0.5)  # the last stratum has one edge
@given(
    edges=st.integers(1, 5 * STRATUM_EDGES),
    valid=st.floats(0, 0.5),
    test=st.floats(0, 0.49),
    seed=st.integers(0, 3),
    cut=st.floats(0, 1),
)
def test_drawn_splits_are_exact_and_do_not_depend_on_chunks(edges, valid, test, seed, cut):
    splits = DrawnSplits(edges, valid, test, seed)
    numbers = np.arange(edges)
    middle = int(cut * edges)
    whole = splits.of(numbers)
    counts = [round(valid * edges), round(test * edges)]
    assert np.bincount(whole, minlength=3).tolist() == [edges - sum(counts), *counts]
    assert np.array_equal(whole, np.concatenate([splits.of(numbers[:middle]), splits.of(numbers[middle:])]))


def test_strata_are_drawn_apart():
    whole = DrawnSplits(2 * STRATUM_EDGES, 0.2, 0.2, 0).of(np.arange(2 * STRATUM_EDGES))
    first, second = whole[:STRATUM_EDGES], whole[STRATUM_EDGES:]
    chance = 0.6**2 + 0.2**2 + 0.2**2
    assert (first == second).mean() == pytest.approx(chance, abs=0.02)


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("h,r,t\n", ReadOptions(), ("h", "r", "t")),
        ("x,t,r,h\n", ReadOptions(columns=("3", "2", "1")), ("h", "r", "t")),
        ("w,to,rel,from\n9,t,r,h\n", ReadOptions(columns=("from", "rel", "to"), header=True), ("h", "r", "t")),
        ("tail,head,relation\nt,h,r\n", ReadOptions(header=True), ("h", "r", "t")),
        ("destination,weight,source\nt,1,h\n", ReadOptions(header=True), ("h", "t")),
        ("h,r,t\n", ReadOptions(relations=False), ("h", "t")),
        ('"a,b","say ""x""",c\n', ReadOptions(), ("a,b", 'say "x"', "c")),
        ("h;r;t\n", ReadOptions(delimiter=";"), ("h", "r", "t")),
        ("%x\nh,r,#t\n", ReadOptions(comment="%"), ("h", "r", "#t")),
        ("#h,r,t\n", ReadOptions(comment=""), ("#h", "r", "t")),
        ("\ufeff# a comment\r\n\r\nh,r,t\r\n", ReadOptions(), ("h", "r", "t")),
        ("h,r,t", ReadOptions(), ("h", "r", "t")),
    ],
)
def test_ways_to_write_a_csv(tmp_path, text, options, expected):
    (tmp_path / "g.csv").write_text(text, encoding="utf-8", newline="")
    prepare(PrepareRequest(source=str(tmp_path / "g.csv"), out=tmp_path / "g", read=options))
    graph = Graph.open(tmp_path / "g")
    (edge,) = graph.edges("train").tolist()
    assert graph.node_names([edge[0], edge[-1]]) == [expected[0], expected[-1]]
    assert graph.num_relations == len(expected) - 2
    if len(expected) == 3:
        assert graph.relation_names([edge[1]]) == [expected[1]]


def test_parquet_columns_by_name_and_dictionary(tmp_path):
    table = pa.table(
        {
            "weight": [1.0],
            "tail": pa.array(["t"]).dictionary_encode(),
            "head": pa.array(["h"], pa.large_string()),
            "relation": pa.array([7], pa.int8()),
        }
    )
    pq.write_table(table, tmp_path / "g.parquet")
    prepare(PrepareRequest(source=str(tmp_path / "g.parquet"), out=tmp_path / "g"))
    graph = Graph.open(tmp_path / "g")
    (edge,) = graph.edges("train").tolist()
    assert graph.node_names([edge[0], edge[2]]) + graph.relation_names([edge[1]]) == ["h", "t", "7"]


def test_comments_are_counted_and_the_manifest_tells(tmp_path):
    (tmp_path / "g.txt").write_text("# one\na\tb\n#two\nb\ta\n")
    summary = prepare(
        PrepareRequest(source=str(tmp_path / "g.txt"), out=tmp_path / "deep" / "g", valid_fraction=0.5, test_fraction=0)
    )
    assert summary.comment_lines == 2 and "2 comment lines skipped" in str(summary)
    manifest = json.loads((tmp_path / "deep" / "g" / "graph.json").read_text())
    assert manifest["sources"] == {"all": str(tmp_path / "g.txt")}
    assert manifest["options"]["valid_fraction"] == 0.5 and manifest["comment_lines"] == 2
    assert set(manifest["files"]) == {"train.npy", "valid.npy", "test.npy", "nodes.parquet"}


SMALL = {
    "blocks": {(encode, "BLOCK_ROWS"): 100, (encode, "CHUNK_EDGES"): 50, (encode, "THREADS"): 1},
    "runs": {(encode, "BLOCK_ROWS"): 100, (encode, "RUN_BYTES"): 3000, (encode, "CHUNK_EDGES"): 50},
    "names in the database": {(encode, "BLOCK_ROWS"): 400, (encode, "RUN_BYTES"): 1, (numbering, "NAMES_BYTES"): 9000},
    "repetitions in files": {(repetitions, "SORTED_EDGES"): 1400, (repetitions, "CHUNK_EDGES"): 700},
}


@pytest.mark.parametrize("duplicates", ["keep", "drop"])
@pytest.mark.parametrize("limits", SMALL.values(), ids=SMALL)
def test_limits_of_memory_and_threads_give_the_same_bytes(tmp_path, generated, monkeypatch, limits, duplicates):
    source = tmp_path / "g.tsv.gz"
    write_graph(generated, source)
    request = PrepareRequest(source=str(source), out=tmp_path / "a", duplicates=duplicates)
    first = prepare(request)
    for (module, name), value in limits.items():
        monkeypatch.setattr(module, name, value)
    for module in (database, numbering):
        monkeypatch.setattr(module, "STREAM_ROWS", 64)
    monkeypatch.setattr(database, "MAX_THREADS", 1)
    monkeypatch.setattr(assemble, "CHUNK_EDGES", 97)
    monkeypatch.setattr("marius_oac.data.reading.text.BLOCK_BYTES", 1000)
    small = prepare(dataclasses.replace(request, out=tmp_path / "b"))
    assert dataclasses.replace(small, path=first.path) == first and first.duplicates > 0
    assert (first.copy is not None) == (duplicates == "keep")


@pytest.mark.parametrize("hashed", [repetitions_of, lambda edges: np.zeros(len(edges), np.uint64)])
@pytest.mark.parametrize("at_once", [200, 60, 7])
@pytest.mark.parametrize("columns", [2, 3])
def test_repeated_edges_are_found_whatever_their_hashes(tmp_path, monkeypatch, columns, at_once, hashed):
    monkeypatch.setattr(repetitions, "SORTED_EDGES", at_once)
    monkeypatch.setattr(repetitions, "CHUNK_EDGES", 50)
    monkeypatch.setattr(repetitions, "_hashes", hashed)
    edges = np.random.default_rng(at_once).integers(0, 12 if columns == 2 else 5, (200, columns)) << 40
    edges.tofile(tmp_path / "edges")
    found = repetitions.Repetitions(tmp_path / "edges", len(edges), columns, edges.dtype, tmp_path)
    rows = list(map(tuple, edges.tolist()))
    expected = [number for number, row in enumerate(rows) if row in rows[:number]]
    pairs = np.concatenate(list(found.pairs()))
    assert sorted(pairs[:, 1].tolist()) == expected and len(expected) > 20
    assert all(one < other and rows[one] == rows[other] for one, other in pairs.tolist())
    assert os.listdir(tmp_path) == ["edges"]


def test_copies_of_one_edge_do_not_fill_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(repetitions, "SORTED_EDGES", 100)
    monkeypatch.setattr(repetitions, "CHUNK_EDGES", 50)
    np.zeros((1000, 2), np.int32).tofile(tmp_path / "edges")
    sizes, compared = [], repetitions.Repetitions._repeated

    def repeated(self, hashes, numbers):
        sizes.append(len(hashes))
        return compared(self, hashes, numbers)

    monkeypatch.setattr(repetitions.Repetitions, "_repeated", repeated)
    found = repetitions.Repetitions(tmp_path / "edges", 1000, 2, np.dtype(np.int32), tmp_path)
    assert sum(map(len, found.pairs())) == 999 and max(sizes) == 50


def test_ids_beyond_int32_are_written_as_int64(tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "INT32_IDS", 2)
    summary = prepare(PrepareRequest(out=tmp_path / "g", **write_splits(tmp_path, ROWS)))
    assert Graph.open(tmp_path / "g").dtype == np.int64
    assert_graph_is(summary, naive_prepare.prepare(ROWS))


def test_importing_the_room_imports_no_torch():
    rooms = ("prepare.prepare", "data.graphs.graph", "data.reading.registry", "data.reading.download")
    code = "".join(f"import marius_oac.{room}; " for room in rooms) + "import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_progress_in_plain_lines(tmp_path, capsys, monkeypatch, generated):
    monkeypatch.setattr("marius_oac.runtime.progress.FIRST_SECONDS", 0.0)
    with gzip.open(tmp_path / "g.tsv.gz", "wt") as file:
        file.write("a\tr\tb\n" * 100)
    prepare(PrepareRequest(source=str(tmp_path / "g.tsv.gz"), out=tmp_path / "g"))
    said = capsys.readouterr().err
    assert "reading g.tsv.gz: 100 edges, done\n" in said and "\r" not in said


def test_many_names_in_the_database_keep_their_places(tmp_path, monkeypatch):
    """So many that the database's threads join them in an order of their own."""
    monkeypatch.setattr(numbering, "NAMES_BYTES", 0)
    names = np.random.default_rng(0).permutation(400_000).astype(np.int64)
    with database.Database(tmp_path) as names_there:
        found = numbering.Numbering("nodes", tmp_path, names_there)
        for part in np.split(names, 4):
            found.add(pa.array(part))
        found.resolve()
        assert (np.concatenate([found.ids(part) for part in range(4)]) == names).all()
