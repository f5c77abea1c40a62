"""Row optimizers: they update whole rows `value | state` in place from the gradients of the values.

A row's state lies in the row, behind its value, so that it travels, is validated and is saved with it. Rows of a batch
are unique and only they are touched (the "lazy" variants). With value x, gradient g, rate a:

| kind | state (width) | update | source |
|---|---|---|---|
| sgd | none (0) | x -= a g | |
| adagrad | G (D) | G += g*g; x -= a g / (sqrt(G) + eps) | Duchi et al., JMLR 2011, diagonal form |
| rowwise_adagrad | G (1) | G += mean(g*g); x -= a g / (sqrt(G) + eps) | PyTorch-BigGraph, MLSys 2019, section 3.3 |
| adam | m (D), v (D) | m, v averages of g, g*g; x -= a m' / (sqrt(v') + eps) | Kingma and Ba, ICLR 2015, algorithm 1 |

In adam m' = m / (1 - beta1^step), v' = v / (1 - beta2^step), and step = timestamp + 1 counts batches, not the row's
updates. The Numba kernel serves the CPU and the torch twin CUDA; they agree to rounding.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from marius_oac.config_sections import OptimizerConfig
from marius_oac.models.compiled import compiled, inlined

_SGD, _ADAGRAD, _ROWWISE_ADAGRAD, _ADAM, _HAND_OVER = range(5)
_CODES = {"sgd": _SGD, "adagrad": _ADAGRAD, "rowwise_adagrad": _ROWWISE_ADAGRAD, "adam": _ADAM}
_ONE = np.float32(1)


class Rule(NamedTuple):
    """One batch's update as the kernel needs it; the corrections are adam's, 1 elsewhere."""

    code: int
    rate: np.float32
    epsilon: np.float32
    beta1: np.float32
    beta2: np.float32
    first_correction: np.float32
    second_correction: np.float32


class RowOptimizer:
    """A row optimizer of the configuration.

    Args:
        config: kind and its parameters.
        learning_rate: the step size; None: `config.learning_rate`.
    """

    def __init__(self, config: OptimizerConfig, learning_rate: float | None = None) -> None:
        self._config = config
        self._learning_rate = config.learning_rate if learning_rate is None else learning_rate

    def state_width(self, dimension: int) -> int:
        """Floats of state behind a value of `dimension` floats."""
        return {"sgd": 0, "adagrad": dimension, "rowwise_adagrad": 1, "adam": 2 * dimension}[self._config.kind]

    @property
    def initial_state(self) -> float:
        """What every float of a row's state is before the row's first update."""
        return self._config.initial_accumulator if self._config.kind in ("adagrad", "rowwise_adagrad") else 0.0

    def _corrections(self, timestamp: int) -> tuple[float, float]:
        """What adam's averages are multiplied with: 1 / (1 - beta^step)."""
        if self._config.kind != "adam":
            return 1.0, 1.0
        step = timestamp + 1
        return 1 / (1 - self._config.beta1**step), 1 / (1 - self._config.beta2**step)

    def rule(self, timestamp: int, factor: float = 1.0) -> Rule:
        """The update of the batch with this timestamp, its learning rate multiplied by `factor`."""
        config = self._config
        first, second = self._corrections(timestamp)
        floats = (self._learning_rate * factor, config.epsilon, config.beta1, config.beta2, first, second)
        return Rule(_CODES[config.kind], *(np.float32(value) for value in floats))

    def update(self, rows: Any, gradients: Any, timestamp: int, factor: float = 1.0) -> None:
        """Updates rows in place.

        Args:
            rows: float32 [n, D + state_width(D)], unique rows; a NumPy array (kernel) or a tensor (torch).
            gradients: float32 [n, D], of the same library.
            timestamp: of the batch, from 0.
            factor: multiplies the learning rate.
        Raises:
            ValueError: the shapes do not belong together.
        """
        count, dimension = gradients.shape
        if tuple(rows.shape) != (count, dimension + self.state_width(dimension)):
            raise ValueError(f"rows {tuple(rows.shape)} and gradients {tuple(gradients.shape)} don't belong together")
        if isinstance(rows, torch.Tensor):
            self._update_tensor(rows, gradients, timestamp, factor)
        else:
            _update_rows(rows, gradients, self.rule(timestamp, factor))

    def _update_tensor(self, rows: torch.Tensor, gradients: torch.Tensor, timestamp: int, factor: float) -> None:
        kind, dimension, rate = self._config.kind, gradients.shape[1], self._learning_rate * factor
        value, state = rows[:, :dimension], rows[:, dimension:]
        if kind == "sgd":
            value.sub_(gradients, alpha=rate)
            return
        if kind == "adam":
            first, second = state[:, :dimension], state[:, dimension:]
            first.lerp_(gradients, 1 - self._config.beta1)
            second.mul_(self._config.beta2).addcmul_(gradients, gradients, value=1 - self._config.beta2)
            first_correction, second_correction = self._corrections(timestamp)
            # sqrt(v') + eps is the correction's root times what stands here.
            root = math.sqrt(second_correction)
            scale = second.sqrt().add_(self._config.epsilon / root)
            value.addcdiv_(first, scale, value=-rate * first_correction / root)
            return
        if kind == "adagrad":
            state.addcmul_(gradients, gradients)
        else:
            state += (gradients * gradients).mean(1, keepdim=True)
        value.addcdiv_(gradients, state.sqrt().add_(self._config.epsilon), value=-rate)


class HandOver(RowOptimizer):
    """Leaves each row's gradient in the place of its value: the optimizer runs elsewhere, at the row's shard."""

    def __init__(self) -> None:
        pass

    def state_width(self, dimension: int) -> int:
        """No state: it lies where the optimizer runs."""
        return 0

    @property
    def initial_state(self) -> float:
        return 0.0

    def rule(self, timestamp: int, factor: float = 1.0) -> Rule:
        return Rule(_HAND_OVER, *[_ONE] * 6)

    def _update_tensor(self, rows: torch.Tensor, gradients: torch.Tensor, timestamp: int, factor: float) -> None:
        rows.copy_(gradients)


@inlined
def update_row(row, gradient, rule):
    """Updates `row` [D + state] from `gradient` [D]."""
    dimension = gradient.size
    if rule.code == _HAND_OVER:
        for j in range(dimension):
            row[j] = gradient[j]
    elif rule.code == _SGD:
        for j in range(dimension):
            row[j] -= rule.rate * gradient[j]
    elif rule.code == _ADAGRAD:
        for j in range(dimension):
            total = row[dimension + j] + gradient[j] * gradient[j]
            row[dimension + j] = total
            row[j] -= rule.rate * gradient[j] / (np.sqrt(total) + rule.epsilon)
    elif rule.code == _ROWWISE_ADAGRAD:
        squares = np.float32(0)
        for j in range(dimension):
            squares += gradient[j] * gradient[j]
        total = row[dimension] + squares / np.float32(dimension)
        row[dimension] = total
        rate = rule.rate / (np.sqrt(total) + rule.epsilon)
        for j in range(dimension):
            row[j] -= rate * gradient[j]
    else:
        for j in range(dimension):
            first = rule.beta1 * row[dimension + j] + (_ONE - rule.beta1) * gradient[j]
            second = rule.beta2 * row[2 * dimension + j] + (_ONE - rule.beta2) * gradient[j] * gradient[j]
            row[dimension + j] = first
            row[2 * dimension + j] = second
            scale = np.sqrt(second * rule.second_correction) + rule.epsilon
            row[j] -= rule.rate * (first * rule.first_correction) / scale


@compiled
def _update_rows(rows, gradients, rule):
    for i in range(rows.shape[0]):
        update_row(rows[i], gradients[i], rule)
