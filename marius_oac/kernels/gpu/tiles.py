"""Tiles of vectors: [rows, columns], or two of them, the halves of each vector (TWO)."""

import triton.language as tl

from marius_oac.kernels.gpu.jit import inlined


@inlined
def loaded(base, places, stride, within, columns, DIMENSION: tl.constexpr, TWO: tl.constexpr):
    """The vectors of D floats at `places` [R], `stride` floats apart; 0 where not `within` [R], and beyond D."""
    at = base + places[:, None] * stride + columns[None, :]
    if TWO:
        mask = within[:, None] & (columns < DIMENSION // 2)[None, :]
        return tl.load(at, mask, 0.0), tl.load(at + DIMENSION // 2, mask, 0.0)
    tile = tl.load(at, within[:, None] & (columns < DIMENSION)[None, :], 0.0)
    return tile, tile


@inlined
def stored(base, places, within, columns, tile, tile2, DIMENSION: tl.constexpr, TWO: tl.constexpr):
    """Writes vectors, as `loaded` reads them, to an array [., D]."""
    at = base + places[:, None] * DIMENSION + columns[None, :]
    if TWO:
        mask = within[:, None] & (columns < DIMENSION // 2)[None, :]
        tl.store(at, tile, mask)
        tl.store(at + DIMENSION // 2, tile2, mask)
    else:
        tl.store(at, tile, within[:, None] & (columns < DIMENSION)[None, :])
