"""Click logs as other programs write them: quotes, blanks, compression, columns of any type. Each has the examples of
the plain file."""

import bz2
import csv
import io
import lzma

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.data.logs.sample import read_sample
from tests.data.written_logs import config, read, refused, write, write_parquet
from tests.run_folders import says

COLUMNS = ["user_id", "price", "title", "click"]
LINES = [[f"u{i % 7}", f"{i * 1.25:.2f}", f"Title {i % 5}; or, so|", str(int(i % 3 == 0))] for i in range(120)]


def text(delimiter, quoting, lines=LINES):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows([COLUMNS, *lines])
    return out.getvalue()


def schema(**keys):
    return config(label="click", numeric=["price"], categorical=["user_id", "title"], multi_valued=[], **keys)


def same(one, other):
    assert one.labels.tolist() == other.labels.tolist() and one.numbers.tolist() == other.numbers.tolist()
    assert {name: keys.tolist() for name, keys in one.keys.items()} == {
        name: keys.tolist() for name, keys in other.keys.items()
    }


@pytest.fixture
def plain(tmp_path):
    return read(write(tmp_path / "plain.csv", text(",", csv.QUOTE_MINIMAL)), schema())


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
def test_quotes_with_any_delimiter_are_found_by_init_and_read(command, tmp_path, plain, delimiter, quoting):
    path = write(tmp_path / "log.csv", text(delimiter, quoting))
    code, _, err = command("init", path, "--task", "ctr", "--out", tmp_path / "found.yaml")
    data = Config.load(tmp_path / "found.yaml").data
    assert code == 0 and data.delimiter == delimiter and data.quotes is (True if delimiter != "\t" or quoting else None)
    features = {key: getattr(schema(), key) for key in ("numeric", "categorical", "multi_valued")}
    same(read(path, data.model_copy(update=features)), plain)
    if quoting == csv.QUOTE_ALL:
        same(read(path, schema(delimiter=delimiter)), plain)  # the first line says it
    elif delimiter != "\t":
        refused(path, schema(delimiter=delimiter), "row 1: Expected 4 columns, got 5")


def test_quotes_within_texts_of_a_log_with_tabs_are_no_quotes(tmp_path):
    lines = [["u1", "1", '"well', "0"], ["u2", "2", '5" wide', "1"]] * 9
    path = write(tmp_path / "log.tsv", "\n".join("\t".join(line) for line in [COLUMNS, *lines]))
    assert not read_sample(tmp_path / "log.tsv").quotes
    assert len(set(read(path, schema()).keys["title"].tolist())) == 2


@pytest.mark.parametrize("suffix", ["bz2", "xz", "zst"])
def test_compressed_texts(command, tmp_path, plain, suffix):
    content = text(",", csv.QUOTE_MINIMAL).encode()
    packed = {"bz2": bz2.compress, "xz": lzma.compress}.get(
        suffix, lambda data: pa.compress(data, "zstd", asbytes=True)
    )
    path = write(tmp_path / f"log.csv.{suffix}", packed(content))
    same(read(path, schema()), plain)
    code, _, err = command("init", path, "--split", tmp_path / "parts", "--out", tmp_path / "found.yaml")
    assert code == 0, err
    parts = [read(tmp_path / "parts" / f"{split}.csv.{suffix}", schema()) for split in ("train", "valid", "test")]
    assert sum(part.size for part in parts) == plain.size
    refused(write(tmp_path / f"cut.csv.{suffix}", packed(content)[:-20]), schema(), "file")
    refused(write(tmp_path / f"bad.csv.{suffix}", content), schema(), "file, or a damaged one")
    refused(write(tmp_path / "named.csv", packed(content)), schema(), f"but its name doesn't end in .{suffix}")


def test_runs_of_blanks(command, tmp_path, plain):
    lines = [[each.replace(" ", "_") for each in line] for line in LINES]
    expected = read(write(tmp_path / "plain.csv", text(",", csv.QUOTE_MINIMAL, lines)), schema())
    padded = ["  ".join(f"{each:<{5 + 3 * n}}" for n, each in enumerate(line)) for line in [COLUMNS, *lines]]
    path = write(tmp_path / "log.txt", "\r\n".join([f" {line}\t" for line in padded]) + "\r\n")
    same(read(path, schema(delimiter="blanks")), expected)
    code, _, err = command("init", path, "--task", "ctr", "--out", tmp_path / "found.yaml")
    assert code == 0 and Config.load(tmp_path / "found.yaml").data.delimiter == "blanks", err


def test_a_line_break_in_quotes_is_named(command, tmp_path):
    path = write(tmp_path / "log.csv", text(",", csv.QUOTE_MINIMAL, [*LINES, ["u1", "2", "two\nlines", "1"]]))
    code, _, err = command("init", path, "--task", "ctr")
    assert code == 2 and says(err, "log.csv:122", "a quoted value spans lines, which only Parquet can hold")


@pytest.mark.parametrize("comma", [False, True])
def test_semicolons_and_decimal_commas(command, tmp_path, plain, comma):
    lines = [[user, price.replace(".", ",") if comma else price, "a, b", click] for user, price, _, click in LINES]
    head = "" if comma else ";".join(COLUMNS) + "\n"
    path = write(tmp_path / "log.csv", head + "".join(";".join(line) + "\n" for line in lines))
    code, _, err = command("init", path, "--out", tmp_path / "found.yaml", "--label", 3 if comma else "click")
    data = Config.load(tmp_path / "found.yaml").data
    assert code == 0 and data.delimiter == ";" and [each.decimal for each in data.numeric] == ["," if comma else "."]
    assert not any("'c1'" in line for line in err)
    numbers = read(
        path, data.model_copy(update={"numeric": (data.numeric[0].model_copy(update={"transform": "none"}),)})
    )
    assert numbers.numbers.tolist() == plain.numbers.tolist()


def test_columns_of_any_type_beside_those_that_are_used(command, tmp_path):
    rows, path = 200, tmp_path / "log.parquet"
    draw = np.random.default_rng(0)
    columns = {
        "user_id": pa.array(draw.integers(0, 30, rows)),
        "struct": pa.array([{"a": 1, "b": {"c": "x"}}] * rows),
        "map": pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        "lists of lists": pa.array([[[1, 2]]] * rows),
        "pairs": pa.array([[i % 5, 7 + i % 3] for i in range(rows)], pa.list_(pa.int64(), 2)),
        "vector": pa.array([[0.5, 1.5]] * rows, pa.list_(pa.float32(), 2)),
        "raw": pa.array([bytes([200, i % 9]) for i in range(rows)]),
        "click": pa.array(draw.integers(0, 2, rows)),
    }
    pq.write_table(pa.table(columns), path)
    code, _, err = command("init", path, "--out", tmp_path / "found.yaml")
    data = Config.load(tmp_path / "found.yaml").data
    assert code == 0 and set(data.ignored) == {"struct", "map", "lists of lists", "vector"}, err
    assert [each.name for each in data.categorical] == ["user_id", "raw"]
    assert [each.name for each in data.multi_valued] == ["pairs"]
    assert all(
        part in err[0] for part in ("left out: ", "struct (holds struct<", "map (holds map<", "lists of lists (")
    )
    block = read(path, data)
    assert block.bags["pairs"].keys.tolist() == [key for i in range(rows) for key in (i % 5, 7 + i % 3)]
    assert len(set(block.keys["raw"].tolist())) == 9


def test_numbers_in_texts_of_parquet_are_read_as_those_of_csv(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", label=[0, 1, 1], x=["1.5", " 2 ", "0.5"], c=["red", None, "blue"])
    assert read(path, config(multi_valued=[])).numbers.tolist() == [[1.5], [2.0], [0.5]]


@pytest.mark.parametrize(
    "keys, texts, expected",
    [
        ({"unit": "$"}, ["$84.05", "-$3", "7", "$ 1e2"], [84.05, -3, 7, 100]),
        (
            {"unit": "EUR", "thousands": ".", "decimal": ","},
            ["1.234,5 EUR", "EUR 12", "12345", ",5"],
            [1234.5, 12, 12345, 0.5],
        ),
        ({"thousands": ","}, ["8,405.00", "1,234,567", "999", "-12,000"], [8405, 1234567, 999, -12000]),
        ({"thousands": ","}, ["8,40.5"], None),
        ({"thousands": ","}, ["0,125"], None),
        ({"thousands": ".", "decimal": ","}, ["1.5"], None),
        ({"decimal": ","}, ["1.5"], None),
        ({"unit": "$"}, ["$$5"], None),
        ({"unit": "$"}, ["12 USD"], None),
    ],
)  # fmt: skip
def test_numbers_as_people_write_them(tmp_path, keys, texts, expected):
    written = config(numeric=[{"name": "x", "transform": "none", **keys}], categorical=[], multi_valued=[])
    path = write_parquet(tmp_path / "a.parquet", label=[1] * len(texts), x=texts)
    if expected is None:
        refused(path, written, f"row 1: column 'x' has invalid value '{texts[0]}' (a number is needed")
    else:
        assert read(path, written).numbers[:, 0].tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize("texts", [["1", "-", "-999"], [" 1", "- ", "-999.0"]])
def test_texts_that_mean_missing(tmp_path, texts):
    numeric = [{"name": "x", "transform": "none", "missing": 5}]
    gaps = config(numeric=numeric, categorical=[], multi_valued=[], missing=["-", "-999"])
    path = write_parquet(tmp_path / "a.parquet", label=[1] * 3, x=texts)
    assert read(path, gaps).numbers[:, 0].tolist() == [1, 5, 5]
    path = write(tmp_path / "a.csv", "label,x\n" + "".join(f"1,{each.strip()}\n" for each in texts))
    assert read(path, gaps).numbers[:, 0].tolist() == [1, 5, 5]
