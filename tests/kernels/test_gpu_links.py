"""The fused loss and gradient of edges against autograd in float64, which tests/models holds to the formulas."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.kernels.gpu.jit import observers
from marius_oac.models.compute.arranged import arranged
from marius_oac.models.link_prediction import fused
from marius_oac.models.link_prediction.fused import FusedGradient, Tile
from marius_oac.models.link_prediction.step import LinkPredictionStep
from marius_oac.types import map_arrays
from tests.device import DEVICE
from tests.kernels.interpreted import by_kernels, moved, quiet  # noqa: F401 (a fixture)
from tests.models.batches import DECODERS, LOSSES, Shape, configure, draw
from tests.models.test_gradient import TOLERANCE, exact, shapes

pytestmark = [pytest.mark.device, quiet]
SMALL = {True: Tile(16, 16, 16, 4), False: Tile(8, 4, 16, 4)}
"""For products, whose sides Triton compiles from 16 on, and for distances."""


def added_up(parts):
    """The gradients of rows, float64, of those of their places."""
    found = np.zeros((parts.count, parts.values.shape[1]))
    rows = np.repeat(np.arange(len(found)), np.diff(parts.order.first.cpu()))
    np.add.at(found, rows, parts.values.cpu().numpy()[parts.order.places.cpu()].astype(np.float64))
    return found


def fused_of(config, batch, data=None):
    table = None if batch.relations is None else moved(batch.relations)
    rows = moved(batch.rows(config, state=99.0))
    return FusedGradient(config)(rows, table, data or map_arrays(batch.data, moved))


def check(config, batch):
    loss, *expected = exact(config, batch)
    found = fused_of(config, batch)
    assert found.losses.mean().item() == pytest.approx(loss, rel=1e-5, abs=1e-6)
    gradients = [added_up(parts) for parts in (found.entities, found.relations) if parts]
    expected = [each for each in expected if each is not None]
    assert len(gradients) == len(expected)
    scale = max(1e-3, *(abs(each).max() for each in expected))
    for mine, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE * scale)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_and_loss(decoder, loss):
    check(config := configure(decoder, loss), draw(config, Shape()))
    config = configure(decoder, loss, True, model__reciprocal="true")
    check(config, draw(config, Shape(edges=6), 1))


@pytest.fixture
def whole_halves(monkeypatch):
    """The interpreter multiplies the bit patterns of bfloat16 numbers, as integers."""
    from triton.runtime import interpreter

    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(handle):
        if handle.data.dtype != np.uint16:
            return handle
        values = (handle.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(values, interpreter.tl.float32)

    def create_dot(self, a, b, *more):
        return multiply(self, widened(a), widened(b), *more)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.parametrize("everything", [False, True])
def test_products_of_rounded_tiles(whole_halves, everything):
    """Inputs in bfloat16: gradients within its rounding, and other than those of float32."""
    config = configure("complex", everything=everything)
    batch = draw(config, Shape())
    loss, gradient, _ = exact(config, batch)
    found = fused_of(config.replace("compute.precision=bfloat16"), batch)
    assert found.losses.mean().item() == pytest.approx(loss, rel=2**-8)
    mine, scale = added_up(found.entities), abs(gradient).max()
    np.testing.assert_allclose(mine, gradient, rtol=0, atol=2**-6 * scale)
    assert abs(mine - gradient).max() > 2**-14 * scale


@pytest.mark.parametrize("precision, name", [("float32", "ieee"), ("tf32", "tf32"), ("bfloat16", "bfloat16")])
def test_kernels_are_asked_for_the_precision(precision, name):
    config, asked = configure("complex", compute__precision=precision), []
    observers.append(asked.append)
    try:
        fused_of(config, draw(config, Shape()))
    finally:
        observers.pop()
    assert {each.constants["PRECISION"] for each in asked if "PRECISION" in each.constants} == {name}


@pytest.mark.parametrize("kind", ["l2", "n3"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_penalties(decoder, kind):
    shape = Shape(entities=5)
    config = configure(decoder, shape=shape, training__regularization__kind=kind, training__regularization__weight=0.7)
    check(config, draw(config, shape))


@pytest.mark.parametrize(
    "decoder, loss, everything",
    [("complex", "softmax", True), ("distmult", "self_adversarial", False), ("transe-1", "logistic", False),
     ("transe-2", "softmax", False), ("rotate", "self_adversarial", True)],
)  # fmt: skip
def test_many_tiles_and_splits(decoder, loss, everything, monkeypatch):
    """What only large batches need, on a small one: several tiles of both, and of queries several a split."""
    product = decoder in ("complex", "distmult")
    monkeypatch.setattr(fused, "tile_of", lambda *of: SMALL[product])
    monkeypatch.setattr(fused, "_FEWEST_TILES", 1)
    shape = Shape(edges=42, negatives=24, entities=40) if product else Shape(edges=21, negatives=6)
    config = configure(decoder, loss, everything, shape=shape)
    check(config, draw(config, shape))


@settings(deadline=None, max_examples=15, derandomize=True)
@given(
    decoder=st.sampled_from(DECODERS),
    loss=st.sampled_from(LOSSES),
    everything=st.booleans(),
    shape=shapes,
    seed=st.integers(0, 1000),
    grid=st.booleans(),
)
@example("transe-1", "margin", False, Shape(entities=2, edges=9, negatives=20), 0, True)  # kinks and zero distances
@example("transe-2", "self_adversarial", True, Shape(entities=1, edges=4), 0, True)  # nothing but the own ends
@example("complex", "softmax", False, Shape(edges=9, chunks=4, negatives=1), 0, False)  # ragged chunks
def test_shapes(decoder, loss, everything, shape, seed, grid):
    config = configure(decoder, loss, everything, shape)
    check(config, draw(config, shape, seed, grid))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_score_that_is_no_number_reaches_the_loss(loss):
    for everything in (False, True):
        config = configure("distmult", loss, everything)
        batch = draw(config, Shape(entities=40))
        drawn = range(40) if everything else batch.data.negatives.reshape(-1)
        batch.values[next(row for row in drawn if row not in {*batch.data.heads, *batch.data.tails})] = np.nan
        assert np.isnan(fused_of(config, batch).losses.mean().item())


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("about", [-400.0, 400.0])
def test_scores_far_from_zero(loss, about):
    """No exponential of them is a float32."""
    config = configure("dot", loss, shape=(shape := Shape(dimension=2)))
    batch = draw(config, shape)
    batch.values[:, 1] = np.sqrt(400.0)
    batch.values[::2, 1] *= np.sign(about)
    check(config, batch)


def test_a_batch_with_its_order_has_the_bits_of_one_that_is_sorted_here(by_kernels):  # noqa: F811
    shape = Shape(entities=6, edges=40, negatives=9, chunks=3)
    for everything in (False, True):
        config = configure("rotate", everything=everything, shape=shape)
        batch = draw(config, shape)
        given_order = map_arrays(arranged(batch.data, [np.arange(shape.entities)], DEVICE), moved)
        assert given_order.order is not None
        mine, theirs = fused_of(config, batch, given_order), fused_of(config, batch)
        assert torch.equal(mine.losses, theirs.losses)
        for one, other in ((mine.entities, theirs.entities), (mine.relations, theirs.relations)):
            assert torch.equal(one.values, other.values)
            assert torch.equal(one.order.places, other.order.places) and torch.equal(one.order.first, other.order.first)


def test_scores_are_nowhere_stored():
    """The memory that a batch takes does not grow with the product of edges and negatives."""
    seen = []
    observers.append(lambda launch: seen.extend(each for each in launch.arguments if isinstance(each, torch.Tensor)))
    try:
        config = configure("complex", shape=(shape := Shape(edges=4000, negatives=3000, dimension=4, chunks=1)))
        fused_of(config, draw(config, shape))
    finally:
        observers.pop()
    assert max(each.numel() for each in seen) < 4000 * 3000 / 20


@pytest.mark.parametrize("rate", ["0.1", "1e12"])
def test_relations_that_are_not_sound_show_in_the_loss(by_kernels, rate):  # noqa: F811
    config = configure("complex", training__optimizer__relation_learning_rate=rate, training__optimizer__kind="sgd")
    batch = draw(config, Shape())
    step = LinkPredictionStep(config, len(batch.relations), DEVICE, 1, batch.relations)
    loss = step.compute([moved(batch.rows(config))], map_arrays(batch.data, moved), 0)
    step.close()
    assert np.isnan(loss.item()) == (rate == "1e12")


def test_epoch_scales_the_rate_of_rows_and_relations(by_kernels):  # noqa: F811
    config = configure("complex", training__optimizer__kind="sgd", training__optimizer__decay=0.5)
    batch, changes = draw(config, Shape()), []
    for epoch in (0, 2):
        step = LinkPredictionStep(config, len(batch.relations), DEVICE, 1, batch.relations)
        rows = moved(batch.rows(config))
        step.compute([rows], replace(map_arrays(batch.data, moved), epoch=epoch), 0)
        (relations,) = step.dense_state().values()
        step.close()
        changes.append((rows.cpu().numpy() - batch.values, relations.cpu().numpy() - batch.relations))
    for late, early in zip(*reversed(changes), strict=True):
        assert early.any()
        np.testing.assert_allclose(late, early / 4, rtol=1e-3, atol=1e-6)
