"""What reading a click log should give, in plain Python: one value after the other."""

import math

MISSING = -(2**63)
_MASK = 2**64 - 1
_P = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)


def _turn(value, bits, size=64):
    return ((value << bits) | (value >> (size - bits))) & (2**size - 1)


def _round(lane, value):
    return _turn((lane + value * _P[1]) & _MASK, 31) * _P[0] & _MASK


def xxh64(data):
    """XXH64 of bytes with seed 0, by its specification."""
    at = 0
    if len(data) >= 32:
        thread_pool = [(_P[0] + _P[1]) & _MASK, _P[1], 0, -_P[0] & _MASK]
        while at + 32 <= len(data):
            words = [int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little") for i in range(4)]
            thread_pool = [_round(lane, word) for lane, word in zip(thread_pool, words, strict=True)]
            at += 32
        state = sum(_turn(lane, bits) for lane, bits in zip(thread_pool, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in thread_pool:
            state = ((state ^ _round(0, lane)) * _P[0] + _P[3]) & _MASK
    else:
        state = _P[4]
    state = (state + len(data)) & _MASK
    while at + 8 <= len(data):
        state ^= _round(0, int.from_bytes(data[at : at + 8], "little"))
        state = (_turn(state, 27) * _P[0] + _P[3]) & _MASK
        at += 8
    if at + 4 <= len(data):
        state ^= int.from_bytes(data[at : at + 4], "little") * _P[0] & _MASK
        state = (_turn(state, 23) * _P[1] + _P[2]) & _MASK
        at += 4
    for byte in data[at:]:
        state = _turn(state ^ byte * _P[4] & _MASK, 11) * _P[0] & _MASK
    state = (state ^ state >> 33) * _P[1] & _MASK
    state = (state ^ state >> 29) * _P[2] & _MASK
    return state ^ state >> 32


def murmur32(data):
    """MurmurHash3_x86_32 of bytes with seed 0."""
    state, whole, mask = 0, len(data) // 4 * 4, 2**32 - 1

    def scrambled(value):
        return _turn(value * 0xCC9E2D51 & mask, 15, 32) * 0x1B873593 & mask

    for at in range(0, whole, 4):
        state = _turn(state ^ scrambled(int.from_bytes(data[at : at + 4], "little")), 13, 32)
        state = (state * 5 + 0xE6546B64) & mask
    if whole < len(data):
        state ^= scrambled(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    return state ^ state >> 16


def signed(bits):
    return bits - 2**64 if bits >= 2**63 else bits


def text_key(text):
    """(key, check) of a text, as auto and string features have them."""
    return (signed(xxh64(text.encode())), murmur32(text.encode())) if text else (MISSING, 0)


def hex_key(text):
    return signed(int(text, 16)) if text else MISSING


def bag(text, separator, limit, newest):
    """The pieces of a text that a bag (or, `newest`, a sequence) keeps."""
    pieces = text.split(separator) if text else []
    return pieces[-limit:] if newest else pieces[:limit]


def logged(x):
    return math.log(x) ** 2 if x > 2 else x
