"""The precision of torch's matrix products on a GPU, `compute.precision`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def products_on(device: torch.device, precision: str) -> AbstractContextManager:
    """Within the block, which takes forward and backward passes, products on a GPU have this precision. On a CPU, where
    a `Multiply` has it, nothing changes."""
    if device.type == "cpu" or precision == "float32":
        return nullcontext()
    return _tf32() if precision == "tf32" else RoundedProducts(device)


@contextmanager
def _tf32() -> Iterator[None]:
    """torch's flags are the process's: one thread at a time is in the block."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


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
