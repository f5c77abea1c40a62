"""Keys of batches, and what is remembered of the user's tensors that had them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from marius_oac.errors import InputError
from marius_oac.torch.key_forms import Keys, read_keys
from marius_oac.types import present

_MANY = 8
"""Batches of a tensor, of which then those before the batch at hand are forgotten."""

KeySource = str | int | Callable[[Any], Any]
"""Which part of a batch has a table's keys: the name or place of a field, or a function of the batch."""


def field(source: KeySource, batch: Any, where: str) -> Any:
    """That part of a batch. Raises InputError if it has no such field."""
    if callable(source):
        return source(batch)
    names = _attributes(batch)
    if source in names:
        return getattr(batch, str(source))
    try:
        return batch[source]
    except (KeyError, TypeError, IndexError):
        listed = list(map(str, batch)) if isinstance(batch, Mapping) else names
        has = f"fields {', '.join(listed)}" if listed else type(batch).__name__
        raise InputError(f"the batch has no field {source!r}, but {has}", where) from None


def _attributes(batch: Any) -> list[str]:
    """Names of the fields of a dataclass's instance or of a named tuple; none of anything else."""
    if is_dataclass(batch):
        return [each.name for each in fields(batch)]
    return list(getattr(batch, "_fields", ())) if isinstance(batch, tuple) else []


def batch_keys(source: KeySource, batch: Any, where: str) -> list[Keys]:
    """A table's keys in a batch. Raises InputError if there are none, or they are something else."""
    found = field(source, batch, where)
    several = isinstance(found, list | tuple) and any(isinstance(each, torch.Tensor) for each in found)
    return [read_keys(each, where) for each in (found if several else [found])]


class Announced:
    """Tensors of keys, known by identity for as long as the user keeps them.

    `of` finds where a tensor's keys are in a batch's without a look at them.

    Attributes:
        at_hand: number of the batch that the user has: those before it may be forgotten.
    """

    def __init__(self) -> None:
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.at_hand = 0

    def add(self, every: Sequence[Keys], number: int) -> None:
        """Notes that these keys, one after another, are those of batch `number`."""
        first = 0
        for each in every:
            if each.given is not None:
                known = self._known.setdefault(each.given, {})
                known[number] = (first, each.count, each.given._version)
                if len(known) > _MANY:
                    for old in [old for old in known if old < self.at_hand]:
                        del known[old]
            first += each.count

    def of(self, keys: Keys, number: int) -> slice | None:
        """Where keys of a user's tensor are among those of batch `number`; None: they must be looked for.

        Raises:
            InputError: it was announced for batches that were handed back, and not for this one.
        """
        known = None if keys.given is None else self._known.get(keys.given)
        if not known:
            return None
        if number in known:
            first, count, version = known[number]
            same = version == present(keys.given)._version and count == keys.count  # `.data = ` leaves the version
            return slice(first, first + count) if same else None
        if max(known) < number:
            raise InputError(
                f"this tensor of keys belongs to batch {max(known)}, which was handed back when the loop asked for the "
                f"next one; the batch at hand is {number}"
            )
        return None
