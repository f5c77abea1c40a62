"""Quantiles of the normal distribution, many at a time, with the same bits on every machine.

Only + - * / and the square root of float64 are used, in the order that is written, which round the same everywhere;
logarithm and quantile are implemented here because C libraries differ in the last bit. Loops without branches are
vectorised: each part of the range is computed for all numbers, or for those that lie in it, collected before.
"""

import numpy as np

from marius_oac.kernels.cpu.jit import allocating, pasted

_LN_2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_MANTISSA, _HALF_BITS, _EXPONENT_BITS, _HALF_EXPONENT = (1 << 52) - 1, 1022 << 52, 52, 1022

# Wichura, Algorithm AS 241 (PPND16), Applied Statistics 37, 1988: numerator and denominator, highest power first, near
# the centre and in the two parts of the tail.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


@pasted
def _power_series(c, x):
    return ((((((c[0] * x + c[1]) * x + c[2]) * x + c[3]) * x + c[4]) * x + c[5]) * x + c[6]) * x + c[7]


@allocating
def logarithms(numbers, out):
    """Fills in ln x, float64 [n], for 2**-1022 <= x < 1, to about 1e-15.

    For x = m * 2**e, with m from the square root of a half on, it is e ln 2 + 2 artanh((m - 1) / (m + 1)).
    """
    mantissas, exponents = np.empty(numbers.size), np.empty(numbers.size, np.int64)
    bits, into = numbers.view(np.int64), mantissas.view(np.int64)
    for i in range(numbers.size):
        exponents[i] = (bits[i] >> _EXPONENT_BITS) - _HALF_EXPONENT
        into[i] = (bits[i] & _MANTISSA) | _HALF_BITS
    for i in range(numbers.size):
        low = mantissas[i] < _SQRT_HALF
        m = 2.0 * mantissas[i] if low else mantissas[i]
        s = (m - 1.0) / (m + 1.0)
        square = s * s
        series = 0.0
        for power in range(21, 0, -2):
            series = series * square + 1.0 / power
        out[i] = (exponents[i] - low) * _LN_2 + 2.0 * s * series


@allocating
def quantiles(p, out):
    """Fills in the quantiles of the standard normal distribution, float64 [n], to about 1e-15 of their size.

    Args:
        p: float64 [n], 2**-1022 <= p < 1.
    """
    places, count = np.empty(p.size, np.int64), 0
    for i in range(p.size):
        q = p[i] - 0.5
        x = 0.180625 - q * q
        out[i] = q * (_power_series(_CENTRE[0], x) / _power_series(_CENTRE[1], x))
    for i in range(p.size):
        places[count] = i
        count += abs(p[i] - 0.5) > 0.425
    tails, logs = np.empty(count), np.empty(count)
    for k in range(count):
        at = p[places[k]]
        tails[k] = at if at < 0.5 else 1.0 - at
    logarithms(tails, logs)
    for k in range(count):
        logs[k] = np.sqrt(-logs[k])
        x = logs[k] - 1.6
        tails[k] = _power_series(_TAIL[0], x) / _power_series(_TAIL[1], x)
    for k in range(count):
        tail, x = tails[k], logs[k] - 5.0
        if logs[k] > 5.0:
            tail = _power_series(_FAR_TAIL[0], x) / _power_series(_FAR_TAIL[1], x)
        out[places[k]] = -tail if p[places[k]] < 0.5 else tail
