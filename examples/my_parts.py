"""A decoder, a loss, a row optimizer, initial values and a metric of your own.

    marius-oac train codex-s.yaml --set model.decoder=my_parts.py:SimplE

Batches, rows on disk or on other nodes, checkpoints and the same bits in every mode are looked after. The docstrings of
the base classes say what a part must do, and `marius_oac.testing` checks it:

    from marius_oac.testing.decoders import check_decoder

    def test_simple():
        check_decoder(SimplE)
"""

import numpy as np
import torch

from marius_oac import Decoder, Loss, UpdateRule
from marius_oac.types import Side


class SimplE(Decoder):
    """Kazemi and Poole, NeurIPS 2018: an entity has a vector as a head and one as a tail, a relation has an inverse."""

    def query(self, anchor, relation, side):
        (head, tail), (forward, inverse) = anchor.chunk(2, -1), relation.chunk(2, -1)
        if side == Side.TAIL:  # the anchor is the head
            return torch.cat((tail * inverse, head * forward), -1) / 2
        return torch.cat((tail * forward, head * inverse), -1) / 2

    def score(self, queries, candidates):
        return queries @ candidates.transpose(-1, -2)


class SquaredHinge(Loss):
    """The square of margin ranking's terms."""

    def losses(self, positive, negatives, count):
        return (negatives - positive.unsqueeze(-1) + self.config.margin).relu().square().sum(-1) / count


class Momentum(UpdateRule):
    """Stochastic gradient descent with momentum 0.9 (Polyak, 1964), in the batches that have the row."""

    def state_width(self, dimension):
        return dimension

    def update(self, values, state, gradients, step, rate):
        state *= 0.9
        state += gradients
        values -= rate * state


def glorot(ids, numbers):
    """Glorot and Bengio, AISTATS 2010. Called with some rows' ids and a row of random numbers in (-1, 1) for each:
    `model.init=my_parts.py:glorot`. Vectors that you have are returned by `VECTORS[ids]`."""
    return numbers * (3 / numbers.shape[1]) ** 0.5


def median_rank(ranks):
    """Of link prediction, beside the mean rank: `evaluation.metrics=my_parts.py:median_rank`."""
    return np.median(ranks)
