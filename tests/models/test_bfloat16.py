"""Products with inputs in bfloat16: bare, by a `Multiply`, and in the batches of link prediction."""

import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu import bfloat16_gemm
from marius_oac.kernels.cpu.atomics import address_of
from marius_oac.kernels.cpu.bfloat16 import round_to_bfloat16
from marius_oac.kernels.cpu.bfloat16_gemm import VECTOR, multiply_panels
from marius_oac.kernels.cpu.jit import float_compiled
from marius_oac.models.compute.rounded import ByBfloat16
from marius_oac.models.link_prediction import handwritten, panels, program
from marius_oac.runtime.aligned import aligned_empty
from tests.models.batches import LOSSES, Shape, configure, draw
from tests.models.ctr import step_batches
from tests.models.test_gradient import exact, written_out
from tests.models.test_lanes import SHAPE, at_once, one_by_one_the_last_first, only_the_first, trained
from tests.models.test_multiply import numbers

pytestmark = pytest.mark.skipif(not bfloat16_gemm.is_there(), reason="the processor has no AVX-512 BF16")
DECODERS = ["distmult", "complex", "dot"]
BFLOAT16 = {"compute__precision": "bfloat16"}
STEP = 2.0**-24
"""float32's rounding, of 1."""
NANS = 0x7FC07FC0
"""A pair of them."""


def rounded(values):
    found = np.array(values, np.float32, order="C")
    round_to_bfloat16(found)
    return found


def check(found, left, right, before=0.0):
    """Against float64, by the error of a sum of so many products."""
    left, right = (rounded(each).astype(float) for each in (left, right))
    bound = 2 * left.shape[1] * STEP * (before + np.abs(left) @ np.abs(right))
    assert (np.abs(found - before - left @ right) <= bound).all()


@float_compiled
def product(left, left_row, left_pair, right, into, at, sizes, adds):
    first = address_of(into) + 4 * (at * into.shape[1] + at)
    multiply_panels(
        address_of(left), left_row, left_pair, address_of(right), right.shape[1], first, into.shape[1], sizes[0],
        sizes[1], sizes[2], adds,
    )  # fmt: skip


def words(values):
    """Pairs of columns, uint32, of an even number of them."""
    bits = rounded(values).view(np.uint32) >> 16
    return bits[:, 0::2] | bits[:, 1::2] << 16


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    rows=st.integers(1, 20), columns=st.integers(1, 13 * VECTOR), pairs=st.integers(1, 40), by_column=st.booleans(),
    adds=st.booleans(), at=st.integers(0, 3),
)  # fmt: skip
@example(rows=9, columns=70, pairs=2 * 256 + 3, by_column=False, adds=True, at=1)
def test_bare_products(rows, columns, pairs, by_column, adds, at):
    """Nothing else is written, and what lies beside the left's rows and the right's columns has no effect."""
    left, right = numbers(rows, 2 * pairs), numbers(2 * pairs, columns, seed=1)
    held = np.full((pairs, rows + 2) if by_column else (rows, pairs + 2), NANS, np.uint32)
    (held.T if by_column else held)[:rows, :pairs] = words(left)
    panel = aligned_empty((pairs, -(-columns // VECTOR) * VECTOR), np.uint32)
    panel[:] = NANS
    panel[:, :columns] = words(right.T).T
    into = np.full((rows + 2 * at, columns + 2 * at), 3, np.float32)
    strides = (1, held.shape[1]) if by_column else (held.shape[1], 1)
    product(held, *strides, panel, into, at, (rows, columns, pairs), int(adds))
    inside = into[at : at + rows, at : at + columns]
    check(inside, left, right, 3 * adds)
    inside[:] = 3
    assert (into == 3).all()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.tuples(*(st.integers(1, 50) for _ in range(3))),
    st.tuples(*(st.booleans() for _ in range(4))),
)  # fmt: skip
@example((130, 600, 17), (True, False, True, False))
def test_products_in_any_layout(sizes, laid_out):
    rows, inner, columns = sizes
    flip_left, flip_right, cut_left, cut_right = laid_out
    left = numbers(rows, inner, flipped=flip_left, apart=cut_left)
    right = numbers(inner, columns, flipped=flip_right, apart=cut_right, seed=1)
    into = np.full((rows, columns + 5), np.nan, np.float32)
    ByBfloat16()(left, right, into[:, :columns])
    check(into[:, :columns], left, right)
    assert np.isnan(into[:, columns:]).all()
    alone = np.empty((rows, columns), np.float32)
    ByBfloat16()(np.ascontiguousarray(left), np.ascontiguousarray(right), alone)
    assert (into[:, :columns] == alone).all(), "any layout has the same bits"
    part = np.empty((rows - rows // 2, columns - columns // 3), np.float32)
    ByBfloat16()(left[rows // 2 :], right[:, columns // 3 :], part)
    assert (part == alone[rows // 2 :, columns // 3 :]).all(), "a number depends on its row and its column"


def test_ties_are_rounded_to_even_and_what_is_none_stays_none():
    left = np.array([[1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20]], np.float32)
    into = np.empty((4, 1), np.float32)
    ByBfloat16()(left.T, np.ones((1, 1), np.float32), into)
    assert into.T.tolist() == [[1, 1 + 2**-6, -1, 1 + 2**-7]]
    into = into.reshape(1, 4)
    with np.errstate(invalid="ignore"):
        for bad in (np.inf, -np.inf, np.nan):
            ByBfloat16()(np.full((1, 3), bad, np.float32), np.ones((3, 4), np.float32), into)
            assert np.array_equal(into, np.full((1, 4), bad), equal_nan=True)


def test_what_was_multiplied_before_has_no_effect():
    """Memory is reused, and an odd number of rows or columns has half a pair of it at the end."""
    product, bad = ByBfloat16(), np.full((8, 34), np.nan, np.float32)
    for left, right in ((numbers(4, 7), numbers(7, 33, seed=1)), (numbers(4, 7), numbers(7, 33, flipped=True, seed=1))):
        found = [np.empty((4, 33), np.float32) for _ in range(2)]
        for each in (bad, bad.T):
            product(each, each.T, np.empty((len(each), len(each)), np.float32))
        product(left, right, found[0])
        ByBfloat16()(left, right, found[1])
        assert (found[0] == found[1]).all()


def test_each_thread_has_memory_of_its_own():
    product = ByBfloat16()
    found = [product._take("left", 64)]
    thread = threading.Thread(target=lambda: found.append(product._take("left", 64)))
    thread.start()
    thread.join()
    assert not np.shares_memory(*found) and np.shares_memory(found[0], product._take("left", 64))


def test_products_of_nothing_are_zeros_and_those_of_many_small_matrices_are_float32():
    into = np.ones((3, 2), np.float32)
    ByBfloat16()(np.empty((3, 0), np.float32), np.empty((0, 2), np.float32), into)
    assert not into.any()
    left, right, into = numbers(5, 3, 4), numbers(5, 4, 2), np.empty((5, 3, 2), np.float32)
    ByBfloat16()(left, right, into)
    assert (into == left @ right).all()


@pytest.fixture
def small(monkeypatch):
    """Many tasks in each phase, several waves, and tiles of odd numbers at the ends of chunks."""
    for module, name, size in (
        (panels, "TILE_EDGES", 8), (panels, "TILE_SCORES", 8), (handwritten, "_MAX_TILE_EDGES", 9),
        (handwritten, "_WAVE_SCORES", 700), (handwritten, "_BLOCK_CANDIDATES", 6), (handwritten, "_BLOCK_ROWS", 5),
        (handwritten, "_PACK_VECTORS", 1), (handwritten, "_BLOCK_RELATIONS", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, size)
    caches = (handwritten.waves_of, program._products, program._packs)
    for each in caches:
        each.cache_clear()
    yield
    for each in caches:
        each.cache_clear()


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("schedule", [only_the_first, one_by_one_the_last_first, at_once])
def test_any_schedule_of_lanes_has_the_same_bits(small, everything, schedule):
    config = configure("complex", everything=everything, shape=SHAPE, **BFLOAT16)
    assert trained(config, schedule, 5) == trained(config)
    assert trained(config) != trained(configure("complex", everything=everything, shape=SHAPE))


SHAPES = [Shape(), Shape(chunks=1, edges=6), Shape(chunks=3, edges=3, negatives=1, dimension=2), SHAPE,
          Shape(entities=40, edges=64, chunks=5, negatives=35, dimension=34)]  # fmt: skip


@pytest.mark.parametrize("everything", [False, True], ids=["sampled", "all"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_numbers_of_few_bits_have_the_bits_of_float32(small, decoder, everything):
    """Values are eighths, and gradients by scores of the margin are 0 or one number, which alone is rounded."""
    for seed, shape in enumerate(SHAPES):
        config = configure(decoder, "margin", everything, shape)
        batch = draw(config, shape, seed, grid=True)
        found = [written_out(each, batch, 2) for each in (config, config.replace("compute.precision=bfloat16"))]
        assert found[0][0] == found[1][0]
        for mine, theirs in zip(found[0][1:], found[1][1:], strict=True):
            if mine is not None:
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=2**-8 * np.abs(theirs).max())


@pytest.mark.parametrize("everything", [False, True], ids=["sampled", "all"])
@pytest.mark.parametrize("loss", [each for each in LOSSES if each != "margin"])  # which has a kink
@pytest.mark.parametrize("decoder", DECODERS)
def test_gradients_are_those_of_float64_to_the_rounding_of_inputs(small, decoder, loss, everything):
    for seed, shape in enumerate(SHAPES):
        config = configure(decoder, loss, everything, shape, **BFLOAT16)
        batch = draw(config, shape, seed)
        wanted, found = exact(config, batch), written_out(config, batch, 2)
        assert found[0] == pytest.approx(wanted[0], rel=2**-8)
        for mine, theirs in zip(found[1:], wanted[1:], strict=True):
            if mine is not None:
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=2**-6 * np.abs(theirs).max())


def test_candidates_and_queries_are_rounded_and_nothing_else_is():
    """Dot's queries are heads: against all nodes every score is a product of rounded rows."""
    shape = Shape(edges=40, entities=30, dimension=9)
    config = configure("dot", "softmax", True, shape)
    batch = draw(config, shape)
    mine, _, _ = written_out(config.replace("compute.precision=bfloat16"), batch)
    batch.values[:] = rounded(values := batch.values.copy())
    assert mine == pytest.approx(written_out(config, batch)[0], rel=1e-6)
    batch.values[:] = values
    assert mine != pytest.approx(written_out(config, batch)[0], rel=1e-6)


def test_clicks_have_the_same_bits_for_any_number_of_threads():
    def compute(threads, **more):
        config = step_batches.configure(**more)
        batch = step_batches.draw(next(iter(step_batches.LAYOUTS)), examples=1100)
        rows, step = batch.rows(config), batch.step(config, threads)
        loss = step.compute(rows, batch.data, 1)
        step.close()
        return loss, rows

    (loss, mine), (_, same), (near_loss, near) = compute(1, **BFLOAT16), compute(3, **BFLOAT16), compute(1)
    assert loss == pytest.approx(near_loss, rel=2**-8) and loss != near_loss
    for each, other, theirs in zip(mine, same, near, strict=True):
        assert each.tobytes() == other.tobytes() != theirs.tobytes()
        np.testing.assert_allclose(each, theirs, rtol=0, atol=2**-6 * np.abs(theirs).max())


def test_distances_have_nothing_to_round():
    found = [trained(configure("transe-2", shape=SHAPE, **more)) for more in ({}, BFLOAT16)]
    assert found[0] == found[1]
