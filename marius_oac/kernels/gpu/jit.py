"""Triton kernels are made by a decorator of this module, and launched by its `launch`.

With `TRITON_INTERPRET=1` in the environment before this module is imported, kernels run as Python on CPU tensors.

- `fp_fusion` is on, whatever Triton's default: a product and a sum may be fused, and the compiler decides that once.
  Sums are not reordered.
- Counts of a batch are `do_not_specialize`d: Triton would compile a kernel anew for those that are 1 or divide by 16.
- Tensors begin at multiples of 16 bytes whatever a batch's size, for the same reason. torch's own do; what is
  a part of one begins at such a multiple, too, or is named by its first row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import triton


class Launch(NamedTuple):
    """What is launched: the arguments in order, with the constants by name behind them."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    warps: int
    constants: dict[str, Any]


_lock = threading.Lock()
observers: list[Callable[[Launch], None]] = []
"""While there are any, launches are told to them and not made: for tensors without numbers, and to compile alone."""


def compiled(*counts: str) -> Callable[[Callable[..., Any]], Any]:
    """For kernels; `counts` are the names of arguments that vary from batch to batch."""
    return triton.jit(do_not_specialize=list(counts))


inlined = triton.jit
"""For functions that kernels call."""


def launch(kernel: Any, grid: Sequence[int], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Starts the kernel on the current stream, on a grid of up to three axes; does nothing if one of them is empty."""
    if not all(grid):
        return
    if observers:
        for observer in observers:
            observer(Launch(kernel, tuple(grid), arguments, warps, constants))
        return
    with _lock:  # Triton compiles what it has not seen, in the thread that asks
        kernel[tuple(grid)](*arguments, num_warps=warps, enable_fp_fusion=True, **constants)
