import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.logs import (
    files as log_files,
)
from marius_oac.data.logs import (
    formats as log_formats,
)
from marius_oac.data.logs import (
    lines as log_lines,
)
from marius_oac.data.logs import (
    parquet as log_parquet,
)
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import BlockReader, scan_files
from marius_oac.errors import InputError
from tests.data import naive_logs
from tests.data.written_logs import HEADER, ROWS, config, read, write, write_parquet


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
    return scan_files(paths, config())


def numbers(block):
    return block.numbers[:, 0].astype(int).tolist()


def test_blocks_in_order(logs, monkeypatch):
    for module in (log_formats, log_lines):
        monkeypatch.setattr(module, "TEXT_BYTES", 1 << 12)
    monkeypatch.setattr(log_parquet, "BATCH_ROWS", 170)
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
    files = scan_files([put(10)], schema)
    for rows, said in ((12, "10 examples were counted, more are found"), (7, "10 examples were counted, 7 are")):
        put(rows)
        with BlockReader(files, schema) as reader, pytest.raises(InputError, match=said):
            reader.block(0, 0, 10)
    (tmp_path / name).unlink()
    with BlockReader(files, schema) as reader, pytest.raises(InputError, match="no such file"):
        reader.block(0, 0, 10)
