"""Puts modules of this package in the place of torch's in a model that is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from marius_oac.errors import InputError, shown
from marius_oac.torch.arguments import check_model, listed
from marius_oac.torch.modules import Embedding, EmbeddingBag, Keyed

Select = Callable[[str, nn.Module], bool] | Iterable[str] | None

_REFUSED = {
    "max_norm": "rows would change while they are read",
    "scale_grad_by_freq": "divide the loss instead",
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def convert(model: nn.Module, select: Select = None, **given: Any) -> nn.Module:
    """Replaces nn.Embedding and nn.EmbeddingBag in a model by modules of this package, which compute the same.

    The rows of keys 0 to num_embeddings - 1 are the module's weights, bit for bit; other keys get rows of their own.
    Modules that share their weight share a table. To be called before optimizers are made of the model's parameters.

    Args:
        model: changed in place.
        select: which of them, by a function of a module's name and the module, or by their names; None: all.
        given: `std`, `seed`, `capacity`, `memory` and `path` of the tables; see `Keyed`.

    Returns:
        The model, or the new module where the model itself is one of torch's. In an engine's `keys` the new modules
        have the names that the old ones had.

    Raises:
        InputError: none is selected, or one of them can't be replaced; nothing has changed.
    """
    check_model(model, "convert")
    chosen = _chosen(model, select)
    if not chosen:
        raise InputError("there is no nn.Embedding or nn.EmbeddingBag in the model, or none is selected", "convert")
    _check_ties(model, chosen)
    made: dict[nn.Module, Keyed] = {}
    owners: dict[nn.Parameter, Keyed] = {}
    for module, name in chosen.items():
        _check(module, name)
        made[module] = new = _replacement(module, owners.get(module.weight), given)
        owners.setdefault(module.weight, new)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child in made:
                parent._modules[name] = made[child]
    return made.get(model, model)


def _chosen(model: nn.Module, select: Select) -> dict[Any, str]:
    """The modules to replace and their names."""
    there = dict(model.named_modules(remove_duplicate=False))
    if select is None or callable(select):
        pick = select or (lambda name, module: True)
        named = {name: each for name, each in there.items() if isinstance(each, _KINDS) and pick(name, each)}
    else:
        names = [select] if isinstance(select, str) else listed(select, "select", "convert")
        for name in names:
            if not isinstance(there.get(name), _KINDS):
                raise InputError(f"{shown(name)} is no nn.Embedding or nn.EmbeddingBag of the model", "convert")
        named = {name: there[name] for name in names}
    chosen: dict[Any, str] = {}
    for name, module in named.items():
        chosen.setdefault(module, name)
    return chosen


_KINDS = (nn.Embedding, nn.EmbeddingBag)


def _check_ties(model: nn.Module, chosen: dict[Any, str]) -> None:
    """Raises InputError if another module has the weight of one that is replaced."""
    weights = {module.weight: name for module, name in chosen.items() if hasattr(module, "weight")}
    for owner, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter in weights and module not in chosen:
                raise InputError(
                    f"{weights[parameter]!r} shares its weight with {f'{owner}.{name}'.lstrip('.')!r}, which needs it "
                    "whole: leave it out by `select`", "convert"
                )  # fmt: skip


def _check(module: Any, name: str) -> None:
    """Raises InputError if the module does what a new one would not."""
    where = f"convert: {name!r}" if name else "convert"
    if type(module) not in _KINDS:
        raise InputError(f"{type(module).__name__} is a class of its own, whose code would be lost: leave it out by "
                         "`select`", where)  # fmt: skip
    for argument, reason in _REFUSED.items():
        if getattr(module, argument):
            raise InputError(f"{argument} is not supported: {reason}", where)
    if any(getattr(module, hooks) for hooks in _HOOKS):
        raise InputError("it has hooks, which would be lost: remove them before", where)
    weight = module.weight
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise InputError(f"rows are float32 on the CPU, not {weight.dtype} on {weight.device}", where)
    if not weight.requires_grad:
        raise InputError("its weight is frozen, and rows are trained: leave it out by `select`", where)
    if not bool(torch.isfinite(weight).all()):
        raise InputError("its weight holds NaN or infinite numbers", where)
    if type(module) is nn.Embedding and module.padding_idx is not None and bool(weight[module.padding_idx].any()):
        raise InputError(f"the row of its padding_idx, {module.padding_idx}, is not 0", where)


def _replacement(module: Any, shares: Keyed | None, given: dict[str, Any]) -> Keyed:
    """A module in the place of one of torch's; `shares`: of one with the same weight."""
    own: dict[str, Any] = {"padding_idx": module.padding_idx}
    own |= given if shares is None else {"shares": shares}
    new: Keyed
    if isinstance(module, nn.EmbeddingBag):
        new = EmbeddingBag(
            module.embedding_dim, mode=module.mode, include_last_offset=module.include_last_offset, **own
        )
    else:
        new = Embedding(module.embedding_dim, **own)
    if shares is None:
        new.served.first_rows = module.weight
    return new.train(module.training)
