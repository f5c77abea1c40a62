"""What a device would do for the operations of a block, seen on meta tensors: they have shapes and no numbers.

`Costs` is a dispatch mode of torch. Within it

- whatever needs a number from the device fails, as meta tensors have none (`item`, `nonzero`, a mask as an index, a
  copy to the host), and so does a number of the host's that torch would copy to the device, where the host waits;
- `launches` counts the operations that start at least one kernel on a GPU, and kernels of Triton: neither views nor
  room that is made. What torch itself puts together from other operations is counted by its parts. Some operations are
  several kernels, above all those that sort: the gradient of an index, of an embedding;
- `copies` counts copies from the host;
- `peak` is the most bytes held at once by what the operations made, with what autograd keeps of it, and `WITHIN`.
  Each takes a multiple of 512 bytes, as in torch's allocator. What lies around it is not counted: the CUDA context, the
  work space of matrix products (32 MiB on a Hopper), gaps between blocks.
"""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from marius_oac.kernels.gpu import jit
from marius_oac.pipeline.streams import HostStreams

META = torch.device("meta")
GRAIN = 512
ROOM = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "_unsafe_view"}
"""Operations that make no kernel run, and are no views by their schemas."""
NUMBERS = {"add", "add_", "sub", "sub_", "rsub", "mul", "mul_", "div", "div_"}
"""Operations whose kernels take a 0-d tensor of the host as an argument of theirs; others copy it."""


def _sorted(indices: int) -> int:
    return 40 * indices  # keys and places, sorted and not, and the room to sort them in


def _index_put(into, indices, values, accumulate=False, unsafe=False) -> int:
    return _sorted(max(each.numel() for each in indices if each is not None)) * accumulate


def _embedding_back(gradient, indices, *others) -> int:
    count = indices.numel()  # from 3,073 on: the parts of the sums, and where they begin
    return (_sorted(count) + 8 * count + 4 * gradient.shape[-1] * count) * (count > 3072)


WITHIN = {
    "_index_put_impl_": _index_put,
    "embedding_dense_backward": _embedding_back,
    "sort": lambda values, **others: _sorted(values.numel()),
}
"""Bytes that a kernel of CUDA's takes for itself, by the sources of torch 2.13."""


class Costs(TorchDispatchMode):
    """Counts from `__enter__` to `__exit__`; made anew for each block. `ops`: launches by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.copies = self.peak = self.live = self._entered = 0
        self.at = ""
        self._held: dict[int, weakref.ref] = {}

    @property
    def launches(self) -> int:
        return self.ops.total()

    def __enter__(self) -> "Costs":
        if not self._entered:
            jit.observers.append(self._launched)
        self._entered += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered -= 1
        if not self._entered:
            jit.observers.remove(self._launched)

    def _launched(self, launch: jit.Launch) -> None:
        given = _tensors(launch.arguments)
        assert all(each.device == META for each in given), f"{launch.kernel.__name__}: a tensor of the host's"
        self.ops[launch.kernel.__name__] += 1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:
        kwargs, name = kwargs or {}, function._schema.name.removeprefix("aten::")
        given = _tensors((args, kwargs))
        on_device = [each for each in given if each.device == META]
        if not on_device and kwargs.get("device") != META:
            return function(*args, **kwargs)
        copied = len(on_device) < len(given) and name in ("copy_", "_to_copy")
        if len(on_device) < len(given) and not copied and name not in NUMBERS:
            raise AssertionError(f"{name}: a tensor of the host's is copied to the device, and the host waits")
        made_of_others = (_is_composite(function) or name == "index_put") and not copied
        if name == "index_put":  # autograd's way where a mode is on; it adds to its zeros in place where none is
            with self:
                result = torch.ops.aten._index_put_impl_.default(*args, unsafe=True, **kwargs)
        elif made_of_others:
            with self:
                # A key for which nothing has kernels of its own: those of all devices run, on meta tensors.
                result = function.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1), *args, **kwargs)
        else:
            result = function(*args, **kwargs)
        made = [each for each in _tensors(result) if each.device == META]
        self._hold(made, on_device)
        self.copies += copied
        if not (made_of_others or copied or name in ROOM or _is_view(function)) and any(each.numel() for each in made):
            self.ops[name] += 1
        within = WITHIN[name](*args, **kwargs) if name in WITHIN else 0
        if self.live + within > self.peak:
            self.peak, self.at = self.live + within, name
        return result

    def _hold(self, made: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        known = {each.untyped_storage()._cdata for each in given} | self._held.keys()
        for tensor in made:
            storage = tensor.untyped_storage()
            if storage._cdata not in known:
                key, size = storage._cdata, -(-storage.nbytes() // GRAIN) * GRAIN
                known.add(key)
                self.live += size
                self._held[key] = weakref.ref(storage, lambda _, key=key, size=size: self._let_go(key, size))

    def _let_go(self, key: int, size: int) -> None:
        del self._held[key]
        self.live -= size


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _is_view(function) -> bool:
    returns = function._schema.returns
    return bool(returns) and all(each.alias_info is not None and not each.alias_info.is_write for each in returns)


def _is_composite(function) -> bool:
    """Whether one kernel of torch's, which calls other operations, serves all devices."""
    name, has = function.name(), torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, "CPU") or "_foreach_" in name or _is_view(function):  # CUDA has kernels of its own for lists
        return False
    if name.startswith("aten::copy_"):  # what it is made of is no operation
        return False
    return has(name, "CompositeExplicitAutograd") or has(name, "CompositeExplicitAutogradNonFunctional")


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """torch's optimizers take the way that they take on CUDA: operations on lists of parameters."""
    devices = [*_foreach_utils._get_foreach_kernels_supported_devices(), "meta"]
    with (
        mock.patch.object(_foreach_utils, "_get_foreach_kernels_supported_devices", lambda: devices),
        mock.patch.object(optimizers, "_get_foreach_kernels_supported_devices", lambda: devices),
    ):
        yield


class MetaStreams(HostStreams):
    """Of a device whose memory costs nothing; staging buffers are the host's."""

    def empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype, device=META)
