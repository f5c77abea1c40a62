"""States of a user's objects as plain data and tensors, so that nothing is pickled.

A state is what `state_dict` of a module, an optimizer or a scheduler returns: dictionaries, lists, tuples, numbers,
texts, tensors and NumPy's arrays. It becomes a tree for a manifest and tensors by name for a file of tensors.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from marius_oac.errors import CheckpointError, InputError, shown

_MAPPINGS: Mapping[str, Callable[[Any], Any]] = {
    "dict": dict, "ordered": OrderedDict, "counter": Counter, "default": lambda pairs: defaultdict(dict, pairs),
}  # fmt: skip
_LISTS: Mapping[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set}
_AS_THEY_ARE = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool)
_SCALARS = (bool, int, str, type(None))
_INT64 = 1 << 63  # beyond, JSON's readers differ


def to_plain(state: Any, name: str, tensors: MutableMapping[str, torch.Tensor]) -> Any:
    """The tree of a state; its tensors, copied to the CPU as they are now, are put into `tensors` by names that begin
    with `name`.

    Raises:
        InputError: something in it is no plain data.
    """
    if isinstance(state, torch.Tensor) and type(state) in (torch.Tensor, torch.nn.Parameter):
        return _tensor(state.detach(), name, tensors, "tensor")
    if isinstance(state, np.ndarray) and state.dtype.kind in "biuf":
        return _tensor(torch.from_numpy(np.array(state)), name, tensors, "array")
    if type(state) is int and not -_INT64 <= state < _INT64:
        return {"integer": hex(state)}
    if type(state) in _SCALARS:
        return {"is": state}
    if isinstance(state, float | np.floating):
        return {"float": float(state).hex()}
    if isinstance(state, np.integer | np.bool_):
        return {"is": state.item()}
    for kind, mapping in (("counter", Counter), ("default", defaultdict), ("ordered", OrderedDict), ("dict", dict)):
        if isinstance(state, mapping):
            return {kind: [[to_plain(key, f"{name}.key", tensors), to_plain(value, f"{name}.{key}", tensors)]
                           for key, value in state.items()]}  # fmt: skip
    for kind, sequence in (("list", list), ("tuple", tuple), ("set", set)):
        if type(state) is sequence:
            return {kind: [to_plain(each, f"{name}.{place}", tensors) for place, each in enumerate(state)]}
    if hasattr(state, "full_tensor"):
        raise InputError(f"is in pieces, a {type(state).__name__} of torch's: save it by torch.distributed.checkpoint, "
                         "and give the engine a model of its tables alone", f"state {name!r}")  # fmt: skip
    raise InputError(f"{shown(state)} can't be saved: only numbers, texts, tensors and collections of them can",
                     f"state {name!r}")  # fmt: skip


def _tensor(value: torch.Tensor, name: str, tensors: MutableMapping[str, torch.Tensor], kind: str) -> dict[str, Any]:
    """A tensor that a file of tensors takes as it is, or its bytes: a mask may be infinite, where weights may not."""
    unique = name
    while unique in tensors:
        unique += "'"
    copied = value.to("cpu", copy=True).contiguous()
    if copied.dtype in _AS_THEY_ARE and bool(torch.isfinite(copied).all()):
        tensors[unique] = copied
        return {kind: unique}
    tensors[unique] = copied.reshape(-1).view(torch.uint8)
    return {f"{kind}'s bytes": [unique, str(copied.dtype).removeprefix("torch."), list(copied.shape)]}


def _of_bytes(about: Any, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    name, dtype, shape = about
    if not isinstance(getattr(torch, dtype), torch.dtype):
        raise TypeError(f"{dtype} is no type")
    return tensors[name].clone().view(getattr(torch, dtype)).reshape(shape)


def from_plain(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What `to_plain` was given. Raises CheckpointError if the tree is none of its."""
    try:
        ((kind, value),) = tree.items()
        if kind == "is" and type(value) in _SCALARS:
            return value
        if kind == "integer":
            return int(value, 16)
        if kind == "float":
            return float.fromhex(value)
        if kind == "tensor":
            return tensors[value].clone()
        if kind == "array":
            return tensors[value].numpy().copy()
        if kind == "tensor's bytes":
            return _of_bytes(value, tensors)
        if kind == "array's bytes":
            return _of_bytes(value, tensors).numpy()
        if kind in _MAPPINGS:
            return _MAPPINGS[kind]({from_plain(key, tensors): from_plain(each, tensors) for key, each in value})
        if kind in _LISTS:
            return _LISTS[kind](from_plain(each, tensors) for each in value)
    except (AttributeError, ValueError, TypeError, KeyError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"has a damaged state: {shown(str(error))}") from None
    raise CheckpointError(f"has a damaged state: there is no kind {shown(kind)}")
