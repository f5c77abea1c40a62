"""Su et al. as they write it: lists, dicts and float64; gradients are kept until a step has enough of them.

The paper's t_i = floor(i / K) is floor(i / M); a row's staleness is that of its tag before the step; a row whose
gradients were all excluded is not updated and keeps its tag.
"""

import math
from dataclasses import dataclass, field

import numpy as np


def token(i: int, capacity: int) -> int:
    """Section 4.1: of the i-th batch of the data list."""
    return i // capacity


def decay(mode, staleness: int) -> float:
    """Eq. 1 and its two relatives; modes other than gba know none."""
    if mode.kind != "gba" or staleness <= 0:
        return 1.0
    if mode.decay == "threshold":
        return 0.0 if staleness > mode.threshold else 1.0
    if mode.decay == "polynomial":
        return 1 / (1 + staleness) ** mode.power
    return math.exp(staleness * math.log(mode.rate))


@dataclass
class Pushed:
    token: int
    dense: np.ndarray | None  # None: a place that nothing came for
    rows: dict[int, np.ndarray]


@dataclass
class NaiveBuffer:
    """Algorithm 2, lines 14 to 24, of one shard."""

    mode: object
    dense_size: int
    step: int = 0
    tags: dict[int, int] = field(default_factory=dict)
    buffer: list[Pushed] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    late: list[Pushed] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    row_staleness: list[int] = field(default_factory=list)

    def push(self, batch, token, dense, rows):
        """The averages of a finished step, dense float64 [n] and rows {row: float64 [D]}, or None."""
        assert batch not in self.seen
        self.seen.add(batch)
        return self._store(Pushed(token, dense, rows))

    def fill(self, token):
        return self._store(Pushed(token, None, {}))

    def flush(self):
        return self._pop() if self.buffer else None

    def _store(self, pushed):
        if self.mode.kind == "hop-bw" and pushed.token != self.step:
            if pushed.dense is not None:
                self.late.append(pushed)
            return None
        self.buffer.append(pushed)
        return self._pop() if len(self.buffer) >= self.mode.aggregate else None

    def _pop(self):
        popped, self.buffer = self.buffer, []
        k, before = self.step, dict(self.tags)
        dense = np.zeros(self.dense_size)
        for each in popped:
            if each.dense is not None:
                self.staleness.append(k - each.token)
                factor = decay(self.mode, k - each.token)
                if factor:
                    dense += factor * each.dense.astype(np.float64)
        rows = {}
        for row in sorted({row for each in popped for row in each.rows}):
            holders = [each for each in popped if row in each.rows]
            late = [before.get(row, -1) - each.token for each in holders]
            self.row_staleness += late
            factors = [decay(self.mode, each) for each in late]
            if any(factors):
                total = sum(f * e.rows[row].astype(np.float64) for f, e in zip(factors, holders, strict=True) if f)
                rows[row] = total / (len(holders) if self.mode.rows_over == "holders" else len(popped))
                self.tags[row] = k
        self.step += 1
        return dense / len(popped), rows
