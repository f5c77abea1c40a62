"""What is done for each edge: the queries before candidates are scored, and the gradients of its ends after.

A decoder is a form (how anchor and relation make the query) and a similarity, with the codes of `kernels.cpu.decoders`.
Vectors of complex forms are two tiles, real and imaginary parts; elsewhere the second tile is not looked at.
"""

import triton.language as tl

from marius_oac.kernels.cpu import decoders as cpu
from marius_oac.kernels.cpu import edges as cpu_edges
from marius_oac.kernels.gpu.jit import compiled, inlined
from marius_oac.kernels.gpu.similarities import pair_pulled, paired
from marius_oac.kernels.gpu.tiles import loaded, stored

PLAIN = tl.constexpr(cpu.PLAIN)
PRODUCT = tl.constexpr(cpu.PRODUCT)
COMPLEX_PRODUCT = tl.constexpr(cpu.COMPLEX_PRODUCT)
NO_PENALTY = tl.constexpr(cpu_edges.NO_PENALTY)
SQUARES = tl.constexpr(cpu_edges.SQUARES)
CUBES = tl.constexpr(cpu_edges.CUBES)


@inlined
def relation_of(
    table, stride, relations, relation_rows, edge, within, columns,
    FORM: tl.constexpr, PHASES: tl.constexpr, DIMENSION: tl.constexpr,
):  # fmt: skip
    """The relation of each edge as the form wants it, and its values as the table has them; zeros where there is
    none."""
    if FORM == PLAIN:
        nothing = edge[:, None] * 0.0 + columns[None, :] * 0.0
        return nothing, nothing, nothing, nothing
    row = tl.load(relation_rows + tl.load(relations + edge, within, 0), within, 0)
    if PHASES:
        phase, _ = loaded(table, row, stride, within, columns, DIMENSION // 2, False)
        return tl.cos(phase), tl.sin(phase), phase, phase
    r, r2 = loaded(table, row, stride, within, columns, DIMENSION, FORM == COMPLEX_PRODUCT)
    return r, r2, r, r2


@inlined
def formed(a, a2, r, r2, sign, FORM: tl.constexpr):
    """Queries of anchors and relations; `sign` is 1 for candidates that are tails, -1 for heads."""
    if FORM == PLAIN:
        return a, a2
    if FORM == PRODUCT:
        return a * r, a2
    if FORM == COMPLEX_PRODUCT:
        return a * r - sign * (a2 * r2), a2 * r + sign * (a * r2)
    return a + sign * r, a2


@inlined
def by_anchor(g, g2, r, r2, sign, FORM: tl.constexpr):
    """Gradients by the anchors of those by the queries."""
    if FORM == PRODUCT:
        return g * r, g2
    if FORM == COMPLEX_PRODUCT:
        return g * r + sign * (g2 * r2), g2 * r - sign * (g * r2)
    return g, g2


@inlined
def by_relation(g, g2, a, a2, sign, FORM: tl.constexpr):
    """Gradients by the relations, as the form has them, of those by the queries."""
    if FORM == PRODUCT:
        return g * a, g2
    if FORM == COMPLEX_PRODUCT:
        return g * a + g2 * a2, sign * (g2 * a - g * a2)
    return sign * g, g2


@inlined
def penalized(x, x2, PENALTY: tl.constexpr, TWO: tl.constexpr):
    """Penalties f(x) [R], and their derivatives as tiles; see `models.link_prediction.regularizers`."""
    if PENALTY == SQUARES:
        f, d, d2 = x * x, 2.0 * x, 2.0 * x2
        if TWO:
            f += x2 * x2
    elif PENALTY == CUBES:
        f, d, d2 = x * x * tl.abs(x), 3.0 * x * tl.abs(x), 3.0 * x2 * tl.abs(x2)
        if TWO:
            f += x2 * x2 * tl.abs(x2)
    else:
        modulus = tl.sqrt_rn(x * x + x2 * x2)
        f, d, d2 = modulus * modulus * modulus, 3.0 * modulus * x, 3.0 * modulus * x2
    return tl.sum(f, 1), d, d2


@compiled("row_stride", "table_stride", "edges")
def queries(
    rows, row_stride, table, table_stride, heads, tails, relations, relation_rows, into, positives, edges,
    FORM: tl.constexpr, SIMILARITY: tl.constexpr, PHASES: tl.constexpr, SIDES: tl.constexpr,
    DIMENSION: tl.constexpr, COLUMNS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Forms the queries and scores the edges' own ends. Grid: tiles of edges, sides.

    Args:
        rows: float32 [n, row_stride]. table: float32 [R, table_stride], all relations.
        heads, tails, relations: int64 [B], the last ones indices into `relation_rows`, int64 [m].
        into: float32 [S, B, D], filled in. positives: float32 [S, B], filled in.
    """
    TWO: tl.constexpr = FORM == COMPLEX_PRODUCT
    side = tl.program_id(1).to(tl.int64)
    edge = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    within, columns = edge < edges, tl.arange(0, COLUMNS)
    of_tails = side == SIDES - 1
    head, tail = tl.load(heads + edge, within, 0), tl.load(tails + edge, within, 0)
    a, a2 = loaded(rows, tl.where(of_tails, head, tail), row_stride, within, columns, DIMENSION, TWO)
    c, c2 = loaded(rows, tl.where(of_tails, tail, head), row_stride, within, columns, DIMENSION, TWO)
    r, r2, _, _ = relation_of(
        table, table_stride, relations, relation_rows, edge, within, columns, FORM, PHASES, DIMENSION
    )
    q, q2 = formed(a, a2, r, r2, tl.where(of_tails, 1.0, -1.0), FORM)
    stored(into, side * edges + edge, within, columns, q, q2, DIMENSION, TWO)
    tl.store(positives + side * edges + edge, paired(q, q2, c, c2, SIMILARITY, TWO), within)


@compiled("row_stride", "table_stride", "edges")
def end_gradients(
    rows, row_stride, table, table_stride, heads, tails, relations, relation_rows, queries, by_positives,
    parts, relation_parts, losses, edges, penalty, weight,
    FORM: tl.constexpr, SIMILARITY: tl.constexpr, PHASES: tl.constexpr, SIDES: tl.constexpr,
    PENALTY: tl.constexpr,
    DIMENSION: tl.constexpr, COLUMNS: tl.constexpr, EDGES: tl.constexpr,
):  # fmt: skip
    """Turns the gradients by queries into those by heads, tails and relations. Grid: tiles of edges.

    Args: as `queries`, and
        queries: float32 [S, B, D]. by_positives: float32 [S, B].
        parts: float32 [2 B, D]: holds the gradients by the queries whose anchors are the heads, then by those whose
            anchors are the tails (S = 1: nothing); becomes the gradients by heads, then by tails.
        relation_parts: float32 [B, Dr], filled in with the gradients by the relations.
        losses: float32 [S, B]; `penalty` times the penalty of an edge is added to the first side's.
        weight: of a penalty's derivative.
    """
    TWO: tl.constexpr = FORM == COMPLEX_PRODUCT
    edge = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    within, columns = edge < edges, tl.arange(0, COLUMNS)
    h, h2 = loaded(rows, tl.load(heads + edge, within, 0), row_stride, within, columns, DIMENSION, TWO)
    t, t2 = loaded(rows, tl.load(tails + edge, within, 0), row_stride, within, columns, DIMENSION, TWO)
    r, r2, given, given2 = relation_of(
        table, table_stride, relations, relation_rows, edge, within, columns, FORM, PHASES, DIMENSION
    )
    # Tails are replaced: the head is the anchor.
    place = (SIDES - 1) * edges + edge
    q, q2 = loaded(queries, place, DIMENSION, within, columns, DIMENSION, TWO)
    g, g2 = loaded(parts, edge, DIMENSION, within, columns, DIMENSION, TWO)
    positive = tl.load(by_positives + place, within, 0.0)
    more, more2, by_t, by_t2 = pair_pulled(positive, q, q2, t, t2, SIMILARITY)
    g, g2 = g + more, g2 + more2
    by_h, by_h2 = by_anchor(g, g2, r, r2, 1.0, FORM)
    by_r, by_r2 = by_relation(g, g2, h, h2, 1.0, FORM)
    if SIDES == 2:  # heads are replaced: the tail is the anchor
        q, q2 = loaded(queries, edge, DIMENSION, within, columns, DIMENSION, TWO)
        g, g2 = loaded(parts, edges + edge, DIMENSION, within, columns, DIMENSION, TWO)
        positive = tl.load(by_positives + edge, within, 0.0)
        more, more2, target, target2 = pair_pulled(positive, q, q2, h, h2, SIMILARITY)
        g, g2 = g + more, g2 + more2
        by_h, by_h2 = by_h + target, by_h2 + target2
        anchor, anchor2 = by_anchor(g, g2, r, r2, -1.0, FORM)
        by_t, by_t2 = by_t + anchor, by_t2 + anchor2
        related, related2 = by_relation(g, g2, t, t2, -1.0, FORM)
        by_r, by_r2 = by_r + related, by_r2 + related2
    if PHASES:
        by_r = r * by_r2 - r2 * by_r
    if PENALTY != NO_PENALTY:
        f, d, d2 = penalized(h, h2, PENALTY, TWO)
        by_h, by_h2 = by_h + weight * d, by_h2 + weight * d2
        f_tail, d, d2 = penalized(t, t2, PENALTY, TWO)
        by_t, by_t2 = by_t + weight * d, by_t2 + weight * d2
        f += f_tail
        if FORM != PLAIN:
            f_relation, d, d2 = penalized(given, given2, PENALTY, TWO and not PHASES)
            by_r, by_r2 = by_r + weight * d, by_r2 + weight * d2
            f += f_relation
        tl.store(losses + edge, tl.load(losses + edge, within, 0.0) + penalty * f, within)
    stored(parts, edge, within, columns, by_h, by_h2, DIMENSION, TWO)
    stored(parts, edges + edge, within, columns, by_t, by_t2, DIMENSION, TWO)
    if PHASES:
        stored(relation_parts, edge, within, columns, by_r, by_r, DIMENSION // 2, False)
    elif FORM != PLAIN:
        stored(relation_parts, edge, within, columns, by_r, by_r2, DIMENSION, TWO)
