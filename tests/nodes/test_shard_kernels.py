"""Gradients and bags against sums written out; every kernel writes all that it is to write."""

import numpy as np
import pytest

from marius_oac.kernels.cpu import shards as kernels


def draw(generator, count, bound=20):
    rows = np.sort(generator.choice(bound, count, replace=False))
    return rows, generator.normal(size=(count, 3)).astype(np.float32)


@pytest.mark.parametrize("shares", [[1.0], [0.5], [0.25, 0.75], [1.0, 0.0], [0.5, 0.25, 0.25]])
def test_gradients_are_added_up_by_row_in_the_order_of_those_who_have_them(shares):
    generator = np.random.default_rng(0)
    parts = [draw(generator, 6) for _ in shares]
    rows, gradients = [list(each) for each in zip(*parts, strict=True)]
    union, total = kernels.added_up(rows, gradients, shares, 20)
    expected = {}
    for own, values, share in zip(rows, gradients, shares, strict=True):
        for row, value in zip(own.tolist(), np.float32(share) * values, strict=True):
            expected[row] = expected[row] + value if row in expected else value
    assert union.tolist() == sorted(expected)
    np.testing.assert_allclose(total, [expected[row] for row in union.tolist()], rtol=1e-6, atol=1e-7)


def test_a_bag_is_the_sum_of_its_values():
    values, out = np.arange(12, dtype=np.float32).reshape(4, 3), np.full((3, 3), np.nan, np.float32)
    kernels.sum_into(values, np.array([2, 0, 0, 3, 1]), np.array([0, 1, 4, 5]), out)
    assert out.tolist() == [values[2].tolist(), (2 * values[0] + values[3]).tolist(), values[1].tolist()]
