"""Gradients and bags against sums written out; every kernel writes all that it is to write."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marius_oac.kernels.cpu import shards as kernels
from marius_oac.nodes.shards import gathered
from marius_oac.nodes.shards.bags import Picks
from marius_oac.nodes.shards.gathered import added_up
from marius_oac.nodes.shards.table import NumberedTable
from tests.nodes.test_protocol_simulation import OPTIMIZER, store


def draw(generator, count, bound=20):
    rows = np.sort(generator.choice(bound, count, replace=False))
    return rows, generator.normal(size=(count, 3)).astype(np.float32)


@pytest.mark.parametrize("shares", [[1.0], [0.5], [0.25, 0.75], [1.0, 0.0], [0.5, 0.25, 0.25]])
def test_gradients_are_added_up_by_row_in_the_order_of_those_who_have_them(shares):
    generator = np.random.default_rng(0)
    parts = [draw(generator, 6) for _ in shares]
    rows, gradients = [list(each) for each in zip(*parts, strict=True)]
    union, total = added_up(rows, [Picks.of(np.arange(6), None)] * len(shares), gradients, shares, 20)
    expected = {}
    for own, values, share in zip(rows, gradients, shares, strict=True):
        for row, value in zip(own.tolist(), np.float32(share) * values, strict=True):
            expected[row] = expected[row] + value if row in expected else value
    assert union.tolist() == sorted(expected)
    np.testing.assert_allclose(total, [expected[row] for row in union.tolist()], rtol=1e-6, atol=1e-7)


def drawn_pull(generator, capacity):
    """Rows of a pull, its picks with sums, and a gradient of each value of its answer."""
    rows = np.sort(generator.permutation(capacity)[: generator.integers(1, capacity)])
    index = np.concatenate((generator.permutation(rows.size), generator.integers(0, rows.size, generator.integers(4))))
    sums = np.cumsum([0, *generator.integers(1, 4, generator.integers(3))])
    picks = Picks(index, generator.integers(0, rows.size, sums[-1]), sums)
    return rows, picks, generator.normal(size=(picks.size, 3)).astype(np.float32)


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([1, 100, 1 << 20]))
def test_pulls_of_all_at_once_have_the_bits_of_one_after_the_other(seed, trainers, at_once):
    generator, capacity = np.random.default_rng(seed), 9
    rows, picks, gradients = zip(*(drawn_pull(generator, capacity) for _ in range(trainers)), strict=True)
    shares = [float(generator.choice([0.0, 1 / 3, 1.0])) for _ in rows]
    total = {}
    for own, pick, given_, share in zip(rows, picks, gradients, shares, strict=True):
        for row, gradient in zip(own.tolist(), pick.by_row(given_, own.size), strict=True):
            term = np.float32(share) * gradient
            total[row] = total[row] + term if row in total else term
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "_BYTES_AT_ONCE", at_once)
        union, sums = added_up(rows, picks, gradients, shares, capacity)
    assert union.tolist() == sorted(total)
    assert sums.tobytes() == b"".join(total[row].tobytes() for row in sorted(total))

    table = NumberedTable(store(0, capacity, capacity), OPTIMIZER)
    for timestamp in range(3):
        table.apply(np.sort(generator.permutation(capacity)[:4]), np.ones((4, 3), np.float32), timestamp, 1.0)
    seen = generator.integers(-1, 3, trainers).tolist()
    for own, pick, last, (places, values) in zip(
        rows, picks, seen, gathered.patches(table, rows, picks, seen), strict=True
    ):
        expected = pick.holding(table.timestamps(own) > last)
        assert places.tolist() == expected.tolist()
        assert values.tobytes() == pick.values(table.read(own))[expected].tobytes()


@given(st.integers(0, 2**32), st.integers(0, 16), st.sampled_from([1, 100, 1 << 20]))
@example(0, 16, 100)
def test_trees_of_each_row_have_the_bits_of_one_tree_over_blocks(seed, blocks, at_once):
    generator, capacity = np.random.default_rng(seed), 6
    slots = np.sort(generator.permutation(16)[:blocks]).tolist()
    rows = [generator.integers(0, capacity, generator.integers(0, 12)) for _ in slots]  # some thrice in a block
    gradients = [generator.normal(size=(own.size, 3)).astype(np.float32) for own in rows]
    for each in gradients:
        each[generator.random(each.shape) < 0.2] = -0.0
    shares = generator.choice([0.25, 1 / 3, 1.0], blocks).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "_BYTES_AT_ONCE", at_once)
        union, sums = gathered.tree_sums(slots, rows, gradients, shares, capacity, 3)
    begun, total = kernels.tree_sum(slots, rows, gradients, shares, capacity, 3)
    assert union.tolist() == np.flatnonzero(begun).tolist()
    assert sums.tobytes() == total[begun].tobytes()


def test_a_bag_is_the_sum_of_its_values():
    values, out = np.arange(12, dtype=np.float32).reshape(4, 3), np.full((3, 3), np.nan, np.float32)
    kernels.sum_into(values, np.array([2, 0, 0, 3, 1]), np.array([0, 1, 4, 5]), out)
    assert out.tolist() == [values[2].tolist(), (2 * values[0] + values[3]).tolist(), values[1].tolist()]
