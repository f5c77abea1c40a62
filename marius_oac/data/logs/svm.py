"""Parses lines of libsvm's and libFM's format, `label id:1 id:1 ...  # comment`, into arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from marius_oac.data.logs.place import Place
from marius_oac.kernels.cpu.jit import compiled

_LABEL, _ID, _VALUE, _FIELD, _COMMENT = 1, 2, 3, 4, 5
_NO_LABEL = 2.0
_WRONG = {
    _LABEL: "the label {!r} is neither 0, 1 nor -1",
    _ID: "{!r} is not id:1, with an id in [0, 2**63)",
    _VALUE: "the value of {!r} is not 1 (weights are not supported)",
    _FIELD: "{!r} is field:id:value of libffm, which is not read: leave out the fields",
    _COMMENT: "a comment on a line of its own, {!r}, is not read: leave it out",
}


def parse_svm(block: np.ndarray, path: Path, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parses whole lines, each with its line break. Blank lines are skipped.

    Args:
        block: uint8, the lines.
        path, rows: the file, and the row number, from 0, of each line that isn't blank, int64 [n], for messages.

    Returns:
        labels float64 [n], 0, 1 or -1, ids int64 [v] and offsets int64 [n + 1] of each example's ids.

    Raises:
        InputError: a line is no label followed by id:1.
    """
    lines = int(np.count_nonzero((block == 10) | (block == 13)))
    labels, ids = np.empty(lines), np.empty(int(np.count_nonzero(block == 58)), np.int64)
    offsets = np.zeros(lines + 1, np.int64)
    done, values, wrong, first, last = _parse(block, labels, ids, offsets)
    if wrong:
        found = block[first:last].tobytes().decode("utf-8", "replace")[:80]
        raise Place(path, rows, header=0).wrong(done, _WRONG[wrong].format(found))
    return labels[:done], ids[:values], offsets[: done + 1]


@compiled
def _unit(text: np.ndarray, at: int, end: int) -> int | np.int64:
    """0 or 1 if text[at:end] is that number (also +1, 1.00), else -1."""
    if at < end and text[at] == 43:
        at += 1
    if at == end or not 48 <= text[at] <= 49:
        return -1
    number = np.int64(text[at]) - 48
    at += 1
    if at < end and text[at] == 46:
        at += 1
        while at < end and text[at] == 48:
            at += 1
    return number if at == end else -1


@compiled
def _label(text: np.ndarray, at: int, end: int) -> float:
    """0, 1 or -1 if text[at:end] is that number, else `_NO_LABEL`."""
    negative = at < end and text[at] == 45
    found = _unit(text, at + 1 if negative else at, end)
    if found < 0 or negative and (found == 0 or text[at + 1] == 43):
        return _NO_LABEL
    return -float(found) if negative else float(found)


@compiled
def _id(text: np.ndarray, at: int, end: int) -> int | np.int64:
    """The integer in text[at:end], or -1."""
    if at == end:
        return -1
    value, largest = np.int64(0), np.int64((1 << 63) - 1)
    for i in range(at, end):
        digit = np.int64(text[i]) - 48
        if digit < 0 or digit > 9 or value > (largest - digit) // 10:
            return -1
        value = value * 10 + digit
    return value


@compiled
def _parse(
    text: np.ndarray, labels: np.ndarray, ids: np.ndarray, offsets: np.ndarray
) -> tuple[int, int, int, int, int]:
    """Returns (examples, ids, 0, 0, 0), or (examples before the wrong one, ids, what is wrong, its first byte, its
    end)."""
    row, values, at, size = 0, 0, 0, text.size
    inside = False  # after a line's label
    while at < size:
        byte = text[at]
        if byte == 32 or byte == 9:
            at += 1
            continue
        if byte == 10 or byte == 13:
            if inside:
                row += 1
                offsets[row] = values
            inside = False
            at += 1
            continue
        if byte == 35:  # a comment
            first = at
            while at < size and text[at] != 10 and text[at] != 13:
                at += 1
            if not inside:
                return row, values, _COMMENT, first, at
            continue
        first, colon, colons = at, -1, 0
        while at < size and text[at] != 32 and text[at] != 9 and text[at] != 10 and text[at] != 13:
            if text[at] == 58:
                colon = at if colon < 0 else colon
                colons += 1
            at += 1
        if not inside:
            labels[row] = _label(text, first, at)
            if labels[row] == _NO_LABEL:
                return row, values, _LABEL, first, at
            inside = True
            continue
        if colons == 2:
            return row, values, _FIELD, first, at
        found = _id(text, first, colon) if colon >= 0 else -1
        if found < 0:
            return row, values, _ID, first, at
        if _unit(text, colon + 1, at) != 1:
            return row, values, _VALUE, first, at
        ids[values] = found
        values += 1
    return row, values, 0, 0, 0
