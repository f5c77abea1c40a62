"""How a step multiplies matrices: a callable that writes the product of two arrays into a third. Two libraries do, and
kernels with inputs in bfloat16.

Guarantees of all three:
- A product runs on the thread that calls it: NumPy's within `runtime.blas.one_thread_per_product`, torch's always.
- Its bits depend on the values, shapes and strides of its arguments, and not on their addresses if these are aligned
  (or differ from an aligned one by as much each time).
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from marius_oac.config.sections import ComputeConfig
from marius_oac.models.compute.rounded import ByBfloat16
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.runtime import blas

Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
"""Called with `left` [M, K], `right` [K, N] and `into` [M, N], or with [B, M, K], [B, K, N] and [B, M, N], all float32.
Each is in C order or the transpose of an array in C order, or some rows or columns of one; `into` is in C order."""

NUMPY, TORCH, BFLOAT16 = "numpy", "torch", "bfloat16"
_ZERO = np.float32(0)
_LEAD = 1.15
_ROUNDS, _FEWER_ROUNDS = 21, 9
_MUCH_WORK = 1 << 24  # multiplications of a product: its times differ less
_LARGEST = 512
_SAMPLE = 1 << 20  # multiplications of a sample: a smaller product is made several times, at most `_REPEATS`
_REPEATS = 32
_LEAST_WORK = 1 << 19  # below, what oneDNN does around a product takes longer than the product
_ONEDNN: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def by_numpy(left: np.ndarray, right: np.ndarray, into: np.ndarray) -> None:
    """A `Multiply` of NumPy's BLAS."""
    if left.shape[-1] == 1:  # NumPy asks no BLAS then, and takes six times as long
        np.multiply(left, right, out=into)
        into += _ZERO  # has no negative zeros then, as any sum that begins with zero
        return
    np.matmul(left, right, out=into)


def on_one_thread() -> None:
    """Has torch compute on one thread in this thread of a pool, for good; the thread that computes batches has so
    already, and restores its number."""
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def by_torch(left: np.ndarray, right: np.ndarray, into: np.ndarray) -> None:
    """A `Multiply` of torch's libraries: oneDNN, small ones by MKL, which has no AVX-512 on some processors.

    Batches of small matrices are NumPy's here, too: torch's take longer.
    """
    if left.ndim > 2:
        np.matmul(left, right, out=into)
        return
    on_one_thread()
    out, (rows, inner), columns = torch.from_numpy(into), left.shape, right.shape[1]
    if _ONEDNN is None or min(rows, inner, columns) < 2 or rows * inner * columns < _LEAST_WORK:
        torch.mm(torch.from_numpy(left), torch.from_numpy(right), out=out)
        return
    out.copy_(_ONEDNN(torch.from_numpy(left), torch.from_numpy(right.T), None, "none", [], ""))


_MULTIPLY: dict[str, Multiply] = {"auto": by_numpy, NUMPY: by_numpy, TORCH: by_torch}


def multiply_of(compute: ComputeConfig) -> Multiply:
    """The `Multiply` of a configuration. `compute.products: auto` is NumPy's: a new run has the faster library in its
    place, unless the run is made by its parts."""
    return ByBfloat16() if compute.precision == BFLOAT16 else _MULTIPLY[compute.products]


def kernels_of(compute: ComputeConfig) -> str:
    """Name of the kernels in use, such as `SkylakeX`, `torch AVX512`, or `bfloat16`."""
    if compute.precision == BFLOAT16:
        return BFLOAT16
    return f"torch {torch.backends.cpu.get_cpu_capability()}" if compute.products == TORCH else blas.kernels()


class Layer(NamedTuple):
    """The sizes of a linear layer, or of a tile of scores, where inputs are the dimension and outputs the
    candidates."""

    rows: int
    inputs: int
    outputs: int

    @property
    def work(self) -> int:
        """Multiplications of one of its products."""
        return self.rows * self.inputs * self.outputs


class Times(NamedTuple):
    """Seconds of the processor that the products of a layer take with each library."""

    numpy: float
    torch: float

    @property
    def ratio(self) -> float:
        """NumPy's time, in torch's."""
        return self.numpy / self.torch

    @property
    def faster(self) -> str:
        """The faster library: torch if it leads by more than 15 %, and NumPy's else, also where they are as fast as
        each other: which one a run has decides its bits, so it must not be a matter of chance."""
        return TORCH if self.ratio > _LEAD else NUMPY


@functools.cache
def times_of(layer: Layer) -> Times:
    """Measures the products of a layer, forward and backward; once in a process.

    The libraries take turns, and each has the median of its rounds, in time of this thread on the processor: what else
    the machine does at the moment changes neither.
    """
    times = _measured(layer, time.thread_time)
    return times if min(times) > 0 else _measured(layer, time.perf_counter)  # some sandboxes count in 10 ms


def _measured(layer: Layer, clock: Callable[[], float]) -> Times:
    rows, inputs, outputs = (min(size, _LARGEST) for size in layer)
    x, weight, y = (np.zeros(shape, np.float32) for shape in ((rows, inputs), (outputs, inputs), (rows, outputs)))
    # Forward, the gradient by the weight, and the one by the inputs.
    products = ((x, weight.T, np.empty_like(y)), (y.T, x, np.empty_like(weight)), (y, weight, np.empty_like(x)))
    work = rows * inputs * outputs
    repeats, rounds = max(1, min(_REPEATS, _SAMPLE // work)), _ROUNDS if work <= _MUCH_WORK else _FEWER_ROUNDS
    seconds: dict[str, list[float]] = {NUMPY: [], TORCH: []}

    def sample(library: str) -> float:
        began = clock()
        for _ in range(repeats):
            for product in products:
                _MULTIPLY[library](*product)
        return (clock() - began) / repeats

    with blas.one_thread_per_product(), torch_threads(1):
        for library in seconds:
            sample(library)  # which prepares kernels and memory
        for _ in range(rounds):
            for library, found in seconds.items():
                found.append(sample(library))
    return Times(*(statistics.median(seconds[library]) for library in (NUMPY, TORCH)))
