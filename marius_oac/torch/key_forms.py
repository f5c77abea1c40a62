"""Keys in the forms in which users have them: tensors of integers, jagged ones, lists of integers or of texts.

A text's key is its checked fingerprint, as in a click log's (`data/logs/fingerprints`), in a vocabulary of its own: no
text has an integer's row. Two texts with the same 64-bit fingerprint are an error, unless their checks are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from marius_oac.data.logs.fingerprints import fingerprints
from marius_oac.errors import InputError, shown
from marius_oac.storage.keys.table import LAST_SHARED, NO_KEY, is_shared

TEXTS = 1
"""The vocabulary of texts; that of integers is 0."""


class KeyArray(NamedTuple):
    """n keys, as a table's index has them."""

    vocabularies: np.ndarray  # uint16 [n]
    keys: np.ndarray  # int64 [n]
    checks: np.ndarray  # uint32 [n]


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys of any form, one after another.

    Attributes:
        given: the user's tensor, by which they are known again; None: it was none.
        flat: int64 or another integer type, [n]; None: they are texts.
        texts: [n]; None: they are integers.
        shape: of the user's tensor; None: bags of different lengths.
        offsets: int64 [b + 1], where each bag begins; None: there are no bags.
    """

    given: torch.Tensor | None
    flat: torch.Tensor | None
    texts: Sequence[str] | None
    shape: tuple[int, ...] | None
    offsets: torch.Tensor | None = None

    @property
    def count(self) -> int:
        """n."""
        return len(self.texts or ()) if self.flat is None else self.flat.numel()

    @property
    def are_texts(self) -> bool | None:
        """Whether they are texts; None: there are none."""
        return self.flat is None if self.count else None

    def key(self, place: int) -> int | str:
        """That number `place`."""
        return (self.texts or ())[place] if self.flat is None else int(self.flat.reshape(-1)[place])

    def array(self, where: str) -> KeyArray:
        """A copy of them. Raises InputError if one is reserved, or no text of Unicode."""
        if self.flat is None:
            return _of_texts(self.texts or (), where)
        keys = self.flat.numpy().reshape(-1).astype(np.int64)
        if keys.size and keys.min() <= LAST_SHARED and is_shared(keys).any():
            key = keys[is_shared(keys)][0]
            raise InputError(f"key {key} is reserved, as all from {NO_KEY} to {LAST_SHARED} are", where)
        return KeyArray(np.zeros(keys.size, np.uint16), keys, np.zeros(keys.size, np.uint32))

    def are(self, key: int | str) -> torch.Tensor:
        """Whether each of them is `key`, bool of their shape, [n] for bags of different lengths."""
        if self.flat is None:
            same = torch.tensor([text == key for text in self.texts or ()], dtype=torch.bool)
        else:
            same = self.flat == key if isinstance(key, int) else torch.zeros(self.flat.shape, dtype=torch.bool)
        return same if self.shape is None else same.view(self.shape)


def read_keys(value: Any, where: str) -> Keys:
    """Keys of a tensor of integers of any shape, a nested one, an array, a list of keys, or a list of bags of them.

    Raises:
        InputError: they are something else.
    """
    if isinstance(value, np.ndarray):
        value = _of_array(value, where)
    elif hasattr(type(value), "__dlpack__"):
        value = tensor_of(value)
    if isinstance(value, torch.Tensor):
        integers = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        if not integers or value.device.type != "cpu":
            raise InputError(f"keys must be integers on the CPU, not {value.dtype} on {value.device}", where)
        if value.is_nested:
            return _nested(value, where)
        return Keys(value, value, None, tuple(value.shape))
    if isinstance(value, list | tuple):
        return _listed(value, where)
    raise InputError(f"keys must be tensors or lists of integers or of texts, not {shown(value)}", where)


def tensor_of(value: Any) -> torch.Tensor:
    """A tensor, an array, or anything else with `__dlpack__`, as a tensor, which may share its memory."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if value.flags.writeable else value.copy())  # else torch warns
    return from_dlpack(value)


def _of_array(value: np.ndarray, where: str) -> Any:
    """A tensor, or a list of texts."""
    if value.dtype.kind == "U" or (value.dtype == object and value.ndim == 1):
        return value.tolist()
    if value.dtype.kind not in "iu" or value.dtype == np.uint64:
        raise InputError(f"keys must be int64 or smaller, not {value.dtype}", where)
    return tensor_of(value.astype(np.int64, copy=False))


def _nested(value: torch.Tensor, where: str) -> Keys:
    """Those of a nested tensor of bags."""
    if value.dim() != 2:
        raise InputError(f"nested keys must be bags of keys, not of {value.dim()} dimensions", where)
    if value.layout == torch.jagged:
        _check_jagged(value, where)
        whole: Any = value.contiguous()  # without holes between the bags
        return Keys(value, whole.values(), None, None, whole.offsets())
    bags = value.unbind()
    return Keys(value, torch.cat([*bags, torch.empty(0, dtype=value.dtype)]), None, None, _offsets(map(len, bags)))


def _check_jagged(value: Any, where: str) -> None:
    """Raises InputError if bags lie outside of the tensor's memory, which torch does not check."""
    offsets, lengths, count = value.offsets(), value.lengths(), len(value.values())
    begins, ends = offsets[:-1], offsets[1:] if lengths is None else offsets[:-1] + lengths
    inside = bool(len(offsets) and ((begins >= 0) & (begins <= ends) & (ends <= count)).all())
    if not inside or (lengths is None and [int(offsets[0]), int(offsets[-1])] != [0, count]):
        raise InputError(f"the offsets of nested keys must ascend from 0 to {count}, the number of keys", where)


def _offsets(lengths: Any) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum([*lengths], dtype=np.int64).tolist()])


def _listed(value: Sequence[Any], where: str) -> Keys:
    """Those of a list of keys or of a list of bags."""
    bags = [isinstance(each, list | tuple) for each in value]
    if any(bags):
        if not all(bags):
            raise InputError(f"keys must be a list of keys or of bags, not both, as {shown(value)}", where)
        return _typed(list(chain.from_iterable(value)), None, _offsets(map(len, value)), where)
    return _typed(value, (len(value),), None, where)


def _typed(value: Sequence[Any], shape: tuple[int, ...] | None, offsets: torch.Tensor | None, where: str) -> Keys:
    kinds = {*map(type, value)}
    if kinds and all(issubclass(kind, str) for kind in kinds):
        return Keys(None, None, value, shape, offsets)
    if kinds <= {int}:
        try:
            return Keys(None, torch.tensor(value, dtype=torch.int64), None, shape, offsets)
        except (OverflowError, RuntimeError, ValueError):
            raise InputError("a key is beyond 64 bits", where) from None
    first = type(value[0])
    wrong = next(each for each in value if type(each) is not first or first not in (int, str))
    raise InputError(f"keys must be tensors or lists of integers or of texts, not {shown(wrong)}", where)


def _of_texts(texts: Sequence[str], where: str) -> KeyArray:
    try:
        encoded = [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        raise InputError(f"a text of the keys is no Unicode: {shown(error.object)}", where) from None
    ends = np.cumsum([*map(len, encoded)], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1]
    keys, checks = fingerprints(np.frombuffer(bytearray().join(encoded), np.uint8), starts, ends)
    return KeyArray(np.full(keys.size, TEXTS, np.uint16), keys, checks)


def joined(parts: Sequence[KeyArray]) -> KeyArray:
    """One after another."""
    if len(parts) == 1:
        return parts[0]
    empty = KeyArray(np.empty(0, np.uint16), np.empty(0, np.int64), np.empty(0, np.uint32))
    return KeyArray(*(np.concatenate(each) for each in zip(empty, *parts, strict=True)))
