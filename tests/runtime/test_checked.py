"""Files whose blocks are checked as they are read: the bytes of the file, and no byte that was not compared."""

import hashlib

import numpy as np
import pytest
import xxhash

from marius_oac.errors import CheckpointError
from marius_oac.runtime.files import blocks as files_blocks
from marius_oac.runtime.files import checked
from marius_oac.runtime.files.blocks import BLOCK_BYTES, MOST_BLOCKS, BlockDigests, block_bytes
from marius_oac.runtime.files.checked import CheckedArray, CheckedFile, CheckedFiles
from marius_oac.runtime.files.untrusted import blocked_file

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 77]


def made(path, content):
    path.write_bytes(content)
    return CheckedFile(path, blocked_file(content), CheckpointError)


@pytest.mark.parametrize("size", SIZES)
def test_digests_are_those_of_the_blocks_however_they_are_written(size):
    content, draw = np.random.default_rng(size).bytes(size), np.random.default_rng(1)
    blocks = b"".join(xxhash.xxh3_128_digest(content[at : at + BLOCK_BYTES]) for at in range(0, size, BLOCK_BYTES))
    digests, at = BlockDigests(size), 0
    while at < size:
        end = at + int(draw.integers(1, BLOCK_BYTES + 3))
        digests.update(content[at:end])
        at = end
    digests.update(b"")
    assert digests.all_blocks() == blocks and digests.hexdigest() == xxhash.xxh3_128_hexdigest(blocks)
    assert blocked_file(content).blocks == blocks.hex()


@pytest.mark.parametrize("size", SIZES[1:])
def test_every_range_has_the_bytes_of_the_file(size, tmp_path):
    content, draw = np.random.default_rng(size).bytes(size), np.random.default_rng(2)
    file = made(tmp_path / "a", content)
    assert file.read() == content
    for _ in range(60):
        first, end = np.sort(draw.integers(0, size + 1, 2)).tolist()
        assert file.read(first, end) == content[first:end]


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (0, BLOCK_BYTES),
        (BLOCK_BYTES * MOST_BLOCKS, BLOCK_BYTES),
        (BLOCK_BYTES * MOST_BLOCKS + 1, 2 * BLOCK_BYTES),
        (5 * BLOCK_BYTES * MOST_BLOCKS, 8 * BLOCK_BYTES),
    ],
)
def test_blocks_grow_with_the_file(size, block):
    assert block_bytes(size) == block


def test_a_file_of_larger_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(files_blocks, "MOST_BLOCKS", 2)
    content = np.random.default_rng(7).bytes(3 * BLOCK_BYTES + 5)
    file = made(tmp_path / "a", content)
    assert len(blocked_file(content).blocks) == 2 * 32 and file.block_bytes == 2 * BLOCK_BYTES
    for first, end in ((0, len(content)), (BLOCK_BYTES, BLOCK_BYTES + 9), (2 * BLOCK_BYTES - 1, 2 * BLOCK_BYTES + 1)):
        assert file.read(first, end) == content[first:end]
    (tmp_path / "a").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert CheckedFile(tmp_path / "a", blocked_file(content)).read(0, 2 * BLOCK_BYTES) == content[: 2 * BLOCK_BYTES]
    with pytest.raises(CheckpointError, match="is damaged"):
        CheckedFile(tmp_path / "a", blocked_file(content), CheckpointError).read(2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 1)


def test_a_damaged_block_is_refused_where_it_is_read_and_only_there(tmp_path):
    content = np.random.default_rng(3).bytes(3 * BLOCK_BYTES)
    damaged = bytearray(content)
    damaged[BLOCK_BYTES + 5] ^= 1
    file = made(tmp_path / "a", content)
    (tmp_path / "a").write_bytes(damaged)
    for first, end in ((0, BLOCK_BYTES), (2 * BLOCK_BYTES, 3 * BLOCK_BYTES)):
        assert file.read(first, end) == content[first:end]
    for first, end in ((0, BLOCK_BYTES + 1), (2 * BLOCK_BYTES - 1, 2 * BLOCK_BYTES + 1), (0, 3 * BLOCK_BYTES)):
        with pytest.raises(CheckpointError, match="a: is damaged: its checksum"):
            file.read(first, end)
    (tmp_path / "a").write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="a: is damaged: .* are expected"):
        file.read(0, 1)
    (tmp_path / "a").unlink()
    with pytest.raises(CheckpointError, match="a: is missing"):
        file.read(BLOCK_BYTES, BLOCK_BYTES + 1)


@pytest.mark.parametrize("change", [{"blocks": ""}, {"xxh3_blocks": "0" * 32}, {"bytes": 3 * BLOCK_BYTES}])
def test_digests_that_are_not_the_files_are_refused(change, tmp_path):
    listed = blocked_file(bytes(2 * BLOCK_BYTES)).model_copy(update=change)
    with pytest.raises(CheckpointError, match="the digests of its blocks"):
        CheckedFile(tmp_path / "a", listed, CheckpointError)


def test_an_array_is_read_by_slices_and_by_rows(tmp_path, monkeypatch):
    array = np.random.default_rng(4).random((40_000, 5), np.float32)
    np.save(tmp_path / "a.npy", array)
    listed = {"a.npy": blocked_file((tmp_path / "a.npy").read_bytes())}
    files = CheckedFiles(tmp_path, listed, CheckpointError)
    found = files.array("a.npy", (np.float32,), (None, None))
    assert (found.shape, found.dtype, found.size, found.nbytes, len(found)) == (
        array.shape, array.dtype, array.size, array.nbytes, 40_000)  # fmt: skip
    draw = np.random.default_rng(5)
    for which in (np.s_[:], np.s_[7:20_000], np.s_[3:3], np.s_[9:2], np.s_[1:39_000:7], np.s_[::-1], np.s_[50_000:]):
        assert np.array_equal(found[which], array[which])
    for rows in (np.array([], np.int64), np.array([39_999]), np.sort(draw.choice(40_000, 9, replace=False))):
        assert np.array_equal(found[rows], array[rows])
    assert hashlib.sha256(files.content("a.npy")).digest() == hashlib.sha256((tmp_path / "a.npy").read_bytes()).digest()
    with pytest.raises(CheckpointError, match=r"a.npy: holds float32 \[40000, 5\]"):
        CheckedArray(CheckedFile(tmp_path / "a.npy", listed["a.npy"], CheckpointError), (np.int64,), (None,))
    read = []
    monkeypatch.setattr(checked, "block_digest", lambda content: read.append(len(content)) or b"")
    with pytest.raises(CheckpointError):
        found[30_000:30_001]
    assert sum(read) <= BLOCK_BYTES
