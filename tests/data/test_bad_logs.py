import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.data.logs import formats as log_formats
from marius_oac.data.logs import lines as log_lines
from marius_oac.data.logs.files import BlockReader, scan_files
from marius_oac.errors import InputError
from tests.data import naive_logs
from tests.data.written_logs import HEADER, ROWS, config, read, refused, write, write_parquet


@pytest.mark.parametrize(
    "text, said",
    [
        ("label,x,c\n1,2,3\n", "there is no column 'b', which the schema names; there are label, x, c"),
        ("label,x,color,b\n1,2,3,4\n", "there is no column 'c', which the schema names"),
        ("labels,x,c,b\n1,2,3,4\n", "there is no column 'label', which the schema names; did you mean 'labels'?"),
        ("label,x,c,b,note\n1,2,3,4,5\n", "the schema names no column 'note' (data.ignored"),
        ("label,x,c,b,x\n1,2,3,4,5\n", "two columns are named 'x'"),
        ("\nlabel,x,c,b\n1,2,3,4\n", "the first line is blank"),
        ('label,x,c,"b\n1,2,3,4\n', "quotes of the first line don't match"),
        (b"label,x,c,\xff\n1,2,3,4\n", "a.csv:1: byte 0xff is not UTF-8"),
        (HEADER + "1,2,3,4\n,2,3,4\n", "row 2: column 'label' has no label"),
        (HEADER + "1,2,3,4\n2,2,3,4\n", "row 2: the label in column 'label' is 2, neither 0 nor 1"),
        (HEADER + "1,2,3,4\nmay,2,3,4\n", "row 2: the label in column 'label' is 'may', neither 0 nor 1"),
        (
            HEADER + "1,2,3,4\n1,two,3,4\n",
            "row 2: column 'x' has invalid value 'two' (a number is needed; data.missing",
        ),
        (HEADER + "1,2,3,4\n1,$2,3,4\n", "row 2: column 'x' has invalid value '$2' (a number is needed; unit, thou"),
        (HEADER + "1,2,3,4\n1,,3,4\n", "row 2: the number in column 'x' is empty or NaN"),
        (HEADER + "1,2,3,4\n1,-inf,3,4\n", "row 2: the number in column 'x' is infinite"),
        (HEADER + "1,2,3,4\n1,2,3\n", "row 2: Expected 4 columns, got 3: 1,2,3"),
        (HEADER + "1,2,3,4\n1,2,3,4,5\n", "row 2: Expected 4 columns, got 5: 1,2,3,4,5"),
        (HEADER.encode() + b"1,2,3,4\n1,2,\xff,4\n", "row 2: column 'c' has invalid UTF8 data"),
        (HEADER + '1,2,"3\n1,2,3,4\n', "row 1: Expected 4 columns, got 3"),
        (
            HEADER + '1,2,3,"4\n1,2,3,4\n',
            "2 examples were counted, 1 are found: the file has changed, or a quoted value spans",
        ),
        (
            HEADER + '1,2,"a\nb",4\n1,2,3,4\n',
            "3 examples were counted, 2 are found: the file has changed, or a quoted value spans",
        ),
        (gzip.compress(HEADER.encode(), mtime=0), "is compressed with gzip, but its name doesn't end in .gz"),
        (b"PAR1....", "this is a Parquet file"),
    ],
)
def test_bad_text(tmp_path, text, said):
    refused(write(tmp_path / "a.csv", text), config(), said)


def test_bad_values_far_down_have_their_row(tmp_path, monkeypatch):
    for module in (log_formats, log_lines):
        monkeypatch.setattr(module, "TEXT_BYTES", 1 << 12)
    rows = ROWS * 5000
    refused(
        write(tmp_path / "a.csv", HEADER + rows + "1,z,c,b\n"), config(), "row 15001: column 'x' has invalid value 'z'"
    )
    refused(write(tmp_path / "b.csv", HEADER + rows + "1,2\n" + rows), config(), "row 15001: Expected 4 columns")
    refused(write(tmp_path / "c.csv", HEADER + rows + "3,2,c,b\n" + rows), config(), "row 15001: the label")
    named = config(columns=["label", "x", "c", "b"])
    refused(write(tmp_path / "d.csv", rows + "1,z,c,b\n"), named, "row 15001: column 'x' has invalid value 'z'")


@pytest.mark.parametrize(
    "line, said",
    [
        ("1,2,3", "Expected 4 columns, got 3: 1,2,3"),
        ("2,2,c,a", "the label in column 'label' is 2"),
        ("1,z,c,a", "column 'x' has invalid value 'z'"),
        ("1,,c,a", "the number in column 'x' is empty or NaN"),
        ("1,2,c,a|a|q", "column 'b' holds 'q', not a hexadecimal number"),
    ],
)
def test_a_bad_value_has_its_row_whoever_reads_it(tmp_path, line, said):
    rows = ["1,2,c,a|b\n\n"] * 10
    rows[7] = line + "\n"
    path, schema = (
        write(tmp_path / "a.csv", HEADER + "".join(rows)),
        config(multi_valued=[{"name": "b", "kind": "hex"}]),
    )
    with BlockReader(scan_files([path], schema), schema) as reader:
        block = reader.lazy_block(0, 1, 3)
        assert block.examples(np.array([0, 2])).size == 2  # who needs it not, sees it not
        block = reader.lazy_block(0, 2, 3)
        for some in ([1], [0, 1], [0, 1, 2]):
            with pytest.raises(InputError, match=f"a.csv:16: row 8: {said}"):
                block.examples(np.array(some))


@pytest.mark.parametrize(
    "line, kept", [('1,2,c,"a', None), ('1,2,"c,a', None), ('1,2,c,"a""', None), ('1,2,c,5"', '5"')]
)
def test_a_quote_that_is_open_at_the_end_of_what_is_parsed(tmp_path, line, kept):
    """Arrow would let the end close it; what the next trainer makes of the rest nobody knows."""
    path = write(tmp_path / "a.csv", HEADER + ROWS + line + "\n" + ROWS)
    with BlockReader(scan_files([path], config()), config()) as reader:
        block = reader.lazy_block(0, 0, 4)
        if kept is None:
            with pytest.raises(InputError, match="a.csv(:5: row|: rows 2 to) 4: "):
                block.examples(np.array([1, 3]))
        else:
            assert block.examples(np.array([1, 3])).bags["b"].keys[-1] == naive_logs.text_key(kept)[0]


@pytest.mark.parametrize("kind, value", [("hex", "0g"), ("integer", "1.5")])
def test_bad_keys(tmp_path, kind, value):
    schema = config(categorical=[{"name": "c", "kind": kind}])
    refused(
        write(tmp_path / "a.csv", HEADER + f"1,2,3,4\n1,2,{value},4\n"), schema, f"row 2: column 'c' holds '{value}'"
    )


def test_columns_and_delimiter_of_the_config(tmp_path):
    path = write(tmp_path / "a.csv", ROWS)
    refused(path, config(columns=["label", "x", "c"]), "data.columns names 3 columns, the file has 4")
    refused(path, config(columns=["label", "x", "c", "c"]), "two columns are named 'c'")
    for delimiter in ("::", "é", '"', "\n"):
        with pytest.raises(InputError, match="data.delimiter: one ASCII character is needed"):
            read(path, config(delimiter=delimiter))


@pytest.mark.parametrize("cut", [10, 3000])
def test_a_truncated_archive(tmp_path, cut):
    rng = np.random.default_rng(1)
    text = HEADER + "".join(f"1,2,{value},4\n" for value in rng.integers(0, 1 << 62, 2000))
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(text.encode(), mtime=0)[:-cut])
    refused(path, config(), "the compressed file is truncated")
    path.write_bytes(text.encode())
    refused(path, config(), "not a gzip file, or a damaged one")


def test_damage_that_comes_after_the_scan(tmp_path):
    text = HEADER + ROWS * 1000
    path = Path(write(tmp_path / "a.csv.gz", text))
    files = scan_files([str(path)], config())
    path.write_bytes(gzip.compress(text.encode(), mtime=0)[:-10])
    with BlockReader(files, config()) as reader, pytest.raises(InputError, match="the compressed file is truncated"):
        reader.block(0, 0, 3000)


def test_damaged_parquet(tmp_path):
    path = Path(write_parquet(tmp_path / "a.parquet", label=np.ones(9000), c=np.arange(9000)))
    schema, whole = config(numeric=[], multi_valued=[]), path.read_bytes()
    for content in (whole[:-30], whole[:100], b"label,c\n1,2\n"):
        path.write_bytes(content)
        refused(path, schema, "not a Parquet file, or a damaged one")
    path.write_bytes(whole[:4] + bytes(2000) + whole[2004:])
    refused(path, schema, "row group 0: is damaged: there is no page at byte")


@pytest.mark.parametrize(
    "columns, said",
    [
        ({"label": [b"1"], "c": [1], "x": [1.0], "b": ["a"]}, "column 'label' holds binary: numbers, truth values or"),
        (
            {"label": [1], "c": [1], "x": ["z"], "b": ["a"]},
            "row 1: column 'x' has invalid value 'z' (a number is needed",
        ),
        ({"label": [1], "c": [1], "x": [[1]], "b": ["a"]}, "column 'x' holds list<"),
        ({"label": [1], "c": [1.5], "x": [1.0], "b": ["a"]}, "row 1: column 'c' holds 1.5, not a whole number; kind: "),
        ({"label": [1], "c": [[1]], "x": [1.0], "b": ["a"]}, "column 'c' holds list<"),
        ({"label": [1], "c": [1], "x": [1.0], "b": [5]}, "column 'b' holds int64: lists, or texts to be split"),
        ({"label": [1], "c": [1], "x": [1.0], "b": [[0.5]]}, "row 1: column 'b' holds 0.5, not a whole number"),
        ({"label": [None], "c": [1], "x": [1.0], "b": ["a"]}, "row 1: column 'label' has no label"),
        ({"label": [1], "c": [1], "x": [None], "b": ["a"]}, "row 1: the number in column 'x' is empty"),
        ({"label": [1], "c": [1], "x": [1.0]}, "there is no column 'b'"),
        ({"label": [1], "c": [1], "x": [1.0], "b": ["a"], "y": [1]}, "the schema names no column 'y'"),
    ],
)
def test_bad_parquet(tmp_path, columns, said):
    refused(write_parquet(tmp_path / "a.parquet", **columns), config(), said)


def test_parquet_with_two_columns_of_a_name(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([1]), pa.array([2])], names=["label", "c", "c"])
    pq.write_table(table, tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", config(numeric=[], multi_valued=[]), "two columns are named 'c'")


def test_bad_libsvm(tmp_path):
    pair = config(numeric=[], categorical=["u", "v"], multi_valued=[])
    path = write(tmp_path / "a.libsvm", "1 3:1 9:1\n0 3:1\n")
    refused(path, pair, "row 2: 1 ids for 2 categorical features")
    refused(write(tmp_path / "b.libsvm", "1 3:1 9:1\n0 3:1 9:2\n"), pair, "row 2: the value of '9:2' is not 1")
    refused(write(tmp_path / "c.libsvm", "1 3:1 9:1\n-2 3:1 9:1\n"), pair, "the label '-2' is neither 0, 1 nor -1")
    refused(write(tmp_path / "d.libsvm", "1 3:1 9:1\n-1 3:1 9:1\n"), pair, "the label in column 'label' is -1")
    refused(write(tmp_path / "e.libsvm", "1 3:1 9:1\n# none\n"), pair, "a comment on a line of its own, '# none'")
    refused(write(tmp_path / "f.libsvm", "1 0:3:1 1:9:1\n"), pair, "'0:3:1' is field:id:value of libffm")
    for schema in (config(), config(categorical=[]), config(numeric=[], categorical=[], multi_valued=["a", "b"])):
        with pytest.raises(InputError, match="data(.multi_valued)?: a libsvm file has"):
            read(path, schema)
    with pytest.raises(InputError, match="data: 'u': the ids of a libsvm file are integers, not hex"):
        read(path, config(numeric=[], categorical=[{"name": "u", "kind": "hex"}], multi_valued=[]))
