"""Edges in several files: the graph is that of one file with all of them, whatever the files are cut into."""

import gzip
import json
import os
import shutil

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.cli.commands import main
from marius_oac.data.dgl.prepare import prepare_source
from marius_oac.data.prepare import reading
from marius_oac.data.prepare.contents import files_in, matching
from marius_oac.data.prepare.edge_file import ReadOptions
from marius_oac.data.prepare.prepare import PrepareRequest
from marius_oac.errors import InputError

NAMES = ("source", "relation", "target")


def written(path, kind, edges, header=False):
    """Writes rows of numbers, as one make of files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "npy":
        np.save(path, np.array(edges, np.int64).reshape(-1, 3))
    elif kind == "parquet":
        columns = [pa.array([edge[at] for edge in edges], pa.int64()) for at in range(3)]
        pq.write_table(pa.table(dict(zip(NAMES, columns, strict=True))), path)
    else:
        lines = [",".join(NAMES)] * header + [",".join(map(str, edge)) for edge in edges]
        content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if kind == "csv.gz" else content)
    return path


def graph(out, **request):
    """The files of the graph, and what its manifest says of the sources."""
    prepare_source(PrepareRequest(out=out, **request))
    files = {each.name: each.read_bytes() for each in out.iterdir() if each.name != "graph.json"}
    sources = json.loads((out / "graph.json").read_text("utf-8"))["sources"]
    shutil.rmtree(out)
    return files, sources


def refused(out, source, **request):
    with pytest.raises(InputError) as error:
        prepare_source(PrepareRequest(out=out / "g", source=source, **request))
    assert not any(each == "g" or ".part" in each for each in os.listdir(out))
    return str(error.value).replace(f"{out}/", "")


KINDS = st.sampled_from(["csv", "csv.gz", "parquet", "npy"])


@settings(max_examples=25)
@given(st.data(), KINDS, st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from(["all", "first", "none"]))
def test_the_graph_is_that_of_one_file(tmp_path_factory, data, kind, sizes, header):
    folder = tmp_path_factory.mktemp("several")
    try:
        edge = st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(0, 9))
        sizes = [*sizes, 3]
        edges = data.draw(st.lists(edge, min_size=sum(sizes), max_size=sum(sizes)))
        whole = written(folder / f"whole.{kind}", kind, edges, header != "none")
        for number, (size, end) in enumerate(zip(sizes, np.cumsum(sizes), strict=True)):
            has = header == "all" or (header == "first" and not number)
            written(folder / "parts" / f"part-{number}.{kind}", kind, edges[end - size : end], has)
        (folder / "parts" / "_SUCCESS").touch()
        (folder / "parts" / ".part-0.crc").write_bytes(b"crc\0")
        parts, options = sorted((folder / "parts").glob("part*")), {"seed": data.draw(st.integers(0, 9))}
        expected = graph(folder / "g", source=str(whole), **options)[0]
        for source in (str(folder / "parts"), parts, str(folder / "parts" / "part-*")):
            found, sources = graph(folder / "g", source=source, **options)
            assert found == expected
            assert sources["all"] == (str(source) if isinstance(source, str) else [str(each) for each in parts])
        expected = graph(folder / "g", train=whole, valid=whole)[0]
        assert graph(folder / "g", train=folder / "parts", valid=parts)[0] == expected
    finally:
        shutil.rmtree(folder)


def test_files_are_read_in_the_order_given_and_of_a_folder_in_that_of_names(tmp_path):
    """Ids do not depend on it, but the order of edges does."""
    first, second = (written(tmp_path / "parts" / name, "csv", [edge] * 9) for name, edge in
                     (("b.csv", (1, 0, 2)), ("a.csv", (3, 0, 4))))  # fmt: skip
    options = {"valid_fraction": 0.0, "test_fraction": 0.0}
    given_, of_folder = (
        graph(tmp_path / "g", source=each, **options)[0] for each in ([first, second], tmp_path / "parts")
    )
    assert given_["train.npy"] != of_folder["train.npy"]
    assert of_folder == graph(tmp_path / "g", source=[second, first], **options)[0]


@pytest.fixture
def store():
    """Puts files into fsspec's store in memory."""
    MemoryFileSystem.store.clear()
    yield lambda name, content: fsspec.filesystem("memory").pipe(name, content)
    MemoryFileSystem.store.clear()


EDGES = [b"".join(b"a%d\tr\tb%d\n" % (i % 7, i % 11 + part) for i in range(50)) for part in range(3)]


def test_a_folder_and_a_pattern_of_a_store(store, tmp_path, monkeypatch):
    (tmp_path / "edges.tsv").write_bytes(b"".join(EDGES))
    for number, content in enumerate(EDGES):
        store(f"/bucket/edges/part-{number}.tsv", content)
    store("/bucket/edges/_SUCCESS", b"")
    store("/bucket/other/x.tsv", b"x\tr\ty\n")
    expected, copies = graph(tmp_path / "g", source=str(tmp_path / "edges.tsv"))[0], []

    def read_edges(file):
        copies.append(len(list(file.path.parent.iterdir())))
        return read(file)

    read = reading.read_edges
    monkeypatch.setattr(reading, "read_edges", read_edges)
    there = "memory://bucket/edges/"
    for source in (there, f"{there}*.tsv", [f"{there}part-{number}.tsv" for number in range(3)]):
        found, sources = graph(tmp_path / "g", source=source)
        assert found == expected and sources["all"] == source
    assert copies == [1] * 12, "one copy at a time"
    assert refused(tmp_path, f"{there}*.csv") == f"{there}*.csv: no file has such a name"
    assert refused(tmp_path, "memory://bucket/") == (
        "memory://bucket/: has a folder in it, edges: name the folders whose files are meant"
    )
    assert refused(tmp_path, "memory://*/edges/") == "memory://*/edges/: a * is understood behind the last / alone"
    late = [there, "memory://bucket/none.tsv"]
    monkeypatch.setattr(reading, "read_edges", None)
    assert refused(tmp_path, late) == "memory://bucket/none.tsv: no such file", "before the others are read"


def test_a_faulty_line_is_told_by_the_address_of_its_file(store, tmp_path):
    store("/b/e/0.tsv", EDGES[0])
    store("/b/e/1.tsv", b"a\tr\tb\na\tr\n")
    assert refused(tmp_path, "memory://b/e/") == "memory://b/e/1.tsv:2: 3 columns are expected, 2 found"
    store("/b/e/1.tsv", b"head\trelation\ttail\na\tr\tb\n")
    assert refused(tmp_path, "memory://b/e/") == (
        "memory://b/e/1.tsv:1: column names where memory://b/e/0.tsv has none, or an edge (--no-header)"
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.tsv": "x\ty\nx\tz\n", "b.tsv": "x\tr\ty\n"}, "p/b.tsv:1: 2 columns are expected, 3 found"),
        ({"a.tsv": "x\ty\n", "b.tsv": "x\tr\ty\n"}, "p/b.tsv: columns ['head', 'relation', 'tail'] here, "),
        (
            {"a.tsv": "source\ttarget\n1\t2\n", "b.tsv": "target\tsource\n1\t2\n"},
            "p/b.tsv:1: column names other than those of p/a.tsv, or an edge (--no-header)",
        ),
        ({"a.tsv": "", "b.tsv": "# nothing\n"}, "p/a.tsv: none of 2 files has edges"),
        ({"a.tsv": "x\ty\n", "b.dat": "x\ty\n"}, "p/b.dat: unknown kind of file"),
        ({"_a.tsv": "x\ty\n", ".b.tsv": "x\ty\n"}, "p: has no files"),
        ({"a.tsv": "x\ty\n", "c/b.tsv": "x\ty\n"}, "p: has a folder in it, c: name the folders whose files are meant"),
        ({"graph.json": "{}", "train.npy": ""}, "p: is a prepared graph, and no folder of files"),
        ({"a.tsv": "x\ty\n", "b.npy": ([[1, 2]],)}, "p/b.npy: names here and integer ids in the file before"),
        ({"a.npy": ([[1, 2]],), "b.npy": ([[1, 2, 3]],)}, "p/b.npy: 3 columns here, 2 columns in p/a.npy"),
        (
            {"a.parquet": {"u": [1], "v": [2]}, "b.parquet": {"v": [1], "u": [2]}},
            "p/b.parquet: columns 'v', 'u' here, columns 'u', 'v' in p/a.parquet",
        ),
        ({"a.parquet": {"u": [1], "v": [2]}, "b.parquet": {"v": [1]}}, "p/b.parquet: 2 or 3 columns are expected"),
    ],
)
def test_files_that_do_not_go_together(tmp_path, files, said):
    for name, content in files.items():
        path = tmp_path / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            pq.write_table(pa.table(content), path)
        elif isinstance(content, tuple):
            np.save(path, np.array(content[0]))
        else:
            path.write_text(content)
    assert refused(tmp_path, str(tmp_path / "p")).startswith(said)


def test_columns_of_other_files_are_found_by_name(tmp_path):
    pq.write_table(pa.table({"source": [1], "weight": [0.5], "target": [2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"target": [4], "source": [3]}), tmp_path / "b.parquet")
    options = {"valid_fraction": 0.0, "test_fraction": 0.0}
    (tmp_path / "whole.csv").write_text("1,2\n3,4\n")
    whole = graph(tmp_path / "g", source=tmp_path / "whole.csv", **options)[0]
    named = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    assert graph(tmp_path / "g", source=named, **options)[0]["train.npy"] == whole["train.npy"]


def test_a_header_that_is_asked_for_is_in_each_file(tmp_path):
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    first.write_text("x,y\n1,2\n")
    second.write_text("x,y\n3,4\n")
    options = {"valid_fraction": 0.0, "test_fraction": 0.0, "read": ReadOptions(header=True)}
    whole = tmp_path / "whole.csv"
    whole.write_text("x,y\n1,2\n3,4\n")
    expected = graph(tmp_path / "g", source=whole, **options)[0]
    assert graph(tmp_path / "g", source=[first, second], **options)[0] == expected
    second.write_text("3,4\n")
    assert refused(tmp_path, [first, second], read=ReadOptions(header=True)).startswith("b.csv:1: column names other")
    options["read"] = ReadOptions(header=False)
    first.write_text("1,2\n")
    whole.write_text("1,2\n1,2\n")
    shutil.copy(first, second)
    expected = graph(tmp_path / "g", source=whole, **options)[0]
    assert graph(tmp_path / "g", source=[first, second], **options)[0] == expected, "an equal line is an edge"


@pytest.mark.parametrize("lone", ["x,y\n", "# none\nx,y\n"])
def test_a_first_file_with_nothing_but_column_names(tmp_path, caplog, lone):
    """As Spark writes parts without rows. The names alone don't tell; the next file does, and is told of once."""
    for name, content in (("a", lone), ("b", "x,y\n1,2\n"), ("c", "x,y\n3,4\n")):
        (tmp_path / f"{name}.csv").write_text(content)
    options = {"valid_fraction": 0.0, "test_fraction": 0.0}
    (tmp_path / "whole.csv").write_text("1,2\n3,4\n")
    expected = graph(tmp_path / "g", source=tmp_path / "whole.csv", **options)[0]
    caplog.clear()
    parts = [tmp_path / f"{name}.csv" for name in "abc"]
    assert graph(tmp_path / "g", source=parts, **options)[0] == expected
    assert [each.getMessage() for each in caplog.records if "column names" in each.getMessage()] == [
        f"{tmp_path}/b.csv:1: column names, not an edge; head, tail: 'x', 'y' (--no-header)"
    ]


def test_files_of_one_edge_each(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"a{number},b{number}\n")
    (tmp_path / "whole.csv").write_text("a0,b0\na1,b1\na2,b2\n")
    expected = graph(tmp_path / "g", source=tmp_path / "whole.csv")[0]
    assert graph(tmp_path / "g", source=[tmp_path / f"{number}.csv" for number in range(3)])[0] == expected


def test_a_file_that_is_named_twice_is_a_mistake(tmp_path, store):
    path = written(tmp_path / "a.csv", "csv", [(1, 0, 2)])
    (tmp_path / "link.csv").symlink_to(path)
    store("/b/0.tsv", EDGES[0])
    assert refused(tmp_path, [path, tmp_path / "link.csv"]) == "link.csv: is named twice"
    assert refused(tmp_path, ["memory://b/0.tsv", "memory://b/*"]) == "memory://b/0.tsv: is named twice"
    graph(tmp_path / "g", train=path, valid=path)  # of another split it may be


@given(st.lists(st.integers(0, 12), min_size=1, unique=True))
def test_parts_are_in_natural_order(numbers):
    names = {f"part-{number}": False for number in numbers}
    assert files_in(names, "here") == matching(names, "p*", "here") == [f"part-{number}" for number in sorted(numbers)]


def test_digits_that_are_no_numbers_have_their_place_as_well():
    assert files_in(dict.fromkeys(["²", "10", "9", "a", "٣"], False), "here") == ["٣", "9", "10", "a", "²"]


def test_a_pattern_matches_what_it_matches_in_a_shell():
    names = {"a.csv": False, ".b.csv": False, "_c.csv": False, "d.csv": True, "e.tsv": False}
    assert matching(names, "*.csv", "here") == ["_c.csv", "a.csv"]
    assert matching(names, ".*", "here") == [".b.csv"]
    assert files_in({**names, "d.csv": False}, "here") == ["a.csv", "d.csv", "e.tsv"]
    for pattern in ("d*", "x*"):
        with pytest.raises(InputError, match="here: no file has such a name"):
            matching(names, pattern, "here")


def test_a_configuration_for_a_folder_of_edges(tmp_path, capsys):
    """As Spark writes it, whose first part is empty. It names the folder, and is that for one file of so many bytes."""
    for number, size in enumerate((0, 30, 50)):
        written(tmp_path / "likes" / f"part-{number}.csv", "csv", [(i, i % 3, i + 1) for i in range(size)], size > 0)
    (tmp_path / "likes" / "_SUCCESS").touch()
    assert main(["init", str(tmp_path / "likes"), "--out", str(tmp_path / "c.yaml")]) == 0
    text, said = (tmp_path / "c.yaml").read_text(), capsys.readouterr().err
    assert f"marius-oac prepare {tmp_path}/likes --out data/likes" in text and "path: data/likes" in text
    assert "part-2.csv is taken for the edges of a graph" in said and "complex" in text
    assert main(["init", *map(str, sorted((tmp_path / "likes").glob("*.csv"))), "--task", "graph"]) == 0
    assert "likes/part-2.csv --out data/part-2" in capsys.readouterr().out


def test_the_command(tmp_path, capsys):
    parts = [str(written(tmp_path / f"{name}.csv", "csv", [(i, 0, i + 1) for i in range(30)])) for name in "ab"]
    assert main(["prepare", "--out", str(tmp_path / "g"), *parts]) == 0
    assert main(["prepare", *parts, "--out", str(tmp_path / "h")]) == 0
    assert main(["prepare", "--train", *parts, "--valid", parts[0], "--out", str(tmp_path / "i")]) == 0
    said = capsys.readouterr()
    assert "60 / 30 / 0 edges" in said.out
    assert (tmp_path / "g/graph.json").read_bytes() == (tmp_path / "h/graph.json").read_bytes()
    assert main(["prepare", "--out", str(tmp_path / "j")]) == 2
