"""Tables in the memory of other processes are those that their owners have, and rows are loaded as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.runtime.machine.peer_memory import PeerMemory
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.mapped import MappedStore
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.peer_table import PeerArray, PeerTable, about_array, about_table
from marius_oac.storage.snapshots import PARTS, SavedTable

OWNER = Path("owner")
LAYOUTS = st.builds(RowLayout, st.integers(1, 9), st.integers(0, 9), st.sampled_from(["float32", "bfloat16"]))


def table(layout, rows, seed=0, name="t"):
    store = MemoryStore(name, rows, layout, RowInitial("normal", 1.0, seed, name, 5.0))
    numbers = np.arange(0, rows, 2)
    values = np.random.default_rng(seed).normal(size=(numbers.size, layout.width)).astype(np.float32)
    store.commit(numbers, values, 7)
    return store


def about_of(store):
    """What others are told of the rows of a store that the test keeps."""
    return about_table(store, store.memory())


def every(store):
    rows, timestamps = np.empty((store.num_rows, store.layout.width), np.float32), np.empty(store.num_rows, np.int64)
    store.read(np.arange(store.num_rows), rows, timestamps)
    return rows, timestamps


@given(LAYOUTS, st.integers(1, 30), st.data())
def test_rows_are_those_of_the_owner(layout, count, data):
    first = data.draw(st.integers(0, count))
    which = range(first, data.draw(st.integers(first, count)))
    with table(layout, count) as owner, table(layout, 40, seed=1) as other:
        saved = PeerTable("t", OWNER, json.loads(json.dumps(about_of(owner))))
        rows, timestamps = every(owner)
        found = saved.read(slice(which.start, which.stop))
        assert found[0].tobytes() == rows[which].tobytes() and (found[1] == timestamps[which]).all()
        parts = rows[:, : layout.dimension], rows[:, layout.dimension :], timestamps
        for part, whole in zip(PARTS, parts, strict=True):
            column = saved.rows(part)
            assert column[which.start : which.stop].tobytes() == whole[which].tobytes()
            assert column.shape == whole.shape and column.dtype == whole.dtype and len(column) == count
            assert (column.size, column.nbytes) == (whole.size, whole.nbytes)
        assert saved.blocks() == [(layout.row_bytes, layout.row_bytes)]
        before, at = every(other), data.draw(st.integers(0, 40 - len(which)))
        chosen = data.draw(st.none() | st.lists(st.booleans(), min_size=len(which), max_size=len(which)))
        own = None if chosen is None else np.flatnonzero(np.array(chosen, bool))
        saved.load(other, which, at, own)
        numbers = np.arange(which.start, which.stop)[... if own is None else own]
        for old, new, theirs in zip(before, every(other), (rows, timestamps), strict=True):
            old[at : at + numbers.size] = theirs[numbers]
            assert new.tobytes() == old.tobytes()


def test_some_of_the_rows_are_loaded_one_after_another():
    layout = RowLayout(3, 3)
    with table(layout, 9) as owner, table(layout, 9, seed=1) as store:
        before = every(store)
        PeerTable("t", OWNER, about_of(owner)).load(store, range(2, 8), 1, np.array([0, 3, 5]))
        for found, theirs, old in zip(every(store), every(owner), before, strict=True):
            assert found[1:4].tobytes() == theirs[[2, 5, 7]].tobytes()
            assert found[[0, *range(4, 9)]].tobytes() == old[[0, *range(4, 9)]].tobytes()


@pytest.mark.parametrize("kind", ["mapped", "another layout"])
def test_other_stores_are_loaded_too(kind, tmp_path, monkeypatch):
    """Row by row, not as they lie: in a file that is mapped there must be room first."""
    layout, initial = RowLayout(3, 3), RowInitial("uniform", 1.0, 0, "t")
    with table(layout, 9) as owner:
        saved = PeerTable("t", OWNER, about_of(owner))
        made = (
            MappedStore(tmp_path, "t", 9, layout, initial) if kind == "mapped"
            else MemoryStore("t", 9, RowLayout(4, 2), initial)
        )  # fmt: skip
        with made as store:
            assert (store.memory() is None) == (kind == "mapped")
            monkeypatch.setattr(type(store), "packed", lambda *_: pytest.fail("as they lie"))
            saved.load(store, range(2, 9), 1)
            saved.load(store, range(2, 9), 6, np.array([1, 6]))
            for found, expected in zip(every(store), every(owner), strict=True):
                assert found[1:8].tobytes() == expected[[2, 3, 4, 5, 6, 3, 8]].tobytes()


def test_a_view_of_rows_outlives_its_table_and_is_within_it():
    layout = RowLayout(2, 1)
    with table(layout, 5) as store:
        rows, timestamps = every(store)
        about, view = about_of(store), store.memory()
        for first, count in ((-1, 2), (4, 2), (0, -1)):
            with pytest.raises(ValueError, match="are not all in its 5"):
                store.packed(first, count)
    found = PeerTable("t", OWNER, about).read(slice(None))
    assert view.size == 5 * layout.row_bytes and found[0].tobytes() == rows.tobytes()
    assert (found[1] == timestamps).all()


def test_rows_without_values_have_their_initial_ones():
    with MemoryStore("t", 5, RowLayout(2, 1), RowInitial("normal", 1.0, 0, "t", 5.0)) as store:
        about = about_of(store)  # before anything has filled it
        assert PeerTable("t", OWNER, about).read(slice(None))[0].tobytes() == every(store)[0].tobytes()


ARRAYS = st.builds(
    lambda shape, kind: np.arange(np.prod(shape), dtype=np.int64).astype(kind).reshape(shape),
    st.tuples(st.integers(0, 6)) | st.tuples(st.integers(2, 6), st.integers(1, 3)),
    st.sampled_from(["i8", "f4", "u2", "?"]),
)  # fmt: skip


@given(ARRAYS, st.integers(-8, 8) | st.none(), st.integers(-8, 8) | st.none())
def test_slices_of_arrays_are_copies_of_theirs(array, first, end):
    found = PeerArray.load(json.loads(json.dumps(about_array(array))))
    part = found[first:end]
    assert part.dtype == array.dtype and part.tobytes() == array[first:end].tobytes()
    assert part.shape == array[first:end].shape and len(found) == len(array)
    assert (found.shape, found.size, found.nbytes) == (array.shape, array.size, array.nbytes)
    with pytest.raises(ValueError, match="consecutive"):
        found[::2]


READER = """
import json, sys
import numpy as np
from pathlib import Path
from marius_oac.storage.peer_table import PeerTable
rows, timestamps = PeerTable("t", Path("owner"), json.loads(sys.argv[1])).read(slice(3, 8))
print(rows.tobytes().hex(), timestamps.tolist())
"""


def test_another_process_reads_the_same():
    with table(RowLayout(4, 2), 9) as store:
        about = about_of(store)
        assert PeerMemory(**about["memory"]).pid == os.getpid()
        said = subprocess.run([sys.executable, "-c", READER, json.dumps(about)], capture_output=True, text=True)
        rows, timestamps = every(store)
    assert said.stdout == f"{rows[3:8].tobytes().hex()} {timestamps[3:8].tolist()}\n", said.stderr


def test_the_table_of_a_checkpoint_loads_as_it_reads():
    """What other tables do: `load` is `read`, checked, into the store."""
    with table(RowLayout(3, 1), 9) as owner, table(RowLayout(3, 1), 9, seed=1) as store:
        rows, timestamps = every(owner)
        arrays = {"values": rows[:, :3], "state": rows[:, 3:], "timestamps": timestamps}
        SavedTable("t", OWNER, arrays.__getitem__).load(store, range(4, 9), 0)
        assert every(store)[0][:5].tobytes() == rows[4:].tobytes() and (every(store)[1][:5] == timestamps[4:]).all()
