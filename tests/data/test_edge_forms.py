"""Files of edges in the forms of other programs: each is read as what it is, and a guess is a line that names it."""

import os
import shutil
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading import text_parser
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare
from tests.data.test_edge_columns import edges_of

WHOLE = {"valid_fraction": 0.0, "test_fraction": 0.0}


def read(folder, path, caplog, **options):
    """The edges, sorted, and what was said."""
    caplog.clear()
    options = {"source": str(path), "out": folder / "graph", **WHOLE, **options}
    try:
        prepare(PrepareRequest(**options))
        found = edges_of(Graph.open(folder / "graph"))
    finally:
        shutil.rmtree(folder / "graph", ignore_errors=True)
    return found, [record.getMessage().removeprefix(f"{path}: ") for record in caplog.records]


def numbers(rows, width=2, many=50):
    """Edges of numbers: nodes from 0, in the middle of three columns one of five relations."""
    draw = np.random.default_rng(7)
    found = draw.integers(0, many, (rows, width))
    if width == 3:
        found[:, 1] %= 5
    return found.tolist()


PAIRS, TRIPLES = numbers(300), numbers(600, 3)
TIME = 1_082_040_961
OTHERS = {
    "seconds": (lambda i: TIME + 37 * i, "times"),
    "milliseconds": (lambda i: TIME * 1000 + i // 3, "times"),
    "microseconds": (lambda i: TIME * 10**6 + i, "times"),
    "parts of seconds": (lambda i: f"{TIME + i}.25", "times"),
    "days": (lambda i: 20240101 + i % 28, "times"),
    "dates": (lambda i: f"2024-01-{i % 28 + 1:02d}", "times"),
    "moments": (lambda i: f"2024-01-{i % 28 + 1:02d}T10:00:{i % 60:02d}Z", "times"),
    "fractions": (lambda i: f"0.{i % 90 + 10}", "weights"),
    "ones": (lambda i: "1.0", "weights"),
    "exponents": (lambda i: f"{i}e-05", "weights"),
    "signs": (lambda i: (-1, 1)[i % 3 == 0], "weights"),
    "attributes": (lambda i: "{}", "attributes"),
    "other in each row": (lambda i: i * 7919 % 300, "another value in each row, as no end of an edge does"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_end_of_an_edge_is_left_out(tmp_path, caplog, name):
    make, what = OTHERS[name]
    mark = "\t ,"[list(OTHERS).index(name) % 3]
    path = tmp_path / f"g.{'csv' if mark == ',' else 'txt'}"
    path.write_text("".join(f"{head}{mark}{tail}{mark}{make(i)}\n" for i, (head, tail) in enumerate(PAIRS)))
    found, said = read(tmp_path, path, caplog)
    assert found == sorted((str(head), str(tail)) for head, tail in PAIRS)
    assert said == [f"left out: column 2 ({what}) (--columns)"]


def test_what_is_beside_relations_is_left_out_too(tmp_path, caplog):
    path = tmp_path / "icews.tsv"
    lines = [(f"n{i % 40}", f"r{i % 6}", f"n{i * 7 % 40}", f"2014-01-{i % 28 + 1:02d}") for i in range(200)]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    assert read(tmp_path, path, caplog) == (
        sorted(line[:3] for line in lines),
        ["left out: column 3 (times) (--columns)"],
    )
    lines = [(*line[:3], str(i // 9 * 24)) for i, line in enumerate(lines)]
    path.write_text("".join("\t".join(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="2 or 3 columns are expected, 4 found; say which with --columns"):
        read(tmp_path, path, caplog)


def test_names_that_look_like_times_are_ends(tmp_path, caplog):
    path = tmp_path / "g.csv"
    path.write_text("".join(f"{10**9 + head},{10**9 + tail}\n" for head, tail in PAIRS))
    edges = sorted((str(10**9 + h), str(10**9 + t)) for h, t in PAIRS)
    assert read(tmp_path, path, caplog) == (edges, [])
    path.write_text("".join(f"{10**9 + head},{10**9 + tail},0.{tail}\n" for head, tail in PAIRS))
    assert read(tmp_path, path, caplog) == (edges, ["left out: column 2 (weights) (--columns)"])


GUESSED = {
    "relation last": (lambda h, r, t: f"n{h}\tn{t}\tr{r}", (0, 2, 1),
                      "column 2 is taken for the relation, as it has the fewest values, 5"),
    "relation first": (lambda h, r, t: f"r{r}\tn{h}\tn{t}", (1, 0, 2),
                       "column 0 is taken for the relation, as it has the fewest values, 5"),
    "nodes of two kinds": (lambda h, r, t: f"n{h}\tm{t}\tr{r}", (0, 2, 1),
                           "column 2 is taken for the relation, as it has the fewest values, 5"),
    "numbers as well": (lambda h, r, t: f"{h}\t{t}\t{r}", (0, 2, 1),
                        "column 2 is taken for the relation, as it has the fewest values, 5"),
    "counts": (lambda h, r, t: f"{h * 13}\t{r}\t{t**3}", None,
               "read as head, relation, tail, which have 50, 5, 50 different values"),
    "counts among the ids": (lambda h, r, t: f"{h**3}\t{r}\t{t**3}", None,
                             "read as head, relation, tail, which have 50, 5, 50 different values"),
    "other ranges": (lambda h, r, t: f"{h}\t{r}\t{t + 900}", None,
                     "read as head, relation, tail, which have 50, 5, 50 different values"),
    "many relations": (lambda h, r, t: f"{h}\t{t}\t{(h + t) % 40}", None,
                       "read as head, relation, tail, which have 50, 50, 40 different values"),
}  # fmt: skip


@pytest.mark.parametrize("name", GUESSED)
def test_an_order_that_only_values_tell_is_said(tmp_path, caplog, name):
    line, order, why = GUESSED[name]
    path = tmp_path / "g.tsv"
    path.write_text("".join(line(*row) + "\n" for row in TRIPLES))
    found, said = read(tmp_path, path, caplog)
    rows = [line(*row).split("\t") for row in TRIPLES]
    meant = order or (0, 1, 2)
    assert found == sorted(tuple(row[place] for place in meant) for row in rows)
    columns = ", ".join(f"column {place}" for place in meant)
    assert said == [f"head, relation, tail: {columns}; {why} (--columns)"]


CERTAIN = {
    "names": lambda h, r, t: f"n{h}\tr{r}\tn{t}",
    "numbers": lambda h, r, t: f"{h}\t{r}\t{t}",
    "numbers and texts": lambda h, r, t: f"{h}\tlikes{r}\t{t}",
    "two kinds": lambda h, r, t: f"u{h}\tr{r}\ti{t}",
    "leading zeros": lambda h, r, t: f"{h:06d}\t_r{r}\t{t:06d}",
}


@pytest.mark.parametrize("name", CERTAIN)
def test_triples_are_certain(tmp_path, caplog, name):
    path = tmp_path / "g.tsv"
    path.write_text("".join(CERTAIN[name](*row) + "\n" for row in TRIPLES))
    assert read(tmp_path, path, caplog) == (sorted(tuple(CERTAIN[name](*row).split("\t")) for row in TRIPLES), [])


WAYS = {
    "facebook.txt": ("a b\nb c\nc a\n", ()),
    "snap.txt": ("# Directed graph\n# Nodes: 3 Edges: 3\n# FromNodeId\tToNodeId\na\tb\nb\tc\nc\ta\n", ()),
    "commented names.txt": ("#source\ttarget\na\tb\nb\tc\nc\ta\n", ()),
    "padded.txt": ("  a    b\n  b    c\n  c    a\n", ()),
    "semicolons.csv": ("a;b\nb;c\nc;a\n", ()),
    "tabs.csv": ("a\tb\nb\tc\nc\ta\n", ()),
    "commas.txt": ("a,b\nb,c\nc,a\n", ()),
    "pipes.dat": ("a|b\nb|c\nc|a\n", ()),
    "no suffix": ("a\tb\nb\tc\nc\ta\n", ()),
    "all quoted.tsv": ('"a"\t"b"\n"b"\t"c"\n"c"\t"a"\n', ()),
    "quoted and semicolons.csv": ('"a";"b"\r\n"b";"c"\r\n"c";"a"\r\n', ()),
    "blanks behind commas.csv": ("a, b\nb, c\nc, a\n", ()),
    "mark, blank lines, carriage returns.csv": ("\ufeffa,b\r\n\r\nb,c\r\nc,a\r\n\r\n", ()),
}


@pytest.mark.parametrize("name", WAYS)
def test_ways_to_write_it(tmp_path, caplog, name):
    content, said = WAYS[name]
    (tmp_path / name).write_text(content, newline="")
    assert read(tmp_path, tmp_path / name, caplog) == ([("a", "b"), ("b", "c"), ("c", "a")], [*said])


def test_two_delimiters_that_may_be_meant(tmp_path, caplog):
    """The one that leaves two columns that are written alike, if the other does not."""
    letters = [(chr(97 + head % 26), chr(97 + tail % 26)) for head, tail in PAIRS]
    for name, line, mark, other in [("g.dat", "ann {}|bob {}\n", "|", " "), ("g.csv", "{},a;b,{}\n", ",", ";")]:
        (tmp_path / name).write_text("".join(line.format(*pair) for pair in letters))
        found, said = read(tmp_path, tmp_path / name, caplog)
        assert found == sorted(tuple(line.format(*pair)[:-1].split(mark)) for pair in letters)
        assert f"columns are told apart by {mark!r}, as {other!r} might (--delimiter)" in said
    for line, mark in (("x|{} x|{}", " "), ("node {}|node {}", "|")):
        lines = [line.format(*pair) for pair in PAIRS]
        (tmp_path / "g.dat").write_text("\n".join(lines))
        assert read(tmp_path, tmp_path / "g.dat", caplog) == (sorted(tuple(each.split(mark)) for each in lines), [])


def test_blanks_that_belong_to_names_are_told_of(tmp_path, caplog):
    path = tmp_path / "g.csv"
    path.write_text("a,b\nb,c \nc,a\n c,b\n")
    said = ["names keep blanks around them: ' c' is another one than 'c'"]
    assert read(tmp_path, path, caplog) == ([(" c", "b"), ("a", "b"), ("b", "c "), ("c", "a")], said)
    path.write_text("a, b\nb, \n")
    with pytest.raises(InputError, match=r"g\.csv:2: the name in column 1 \(counted from 0\) is empty"):
        read(tmp_path, path, caplog)


def test_quotes_hide_a_delimiter(tmp_path, caplog):
    (tmp_path / "g.txt").write_text('"\tr\t"\na\tr\tb\n')
    assert read(tmp_path, tmp_path / "g.txt", caplog) == ([('"', "r", '"'), ("a", "r", "b")], [])
    (tmp_path / "g.txt").write_text('"a\tb"\tc\nc\t"say ""x"""\n')
    assert read(tmp_path, tmp_path / "g.txt", caplog) == ([("a\tb", "c"), ("c", 'say "x"')], [])
    (tmp_path / "g.txt").write_text('"a"\tb\nb\tc\n')
    said = "1 names of the first 2 lines keep quotes around them (--quotes takes these off)"
    assert read(tmp_path, tmp_path / "g.txt", caplog) == ([('"a"', "b"), ("b", "c")], [said])
    for quotes, first in ((False, '"a"'), (True, "a")):
        options = {"read": ReadOptions(quotes=quotes)}
        assert read(tmp_path, tmp_path / "g.txt", caplog, **options) == ([(first, "b"), ("b", "c")], [])
    (tmp_path / "g.txt").write_text('5" pipe\tb\nb\tc\n')
    assert read(tmp_path, tmp_path / "g.txt", caplog) == ([('5" pipe', "b"), ("b", "c")], [])


@pytest.mark.parametrize("doubled", [19, 20])
def test_quotes_that_are_doubled_in_many_names_are_no_part_of_these(tmp_path, caplog, doubled):
    lines = [f'"the ""{i}"""\tb{i}' for i in range(doubled)]
    (tmp_path / "g.txt").write_text("".join(f"{line}\n" for line in [*lines, "a\tb"]))
    edges, _ = read(tmp_path, tmp_path / "g.txt", caplog)
    first = 'the "{}"' if doubled == 20 else '"the ""{}"""'
    assert edges == sorted([("a", "b"), *((first.format(i), f"b{i}") for i in range(doubled))])


TAGGED = {
    "heads and tails": ("#a\t#b\nb\t#a\n", [("#a", "#b"), ("b", "#a")], []),
    "all heads": ("#a\tb\n#b\tc\n", [("#a", "b"), ("#b", "c")], []),
    "behind comments": ("# Nodes: 2\n#a\t#b\n#b\t#a\n", [("#a", "#b"), ("#b", "#a")], []),
    "some heads": ("a\tb\n#b\tc\n", [("#b", "c"), ("a", "b")],
                   ["1 of the first 2 lines begin with # and have the columns of an edge: read as edges "
                    "(--comment '#')"]),
    "numbers": ("1\t2\n#2\t3\n3\t4\n", [("1", "2"), ("3", "4")],
                ["1 of the first 3 lines begin with # and have the columns of an edge: skipped as comments "
                 "(--comment '')"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TAGGED)
def test_lines_that_begin_with_a_tag(tmp_path, caplog, name):
    content, edges, said = TAGGED[name]
    (tmp_path / "g.tsv").write_text(content)
    assert read(tmp_path, tmp_path / "g.tsv", caplog) == (edges, said)
    found, _ = read(tmp_path, tmp_path / "g.tsv", caplog, read=ReadOptions(comment=""), unseen="keep") if (
        name != "behind comments") else (edges, 0)  # fmt: skip
    assert len(found) == content.count("\n") - (name == "behind comments")


def test_tags_behind_the_first_lines_are_told_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(text_parser, "_LOOKED_AT", 10)
    (tmp_path / "g.tsv").write_text("a\tb\n" * 50 + "#a\tb\n# a\tcomment\n" + "a\tb\n" * 50)
    found, said = read(tmp_path, tmp_path / "g.tsv", caplog)
    assert len(found) == 100
    assert said == ["1 lines begin with # and have the columns of an edge: skipped as comments (--comment '')"]


def test_more_comments_than_lines_are_looked_at(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(text_parser, "_LOOKED_AT", 10)
    (tmp_path / "g.tsv").write_text("# a comment\n" * 30 + "a\tb\n" * 20)
    summary = prepare(PrepareRequest(source=str(tmp_path / "g.tsv"), out=tmp_path / "g", **WHOLE))
    assert summary.edges["train"] == 20 and summary.comment_lines == 30
    monkeypatch.setattr("marius_oac.data.reading.text.BLOCK_BYTES", 100)
    again = prepare(PrepareRequest(source=str(tmp_path / "g.tsv"), out=tmp_path / "again", **WHOLE))
    assert again.edges["train"] == 20 and again.comment_lines == 30 and not caplog.records


def test_a_file_of_openke(tmp_path, caplog):
    lines = "".join(f"{h} {t} {r}\n" for h, r, t in TRIPLES)
    expected = sorted((str(h), str(r), str(t)) for h, r, t in TRIPLES)
    for name in ("train2id.txt", "edges.txt"):
        (tmp_path / name).write_text(f"{len(TRIPLES)}\n{lines}")
        assert read(tmp_path, tmp_path / name, caplog) == (expected, [])
    (tmp_path / "edges.txt").write_text(f"{len(TRIPLES) + 5}\n{lines}")
    assert read(tmp_path, tmp_path / "edges.txt", caplog)[1] == ["its first line says 605 edges, and it has 600"]
    (tmp_path / "edges.txt").write_text(f"{len(TRIPLES)}\n" + "".join(f"{h}\t{r}\t{t}\n" for h, r, t in TRIPLES))
    found, said = read(tmp_path, tmp_path / "edges.txt", caplog)
    assert found == expected and "after a line with a number OpenKE writes head, tail, relation" in said[0]
    few = [(0, 1, 1), (1, 0, 2), (2, 1, 3)]
    (tmp_path / "edges.txt").write_text("3\n" + "".join(f"{h} {t} {r}\n" for h, r, t in few))
    found, said = read(tmp_path, tmp_path / "edges.txt", caplog)
    assert found == sorted((str(h), str(r), str(t)) for h, r, t in few)
    assert said == ["head, relation, tail: column 0, column 2, column 1; "
                    "read as OpenKE's file, as its first line is a number (--columns)"]  # fmt: skip


def test_a_first_line_of_two_numbers(tmp_path, caplog):
    path = tmp_path / "g.txt"
    path.write_text(f"50 {len(PAIRS)}\n" + "".join(f"{head} {tail}\n" for head, tail in PAIRS))
    found, said = read(tmp_path, path, caplog)
    assert len(found) == 301
    assert said == ["its first line may give the numbers of nodes and edges, and is read as an edge"]


def test_lines_of_json_are_no_columns(tmp_path, caplog):
    (tmp_path / "g.txt").write_text('{"source": 1, "target": 2}\n' * 3)
    with pytest.raises(InputError, match="its lines are objects of JSON"):
        read(tmp_path, tmp_path / "g.txt", caplog)


def test_other_splits_are_read_as_train_is(tmp_path, caplog):
    """Their own values may tell otherwise."""
    rows = [f"{h}\t{t}\t{r}\n" for h, r, t in TRIPLES]
    (tmp_path / "train.tsv").write_text("".join(rows))
    (tmp_path / "valid.tsv").write_text("".join(rows[:2]))
    files = {split: tmp_path / f"{split}.tsv" for split in ("train", "valid")}
    prepare(PrepareRequest(out=tmp_path / "g", **files))
    graph = Graph.open(tmp_path / "g")
    assert graph.num_relations == 5 and graph.num_edges["valid"] == 2
    assert len([each for each in caplog.records if "taken for the relation" in each.getMessage()]) == 1


ENDS, KINDS = np.array(PAIRS).T, np.arange(300) % 4


@pytest.mark.parametrize(("dtype", "order"), [(np.int64, "C"), (np.int32, "F"), (np.uint16, "C")])
def test_an_edge_index(tmp_path, caplog, dtype, order):
    np.save(tmp_path / "g.npy", np.array(ENDS, dtype, order=order))
    expected = sorted((str(h), str(t)) for h, t in PAIRS)
    assert read(tmp_path, tmp_path / "g.npy", caplog) == (expected, [])
    np.save(tmp_path / "g.npy", np.array(ENDS.T, dtype, order=order))
    assert read(tmp_path, tmp_path / "g.npy", caplog) == (expected, [])


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz(tmp_path, caplog, save):
    path, expected = tmp_path / "g.npz", sorted((str(h), str(t)) for h, t in PAIRS)
    save(path, x=np.ones((50, 3)), edge_index=ENDS, edge_weight=np.ones(300))
    assert read(tmp_path, path, caplog) == (expected, ["left out: edge_weight (arrays)"])
    save(path, ENDS.T)
    assert read(tmp_path, path, caplog) == (expected, [])
    save(path, edge_index=ENDS, edge_type=KINDS)
    found, said = read(tmp_path, path, caplog)
    assert found == sorted((str(h), str(k), str(t)) for (h, t), k in zip(PAIRS, KINDS, strict=True)) and not said
    save(path, edge_index=ENDS[:, :2])
    assert read(tmp_path, path, caplog) == (sorted((str(h), str(t)) for h, t in PAIRS[:2]), [])
    for content, why in [
        ({"a": ENDS, "b": ENDS}, "has no array 'edge_index'; it has a, b"),
        ({"edge_index": ENDS, "edge_type": KINDS[:7]}, "edge_index has the shape"),
        ({"edge_index": np.array([[0, None]])}, "not a NumPy file of integers, or a damaged one"),
        ({"edge_index": ENDS.astype(float)}, "ids must be integers, not float64"),
    ]:
        save(path, **content)
        with pytest.raises(InputError, match=rf"g\.npz: {why}"):
            read(tmp_path, path, caplog)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="not a NumPy file of integers, or a damaged one"):
        read(tmp_path, path, caplog)


@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_a_small_array_may_be_either(tmp_path, caplog, shape):
    np.save(tmp_path / "g.npy", np.arange(6)[: shape[0] * shape[1]].reshape(shape))
    found, said = read(tmp_path, tmp_path / "g.npy", caplog)
    assert len(found) == 2 and len(found[0]) == shape[1]
    assert f"an array of 2 x {shape[1]} is read as an edge in each row" in said[0]


class Kept:
    """As PyTorch Geometric's classes are pickled."""

    def __init__(self, **values):
        self.__dict__.update(values)


@pytest.fixture
def geometric(monkeypatch):
    """Its classes, as far as a pickle names them."""
    made = {}
    for package in ("torch_geometric", "torch_geometric.data"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    of = {"data": ("Data", "DataEdgeAttr", "DataTensorAttr"), "storage": ("GlobalStorage",)}
    for module, names in of.items():
        known = types.ModuleType(f"torch_geometric.data.{module}")
        monkeypatch.setitem(sys.modules, known.__name__, known)
        for name in names:
            made[name] = type(name, (Kept,), {"__module__": known.__name__})
            setattr(known, name, made[name])

    def data(**values):
        store = made["GlobalStorage"](_mapping=values)
        classes = {"_edge_attr_cls": made["DataEdgeAttr"], "_tensor_attr_cls": made["DataTensorAttr"]}
        graph = made["Data"](**classes, _store=store)
        store._parent = graph
        return graph

    return data


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_pytorch_geometric(tmp_path, caplog, geometric, zipped):
    path, expected = tmp_path / "g.pt", sorted((str(h), str(t)) for h, t in PAIRS)
    ends, kinds = torch.from_numpy(ENDS), torch.from_numpy(KINDS)
    for value in (ends, ends.T.contiguous(), {"edge_index": ends, "x": torch.ones(3)}, geometric(edge_index=ends),
                  (geometric(edge_index=ends, y=torch.ones(2)), None)):  # fmt: skip
        torch.save(value, path, _use_new_zipfile_serialization=zipped)
        assert read(tmp_path, path, caplog) == (expected, [])
    torch.save(geometric(edge_index=ends, edge_type=kinds, edge_attr=torch.ones(300, 2)), path)
    found, said = read(tmp_path, path, caplog)
    assert found == sorted((str(h), str(k), str(t)) for (h, t), k in zip(PAIRS, KINDS, strict=True))
    assert said == ["left out: edge_attr (arrays)"]


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harmed",)


def test_nothing_of_a_pt_is_run(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    torch.save({"edge_index": torch.from_numpy(ENDS), "more": Harmful()}, tmp_path / "g.pt")
    with pytest.raises(InputError, match="which is not read here"):
        read(tmp_path, tmp_path / "g.pt", caplog)
    assert not os.path.exists("harmed")


def test_columns_of_a_parquet_file_without_telling_names(tmp_path, caplog):
    path = tmp_path / "g.parquet"
    heads, tails = zip(*PAIRS, strict=True)
    pq.write_table(pa.table({"a": heads, "b": tails, "c": [i / 7 for i in range(300)]}), path)
    assert read(tmp_path, path, caplog) == (
        sorted((str(h), str(t)) for h, t in PAIRS),
        ["left out: 'c' (weights) (--columns)"],
    )


def test_ids_that_pandas_has_made_floats(tmp_path, caplog):
    path = tmp_path / "g.csv"
    path.write_text("source,target\n1,2.0\n2,3.0\n")
    said = ["ids of column 1 are written as 2.0 and read as 2"]
    assert read(tmp_path, path, caplog) == ([("1", "2"), ("2", "3")], said)


def test_labels_of_edges_may_be_no_relations(tmp_path, caplog):
    path = tmp_path / "g.csv"
    path.write_text("source,target,label\n" + "".join(f"{h},{t},{i % 2}\n" for i, (h, t) in enumerate(PAIRS)))
    found, said = read(tmp_path, path, caplog)
    assert len(found[0]) == 3 and "numbers such as 0 may be labels of the edges, not relations" in said[0]
    path.write_text("Source,Target,Type,Weight\n" + "".join(f"{h},{t},Undirected,1.0\n" for h, t in PAIRS))
    found, said = read(tmp_path, path, caplog)
    assert len(found[0]) == 2 and said == ["left out: 'Type' (the kind of graph), 'Weight' (weights) (--columns)"]


def reported(rows):
    """Files that were read wrongly once: name, content, edges, and what is said."""
    draw = np.random.default_rng(3)
    ends, kinds = draw.integers(0, 3000, (rows, 2)).tolist(), draw.integers(0, 12, rows).tolist()
    named = [(f"n{h}", f"kind_{k}", f"n{t}") for (h, t), k in zip(ends, kinds, strict=True)]
    plain = [(str(h), str(t)) for h, t in ends]
    tagged = [(f"#tag{h}", "used_with", f"#tag{t}") for h, t in ends]
    ids = [(str(h), str(k), str(t)) for (h, t), k in zip(ends, kinds, strict=True)]
    text = "".join("{}\t{}\t{}\n".format(*row) for row in named)
    times = "".join(f"{h} {t} {TIME + 37 * i}\n" for i, (h, t) in enumerate(ends))
    yield "header_hrt.tsv", f"h\tr\tt\n{text}", named, []
    yield "header_spo.tsv", f"S\tP\tO\n{text}", named, []
    yield "hashtags.tsv", "".join("{}\t{}\t{}\n".format(*row) for row in tagged), tagged, []
    yield "source_target_time.txt", times, plain, ["left out: column 2 (times) (--columns)"]
    yield "train2id.txt", f"{rows}\n" + "".join(f"{h} {t} {k}\n" for h, k, t in ids), ids, []
    yield "edge_index.npy", np.array(ends).T, plain, []


@pytest.mark.parametrize("rows", [400, pytest.param(20_000, marks=pytest.mark.slow)])
def test_files_that_were_read_wrongly(tmp_path, caplog, command, rows):
    """`init` reads them as `prepare` does: it says the same, and its command needs no option."""
    for name, content, edges, said in reported(rows):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content)
        else:
            np.save(path, content)
        assert read(tmp_path, path, caplog) == (sorted(edges), said), name
        code, out, err = command("init", path)
        assert code == 0 and f"#   marius-oac prepare {path} --out data/{path.stem}" in out, name
        assert [line for line in err if "left out" in line] == [f"note: {path}: {line}" for line in said]
        assert ("  decoder: dot" in "\n".join(out)) == (len(edges[0]) == 2)


@pytest.mark.parametrize("parts, plain, said", [
    (["a, in, b\nb, in, c\n", "c, on, a\n"], [("a", "in", "b"), ("b", "in", "c"), ("c", "on", "a")], 0),
    (["1.0,2\n2.0,3\n", "3.0,1\n3.0,4\n"], [("1", "2"), ("2", "3"), ("3", "1"), ("3", "4")], 2),
    (["1,2\n2,3\n", "1.0,3\n3.0,2\n"], [("1", "2"), ("2", "3"), ("1", "3"), ("3", "2")], 1),
    (["a\tb\nb\tc\n" * 20, "#x\ty\n#z\tw\nx\ty\n" * 20],
     [("a", "b"), ("b", "c"), ("#x", "y"), ("#z", "w"), ("x", "y")], 1),
])  # fmt: skip
def test_of_several_files_each_is_read_and_told_of_as_alone(tmp_path, caplog, parts, plain, said):
    folder, suffix = tmp_path / "parts", "tsv" if "\t" in parts[0] else "csv"
    folder.mkdir()
    for number, text in enumerate(parts):
        (folder / f"{number}.{suffix}").write_text(text)
    found, told = read(tmp_path, folder, caplog)
    assert {tuple(map(str, edge)) for edge in found} == set(plain)
    assert len(told) == said, told


def test_what_an_edge_index_and_runs_of_blanks_can_not_have(tmp_path, caplog):
    np.savez(tmp_path / "a.npz", edge_index=np.arange(20).reshape(2, 10))
    with pytest.raises(InputError, match="an edge_index has an edge in each column: leave --columns out"):
        read(tmp_path, tmp_path / "a.npz", caplog, read=ReadOptions(columns=("0", "1")))
    (tmp_path / "a.txt").write_text('"a"  "x"\n"b"  "y"\n' * 20)
    with pytest.raises(InputError, match="names between runs of blanks can't be quoted"):
        read(tmp_path, tmp_path / "a.txt", caplog, read=ReadOptions(quotes=True))
