"""Our .npy files have the bytes of NumPy's, however they are written."""

import io
import os

import numpy as np
import pytest
import xxhash

from marius_oac.runtime.files import npy
from marius_oac.runtime.files.npy import GrowingNpyWriter, NpyWriter, mapped_npy, npy_bytes
from marius_oac.runtime.files.streaming import write_npy_files

ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(5), np.zeros((0, 2), np.int32), np.zeros(0, np.uint64),
    np.array([True, False]), np.arange(24, dtype=np.uint16).reshape(2, 3, 4),
]  # fmt: skip


def numpys(array):
    content = io.BytesIO()
    np.save(content, array)
    return content.getvalue()


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{list(array.shape)}")
def test_every_writer_writes_the_bytes_of_numpy(array, tmp_path):
    expected = numpys(array)
    assert npy_bytes(array) == expected
    with NpyWriter(tmp_path / "a.npy", array.shape, array.dtype) as writer:
        for first in range(0, len(array), 2):
            writer.write(array[first : first + 2])
        said = writer.finish()
    assert (tmp_path / "a.npy").read_bytes() == expected
    assert said == {
        "bytes": len(expected),
        "xxh3_blocks": xxhash.xxh3_128_hexdigest(xxhash.xxh3_128_digest(expected)),
        "blocks": xxhash.xxh3_128_hexdigest(expected),
    }
    mapped = mapped_npy(tmp_path / "b.npy", array.shape, array.dtype)
    assert not mapped.any() and (tmp_path / "b.npy").stat().st_size == len(expected)
    mapped[:] = array
    mapped.flush()
    assert (tmp_path / "b.npy").read_bytes() == expected
    write_npy_files(tmp_path, {"c": (array.shape, array.dtype)}, [{"c": array[:1]}, {"c": array[1:]}])
    assert (tmp_path / "c.npy").read_bytes() == expected


def test_the_disk_begins_to_write_before_all_is_there(tmp_path, monkeypatch):
    """Each byte is handed to it once, and only what has been written to the file."""
    rows, ranges = np.arange(40_000, dtype=np.int64).reshape(-1, 8), []

    def begin_to_write(descriptor, start, count):
        assert os.fstat(descriptor).st_size >= start + count
        ranges.append((start, count))

    monkeypatch.setattr(npy, "_TOGETHER", 100_000)
    monkeypatch.setattr(npy, "begin_to_write", begin_to_write)
    with NpyWriter(tmp_path / "a.npy", rows.shape, rows.dtype) as writer:
        for first in range(0, len(rows), 50):
            writer.write(rows[first : first + 50])
        size = writer.finish()["bytes"]
    ends = [start + count for start, count in ranges]
    assert [start for start, _ in ranges] == [0, *ends[:-1]] and size - 100_000 < ends[-1] <= size
    assert all(100_000 <= count < 100_000 + rows[:50].nbytes for _, count in ranges)


def test_what_the_kernel_begins_to_write_stays_in_the_file(tmp_path):
    array = np.random.default_rng(0).random((2, 1 << 20))
    with NpyWriter(tmp_path / "a.npy", (4, 1 << 20), array.dtype) as writer:
        writer.write(array)
        writer.write(array)
        writer.finish()
    assert np.array_equal(np.load(tmp_path / "a.npy"), np.concatenate((array, array)))


def test_what_is_not_in_c_order_is_written_so(tmp_path):
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    with NpyWriter(tmp_path / "a.npy", array.shape, array.dtype) as writer:
        writer.write(array)
    assert (tmp_path / "a.npy").read_bytes() == npy_bytes(array) == numpys(np.ascontiguousarray(array))


def test_a_file_grows_and_its_header_with_it(tmp_path):
    whole = np.arange(300_000).reshape(-1, 3)
    with GrowingNpyWriter(tmp_path / "a.npy", 3, np.dtype(np.int32)) as writer:
        for start in range(0, 100_000, 10_000):
            writer.append(whole[start : start + 10_000])
        assert writer.rows == 100_000
    assert (tmp_path / "a.npy").read_bytes() == numpys(whole.astype(np.int32))
    with GrowingNpyWriter(tmp_path / "b.npy", 2, np.dtype(np.int64)):
        pass
    assert (tmp_path / "b.npy").read_bytes() == numpys(np.zeros((0, 2), np.int64))


def test_a_file_whose_writer_fails_claims_no_rows(tmp_path):
    with pytest.raises(KeyError), GrowingNpyWriter(tmp_path / "a.npy", 2, np.dtype(np.int64)) as writer:
        writer.append(np.zeros((4, 2)))
        raise KeyError
    assert np.load(tmp_path / "a.npy", allow_pickle=False).shape == (0, 2)
