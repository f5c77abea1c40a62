"""Runs a network's linear layers, batched products and rectifiers on a thread pool, with NumPy's products instead of
torch's.

torch's products on one thread would leave the other cores idle, and on several threads their bits depend on the number
of threads. NumPy's BLAS is at least as fast on one core (twice as fast on processors for which torch's MKL has no
kernels).

Guarantees:
- The bits depend on the arguments' values, not on the number of threads or the arguments' addresses: blocks depend only
  on shapes, a product runs on one thread (`blas.one_thread_per_product`), and its arguments are aligned.
- Tensors that are not float32 on the CPU are left to torch.
- With a scratch, results are in memory that is reused after the next `start`. Allocating it anew would take as much
  time as the rectifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from marius_oac.kernels.cpu import products as kernels
from marius_oac.models.compute.multiply import Multiply, by_numpy
from marius_oac.models.compute.pairs import PooledPairs, pairs_beside
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.tiles import blocks
from marius_oac.runtime.aligned import ALIGNMENT
from marius_oac.runtime.thread_pool import Shared, Task, ThreadPool

_BLOCK_ROWS = 512
_BLOCK_OUTPUTS = 128
_BLOCK_MATRICES = 256
_BLOCK_FLOATS = 1 << 17


class PooledProducts(TorchFunctionMode):
    """A torch mode in which a network's large operations run on `thread_pool`, in the thread that entered it.

    In the mode each operation of torch takes a few microseconds more. Code that knows the pool need not enter the mode:
    it calls `linear` and `relu` of this module. It is also a `thread_pool.Shared`.

    Args:
        thread_pool: runs the work.
        scratch: memory for results until the next `start`; None: they are in torch's memory.
        multiply: makes each product, on the thread that calls it.
    """

    def __init__(self, thread_pool: ThreadPool, scratch: Scratch | None, multiply: Multiply = by_numpy) -> None:
        super().__init__()
        self.multiply = multiply
        self.thread_pool, self._scratch, self._taken = thread_pool, scratch, 0

    def start(self) -> None:
        """Lets later results reuse the memory of earlier ones. Entering the mode does the same."""
        self._taken = 0

    def run(self, tasks: Sequence[Task]) -> None:
        """See `ThreadPool.run`."""
        self.thread_pool.run(tasks)

    def __enter__(self) -> PooledProducts:
        self.start()
        super().__enter__()
        return self

    def empty(self, *shape: int) -> Tensor:
        """An uninitialised float32 tensor for a result, valid until the next `start` if there is a scratch."""
        if self._scratch is None:
            return torch.empty(shape)
        self._taken += 1
        return torch.from_numpy(self._scratch.take(str(self._taken), *shape))

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = _OURS.get(func)
        if ours is not None:
            result = ours(self, *args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        shaped = input.dim() > 1 and weight.dim() == 2 and input.shape[-1] == weight.shape[1]
        shaped = shaped and (bias is None or bias.shape == weight.shape[:1])
        if not (shaped and all(_fits(each) for each in (input, weight, bias))):
            return None
        rows = input.reshape(-1, input.shape[-1])
        return _Linear.apply(self, bias, rows, weight).view(*input.shape[:-1], weight.shape[0])

    def _batched(self, input: Tensor, other: Tensor) -> Tensor | None:
        fits = _fits(input) and _fits(other) and input.dim() == other.dim() == 3
        if not (fits and input.shape[0] == other.shape[0] and input.shape[2] == other.shape[1]):
            return None
        return _Batched.apply(input, other, self)

    def _pairs(self, stacked: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor] | None:
        fits = _fits(stacked) and _fits(numbers) and stacked.is_contiguous() and numbers.is_contiguous()
        return PooledPairs.apply(self, stacked, numbers) if fits and not numbers.requires_grad else None

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        return None if inplace or not _fits(input) else _Relu.apply(input, self)


def linear(bias: Tensor | None, thread_pool: Shared | None, *pairs: Tensor) -> Tensor:
    """The sum of linear layers, [B, O]; on a pool if `thread_pool` is a `PooledProducts`, else by torch.

    Args:
        bias: [O] or None, of the first layer.
        pairs: input [B, I] and weight [O, I] of each layer.
    """
    if isinstance(thread_pool, PooledProducts) and all(map(_fits, pairs)):
        return _Linear.apply(thread_pool, bias, *pairs)
    linear = torch.nn.functional.linear
    total = linear(pairs[0], pairs[1], bias)
    for input, weight in zip(pairs[2::2], pairs[3::2], strict=True):
        total = total + linear(input, weight)
    return total


def relu(input: Tensor, thread_pool: Shared | None) -> Tensor:
    """torch.relu of any shape; on a pool if `thread_pool` is a `PooledProducts`."""
    found = thread_pool._relu(input) if isinstance(thread_pool, PooledProducts) else None
    return torch.relu(input) if found is None else found


# Functions, not bound methods: a mode that held its bound methods would keep its memory until garbage collection.
_OURS: dict[Callable, Callable] = {
    torch.nn.functional.linear: PooledProducts._linear,
    torch.nn.functional.relu: PooledProducts._relu,
    torch.relu: PooledProducts._relu,
    Tensor.relu: PooledProducts._relu,
    torch.bmm: PooledProducts._batched,
    Tensor.bmm: PooledProducts._batched,
    torch.matmul: PooledProducts._batched,
    Tensor.matmul: PooledProducts._batched,
    Tensor.__matmul__: PooledProducts._batched,
    pairs_beside: PooledProducts._pairs,
}


class _Linear(torch.autograd.Function):
    """The sum of each `x` [B, I] times its `weight` [O, I] transposed, plus `bias` [O] or None."""

    @staticmethod
    def forward(ctx: Any, mode: PooledProducts, bias: Tensor | None, *pairs: Tensor) -> Tensor:
        aligned = [_aligned(each) for each in pairs]
        ctx.save_for_backward(*aligned)
        ctx.mode = mode
        xs, weights = ([each.numpy() for each in aligned[start::2]] for start in (0, 1))
        shape = len(xs[0]), len(weights[0])
        y, *others = (mode.empty(*shape).numpy() for _ in xs)
        shared = ([weight.T for weight in weights], None if bias is None else _aligned(bias).numpy())
        cuts = blocks(0, len(y), _BLOCK_ROWS)
        add = partial(_add_products, mode.multiply)
        tasks = [partial(add, [x[a:b] for x in xs], *shared, y[a:b], [other[a:b] for other in others]) for a, b in cuts]
        mode.thread_pool.run(tasks)
        return torch.from_numpy(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        dy, (_, by_bias, *needed), tasks = _aligned(gradient).numpy(), ctx.needs_input_grad, []
        pairs, multiply = [tensor.numpy() for tensor in ctx.saved_tensors], ctx.mode.multiply
        found = [ctx.mode.empty(*each.shape) if asked else None for each, asked in zip(pairs, needed, strict=True)]
        total = ctx.mode.empty(dy.shape[1]) if by_bias else None
        for begin, end in blocks(0, dy.shape[1], _BLOCK_OUTPUTS):  # the longest tasks first
            part = dy[:, begin:end]
            for x, by_weight in zip(pairs[::2], found[1::2], strict=True):
                if by_weight is not None:
                    tasks.append(partial(_multiply, multiply, part.T, x, by_weight.numpy()[begin:end]))
            if total is not None:
                tasks.append(partial(kernels.add_up, part, total.numpy()[begin:end]))
        for by_x, weight in zip(found[::2], pairs[1::2], strict=True):
            if by_x is not None:
                for begin, end in blocks(0, len(dy), _BLOCK_ROWS):
                    tasks.append(partial(_multiply, multiply, dy[begin:end], weight, by_x.numpy()[begin:end]))
        ctx.mode.thread_pool.run(tasks)
        return None, total, *found


class _Batched(torch.autograd.Function):
    """`left` [B, I, J] times `right` [B, J, K], matrix by matrix."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, mode: PooledProducts) -> Tensor:
        left, right = _as_laid_out(left), _as_laid_out(right)
        ctx.save_for_backward(left, right)
        ctx.mode = mode
        return _multiply_each(mode, left.numpy(), right.numpy())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        left, right = (tensor.numpy().transpose(0, 2, 1) for tensor in ctx.saved_tensors)
        dy = _as_laid_out(gradient).numpy()
        by_left = _multiply_each(ctx.mode, dy, right) if ctx.needs_input_grad[0] else None
        by_right = _multiply_each(ctx.mode, left, dy) if ctx.needs_input_grad[1] else None
        return by_left, by_right, None


class _Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mode: PooledProducts) -> Tensor:
        x = _aligned(x)
        y = mode.empty(*x.shape)
        ctx.save_for_backward(y)
        ctx.mode = mode
        _by_parts(mode.thread_pool, kernels.rectify, x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        gradient, by_x = _aligned(gradient), ctx.mode.empty(*y.shape)
        _by_parts(ctx.mode.thread_pool, kernels.rectify_back, y, gradient, by_x)
        return by_x, None


def _fits(tensor: Tensor | None) -> bool:
    return tensor is None or (tensor.dtype == torch.float32 and tensor.device.type == "cpu")


def _aligned(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor


def _as_laid_out(tensor: Tensor) -> Tensor:
    """Aligned [B, I, J]. Transposed matrices stay transposed, which costs a product nothing."""
    flipped = tensor.transpose(1, 2)
    return _aligned(flipped).transpose(1, 2) if flipped.is_contiguous() else _aligned(tensor)


def _multiply_each(mode: PooledProducts, left: np.ndarray, right: np.ndarray) -> Tensor:
    y = mode.empty(left.shape[0], left.shape[1], right.shape[2])
    cuts = blocks(0, len(left), _BLOCK_MATRICES)
    mode.thread_pool.run([partial(_multiply, mode.multiply, left[a:b], right[a:b], y.numpy()[a:b]) for a, b in cuts])
    return y


def _by_parts(thread_pool: ThreadPool, kernel: Callable, *tensors: Tensor) -> None:
    flat = [tensor.numpy().reshape(-1) for tensor in tensors]
    cuts = blocks(0, flat[0].size, _BLOCK_FLOATS)
    thread_pool.run([partial(kernel, *(each[begin:end] for each in flat)) for begin, end in cuts])


@np.errstate(invalid="ignore", over="ignore")  # The pipeline reports a diverged loss, not NumPy.
def _multiply(multiply: Multiply, left: np.ndarray, right: np.ndarray, into: np.ndarray) -> None:
    multiply(left, right, into)


def _add_products(
    multiply: Multiply,
    lefts: Sequence[np.ndarray],
    rights: Sequence[np.ndarray],
    bias: np.ndarray | None,
    into: np.ndarray,
    others: Sequence[np.ndarray],
) -> None:
    """Writes the sum of the products and the bias to `into`. `others` is scratch for the products after the first."""
    _multiply(multiply, lefts[0], rights[0], into)
    if bias is not None:
        kernels.add_bias(into, bias)
    for left, right, product in zip(lefts[1:], rights[1:], others, strict=True):
        _multiply(multiply, left, right, product)
        kernels.add(into.reshape(-1), product.reshape(-1))
