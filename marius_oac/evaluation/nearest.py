"""The rows of a table that are most similar to one of them, by the cosine of their angle."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marius_oac.errors import MariusOacError
from marius_oac.runtime.progress import Progress
from marius_oac.storage.snapshots import RowArray

_COPIES = 4  # of a block in float64: as they are read, scaled, and products while they are summed


class Neighbor(NamedTuple):
    """An entity, or a value of a click log's column, and the cosine similarity of its embedding, from -1 to 1."""

    name: str
    similarity: float


def nearest_rows(
    table: RowArray, row: int, count: int, memory: int, among: np.ndarray | None = None, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The rows, int64 [n], most similar to `row`, without it, and their cosine similarities, float64 [n]: the most
    similar first, equal ones by their numbers; n is `count`, or less in a small table. A row of zeros has similarity 0.

    Each row is computed by itself in float64, so that the numbers do not depend on the size of a block.

    Args:
        table: float32 [N, D].
        memory: MiB to use.
        among: the rows to compare, ascending, int64 [M]; None: all.
        width: so many floats of a row are compared, from the first on; None: all.

    Raises:
        MariusOacError: a row holds NaN or an infinite number.
    """
    num_rows, floats = len(table) if among is None else len(among), table.shape[1]
    step = max(1, int((memory << 20) / (8 * _COPIES * max(1, floats))))
    query = _scaled(np.asarray(table[row : row + 1])[:, :width])[0]
    rows, similarities = np.empty(0, np.int64), np.empty(0)
    with Progress("comparing", "rows", num_rows) as progress:
        for first in range(0, num_rows, step):
            last = min(first + step, num_rows)
            numbers = np.arange(first, last) if among is None else among[first:last]
            block = _scaled(np.asarray(table[slice(first, last) if among is None else numbers])[:, :width])
            block *= query
            found = block.sum(axis=1)
            found, numbers = found[numbers != row], numbers[numbers != row]
            if len(found) > count:
                kept = found >= -np.partition(-found, count - 1)[count - 1]
                found, numbers = found[kept], numbers[kept]
            rows, similarities = np.concatenate((rows, numbers)), np.concatenate((similarities, found))
            order = np.lexsort((rows, -similarities))[:count]
            rows, similarities = rows[order], similarities[order]
            progress.add(len(block))
    return rows, similarities


def _scaled(rows: np.ndarray) -> np.ndarray:
    """Rows, float32 [n, D], as float64 of length 1; those of zeros stay so."""
    scaled = rows.astype(np.float64)
    lengths = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    if not np.isfinite(lengths).all():
        raise MariusOacError("an embedding holds NaN or an infinite number")
    lengths[lengths == 0] = 1.0
    scaled /= lengths
    return scaled
