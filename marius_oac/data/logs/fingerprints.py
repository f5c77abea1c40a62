"""Keys of texts: kernels over Arrow's buffers of strings.

A text's key is its XXH64 with seed 0 (Collet, "xxHash fast digest algorithm", version 0.1.1, section "XXH64"), read as
int64. Its check is MurmurHash3_x86_32 with seed 0 (Appleby, public domain), an unrelated function. The probability that
any two of 10^9 texts share a key is 1/37; they then share the check too with probability 2^-32.

Kernels use uint64 throughout. In an expression of uint64 and int64, Numba and NumPy would both convert to float64.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import wrapping

MISSING = -(2**63)
"""The key of an empty value or null."""

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_LOW = np.uint64(0xFFFFFFFF)
_C1 = np.uint64(0xCC9E2D51)
_C2 = np.uint64(0x1B873593)
_MISSING_BITS = np.uint64(1 << 63)


@wrapping
def fingerprints(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The keys, int64 [n], and checks, uint32 [n], of texts. An empty text has the key MISSING and the check 0.

    Args:
        text: uint8, the bytes of all texts.
        starts, ends: int64 [n] each; text i is text[starts[i]:ends[i]].
    """
    keys, checks = np.empty(len(starts), np.int64), np.empty(len(starts), np.uint32)
    _fingerprints(text, starts, ends, keys.view(np.uint64), checks)
    return keys, checks


@wrapping
def integers(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """Parses texts (as for `fingerprints`) as integers in [-2**63 + 1, 2**64) except 2**63: an optional sign and
    digits.

    Returns:
        the integers' bits, int64 [n], MISSING for an empty text; and the index of the first text that is no such
        integer, -1 if there is none.
    """
    keys = np.empty(len(starts), np.int64)
    return keys, int(_integers(text, starts, ends, keys.view(np.uint64)))


@wrapping
def hexadecimals(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, int]:
    """Parses texts (as for `fingerprints`) as 1 to 16 hexadecimal digits, with or without "0x".

    Returns:
        int64 [n] of the same bits, MISSING for an empty text; and the index of the first text that is no such number or
        is 2**63 (the bits of MISSING), -1 if there is none.
    """
    keys = np.empty(len(starts), np.int64)
    return keys, int(_hexadecimals(text, starts, ends, keys.view(np.uint64)))


@wrapping
def count_lines(data: np.ndarray, inside: bool) -> tuple[int, bool]:
    """The number of lines that end in `data`, uint8 [n], except blank ones, and whether `data` ends within a line.

    Args:
        inside: whether `data` begins within a line.
    """
    lines, inside = _count_lines(data, inside)
    return int(lines), bool(inside)


@compiled
def _load(text, at, count):
    """The little-endian number of `count` bytes."""
    value = np.uint64(0)
    for i in range(count):
        value |= np.uint64(text[at + i]) << np.uint64(8 * i)
    return value


@compiled
def _load8(text, at):
    # Without a loop, so that the compiler makes one load of it.
    return (
        np.uint64(text[at])
        | np.uint64(text[at + 1]) << np.uint64(8)
        | np.uint64(text[at + 2]) << np.uint64(16)
        | np.uint64(text[at + 3]) << np.uint64(24)
        | np.uint64(text[at + 4]) << np.uint64(32)
        | np.uint64(text[at + 5]) << np.uint64(40)
        | np.uint64(text[at + 6]) << np.uint64(48)
        | np.uint64(text[at + 7]) << np.uint64(56)
    )


@compiled
def _turn(value, bits):
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


@compiled
def _round(lane, value):
    return _turn(lane + value * _P2, 31) * _P1


@compiled
def _merge(state, lane):
    return (state ^ _round(np.uint64(0), lane)) * _P1 + _P4


@compiled
def xxh64(text, start, end):
    """XXH64 of text[start:end], seed 0, as uint64."""
    at = start
    if end - start >= 32:
        a, b, c, d = _P1 + _P2, _P2, np.uint64(0), np.uint64(0) - _P1
        while at + 32 <= end:
            a = _round(a, _load8(text, at))
            b = _round(b, _load8(text, at + 8))
            c = _round(c, _load8(text, at + 16))
            d = _round(d, _load8(text, at + 24))
            at += 32
        state = _turn(a, 1) + _turn(b, 7) + _turn(c, 12) + _turn(d, 18)
        state = _merge(_merge(_merge(_merge(state, a), b), c), d)
    else:
        state = _P5
    state += np.uint64(end - start)
    while at + 8 <= end:
        state = _turn(state ^ _round(np.uint64(0), _load8(text, at)), 27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        state = _turn(state ^ _load(text, at, 4) * _P1, 23) * _P2 + _P3
        at += 4
    while at < end:
        state = _turn(state ^ np.uint64(text[at]) * _P5, 11) * _P1
        at += 1
    state = (state ^ state >> np.uint64(33)) * _P2
    state = (state ^ state >> np.uint64(29)) * _P3
    return state ^ state >> np.uint64(32)


@compiled
def _turn32(value, bits):
    return (value << np.uint64(bits) | value >> np.uint64(32 - bits)) & _LOW


@compiled
def murmur32(text, start, end):
    """MurmurHash3_x86_32 of text[start:end], seed 0, as uint64."""
    state, at = np.uint64(0), start
    while at + 4 <= end:
        block = _turn32(_load(text, at, 4) * _C1 & _LOW, 15) * _C2 & _LOW
        state = (_turn32(state ^ block, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & _LOW
        at += 4
    if at < end:
        state ^= _turn32(_load(text, at, end - at) * _C1 & _LOW, 15) * _C2 & _LOW
    state ^= np.uint64(end - start) & _LOW
    state = (state ^ state >> np.uint64(16)) * np.uint64(0x85EBCA6B) & _LOW
    state = (state ^ state >> np.uint64(13)) * np.uint64(0xC2B2AE35) & _LOW
    return state ^ state >> np.uint64(16)


@compiled
def _fingerprints(text, starts, ends, keys, checks):
    for i in range(starts.size):
        if starts[i] == ends[i]:
            keys[i], checks[i] = _MISSING_BITS, 0
            continue
        key = xxh64(text, starts[i], ends[i])
        # The fingerprint that equals MISSING is replaced by the next one. The check distinguishes these two texts.
        keys[i] = key if key != _MISSING_BITS else key + np.uint64(1)
        checks[i] = np.uint32(murmur32(text, starts[i], ends[i]))


@compiled
def _integers(text, starts, ends, keys):
    largest, every = np.uint64((1 << 63) - 1), ~np.uint64(0)
    for i in range(starts.size):
        at, end = starts[i], ends[i]
        if at == end:
            keys[i] = _MISSING_BITS
            continue
        negative = text[at] == 45
        if negative or text[at] == 43:
            at += 1
        if at == end:
            return i
        value = np.uint64(0)
        most = largest if negative else every
        while at < end:
            digit = np.uint64(text[at]) - np.uint64(48)
            if digit > np.uint64(9) or value > (most - digit) // np.uint64(10):
                return i
            value = value * np.uint64(10) + digit
            at += 1
        if value == _MISSING_BITS:
            return i
        keys[i] = np.uint64(0) - value if negative else value
    return -1


@compiled
def _hexadecimals(text, starts, ends, keys):
    for i in range(starts.size):
        at, end = starts[i], ends[i]
        if at == end:
            keys[i] = _MISSING_BITS
            continue
        if end - at > 2 and text[at] == 48 and (text[at + 1] == 120 or text[at + 1] == 88):
            at += 2
        if end - at > 16:
            return i
        value = np.uint64(0)
        while at < end:
            byte = text[at]
            if 48 <= byte <= 57:
                digit = byte - 48
            elif 97 <= byte <= 102:
                digit = byte - 87
            elif 65 <= byte <= 70:
                digit = byte - 55
            else:
                return i
            value = value << np.uint64(4) | np.uint64(digit)
            at += 1
        if value == _MISSING_BITS:
            return i
        keys[i] = value
    return -1


@compiled
def _count_lines(data, inside):
    lines = 0
    for i in range(data.size):
        end = data[i] == 10 or data[i] == 13
        lines += inside and end
        inside = not end
    return lines, inside
