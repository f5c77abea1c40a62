"""What torch's modules have and can do, and a module without a tensor of its rows has not and can't: each is refused in
one line. What has no effect on rows, and may be meant to have one, is a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import torch
from torch import nn

from marius_oac.errors import InputError

_ABSENT = {
    "weight": "there is no tensor of all rows: call the module on keys, in eval mode outside of the loop",
    "num_embeddings": "there is no fixed number of rows: tables grow with the keys that they see",
}


_ROWS_ELSEWHERE = ContextVar("rows_elsewhere", default=False)


@contextmanager
def rows_elsewhere() -> Iterator[None]:
    """Within it a state without rows is no reason for a warning: they are saved, too."""
    before = _ROWS_ELSEWHERE.set(True)
    try:
        yield
    finally:
        _ROWS_ELSEWHERE.reset(before)


class AbsentError(InputError, AttributeError):
    """An attribute that torch's modules have and this one has not: `hasattr` finds that it has none."""


class Refusals(nn.Module):
    """A module whose rows are in a table. See `Keyed` for its attributes."""

    served: Any
    trains: bool | None
    _std_given: bool

    def __getattr__(self, name: str) -> Any:
        if name in _ABSENT:
            raise AbsentError(_ABSENT[name], f"{type(self).__name__}.{name}")
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ABSENT:
            raise InputError("it can't be set or tied: `shares=` uses the table of another module",
                             f"{type(self).__name__}.{name}")  # fmt: skip
        super().__setattr__(name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise self._refused("it can't be copied or pickled: make a new one, so that each has a table of its own")

    def __prepare_scriptable__(self) -> Any:
        """Called by torch.jit.script."""
        raise self._refused("torch.jit.script can't compile it: rows come from a table")

    def _replicate_for_data_parallel(self) -> Any:
        raise self._refused("DataParallel can't copy it: rows are in one table")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Called by `to`, `half`, `share_memory` and the like, with what they do to a tensor."""
        found = fn(torch.zeros(1))
        if found.dtype != torch.float32 or found.device.type != "cpu":
            raise self._refused(f"rows stay float32 on the CPU, not {found.dtype} on {found.device}: move the other "
                                "modules one by one")  # fmt: skip
        if found.is_shared():
            raise self._refused("rows can't be shared with other processes")
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *more: Any) -> None:
        if f"{prefix}weight" in state_dict:
            raise InputError("rows are no part of a state_dict: load it before mt.convert, or leave them out",
                             f"{prefix}weight")  # fmt: skip
        super()._load_from_state_dict(state_dict, prefix, *more)
        more[2].append(f"{prefix}weight")  # missing keys: all that match are not all that there is

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.served.table is not None and not _ROWS_ELSEWHERE.get():
            warnings.warn(f"rows of {prefix.removesuffix('.')!r} are no part of a state_dict: engine.save(folder) "
                          "saves them, with all else", stacklevel=2)  # fmt: skip

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """None: rows are no parameters."""
        if recurse:
            warnings.warn(f"{type(self).__name__} has no parameters, its rows are in a table: mt.Adagrad(module) "
                          "trains them, module.requires_grad_(False) freezes them", stacklevel=2)  # fmt: skip
        return super().parameters(recurse)

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Calls `fn`, which can't set the values of rows."""
        if not self._std_given:
            warnings.warn(f"{type(self).__name__}.apply can't set rows, which are made as keys come: their standard "
                          "deviation is 1, or that of `std=`", stacklevel=2)  # fmt: skip
        return super().apply(fn)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Says whether rows are trained by this module."""
        self.trains = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of its rows."""
        self.served.clear(set_to_none)

    def _refused(self, reason: str) -> InputError:
        return InputError(reason, type(self).__name__)
