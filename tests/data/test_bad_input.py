"""All that can be wrong with a user's files and options: one line with file and line, and nothing left behind."""

import dataclasses
import errno
import gzip
import os
import subprocess
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.generate.graph import GeneratedGraph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import InputError
from marius_oac.prepare import prepare as prepare_module
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runtime.files.npy import GrowingNpyWriter

GOOD = b"a\tr\tb\nb\tr\ta\na\tr\tc\n"


def refused(out: Path, **request) -> str:
    """The message; there must be one line of it, and no trace of the folder."""
    with pytest.raises(InputError) as caught:
        prepare(PrepareRequest(out=out, **request))
    message = str(caught.value)
    assert "\n" not in message and not os.path.lexists(out)
    assert not out.parent.exists() or not [name for name in os.listdir(out.parent) if name.endswith(".part")]
    return message


def refused_file(folder: Path, name: str, content: bytes, **request) -> str:
    (folder / name).write_bytes(content)
    message = refused(folder / "out", source=str(folder / name), **request)
    assert message.startswith(str(folder / name)) or "columns" in message
    return message.removeprefix(str(folder / name))


FLOATS = "ids must be integers, not float64 (which can't tell large ids apart)"
LONG = b"".join(b"n%d\tr\tn%d\n" % (i, i + 1) for i in range(5000))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("g.tsv", b"", ": the file is empty"),
        ("g.tsv", b"\n\n", ": the file has no edges"),
        ("g.tsv", b"# only\n# comments\n", ": the file has no edges"),
        ("g.tsv.gz", gzip.compress(b"", mtime=0), ": the file has no edges"),
        ("g.tsv.gz", gzip.compress(LONG, mtime=0)[:-200], ": the compressed file is truncated (after "),
        ("g.tsv.gz", gzip.compress(LONG, mtime=0)[:-6], ": the compressed file is truncated (after "),
        ("g.tsv.gz", GOOD, ": not a gzip file, or a damaged one: "),
        ("g.tsv.gz", gzip.compress(LONG, mtime=0)[:500] + b"\xff" * 50, ": not a gzip file, or a damaged one: "),
        ("g.tsv", gzip.compress(GOOD, mtime=0), ": the file is compressed with gzip, but its name doesn't end in .gz"),
        ("g.tsv", GOOD + b"x\0y\n", ":4: a zero byte: this is a binary file, not text"),
        ("g.tsv", GOOD + b"a\tr\t\xff\n", ":4: byte 0xff at position 5 is not UTF-8"),
        ("g.tsv", GOOD.decode().encode("utf-16"), ":1: a zero byte: this is a binary file, not text"),
        ("g.tsv", "a\tr\tZürich\n".encode("latin-1"), ":1: byte 0xfc at position 6 is not UTF-8"),
        ("g.tsv", b"# c\n\xff\tr\tb\n" + GOOD, ":2: byte 0xff at position 1 is not UTF-8"),
        ("g.tsv", GOOD + b"a\tr\n" + GOOD, ":4: 3 columns are expected, 2 found"),
        ("g.tsv", GOOD + b"a\tr\tb\tc\n", ":4: 3 columns are expected, 4 found"),
        ("g.tsv", b"# c\n\n" + LONG + b"a\tr\n" + LONG, ":5003: 3 columns are expected, 2 found"),
        ("g.tsv", GOOD + b"a\t\tb\n", ":4: the name in column 1 (counted from 0) is empty"),
        ("g.tsv", GOOD + b"a\tr\tb\rc\tr\td\n", ":4: a carriage return inside the line"),
        ("g.tsv", b"a\tr\tb\tc\n", ": 2 or 3 columns are expected, 4 found; say which with --columns"),
        (
            "g.tsv",
            b"a.r.b\n",
            ": 2 or 3 columns are expected, 1 found; say what is between them with --delimiter",
        ),
        ("g.csv", b'a,r,b\na,"r,b\n', ":2: the quotes don't match"),
        ("g.dat", b"one\ntwo\n", ": unknown kind of file"),
        ("g.npy", b"not numpy", ": not a NumPy file of integers, or a damaged one"),
        ("g.parquet", b"not parquet, and not at all", ": not a Parquet file, or a damaged one"),
    ],
)
def test_text_and_damage(tmp_path, name, content, message):
    assert refused_file(tmp_path, name, content).startswith(message)


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("marius_oac.data.reading.text.BLOCK_BYTES", 1 << 20)
    content = GOOD + b"x" * (3 << 20)
    assert refused_file(tmp_path, "g.tsv", content) == ":4: no line ends within 1 MiB: not a text file"


def test_lines_are_counted_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("marius_oac.data.reading.text.BLOCK_BYTES", 100)
    message = refused_file(tmp_path, "g.tsv", LONG + b"# c\n\n" + LONG + b"a\tb\n" + LONG)
    assert message == ":10003: 3 columns are expected, 2 found"


def test_missing_folder_unreadable(tmp_path):
    out = tmp_path / "out"
    assert refused(out, source=str(tmp_path / "no.tsv")) == f"{tmp_path}/no.tsv: no such file"
    assert refused(out, train=tmp_path / "no.tsv") == f"{tmp_path}/no.tsv: no such file"
    assert refused(out, source=str(tmp_path)) == f"{tmp_path}: has no files"


IDS = np.array([[0, 1], [1, 2], [2, 0]])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([[0, 1], [1, -2]]), "row 2: id -2 is negative"),
        (np.array([[0, 1], [1, 2**63]], np.uint64), "row 2: id 9223372036854775808 is beyond 2^63 - 1"),
        (np.array([[0, 1], [1, np.nan]]), FLOATS + "; row 2 holds nan"),
        (np.array([[0, 1], [1, 2.5]]), FLOATS + "; row 2 holds 2.5"),
        (np.array([[0.0, 1.0]]), FLOATS),
        (np.array([["a", "b"]]), "ids must be integers, not <U1"),
        (np.array([[True, False]]), "ids must be integers, not bool"),
        (np.array([[0, None]], object),
         "not a NumPy file of integers, or a damaged one: it holds Python objects, which are never opened"),
        (np.zeros((3, 4), np.int64),
         "2 or 3 columns are expected, 4 found; say which with --columns HEAD,RELATION,TAIL, such as 0,1,2"),
        (np.zeros(3, np.int64), "an array [edges, 2 or 3] or [2, edges] is needed, not one of shape (3,)"),
        (np.zeros((0, 2), np.int64), "the file has no edges"),
    ],
)  # fmt: skip
def test_numpy_ids(tmp_path, ids, message):
    path = tmp_path / "g.npy"
    np.save(path, ids, allow_pickle=True)
    assert refused(tmp_path / "out", source=str(path)) == f"{path}: {message}"


def test_rows_are_counted_across_batches(tmp_path, monkeypatch):
    for module in ("readers", "edge_arrays"):
        monkeypatch.setattr(f"marius_oac.data.reading.{module}.BATCH_ROWS", 4)
    ids = np.arange(40).reshape(20, 2)
    ids[17, 1] = -7
    np.save(tmp_path / "g.npy", ids)
    pq.write_table(pa.table({"a": ids[:, 0], "b": ids[:, 1]}), tmp_path / "g.parquet")
    for name in ("g.npy", "g.parquet"):
        message = refused(tmp_path / "out", source=str(tmp_path / name))
        assert message == f"{tmp_path / name}: row 18: id -7 is negative"


def test_truncated_numpy_and_parquet(tmp_path):
    np.save(tmp_path / "g.npy", np.zeros((1000, 2), np.int64))
    pq.write_table(pa.table({"a": ["x"] * 1000, "b": ["y"] * 1000}), tmp_path / "g.parquet")
    for name in ("g.npy", "g.parquet"):
        content = (tmp_path / name).read_bytes()
        assert "damaged" in refused_file(tmp_path, name, content[: len(content) // 2])


@pytest.mark.parametrize(
    ("tails", "message"),
    [
        (pa.array([1.0, float("nan")]), FLOATS + "; row 2 holds nan"),
        (pa.array([1, None]), "row 2 has no value in column 'tail'"),
        (pa.array([1, -1]), "row 2: id -1 is negative"),
        (pa.array([1, 2**64 - 1], pa.uint64()), "row 2: id 18446744073709551615 is beyond 2^63 - 1"),
        (pa.array(["a", ""]), "row 2 has an empty 'tail'"),
        (pa.array([b"a", b"b"]), "column 'tail' holds binary: names (strings) or ids (integers) are needed"),
        (pa.array(["a", "b"]), "heads and tails must both be names or both be integer ids"),
    ],
)  # fmt: skip
def test_parquet_columns(tmp_path, tails, message):
    path = tmp_path / "g.parquet"
    pq.write_table(pa.table({"head": pa.array([0, 1]), "tail": tails}), path)
    assert refused(tmp_path / "out", source=str(path)) == f"{path}: {message}"


def test_columns_that_are_not_there(tmp_path):
    (tmp_path / "g.csv").write_text("head,relation,tail\na,r,b\n")

    def message(**read):
        text = refused(tmp_path / "out", source=str(tmp_path / "g.csv"), read=ReadOptions(**read))
        return text.removeprefix(f"{tmp_path}/g.csv: ")

    assert message(columns=("0", "3")) == "there is no column 3: 3 columns, counted from 0"
    assert (
        message(columns=("head", "tail"), header=False) == "column 'head' is a name, but the file has none (no header)"
    )
    assert message(columns=("haed", "tail"), header=True) == "there is no column 'haed'; did you mean 'head'?"
    assert message(columns=("xyz", "tail"), header=True).endswith("there are 'head', 'relation', 'tail'")
    assert message(columns=("0", "head"), header=True) == "the same column is named twice: 0, head"


@pytest.mark.parametrize(
    "options",
    [
        {"columns": ("a",)}, {"columns": ("a", "b", "c", "d")}, {"columns": ("a", "a")},
        {"delimiter": ""}, {"delimiter": "::"}, {"delimiter": "\n"}, {"delimiter": "é"}, {"comment": "//"},
    ],
)  # fmt: skip
def test_read_options(options):
    with pytest.raises(InputError, match="^(columns|delimiter|comment): "):
        ReadOptions(**options)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "name files or a data set, or the files of the splits"),
        ({"source": "a", "train": "b"}, "name files or a data set, or the files of the splits"),
        ({"source": "a", "valid": "b"}, "files for valid or test need one for train"),
        ({"train": "a", "from_dir": "b"}, "from_dir: a folder with a data set's files needs the data set's name"),
        ({"source": "a", "valid_fraction": 0.6, "test_fraction": 0.4}, "valid_fraction, test_fraction: 0.6 for valid"),
        ({"source": "a", "valid_fraction": 0.96}, "valid_fraction, test_fraction: 0.96 for validation and 0.05 for"),
        ({"source": "a", "valid_fraction": -0.1}, "valid_fraction: a fraction in [0, 1) is needed, not -0.1"),
        ({"source": "a", "test_fraction": 1.0}, "test_fraction: a fraction in [0, 1) is needed, not 1.0"),
        ({"source": "a", "test_fraction": float("nan")}, "test_fraction: a fraction in [0, 1) is needed, not nan"),
        ({"source": "a", "seed": -1}, "seed: a seed of 0 or more is needed, not -1"),
        ({"source": "a", "unseen": "ignore"}, "unseen: one of train, skip, error, keep is needed, not 'ignore'"),
        ({"source": "a", "duplicates": "no"}, "duplicates: one of keep, drop is needed, not 'no'"),
    ],
)  # fmt: skip
def test_requests_that_contradict_themselves(tmp_path, request_, message):
    assert refused(tmp_path / "out", **request_).startswith(message)


def test_fractions_with_given_splits(tmp_path):
    (tmp_path / "a.tsv").write_bytes(GOOD)
    message = refused(tmp_path / "o", train=tmp_path / "a.tsv", valid=tmp_path / "a.tsv", test_fraction=0.1)
    assert (
        message == "valid_fraction, test_fraction: fractions are for edges that are split here; these splits are given"
    )


def test_nothing_left_to_train_on(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"a\tr\tb\nb\tr\ta\n")
    fractions = {"valid_fraction": 0.49, "test_fraction": 0.5}
    message = refused(tmp_path / "o", source=str(tmp_path / "a.tsv"), unseen="skip", **fractions)
    assert message == "no edge is left to train on"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\tr\tz\n", "valid: node 'z' never occurs in train (edge: a r z)"),
        ("y\tr\ta\n", "valid: node 'y' never occurs in train (edge: y r a)"),
        ("a\tq\tb\n", "valid: relation 'q' never occurs in train (edge: a q b)"),
    ],
)
def test_unseen_is_an_error_where_asked(tmp_path, line, message):
    (tmp_path / "train.tsv").write_bytes(GOOD)
    (tmp_path / "valid.tsv").write_bytes(GOOD + line.encode())
    files = {"train": tmp_path / "train.tsv", "valid": tmp_path / "valid.tsv"}
    assert refused(tmp_path / "o", unseen="error", **files).startswith(message)
    assert prepare(PrepareRequest(out=tmp_path / "o", unseen="skip", **files)).unseen_edges["valid"] == 1


def test_files_that_do_not_fit_together(tmp_path):
    (tmp_path / "a.tsv").write_bytes(GOOD)
    (tmp_path / "b.tsv").write_bytes(b"a\tb\n")
    np.save(tmp_path / "c.npy", np.zeros((2, 3), np.int64))
    message = refused(tmp_path / "o", train=tmp_path / "a.tsv", valid=tmp_path / "b.tsv")
    assert message.startswith(f"{tmp_path}/b.tsv: columns ['head', 'tail'] here")
    message = refused(tmp_path / "o", train=tmp_path / "a.tsv", valid=tmp_path / "c.npy")
    assert message == f"{tmp_path}/c.npy: names here and integer ids in the file before (or the reverse)"


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.write_text("x"), lambda path: path.symlink_to("gone")])
def test_output_exists(tmp_path, make):
    (tmp_path / "a.tsv").write_bytes(GOOD)
    make(tmp_path / "o")
    with pytest.raises(InputError, match="o: exists already; choose another folder or remove it"):
        prepare(PrepareRequest(source=str(tmp_path / "a.tsv"), out=tmp_path / "o"))
    assert sorted(os.listdir(tmp_path)) == ["a.tsv", "o"]


def test_output_appears_meanwhile(tmp_path):
    out = tmp_path / "o"
    with pytest.raises(InputError, match="came into being"), prepare_module.new_folder(out) as folder:
        (folder / "mine").touch()
        out.mkdir()
        (out / "theirs").touch()
    assert os.listdir(tmp_path) == ["o"] and os.listdir(out) == ["theirs"]


def test_output_can_not_be_made(tmp_path):
    (tmp_path / "a.tsv").write_bytes(GOOD)
    with pytest.raises(InputError, match="can't be made"):
        prepare(PrepareRequest(source=str(tmp_path / "a.tsv"), out=tmp_path / "a.tsv" / "o"))


@pytest.mark.parametrize("call", range(4))
def test_disk_full_in_any_write_leaves_nothing(tmp_path, monkeypatch, call):
    """The write that fails is the header, a chunk of train or valid, or the manifest's file."""
    (tmp_path / "a.tsv").write_bytes(GOOD)
    calls, append = iter(range(100)), GrowingNpyWriter.append

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if call == 3:
        monkeypatch.setattr("marius_oac.prepare.prepare.write_manifest", full)
    else:
        monkeypatch.setattr(GrowingNpyWriter, "append", lambda *args: full() if next(calls) == call else append(*args))
    message = refused(tmp_path / "o", source=str(tmp_path / "a.tsv"))
    assert message == f"{tmp_path}/o: the disk is full; nothing was kept"


@pytest.mark.parametrize("kind", ["IOException", "FatalException", "TransactionException"])
def test_a_disk_that_fails_under_the_data_base_is_one_line(tmp_path, monkeypatch, kind):
    (tmp_path / "a.tsv").write_bytes(GOOD)

    def failing(*_):
        raise getattr(duckdb, kind)("FATAL Error: fsync failed!\n and more")

    monkeypatch.setattr("marius_oac.prepare.encode.Encoder.resolve", failing)
    message = refused(tmp_path / "o", source=str(tmp_path / "a.tsv"))
    assert message == f"{tmp_path}/o: can't be written: FATAL Error: fsync failed!; nothing was kept"


def test_other_faults_keep_their_traceback_and_leave_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.tsv").write_bytes(GOOD)

    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr("marius_oac.prepare.prepare.write_manifest", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        prepare(PrepareRequest(source=str(tmp_path / "a.tsv"), out=tmp_path / "o"))
    assert os.listdir(tmp_path) == ["a.tsv"]


@pytest.mark.parametrize("mebibytes", [1, 2, 3])
def test_disk_full_for_real(tmp_path, monkeypatch, mebibytes):
    """Files of numbers, or the graph's: on a file system that is too small by more or less."""
    mount = tmp_path / "small"
    mount.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes root")
    try:
        rng = np.random.default_rng(0)
        np.save(tmp_path / "g.npy", rng.integers(0, 2**62, (100_000, 2)))
        monkeypatch.setattr("marius_oac.prepare.reading.check_room", lambda *_: None)
        message = refused(mount / "o", source=str(tmp_path / "g.npy"))
        assert message == f"{mount}/o: the disk is full; nothing was kept" and os.listdir(mount) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_nodes": 0}, "num_nodes must be at least 1, not 0"),
        ({"num_edges": -1}, "num_edges must be at least 1, not -1"),
        ({"num_relations": -1}, "num_relations must be at least 0, not -1"),
        ({"num_clusters": 0}, "num_clusters must be at least 1, not 0"),
        ({"num_clusters": 11}, "num_clusters (11) must not exceed num_nodes (10)"),
        ({"noise": 1.5}, "noise must lie in [0, 1], not 1.5"),
        ({"exponent": float("nan")}, "exponent must be at least 0, not nan"),
    ],
)
def test_sizes_of_generated_graphs(sizes, message):
    good = GeneratedGraph(num_nodes=10, num_edges=10, num_clusters=2)
    with pytest.raises(InputError) as caught:
        dataclasses.replace(good, **sizes)
    assert str(caught.value) == message
