"""Sums over places with the row optimizers, validation and the look at rows, in the GPU's kernels, against oracles."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.arranged import order_of
from marius_oac.models.compute.row_optimizers import GradientPassThrough, RowOptimizer
from marius_oac.models.compute.soundness import LARGEST_VALUE, is_sound
from marius_oac.models.compute.summed import BLOCK, Parts
from marius_oac.types import map_arrays
from tests.device import DEVICE
from tests.kernels.interpreted import by_kernels, moved, quiet  # noqa: F401 (a fixture)
from tests.models import naive
from tests.models.batches import OPTIMIZERS
from tests.models.own_parts import EXAMPLE

pytestmark = [pytest.mark.device, quiet]


def parts_of(keys, count, dimension, generator):
    order = map_arrays(order_of(keys, count), moved)
    values = generator.normal(0, 1, (len(keys), dimension)).astype(np.float32)
    return Parts(moved(values), order)


def sums_of(parts, keys, count):
    found = np.zeros((count, parts.values.shape[1]))
    np.add.at(found, keys, parts.values.cpu().numpy().astype(np.float64))
    return found


@settings(deadline=None, max_examples=20, derandomize=True)
@given(
    counts=st.lists(st.sampled_from([0, 1, 2, 3, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]), min_size=1, max_size=6),
    dimension=st.sampled_from([1, 5, 16, 33]),
    seed=st.integers(0, 99),
)
@example([5, 2000, 0, 7], 4, 0)  # a hub, whose blocks are summed up several at a time
def test_sums(counts, dimension, seed):
    generator = np.random.default_rng(seed)
    keys = generator.permutation(np.repeat(np.arange(len(counts)), counts))
    parts = parts_of(keys, len(counts), dimension, generator)
    rows = torch.full((len(counts), dimension), 9.0, device=DEVICE)
    GradientPassThrough().update_parts(rows, parts, 0)
    np.testing.assert_allclose(
        rows.cpu(), sums_of(parts, keys, len(counts)), rtol=0, atol=2e-6 * max(8, *counts) ** 0.5 * 4
    )


@pytest.mark.parametrize("picked", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_updates(kind, picked):
    config = OptimizerConfig(kind=kind, learning_rate=0.3, initial_accumulator=0.1)
    optimizer, generator = RowOptimizer(config), np.random.default_rng(0)
    keys, count, dimension = generator.integers(7, size=40), 7, 6
    width = dimension + optimizer.state_width(dimension)
    table = generator.random((11 if picked else count, width)).astype(np.float32)
    picks = np.array([9, 0, 3, 10, 5, 6, 1]) if picked else np.arange(count)
    rows, expected = moved(table), table.copy()
    for step in range(3):
        parts = parts_of(keys, count, dimension, generator)
        optimizer.update_parts(rows, parts, step, 0.5, moved(picks) if picked else None)
        halved = config.model_copy(update={"learning_rate": 0.15})
        sums = sums_of(parts, keys, count)
        expected[picks] = naive.optimize(halved, expected[picks], sums, step + 1)
    np.testing.assert_allclose(rows.cpu(), expected, rtol=2e-5, atol=1e-5)


@pytest.mark.usefixtures("all_code_is_known")
def test_a_rule_of_the_user_gets_the_sums():
    config = OptimizerConfig(kind=f"{EXAMPLE}:Momentum", learning_rate=0.1)
    optimizer, generator = RowOptimizer(config), np.random.default_rng(0)
    keys = generator.integers(5, size=30)
    parts, rows = parts_of(keys, 5, 4, generator), np.zeros((8, 4 + optimizer.state_width(4)), np.float32)
    picks, found, told = np.array([7, 1, 2, 4, 6]), moved(rows), torch.zeros(2, device=DEVICE)
    optimizer.update_parts(found, parts, 0, 1.0, moved(picks), told, LARGEST_VALUE)
    chosen = rows[picks]
    optimizer.update(chosen, sums_of(parts, keys, 5).astype(np.float32), 0)
    rows[picks] = chosen
    np.testing.assert_allclose(found.cpu(), rows, atol=1e-5)
    assert not told.any()
    parts.values[3] = np.inf
    optimizer.update_parts(found, parts, 0, 1.0, moved(picks), told, LARGEST_VALUE)
    assert told.isnan().tolist() == [True, False]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("wrong", [None, np.nan, np.inf, 1e30])
def test_rows_that_are_not_sound_are_told(kind, wrong):
    optimizer, generator = RowOptimizer(OptimizerConfig(kind=kind, learning_rate=1.0)), np.random.default_rng(0)
    parts, told = parts_of(np.array([0, 1, 1, 2]), 3, 5, generator), torch.zeros(2, device=DEVICE)
    if wrong:
        parts.values[2, 3] = wrong
    optimizer.update_parts(
        torch.zeros(3, 5 + optimizer.state_width(5), device=DEVICE), parts, 0, 1.0, None, told, LARGEST_VALUE
    )
    assert told.isnan().tolist() == [wrong is not None, False]


@pytest.mark.parametrize("place, wrong", [
    (None, 0), ((2, 1), np.nan), ((0, 0), -np.inf), ((40, 4), -2 * LARGEST_VALUE), ((40, 5), 2 * LARGEST_VALUE),
    ((39, 199), np.inf), ((0, 199), np.nan),
])  # fmt: skip
def test_the_look_at_rows_is_the_cpus(by_kernels, place, wrong):  # noqa: F811
    rows = np.random.default_rng(0).random((41, 200)).astype(np.float32)
    if place:
        rows[place] = wrong
    assert bool(is_sound(moved(rows), 5)) == bool(is_sound(rows, 5))
