"""The precision of torch's matrix products, `compute.precision`, whatever the process has asked of torch.

torch's settings are the process's. `torch.set_float32_matmul_precision`, `allow_tf32`, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE
and cuDNN's default turn TF32 on for a GPU, and the first bfloat16 for a CPU, too.

Guarantees, for any number of threads:
- While threads are in blocks of a kind of device, its settings are those of the blocks. One that wants others
  meanwhile raises RuntimeError.
- When the last has left, each setting is what it was, or follows a more general one again.
- torch's older functions tell the precision of matrix products, inside and afterwards, where they did before. Only
  `torch.backends.cudnn.allow_tf32` can't be read inside where it differs: torch could not restore its default.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Setting = tuple[str, str]  # backend, operator

_GENERIC, _FOLLOWS, _IEEE, _TF32 = ("generic", "all"), "none", "ieee", "tf32"
_SAME = {_IEEE: (_IEEE, _FOLLOWS), _TF32: (_TF32,)}
"""What computes the same. An operator that follows settings of which none was made is IEEE's."""


@contextmanager
def products_on(device: torch.device, precision: str) -> Iterator[TorchFunctionMode | None]:
    """Within the block, which takes forward and backward passes, torch's products have this precision.

    Those on a CPU are float32; where a run has bfloat16 there, a `Multiply` makes them.
    """
    with _HELD["cpu"](_IEEE):
        if device.type == "cpu":
            yield None
            return
        with (
            _HELD["cuda"](_TF32 if precision == "tf32" else _IEEE),
            RoundedProducts(device) if precision == "bfloat16" else nullcontext() as mode,
        ):
            yield mode


class _Held:
    """torch's settings for one kind of device, while threads are in blocks of `products_on`."""

    def __init__(self, backend: str) -> None:
        self._every, self._operators = (backend, "all"), [(backend, name) for name in ("matmul", "conv", "rnn")]
        self._lock, self._threads, self._wanted = threading.Lock(), 0, ""
        self._before, self._older = dict[Setting, str](), ""

    @contextmanager
    def __call__(self, wanted: str) -> Iterator[None]:
        with self._lock:
            if self._threads and self._wanted != wanted:
                raise RuntimeError(f"products in {self._wanted} and in {wanted} at a time: torch has one setting")
            if not self._threads:
                self._wanted = wanted
                self._replace(wanted)
            self._threads += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._restore()

    def _replace(self, wanted: str) -> None:
        self._before, self._older = {}, ""
        now = {setting: _get(setting) for setting in self._operators}
        if all(value in _SAME[wanted] for value in now.values()):
            return
        before = self._before = {self._every: _own(self._every, _GENERIC, _get(_GENERIC))}
        matmul = self._operators[0]
        if self._every[0] == "cuda" and (now[matmul] == _TF32) != (wanted == _TF32):
            with suppress(RuntimeError):  # what was set contradicts itself, and so it stays
                self._older = torch.get_float32_matmul_precision()
            before[matmul] = _own(matmul, self._every, before[self._every])
            torch.backends.cuda.matmul.allow_tf32 = wanted == _TF32
        _set(self._every, wanted)
        for setting in self._operators:
            if (value := _get(setting)) != wanted:  # set by itself: the others follow
                before[setting] = value
                _set(setting, wanted)

    def _restore(self) -> None:
        if self._older:
            host, general = ("mkldnn", "matmul"), ("mkldnn", "all")
            kept = _own(host, general, _own(general, _GENERIC, _get(_GENERIC)))
            torch.set_float32_matmul_precision(self._older)
            _set(host, kept)
        for setting, own in self._before.items():
            _set(setting, own)


_HELD = {"cpu": _Held("mkldnn"), "cuda": _Held("cuda")}


def _get(setting: Setting) -> str:
    found: str = torch._C._get_fp32_precision_getter(*setting)  # that of the more general setting, where it follows it
    return found


def _set(setting: Setting, precision: str) -> None:
    # Not by `torch.backends`: there `mkldnn.fp32_precision = ...` sets the generic one (torch 2.13).
    torch._C._set_fp32_precision_setter(*setting, precision)


def _own(setting: Setting, general: Setting, of_general: str) -> str:
    """What was set, or `_FOLLOWS`, which torch doesn't tell: it shows when the general one is changed."""
    value = _get(setting)
    other = _IEEE if value == _TF32 else _TF32
    _set(general, other)
    follows = _get(setting) == other
    _set(general, of_general)
    return _FOLLOWS if follows else value


class RoundedProducts(TorchFunctionMode):
    """A torch mode in which products of float32 matrices, and their gradients, have bfloat16 inputs, by torch's
    autocast. Their results, which torch rounds too, are float32 again, so that everything else is float32."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _PRODUCTS:
            return func(*args, **kwargs)
        with torch.autocast(self._device.type, torch.bfloat16):
            found = func(*args, **kwargs)
        return found.float() if found.dtype == torch.bfloat16 else found


_PRODUCTS = frozenset(
    (functional.linear, functional.bilinear, functional.scaled_dot_product_attention, torch.matmul, torch.mm, torch.bmm,
     torch.mv, torch.addmm, torch.baddbmm, torch.einsum, torch.chain_matmul, Tensor.matmul, Tensor.mm, Tensor.bmm,
     Tensor.mv, Tensor.addmm, Tensor.baddbmm, Tensor.__matmul__, Tensor.__rmatmul__)
)  # fmt: skip
