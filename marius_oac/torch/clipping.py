"""Clipping over rows and parameters together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from marius_oac.errors import InputError, shown
from marius_oac.torch.arguments import listed
from marius_oac.torch.engine import Engine
from marius_oac.torch.modules import Keyed

_WHERE = "clip_grad_norm_"


def clip_grad_norm_(
    given: nn.Module | Engine | Iterable[Any], max_norm: float, norm_type: float = 2.0,
    error_if_nonfinite: bool = False, foreach: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.utils.clip_grad_norm_` of a model's parameters and of the rows of the batch at hand.

    Args:
        given: a model, an engine, which stands for its model, or a list of modules and tensors.
        max_norm, norm_type, error_if_nonfinite, foreach: as torch has them.

    Returns:
        The norm of all gradients before.

    Raises:
        InputError: there are no tables in what is given, or rows are in several processes.
    """
    parts = [given] if isinstance(given, nn.Module | Engine) else listed(given, "what is clipped", _WHERE)
    parts = [each.model if isinstance(each, Engine) else each for each in parts]
    tensors: list[torch.Tensor] = []
    served = []
    for each in parts:
        if isinstance(each, nn.Module):
            tensors += [parameter for _, parameter in each.named_parameters()]
            served += [module.served for module in each.modules() if isinstance(module, Keyed)]
        elif isinstance(each, torch.Tensor):
            tensors.append(each)
        else:
            raise InputError(f"a model, or a list of modules and tensors, not {shown(each)}", _WHERE)
    if not served:
        raise InputError("there is no table in what it was given: give the model itself, since model.parameters() has "
                         "no rows", _WHERE)  # fmt: skip
    rows = [each.rows for each in dict.fromkeys(served) if each.rows is not None]
    if any(each.shared for each in rows):
        raise InputError("rows are in several processes, and their gradients are averaged after the step: clip the "
                         "parameters of the network alone, by torch's function", _WHERE)  # fmt: skip
    tensors = [*dict.fromkeys([*tensors, *(each.leaf for each in rows)])]
    return nn.utils.clip_grad_norm_(tensors, max_norm, norm_type, error_if_nonfinite, foreach)
