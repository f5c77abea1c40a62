import csv
import gzip
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.files import scan_files
from marius_oac.data.logs.fingerprints import MISSING
from marius_oac.errors import InputError
from tests.data import naive_logs
from tests.data.written_logs import HEADER, ROWS, config, read, refused, write, write_parquet

DATA = os.environ.get("MARIUS_OAC_DATA")


# ---- what is read


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.txt.gz"])
def test_text_with_a_header(tmp_path, name):
    text = HEADER + ROWS
    path = write(tmp_path / name, text if "csv" in name else text.replace(",", "\t"))
    block = read(path, config())
    assert block.labels.tolist() == [0, 1, 1] and block.numbers.tolist() == [[1.5], [2], [0.5]]
    assert block.keys["c"].tolist() == [naive_logs.text_key(text)[0] for text in ("red", "", "blue")]
    assert block.bags["b"].keys.tolist() == [naive_logs.text_key(text)[0] for text in "abc"]
    assert block.bags["b"].offsets.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize("text", ["\ufeff" + HEADER + ROWS, (HEADER + ROWS).replace("\n", "\r\n"), HEADER + ROWS[:-1]])
def test_marks_line_ends_and_a_last_line_without_one(tmp_path, text):
    expected = read(write(tmp_path / "plain.csv", HEADER + ROWS), config())
    block = read(write(tmp_path / "a.csv", text), config())
    assert block.keys["c"].tolist() == expected.keys["c"].tolist() and block.labels.tolist() == [0, 1, 1]


def test_blank_lines_count_for_nothing(tmp_path):
    path = write(tmp_path / "a.csv", HEADER + "\n\n" + ROWS.replace("\n", "\n\r\n") + "\n\n")
    assert scan_files([path], config())[0].rows == 3
    assert read(path, config()).labels.tolist() == [0, 1, 1]


def test_columns_name_those_of_a_file_without_a_header(tmp_path):
    path = write(tmp_path / "a.log", ROWS.replace(",", ";"))
    named = config(columns=["label", "x", "c", "b"], delimiter=";", format="csv")
    assert read(path, named).labels.tolist() == [0, 1, 1]
    without = write(tmp_path / "b.log", "1.5;red;a\n2;blue;b\n")
    block = read(without, named, with_labels=False)
    assert block.labels is None and block.numbers.tolist() == [[1.5], [2]]


def test_files_need_no_labels_to_be_predicted(tmp_path):
    path = write(tmp_path / "a.csv", "x,c,b\n1,red,a\n")
    assert read(path, config(), with_labels=False).labels is None
    refused(path, config(), "there is no column 'label'")
    labelled = write(tmp_path / "b.csv", HEADER + "nonsense,1,red,a\n")
    assert read(labelled, config(), with_labels=False).numbers.tolist() == [[1]]


def test_ignored_columns_may_be_anything(tmp_path):
    path = write(tmp_path / "a.csv", b"label,x,note,c,b\n1,2,\xff\xfe,red,a\n")
    assert read(path, config(ignored=["note", "absent"])).labels.tolist() == [1]


def test_quotes_belong_to_csv_alone(tmp_path):
    block = read(write(tmp_path / "a.csv", HEADER + '1,2,"r,""e""d",a\n'), config())
    assert block.keys["c"].tolist() == [naive_logs.text_key('r,"e"d')[0]]
    block = read(write(tmp_path / "a.tsv", 'label\tx\tc\tb\n1\t2\t"red\ta\n'), config())
    assert block.keys["c"].tolist() == [naive_logs.text_key('"red')[0]]


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("01"), CELL, CELL), min_size=1, max_size=30), st.integers(1, 9))
def test_csv_is_what_pythons_reader_reads(tmp_path_factory, rows, block_rows):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("label", "c", "d"), *rows])
    columns = [{"name": name, "kind": "verbatim"} for name in "cd"]
    block = read(path, config(numeric=[], categorical=columns, multi_valued=[]), block_rows=block_rows)
    with open(path, newline="", encoding="utf-8") as file:
        expected = list(csv.DictReader(file))
    assert block.labels.tolist() == [float(row["label"]) for row in expected]
    for name in "cd":
        found = zip(block.keys[name].tolist(), block.checks[name].tolist(), strict=True)
        assert list(found) == [naive_logs.text_key(row[name]) for row in expected]


def test_parquet(tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet",
        label=pa.array([0, 1, 1], pa.int8()),
        x=pa.array([1.5, 2, 0.5], pa.float64()),
        c=pa.array([7, None, -3]),
        b=pa.array([["a", "b"], None, ["c"]]),
    )
    block = read(path, config())
    assert block.labels.tolist() == [0, 1, 1] and block.numbers.tolist() == [[1.5], [2], [0.5]]
    assert block.keys["c"].tolist() == [7, MISSING, -3] and block.checks["c"] is None
    assert block.bags["b"].offsets.tolist() == [0, 2, 2, 3]
    assert block.bags["b"].keys.tolist() == [naive_logs.text_key(text)[0] for text in "abc"]


def test_libsvm_by_position_and_as_a_bag(tmp_path):
    path = write(tmp_path / "a.libsvm", "1 3:1 9:1\n\n0 3:1 8:1\n")
    block = read(path, config(numeric=[], categorical=["u", "v"], multi_valued=[]))
    assert block.labels.tolist() == [1, 0]
    assert block.keys["u"].tolist() == [3, 3] and block.keys["v"].tolist() == [9, 8]
    path = write(tmp_path / "a.svm.gz", "1 3:1 9:1\n0\n1 4:1")
    block = read(path, config(numeric=[], categorical=[], multi_valued=["b"]))
    assert block.bags["b"].keys.tolist() == [3, 9, 4] and block.bags["b"].offsets.tolist() == [0, 2, 2, 3]


# ---- which files


def test_patterns_in_order_and_their_files_by_name(tmp_path):
    for name in ("day_2.csv", "day_1.csv", "test.csv", "[odd].csv"):
        write(tmp_path / name, HEADER + ROWS)
    patterns = [tmp_path / "test.csv", tmp_path / "day_*.csv", tmp_path / "[odd].csv"]
    files = scan_files([str(each) for each in patterns], config())
    assert [file.path.name for file in files] == ["test.csv", "day_1.csv", "day_2.csv", "[odd].csv"]
    assert {(file.format, file.rows) for file in files} == {("csv", 3)}


def test_a_fingerprint_is_of_the_content(tmp_path):
    rows = ROWS * 200_000
    same = [write(tmp_path / name, HEADER + rows) for name in ("a.csv", "b.csv")]
    other = [
        write(tmp_path / "end.csv", HEADER + rows[:-2] + "d\n"),
        write(tmp_path / "start.csv", HEADER + "1" + rows[1:]),
        write(tmp_path / "size.csv", HEADER + rows + ROWS),
    ]
    prints = [file.fingerprint for file in scan_files(same + other, config())]
    assert prints[0] == prints[1] and len(set(prints)) == 4


def test_patterns_without_files(tmp_path):
    for pattern, said in (("*.csv", "no file has such a name"), ("a.csv", "no such file")):
        refused(tmp_path / pattern, config(), said)
    (tmp_path / "dir.csv").mkdir()
    refused(tmp_path / "dir.csv", config(), "has no files")
    path = write(tmp_path / "a.csv", HEADER + ROWS)
    with pytest.raises(InputError, match="is named twice"):
        scan_files([path, str(tmp_path / "*.csv")], config())
    refused(write(tmp_path / "a.xyz", HEADER), config(), "unknown kind of file")


@pytest.mark.parametrize("content", ["", HEADER, HEADER + "\n\n"])
def test_an_empty_file_among_others(tmp_path, content):
    write(tmp_path / "a.csv", HEADER + ROWS)
    write(tmp_path / "b.csv", content)
    with pytest.raises(InputError, match=r"b.csv: the file (is empty|has no examples)"):
        scan_files([str(tmp_path / "*.csv")], config())


def test_an_empty_parquet_file(tmp_path):
    columns = {"label": pa.array([], pa.int8()), "c": pa.array([], pa.int64())}
    path = write_parquet(tmp_path / "a.parquet", **columns)
    refused(path, config(numeric=[], multi_valued=[]), "the file has no examples")


SAME = {
    "ints": pa.array([69, 7, None]),
    "doubles": pa.array([69.0, 7.0, None]),
    "decimals": pa.array([Decimal("69.00"), Decimal("7.00"), None]),
    "unsigned": pa.array([69, 7, None], pa.uint64()),
    "texts": pa.array(["69", "7", None]),
    "floats as texts": pa.array([" 69.0", "7.00", ""]),
    "bytes": pa.array([b"69", b"7", b""]),
    "fixed bytes": pa.array([b"69", b"7 ", b"  "], pa.binary(2)),
    "views": pa.array(["69", "7", None], pa.string_view()),
    "encoded": pa.array(["69", "7", None]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", ["integer", "string"])
@pytest.mark.parametrize("column", SAME.values(), ids=SAME)
def test_a_column_of_any_type_has_the_keys_of_the_kind_that_is_settled(tmp_path, kind, column):
    schema = config(numeric=[], multi_valued=[], categorical=[{"name": "c", "kind": kind}])
    block = read(write_parquet(tmp_path / "a.parquet", label=[0, 1, 1], c=column), schema)
    of_text = [naive_logs.text_key(text)[0] for text in ("69", "7", "")]
    assert block.keys["c"].tolist() == ([69, 7, MISSING] if kind == "integer" else of_text)


@pytest.mark.parametrize(
    "column, kind, said",
    [
        (pa.array([4.5]), "auto", "row 1: column 'c' holds 4.5, not a whole number; kind: string takes"),
        (pa.array([4.5]), "integer", "row 1: column 'c' holds 4.5, not a whole number"),
        (pa.array([2.0**53 + 2]), "auto", "row 1: column 'c' holds 9007199254740994.0, beyond 2^53"),
        (pa.array([float("inf")]), "auto", "row 1: column 'c' holds inf"),
        (pa.array([Decimal("4.5")]), "auto", "row 1: column 'c' holds 4.5, not a whole number"),
        (pa.array(["4.5"]), "integer", "row 1: column 'c' holds '4.5', not an integer"),
        (pa.array(["u69"]), "integer", "row 1: column 'c' holds 'u69', not an integer"),
    ],
)
def test_what_can_not_be_converted_exactly_is_refused(tmp_path, column, kind, said):
    schema = config(numeric=[], multi_valued=[], categorical=[{"name": "c", "kind": kind}])
    refused(write_parquet(tmp_path / "a.parquet", label=[1], c=column), schema, said)


def test_ids_beyond_63_bits_are_the_same_in_numbers_and_texts(tmp_path):
    schema = config(numeric=[], multi_valued=[], categorical=[{"name": "c", "kind": "integer"}])
    ids = [2**63 + 1, 2**64 - 1, 5]
    numbers = write_parquet(tmp_path / "a.parquet", label=[0, 1, 1], c=pa.array(ids, pa.uint64()))
    texts = write_parquet(tmp_path / "b.parquet", label=[0, 1, 1], c=pa.array(map(str, ids), pa.string()))
    assert read(numbers, schema).keys["c"].tolist() == read(texts, schema).keys["c"].tolist() == [-(2**63) + 1, -1, 5]


# ---- real data


@pytest.mark.skipif(not DATA, reason="MARIUS_OAC_DATA names no folder of real data")
def test_frappe():
    names = ["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"]
    schema = LogConfig(train="x", categorical=names)
    path = Path(DATA) / "frappe" / "test.csv.gz"
    block = read(path, schema, block_rows=1 << 16)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert block.size == len(rows) == 28_860 and block.labels.tolist() == [float(row["label"]) for row in rows]
    for name in names:
        keys = {row[name]: naive_logs.text_key(row[name])[0] for row in rows}
        assert block.keys[name].tolist() == [keys[row[name]] for row in rows]


@pytest.mark.skipif(not DATA, reason="MARIUS_OAC_DATA names no folder of real data")
def test_criteo():
    columns = ["label", *(f"i{i}" for i in range(13)), *(f"c{i}" for i in range(26))]
    features = [{"name": name, "kind": "hex"} for name in columns[14:]]
    schema = LogConfig(
        train="x", columns=columns, numeric=columns[1:14], categorical=features, missing_numbers=0, log_numbers=True
    )
    path = Path(DATA) / "criteo-10k" / "train.txt.gz"
    block = read(path, schema)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert block.size == len(rows) == 10_000 and round(float(block.labels.mean()), 4) == 0.2182
    for index, name in enumerate(columns[14:], 14):
        assert block.keys[name].tolist() == [naive_logs.hex_key(row[index]) for row in rows]
    numbers = [[naive_logs.logged(float(cell or 0)) for cell in row[1:14]] for row in rows]
    np.testing.assert_allclose(block.numbers, numbers, rtol=1e-5)
