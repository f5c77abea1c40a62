import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu.relabel import relabel, relabel_behind

EXAMPLES = 20 if numba.config.DISABLE_JIT else 80


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.integers(1, 2**40), st.data())
def test_relabelling_is_numpys_unique(bound, data):
    some = st.integers(0, bound - 1)
    few = data.draw(st.lists(some, min_size=1, max_size=4))
    ids = np.array(data.draw(st.lists(some | st.sampled_from(few), max_size=60)), dtype=np.int64)
    expected, local = np.unique(ids, return_inverse=True)
    rows = relabel(ids, bound)
    assert rows.dtype == np.int64 and rows.tolist() == expected.tolist()
    assert ids.tolist() == local.tolist()


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="too many ids without the JIT")
@pytest.mark.parametrize("bound", [1, 2, 2048, 2049, 10**6, 2**31 + 5, 2**45])
def test_relabelling_many_ids(bound):
    ids = np.random.default_rng(bound).integers(0, bound, 50_000)
    expected, local = np.unique(ids, return_inverse=True)
    rows = relabel(ids, bound)
    assert np.array_equal(rows, expected) and np.array_equal(ids, local)


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.integers(1, 2**40), st.data())
def test_what_is_new_comes_behind_in_ascending_order(bound, data):
    some = st.integers(0, bound - 1)
    first = data.draw(st.lists(some, max_size=20, unique=True))
    more = st.sampled_from(first) | some if first else some
    behind = data.draw(st.lists(more, max_size=60))
    ids = np.array(first + behind, dtype=np.int64)
    nodes, rows, places = relabel_behind(ids, len(first), bound)
    expected = first + sorted(set(behind) - set(first))
    assert nodes.tolist() == expected
    assert ids.tolist() == [expected.index(node) for node in first + behind]
    assert rows.tolist() == sorted(expected) and rows[places].tolist() == expected
    assert {each.dtype for each in (nodes, rows, places)} == {np.dtype(np.int64)}


def test_ids_that_come_twice_among_the_first_are_refused():
    with pytest.raises(ValueError, match="an id comes twice among the first"):
        relabel_behind(np.array([5, 7, 5, 2]), 3, 10)


def test_ids_and_positions_must_fit_one_integer():
    with pytest.raises(ValueError, match="5 ids are too many for .* nodes"):
        relabel_behind(np.arange(5), 1, 2**61)
    assert relabel_behind(np.arange(4), 1, 2**61)[0].tolist() == [0, 1, 2, 3]
