import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.types import Side
from tests.data import naive_batches as naive


def as_lists(known: KnownAnswers, side: Side) -> list[list[int]]:
    offsets, ids = known.others(side)
    assert offsets.dtype == ids.dtype == np.int64
    assert offsets[0] == 0 and offsets[-1] == len(ids)
    return [part.tolist() for part in np.split(ids, offsets[1:-1])] if len(offsets) > 1 else []


@st.composite
def edge_arrays(draw, related, ids, max_size=25):
    relations = st.integers(0, 2) if related else st.nothing()
    row = st.tuples(ids, relations, ids) if related else st.tuples(ids, ids)
    rows = draw(st.lists(row, max_size=max_size))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    return np.array(rows, dtype=dtype).reshape(len(rows), 3 if related else 2)


@settings(deadline=None, max_examples=25 if numba.config.DISABLE_JIT else 120)
@given(st.booleans(), st.booleans(), st.integers(1, 30), st.data())
def test_other_answers_are_those_of_a_dict_of_sets(related, large, chunk, data):
    ids = st.sampled_from([0, 1, 2**30, 2**31 - 1]) if large else st.integers(0, 5)
    sets = data.draw(st.lists(edge_arrays(related, ids), max_size=3))
    queries = data.draw(edge_arrays(related, ids))
    known = KnownAnswers.build(sets, queries, 3 if related else 0, chunk=chunk)
    assert known.num_queries == len(queries)
    for side in Side:
        expected = naive.other_answers([edges.tolist() for edges in sets], queries.tolist(), related, side is Side.TAIL)
        assert as_lists(known, side) == expected


def test_splits_are_filters_for_each_other():
    train = np.array([[0, 0, 1], [0, 0, 3], [0, 1, 4], [2, 0, 1], [0, 0, 3]])
    test = np.array([[0, 0, 2], [5, 0, 5], [0, 0, 3]])
    known = KnownAnswers.build(iter([train, test]), test, 2)
    assert as_lists(known, Side.TAIL) == [[1, 3], [], [1, 2]]
    assert as_lists(known, Side.HEAD) == [[], [], []]
    assert as_lists(KnownAnswers.build([train, test], test, 0), Side.TAIL) == [[1, 3, 4], [], [1, 2, 4]]


def test_a_queries_own_answer_is_left_out_even_where_no_split_has_it():
    known = KnownAnswers.build([np.array([[0, 1], [0, 3]])], np.array([[0, 2], [0, 3], [1, 1]]), 0)
    assert as_lists(known, Side.TAIL) == [[1, 3], [1], []]
    assert as_lists(known, Side.HEAD) == [[], [], [0]]


def test_pairs_that_share_a_place_of_the_hash_table_stay_apart():
    """With so many pairs that differ in one part only, dozens meet in the table."""
    numbers = np.arange(300)
    for column in (0, 1):
        edges = np.full((600, 3), 7)
        edges[:, column], edges[:, 2] = np.tile(numbers, 2), np.repeat([1000, 2000], 300) + np.tile(numbers, 2)
        known = KnownAnswers.build([edges], edges[:300], 300)
        assert as_lists(known, Side.TAIL) == [[2000 + i] for i in range(300)]


def test_no_query_and_no_edge():
    nothing = np.empty((0, 3), dtype=np.int64)
    known = KnownAnswers.build([np.array([[0, 0, 1]])], nothing, 1)
    assert [as_lists(known, side) for side in Side] == [[], []]
    known = KnownAnswers.build([nothing], np.array([[0, 0, 1]]), 1)
    assert [as_lists(known, side) for side in Side] == [[[]], [[]]]
    assert as_lists(KnownAnswers.build([], np.array([[0, 0, 1]]), 1), Side.TAIL) == [[]]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="too many edges without the JIT")
def test_a_mapped_file_of_many_edges_and_a_hub(tmp_path):
    rng = np.random.default_rng(0)
    edges = np.stack([rng.zipf(1.5, 60_000) % 500, rng.integers(0, 4, 60_000), rng.integers(0, 5000, 60_000)], axis=1)
    np.save(tmp_path / "train.npy", edges.astype(np.int32))
    mapped = np.load(tmp_path / "train.npy", mmap_mode="r")
    queries = mapped[::50]
    known = KnownAnswers.build([mapped], queries, 4, chunk=7001)
    for side in Side:
        expected = naive.other_answers([edges.tolist()], queries.tolist(), True, side is Side.TAIL)
        assert as_lists(known, side) == expected


def test_the_relation_column_must_be_there():
    with pytest.raises(ValueError, match="2 columns, but the graph has 3 relations"):
        KnownAnswers.build([np.zeros((2, 2), dtype=np.int64)], np.zeros((1, 3), dtype=np.int64), 3)
    with pytest.raises(ValueError, match="2 columns, but the graph has 3 relations"):
        KnownAnswers.build([np.zeros((2, 3), dtype=np.int64)], np.zeros((1, 2), dtype=np.int64), 3)
