"""Checkpoints: what is saved comes back; a fault at any moment leaves every named checkpoint complete."""

import builtins
import errno
import json
import os
import resource
import shutil
import threading
import tracemalloc

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import CheckpointError, DivergedError, InputError
from marius_oac.runs.checkpoints.retention import BEST, Checkpoints
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from tests.run_folders import contents, flip_a_byte

DENSE = {"relations": torch.arange(6, dtype=torch.float32).reshape(2, 3)}


def table(name="entities", rows=5, dimension=3, state=3, dtype="float32", seed=0):
    store = MemoryStore(name, rows, RowLayout(dimension, state, dtype), RowInitial("normal", 1.0, seed, name))
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, dimension + state)).astype(np.float32)
    store.load(0, generator.integers(-1, 100, rows), values)
    return store


def held(store):
    blocks = list(store.blocks())
    return [np.concatenate([block.timestamps for block in blocks] or [[]]).tolist(), store.fingerprint()]


@settings(deadline=None, max_examples=40)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    batch_index=st.integers(0, 10**10 - 1),
)
def test_what_is_saved_comes_back(tmp_path_factory, shapes, dtype, batch_index):
    folder = tmp_path_factory.mktemp("checkpoints")
    stores = [table(f"t{i}", *shape, dtype, seed=i) for i, shape in enumerate(shapes)]
    extra = {"seconds": 0.1, "nested": {"a": [1, None]}}
    Checkpoints(folder).save(batch_index, stores, DENSE, extra, keep=1)
    found = Checkpoints(folder).open()
    found.verify()
    assert (found.batch_index, found.extra, found.tables()) == (
        batch_index,
        extra,
        sorted(store.name for store in stores),
    )
    assert found.dense().keys() == DENSE.keys() and torch.equal(found.dense()["relations"], DENSE["relations"])
    fresh = [table(f"t{i}", *shape, dtype, seed=99) for i, shape in enumerate(shapes)]
    found.restore(fresh)
    assert [held(store) for store in fresh] == [held(store) for store in stores]


def test_a_table_of_many_blocks_without_optimizer_state(tmp_path):
    store = table(rows=40_000, dimension=2, state=0)
    Checkpoints(tmp_path).save(0, [store], {}, {}, keep=1)
    fresh = table(rows=40_000, dimension=2, state=0, seed=1)
    Checkpoints(tmp_path).open().restore([fresh])
    assert held(fresh) == held(store)


def test_a_table_of_another_shape_is_refused(tmp_path):
    Checkpoints(tmp_path).save(0, [table()], {}, {}, keep=1)
    for other in (table(rows=6), table(dimension=4), table(state=2)):
        with pytest.raises(CheckpointError, match="'entities' has another shape"):
            Checkpoints(tmp_path).open().restore([other])


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint yet"):
        checkpoints.open()
    for batch_index in range(10, 60, 10):
        checkpoints.save(batch_index, [table()], DENSE, {}, keep=2)
        if batch_index == 20:
            with pytest.raises(CheckpointError, match="nothing has been evaluated"):
                checkpoints.open("best")
            checkpoints.mark_best("0000000020")
    assert checkpoints.names() == ["0000000020", "0000000040", "0000000050"]
    assert checkpoints.open("best").batch_index == 20 and checkpoints.open().batch_index == 50
    checkpoints.mark_best("0000000050")
    checkpoints.save(60, [table()], DENSE, {}, keep=2)
    assert checkpoints.names() == ["0000000050", "0000000060"]
    with pytest.raises(CheckpointError, match="no checkpoint '7'; there are 0000000050, 0000000060"):
        checkpoints.open("7")
    checkpoints.drop_after(50)
    assert checkpoints.names() == ["0000000050"]
    checkpoints.mark_best(None)
    assert checkpoints.best() is None


@pytest.mark.parametrize(
    "file",
    ["manifest.json", "dense.safetensors", *(f"entities.{part}.npy" for part in ("values", "state", "timestamps"))],
)
def test_damage_is_named_and_the_one_before_offered(tmp_path, file):
    checkpoints = Checkpoints(tmp_path)
    for batch_index in (10, 20):
        checkpoints.save(batch_index, [table()], DENSE, {"number": 1234567}, keep=2)
    flip_a_byte(tmp_path / "0000000020" / file)
    with pytest.raises(
        CheckpointError, match=rf"0000000020/{file}: is damaged.*; the one before it: --checkpoint 0000000010"
    ):
        checkpoints.open()
    checkpoints.open("0000000010")
    (tmp_path / "0000000010" / file).unlink()
    with pytest.raises(
        CheckpointError, match=rf"0000000010/{file}: .*(is missing|No such file).*; there is none before it"
    ):
        checkpoints.open("0000000010")


def test_no_byte_of_the_manifest_changes_unseen(tmp_path):
    """Not even one that leaves what it says as it was: 0.30000000000000005 is the same number."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(10, [table()], DENSE, {"seconds": 0.1 + 0.2}, keep=1)
    manifest = tmp_path / "0000000010" / "manifest.json"
    content = manifest.read_bytes()
    assert b"0.30000000000000004" in content and checkpoints.open(verify=False).batch_index == 10
    for place in range(len(content)):
        manifest.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointError):
            checkpoints.open(verify=False)


@pytest.mark.parametrize(
    ("version", "said"), [(0, "0"), (3, "3"), (5, "5"), (True, "true"), (1.0, "1.0"), ("2", "'2'"), (None, "null")]
)
def test_another_version_is_said_to_be_one(tmp_path, version, said):
    Checkpoints(tmp_path).save(10, [table()], {}, {}, keep=1)
    manifest = tmp_path / "0000000010" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": version}))
    with pytest.raises(CheckpointError, match=f"is of format version {said}, not 4"):
        Checkpoints(tmp_path).open()


@pytest.mark.parametrize("where", ["value", "state", "dense"])
def test_numbers_that_are_none_push_no_good_checkpoint_out(tmp_path, where):
    checkpoints, store, dense = Checkpoints(tmp_path), table(), DENSE
    checkpoints.save(10, [store], dense, {}, keep=1)
    before = contents(tmp_path)
    rows = np.zeros((1, 6), np.float32)
    rows[0, {"value": 1, "state": 5, "dense": 0}[where]] = 0 if where == "dense" else np.nan
    store.load(2, np.array([7]), rows)
    if where == "dense":
        dense = {"relations": torch.tensor([float("inf")])}
    with pytest.raises(DivergedError, match=r"(entities|relations) hold NaN or infinite numbers at batch 19"):
        checkpoints.save(20, [store], dense, {}, keep=1)
    assert contents(tmp_path) == before


def count_calls(patch, fault_at=None, error=None):
    """Counts every call of the file system's verbs that `save` uses; raises at the given one."""
    calls = []

    def counted(name, function):
        def call(*args, **kwargs):
            if name == "open" and not set("wx") & set(args[1] if len(args) > 1 else kwargs.get("mode", "r")):
                return function(*args, **kwargs)
            calls.append(name)
            if len(calls) == fault_at:
                raise error
            return function(*args, **kwargs)

        return call

    for place, name in (
        (os, "fsync"),
        (os, "rename"),
        (os, "replace"),
        (os, "mkdir"),
        (os, "unlink"),
        (os, "rmdir"),
        (builtins, "open"),
        (shutil, "rmtree"),
    ):
        patch.setattr(place, name, counted(name, getattr(place, name)))
    return calls


def test_a_fault_at_any_call_leaves_every_named_checkpoint_complete(tmp_path, monkeypatch):
    def prepared(name):
        checkpoints = Checkpoints(tmp_path / name)
        for batch_index in (10, 20):
            checkpoints.save(batch_index, [table(seed=batch_index)], DENSE, {}, keep=2)
        checkpoints.mark_best("0000000010")
        return checkpoints

    checkpoints = prepared("counted")
    with monkeypatch.context() as patch:
        calls = count_calls(patch)
        checkpoints.save(30, [table(seed=30)], DENSE, {}, keep=1)
    assert checkpoints.names() == ["0000000010", "0000000030"]
    assert {"fsync", "rename", "mkdir", "open", "rmtree", "unlink", "rmdir"} <= set(calls)
    for number in range(1, len(calls) + 1):
        for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()):
            checkpoints = prepared(f"{number}-{type(error).__name__}")
            before = contents(checkpoints.folder)
            with monkeypatch.context() as patch, pytest.raises((InputError, KeyboardInterrupt)) as caught:
                count_calls(patch, number, error)
                checkpoints.save(30, [table(seed=30)], DENSE, {}, keep=1)
            assert isinstance(error, KeyboardInterrupt) or "No space left on device" in str(caught.value)
            for name in checkpoints.names():
                checkpoints.open(name).verify()
            renamed = "0000000030" in checkpoints.names()
            assert renamed or contents(checkpoints.folder).items() >= before.items(), calls[number - 1]
            checkpoints.clean()
            left = sorted(path.name for path in checkpoints.folder.iterdir())
            assert left == sorted(["best.json", *checkpoints.names()])
            checkpoints.save(40, [table(seed=40)], DENSE, {}, keep=1)
            assert checkpoints.names() == ["0000000010", "0000000040"]


def test_a_disk_that_is_full_in_the_middle_of_a_table_spares_the_older_checkpoints(tmp_path):
    """No file of more than 1 MiB can be written after the first checkpoint."""
    checkpoints, store = Checkpoints(tmp_path), table(rows=100_000, dimension=8, state=8)
    checkpoints.save(10, [store], DENSE, {}, keep=1)
    before, threads, limit = contents(tmp_path), threading.active_count(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(InputError, match="0000000020: can't be written: File too large"):
            checkpoints.save(20, [store], DENSE, {}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (contents(tmp_path), threading.active_count()) == (before, threads)


def test_a_checkpoint_that_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / ".0000000010.unfinished").mkdir()
    (tmp_path / ".best.json.unfinished").write_text("{")
    Checkpoints(tmp_path).save(20, [table()], DENSE, {}, keep=1)
    Checkpoints(tmp_path).clean()
    assert [path.name for path in tmp_path.iterdir()] == ["0000000020"]


def test_saving_takes_memory_for_a_block_not_for_the_table(tmp_path):
    store = table(rows=200_000, dimension=16, state=16)
    tracemalloc.start()
    Checkpoints(tmp_path).save(0, [store], {}, {}, keep=1)
    Checkpoints(tmp_path).open().restore([store])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20 < store.nbytes


def test_restoring_keeps_no_more_than_a_block_mapped(tmp_path, monkeypatch):
    store = table(rows=200_000, dimension=16, state=16)
    Checkpoints(tmp_path).save(0, [store], {}, {}, keep=1)
    checkpoint, process, mapped = Checkpoints(tmp_path).open(), psutil.Process(), []
    load, before = store.load, process.memory_info().shared
    monkeypatch.setattr(store, "load", lambda *args: (load(*args), mapped.append(process.memory_info().shared)))
    checkpoint.restore([store])
    assert max(mapped) - before < 8 << 20 < store.nbytes // 2


def test_no_byte_of_which_is_the_best_changes_unseen(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.mark_best("0000000010")
    whole = (tmp_path / BEST).read_bytes()
    for place in range(len(whole)):
        (tmp_path / BEST).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="best.json: is damaged"):
            checkpoints.best()


def test_the_best_one_may_be_another_folders_where_none_was_saved_yet(tmp_path):
    checkpoints = Checkpoints(tmp_path / "part" / "checkpoints")
    checkpoints.mark_best("0000000010")
    assert checkpoints.best() == "0000000010"


def test_dense_tensors_are_read_not_mapped(tmp_path, monkeypatch):
    """A mapping that the system refuses would be an error of torch's that names neither file nor reason as ours do."""
    Checkpoints(tmp_path).save(0, [table()], DENSE, {}, keep=1)

    def refuse(*args, **kwargs):
        raise RuntimeError("unable to mmap 336 bytes")

    monkeypatch.setattr(torch.UntypedStorage, "from_file", refuse)
    assert torch.equal(Checkpoints(tmp_path).open().dense()["relations"], DENSE["relations"])


def test_each_file_is_checked_as_it_is_read(tmp_path):
    Checkpoints(tmp_path).save(10, [table()], DENSE, {}, keep=1, arrays={"entities.more": np.arange(9)})

    def read():
        found = Checkpoints(tmp_path).open(as_read=True)
        return found.arrays(), found.restore([table()]), found.dense()

    assert np.array_equal(read()[0]["entities.more"], np.arange(9))
    for path in sorted((tmp_path / "0000000010").iterdir()):
        before = path.read_bytes()
        flip_a_byte(path)
        with pytest.raises(CheckpointError, match=f"{path.name}: is damaged"):
            read()
        path.write_bytes(before)
    read()
