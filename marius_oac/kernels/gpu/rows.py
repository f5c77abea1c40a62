"""What is done to the rows of a batch beside its step: validation, and the look whether they are sound."""

import triton.language as tl

from marius_oac.kernels.gpu.jit import compiled


@compiled("newer_count", "newer_timestamp", "count", "width", "newer_stride", "stride")
def replace_older(
    newer_rows, newer_values, newer_stride, newer_timestamp, newer_count,
    rows, timestamps, values, stride, count, width, replaced, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Copies newer values over the rows that both hold and whose timestamp is smaller; reads and writes no others.
    Grid: tiles of rows.

    Args:
        newer_rows: int64 [newer_count], rows: int64 [count], sorted and unique.
        newer_values: float32 [newer_count, width], rows `newer_stride` apart. values: float32 [count, width], `stride`.
        timestamps: int64 [count].
        replaced: int64, to which the number of replaced rows is added. Integers have one sum, whatever the order.
    """
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    within = number < count
    row, timestamp = tl.load(rows + number, within, -1), tl.load(timestamps + number, within, newer_timestamp)
    asked = timestamp < newer_timestamp
    low, high = number * 0, number * 0 + newer_count  # the place of the row is below `high`, at `low` or above
    left = newer_count
    while left > 0:
        middle = (low + high) // 2
        smaller = (middle < newer_count) & (tl.load(newer_rows + middle, asked & (middle < newer_count), row) < row)
        open_ = low < high
        low = tl.where(open_ & smaller, middle + 1, low)
        high = tl.where(open_ & (smaller == 0), middle, high)
        left = left // 2
    hit = asked & (low < newer_count) & (tl.load(newer_rows + low, asked & (low < newer_count), -2) == row)
    tl.store(timestamps + number, timestamp * 0 + newer_timestamp, hit)
    for begin in range(0, width, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        mask = hit[:, None] & (columns < width)[None, :]
        newer = tl.load(newer_values + low[:, None] * newer_stride + columns[None, :], mask, 0.0)
        tl.store(values + number[:, None] * stride + columns[None, :], newer, mask)
    found = tl.sum(tl.where(hit, 1, 0), 0)
    if found > 0:
        tl.atomic_add(replaced, found.to(tl.int64))


@compiled("count", "dimension", "width", "stride", "largest")
def look(rows, stride, count, dimension, width, sound, largest, other, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Makes `sound`, a byte, 0 if a value is beyond `largest` or NaN, or a float of a state beyond `other`. Grid: tiles
    of rows float32 [count, width], values of `dimension` floats first."""
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    wrong = number * 0
    for begin in range(0, width, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        mask = (number < count)[:, None] & (columns < width)[None, :]
        found = tl.load(rows + number[:, None] * stride + columns[None, :], mask, 0.0)
        most = tl.where(columns < dimension, largest, other)
        wrong = tl.maximum(wrong, tl.max(tl.where(tl.abs(found) <= most[None, :], 0, 1), 1))
    if tl.max(wrong, 0) > 0:  # every program that writes writes the same
        tl.store(sound, tl.max(wrong, 0) * 0)
