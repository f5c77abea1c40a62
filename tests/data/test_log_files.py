import csv
import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config_ctr import LogConfig
from marius_oac.data import log_files, log_formats, log_lines
from marius_oac.data.fingerprints import MISSING
from marius_oac.data.log_columns import LogBlock
from marius_oac.data.log_files import BlockReader, LogFiles
from marius_oac.errors import InputError
from tests.data import naive_logs

DATA = os.environ.get("MARIUS_OAC_DATA")
HEADER = "label,x,c,b\n"
ROWS = "0,1.5,red,a|b\n1,2,,\n1,0.5,blue,c\n"


def config(**keys):
    default = {"numeric": ["x"], "categorical": ["c"], "multi_valued": ["b"]}
    return LogConfig(train="x", **(default | keys))


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def write_parquet(path, rows_per_group=1000, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return str(path)


def read(path, schema, with_labels=True, block_rows=1000):
    files = LogFiles.scan([str(path)], schema, with_labels).files
    with BlockReader(files, schema, with_labels) as reader:
        blocks = -(-files[0].rows // block_rows)
        return LogBlock.join([reader.block(0, number, block_rows) for number in range(blocks)])


def refused(path, schema, said, with_labels=True):
    """Scanning or reading says this, in one line that names the file."""
    with pytest.raises(InputError) as caught:
        read(path, schema, with_labels)
    assert said in str(caught.value), str(caught.value)
    assert caught.value.where == str(path) and "\n" not in str(caught.value)


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
    assert LogFiles.scan([path], config()).files[0].rows == 3
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
    block = read(path, config(numeric=[], categorical=["c", "d"], multi_valued=[]), block_rows=block_rows)
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
    files = LogFiles.scan([str(each) for each in patterns], config()).files
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
    prints = [file.fingerprint for file in LogFiles.scan(same + other, config()).files]
    assert prints[0] == prints[1] and len(set(prints)) == 4


def test_patterns_without_files(tmp_path):
    for pattern, said in (("*.csv", "no file has such a name"), ("a.csv", "no such file")):
        refused(tmp_path / pattern, config(), said)
    (tmp_path / "dir.csv").mkdir()
    refused(tmp_path / "dir.csv", config(), "is a folder, not a file")
    path = write(tmp_path / "a.csv", HEADER + ROWS)
    with pytest.raises(InputError, match="is named twice"):
        LogFiles.scan([path, str(tmp_path / "*.csv")], config())
    refused(write(tmp_path / "a.xyz", HEADER), config(), "unknown kind of file")


@pytest.mark.parametrize("content", ["", HEADER, HEADER + "\n\n"])
def test_an_empty_file_among_others(tmp_path, content):
    write(tmp_path / "a.csv", HEADER + ROWS)
    write(tmp_path / "b.csv", content)
    with pytest.raises(InputError, match=r"b.csv: the file (is empty|has no examples)"):
        LogFiles.scan([str(tmp_path / "*.csv")], config())


def test_an_empty_parquet_file(tmp_path):
    columns = {"label": pa.array([], pa.int8()), "c": pa.array([], pa.int64())}
    path = write_parquet(tmp_path / "a.parquet", **columns)
    refused(path, config(numeric=[], multi_valued=[]), "the file has no examples")


def test_types_do_not_change_between_files(tmp_path):
    schema = config(numeric=[], multi_valued=[])
    whole = write_parquet(tmp_path / "a.parquet", label=pa.array([1]), c=pa.array([1]))
    text = write_parquet(tmp_path / "b.parquet", label=pa.array([1]), c=pa.array(["1"]))
    said = r"b.parquet: the type of column 'c' changes: string here, integer in .*a.parquet"
    with pytest.raises(InputError, match=said):
        LogFiles.scan([whole, text], schema)
    scanned = [LogFiles.scan([path], schema).files[0] for path in (whole, text)]
    with pytest.raises(InputError, match=said):
        BlockReader(scanned, schema)
    # A kind settles it: integers are read as their digits.
    settled = config(numeric=[], multi_valued=[], categorical=[{"name": "c", "kind": "string"}])
    assert read(whole, settled).keys["c"].tolist() == read(text, settled).keys["c"].tolist()


# ---- blocks


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Three files of the same 2,500 examples and one more, and what their rows are."""
    folder, n = tmp_path_factory.mktemp("logs"), 2500
    names = ["".join(each) for each in itertools.islice(itertools.product("abcdefgh", repeat=4), n)]
    label, x = np.arange(n) % 2, np.arange(n, dtype=np.float32)
    rows = "".join(f"{label[i]},{i},{names[i]},{names[i]}|z\n" for i in range(n))
    bags = [f"{name}|z" for name in names]
    paths = [
        write(folder / "1.csv", HEADER + rows),
        write(folder / "2.tsv.gz", (HEADER + rows).replace(",", "\t")),
        write_parquet(folder / "3.parquet", 300, label=label, x=x, c=names, b=bags),
        write(folder / "4.csv", HEADER + ROWS),
    ]
    return LogFiles.scan(paths, config()).files


def numbers(block):
    return block.numbers[:, 0].astype(int).tolist()


def test_blocks_in_order(logs, monkeypatch):
    for module in (log_formats, log_lines):
        monkeypatch.setattr(module, "TEXT_BYTES", 1 << 12)
    monkeypatch.setattr(log_formats, "BATCH_ROWS", 170)
    with BlockReader(logs, config()) as reader:
        for file, rows in itertools.product(range(3), (1, 64, 999, 2500, 10_000)):
            if rows == 1:
                found = [reader.block(file, number, rows) for number in range(50)]
                assert [numbers(block) for block in found] == [[i] for i in range(50)]
                continue
            found = [reader.block(file, number, rows) for number in range(-(-2500 // rows))]
            assert [block.size for block in found[:-1]] == [rows] * (len(found) - 1)
            joined = LogBlock.join(found)
            assert numbers(joined) == list(range(2500)) and joined.bags["b"].offsets[-1] == 5000
        with pytest.raises(ValueError, match="no block 3 of 1000 rows"):
            reader.block(0, 3, 1000)


def test_parquet_begins_at_the_row_group_of_the_first_row(logs, monkeypatch):
    asked, plain = [], pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda *args, **rest: asked.append(args[2]) or plain(*args, **rest)
    )
    block = next(log_formats.open_log(logs[2].path, config(), True).blocks(650, 100))
    ((rows, batch),) = block.parse(np.arange(100))
    assert rows.tolist() == list(range(650, 750)) and batch.column("x").to_pylist() == rows.tolist()
    assert asked == [[2, 3, 4, 5, 6, 7, 8]]


def test_libsvm_lines_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(log_lines, "TEXT_BYTES", 1 << 7)
    path = write(tmp_path / "a.libsvm", "".join(f"{i % 2} {i}:1 {i * i}:1\n" for i in range(1000)))
    block = read(path, config(numeric=[], categorical=["u", "v"], multi_valued=[]), block_rows=300)
    assert block.labels.tolist() == [i % 2 for i in range(1000)]
    assert block.keys["v"].tolist() == [i * i for i in range(1000)]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 24)), min_size=1, max_size=12))
def test_blocks_in_any_order(logs, wanted):
    with BlockReader(logs, config()) as reader:
        for file, number in wanted:
            assert numbers(reader.block(file, number, 100)) == list(range(100 * number, 100 * number + 100))


def test_blocks_somewhat_out_of_order_cost_one_pass(logs, monkeypatch):
    opened = []
    log = log_files.open_log
    monkeypatch.setattr(log_files, "open_log", lambda path, *rest: opened.append(path.name) or log(path, *rest))
    order = [(0, number) for number in (0, 2, 1, 3, 7, 4, 6, 5, *range(8, 24))]
    order += [(1, 0), (0, 24), (1, 2), (1, 1)]  # another thread is in the next file already
    with BlockReader(logs, config()) as reader:
        for file, number in order:
            assert numbers(reader.block(file, number, 100))[0] == 100 * number
            assert len(reader._passed) <= log_files.AHEAD
    assert opened == ["1.csv", "2.tsv.gz"]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2), st.integers(1, 2500), st.lists(st.sets(st.integers(0, 2499), min_size=1, max_size=9)))
def test_some_examples_of_a_block(logs, file, block_rows, wanted):
    with BlockReader(logs, config()) as reader:
        for number in (0, 2499 // block_rows):
            block, first = reader.lazy_block(file, number, block_rows), number * block_rows
            for some in wanted:
                chosen = sorted({each % block.size for each in some})
                found = block.examples(np.array(chosen))
                assert numbers(found) == [first + each for each in chosen]
                assert found.bags["b"].offsets[-1] == 2 * len(chosen)


def test_a_byte_order_mark_within_a_file_belongs_to_a_value(tmp_path):
    text = "c,label,x,b\n" + "red,1,2,a\n" + "\ufeffred,1,2,a\n" * 2
    block = read(write(tmp_path / "a.csv", "\ufeff" + text), config(), block_rows=1)
    key, marked = (naive_logs.text_key(text)[0] for text in ("red", "\ufeffred"))
    assert block.keys["c"].tolist() == [key, marked, marked]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_file_that_changes_while_it_is_read(tmp_path, name):
    def put(rows):
        if name == "a.csv":
            return write(tmp_path / name, "label,c\n" + "1,2\n" * rows)
        return write_parquet(tmp_path / name, label=np.ones(rows), c=np.ones(rows, int))

    schema = config(numeric=[], multi_valued=[], categorical=[{"name": "c", "kind": "integer"}])
    files = LogFiles.scan([put(10)], schema).files
    for rows, said in ((12, "10 examples were counted, more are found"), (7, "10 examples were counted, 7 are")):
        put(rows)
        with BlockReader(files, schema) as reader, pytest.raises(InputError, match=said):
            reader.block(0, 0, 10)
    (tmp_path / name).unlink()
    with BlockReader(files, schema) as reader, pytest.raises(InputError, match="no such file"):
        reader.block(0, 0, 10)


# ---- bad input


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
        (b"label,x,c,\xff\n1,2,3,4\n", "byte 0xff of the first line is not UTF-8"),
        (HEADER + "1,2,3,4\n,2,3,4\n", "row 2: column 'label' has no label"),
        (HEADER + "1,2,3,4\n2,2,3,4\n", "row 2: the label in column 'label' is 2, neither 0 nor 1"),
        (HEADER + "1,2,3,4\nyes,2,3,4\n", "row 2: column 'label' has invalid value 'yes' (a number is needed)"),
        (HEADER + "1,2,3,4\n1,two,3,4\n", "row 2: column 'x' has invalid value 'two' (a number is needed)"),
        (HEADER + "1,2,3,4\n1,,3,4\n", "row 2: the number in column 'x' is empty or NaN"),
        (HEADER + "1,2,3,4\n1,-inf,3,4\n", "row 2: the number in column 'x' is infinite"),
        (HEADER + "1,2,3,4\n1,2,3\n", "row 2: Expected 4 columns, got 3: 1,2,3"),
        (HEADER + "1,2,3,4\n1,2,3,4,5\n", "row 2: Expected 4 columns, got 5: 1,2,3,4,5"),
        (HEADER.encode() + b"1,2,3,4\n1,2,\xff,4\n", "row 2: column 'c' has invalid UTF8 data"),
        (HEADER + '1,2,"3\n1,2,3,4\n', "row 1: Expected 4 columns, got 3"),
        (HEADER + '1,2,3,"4\n1,2,3,4\n', "2 examples were counted, 1 are found: a quoted value spans lines"),
        (HEADER + '1,2,"a\nb",4\n1,2,3,4\n', "3 examples were counted, 2 are found: a quoted value spans lines"),
        (gzip.compress(HEADER.encode()), "is compressed with gzip, but its name doesn't end in .gz"),
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
    with BlockReader(LogFiles.scan([path], schema).files, schema) as reader:
        block = reader.lazy_block(0, 1, 3)
        assert block.examples(np.array([0, 2])).size == 2  # who needs it not, sees it not
        block = reader.lazy_block(0, 2, 3)
        for some in ([1], [0, 1], [0, 1, 2]):
            with pytest.raises(InputError, match=f"a.csv: row 8: {said}"):
                block.examples(np.array(some))


@pytest.mark.parametrize(
    "line, kept", [('1,2,c,"a', None), ('1,2,"c,a', None), ('1,2,c,"a""', None), ('1,2,c,5"', '5"')]
)
def test_a_quote_that_is_open_at_the_end_of_what_is_parsed(tmp_path, line, kept):
    """Arrow would let the end close it; what the next trainer makes of the rest nobody knows."""
    path = write(tmp_path / "a.csv", HEADER + ROWS + line + "\n" + ROWS)
    with BlockReader(LogFiles.scan([path], config()).files, config()) as reader:
        block = reader.lazy_block(0, 0, 4)
        if kept is None:
            with pytest.raises(InputError, match="a.csv: row(s 2 to)? 4: "):
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
    path.write_bytes(gzip.compress(text.encode())[:-cut])
    refused(path, config(), "the compressed file is truncated")
    path.write_bytes(text.encode())
    refused(path, config(), "not a gzip file, or a damaged one")


def test_damage_that_comes_after_the_scan(tmp_path):
    text = HEADER + ROWS * 1000
    path = Path(write(tmp_path / "a.csv.gz", text))
    files = LogFiles.scan([str(path)], config()).files
    path.write_bytes(gzip.compress(text.encode())[:-10])
    with BlockReader(files, config()) as reader, pytest.raises(InputError, match="the compressed file is truncated"):
        reader.block(0, 0, 3000)


def test_damaged_parquet(tmp_path):
    path = Path(write_parquet(tmp_path / "a.parquet", label=np.ones(9000), c=np.arange(9000)))
    schema, whole = config(numeric=[], multi_valued=[]), path.read_bytes()
    for content in (whole[:-30], whole[:100], b"label,c\n1,2\n"):
        path.write_bytes(content)
        refused(path, schema, "not a Parquet file, or a damaged one")
    path.write_bytes(whole[:4] + bytes(2000) + whole[2004:])
    refused(path, schema, "not a Parquet file, or a damaged one")


@pytest.mark.parametrize(
    "columns, said",
    [
        ({"label": ["1"], "c": [1], "x": [1.0], "b": ["a"]}, "column 'label' holds string: numbers are needed"),
        ({"label": [1], "c": [1], "x": ["1"], "b": ["a"]}, "column 'x' holds string: numbers are needed"),
        ({"label": [1], "c": [1.5], "x": [1.0], "b": ["a"]}, "column 'c' holds double: integers or texts are needed"),
        ({"label": [1], "c": [[1]], "x": [1.0], "b": ["a"]}, "column 'c' holds list<"),
        ({"label": [1], "c": [1], "x": [1.0], "b": [5]}, "column 'b' holds int64: lists, or texts to be split"),
        ({"label": [1], "c": [1], "x": [1.0], "b": [[0.5]]}, "column 'b' holds double: integers or texts are needed"),
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
    refused(write(tmp_path / "c.libsvm", "1 3:1 9:1\n-1 3:1 9:1\n"), pair, "row 2: the label '-1' is neither 0 nor 1")
    for schema in (config(), config(categorical=[]), config(numeric=[], categorical=[], multi_valued=["a", "b"])):
        with pytest.raises(InputError, match="data(.multi_valued)?: a libsvm file has"):
            read(path, schema)
    with pytest.raises(InputError, match="data: 'u': the ids of a libsvm file are integers, not hex"):
        read(path, config(numeric=[], categorical=[{"name": "u", "kind": "hex"}], multi_valued=[]))


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
