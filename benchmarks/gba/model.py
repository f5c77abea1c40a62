"""A small DeepFM with real gradients, its parameters on a server that aggregates as the package does."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.gba.data import Days
from benchmarks.gba.gradient import differentiate
from marius_oac.config.ctr import CtrTrainingConfig, NetworkConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.ctr.network import make_network
from marius_oac.models.ctr.schema import Field, Inputs, Schema

DIMENSION = 8
WIDTH = DIMENSION + 1  # a row: embedding, first-order weight
NETWORK = NetworkConfig(network="deepfm", dimension=DIMENSION, hidden=(64, 32))
TRAINING = CtrTrainingConfig()  # the package's: AdaGrad 0.05 for rows, Adam 0.001 for the network
PREDICTED = 1 << 14  # examples at once


class Gradient(NamedTuple):
    """Of the mean loss of a batch: dense float32 [P]; rows int64 [n], ascending, and theirs, float32 [n, WIDTH]."""

    dense: np.ndarray
    rows: np.ndarray
    values: np.ndarray


class Model:
    """Parameters and optimizer state, and what a worker computes with them.

    Attributes:
        dense: all parameters of the network, one vector [P], which the network's own are views of.
        rows: float32 [R, 2 * WIDTH], values and AdaGrad's state.
        updated: int64 [R], the global step in which a row was last updated; -1: never.
        step: global steps taken.
    """

    def __init__(self, days: Days, seed: int, rates: tuple[float, float]) -> None:
        self._days, self._seed, self._rates = days, seed, rates
        fields = tuple(Field(f"c{place}", DIMENSION) for place in range(days.ids.shape[1]))
        self._network = make_network(Schema(days.numbers.shape[1], fields), NETWORK, seed)
        named = dict(self._network.named_parameters())
        self.dense = torch.nn.Parameter(torch.cat([each.detach().flatten() for each in named.values()]))
        self._values, self._gradient = {}, np.zeros(self.dense.numel(), np.float32)
        self._gradients, start = {}, 0
        for name, each in named.items():
            end = start + each.numel()
            each.data = self.dense.data[start:end].view_as(each)
            self._values[name] = each.data.numpy()
            self._gradients[name] = self._gradient[start:end].reshape(each.shape)
            start = end
        dense = TRAINING.dense_optimizer
        self._adam = torch.optim.Adam([self.dense], lr=rates[1], eps=dense.epsilon)
        self._row_optimizer = RowOptimizer(TRAINING.optimizer, rates[0])
        self.rows = np.zeros((days.num_rows, 2 * WIDTH), np.float32)
        generator = np.random.default_rng((seed, 1))
        self.rows[:, :WIDTH] = generator.normal(0, NETWORK.init_scale, (days.num_rows, WIDTH))
        self.updated, self.step, self._checked = np.full(days.num_rows, -1, np.int64), 0, False

    def copy(self) -> Model:
        """Another model with the same parameters and state."""
        twin = Model(self._days, self._seed, self._rates)
        with torch.no_grad():
            twin.dense.copy_(self.dense)
        twin._adam.load_state_dict(copy.deepcopy(self._adam.state_dict()))
        twin.rows, twin.updated, twin.step = self.rows.copy(), self.updated.copy(), self.step
        return twin

    def gradient(self, first: int, end: int) -> Gradient:
        """Of the mean loss of examples [first, end)."""
        rows, local = np.unique(self._days.ids[first:end], return_inverse=True)
        gathered = self.rows[self._days.ids[first:end], :WIDTH]
        numbers, labels = self._days.numbers[first:end], self._days.labels[first:end]
        found = differentiate(self._values, gathered, numbers, labels, self._gradients)
        if not self._checked:
            self._check(first, end, gathered, found)
            self._checked = True
        values = torch.zeros(len(rows), WIDTH)
        values.index_add_(0, torch.from_numpy(local.ravel()), torch.from_numpy(found.reshape(-1, WIDTH)))
        return Gradient(self._gradient.copy(), rows, values.numpy())

    def _check(self, first: int, end: int, gathered: np.ndarray, found: np.ndarray) -> None:
        """Autograd says the same.

        Raises:
            AssertionError: it does not.
        """
        leaf = torch.from_numpy(gathered.reshape(-1, WIDTH)).requires_grad_()
        loss = binary_cross_entropy_with_logits(
            self._logits(first, end, leaf), torch.from_numpy(self._days.labels[first:end])
        )
        mine = {name: torch.from_numpy(each) for name, each in self._gradients.items()}
        parameters = dict(self._network.named_parameters())
        theirs = torch.autograd.grad(loss, [leaf, *(parameters[name] for name in mine)])
        pairs = zip([torch.from_numpy(found.reshape(-1, WIDTH)), *mine.values()], theirs, strict=True)
        for ours, other in pairs:
            torch.testing.assert_close(ours, other, rtol=1e-3, atol=1e-6)

    def update(self, dense: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
        """A global step, of the averages that the aggregators gave."""
        self.dense.grad = torch.from_numpy(dense)
        self._adam.step()
        found = self.rows[rows]
        self._row_optimizer.update(found, values, self.step)
        self.rows[rows], self.updated[rows] = found, self.step
        self.step += 1

    def auc(self, day: int) -> float:
        """On a day, all of it."""
        first, end = day * self._days.size, (day + 1) * self._days.size
        scores = []
        with torch.no_grad():
            for start in range(first, end, PREDICTED):
                stop = min(start + PREDICTED, end)
                gathered = torch.from_numpy(self.rows[self._days.ids[start:stop].ravel(), :WIDTH])
                scores.append(self._logits(start, stop, gathered).numpy())
        return area(self._days.labels[first:end], np.concatenate(scores))

    def _logits(self, first: int, end: int, gathered: torch.Tensor) -> torch.Tensor:
        stacked = gathered.view(end - first, -1, WIDTH)
        embeddings, weights = stacked[..., :DIMENSION], stacked[..., DIMENSION]
        numbers = torch.from_numpy(self._days.numbers[first:end])
        return self._network(Inputs(numbers, embeddings.unbind(1), embeddings, weights, {}))


def area(labels: np.ndarray, scores: np.ndarray) -> float:
    """AUC, ties counted half."""
    negatives = np.sort(scores[labels == 0])
    positives = scores[labels == 1]
    won = np.searchsorted(negatives, positives, "left") + np.searchsorted(negatives, positives, "right")
    return won.sum() / (2 * len(positives) * len(negatives))
