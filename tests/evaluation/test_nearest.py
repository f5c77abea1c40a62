"""The most similar rows against the oracle: ties by id, blocks of any size, zeros, and numbers that are none."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac import TrainedModel
from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation import nearest
from marius_oac.evaluation.nearest import nearest_rows
from tests.evaluation import naive_nearest


def found(table, row, count, block):
    """With blocks of `block` rows."""
    with mock.patch.object(nearest, "_COPIES", (1 << 20) / (8 * table.shape[1] * block)):
        rows, similarities = nearest_rows(table, row, count, 1)
    return list(zip(rows.tolist(), similarities.tolist(), strict=True))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 12), st.integers(1, 45), st.integers(0, 999))
def test_the_most_similar_rows_are_those_of_the_oracle(num_rows, width, block, count, seed):
    random = np.random.default_rng(seed)
    table = random.integers(-1, 2, (num_rows, width)).astype(np.float32)  # many are alike, or zero
    row = int(random.integers(num_rows))
    result = found(table, row, count, block)
    whole = found(table, row, num_rows, num_rows)
    assert result == whole[:count] and len(whole) == num_rows - 1
    for before, after in zip(whole, whole[1:], strict=False):
        assert (-before[1], before[0]) < (-after[1], after[0])
    expected = naive_nearest.nearest(table.tolist(), row, num_rows)
    assert [pair[1] for pair in whole] == pytest.approx([pair[1] for pair in expected], abs=1e-12)
    assert dict(whole) == pytest.approx(dict(expected), abs=1e-12)


def test_only_some_rows_and_floats_may_be_compared():
    table = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    among = np.array([0, 3, 4, 9, 12, 13, 20, 29])
    rows, similarities = nearest_rows(table[among, :3], 4, 5, 1)
    for block in (1, 3, 30):
        with mock.patch.object(nearest, "_COPIES", (1 << 20) / (8 * 5 * block)):
            found = nearest_rows(table, 12, 5, 1, among, 3)
        assert found[0].tolist() == among[rows].tolist() and np.array_equal(found[1], similarities)


def test_large_and_small_numbers_have_similarities():
    table = np.array([[3e38, 3e38], [1e-30, 1e-30], [0, 0], [-1, -1]], np.float32)
    rows, similarities = nearest_rows(table, 0, 9, 1)
    assert rows.tolist() == [1, 2, 3] and similarities == pytest.approx([1, 0, -1])


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_what_is_no_number_is_told(number):
    with pytest.raises(MariusOacError, match="NaN or an infinite number"):
        nearest_rows(np.array([[1, 2], [3, number]], np.float32), 0, 1, 1)


def test_the_entities_nearest_to_one_by_name(finished):
    with TrainedModel.open(finished) as model:
        name = model.graph.node_names([7])[0]
        answers = model.nearest(name, k=5)
        expected = naive_nearest.nearest(np.asarray(model.entities).tolist(), 7, 5)
        assert [each.name for each in answers] == model.graph.node_names([number for number, _ in expected])
        assert [each.similarity for each in answers] == pytest.approx([similarity for _, similarity in expected])
        assert len(model.nearest(name)) == 10 and len(model.nearest(name, k=999)) == model.graph.num_nodes - 1
        with pytest.raises(InputError, match="k must be at least 1, not 0"):
            model.nearest(name, k=0)
        with pytest.raises(InputError, match="nobody"):
            model.nearest("nobody")
