"""Optimizers of torch's without its compiler.

torch guards methods of its optimizers against `torch.compile`, and imports that, for a second and a half, when one is
first called. Nothing here is compiled by it, so a class made by `eager` calls what is behind the guards.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

_GUARDED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def eager(kind: type[Kind]) -> type[Kind]:
    """A class whose optimizers do the same; its steps are without gradients, as those of `kind` are."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _GUARDED}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {**methods, "step": step, **about})
