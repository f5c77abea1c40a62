"""Sums of floats in a written order: term k goes to lane k % 32, then halves of the lanes are added (a tree).

The terms of a lane are added in their order, from 0 on. So a sum has the same bits with any Python, LLVM and width of
vectors. A sum that the compiler may reorder (`reassoc`) has not: Python 3.11 and 3.12 gave other bits, and so did
processors with and without AVX-512. Here the vectors are in the code and need no permission; they take the time that
reordered sums took (benchmarks/graphs/written_sums.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils, errors
from numba.extending import intrinsic

from marius_oac.kernels.cpu.jit import float_inlined

LANES = 32
BLOCK = 256
"""Floats of `floats`, a multiple of `LANES`."""
_INT, _SIZE, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_VECTOR, _BITS = ir.VectorType(_FLOAT, LANES), ir.VectorType(ir.IntType(1), LANES)
_BYTES = 4


class _Vector:
    """float32 [LANES] in a register, with the operators of arrays that terms are made of."""

    def __init__(self, builder: Any, value: Any):
        self.builder, self.value = builder, value

    def __add__(self, other: _Vector) -> _Vector:
        return _Vector(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: _Vector) -> _Vector:
        return _Vector(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: _Vector) -> _Vector:
        return _Vector(self.builder, self.builder.fmul(self.value, other.value))

    def __abs__(self) -> _Vector:
        return self._called("fabs")

    def sqrt(self) -> _Vector:
        return self._called("sqrt")

    def fma(self, other: _Vector, third: _Vector) -> _Vector:
        return self._called("fma", other, third)

    def _called(self, name: str, *more: _Vector) -> _Vector:
        values = [self.value, *(each.value for each in more)]
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(values))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.{name}.v{LANES}f32")
        return _Vector(self.builder, self.builder.call(function, values))


def _fma(x: Any, y: Any, z: Any) -> Any:
    """x y + z, rounded once."""
    if isinstance(x, _Vector):
        return x.fma(y, z)
    return (x.astype(np.float64) * y + z).astype(np.float32)


def _sum_of(step: Callable[..., Any]) -> Callable[[Any], Any]:
    """Returns a function for kernels: a sum over arrays, given as a tuple of float32 [n]. `step` is given the lanes and
    the next floats of each array, and returns the lanes with their terms added; those of zeros must be zero."""
    if config.DISABLE_JIT:
        return lambda arrays: _in_lanes(step, arrays)

    @intrinsic
    def summed(typing_context: Any, arrays: Any) -> Any:
        if any(kind.layout != "C" or kind.ndim != 1 or kind.dtype != types.float32 for kind in arrays):
            raise errors.TypingError(f"sums are over float32 [n], contiguous, not {arrays}")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            parts = [builder.extract_value(arguments[0], number) for number in range(len(arrays))]
            made = [context.make_array(kind)(context, builder, part) for kind, part in zip(arrays, parts, strict=True)]
            count = builder.extract_value(made[0].shape, 0)
            return _tree(builder, _lanes(builder, [each.data for each in made], count, step))

        return types.float32(arrays), generate

    return summed


def _in_lanes(step: Callable[..., Any], arrays: Sequence[np.ndarray]) -> np.float32:
    lanes, padding = np.zeros(LANES, np.float32), -arrays[0].size % LANES
    for parts in zip(*(np.pad(each, (0, padding)).reshape(-1, LANES) for each in arrays), strict=True):
        lanes = step(lanes, *parts)
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return lanes[0]


def _lanes(builder: Any, arrays: list[Any], count: Any, step: Callable[..., Any]) -> Any:
    """Adds up whole vectors in a loop, then the rest, with zeros beyond `count`."""

    def added(lanes: Any, loaded: list[Any]) -> Any:
        return step(*(_Vector(builder, each) for each in (lanes, *loaded))).value

    zeros, before, whole = ir.Constant(_VECTOR, [0.0] * LANES), builder.block, builder.and_(count, _SIZE(-LANES))
    loop, after, rest, end = (builder.append_basic_block(name) for name in ("sum", "summed", "rest", "end"))
    builder.cbranch(builder.icmp_signed(">", whole, _SIZE(0)), loop, after)

    builder.position_at_end(loop)
    at, lanes = builder.phi(_SIZE), builder.phi(_VECTOR)
    loaded = [builder.load(_pointer(builder, array, at), align=_BYTES) for array in arrays]
    more = added(lanes, loaded)
    following = builder.add(at, _SIZE(LANES))
    for phi, first, then in ((at, _SIZE(0), following), (lanes, zeros, more)):
        phi.add_incoming(first, before)
        phi.add_incoming(then, loop)
    builder.cbranch(builder.icmp_signed("<", following, whole), loop, after)

    builder.position_at_end(after)
    summed = builder.phi(_VECTOR)
    summed.add_incoming(zeros, before)
    summed.add_incoming(more, loop)
    builder.cbranch(builder.icmp_signed("<", whole, count), rest, end)

    builder.position_at_end(rest)
    mask = _mask(builder, builder.sub(count, whole))
    last = added(summed, [_masked_load(builder, _pointer(builder, array, whole), mask) for array in arrays])
    builder.branch(end)

    builder.position_at_end(end)
    found = builder.phi(_VECTOR)
    found.add_incoming(summed, after)
    found.add_incoming(last, rest)
    return found


def _pointer(builder: Any, array: Any, at: Any) -> Any:
    return builder.bitcast(builder.gep(array, [at]), _VECTOR.as_pointer())


def _mask(builder: Any, count: Any) -> Any:
    """The first `count` lanes."""
    kind = ir.VectorType(_INT, LANES)
    nothing, zeros = ir.Constant(kind, ir.Undefined), ir.Constant(kind, [0] * LANES)
    first = builder.insert_element(nothing, builder.trunc(count, _INT), _INT(0))
    return builder.icmp_signed(
        "<", ir.Constant(kind, list(range(LANES))), builder.shuffle_vector(first, nothing, zeros)
    )


def _masked_load(builder: Any, pointer: Any, mask: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR.as_pointer(), _INT, _BITS, _VECTOR])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.masked.load.v{LANES}f32.p0")
    return builder.call(function, [pointer, _INT(_BYTES), mask, ir.Constant(_VECTOR, [0.0] * LANES)])


def _tree(builder: Any, lanes: Any) -> Any:
    width = LANES
    while width > 1:
        width //= 2
        kind = ir.VectorType(_INT, width)
        halves = [ir.Constant(kind, list(range(first, first + width))) for first in (0, width)]
        lanes = builder.fadd(*(builder.shuffle_vector(lanes, lanes, half) for half in halves))
    return builder.extract_element(lanes, _INT(0))


if config.DISABLE_JIT:

    def floats() -> np.ndarray:
        return np.empty(BLOCK, np.float32)

else:

    @intrinsic
    def floats(typing_context: Any) -> Any:
        """float32 [BLOCK] on the stack, the same at each call of one place: for terms, before they are added up."""
        kind = types.Array(types.float32, 1, "C")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = cgutils.alloca_once(builder, ir.ArrayType(_FLOAT, BLOCK))
            array = context.make_array(kind)(context, builder)
            array.data = builder.bitcast(place, array.data.type)
            array.shape = cgutils.pack_array(builder, [_SIZE(BLOCK)])
            array.strides = cgutils.pack_array(builder, [_SIZE(_BYTES)])
            array.itemsize, array.nitems = _SIZE(_BYTES), _SIZE(BLOCK)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            array.parent = cgutils.get_null_value(array.parent.type)
            return array._getvalue()

        return kind(), generate


def _modulus(x: Any, y: Any) -> Any:
    return np.sqrt(_fma(x, x, y * y))


def _add_squares(lanes: Any, difference: Any) -> Any:
    return _fma(difference, difference, lanes)


_total = _sum_of(lambda lanes, x: lanes + x)
_dot = _sum_of(lambda lanes, x, y: _fma(x, y, lanes))
_absolute = _sum_of(lambda lanes, x, y: lanes + abs(x - y))
_squares = _sum_of(lambda lanes, x, y: _add_squares(lanes, x - y))
_moduli = _sum_of(lambda lanes, a, b, c, d: lanes + _modulus(a - c, b - d))
_cubes = _sum_of(lambda lanes, x: _fma(x * x, abs(x), lanes))
_cubed_moduli = _sum_of(lambda lanes, a, b: _fma(_fma(a, a, b * b), _modulus(a, b), lanes))


@float_inlined
def total(x):
    """The sum of x, float32 [n]."""
    return _total((x,))


@float_inlined
def dot(x, y):
    """The sum of x y, float32 [n] each."""
    return _dot((x, y))


@float_inlined
def absolute_differences(x, y):
    """The sum of |x - y|, float32 [n] each."""
    return _absolute((x, y))


@float_inlined
def squared_differences(x, y):
    """The sum of (x - y)^2, float32 [n] each."""
    return _squares((x, y))


@float_inlined
def moduli_of_differences(x, y):
    """The sum of |x - y| of complex numbers, float32 [2 n] each: real parts, then imaginary ones."""
    half = x.size // 2
    return _moduli((x[:half], x[half : 2 * half], y[:half], y[half : 2 * half]))


@float_inlined
def cubes(x):
    """The sum of |x|^3, float32 [n]."""
    return _cubes((x,))


@float_inlined
def cubed_moduli(x):
    """The sum of |x|^3 of complex numbers, float32 [2 n]: real parts, then imaginary ones."""
    half = x.size // 2
    return _cubed_moduli((x[:half], x[half : 2 * half]))
