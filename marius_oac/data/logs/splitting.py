"""Texts in pieces: kernels over Arrow's buffers of strings, which are given as for `fingerprints`."""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled


def trimmed(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The starts and ends, int64 [n] each, of texts (as for `fingerprints`) without blanks and tabs around them, and
    without the zeros after the point of a whole number: 69 of " 69.0"."""
    first, last = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    _trim(text, starts, ends, first, last)
    return first, last


def split_lists(
    text: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Splits texts (as for `fingerprints`) that are lists as Python and JSON write them: [2, 12], ['a', "b, c"]; or
    in ( ) or { }. An empty list has no pieces. Brackets may be missing. Returns as `split_texts`."""
    offsets, nothing = np.zeros(len(starts) + 1, np.int64), np.empty(0, np.int64)
    _lists(text, starts, ends, offsets, nothing, nothing)
    first, last = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
    _lists(text, starts, ends, offsets, first, last)
    return text, first, last, offsets


def split_texts(
    text: np.ndarray, starts: np.ndarray, ends: np.ndarray, separator: bytes
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Splits texts (as for `fingerprints`) at separators. An empty text has no pieces; "a||" has three, two of them
    empty.

    Returns:
        text, and the starts and ends of the pieces, int64 [v] each; and the offsets of each text's pieces,
        int64 [n + 1].
    """
    mark = np.frombuffer(separator, np.uint8)
    offsets = np.zeros(len(starts) + 1, np.int64)
    _count_pieces(text, starts, ends, mark, offsets)
    first, last = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
    _find_pieces(text, starts, ends, mark, first, last)
    return text, first, last, offsets


def cut_bags(offsets: np.ndarray, limit: int, newest: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Limits bags with these offsets, int64 [n + 1], to their first `limit` values, or to their last if `newest`.

    Returns:
        the indices of the values that remain, int64 [v]; their offsets, int64 [n + 1]; how many values were removed.
    """
    lengths = np.diff(offsets)
    kept = np.minimum(lengths, limit)
    cut = int((lengths - kept).sum())
    if not cut:
        return np.arange(offsets[-1]), offsets, 0
    shortened = np.zeros(len(offsets), np.int64)
    np.cumsum(kept, out=shortened[1:])
    starts = offsets[:-1] + (lengths - kept if newest else 0)
    return np.arange(shortened[-1]) + np.repeat(starts - shortened[:-1], kept), shortened, cut


@compiled
def _stripped(text: np.ndarray, start: int, end: int) -> tuple[int, int]:
    while start < end and (text[start] == 32 or text[start] == 9):
        start += 1
    while end > start and (text[end - 1] == 32 or text[end - 1] == 9):
        end -= 1
    return start, end


@compiled
def _trim(text: np.ndarray, starts: np.ndarray, ends: np.ndarray, first: np.ndarray, last: np.ndarray) -> None:
    for i in range(starts.size):
        start, end = _stripped(text, starts[i], ends[i])
        first[i], last[i] = start, end
        point = end
        while point > start and text[point - 1] == 48:
            point -= 1
        point -= 1
        if point > start and point < end - 1 and text[point] == 46:
            at = start + (text[start] == 45 or text[start] == 43)
            digits = at < point
            while at < point:
                digits = digits and 48 <= text[at] <= 57
                at += 1
            if digits:
                last[i] = point


@compiled
def _lists(
    text: np.ndarray, starts: np.ndarray, ends: np.ndarray, offsets: np.ndarray, first: np.ndarray, last: np.ndarray
) -> None:
    """Counts the pieces, into `offsets`; or, if there is room, writes where they begin and end."""
    piece = 0
    for i in range(starts.size):
        start, end = _stripped(text, starts[i], ends[i])
        if end - start > 1:
            opening, closing = text[start], text[end - 1]
            pair = (
                opening == 91 and closing == 93 or opening == 40 and closing == 41 or opening == 123 and closing == 125
            )
            start, end = _stripped(text, start + pair, end - pair)
        at = start
        while start < end:
            quote, begun = 0, False  # a quote only opens at a piece's start
            at = start
            while at < end and (quote or text[at] != 44):
                if text[at] == 92:
                    at += 1
                elif quote:
                    if text[at] == quote:
                        quote = 0
                elif not begun and (text[at] == 34 or text[at] == 39):
                    quote = text[at]
                begun = begun or (text[at] != 32 and text[at] != 9) if at < end else begun
                at += 1
            at = min(at, end)
            if first.size:
                left, right = _stripped(text, start, at)
                if right - left > 1 and text[left] == text[right - 1] and (text[left] == 34 or text[left] == 39):
                    left, right = left + 1, right - 1
                first[piece], last[piece] = left, right
            piece += 1
            start = at + 1
        if not first.size:
            offsets[i + 1] = piece


@compiled
def _stands_at(text: np.ndarray, at: int, end: int, mark: np.ndarray) -> bool:
    if at + mark.size > end:
        return False
    for i in range(mark.size):  # noqa: SIM110 (Numba compiles no generators into all())
        if text[at + i] != mark[i]:
            return False
    return True


@compiled
def _count_pieces(
    text: np.ndarray, starts: np.ndarray, ends: np.ndarray, mark: np.ndarray, offsets: np.ndarray
) -> None:
    for i in range(starts.size):
        pieces = 1 if ends[i] > starts[i] else 0
        at = starts[i]
        while at < ends[i]:
            if _stands_at(text, at, ends[i], mark):
                pieces += 1
                at += mark.size
            else:
                at += 1
        offsets[i + 1] = offsets[i] + pieces


@compiled
def _find_pieces(
    text: np.ndarray, starts: np.ndarray, ends: np.ndarray, mark: np.ndarray, first: np.ndarray, last: np.ndarray
) -> None:
    piece = 0
    for i in range(starts.size):
        if starts[i] == ends[i]:
            continue
        at = starts[i]
        first[piece] = at
        while at < ends[i]:
            if _stands_at(text, at, ends[i], mark):
                last[piece] = at
                piece += 1
                at += mark.size
                first[piece] = at
            else:
                at += 1
        last[piece] = ends[i]
        piece += 1
