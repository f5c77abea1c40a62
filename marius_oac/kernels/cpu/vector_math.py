"""float32 functions that LLVM vectorises: arithmetic only, no calls, no branches.

`exp` is Cephes' expf (S. Moshier): x = k ln 2 + r, a polynomial of degree 6 for e^r, and 2^k put together from bits.
`log1p_unit` is a polynomial fitted at the Chebyshev points of [0, 1]. Errors, held by tests over all of the range:

| function | range | error |
|---|---|---|
| `exp` | [-87.3, 88] | relative 1.2e-7; 0 below the range, NaN of NaN; above 88 not defined |
| `log1p_unit` | [0, 1] | relative 2.5e-7 |
| `softplus` | every float | relative 4e-7, or below 1.2e-38 |
| `sigmoid` | every float | relative 4e-7, or below 1.2e-38 |
"""

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from marius_oac.kernels.cpu.jit import float_inlined

if config.DISABLE_JIT:

    def bits_of(value):
        return np.float32(value).view(np.int32)

    def float_of(bits):
        return np.int32(bits).view(np.float32)

    def fma(x, y, z):
        return np.float32(np.float64(x) * np.float64(y) + np.float64(z))

else:

    @intrinsic
    def bits_of(typing_context, value):
        """The bits of a float32 as an int32."""

        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], ir.IntType(32))

        return types.int32(types.float32), generate

    @intrinsic
    def float_of(typing_context, bits):
        """The float32 that has these bits, an int32."""

        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], ir.FloatType())

        return types.float32(types.int32), generate

    @intrinsic
    def fma(typing_context, x, y, z):
        """x y + z of float32, rounded once: written, as the compiler may not fuse by itself."""

        def generate(context, builder, signature, arguments):
            return builder.fma(*arguments)

        return types.float32(types.float32, types.float32, types.float32), generate


_ONE, _ZERO = np.float32(1), np.float32(0)
_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # Their sum is ln 2; the first has few bits.
_LOWEST = np.float32(-87.3)  # e^x is still a normal number.
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
_E0 = np.float32(5.0000001201e-1)
_E1 = np.float32(1.6666665459e-1)
_E2 = np.float32(4.1665795894e-2)
_E3 = np.float32(8.3334519073e-3)
_E4 = np.float32(1.3981999507e-3)
_E5 = np.float32(1.9875691500e-4)
# log(1 + e) = e P(e)
_L0 = np.float32(-3.1760570184e-3)
_L1 = np.float32(1.9542527261e-2)
_L2 = np.float32(-5.6373612830e-2)
_L3 = np.float32(1.0543623795e-1)
_L4 = np.float32(-1.5269667074e-1)
_L5 = np.float32(1.9663274257e-1)
_L6 = np.float32(-2.4951616263e-1)
_L7 = np.float32(3.3329710499e-1)
_L8 = np.float32(-4.9999892648e-1)
_L9 = np.float32(1)
_BIAS, _MANTISSA_BITS = np.int32(127), np.int32(23)


@float_inlined
def exp(x):
    """e^x of a float32; 0 below -87.3."""
    shifted = fma(x, _LOG2_E, _ROUND)
    k = shifted - _ROUND
    r = fma(-k, _LN2_HIGH, x)
    r = fma(-k, _LN2_LOW, r)
    p = fma(_E5, r, _E4)
    p = fma(p, r, _E3)
    p = fma(p, r, _E2)
    p = fma(p, r, _E1)
    p = fma(p, r, _E0)
    p = fma(p, r * r, r) + _ONE
    # A product, not a sum of bits: NaN stays NaN.
    y = p * float_of((bits_of(shifted) + _BIAS) << _MANTISSA_BITS)
    return _ZERO if x < _LOWEST else y


@float_inlined
def log1p_unit(e):
    """log(1 + e) of a float32 in [0, 1]."""
    p = fma(_L0, e, _L1)
    p = fma(p, e, _L2)
    p = fma(p, e, _L3)
    p = fma(p, e, _L4)
    p = fma(p, e, _L5)
    p = fma(p, e, _L6)
    p = fma(p, e, _L7)
    p = fma(p, e, _L8)
    p = fma(p, e, _L9)
    return p * e


@float_inlined
def softplus(x):
    """log(1 + e^x) of a float32."""
    magnitude = -x if x < _ZERO else x
    return log1p_unit(exp(-magnitude)) + (_ZERO if x < _ZERO else x)


@float_inlined
def sigmoid(x):
    """1 / (1 + e^-x) of a float32."""
    magnitude = -x if x < _ZERO else x
    e = exp(-magnitude)
    return (e if x < _ZERO else _ONE) / (_ONE + e)
