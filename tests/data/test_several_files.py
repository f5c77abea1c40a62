"""Edges in several files: the graph is that of one file with all of them, whatever the files are cut into."""

import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.cli.commands import main
from marius_oac.data.reading.contents import files_in, matching
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import InputError
from marius_oac.prepare.dgl.prepare import prepare_source
from marius_oac.prepare.prepare import PrepareRequest
from tests.data.written_edges import graph, refused, written

KINDS = st.sampled_from(["csv", "csv.gz", "parquet", "npy"])


@settings(max_examples=8)
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


def test_comments_of_all_files_are_counted(tmp_path):
    for name, text in (("a", "# 1\n"), ("b", "# 2\n# 3\nx,y\n"), ("c", "# 4\nx,z\n# 5\nx,y\n"), ("d", "x,x\n# 6\n")):
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "e.csv.gz").touch()
    prepare_source(PrepareRequest(out=tmp_path / "g", source=str(tmp_path / "*.csv*")))
    assert json.loads((tmp_path / "g" / "graph.json").read_text())["comment_lines"] == 6


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.tsv": "x\ty\nx\tz\n", "b.tsv": "x\tr\ty\n"}, "p/b.tsv:1: 2 columns are expected, 3 found"),
        ({"a.tsv": "x\ty\n", "b.tsv": "x\tr\ty\n"}, "p/b.tsv:1: 2 columns are expected, 3 found"),
        (
            {"a.tsv": "source\ttarget\n1\t2\n", "b.tsv": "target\tsource\n1\t2\n"},
            "p/b.tsv:1: column names other than those of p/a.tsv, or an edge (--no-header)",
        ),
        ({"a.tsv": "", "b.tsv": "# nothing\n"}, "p/a.tsv: none of 2 files has edges"),
        ({"a.tsv": "x\ty\n", "b.bin": "x\ty\n"}, "p/b.bin: unknown kind of file"),
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
        (
            {"a.parquet": {"u": ["1"], "v": ["2"]}, "b.csv": "v,u\n10,20\n11,21\n"},
            "p/b.csv: columns 'v', 'u' here, columns 'u', 'v' in p/a.parquet",
        ),
        (
            {"a.csv": "v,u\n10,20\n11,21\n", "b.parquet": {"v": ["1"], "u": ["2"]}, "c.csv": "u,v\n1,2\n1,2\n"},
            "p/c.csv:1: column names other than those of p/a.csv, or an edge",
        ),
        # a part with nothing but column names, as Spark and DuckDB write it, after or before others
        ({"a.csv": "source,target\na,b\nc,d\n", "b.csv": "target,source\n"}, "p/b.csv:1: column names other than"),
        ({"a.csv": "u,v\n1,2\n3,4\n", "b.csv": "v,u\n"}, "p/b.csv:1: column names other than those of p/a.csv"),
        ({"a.csv": "u,v\n1,2\n3,4\n", "b.csv": "U, v\n"}, "p/b.csv:1: column names other than those of p/a.csv"),
        ({"a.csv": "target,source\n", "b.csv": "source,target\na,b\n"}, "p/b.csv:1: column names other than"),
        ({"a.csv": "source,target\n", "b.csv": "source,target\n"}, "p/a.csv: none of 2 files has edges"),
        # a file with nothing but names, which might be an edge, above others without any
        ({"a.csv": "u,v\n", "b.csv": "1,2\n", "c.csv": "3,4\n"}, "p/a.csv: column names, or an edge? leave this"),
        ({"a.csv": "u,v\n", "c.csv": "1,2\n3,4\n"}, "p/a.csv: column names, or an edge? leave this file out"),
        ({"a.csv": "u,v\n", "b.csv": "# x\n", "c.csv": "1,2\n", "d.csv": "3,4\n"}, "p/a.csv: column names, or"),
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


@pytest.mark.parametrize("between", ["empty", "parquet", "comment"])
def test_what_lies_between_a_header_and_the_file_that_shows_it(tmp_path, between):
    options = {"valid_fraction": 0.0, "test_fraction": 0.0}
    (tmp_path / "a.csv").write_text("u,v\n")
    if between == "parquet":
        pq.write_table(pa.table({"u": ["5"], "v": ["6"]}), tmp_path / "b.parquet")
    else:
        (tmp_path / "b.csv").write_text("# none\n" if between == "comment" else "")
    (tmp_path / "c.csv").write_text("u,v\n1,2\n3,4\n")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "w.csv").write_text("u,v\n" + "5,6\n" * (between == "parquet") + "1,2\n3,4\n")
    found = graph(tmp_path / "g", source=sorted(each for each in tmp_path.iterdir() if each.suffix), **options)[0]
    assert found == graph(tmp_path / "g", source=tmp_path / "whole", **options)[0]


def test_what_may_lie_beside_each_other(tmp_path):
    """A table without bytes, and a text without names beside a table with them."""
    options = {"valid_fraction": 0.0, "test_fraction": 0.0}
    (tmp_path / "a.parquet").touch()
    pq.write_table(pa.table({"u": ["1"], "v": ["2"]}), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("3,4\n5,6\n")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "w.csv").write_text("1,2\n3,4\n5,6\n")
    found = graph(tmp_path / "g", source=sorted(tmp_path.glob("*.*")), **options)
    assert found[0] == graph(tmp_path / "g", source=tmp_path / "whole", **options)[0]


def test_a_file_s_name_is_told_as_it_is(tmp_path):
    """A ? begins what is secret in an address alone."""
    path = written(tmp_path / "what?" / "e=1.csv", "csv", [(i, 0, i + 1) for i in range(30)])
    assert graph(tmp_path / "g", source=str(tmp_path / "what?"))[1] == {"all": str(tmp_path / "what?")}
    path.write_text("a,b,c\na,b\n")
    assert refused(tmp_path, path) == "what?/e=1.csv:2: 3 columns are expected, 2 found"


def test_lines_in_a_file_each(tmp_path):
    whole = "source,relation,target\na,r,b\nc,r,d\n"
    for number, line in enumerate(whole.splitlines(True)):
        (tmp_path / f"{number}.csv").write_text(line)
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "whole.csv").write_text(whole)
    expected = graph(tmp_path / "g", source=tmp_path / "whole" / "whole.csv")[0]
    assert graph(tmp_path / "g", source=str(tmp_path / "*.csv"))[0] == expected


def test_a_column_that_the_folders_names_hold_is_told_of(tmp_path, caplog):
    """As Hive, Spark and DuckDB partition a table."""
    for number, kind in enumerate(("has", "knows")):
        written(tmp_path / f"relation={kind}" / "part.csv", "csv", [(number, number, 2)] * 3)
    for source in (str(tmp_path / "*" / "*.csv"), sorted(tmp_path.glob("relation=*"))):
        caplog.clear()
        graph(tmp_path / "g", source=source)
        said = "the folders' names are values of a column, relation, which is not in the files: not read"
        assert [each.getMessage() for each in caplog.records].count(said) == 1
    caplog.clear()
    graph(tmp_path / "g", source=tmp_path / "relation=has")
    assert "values of a column" not in caplog.text, "one value is no column"


def test_an_empty_table_need_not_have_columns(tmp_path):
    pq.write_table(pa.table({}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"u": [1, 1], "v": [2, 3]}), tmp_path / "1.parquet")
    expected = graph(tmp_path / "g", source=tmp_path / "1.parquet")[0]
    assert graph(tmp_path / "g", source=str(tmp_path / "*.parquet"))[0] == expected


def test_the_order_of_equal_numbers_does_not_depend_on_the_disk():
    assert files_in({"p1": False, "p01": False}, "") == files_in({"p01": False, "p1": False}, "") == ["p01", "p1"]


def test_many_parts_cost_what_their_edges_do(tmp_path, monkeypatch):
    """The edges that wait to be numbered are not counted anew for each part."""
    counted = []
    monkeypatch.setattr("marius_oac.prepare.encode.sum", lambda found: counted.append(1) or sum(found), raising=False)
    parts = [written(tmp_path / f"{number}.csv", "csv", [(number, 0, 1)] * 2) for number in range(20)]
    graph(tmp_path / "g", source=parts)
    assert len(counted) < 20


def test_sources_that_can_be_read_once(tmp_path):
    parts = [written(tmp_path / f"{name}.csv", "csv", [(i, 0, i + 1) for i in range(30)]) for name in "ab"]
    assert graph(tmp_path / "g", source=iter(parts)) == graph(tmp_path / "g", source=parts)


def test_a_name_that_is_no_text(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")
    with open(path, "w") as file:
        file.write("a,r,b\n" * 3)
    assert "the name is not UTF-8" in refused(tmp_path, path)
    assert main(["init", path]) == 2


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
    first.write_text("x,y\n")
    whole.write_text("x,y\n1,2\n")
    expected = graph(tmp_path / "g", source=whole, **options)[0]
    assert graph(tmp_path / "g", source=[first, second], **options)[0] == expected, "who says so is not asked"


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
    assert "column names" not in caplog.text, "they stand above numbers, and are certain"


def test_files_of_one_edge_each(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"a{number},b{number}\n")
    (tmp_path / "whole.csv").write_text("a0,b0\na1,b1\na2,b2\n")
    expected = graph(tmp_path / "g", source=tmp_path / "whole.csv")[0]
    assert graph(tmp_path / "g", source=[tmp_path / f"{number}.csv" for number in range(3)])[0] == expected


def test_a_file_that_is_named_twice_is_a_mistake(tmp_path):
    path = written(tmp_path / "a.csv", "csv", [(1, 0, 2)])
    (tmp_path / "link.csv").symlink_to(path)
    assert refused(tmp_path, [path, tmp_path / "link.csv"]) == "link.csv: is named twice, also as a.csv"
    assert main(["init", str(path), str(tmp_path / "link.csv"), "--task", "graph"]) == 2
    graph(tmp_path / "g", train=path, valid=path)  # of another split it may be


@given(st.lists(st.integers(0, 12), min_size=1, unique=True))
def test_parts_are_in_natural_order(numbers):
    names = {f"part-{number}": False for number in numbers}
    assert files_in(names, "here") == matching(names, "p*", "here") == [f"part-{number}" for number in sorted(numbers)]


def test_digits_that_are_no_numbers_have_their_place_as_well():
    assert files_in(dict.fromkeys(["²", "10", "9", "a", "٣"], False), "here") == ["٣", "9", "10", "a", "²"]


def test_a_pattern_matches_what_it_matches_in_a_shell():
    names = {"a.csv": False, ".b.csv": False, "_c.csv": False, "d": True, "e.tsv": False}
    assert matching(names, "*.csv", "here") == ["_c.csv", "a.csv"]
    assert matching(names, ".*", "here") == [".b.csv"]
    assert files_in({**names, "d": False}, "here") == ["a.csv", "d", "e.tsv"]
    for pattern, said in (("d*", "d is a folder, not a file"), ("x*", "no file has such a name")):
        with pytest.raises(InputError, match=f"here: {said}"):
            matching(names, pattern, "here")


def test_the_command(tmp_path, capsys):
    parts = [str(written(tmp_path / f"{name}.csv", "csv", [(i, 0, i + 1) for i in range(30)])) for name in "ab"]
    assert main(["prepare", "--out", str(tmp_path / "g"), *parts]) == 0
    assert main(["prepare", *parts, "--out", str(tmp_path / "h")]) == 0
    assert main(["prepare", "--train", *parts, "--valid", parts[0], "--out", str(tmp_path / "i")]) == 0
    said = capsys.readouterr()
    assert "60 / 30 / 0 edges" in said.out
    assert (tmp_path / "g/graph.json").read_bytes() == (tmp_path / "h/graph.json").read_bytes()
    assert main(["prepare", "--out", str(tmp_path / "j")]) == 2


def test_a_pattern_is_no_name_of_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "parts" / "part-0.csv", "csv", [(1, 0, 2)] * 20)
    (tmp_path / "parts" / "part-0.csv").rename(tmp_path / "part-0.csv")
    assert refused(tmp_path, "edges-*") == "edges-*: no file has such a name"
