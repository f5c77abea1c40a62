"""Sums of the gradients of each row, along an order of their places that was sorted before, and the rows' updates.

The places of row k are `places[first[k]:first[k + 1]]`. Blocks of `BLOCK` entries of `places` that lie within one row
are summed by a program each (`block_sums`); then the program of a row adds what lies before its first whole block, its
blocks, and what lies behind them (`update_rows`). So a row in a million places takes no program a million steps, and
the order of every sum is one of the places alone.
"""

import triton.language as tl

from marius_oac.kernels.cpu import row_updates as cpu
from marius_oac.kernels.gpu.jit import compiled, inlined

BLOCK = tl.constexpr(128)
PASS_THROUGH = tl.constexpr(cpu.PASS_THROUGH)
SGD = tl.constexpr(cpu.SGD)
ADAGRAD = tl.constexpr(cpu.ADAGRAD)
ROWWISE_ADAGRAD = tl.constexpr(cpu.ROWWISE_ADAGRAD)
_LARGEST = tl.constexpr(3.4028234663852886e38)


@inlined
def summed(parts, places, begin, end, columns, DIMENSION: tl.constexpr, TILE: tl.constexpr):
    """The sum [COLUMNS] of the vectors at `places[begin:end]`."""
    total = columns * 0.0
    for at in range(begin, end, TILE):
        entry = at + tl.arange(0, TILE).to(tl.int64)
        place = tl.load(places + entry, entry < end, 0)
        mask = (entry < end)[:, None] & (columns < DIMENSION)[None, :]
        total += tl.sum(tl.load(parts + place[:, None] * DIMENSION + columns[None, :], mask, 0.0), 0)
    return total


@compiled("rows")
def block_sums(
    parts, places, first, sums, rows, DIMENSION: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Sums of the blocks that lie within one row. Grid: whole blocks.

    Args:
        parts: float32 [P, D]. places: int64 [P]. first: int64 [rows + 1], ascending, from 0 to P.
        sums: float32 [P // BLOCK, D]; those of blocks within one row are filled in.
    """
    block = tl.program_id(0).to(tl.int64)
    begin, end = block * BLOCK, (block + 1) * BLOCK
    low, high = begin * 0, begin * 0 + rows  # the row is the last one whose places begin at or before the block
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(first + middle) <= begin
        low, high = tl.where(before, middle, low), tl.where(before, high, middle)
    if tl.load(first + low + 1) >= end:
        columns = tl.arange(0, COLUMNS)
        total = summed(parts, places, begin, end, columns, DIMENSION, TILE)
        tl.store(sums + block * DIMENSION + columns, total, columns < DIMENSION)


@inlined
def updated(
    value, at, g, inside, rate, epsilon, beta1, beta2, correction1, correction2,
    RULE: tl.constexpr, DIMENSION: tl.constexpr,
):  # fmt: skip
    """The new values of a row whose state lies at `at`, which is updated, and whether the state is finite."""
    sound = g == g
    if RULE == PASS_THROUGH:
        value = g
    elif RULE == SGD:
        value -= rate * g
    elif RULE == ADAGRAD:
        total = tl.load(at, inside, 0.0) + g * g
        tl.store(at, total, inside)
        value -= tl.div_rn(rate * g, tl.sqrt_rn(total) + epsilon)
        sound = total <= _LARGEST
    elif RULE == ROWWISE_ADAGRAD:
        # The state is one float, which all columns hold.
        start = at - tl.arange(0, g.shape[0])
        total = tl.load(start) + tl.div_rn(tl.sum(g * g, 0), DIMENSION * 1.0)
        tl.store(start, total, tl.arange(0, g.shape[0]) == 0)
        value -= tl.div_rn(rate, tl.sqrt_rn(total) + epsilon) * g
        sound = total <= _LARGEST
    else:
        m = beta1 * tl.load(at, inside, 0.0) + (1.0 - beta1) * g
        v = beta2 * tl.load(at + DIMENSION, inside, 0.0) + (1.0 - beta2) * g * g
        tl.store(at, m, inside)
        tl.store(at + DIMENSION, v, inside)
        value -= tl.div_rn(rate * (m * correction1), tl.sqrt_rn(v * correction2) + epsilon)
        sound = (tl.abs(m) <= _LARGEST) & (v <= _LARGEST)
    return value, sound


@compiled("row_stride", "rate", "epsilon", "beta1", "beta2", "correction1", "correction2", "largest", "decay")
def update_rows(
    parts, places, first, sums, rows, row_stride, picks, told,
    rate, epsilon, beta1, beta2, correction1, correction2, largest, decay,
    RULE: tl.constexpr, PICKED: tl.constexpr, TOLD: tl.constexpr,
    DIMENSION: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Sums up the gradients of each row and updates it in place. Grid: the rows that have places.

    Args: as `block_sums`, whose `sums` are read, and
        rows: float32 [., row_stride], `value | state`; row k is row `picks[k]` if PICKED.
        picks: int64 [n].
        told: float32; its first number becomes NaN if TOLD and a new row is not sound: a value beyond `largest`, a
            state that is not finite.
        decay: times a row's value is added to its gradient.
        rate, epsilon, beta1, beta2, correction1, correction2: of the row optimizer; see `kernels.cpu.row_updates`.
    """
    number = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    inside = columns < DIMENSION
    begin, end = tl.load(first + number), tl.load(first + number + 1)
    whole, behind = (begin + BLOCK - 1) // BLOCK, end // BLOCK
    g = summed(parts, places, begin, tl.minimum(end, whole * BLOCK), columns, DIMENSION, TILE)
    for at in range(whole, behind, TILE):
        block = at + tl.arange(0, TILE).to(tl.int64)
        mask = (block < behind)[:, None] & inside[None, :]
        g += tl.sum(tl.load(sums + block[:, None] * DIMENSION + columns[None, :], mask, 0.0), 0)
    g += summed(parts, places, tl.maximum(whole, behind) * BLOCK, end, columns, DIMENSION, TILE)
    row = number
    if PICKED:
        row = tl.load(picks + number)
    at = rows + row * row_stride + columns
    value = tl.load(at, inside, 0.0)
    value, sound = updated(
        value, at + DIMENSION, g + decay * value, inside, rate, epsilon, beta1, beta2, correction1, correction2,
        RULE, DIMENSION,
    )  # fmt: skip
    tl.store(at, value, inside)
    if TOLD:
        wrong = tl.where((tl.abs(value) <= largest) & sound, 0, 1)
        if tl.max(tl.where(inside, wrong, 0), 0) > 0:  # every program that writes writes the same
            tl.store(told, float("nan"))
