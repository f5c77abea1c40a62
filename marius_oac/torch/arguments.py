"""Checks of arguments, whose errors are one line."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marius_oac.errors import InputError, shown


def check_whole(value: Any, what: str, where: str, least: int | None = 1) -> None:
    """Raises InputError if it is no whole number, or below `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        limit = "" if least is None else f" of at least {least}"
        raise InputError(f"{what} must be a number{limit}, not {shown(value)}", where)


def check_real(value: Any, what: str, where: str, above: bool = False) -> None:
    """Raises InputError if it is no finite number of at least 0, or, if `above`, none above 0."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not (0 < value < math.inf if above else 0 <= value < math.inf):
        raise InputError(f"{what} must be {'above' if above else 'a number of at least'} 0, not {shown(value)}", where)


def check_rate(value: Any, where: str) -> None:
    """Raises InputError if it is no learning rate: a number, or a tensor with one, as torch's optimizers take."""
    check_real(value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value, "lr", where)


def check_known(other: Mapping[str, Any], where: str) -> None:
    """Raises InputError if an argument is left over."""
    for name in other:
        raise InputError(f"there is no argument {name!r}", where)


def check_model(value: Any, where: str) -> None:
    """Raises InputError if it is no module."""
    if not isinstance(value, nn.Module):
        raise InputError(f"the model must be a module of torch's, not {shown(type(value).__name__)}", where)


def listed(value: Any, what: str, where: str) -> list[Any]:
    """A list of what is given. Raises InputError if that is nothing to be listed."""
    if not isinstance(value, Iterable) or isinstance(value, str | nn.Module):
        raise InputError(f"{what} must be a list, not {shown(type(value).__name__)}", where)
    return list(value)


def folder_of(value: Any, where: str) -> Path:
    """A folder, which may not be there yet. Raises InputError if it is none."""
    try:
        folder = Path(os.fsdecode(value))
    except TypeError:
        raise InputError(f"a folder is needed, not {shown(value)}", where) from None
    if folder.exists() and not folder.is_dir():
        raise InputError("is no folder", folder)
    return folder
