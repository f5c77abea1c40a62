"""The rules by which row optimizers update a row's value from its gradient; `row_optimizers` has formulas and sources.

Each has a kernel for NumPy's arrays, by its `code`, and `update` for tensors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch

from marius_oac.config.parts import ROW_OPTIMIZERS
from marius_oac.config.sections import OptimizerConfig
from marius_oac.kernels.cpu import row_updates as kernels
from marius_oac.models.compute.parts import part_class

KEY = "training.optimizer.kind"


class UpdateRule(ABC):
    """An update of rows, made of the configuration's section `training.optimizer`, and the base of a user's own.

    A user's needs only `update`, and `state_width` if rows have state. Some rows are updated at a time, by several
    threads at once, so it must treat each row by itself and keep nothing outside of `state`.

    Attributes:
        code: of its kernel, in `kernels.cpu.row_updates`; None: `update` gets NumPy's arrays, too.
        initial_state: the value of every float of a row's state before the row's first update.
    """

    code: int | None = None
    initial_state = 0.0

    def __init__(self, config: OptimizerConfig) -> None:
        self.config = config

    def state_width(self, dimension: int) -> int:
        """The number of floats of state for a value of `dimension` floats."""
        return 0

    def corrections(self, step: int) -> tuple[float, float]:
        """Two factors of step number `step`, from 1, for the kernel."""
        return 1.0, 1.0

    @abstractmethod
    def update(self, values: Any, state: Any, gradients: Any, step: int, rate: Any) -> None:
        """Updates values and state in place.

        Args:
            values: float32 [n, D].
            state: float32 [n, state_width(D)].
            gradients: float32 [n, D].
            step: the number of the batch, from 1.
            rate: the learning rate of this batch.
        """


class SGD(UpdateRule):
    """Stochastic gradient descent."""

    code = kernels.SGD

    def update(self, values: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int, rate: Any) -> None:
        """See `UpdateRule.update`."""
        values.sub_(gradients, alpha=rate)


class Adagrad(UpdateRule):
    """Adagrad, with an accumulator for each float."""

    code = kernels.ADAGRAD

    def __init__(self, config: OptimizerConfig) -> None:
        super().__init__(config)
        self.initial_state = config.initial_accumulator

    def state_width(self, dimension: int) -> int:
        """See `UpdateRule.state_width`."""
        return dimension

    def update(self, values: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int, rate: Any) -> None:
        """See `UpdateRule.update`."""
        self._accumulate(state, gradients)
        values.addcdiv_(gradients, state.sqrt().add_(self.config.epsilon), value=-rate)

    def _accumulate(self, state: torch.Tensor, gradients: torch.Tensor) -> None:
        state.addcmul_(gradients, gradients)


class RowwiseAdagrad(Adagrad):
    """Adagrad, with one accumulator for each row."""

    code = kernels.ROWWISE_ADAGRAD

    def state_width(self, dimension: int) -> int:
        """See `UpdateRule.state_width`."""
        return 1

    def _accumulate(self, state: torch.Tensor, gradients: torch.Tensor) -> None:
        state += (gradients * gradients).mean(1, keepdim=True)


class Adam(UpdateRule):
    """Adam."""

    code = kernels.ADAM

    def state_width(self, dimension: int) -> int:
        """See `UpdateRule.state_width`."""
        return 2 * dimension

    def corrections(self, step: int) -> tuple[float, float]:
        """The factors of the averages: 1 / (1 - beta^step)."""
        return 1 / (1 - self.config.beta1**step), 1 / (1 - self.config.beta2**step)

    def update(self, values: torch.Tensor, state: torch.Tensor, gradients: torch.Tensor, step: int, rate: Any) -> None:
        """See `UpdateRule.update`."""
        first, second = state.chunk(2, 1)
        first.lerp_(gradients, 1 - self.config.beta1)
        second.mul_(self.config.beta2).addcmul_(gradients, gradients, value=1 - self.config.beta2)
        first_correction, second_correction = self.corrections(step)
        # sqrt(v') + eps = root * (sqrt(v) + eps / root)
        root = math.sqrt(second_correction)
        scale = second.sqrt().add_(self.config.epsilon / root)
        values.addcdiv_(first, scale, value=-rate * first_correction / root)


def make_update_rule(config: OptimizerConfig) -> UpdateRule:
    """The update rule of the configuration."""
    return part_class(config.kind, ROW_OPTIMIZERS, UpdateRule, KEY)(config)
