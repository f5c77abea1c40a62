"""No byte of a log is used that is not what it was when it was first read."""

import gzip
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac import resume, train
from marius_oac.config.link_prediction import Config
from marius_oac.config.log_columns import NumericConfig
from marius_oac.data.logs import files as log_files
from marius_oac.data.logs import lines as log_lines
from marius_oac.data.logs import parquet as log_parquet
from marius_oac.data.logs.files import BlockReader, scan_files
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.run_log import RunLog
from marius_oac.errors import CheckpointError, InputError
from marius_oac.runs.folder.folder import RunFolder
from tests.hostile import reseal
from tests.run_folders import outcome, stop_at

ROWS, GROUP = 400, 100
SUFFIXES = (".csv", ".csv.gz", ".parquet", ".svm")


class Crash(Exception):
    pass


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Pieces of a text of 512 bytes, batches of 30 rows; a fingerprint that samples next to nothing."""
    monkeypatch.setattr(log_lines, "TEXT_BYTES", 512)
    monkeypatch.setattr(log_parquet, "BATCH_ROWS", 30)
    monkeypatch.setattr(log_files, "_SAMPLES", 2)
    monkeypatch.setattr(log_files, "_SAMPLE_BYTES", 4)


def columns(flipped=()):
    """Labels and users; the labels of `flipped` rows are turned."""
    generator = np.random.default_rng(5)
    labels, users = generator.integers(0, 2, ROWS), generator.integers(0, 9, ROWS)
    labels[list(flipped)] ^= 1
    return labels, users


def write(path, flipped=()):
    """The log, of the same size whatever the labels are."""
    labels, users = columns(flipped)
    if path.suffix == ".parquet":
        table = pa.table({"label": pa.array(labels, pa.int32()), "user": pa.array(users)})
        plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        pq.write_table(table, path, row_group_size=GROUP, **plain)
        return path
    if path.suffix == ".svm":
        text = "".join(f"{label} {user}:1\n" for label, user in zip(labels, users, strict=True))
    else:
        text = "label,user\n" + "".join(f"{label},{user}\n" for label, user in zip(labels, users, strict=True))
    data = text.encode()
    if path.suffix == ".gz":
        # Stored, not compressed, so that the size stays; without time and name.
        data = gzip.compress(data, compresslevel=0, mtime=0)
    path.write_bytes(data)
    return path


def config(*paths, **training):
    tree = {"task": "ctr", "device": "cpu", "threads": 1,
            "data": {"train": [str(path) for path in paths], "categorical": ["user"]},
            "model": {"network": "lr"},
            "training": {"batch_size": 20, "optimizer": {"learning_rate": 0.2}, **training}}  # fmt: skip
    return Config.build(tree)


def read(scanned, schema, pieces, number=0, rows=50):
    with BlockReader(scanned, schema, pieces=pieces) as reader:
        return [reader.block(0, block, rows).labels for block in range(number, -(-ROWS // rows))]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_changed_piece_is_found_before_any_of_its_rows_is_used(tmp_path, suffix):
    path = write(tmp_path / f"log{suffix}")
    schema = config(path).data
    (scanned,) = scan_files([str(path)], schema)
    pieces = [Pieces(path, scanned.pieces)]
    whole = np.concatenate(read([scanned], schema, pieces))
    known = pieces[0].known()
    assert None not in known and len(known) == (1 + ROWS // GROUP if suffix == ".parquet" else len(scanned.pieces))
    write(path, flipped=[310])
    assert scan_files([str(path)], schema)[0].fingerprint == scanned.fingerprint
    assert not np.array_equal(np.concatenate(read([scanned], schema, None)), whole)
    with BlockReader([scanned], schema, pieces=pieces) as reader:
        got = []
        with pytest.raises(
            InputError, match=rf"log{suffix}: has changed since it was first read: .* is not what it was"
        ):
            for block in range(ROWS // 10):
                got.append(reader.block(0, block, 10).labels)
    got = np.concatenate(got)
    assert 100 < got.size <= 310 and np.array_equal(got, whole[: got.size])
    with pytest.raises(InputError, match="has changed"):  # also when it is passed over on the way to later rows
        read([scanned], schema, pieces, number=6)
    write(path)
    assert np.array_equal(np.concatenate(read([scanned], schema, pieces)), whole)


def test_only_columns_that_are_read_count(tmp_path):
    path = tmp_path / "log.parquet"
    labels, users = columns()
    names = ("user", "user.more", "users")  # the ignored ones are called nearly like the other
    number = NumericConfig(name="user.more", transform="none")
    schema = config(path).data.model_copy(update={"ignored": ("users",), "numeric": (number,)})

    def store(ignored, number):
        values = [pa.array(labels), pa.array(users), pa.array(users + number), pa.array(users + ignored)]
        pq.write_table(pa.table(dict(zip(("label", *names), values, strict=True))), path, row_group_size=GROUP,
                       compression="none", use_dictionary=False, write_statistics=False)  # fmt: skip

    store(0, 0)
    (scanned,) = scan_files([str(path)], schema)
    pieces = [Pieces(path, scanned.pieces)]
    read([scanned], schema, pieces)
    store(1, 0)
    read([scanned], schema, pieces)
    store(0, 1)
    with pytest.raises(InputError, match="row group 0 is not what it was"):
        read([scanned], schema, pieces)


def crashed(paths, run, at, **training):
    with pytest.raises(Crash):
        train(config(*paths, **training).replace("checkpoint.every_batches=5"), run,
              probe=stop_at("compute", at, Crash()))  # fmt: skip


@pytest.mark.parametrize("suffix, at, message", [
    (".csv", 7, "has changed since the run began"),
    (".csv.gz", 7, "has changed since the run began"),
    (".svm", 7, "has changed since the run began"),
    (".parquet", 17, "row group 1 is not what it was"),
    (".parquet", 27, "row group 1 is not what it was"),
])  # fmt: skip
def test_sixteen_labels_that_were_changed_after_a_kill_are_found(tmp_path, suffix, at, message):
    path, run = write(tmp_path / f"log{suffix}"), tmp_path / "run"
    whole = train(config(path, epochs=2), tmp_path / "whole")
    crashed([path], run, at, epochs=2)
    before = RunFolder.open(run).checkpoints.names()
    write(path, flipped=range(120, 136))
    with pytest.raises(InputError, match=message):
        resume(run)
    assert RunFolder.open(run).checkpoints.names()[: len(before)] == before
    write(path)
    assert resume(run).summary["training.batches"] == 40
    assert outcome(run) == outcome(whole.path)


def test_what_changes_between_two_epochs_is_found_in_the_second(tmp_path):
    path, run = write(tmp_path / "log.parquet"), tmp_path / "run"
    whole = train(config(path, epochs=2), tmp_path / "whole")

    def edit(stage, batch):
        if (stage, batch) == ("compute", 19):
            write(path, flipped=[250])

    tight = config(path, epochs=2).replace("checkpoint.every_batches=5", "data.shuffle=20", "pipeline.in_flight=1")
    with pytest.raises(InputError, match="row group 2 is not what it was"):
        train(tight, run, probe=edit)
    assert RunFolder.open(run).checkpoints.names()[-1] <= "0000000030"
    write(path)
    resume(run)
    again = train(tight, tmp_path / "again")
    assert outcome(run) == outcome(again.path) != outcome(whole.path)


def test_what_a_run_has_read_is_known_with_its_checkpoint(tmp_path):
    path, run = write(tmp_path / "log.parquet"), tmp_path / "run"
    crashed([path], run, 12)
    (file,) = RunLog.read(run).files
    # The footer, and the groups of the blocks that batches up to 11 were cut from.
    assert file.pieces[0] and file.pieces[1] and file.pieces[2]
    other = shutil.copytree(run, tmp_path / "other")
    log = json.loads((other / "log.json").read_text())
    reseal(other / "log.json", files=[{**each, "pieces": [None] * len(each["pieces"])} for each in log["files"]])
    resume(other)
    assert None not in RunLog.read(other).files[0].pieces
    resume(run)
    assert RunLog.read(run) == RunLog.read(other)


def test_a_file_that_changed_while_it_was_passed_over_leaves_no_checkpoint_of_it(tmp_path):
    """A text is known before its first line is used."""
    path, run = write(tmp_path / "log.csv"), tmp_path / "run"

    def edit(stage, batch):
        if (stage, batch) == ("plan", 0):
            write(path, flipped=[200])

    tight = config(path).replace("checkpoint.every_batches=1", "data.shuffle=20", "pipeline.in_flight=1")
    with pytest.raises(InputError, match="log.csv: has changed since it was first read: what begins at byte"):
        train(tight, run, probe=edit)
    last = RunFolder.open(run).checkpoints.names()
    assert not last or int(last[-1]) * 20 <= 200
    with pytest.raises(CheckpointError, match="has changed since the run began"):
        resume(run)
    write(path)
    resume(run)
    assert outcome(run) == outcome(train(tight, tmp_path / "whole").path)
