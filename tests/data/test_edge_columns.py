"""Files of edges with a line of names above them: found, never an edge, and said where it is not certain."""

import gzip
import shutil
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.data.reading.edge_names import header, roles
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare


def prepared(folder, text, name="g.csv", **read):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    options = {"valid_fraction": 0.0, "test_fraction": 0.0, "read": ReadOptions(**read)}
    prepare(PrepareRequest(source=str(path), out=folder / "graph", **options))
    return edges_of(Graph.open(folder / "graph"))


def edges_of(graph):
    names = graph.node_names(range(graph.num_nodes))
    kinds = graph.relation_names(range(graph.num_relations)) if graph.num_relations else []
    rows = graph.edges("train").tolist()
    return sorted((names[row[0]], *(kinds[kind] for kind in row[1:-1]), names[row[-1]]) for row in rows)


def lines(caplog):
    """What was said, with the file's name alone."""
    return [record.getMessage().rpartition("/")[2] if "/g." in record.getMessage() else record.getMessage()
            for record in caplog.records]  # fmt: skip


EDGES = [("a b", "likes", "c"), ("c", "hates", "d,e")]
TEXT = 'a b,likes,c\nc,hates,"d,e"\n'


@pytest.mark.parametrize(
    "header", ["head,relation,tail", '"Head","Relation","Tail"', "source,type,target", ":START_ID,:TYPE,:END_ID",
               "subject_id,predicate,object_id", "src,rel,dst"],
)  # fmt: skip
def test_a_line_of_names_is_no_edge(tmp_path, caplog, header):
    assert prepared(tmp_path, f"{header}\n{TEXT}") == EDGES and not lines(caplog)


@pytest.mark.parametrize("header", ["h,r,t", "S,P,O", "s,r,o", "H,R,T", "thing,feels,person"])
def test_names_that_may_be_names_of_nodes(tmp_path, caplog, header):
    """They are certain where they would be found again below, if they were a node's."""
    many = [(f"n{i % 7}", "likes" if i % 3 else "hates", f"m{i % 5}") for i in range(40)]
    for rows in (EDGES, many):
        text = "".join('"{}",{},"{}"\n'.format(*row) for row in rows)
        known = len(header) == 5
        if known or rows is many:
            caplog.clear()
            assert prepared(tmp_path, f"{header}\n{text}") == sorted(rows)
            said = [line for line in lines(caplog) if "column names" in line]
            sure = known and rows is many
            assert said == ["g.csv: line 1 holds column names, not an edge; head, relation, tail: "
                            f"{', '.join(map(repr, header.split(',')))} (--no-header)"] * (not sure)  # fmt: skip
            shutil.rmtree(tmp_path / "graph")


def test_well_known_names_that_are_found_again(tmp_path, caplog):
    """Of RDF's facts many have the predicate type."""
    found = prepared(tmp_path, "source,type,target\n" + "a,type,b\nb,knows,c\n" * 15)
    assert found == sorted([("a", "type", "b"), ("b", "knows", "c")] * 15)
    assert lines(caplog) == ["g.csv: line 1 holds column names, not an edge; head, relation, tail: 'source', 'type', "
                             "'target' (--no-header)"]  # fmt: skip


def test_letters_that_are_found_again_are_nodes(tmp_path, caplog):
    assert ("h", "r", "t") in prepared(tmp_path, "h,r,t\n" + "h,r,x\n" * 30) and not lines(caplog)


def test_a_first_line_that_may_be_either(tmp_path, caplog):
    names = "".join(f"{first}{i},{first}{i + 1}\n".translate(str.maketrans("0123456789", "abcdefghij"))
                    for i in range(40) for first in "xyz")  # fmt: skip
    assert ("person", "friend") in prepared(tmp_path, f"person,friend\n{names}")
    assert lines(caplog) == ["g.csv: line 1 is read as an edge, and may hold column names (--header)"]


def test_a_name_says_which_column_it_is(tmp_path, caplog):
    text = "target,weight,source\n5,0.5,1\n6,0.7,2\n"
    assert prepared(tmp_path, text) == [("1", "5"), ("2", "6")]
    assert lines(caplog) == ["g.csv: left out: 'weight' (weights) (--columns)"]


def test_a_column_between_ends_that_are_named_is_a_relation_unless_no_value_is_there_twice(tmp_path, caplog):
    for count, wanted in [(120, [2]), (60, [3])]:
        rows = "".join(f"a{i % 9},note {i % count},b{i % 7}\n" for i in range(120))
        assert {*map(len, prepared(tmp_path, f"source,remark,target\n{rows}"))} == {*wanted}, count
        shutil.rmtree(tmp_path / "graph")


def test_heads_that_count_the_rows_are_heads_where_relations_and_tails_follow(tmp_path, caplog):
    rows = [(str(i), str(i % 4), str(i * 7 % 200)) for i in range(200)]
    assert prepared(tmp_path, "".join(",".join(row) + "\n" for row in rows)) == sorted(rows) and not lines(caplog)


def test_several_numbers_like_days_are_times_and_one_is_a_name(tmp_path, caplog):
    for days, wanted in [(1, ("n1", "20240101", "m1")), (9, ("n1", "m1"))]:
        rows = "".join(f"n{i},{20240101 + i % days},m{i}\n" for i in range(40))
        assert wanted in prepared(tmp_path, rows), days
        shutil.rmtree(tmp_path / "graph")


def test_names_over_integers_are_told_from_them(tmp_path, caplog):
    text = "% a graph\nwho\twhom\n1\t2\n3\t4\n"
    assert prepared(tmp_path, text, "g.tsv", comment="%") == [("1", "2"), ("3", "4")] and not lines(caplog)


@pytest.mark.parametrize(
    "text", ["a,likes,b\nb,likes,c\n", "head,likes,tail\nb,likes,c\n", "1,2\n3,4\n", "1,r,2\n3,q,4\n", "from,to\n"]
)
def test_what_is_an_edge_stays_one(tmp_path, capsys, text):
    assert prepared(tmp_path, text) == sorted(tuple(line.split(",")) for line in text.splitlines())
    assert "column names" not in capsys.readouterr().err


def test_the_user_has_the_last_word(tmp_path, capsys, command):
    (tmp_path / "g.csv").write_text("from,to\na,b\n")
    code, out, err = command(
        "prepare", tmp_path / "g.csv", "--out", tmp_path / "kept", "--no-header", "--test-fraction", "0"
    )
    assert code == 0 and not any("column names" in line for line in err)
    assert Graph.open(tmp_path / "kept").num_nodes == 4
    code, _, err = command(
        "prepare", tmp_path / "g.csv", "--out", tmp_path / "told", "--header", "--test-fraction", "0"
    )
    assert (
        code == 0 and not any("column names" in line for line in err) and Graph.open(tmp_path / "told").num_nodes == 2
    )
    code, _, err = command("prepare", tmp_path / "g.csv", "--out", tmp_path / "seen", "--test-fraction", "0")
    assert code == 0 and Graph.open(tmp_path / "seen").num_nodes == 2


def test_columns_that_are_named_are_names(tmp_path):
    assert prepared(tmp_path, "x,kind,y\na,r,b\n", columns=("y", "kind", "x")) == [("b", "r", "a")]


def test_each_split_has_a_header_of_its_own(tmp_path, capsys):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.csv.gz").write_bytes(gzip.compress(f"source,target\na,{split}\na,b\n".encode()))
    files = {split: tmp_path / f"{split}.csv.gz" for split in ("train", "valid")}
    prepare(PrepareRequest(out=tmp_path / "g", unseen="keep", **files))
    assert Graph.open(tmp_path / "g").num_nodes == 4 and "column names" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "names, said",
    [
        (["head", "tail", "tail"], "two columns are named 'tail'"),
        (["head", "relation", "tail", "relation"], "2 or 3 columns are expected, 4 found; say which with --columns"),
        (["head", "relation", "tail", "note", "note"], None),
    ],
)
def test_columns_of_one_name(tmp_path, names, said):
    columns = [[f"{name}{row % 7}" for row in range(40)] for name in names]
    pq.write_table(pa.Table.from_arrays([pa.array(each) for each in columns], names=names), tmp_path / "g.parquet")
    request = PrepareRequest(source=str(tmp_path / "g.parquet"), out=tmp_path / "g")
    with pytest.raises(InputError, match=said) if said else nullcontext():
        prepare(request)
    assert (tmp_path / "g").exists() == (said is None)


def test_parquet_columns_are_chosen_by_what_they_are_called(tmp_path):
    pq.write_table(pa.table({"dst": ["t"], "src": ["h"], "ts": [5], "weight": [1.0]}), tmp_path / "g.parquet")
    prepare(
        PrepareRequest(source=str(tmp_path / "g.parquet"), out=tmp_path / "g", test_fraction=0.0, valid_fraction=0.0)
    )
    assert edges_of(Graph.open(tmp_path / "g")) == [("h", "t")]


def test_rules():
    assert not header(["head", "tail"], [])[0] and not header(["head", "tail"], [["a"]])[0]
    assert header(["x", "r", "y"], [["1", "a", "2"], ["-3", "b", "+4"]])[0]
    assert not header(["x", "r", "7"], [["1", "a", "2"]])[0] and not header(["n", "m"], [["1", "a"]])[0]
    assert roles(["source", "target", "friendship"]) == [0, 1] and roles(["a", "b"]) is None
    assert roles(["S", "P", "O"]) == roles(["h", "r", "t"]) == roles(["s", "r", "o", "t"]) == [0, 1, 2]
    assert roles(["u", "v", "t"]) == roles(["s", "t", "w"]) == roles(["i", "j"]) == [0, 1]
    assert roles(["h", "t", "r"]) == [0, 2, 1] and roles(["id_1", "id_2"]) == [0, 1]
    assert roles(["person1", "person2", "type"]) == [0, 2, 1] and roles(["id1", "id2", "x1", "x2"]) is None
    assert roles(["head", "tail", "relation", "relation"]) is None
    assert roles(["user", "item", "rating"]) == [0, 1] and roles(["from", "to", "source"]) is None
    assert roles(["", "source", "target"]) == [1, 2], "an index that pandas wrote"


def test_a_tab_may_be_typed_as_two_characters(command, tmp_path):
    (tmp_path / "g.txt").write_text("".join(f"a b{i}\tis in\tc, {i % 3}\n" for i in range(40)))
    asked = ("--columns", "0,1,2", "--no-header", "--test-fraction", "0.1")
    code, out, _ = command("prepare", tmp_path / "g.txt", "--out", tmp_path / "graph", "--delimiter", r"\t", *asked)
    assert code == 0 and ", 1 relations" in out[0]
