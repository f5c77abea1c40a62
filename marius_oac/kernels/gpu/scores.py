"""Scores of queries against candidates, their losses and the gradients, without an array of the scores.

As in FlashAttention (Dao et al., NeurIPS 2022) tiles of scores are computed, used and forgotten, and computed again for
the gradient: once by the program that owns some queries, once by the one that owns some candidates. So nothing is
added up by several programs at once.

Queries are those of S sides of B edges; S = 1: tails are replaced; S = 2: heads, then tails. The candidates of chunk c
on side s are the rows `negatives[s, c]`, or all rows (ALL), which are then one chunk of all sides. A candidate that is
the query's own end is left out.
"""

import triton.language as tl

from marius_oac.kernels.gpu.jit import compiled, inlined
from marius_oac.kernels.gpu.losses import begun, carried, coefficients, finished
from marius_oac.kernels.gpu.similarities import MODULI, pulled, scored
from marius_oac.kernels.gpu.tiles import loaded, stored


@inlined
def own_ends(heads, tails, queries, within, edges, SIDES: tl.constexpr):
    """The rows that queries, numbered through all sides, are about; -1 where not `within`."""
    if SIDES == 1:
        return tl.load(tails + queries, within, -1)
    first = queries < edges
    of_heads = tl.load(heads + queries, within & first, -1)
    of_tails = tl.load(tails + queries - edges, within & (queries >= edges), -1)
    return tl.where(first, of_heads, of_tails)


@inlined
def candidate_rows(negatives, base, places, within, ALL: tl.constexpr):
    """The rows of the candidates at `places`; -2 where not `within`."""
    if ALL:
        return tl.where(within, places, -2)
    return tl.load(negatives + base + places, within, -2)


@compiled("row_stride", "edges", "candidates", "tiles")
def query_gradients(
    rows, row_stride, queries, positives, heads, tails, negatives, bounds,
    by_queries, by_positives, losses, firsts, seconds,
    edges, candidates, tiles, scale, share, margin, temperature,
    LOSS: tl.constexpr, SIMILARITY: tl.constexpr, ALL: tl.constexpr, SIDES: tl.constexpr, PRECISION: tl.constexpr,
    DIMENSION: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Losses of queries, and the gradients by the queries' negative scores and by their positive scores.

    Grid: `tiles` of queries of each chunk, chunks, sides.

    Args:
        rows: float32 [n, row_stride].
        queries: float32 [S, B, D].
        positives: float32 [S, B], the scores of the own ends.
        heads, tails: int64 [B]. negatives: int64 [S, C, K]. bounds: int64 [C + 1], the edges of each chunk.
        by_queries: float32 [S, B, D], filled in, the sides in the order tails, heads if there are two: the gradients
            by queries are those that heads get as anchors, then those of tails.
        by_positives, losses, firsts, seconds: float32 [S, B], filled in; the last two are for `candidate_gradients`.
        scale: of an edge's loss in the batch's. share: of a negative in a mean. margin, temperature: of the loss.
    """
    TWO: tl.constexpr = SIMILARITY == MODULI
    side, chunk = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    begin, end = chunk * 0, edges + chunk * 0
    if not ALL:
        begin, end = tl.load(bounds + chunk), tl.load(bounds + chunk + 1)
    edge = begin + tl.program_id(0).to(tl.int64) * QUERIES + tl.arange(0, QUERIES)
    within = edge < end
    place = side * edges + edge
    columns = tl.arange(0, COLUMNS)
    q, q2 = loaded(queries, place, DIMENSION, within, columns, DIMENSION, TWO)
    positive = tl.load(positives + place, within, 0.0)
    own = own_ends(heads, tails, place, within, edges, SIDES)
    drawn = (side * tl.num_programs(1) + chunk) * candidates
    largest, weight, total = begun(positive, LOSS)
    for first_candidate in range(0, candidates, CANDIDATES):
        number = first_candidate + tl.arange(0, CANDIDATES).to(tl.int64)
        row = candidate_rows(negatives, drawn, number, number < candidates, ALL)
        c, c2 = loaded(rows, row, row_stride, row >= 0, columns, DIMENSION, TWO)
        scores = scored(q, q2, c, c2, SIMILARITY, PRECISION)
        keep = within[:, None] & (row >= 0)[None, :] & (row[None, :] != own[:, None])
        largest, weight, total = carried(scores, keep, positive, largest, weight, total, margin, temperature, LOSS)
    loss, by_positive, first, second = finished(positive, largest, weight, total, scale, share, margin, LOSS)
    tl.store(losses + place, loss, within)
    tl.store(by_positives + place, by_positive, within)
    tl.store(firsts + place, first, within)
    tl.store(seconds + place, second, within)
    sums, sums2 = q * 0.0, q2 * 0.0
    for first_candidate in range(0, candidates, CANDIDATES):
        number = first_candidate + tl.arange(0, CANDIDATES).to(tl.int64)
        row = candidate_rows(negatives, drawn, number, number < candidates, ALL)
        c, c2 = loaded(rows, row, row_stride, row >= 0, columns, DIMENSION, TWO)
        scores = scored(q, q2, c, c2, SIMILARITY, PRECISION)
        keep = within[:, None] & (row >= 0)[None, :] & (row[None, :] != own[:, None])
        g = coefficients(scores, keep, first, second, scale, share, margin, temperature, LOSS)
        sums, sums2 = pulled(g, scores, q, q2, c, c2, sums, sums2, 1, SIMILARITY, PRECISION)
    stored(by_queries, (SIDES - 1 - side) * edges + edge, within, columns, sums, sums2, DIMENSION, TWO)


@compiled("row_stride", "behind", "edges", "candidates", "chunks", "splits")
def candidate_gradients(
    rows, row_stride, queries, heads, tails, negatives, bounds, firsts, seconds, by_candidates, behind,
    edges, candidates, chunks, splits, scale, share, margin, temperature,
    LOSS: tl.constexpr, SIMILARITY: tl.constexpr, ALL: tl.constexpr, SIDES: tl.constexpr, PRECISION: tl.constexpr,
    DIMENSION: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    """Gradients by the candidates. Arguments are those of `query_gradients`.

    Grid: tiles of candidates, sides and chunks (ALL: 1), splits. Each split of a chunk's queries has an array of its
    own: `by_candidates` float32 [splits, S, C, K, D], or [splits, n, D], behind the first `behind` rows of its tensor,
    which begins where Triton expects one (`jit`).
    """
    TWO: tl.constexpr = SIMILARITY == MODULI
    group, split = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    begin, end = group * 0, SIDES * edges + group * 0
    if not ALL:
        side, chunk = group // chunks, group % chunks
        begin = side * edges + tl.load(bounds + chunk)
        end = side * edges + tl.load(bounds + chunk + 1)
    each = tl.cdiv(tl.cdiv(end - begin, QUERIES), splits) * QUERIES
    begin += split * each
    end = tl.minimum(end, begin + each)
    columns = tl.arange(0, COLUMNS)
    number = tl.program_id(0).to(tl.int64) * CANDIDATES + tl.arange(0, CANDIDATES)
    row = candidate_rows(negatives, group * candidates, number, number < candidates, ALL)
    c, c2 = loaded(rows, row, row_stride, row >= 0, columns, DIMENSION, TWO)
    sums, sums2 = c * 0.0, c2 * 0.0
    for first_query in range(begin, end, QUERIES):
        place = first_query + tl.arange(0, QUERIES).to(tl.int64)
        within = place < end
        q, q2 = loaded(queries, place, DIMENSION, within, columns, DIMENSION, TWO)
        own = own_ends(heads, tails, place, within, edges, SIDES)
        scores = scored(q, q2, c, c2, SIMILARITY, PRECISION)
        keep = within[:, None] & (row >= 0)[None, :] & (row[None, :] != own[:, None])
        first, second = tl.load(firsts + place, within, 0.0), tl.load(seconds + place, within, 0.0)
        g = coefficients(scores, keep, first, second, scale, share, margin, temperature, LOSS)
        sums, sums2 = pulled(g, scores, q, q2, c, c2, sums, sums2, 0, SIMILARITY, PRECISION)
    into = behind + (split * tl.num_programs(1) + group) * candidates + number
    stored(by_candidates, into, row >= 0, columns, sums, sums2, DIMENSION, TWO)
