"""Labels of nodes against dictionaries, and what is wrong with a file."""

import csv
import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.graphs import node_lookup as node_names
from marius_oac.data.graphs.labels import SUFFIXES, read_labels
from marius_oac.data.reading import readers, text
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError
from tests.data.named_graphs import NAMES, named_graph

HEADER = ["name", "label", "split"]
GOOD = [("a", "x", "train"), ("b", "y", "train"), ("c", "x", "valid"), ("d", "y", "test")]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return named_graph(tmp_path_factory.mktemp("named"))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(readers, "BATCH_ROWS", 5)
    monkeypatch.setattr(text, "BLOCK_BYTES", 100)
    monkeypatch.setattr(node_names, "STREAM_ROWS", 3)


def write(path, rows, header=HEADER):
    if path.suffix == ".parquet":
        columns = [list(column) for column in zip(*rows, strict=True)]
        pq.write_table(pa.table(dict(zip(header, columns, strict=True))), path)
        return path
    if ".tsv" in path.name:
        content = "".join("\t".join(row) + "\n" for row in [header, *rows])
    else:
        file = io.StringIO()
        csv.writer(file).writerows([header, *rows])
        content = file.getvalue()
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def expected(graph, rows, names):
    """What `Labels` holds, by dictionaries."""
    ids = {name: number for number, name in enumerate(graph.node_names(range(graph.num_nodes)))}
    found = {
        split: sorted((ids[name], names.index(label)) for name, label, s in rows if s == split) for split in SPLITS
    }
    return {split: ([node for node, _ in pairs], [number for _, number in pairs]) for split, pairs in found.items()}


def arrays(labels):
    return {split: (labels.nodes[split].tolist(), labels.classes[split].tolist()) for split in labels.nodes}


@settings(deadline=None, max_examples=40)
@given(
    data=st.data(), suffix=st.sampled_from(SUFFIXES), classes=st.sampled_from([["b", "é x", '"'], ["10", "9", "-1"]])
)
def test_they_are_those_of_the_file(graph, tmp_path_factory, data, suffix, classes):
    order = data.draw(st.permutations(NAMES))[: data.draw(st.integers(len(classes), len(NAMES)))]
    rest = data.draw(st.lists(st.tuples(st.sampled_from(classes), st.sampled_from(SPLITS)), min_size=len(order)))
    rows = [(name, label, split) for name, (label, split) in zip(order, rest, strict=False)]
    rows[: len(classes)] = [(name, label, "train") for name, label in zip(order, classes, strict=False)]
    rows = data.draw(st.permutations(rows))
    labels = read_labels(write(tmp_path_factory.mktemp("labels") / f"a{suffix}", rows), graph)
    assert labels.names == tuple(sorted(classes, key=int) if "9" in classes else sorted(classes))
    assert arrays(labels) == expected(graph, rows, labels.names)
    for each in (*labels.nodes.values(), *labels.classes.values()):
        assert each.dtype == np.int64 and not each.flags.writeable


def test_classes_are_ordered_by_value_if_all_are_integers(graph, tmp_path):
    def names(*labels):
        rows = [(name, label, "train") for name, label in zip(NAMES, labels, strict=False)]
        return read_labels(write(tmp_path / "a.tsv", rows), graph).names

    assert names("10", "9", "-3", "9") == ("-3", "9", "10")
    assert names("1", "01", "0") == ("0", "01", "1")
    assert names("10", "9", "1e3") == ("10", "1e3", "9")
    assert names("10", "9", "²") == ("10", "9", "²")
    assert names("nan", "#c", "NULL") == ("#c", "NULL", "nan")


def test_integers_in_parquet(tmp_path):
    graph = named_graph(tmp_path / "numbers", ["0", "7", "12"])
    rows = [(12, 10, "train"), (0, 9, "train"), (7, 9, "test")]
    labels = read_labels(write(tmp_path / "a.parquet", rows), graph)
    assert labels.names == ("9", "10")
    assert arrays(labels) == {"train": ([0, 1], [0, 1]), "valid": ([], []), "test": ([2], [0])}  # ids: 0, 12, 7


def test_fingerprints_tell_labels_apart(graph, tmp_path):
    def fingerprint(rows, file="a.tsv", header=HEADER):
        return read_labels(write(tmp_path / file, rows, header), graph).fingerprint

    first = fingerprint(GOOD)
    assert first == fingerprint(GOOD[::-1]) == fingerprint(GOOD, "a.csv.gz") == fingerprint(GOOD, "a.parquet")
    assert first == fingerprint([row[::-1] for row in GOOD], header=HEADER[::-1])
    others = [
        fingerprint([("e", "x", "train"), *GOOD[1:]]),
        fingerprint([("a", "y", "train"), ("b", "x", "train"), *GOOD[2:]]),
        fingerprint([*GOOD[:3], ("d", "y", "valid")]),
        fingerprint([(name, label.upper(), split) for name, label, split in GOOD]),
        fingerprint(GOOD[:3]),
    ]
    assert len({first, *others}) == 6


def changed(number, row):
    return [*GOOD[:number], row, *GOOD[number + 1 :]]


@pytest.mark.parametrize(
    "rows, place, message",
    [
        (changed(2, ("A-b", "x", "train")), 3, "unknown node 'A-b'; near: A b"),
        (
            changed(2, ("c", "x", "vaild")),
            3,
            "unknown split 'vaild': train, valid, test are known; did you mean 'valid'?",
        ),
        (changed(2, ("c", "x", "Z")), 3, "unknown split 'Z': train, valid, test are known"),
        ([*GOOD, ("b", "y", "test"), ("a", "x", "test")], 5, "node 'b' has a label already, in {place} "),
        (changed(2, ("c", "z", "valid")), 3, "no node of train has the label 'z' of this one of valid"),
        (changed(0, ("a", "x", "test")), 1, "no node of train has the label 'x' of this one of test"),
        ([("a", "x", "valid"), ("b", "y", "test")], 0, "no node is in train"),
        ([("a", "x", "train"), ("b", "x", "test")], 0, "all labels are 'x': two classes are needed at least"),
    ],
)
def test_rows_that_are_wrong(graph, tmp_path, rows, place, message):
    write(tmp_path / "a.parquet", rows)
    write(tmp_path / "a.csv", rows)
    lines = write(tmp_path / "a.tsv", rows).read_text().splitlines()
    (tmp_path / "a.tsv").write_text("\n" + "\n\n".join(lines))  # row n is in line 2n + 2
    where = {"a.parquet": f": row {place}", "a.csv": f":{place + 1}", "a.tsv": f":{2 * place + 2}"}
    earlier = {"a.parquet": "row 2", "a.csv": "line 3", "a.tsv": "line 6"}
    for file in where:
        said = f"{tmp_path / file}{where[file] if place else ''}: {message.format(place=earlier[file]).strip()}"
        with pytest.raises(InputError) as caught:
            read_labels(tmp_path / file, graph)
        assert str(caught.value) == said


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("a.tsv", "name\tlabel\tsplit\na\t\ttrain\n", ":2: the name in column 'label' is empty"),
        ("a.csv", "split,name,label\ntrain,a,x\n,b,x\n", ":3: the name in column 'split' is empty"),
        ("a.tsv", "name\tlabel\tsplit\na\tx\n", ":2: 3 columns are expected, 2 found"),
        ("a.tsv", "a\tx\ttrain\nb\ty\ttrain\n", ": there is no column 'name'"),
        ("a.csv", "name,class,split\na,x,train\n", ": there is no column 'label'; there are 'name', 'class', 'split'"),
        ("a.csv", "name,labels,split\na,x,train\n", ": there is no column 'label'; did you mean 'labels'?"),
        ("a.tsv", "name\tlabel\tsplit\n", ": the file has no labels"),
        ("a.tsv", "", ": the file is empty"),
        ("a.tsv.gz", "name\n", ": not a gzip file, or a damaged one"),
        ("a.parquet", "name\n", ": not a Parquet file, or a damaged one"),
        (
            "a.txt",
            "name\tlabel\tsplit\n",
            ": unknown kind of file; labels come as .tsv, .csv, .tsv.gz, .csv.gz, .parquet",
        ),
        ("a.gz", "", ": unknown kind of file"),
    ],
)
def test_files_that_are_wrong(graph, tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    with pytest.raises(InputError) as caught:
        read_labels(tmp_path / file, graph)
    assert str(caught.value).startswith(f"{tmp_path / file}{message}")


def test_values_that_are_missing_in_parquet(graph, tmp_path):
    for rows, message in (
        (changed(1, ("b", None, "train")), "row 2 has no value in column 'label'"),
        (changed(1, ("b", "", "train")), "row 2 has an empty 'label'"),
        (
            [(name, float(len(label)), split) for name, label, split in GOOD],
            r"a.parquet: column 'label' holds double: names \(strings\) or integers are needed$",
        ),
        ([(name, label == "x", split) for name, label, split in GOOD], "column 'label' holds bool: names"),
    ):
        with pytest.raises(InputError, match=message):
            read_labels(write(tmp_path / "a.parquet", rows), graph)
    with pytest.raises(InputError, match="no such file"):
        read_labels(tmp_path / "b.tsv", graph)
