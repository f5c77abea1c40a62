"""Losses against the formulas, and the gradient that is written out against autograd in float64."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.config.link_prediction import LossConfig
from marius_oac.kernels.cpu.edges import NO_PENALTY, Form
from marius_oac.kernels.cpu.losses import LossRule
from marius_oac.kernels.cpu.tiles import turn_tile
from marius_oac.models.link_prediction import handwritten
from marius_oac.models.link_prediction.autograd import AutogradGradient
from marius_oac.models.link_prediction.losses import make_loss
from tests.models import naive
from tests.models.batches import DECODERS, LOSSES, Shape, configure, draw

TOLERANCE = 2e-5  # of the largest gradient: float32 sums of at most some hundred terms
# With SGD at this rate the step is so large beside the old value that float32 keeps the gradient's digits.
RATE = float(1 << 14)


def exact(config, batch):
    """Loss and gradients by autograd in float64."""
    relations = None
    if batch.relations is not None:
        relations = torch.from_numpy(batch.relations[batch.data.relation_rows].astype(np.float64))
    values = torch.from_numpy(batch.values.astype(np.float64))
    loss, gradient, relation_gradient = AutogradGradient(config)(values, relations, batch.tensors())
    return loss.item(), gradient.numpy(), None if relation_gradient is None else relation_gradient.numpy()


def written_out(config, batch, threads=1):
    """Loss and gradients by the step on the CPU."""
    config = config.replace("training.optimizer.kind=sgd", f"training.optimizer.learning_rate={RATE}")
    rows, step = batch.rows(config), batch.step(config, threads)
    try:
        loss = step.compute([rows], batch.data, 0)
        state = step.dense_state()
    finally:
        step.close()
    gradient = (batch.values.astype(np.float64) - rows) / RATE
    if batch.relations is None:
        return loss, gradient, None
    changes = (batch.relations.astype(np.float64) - state["relations"].numpy()) / RATE
    touched = batch.data.relation_rows
    assert not np.delete(changes, touched, 0).any()
    return loss, gradient, changes[touched]


def check(config, batch, threads=1):
    loss, gradient, relation_gradient = exact(config, batch)
    relations = None if batch.relations is None else batch.relations[batch.data.relation_rows].astype(np.float64)
    assert loss == pytest.approx(naive.batch_loss(config, batch.values.astype(np.float64), relations, batch.data))
    mine, my_gradient, my_relation_gradient = written_out(config, batch, threads)
    assert mine == pytest.approx(loss, rel=1e-5, abs=1e-6)
    # Terms of both cancel to less than what they are rounded to.
    found = [gradient] if relation_gradient is None else [gradient, relation_gradient]
    scale = max(1e-3, *(abs(each).max() for each in found))
    np.testing.assert_allclose(my_gradient, gradient, rtol=0, atol=TOLERANCE * scale)
    if relation_gradient is not None:
        np.testing.assert_allclose(my_relation_gradient, relation_gradient, rtol=0, atol=TOLERANCE * scale)


@pytest.mark.parametrize("everything", [False, True], ids=["sampled", "all"])
@pytest.mark.parametrize("reciprocal", [False, True], ids=["both-sides", "tails"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_and_loss(decoder, loss, reciprocal, everything):
    for seed, shape in enumerate([Shape(), Shape(chunks=1, edges=6), Shape(chunks=3, edges=3, negatives=1)]):
        config = configure(decoder, loss, everything, shape, model__reciprocal=str(reciprocal).lower())
        check(config, draw(config, shape, seed))


@pytest.mark.parametrize("kind", ["l2", "n3"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_penalties(decoder, kind):
    shape = Shape(entities=5)  # Every entity stands in several edges.
    config = configure(decoder, shape=shape, training__regularization__kind=kind, training__regularization__weight=0.7)
    check(config, draw(config, shape))


shapes = st.builds(
    Shape,
    entities=st.integers(1, 9),
    relations=st.integers(1, 4),
    edges=st.integers(4, 9),
    chunks=st.integers(1, 4),
    negatives=st.integers(1, 20),
    dimension=st.sampled_from([2, 4, 18, 36]),
)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    decoder=st.sampled_from(DECODERS),
    loss=st.sampled_from(LOSSES),
    everything=st.booleans(),
    shape=shapes,
    seed=st.integers(0, 1000),
    grid=st.booleans(),
)
@example("transe-1", "margin", False, Shape(entities=2, edges=9, negatives=20), 0, True)  # kinks and zero distances
@example("transe-2", "softmax", True, Shape(entities=1, edges=4), 0, True)  # head, tail and all candidates are one
def test_shapes(decoder, loss, everything, shape, seed, grid):
    """Few entities: repeated ones, head == tail, negatives that are the positive or each other, chunks of one edge."""
    config = configure(decoder, loss, everything, shape)
    check(config, draw(config, shape, seed, grid))


@pytest.mark.parametrize("decoder", ["complex", "transe-2", "rotate"])
def test_many_tiles_waves_and_blocks(decoder, monkeypatch):
    """The ways that only large batches take, on a small one."""
    for name, size in (
        ("TILE_EDGES", 2), ("_MAX_TILE_EDGES", 3), ("_WAVE_SCORES", 40), ("_BLOCK_CANDIDATES", 4), ("_BLOCK_ROWS", 5),
        ("_BLOCK_RELATIONS", 1), ("_COPY_ROWS", 3),
    ):  # fmt: skip
        monkeypatch.setattr(handwritten, name, size)
    handwritten.waves_of.cache_clear()
    for everything in (False, True):
        shape = Shape(edges=23, negatives=9)
        config = configure(decoder, "softmax", everything, shape)
        check(config, draw(config, shape), threads=3)
    handwritten.waves_of.cache_clear()


def test_waves_hold_every_edge_once_and_no_more_scores_than_allowed(monkeypatch):
    monkeypatch.setattr(handwritten, "_WAVE_SCORES", 300_000)
    handwritten.waves_of.cache_clear()
    offsets = (0, 1000, 2001, 2300)
    waves = handwritten.waves_of(2, offsets, 500)
    seen = np.zeros((2, 2300), int)
    for wave in waves:
        end = 0
        for tile in wave:
            assert tile.offset == end and offsets[tile.chunk] <= tile.start < tile.stop <= offsets[tile.chunk + 1]
            end += (tile.stop - tile.start) * 500
            seen[tile.s, tile.start : tile.stop] += 1
        assert end <= 300_000
    assert len(waves) > 1 and (seen == 1).all()
    assert all(tile.stop - tile.start == 1 for wave in handwritten.waves_of(1, (0, 3), 300_000) for tile in wave)
    handwritten.waves_of.cache_clear()


def test_a_chunk_without_edges_is_refused():
    with pytest.raises(ValueError, match="chunk"):
        handwritten.waves_of(2, (0, 3, 3, 5), 10)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("about", [-400.0, 400.0, 0.0])
def test_losses_of_scores_far_from_zero(kind, about):
    """Distances of trained embeddings: no exponential of them is a float32."""
    config = LossConfig(kind=kind, margin=3.0, temperature=0.5)
    scores = np.float32(about) + np.array([[-3, 1.5, 0.25], [2, -300, 300]], np.float32)
    positives, count = np.float32(about) + np.array([0.5, -2], np.float32), scores.shape[1]
    negatives, own = (torch.tensor(each.astype(np.float64), requires_grad=True) for each in (scores, positives))
    expected = make_loss(config).losses(own, negatives, count)
    expected.sum().backward()
    numbers = (np.float32(each) for each in (1, 1 / count, config.margin, config.temperature))
    losses = np.empty(len(scores))
    form = Form(0, 0, NO_PENALTY, False, True, np.float32(0))
    targets, listed = np.full(2, -1), np.arange(scores.shape[1])
    turn_tile(form, LossRule(make_loss(config).code, *numbers), scores, targets, listed, positives, losses)
    for found, exact_ in ((losses, expected.detach()), (scores, negatives.grad), (positives, own.grad)):
        np.testing.assert_allclose(found, exact_.numpy(), rtol=1e-5, atol=1e-6)
