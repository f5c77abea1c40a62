"""Stores in memory, on disk and in mapped files pass one suite of checkpoints, which finds the mistakes planted in
them."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from marius_oac.config.sections import StorageConfig
from marius_oac.runs.stores import Tables
from marius_oac.storage.contract import ParameterStore, RowLayout
from marius_oac.storage.disk.store import SsdStore
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.snapshots import SavedTable, Snapshot
from marius_oac.testing.stores import check_stores

LAYOUT, ROWS = RowLayout(256, 200), {"a": 20, "b": 10}  # two rows in a page
DISK = StorageConfig(memory=4 * 4200, page=4096, io="buffered")  # four pages of 15
KINDS = {"memory": StorageConfig(), "disk": DISK, "mapped": StorageConfig(io="mmap")}


def making(config):
    @contextmanager
    def make(run):
        with ExitStack() as stack:
            tables = Tables(config, run, dict.fromkeys(ROWS, LAYOUT), ROWS, stack)
            yield [tables.make(name, count, RowInitial("normal", 1.0, 0, name)) for name, count in ROWS.items()]

    return make


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_stores_of_the_package_pass(tmp_path, config):
    check_stores(making(config), tmp_path)


snapshot, take = ParameterStore.snapshot, ParameterStore._take


def ageless(store):
    found = snapshot(store)
    blocks = ({**block, "timestamps": 0 * block["timestamps"]} for block in found.blocks)
    return Snapshot(found.arrays, blocks)


def unflushed(store):
    places = store._tier.saved(store.name, store.num_rows)
    arrays = {part: (array.shape, array.dtype) for part, array in places.items()}
    return Snapshot(arrays, iter([places]), {"rows": store.about.dump()})


def stateless(store, saved):
    def array(part):
        return np.zeros((store.num_rows, store.layout.state_width), np.float32) if part == "state" else saved.rows(part)

    take(store, SavedTable(saved.name, saved.path, array))


def short(store, saved):
    store._tier.restore(store.name, *(saved.array(part)[:-1] for part in saved.parts))


def clipped(store, saved):
    take(store, SavedTable(saved.name, saved.path, lambda part: saved.rows(part)[: store.num_rows]))


MISTAKES = {
    "a snapshot has no timestamps": ("memory", ParameterStore, "snapshot", ageless, "holds other rows"),
    "a snapshot is of the moment before": ("disk", SsdStore, "snapshot", unflushed, "holds other rows|can't be read"),
    "the optimizer starts anew": ("memory", ParameterStore, "_take", stateless, "not what the stores hold"),
    "nothing is restored": ("mapped", ParameterStore, "_take", lambda *_: None, "not what the stores hold"),
    "the last page is not restored": ("disk", SsdStore, "_take", short, "not what the stores hold"),
    "any shape will do": ("memory", ParameterStore, "restore", clipped, "another shape is restored"),
    "nothing is kept": ("disk", DiskTier, "keep", lambda *_: None, "holds other rows|can't be read"),
    "nothing is let go": ("disk", DiskTier, "let_go", lambda *_: None, "old checkpoints take room"),
    "nothing is forgotten": ("disk", DiskTier, "forget", lambda *_: None, "not what the stores hold"),
    "NaN is a number": ("disk", DiskTier, "not_finite", None, "NaN are saved"),
}


@pytest.mark.parametrize("kind, owner, name, mistake, said", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_found(tmp_path, monkeypatch, kind, owner, name, mistake, said):
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(AssertionError, match=said):
        check_stores(making(KINDS[kind]), tmp_path)
