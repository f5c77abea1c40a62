"""Keys of batches, as the user's tensors give them, and what is remembered of these tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from marius_oac.errors import InputError, shown
from marius_oac.storage.keys.table import LAST_SHARED, NO_KEY, is_shared

KeySource = str | int | Callable[[Any], Any]
"""Which part of a batch has a table's keys: the name or place of a field, or a function of the batch."""


def key_tensors(source: KeySource, batch: Any, where: str) -> list[torch.Tensor]:
    """A table's keys in a batch: integer tensors of any shape, on the CPU.

    Raises:
        InputError: there are none, or they are something else.
    """
    if callable(source):
        found = source(batch)
    else:
        try:
            found = batch[source]
        except (KeyError, TypeError, IndexError):
            has = f"fields {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
            raise InputError(f"the batch has no field {source!r}, but {has}", where) from None
    tensors = list(found) if isinstance(found, list | tuple) else [found]
    for each in tensors:
        if not isinstance(each, torch.Tensor):
            raise InputError(f"keys must be a tensor or a list of tensors, not {shown(each)}", where)
        integers = not (each.is_floating_point() or each.is_complex() or each.dtype == torch.bool)
        if not integers or each.device.type != "cpu":
            raise InputError(f"keys must be integers on the CPU, not {each.dtype} on {each.device}", where)
    return tensors


def key_numbers(tensors: Sequence[torch.Tensor], where: str) -> np.ndarray:
    """A copy of the keys, one after another, int64 [n]. Raises InputError if one is reserved."""
    parts = [each.detach().numpy().reshape(-1) for each in tensors]
    keys = np.concatenate([np.empty(0, np.int64), *(part.astype(np.int64, copy=False) for part in parts)])
    refuse_reserved(keys, where)
    return keys


def refuse_reserved(keys: np.ndarray, where: str) -> None:
    """Raises InputError if one of the keys, int64 [n], is reserved."""
    if keys.size and keys.min() <= LAST_SHARED and is_shared(keys).any():
        key = keys[is_shared(keys)][0]
        raise InputError(f"key {key} is reserved, as all from {NO_KEY} to {LAST_SHARED} are", where)


class Announced:
    """Tensors of keys, known by identity for as long as the user keeps them.

    `of` finds where a tensor's keys are in a batch's without a look at them.
    """

    def __init__(self) -> None:
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def add(self, tensors: Sequence[torch.Tensor], number: int) -> None:
        """Notes that these tensors, one after another, have the keys of batch `number`."""
        first = 0
        for each in tensors:
            self._known.setdefault(each, {})[number] = (first, each._version)
            first += each.numel()

    def of(self, tensor: torch.Tensor, number: int) -> slice | None:
        """Where the tensor's keys are among those of batch `number`; None: they must be looked for.

        Raises:
            InputError: it was announced for batches that were handed back, and not for this one.
        """
        known = self._known.get(tensor)
        if not known:
            return None
        if number in known:
            first, version = known[number]
            return slice(first, first + tensor.numel()) if version == tensor._version else None
        if max(known) < number:
            raise InputError(
                f"this tensor of keys belongs to batch {max(known)}, which was handed back when the loop asked for the "
                f"next one; the batch at hand is {number}"
            )
        return None

    def forget_before(self, tensors: Sequence[torch.Tensor], number: int) -> None:
        """Keeps of these tensors the batches from `number` on, or the last one."""
        for each in tensors:
            known = self._known.get(each, {})
            for old in [old for old in known if old < number and old != max(known)]:
                del known[old]
