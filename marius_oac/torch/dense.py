"""A model's parameters beside its rows, and what a user does with them that reaches neither rows nor a checkpoint: told
in one line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakMethod, WeakSet, finalize

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from marius_oac.errors import InputError, shown
from marius_oac.torch.modules import Keyed
from marius_oac.torch.optimizers import RowsOptimizer

_Version = tuple[int, int]
"""Which tensor a gradient is, and how often it was changed."""


class Dense:
    """The parameters of a model.

    Args:
        optimizers: that an engine knows.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]):
        self._model, self._optimizers = model, optimizers
        self._others: WeakSet[torch.optim.Optimizer] = WeakSet()  # that have stepped
        self._reached, self._warned, self._noted = False, False, {}  # type: bool, bool, dict[int, _Version]
        self._all: Sequence[nn.Parameter] = ()
        self._close: Callable[[], object] = lambda: None

    def watch(self) -> None:
        """Sees each step of an optimizer from now on, until `close`, or until nobody has this any more."""
        stepped = WeakMethod(self._stepped)

        def hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            there = stepped()
            if there is not None:
                there(optimizer)

        self._close = finalize(self, register_optimizer_step_post_hook(hook).remove)

    def close(self) -> None:
        """Sees no more."""
        self._close()

    def check_known(self) -> None:
        """Raises InputError if an optimizer that the engine does not know updates a parameter that no other one has."""
        known = {id(each) for each in _parameters(self._optimizers)}
        names = {id(each): name for name, each in self._model.named_parameters()}
        for other in self._others:
            for each in _parameters([other]):
                if id(each) in names and id(each) not in known:
                    raise InputError(
                        f"parameter {shown(names[id(each)])} is updated by an optimizer of class "
                        f"{type(other).__name__} that is not in `optimizers`: a checkpoint would lack its state",
                        "Engine.save",
                    )

    def begin_loop(self) -> None:
        """Warns if parameters are frozen, and whether rows are was not said: `model.requires_grad_` has no effect on
        them."""
        self._all = [each for _, each in self._model.named_parameters()]
        if all(each.requires_grad for each in self._all):
            return
        for name, module in self._model.named_modules():
            if isinstance(module, Keyed) and module.trains is None:
                warnings.warn(f"parameters of the model are frozen, and the rows of {name!r} are trained: say "
                              "requires_grad_(False) or (True) of that module itself", stacklevel=2)  # fmt: skip
                module.trains = True

    def begin(self) -> None:
        """Called before each batch."""
        self._reached, self._noted = False, {}

    def reached(self, gradient: torch.Tensor) -> None:
        """A hook of rows: backward has come there."""
        if self._all and not (self._reached or self._warned):
            self._reached = True
            torch.autograd.Variable._execution_engine.queue_callback(self._note)

    def _note(self) -> None:
        """Notes the gradients as they are after backward."""
        self._reached, self._noted = False, {}
        rows = [each for each in self._optimizers if isinstance(each, RowsOptimizer)]
        for each in (*self._all, *_parameters(rows)):
            if each.grad is not None:
                self._noted[id(each)] = id(each.grad), each.grad._version

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after each step of any optimizer."""
        if any(optimizer is each for each in self._optimizers):
            if isinstance(optimizer, RowsOptimizer):
                self._warn_unclipped(optimizer)
        elif not isinstance(optimizer, RowsOptimizer):
            self._others.add(optimizer)

    def _warn_unclipped(self, optimizer: RowsOptimizer) -> None:
        """Warns if the gradients of all parameters were changed after backward, and not those of the rows: as by
        `torch.nn.utils.clip_grad_norm_(model.parameters(), ...)`."""
        noted, self._noted = self._noted, {}
        rows = self._changes(_parameters([optimizer]), noted)
        others = self._changes(self._all, noted)
        if rows and others and min(others) > max(rows) and not self._warned:
            self._warned = True
            warnings.warn("gradients of the model's parameters were changed after backward, and those of its rows were "
                          "not: model.parameters() has no rows; mt.clip_grad_norm_(model, max_norm) clips both",
                          stacklevel=2)  # fmt: skip

    @staticmethod
    def _changes(tensors: Iterable[torch.Tensor], noted: dict[int, _Version]) -> list[int]:
        """How often the gradient of each was changed since it was noted."""
        found = []
        for each in tensors:
            known = noted.get(id(each))
            if known is not None and each.grad is not None and id(each.grad) == known[0]:
                found.append(each.grad._version - known[1])
        return found


def _parameters(optimizers: Iterable[torch.optim.Optimizer]) -> Iterable[torch.Tensor]:
    return (each for optimizer in optimizers for group in optimizer.param_groups for each in group["params"])
