"""Optimizers over the rows of the batch at hand: torch.optim's, in a user's eyes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from marius_oac.config.sections import OptimizerConfig
from marius_oac.errors import InputError, shown
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.torch.arguments import check_known, check_rate, check_real, listed
from marius_oac.torch.at_hand import Rows, Update
from marius_oac.torch.modules import Keyed
from marius_oac.torch.served import Served

Given = nn.Module | Iterable[Any]
_NOT_OF_GROUPS = ("betas", "eps", "momentum", "dampening", "nesterov", "amsgrad", "maximize", "lr_decay",
                  "initial_accumulator_value")  # fmt: skip


def _tables(given: Any) -> list[Served]:
    parts = [given] if isinstance(given, nn.Module) else listed(given, "what a row optimizer takes", "optimizer")
    for part in parts:
        if not isinstance(part, nn.Module):
            raise InputError(f"a row optimizer takes modules, not {shown(type(part).__name__)}", "optimizer")
    found = [each.served for part in parts for each in part.modules() if isinstance(each, Keyed)]
    return list(dict.fromkeys(found))


class RowsOptimizer(torch.optim.Optimizer):
    """A row optimizer as torch's: groups hold the leaf tensors of the batch at hand, which `step` updates.

    Rows whose batch sees no call of `step` stay as they were.

    With `weight_decay` the gradient of each row that the model has looked up gets that times the row, as in torch's
    dense optimizers; other rows don't decay.

    Attributes:
        kernel: the update, with a learning rate of 1.
        config: its kind and parameters.
        tables: of each group.
        only_used: rows that the model has not looked up in the batch stay as they are, whatever their gradient.

    Args:
        modules: modules with tables in them, or groups: dictionaries with such modules as `params`, and an `lr` or a
            `weight_decay`.
    """

    only_used = False

    def __init__(self, modules: Given, lr: float, weight_decay: float, config: OptimizerConfig):
        whole: list[Any] = (
            [modules] if isinstance(modules, nn.Module) else listed(modules, "modules", type(self).__name__)
        )
        grouped = bool(whole) and all(isinstance(each, dict) and "params" in each for each in whole)
        groups = whole if grouped else [{"params": whole}]
        self.tables = [_tables(group["params"]) for group in groups]
        every = [each for group in self.tables for each in group]
        if not every:
            raise InputError("there is no Embedding or EmbeddingBag of this package in what it was given",
                             type(self).__name__)  # fmt: skip
        if len({*every}) < len(every):
            raise InputError("a table is in two groups", type(self).__name__)
        self.kernel, self.config = RowOptimizer(config, 1.0), config
        super().__init__([{**group, "params": []} for group in groups], {"lr": lr, "weight_decay": weight_decay})
        for group in self.param_groups:
            self._check_group(group)

    def _check_group(self, group: Mapping[str, Any]) -> None:
        check_rate(group["lr"], type(self).__name__)
        check_real(group["weight_decay"], "weight_decay", type(self).__name__)
        for name in _NOT_OF_GROUPS:
            if name in group:
                raise InputError(f"a group can't have {name} of its own, but lr and weight_decay: make two optimizers",
                                 type(self).__name__)  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after the optimizer was made: a table's rows have the state of the optimizer that they began with."""
        if len(self.param_groups) == len(self.tables):
            raise InputError("groups can't be added: name all modules when it is made", type(self).__name__)
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Learning rates and the like, without tensors: the state of rows is in the rows."""
        return {"state": {}, "param_groups": [{**group, "params": []} for group in self.param_groups]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave. Raises InputError if it has another number of groups."""
        if state_dict.get("state"):
            raise InputError("it is the state of another optimizer: that of rows is in a checkpoint, by engine.save",
                             f"{type(self).__name__}.load_state_dict")  # fmt: skip
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise InputError(
                f"it has {len(self.param_groups)} groups and the saved one {len(saved)}", type(self).__name__
            )
        for group, given in zip(self.param_groups, saved, strict=True):
            group.update({name: copy.deepcopy(value) for name, value in given.items() if name != "params"})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of rows, also those that batches before have left."""
        for tables in self.tables:
            for each in tables:
                each.clear(set_to_none)

    def place(self) -> None:
        """Makes the groups hold the leaves of the batch at hand."""
        for group, tables in zip(self.param_groups, self.tables, strict=True):
            group["params"] = [table.rows.leaf for table in tables if table.rows is not None]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the rows of the batch at hand by their gradients.

        Raises:
            DivergedError: a gradient is not finite; no row was changed.
            InputError: there is no batch at hand.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [
            (table.rows, group, place)
            for group, tables in zip(self.param_groups, self.tables, strict=True)
            for place, table in enumerate(tables)
            if table.rows is not None
        ]
        if not found:
            raise InputError("there is no batch at hand: call step within the loop", type(self).__name__)
        for rows, _, _ in found:
            rows.check_gradient()
        for rows, group, place in found:
            self._update(rows, group, place)
            rows.spend()
        return loss

    def _update(self, rows: Rows, group: dict[str, Any], place: int) -> None:
        """Updates the rows of the group's table number `place`."""
        rows.update(self, float(group["lr"]), 1, float(group["weight_decay"]))

    def updating(self, rate: float, number: int, decay: float) -> Update:
        """See `Rule.updating`."""
        step = self._by(rate, number)

        def update(rows: np.ndarray, gradients: np.ndarray) -> None:
            step(rows, gradients + np.float32(decay) * rows[:, : gradients.shape[1]])

        return update if decay else step

    def _by(self, rate: float, number: int) -> Update:
        """`updating` without decay."""
        return partial(self.kernel.update, timestamp=0, factor=rate)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InputError("it can't be copied or pickled: it updates tables, which can't be", type(self).__name__)


class Adagrad(RowsOptimizer):
    """torch.optim.Adagrad's update, of a batch's rows alone."""

    def __init__(
        self, modules: Given, lr: float = 1e-2, eps: float = 1e-10, initial_accumulator_value: float = 0.0,
        weight_decay: float = 0.0, **other: Any
    ):  # fmt: skip
        check_known(other, "Adagrad")
        check_real(eps, "eps", "Adagrad", above=True)
        check_real(initial_accumulator_value, "initial_accumulator_value", "Adagrad")
        config = OptimizerConfig(kind="adagrad", epsilon=eps, initial_accumulator=initial_accumulator_value)
        super().__init__(modules, lr, weight_decay, config)


class SGD(RowsOptimizer):
    """torch.optim.SGD's update without momentum, of a batch's rows alone."""

    def __init__(self, modules: Given, lr: float = 1e-3, weight_decay: float = 0.0, **other: Any):
        check_known(other, "SGD")
        super().__init__(modules, lr, weight_decay, OptimizerConfig(kind="sgd"))


class Adam(RowsOptimizer):
    """torch.optim.SparseAdam's update: of the rows that the model has looked up in the batch. Averages of others stand
    still. A table's steps are counted in its group, as `steps`."""

    only_used = True

    def __init__(
        self, modules: Given, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, **other: Any,
    ):  # fmt: skip
        check_known(other, "Adam")
        check_real(eps, "eps", "Adam", above=True)
        if len(listed(betas, "betas", "Adam")) != 2:
            raise InputError(f"betas must be two numbers, not {shown(betas)}", "Adam")
        for number in betas:
            if not isinstance(number, int | float) or not 0 <= number < 1:
                raise InputError(f"betas must be at least 0 and less than 1, not {shown(number)}", "Adam")
        self._betas, self._eps = betas, eps
        config = OptimizerConfig(kind="adam", beta1=betas[0], beta2=betas[1], epsilon=eps)
        super().__init__(modules, lr, weight_decay, config)
        for group, tables in zip(self.param_groups, self.tables, strict=True):
            group["steps"] = [0] * len(tables)

    def _update(self, rows: Rows, group: dict[str, Any], place: int) -> None:
        if rows.update(self, float(group["lr"]), group["steps"][place] + 1, float(group["weight_decay"])):
            group["steps"][place] += 1

    def _by(self, rate: float, number: int) -> Update:
        """See `RowsOptimizer._by`."""
        return partial(self._step, rate=rate, step=number)

    def _step(self, rows: np.ndarray, gradients: np.ndarray, rate: float, step: int) -> None:
        """In torch: the kernel of runs rounds 1 - beta to float32, which over 200 steps moves rows by some 1e-5."""
        (beta1, beta2), gradient = self._betas, torch.from_numpy(gradients)
        value, first, second = torch.from_numpy(rows).split(gradients.shape[1], 1)
        first.lerp_(gradient, 1 - beta1)
        second.lerp_(gradient * gradient, 1 - beta2)
        rate *= math.sqrt(1 - beta2**step) / (1 - beta1**step)
        value.addcdiv_(first, second.sqrt().add_(self._eps), value=-rate)
