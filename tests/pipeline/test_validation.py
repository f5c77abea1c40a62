"""Validation against "the newest version wins" on dicts; the Numba kernel and the torch one pass the same tests."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.pipeline.batch import Batch, Buffers, Pool
from marius_oac.pipeline.ledger import Ledger
from marius_oac.pipeline.validation import (
    Cache,
    _replace_older,
    replace_older,
    replace_older_fused,
    replace_older_torch,
)
from marius_oac.runtime.channel import Closed
from marius_oac.types import BatchData, Plan
from tests.kernels.interpreted import moved, quiet

WIDTH = 3


def on_torch(*arrays):
    tensors = [torch.from_numpy(array) if isinstance(array, np.ndarray) else array for array in arrays]
    return int(replace_older_torch(*tensors))


def without_jit(*arrays):
    return _replace_older.py_func(*arrays)


def in_triton(*arrays):
    tensors = [moved(array) if isinstance(array, np.ndarray) else array for array in arrays]
    replaced = int(replace_older_fused(*tensors))
    for place in (4, 5):  # timestamps and values, which are changed in place
        arrays[place][:] = tensors[place].cpu().numpy()
    return replaced


KERNELS = pytest.mark.parametrize("replace", [
    replace_older, without_jit, on_torch, pytest.param(in_triton, marks=[pytest.mark.device, quiet]),
])  # fmt: skip
ids = st.lists(st.integers(0, 20), unique=True, max_size=12).map(lambda rows: np.array(sorted(rows), np.int64))


@KERNELS
@settings(deadline=None, max_examples=60)
@given(newer=ids, rows=ids, timestamp=st.integers(0, 5), seed=st.integers(0, 99))
def test_older_rows_and_no_others_are_replaced(replace, newer, rows, timestamp, seed):
    rng = np.random.default_rng(seed)
    newer_values = rng.random((newer.size, WIDTH)).astype(np.float32)
    timestamps = rng.integers(-1, 6, rows.size)
    values = rng.random((rows.size, WIDTH)).astype(np.float32)
    known = dict(zip(newer.tolist(), newer_values, strict=True))
    expected = [
        (timestamp, known[row]) if row in known and time < timestamp else (time, value)
        for row, time, value in zip(rows.tolist(), timestamps, values.copy(), strict=True)
    ]
    hits = sum(row in known and time < timestamp for row, time in zip(rows.tolist(), timestamps, strict=True))
    assert replace(newer, newer_values, timestamp, rows, timestamps, values) == hits
    assert timestamps.tolist() == [time for time, _ in expected]
    for value, (_, wanted) in zip(values, expected, strict=True):
        assert np.array_equal(value, wanted)


def batch_of(rows, timestamp, mft_at_read, values, timestamps=None):
    times = np.full(rows.size, timestamp) if timestamps is None else timestamps
    return Batch(
        Plan(timestamp, (rows,), BatchData(), 1),
        mft_at_read=mft_at_read,
        timestamp=timestamp,
        resident=Buffers((rows,), (times,), (values,)),
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(ids, min_size=1, max_size=6), ids, st.integers(-1, 5), st.integers(0, 99))
def test_a_batch_gets_the_newest_version_of_each_row(writers, rows, mft_at_read, seed):
    """Batches 0, 1, ... wrote; the batch has read those up to `mft_at_read`, and of the others some by chance."""
    rng = np.random.default_rng(seed)
    newest, stored = {}, {}
    cache = Cache(replace_older, lambda batch: None)
    for timestamp, written in enumerate(writers):
        values = rng.random((written.size, WIDTH)).astype(np.float32)
        cache.add(batch_of(written, timestamp, -1, values))
        for row, value in zip(written.tolist(), values, strict=True):
            newest[row] = (timestamp, value)
            if timestamp <= mft_at_read or rng.random() < 0.5:
                stored[row] = (timestamp, value)
    start = (-1, np.zeros(WIDTH, np.float32))
    read = [stored.get(row, start) for row in rows.tolist()]
    values = np.array([value for _, value in read], np.float32).reshape(rows.size, WIDTH)
    batch = batch_of(rows, len(writers), mft_at_read, values, np.array([time for time, _ in read], np.int64))
    cache.validate(batch)
    for row, value in zip(rows.tolist(), values, strict=True):
        assert np.array_equal(value, newest.get(row, start)[1])


def test_eviction_lets_go_of_what_is_safe_and_counts_rows():
    gone = []
    cache = Cache(replace_older, lambda batch: gone.append(batch.timestamp))
    for timestamp in range(5):
        rows = np.arange(timestamp + 1)
        cache.add(batch_of(rows, timestamp, -1, np.zeros((rows.size, WIDTH), np.float32)))
    assert cache.num_rows == 15 and cache.oldest == 0
    cache.evict(2)
    assert gone == [0, 1, 2] and cache.num_rows == 9 and cache.oldest == 3
    cache.evict(9)
    assert cache.num_rows == 0 and cache.oldest is None


def test_the_ledger_keeps_the_window_and_the_mft():
    ledger = Ledger(first=10, in_flight=2)
    assert ledger.enter(10) == 9 and ledger.enter(11) == 9
    assert ledger.validating(10) == 9
    ledger.finish(11)  # out of order: nothing sequential has finished
    assert ledger.maximum_finished == 9
    ledger.finish(10)
    assert ledger.maximum_finished == 11
    assert ledger.enter(12) == 11
    assert ledger.validating(12) == 9  # batch 11, not yet validated, noted 9
    ledger.abort()
    with pytest.raises(Closed):
        ledger.enter(14)


def test_a_pool_reuses_and_never_exceeds_its_limit():
    pool = Pool("test", 2, lambda: Buffers((), (), ()))
    first, second = pool.take(), pool.take()
    with pytest.raises(RuntimeError, match="window"):
        pool.take()
    pool.give_back(first)
    assert pool.take() is first and second is not first
