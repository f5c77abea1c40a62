"""Row optimizers update whole rows `value | state` in place from the gradients of the values.

A row's state follows its value in the row, so that it is moved, validated and saved with it. The rows of a batch are
unique, and only they are updated (the "lazy" variants). With value x, gradient g, rate a:

| kind | state (width) | update | source |
|---|---|---|---|
| sgd | none (0) | x -= a g | |
| adagrad | G (D) | G += g*g; x -= a g / (sqrt(G) + eps) | Duchi et al., JMLR 2011, diagonal form |
| rowwise_adagrad | G (1) | G += mean(g*g); x -= a g / (sqrt(G) + eps) | PyTorch-BigGraph, MLSys 2019, section 3.3 |
| adam | m (D), v (D) | m, v averages of g, g*g; x -= a m' / (sqrt(v') + eps) | Kingma and Ba, ICLR 2015, algorithm 1 |

In adam m' = m / (1 - beta1^step), v' = v / (1 - beta2^step), and step = timestamp + 1 counts batches, not the row's
updates. A Numba kernel runs on the CPU, a Triton kernel or torch on CUDA; their results agree up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from marius_oac.config.sections import OptimizerConfig
from marius_oac.kernels.cpu.row_updates import PASS_THROUGH, Rule, update_rows
from marius_oac.models.compute.parts import blaming_own
from marius_oac.models.compute.soundness import is_sound
from marius_oac.models.compute.summed import Parts, update_summed
from marius_oac.models.compute.update_rules import KEY, make_update_rule

_PASS_THROUGH = Rule(PASS_THROUGH, *[np.float32(1)] * 6)


class RowUpdate(NamedTuple):
    """One batch's update of rows in kernels that sum gradients and update rows at once.

    Attributes:
        rule: for such kernels.
        after: updates rows by gradients, both arrays, after a kernel has put the gradients in the place of the values;
            None: the kernel updates the rows.
    """

    rule: Rule
    after: Callable[[np.ndarray, np.ndarray], None] | None = None

    def run(self, kernel: Callable[[Rule], None], rows: np.ndarray, index: Any, dimension: int) -> None:
        """Calls a kernel that updates `rows[index]`, of `dimension` floats of value, by the rule that it is given."""
        if self.after is None:
            kernel(self.rule)
            return
        chosen = rows[index].copy()
        kernel(self.rule)
        gradients = rows[index, :dimension].copy()
        self.after(chosen, gradients)
        rows[index] = chosen


class RowOptimizer:
    """A row optimizer of the configuration.

    Args:
        config: kind and its parameters.
        learning_rate: the step size; None: `config.learning_rate`.
    """

    def __init__(self, config: OptimizerConfig, learning_rate: float | None = None) -> None:
        self._config, self._by = config, make_update_rule(config)
        self._learning_rate = config.learning_rate if learning_rate is None else learning_rate

    def state_width(self, dimension: int) -> int:
        """The number of floats of state for a value of `dimension` floats."""
        return self._by.state_width(dimension)

    @property
    def initial_state(self) -> float:
        """The value of every float of a row's state before the row's first update."""
        return self._by.initial_state

    def rule(self, timestamp: int, factor: float = 1.0) -> RowUpdate:
        """The update of the batch with this timestamp, with the learning rate multiplied by `factor`."""
        if self._by.code is None:
            return RowUpdate(_PASS_THROUGH, partial(self.update, timestamp=timestamp, factor=factor))
        config = self._config
        first, second = self._by.corrections(timestamp + 1)
        floats = (self._learning_rate * factor, config.epsilon, config.beta1, config.beta2, first, second)
        return RowUpdate(Rule(self._by.code, *(np.float32(value) for value in floats)))

    def update(self, rows: Any, gradients: Any, timestamp: int, factor: float = 1.0) -> None:
        """Updates rows in place.

        Args:
            rows: float32 [n, D + state_width(D)], unique rows; a NumPy array (kernel) or a tensor (torch).
            gradients: float32 [n, D], of the same library.
            timestamp: of the batch, from 0.
            factor: multiplies the learning rate.

        Raises:
            ValueError: the shapes don't match.
        """
        count, dimension = gradients.shape
        if tuple(rows.shape) != (count, dimension + self.state_width(dimension)):
            raise ValueError(f"rows {tuple(rows.shape)} and gradients {tuple(gradients.shape)} don't belong together")
        if isinstance(rows, torch.Tensor):
            self._update_tensor(rows, gradients, timestamp, factor)
        elif self._by.code is None:
            self._update_by_user(rows, gradients, timestamp, factor)
        else:
            update_rows(rows, gradients, self.rule(timestamp, factor).rule)

    def update_parts(
        self,
        rows: torch.Tensor,
        parts: Parts,
        timestamp: int,
        factor: float = 1.0,
        picks: torch.Tensor | None = None,
        told: torch.Tensor | None = None,
        largest: float = math.inf,
        decay: float = 0.0,
    ) -> None:
        """Sums up gradients and updates rows in place, in the kernels of a GPU; see `summed.update_summed`."""
        update = self.rule(timestamp, factor)
        if update.after is None:
            update_summed(rows, parts, update.rule, picks, told, largest, decay)
            return
        gradients = parts.values.new_empty((parts.count, parts.values.shape[1]))
        update_summed(gradients, parts, _PASS_THROUGH)
        chosen = rows if picks is None else rows[picks]
        if decay:
            gradients.add_(chosen[:, : gradients.shape[1]], alpha=decay)
        self._update_tensor(chosen, gradients, timestamp, factor)
        if picks is not None:
            rows[picks] = chosen
        if told is not None:
            told.view(-1)[:1].masked_fill_(~is_sound(chosen, gradients.shape[1], largest), math.nan)

    def _update_by_user(self, rows: np.ndarray, gradients: np.ndarray, timestamp: int, factor: float) -> None:
        rate, dimension = self._learning_rate * factor, gradients.shape[1]
        with blaming_own(self._config.kind, KEY):
            self._by.update(rows[:, :dimension], rows[:, dimension:], gradients, timestamp + 1, rate)

    def _update_tensor(self, rows: torch.Tensor, gradients: torch.Tensor, timestamp: int, factor: float) -> None:
        if self._by.code is None and rows.device.type == "cpu":
            self._update_by_user(rows.numpy(), gradients.numpy(), timestamp, factor)
            return
        value, state = rows.split([gradients.shape[1], rows.shape[1] - gradients.shape[1]], 1)
        with blaming_own(self._config.kind, KEY):
            self._by.update(value, state, gradients, timestamp + 1, self._learning_rate * factor)


class GradientPassThrough(RowOptimizer):
    """Replaces each row's value by its gradient. The optimizer runs elsewhere, at the row's shard."""

    def __init__(self) -> None:
        pass

    def state_width(self, dimension: int) -> int:
        """0, since the state is kept where the optimizer runs."""
        return 0

    @property
    def initial_state(self) -> float:
        """0, since there is no state."""
        return 0.0

    def rule(self, timestamp: int, factor: float = 1.0) -> RowUpdate:
        """The update that copies the gradient."""
        return RowUpdate(_PASS_THROUGH)

    def update(self, rows: Any, gradients: Any, timestamp: int, factor: float = 1.0) -> None:
        """Copies the gradients, [n, D], into the rows, [n, D]. Raises ValueError if the shapes don't match."""
        if tuple(rows.shape) != tuple(gradients.shape):
            raise ValueError(f"rows {tuple(rows.shape)} and gradients {tuple(gradients.shape)} don't belong together")
        rows[:] = gradients
