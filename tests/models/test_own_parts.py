"""Decoders, losses and row optimizers of a user's file, against those of the package; the suites and what they find."""

from pathlib import Path

import numpy as np
import pytest
import torch

from marius_oac.config.parts import DECODERS as SHIPPED
from marius_oac.config.parts import LOSSES, ROW_OPTIMIZERS
from marius_oac.errors import ConfigError
from marius_oac.models.compute.parts import part_class
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.update_rules import UpdateRule
from marius_oac.models.link_prediction import distances
from marius_oac.models.link_prediction.decoders import Decoder
from marius_oac.models.link_prediction.losses import Loss
from marius_oac.testing.decoders import check_decoder
from marius_oac.testing.losses import check_loss
from marius_oac.testing.row_optimizers import check_row_optimizer
from marius_oac.types import Side
from tests.models import own_parts as own
from tests.models.batches import Shape, configure, draw

OWN = Path(own.__file__)
pytestmark = pytest.mark.usefixtures("all_code_is_known")


def step_of(config, batch, count=3):
    """Rows, relations and losses after some batches."""
    rows, step = batch.rows(config), batch.step(config, threads=2)
    try:
        losses = [step.compute([rows], batch.data, timestamp) for timestamp in range(count)]
        return rows, step.dense_state().get("relations", torch.zeros(0)).numpy(), losses
    finally:
        step.close()


@pytest.mark.parametrize("everything", [False, True], ids=["sampled", "all"])
@pytest.mark.parametrize(
    "key, name, shipped",
    [
        ("model.decoder", "Bilinear", "distmult"),
        ("training.loss.kind", "Softmax", "softmax"),
        ("training.optimizer.kind", "Adagrad", "adagrad"),
    ],
)
def test_a_part_of_a_users_trains_as_that_of_the_package(key, name, shipped, everything):
    shape = Shape(entities=40, edges=23, chunks=3)
    base = configure("distmult", "softmax", everything, shape).replace(
        "training.regularization={kind: n3, weight: 0.1}"
    )
    mine, theirs = (base.replace(f"{key}={value}") for value in (f"{OWN}:{name}", shipped))
    batch = draw(base, shape)
    for found, expected in zip(step_of(mine, batch), step_of(theirs, batch), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_tiles_of_scores_have_the_gradient_of_the_whole(monkeypatch):
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(*shape, generator=random) for shape in ((2, 9, 4), (2, 11, 4))]

    def results(score):
        leaves = [each.clone().requires_grad_() for each in given]
        found = score(*leaves)
        return found, *torch.autograd.grad(found.sin().sum(), leaves)

    near = own.Near(None)
    expected = results(near.score)
    for tile in (1, 400, 1 << 20):
        monkeypatch.setattr(distances, "CPU_TILE_BYTES", tile)
        for found, exact in zip(
            results(lambda q, c: distances.scored_by_tiles(near.score, q, c)), expected, strict=True
        ):
            torch.testing.assert_close(found, exact)


@pytest.mark.parametrize("name", SHIPPED)
def test_decoders_of_the_package_pass(name):
    check_decoder(part_class(name, SHIPPED, Decoder, "model.decoder"))


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_the_package_pass(name):
    check_loss(part_class(name, LOSSES, Loss, "training.loss.kind"), exact_gradient=name != "self_adversarial")


@pytest.mark.parametrize("name", ROW_OPTIMIZERS)
def test_rules_of_the_package_pass(name):
    check_row_optimizer(part_class(name, ROW_OPTIMIZERS, UpdateRule, "training.optimizer.kind"))


def test_parts_of_a_users_pass():
    for decoder in (own.example.SimplE, own.Bilinear, own.Rescal, own.Near):
        check_decoder(decoder)
    for loss in (own.Softmax, own.example.SquaredHinge):
        check_loss(loss)
    for rule in (own.example.Momentum, own.Adagrad):
        check_row_optimizer(rule)


class OneSided(own.example.SimplE):
    def query(self, anchor, relation, side):
        return super().query(anchor, relation, Side.TAIL)


class Normalised(own.Bilinear):
    def score(self, queries, candidates):
        return super().score(queries, candidates - candidates.mean(-2, keepdim=True))


class Detached(own.Bilinear):
    def score(self, queries, candidates):
        return super().score(queries, candidates) + super().score(queries.detach(), candidates)


class InPlace(own.Bilinear):
    def query(self, anchor, relation, side):
        return anchor.mul_(relation) if not anchor.requires_grad else anchor * relation


class Euclidean(own.Near):
    def score(self, queries, candidates):
        return -((-super().score(queries, candidates)) ** 0.5)


class OneChunk(own.Bilinear):
    def score(self, queries, candidates):
        return queries @ candidates.flatten(0, -2).T


@pytest.mark.parametrize(
    "decoder, said",
    [(OneSided, "differs between the sides"), (Normalised, "depends on other"), (Detached, "autograd's gradient"),
     (InPlace, "query changes its arguments"), (Euclidean, "a candidate equals the query"),
     (OneChunk, "for 2 x 3 chunks")],
)  # fmt: skip
def test_mistakes_in_a_decoder_are_found(decoder, said):
    with pytest.raises(AssertionError, match=said):
        check_decoder(decoder)


class Mean(Loss):
    def losses(self, positive, negatives, count):
        return torch.nn.functional.softplus(-positive).mean() + torch.nn.functional.softplus(negatives).mean()


class Rising(own.Softmax):
    def losses(self, positive, negatives, count):
        return -super().losses(positive, negatives, count)


class CountsThoseLeftOut(Loss):
    def losses(self, positive, negatives, count):
        return (negatives - positive.unsqueeze(-1)).exp().log1p().mean(-1)


class Overflowing(Loss):
    def losses(self, positive, negatives, count):
        return (positive.exp() + negatives.exp().sum(-1)).log() - positive


class Weighted(Loss):
    def losses(self, positive, negatives, count):
        return (negatives.softmax(-1) * torch.nn.functional.softplus(negatives)).sum(-1) - positive


@pytest.mark.parametrize(
    "loss, said",
    [(Mean, "not one for each"), (Rising, "does not fall"), (CountsThoseLeftOut, "of -inf"),
     (Weighted, "all negatives are left out"), (Overflowing, "not finite")],
)  # fmt: skip
def test_mistakes_in_a_loss_are_found(loss, said):
    with pytest.raises(AssertionError, match=said):
        check_loss(loss)


class NotInPlace(UpdateRule):
    def update(self, values, state, gradients, step, rate):
        values = values - rate * gradients


class Clipped(UpdateRule):
    def update(self, values, state, gradients, step, rate):
        values -= rate * gradients / (gradients * gradients).sum() ** 0.5


class Ascending(UpdateRule):
    def update(self, values, state, gradients, step, rate):
        values += rate * gradients


class OwnRate(UpdateRule):
    def update(self, values, state, gradients, step, rate):
        values -= 0.1 * gradients


class Remembers(UpdateRule):
    calls = 0

    def update(self, values, state, gradients, step, rate):
        self.calls += 1
        values -= rate / self.calls * gradients


class Divides(own.Adagrad):
    def update(self, values, state, gradients, step, rate):
        state += gradients * gradients
        values -= rate * gradients / state**0.5


@pytest.mark.parametrize(
    "rule, said",
    [(NotInPlace, "values stay"), (Clipped, "depends on other rows"), (Ascending, "go with the gradient"),
     (OwnRate, "a rate of 0"), (Remembers, "depends on other rows"), (Divides, "after gradients of 0")],
)  # fmt: skip
def test_mistakes_in_a_rule_are_found(rule, said):
    with pytest.raises(AssertionError, match=said):
        check_row_optimizer(rule)


BROKEN = """
from marius_oac import Decoder, Loss, UpdateRule

class Half(Decoder):
    def query(self, anchor, relation, side):
        return anchor

class Fails(Half):
    def score(self, queries, candidates):
        return queries.nothing

class OneColumn(Half):
    def score(self, queries, candidates):
        return queries.sum(-1, keepdim=True)

class Total(Loss):
    def losses(self, positive, negatives, count):
        return positive.sum() + negatives.sum()

class Divides(UpdateRule):
    def update(self, values, state, gradients, step, rate):
        values -= gradients / (1 // 0)
"""


@pytest.mark.parametrize(
    "key, name, said",
    [
        ("model.decoder", "Half", "model.decoder: {path}: class 'Half' has no score"),
        ("model.decoder", "Total", "model.decoder: {path} has no class 'Total' derived from marius_oac.Decoder"),
        ("model.decoder", "Fails", "model.decoder: {path}:10: AttributeError: 'Tensor' object has no attribute"),
        ("model.decoder", "OneColumn", "model.decoder: score returns [2, 1, 4, 1], not [2, 1, 4, 5]"),
        ("training.loss.kind", "Total", "training.loss.kind: {path}:Total: losses returns [], not a loss for each"),
        ("training.optimizer.kind", "Divides", "training.optimizer.kind: {path}:22: ZeroDivisionError"),
    ],
)
def test_a_mistake_in_a_users_file_is_one_line(tmp_path, key, name, said):
    path = tmp_path / "mine.py"
    path.write_text(BROKEN)
    shape = Shape(chunks=1, edges=4)
    config = configure("distmult", shape=shape)
    batch = draw(config, shape)
    with pytest.raises(ConfigError) as caught:
        step_of(config.replace(f"{key}={path}:{name}"), batch)
    assert str(caught.value).startswith(said.format(path=path))


def test_an_update_between_blocks_keeps_other_rows(tmp_path):
    """As a kernel of a block that sums gradients and updates rows."""
    optimizer = RowOptimizer(
        configure("dot").replace(f"training.optimizer.kind={own.EXAMPLE}:Momentum").training.optimizer
    )
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected, picks, gradients = rows.copy(), np.array([3, 1]), np.ones((2, 3), np.float32)
    chosen = expected[picks]
    optimizer.update(chosen, gradients, 0)
    expected[picks] = chosen

    def kernel(rule):
        assert rule.code == 4
        rows[picks, :3] = gradients

    optimizer.rule(0).run(kernel, rows, picks, 3)
    assert np.array_equal(rows, expected)
