"""Parquet in bounded memory: the pages' own headers are believed, and nothing that they stand for is made first."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.data.reading import parquet_pages
from marius_oac.data.reading.parquet_pages import column_chunks, decoded, parquet_batches
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare
from tests.click_logs import ctr_config
from tests.run_folders import says, write_config

WAYS = [{}, {"use_dictionary": False}, {"data_page_version": "2.0"}, {"compression": "none"}, {"compression": "zstd"},
        {"row_group_size": 300}, {"data_page_size": 500}, {"write_statistics": False}, {"write_page_index": True},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
        {"dictionary_pagesize_limit": 100, "data_page_size": 300}]  # fmt: skip


def table(rows=1000):
    chance = np.random.default_rng(0)
    texts = [f"text {n}" for n in chance.integers(0, 50, rows)]
    return pa.table({
        "text": pa.array([None if n % 7 == 0 else text for n, text in enumerate(texts)]),
        "number": chance.integers(0, 9, rows),
        "lists": pa.array([chance.integers(0, 9, n % 4).tolist() for n in range(rows)]),
        "words": pa.array([texts[n : n + n % 3] for n in range(rows)]),
    })  # fmt: skip


def joined(batches, path):
    columns = None
    for batch in batches:
        plain = [decoded(column, path) for column in batch.columns]
        columns = [[*a, *b.to_pylist()] for a, b in zip(columns or [[]] * len(plain), plain, strict=True)]
    return columns


@pytest.mark.parametrize("way", WAYS, ids=range(len(WAYS)))
@pytest.mark.parametrize("most", [1 << 30, 1 << 16])
def test_what_is_read_is_what_was_written(tmp_path, monkeypatch, way, most):
    monkeypatch.setattr(parquet_pages, "MOST_BATCH_BYTES", most)
    path, whole = tmp_path / "a.parquet", table()
    pq.write_table(whole, path, **way)
    names = ["text", "lists", "words"]
    found = joined(parquet_batches(path, names, 256), path)
    assert found == [whole.column(name).to_pylist() for name in names]


@pytest.mark.parametrize("way", WAYS, ids=range(len(WAYS)))
def test_headers_of_pages_say_how_many_values_there_are(tmp_path, way):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, **way)
    with open(path, "rb") as file:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(number)
                dictionary, largest, values, _ = parquet_pages._largest(file, chunk, "", path)
                assert values == chunk.num_values and largest <= chunk.total_uncompressed_size
                assert bool(dictionary) == chunk.has_dictionary_page


def repeated(rows, text):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


@pytest.mark.parametrize("as_written", [True, False], ids=["Arrow's type in the file", "texts"])
def test_a_text_that_stands_there_once_and_counts_often(tmp_path, as_written):
    """3 KB stood for a terabyte."""
    many = repeated(1 << 19, "x" * (1 << 20))
    whole = pa.table({"head": many, "tail": many})
    path = tmp_path / "a.parquet"
    pq.write_table(whole, path, compression="zstd", store_schema=as_written)
    assert path.stat().st_size < 5000
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    with pytest.raises(InputError, match=r"a.parquet: 524,288 texts become 524,288 MiB; at most 1,024 MiB are read"):
        prepare(PrepareRequest(source=str(path), out=tmp_path / "g"))
    assert tracemalloc.get_traced_memory()[1] < 100 << 20 and pa.total_allocated_bytes() - before < 100 << 20
    tracemalloc.stop()
    assert not (tmp_path / "g").exists()


def log(path, **columns):
    rows = len(next(iter(columns.values()))) if columns else 2
    plain = {"label": [0] * rows, "number": [1.0] * rows, "user": [1] * rows, "item": [1] * rows,
             "tags": [[1]] * rows, "history": [[1]] * rows}  # fmt: skip
    pq.write_table(pa.table(plain | columns), path, compression="zstd", store_schema=False)
    return path


@pytest.mark.parametrize(
    ("columns", "limits", "said"),
    [
        ({"user": repeated(2000, "x" * 4000)}, {"MOST_BATCH_BYTES": 1 << 20}, "2,000 texts become 7 MiB"),
        ({"user": pa.array(["x" * 3000, "y"])}, {"MOST_PAGE_BYTES": 2000}, "a page of 3,0"),
        (
            {"tags": [[1] * 5000, [2]]},
            {"MOST_LISTED": 4000, "MOST_PER_BYTE": 1},
            "5,001 values of lists, at most 4,000",
        ),
        (
            {"tags": [["a" * 2000] * 500, ["b"]]},
            {"MOST_BATCH_BYTES": 1 << 19, "MOST_PER_TEXT_BYTE": 1},
            "501 texts in lists, of up to 2,000 bytes, are more",
        ),
    ],
    ids=["texts", "page", "list", "listed texts"],
)
def test_logs_that_stand_for_more(tmp_path, command, monkeypatch, columns, limits, said):
    for name, value in limits.items():
        monkeypatch.setattr(parquet_pages, name, value)
    path = log(tmp_path / "a.parquet", **columns)
    config = write_config(tmp_path / "c.yaml", ctr_config(path, "keys.capacity=1000", "data.shuffle=0", network="lr"))
    code, _, err = command("train", config, "--out", tmp_path / "run")
    assert code == 2 and says(err, "a.parquet", said)


def test_a_block_of_rows_that_is_too_large(tmp_path, command, monkeypatch):
    monkeypatch.setattr("marius_oac.data.logs.parquet.MOST_BLOCK_BYTES", 1 << 20)
    path = log(tmp_path / "a.parquet", user=[f"{n:0900}" for n in range(3000)])
    config = write_config(
        tmp_path / "c.yaml", ctr_config(path, "keys.capacity=9000", "data.shuffle=3000", network="lr")
    )
    code, _, err = command("train", config, "--out", tmp_path / "run")
    assert code == 2 and says(err, "a.parquet: 0 GiB and more in rows 1 to")


def test_lengths_that_a_text_may_have_of_the_one_before(tmp_path, monkeypatch):
    """So few rows are decoded at once that even then they fit."""
    monkeypatch.setattr(parquet_pages, "MOST_BATCH_BYTES", 1 << 20)
    path = tmp_path / "a.parquet"
    whole = pa.table({"a": ["z" * (1 << 12)] * 2000})
    pq.write_table(whole, path, use_dictionary=False, column_encoding={"a": "DELTA_BYTE_ARRAY"}, compression="zstd")
    sizes = [batch.num_rows for batch in parquet_batches(path, ["a"], 1 << 16)]
    assert sum(sizes) == 2000 and max(sizes) <= 256


@pytest.mark.parametrize("place", ["data_page_offset", "total_compressed_size"])
def test_offsets_that_lead_nowhere(tmp_path, place):
    class Chunk:
        dictionary_page_offset, num_values, data_page_offset, total_compressed_size = None, 5, 4, 100

    path = tmp_path / "a.parquet"
    pq.write_table(table(), path)
    for number in (-1, 1 << 40, 1 << 62, path.stat().st_size - 3):
        chunk = Chunk()
        setattr(chunk, place, number)
        with open(path, "rb") as file:
            if place == "total_compressed_size":
                chunk.data_page_offset = path.stat().st_size - 5
            if place == "data_page_offset" or number > 0:
                with pytest.raises(InputError, match="is damaged: there is no page at byte"):
                    parquet_pages._largest(file, chunk, "column", path)


@pytest.mark.parametrize("way", WAYS, ids=range(len(WAYS)))
def test_footers_say_what_arrow_reads_in_them(tmp_path, way):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path, **way)
    metadata = pq.read_metadata(path)
    found = column_chunks(path)
    assert len(found) == metadata.num_row_groups
    for group, chunks in enumerate(found):
        assert len(chunks) == metadata.num_columns
        for number, chunk in enumerate(chunks):
            read = metadata.row_group(group).column(number)
            assert chunk.path == read.path_in_schema and chunk.compression.startswith(read.compression.lower())
            assert ("DELTA_BYTE_ARRAY" in read.encodings) == (7 in chunk.encodings)
            for name in ("num_values", "total_compressed_size", "data_page_offset", "dictionary_page_offset"):
                assert getattr(chunk, name) == getattr(read, name)


READS_FLIPPED = """
import sys
from pathlib import Path
from marius_oac.data.reading.parquet_pages import parquet_batches, parquet_errors
from marius_oac.errors import InputError

path, places, refused = Path(sys.argv[1]), eval(sys.argv[2]), 0
whole = path.read_bytes()
for place in places:
    content = bytearray(whole)
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    print(place, file=sys.stderr, flush=True)
    try:
        with parquet_errors(path):
            for batch in parquet_batches(path, ["a", "b"], 100):
                pass
    except InputError:
        refused += 1
print(refused)
"""


@pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
def test_a_flipped_bit_of_a_footer_is_a_line_at_most(tmp_path, step):
    """In a process of its own: pyarrow's own reading of column chunks aborts it, for one bit of some hundred."""
    path = tmp_path / "a.parquet"
    columns = {"a": [number % 7 for number in range(100)], "b": [f"text {number}" for number in range(100)]}
    pq.write_table(pa.table(columns), path, row_group_size=60)
    size = path.stat().st_size
    footer = 8 * (size - 8 - int.from_bytes(path.read_bytes()[-8:-4], "little"))
    places = list(range(footer, 8 * size, step))
    done = subprocess.run([sys.executable, "-c", READS_FLIPPED, path, repr(places)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-400:]
    assert int(done.stdout) > len(places) / 4


def test_pages_are_measured_from_where_arrow_reads_them(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": ["x" * 3000], "b": ["y"]}), path, use_dictionary=False)
    monkeypatch.setattr(parquet_pages, "MOST_PAGE_BYTES", 1000)
    chunks = column_chunks(path)
    for place in (None, 0, chunks[0][1].data_page_offset):  # the last is a small page behind
        forged = [[chunks[0][0]._replace(dictionary_page_offset=place), chunks[0][1]]]
        monkeypatch.setattr(parquet_pages, "column_chunks", lambda path, forged=forged: forged)
        parquet_pages._planned.cache_clear()
        with pytest.raises(InputError, match="a page of 3,0.. bytes"):
            parquet_pages.reading_plan(path, ["a"], 10)


def test_lists_within_lists_are_no_header(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path, use_dictionary=False, compression="none")
    content = bytearray(path.read_bytes())
    at = column_chunks(path)[0][0].data_page_offset
    content[at : at + 900] = b"\x19" * 900
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged: there is no page at byte"):
        parquet_pages.reading_plan(path, ["a"], 10)
