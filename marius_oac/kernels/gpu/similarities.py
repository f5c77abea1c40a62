"""Similarities of tiles of queries and tiles of candidates, and what pulls at each of them.

A vector is one tile, or two of them, real and imaginary parts, for complex moduli; elsewhere the second tile is not
looked at. Columns beyond the vectors are 0 in both tiles, and change nothing.
"""

import triton.language as tl

from marius_oac.kernels.cpu import decoders as cpu
from marius_oac.kernels.gpu.jit import inlined

INNER = tl.constexpr(cpu.INNER)
L1 = tl.constexpr(cpu.L1)
L2 = tl.constexpr(cpu.L2)
MODULI = tl.constexpr(cpu.MODULI)


@inlined
def multiplied(a, b, into, PRECISION: tl.constexpr):
    """The product of two tiles, added to `into` unless that is None. PRECISION: ieee, tf32, or bfloat16, to which both
    are rounded; sums are float32."""
    if PRECISION == "bfloat16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), into)
    else:  # which is not compiled where the condition holds, as what follows a return would be
        return tl.dot(a, b, into, input_precision=PRECISION)


@inlined
def scored(q, q2, c, c2, SIMILARITY: tl.constexpr, PRECISION: tl.constexpr):
    """Scores [R, K] of queries [R, D] and candidates [K, D]."""
    if SIMILARITY == INNER:
        return multiplied(q, tl.trans(c), None, PRECISION)
    d = q[:, None, :] - c[None, :, :]
    if SIMILARITY == L1:
        return -tl.sum(tl.abs(d), 2)
    if SIMILARITY == L2:
        return -tl.sqrt_rn(tl.sum(d * d, 2))
    e = q2[:, None, :] - c2[None, :, :]
    return -tl.sum(tl.sqrt_rn(d * d + e * e), 2)


@inlined
def pulled(g, scores, q, q2, c, c2, into, into2, AXIS: tl.constexpr, SIMILARITY: tl.constexpr, PRECISION: tl.constexpr):
    """Adds to `into` the gradient by the queries (AXIS 1: the candidates are summed up) or by the candidates (0).

    `g`, [R, K], are the gradients by the scores. Where a distance or a modulus is 0, its derivative is taken as 0.
    """
    if SIMILARITY == INNER:
        into = multiplied(g, c, into, PRECISION) if AXIS == 1 else multiplied(tl.trans(g), q, into, PRECISION)
        return into, into2
    # Scores are negative distances, and a candidate's difference has the other sign.
    sign = 2.0 * (1 - AXIS) - 1.0
    d = q[:, None, :] - c[None, :, :]
    if SIMILARITY == L1:
        return into + sign * tl.sum(g[:, :, None] * unit(d), AXIS), into2
    if SIMILARITY == L2:
        by_distance = ratio(g, -scores)
        return into + sign * tl.sum(by_distance[:, :, None] * d, AXIS), into2
    e = q2[:, None, :] - c2[None, :, :]
    modulus = tl.sqrt_rn(d * d + e * e)
    by_modulus = ratio(g[:, :, None], modulus)
    return into + sign * tl.sum(by_modulus * d, AXIS), into2 + sign * tl.sum(by_modulus * e, AXIS)


@inlined
def ratio(g, length):
    """g / length, and 0 where the length is."""
    return tl.where(length == 0.0, 0.0, g / tl.where(length == 0.0, 1.0, length))


@inlined
def unit(d):
    """-1, 0 or 1 by the sign."""
    return tl.where(d > 0.0, 1.0, tl.where(d < 0.0, -1.0, 0.0))


@inlined
def paired(q, q2, c, c2, SIMILARITY: tl.constexpr, TWO: tl.constexpr):
    """Scores [R] of queries [R, D] with one candidate each, [R, D]; TWO: vectors are two tiles for INNER, too."""
    if SIMILARITY == INNER:
        products = q * c
        if TWO:
            products += q2 * c2
        return tl.sum(products, 1)
    d = q - c
    if SIMILARITY == L1:
        return -tl.sum(tl.abs(d), 1)
    if SIMILARITY == L2:
        return -tl.sqrt_rn(tl.sum(d * d, 1))
    e = q2 - c2
    return -tl.sum(tl.sqrt_rn(d * d + e * e), 1)


@inlined
def pair_pulled(g, q, q2, c, c2, SIMILARITY: tl.constexpr):
    """Gradients by queries and candidates of `paired`, each as two tiles, of the gradients `g` by its scores, [R]."""
    if SIMILARITY == INNER:
        return g[:, None] * c, g[:, None] * c2, g[:, None] * q, g[:, None] * q2
    d = q - c
    if SIMILARITY == L1:
        by_query = -g[:, None] * unit(d)
        return by_query, c2, -by_query, q2
    if SIMILARITY == L2:
        distance = tl.sqrt_rn(tl.sum(d * d, 1))
        by_query = -ratio(g, distance)[:, None] * d
        return by_query, c2, -by_query, q2
    e = q2 - c2
    modulus = tl.sqrt_rn(d * d + e * e)
    by_modulus = -ratio(g[:, None], modulus)
    return by_modulus * d, by_modulus * e, -by_modulus * d, -by_modulus * e
