"""More parts as a user writes them, beside examples/my_parts.py: tests name both files in their configurations."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import torch

from marius_oac import Decoder, Loss, UpdateRule
from marius_oac.types import Side

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_parts.py"
example = SimpleNamespace(**run_path(str(EXAMPLE)))


class Bilinear(Decoder):
    """DistMult by its formula."""

    def query(self, anchor, relation, side):
        return anchor * relation

    def score(self, queries, candidates):
        return queries @ candidates.transpose(-1, -2)


class Rescal(Decoder):
    """Nickel et al., ICML 2011: a relation is a matrix."""

    def relation_width(self, dimension):
        return dimension * dimension

    def query(self, anchor, relation, side):
        matrix = relation.unflatten(-1, (anchor.shape[-1], -1))
        return ((matrix.mT if side == Side.TAIL else matrix) @ anchor.unsqueeze(-1)).squeeze(-1)

    def score(self, queries, candidates):
        return queries @ candidates.transpose(-1, -2)


class Near(Decoder):
    """Squared distances of entities, without relations."""

    uses_relations = False

    def query(self, anchor, relation, side):
        return anchor

    def score(self, queries, candidates):
        return -(queries.unsqueeze(-2) - candidates.unsqueeze(-3)).square().sum(-1)


class Softmax(Loss):
    def losses(self, positive, negatives, count):
        return torch.cat((positive.unsqueeze(-1), negatives), -1).logsumexp(-1) - positive


class Adagrad(UpdateRule):
    def state_width(self, dimension):
        return dimension

    def update(self, values, state, gradients, step, rate):
        state += gradients * gradients
        values -= rate * gradients / (state**0.5 + self.config.epsilon)


VECTORS = np.random.default_rng(5).normal(size=(200, 8)).astype(np.float32)


def vectors(ids, numbers):
    return VECTORS[ids]


def mixed(ids, numbers):
    """Random numbers of the row, and its id."""
    numbers[:, 0] = np.sin(ids)
    return numbers


def reciprocal(ranks):
    return np.mean(1 / ranks)


def worst(ranks):
    return ranks.max()


def hit_rate(classes, scores):
    return (scores.argmax(1) == classes).mean()
