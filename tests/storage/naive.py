"""The obvious store: a dict of rows, one thread, no bits. Oracle of the conformance suite."""

import hashlib

import numpy as np
import torch

from marius_oac.types import NEVER


def rounded(values: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16 by torch."""
    return torch.tensor(values).to(torch.bfloat16).float().numpy()


class NaiveStore:
    def __init__(self, layout, rows):
        self.layout = layout
        self.rows = {}
        for row, values in enumerate(rows):
            self._write(row, values, NEVER)

    def _write(self, row, values, timestamp):
        values = np.array(values, np.float32)
        if self.layout.value_dtype == "bfloat16":
            values[: self.layout.dimension] = rounded(values[: self.layout.dimension])
        self.rows[row] = (values, timestamp)

    def read(self, rows):
        values = [self.rows[row][0] for row in rows]
        return np.array(values, np.float32).reshape(len(rows), self.layout.width), [self.rows[r][1] for r in rows]

    def commit(self, rows, values, timestamp):
        refused = 0
        for row, new in zip(rows, values, strict=True):
            if timestamp > self.rows[row][1]:
                self._write(row, new, timestamp)
            else:
                refused += 1
        return refused

    def overwrite(self, rows, values, timestamp, seen):
        lost = sum(self.rows[row][1] != old for row, old in zip(rows, seen, strict=True))
        for row, new in zip(rows, values, strict=True):
            self._write(row, new, timestamp)
        return lost

    def add(self, rows, deltas, timestamp):
        for row, delta in zip(rows, deltas, strict=True):
            old, stored = self.rows[row]
            self._write(row, old + delta, max(timestamp, stored))

    def apply(self, rows, gradients, update, timestamp):
        for row, gradient in zip(rows, gradients, strict=True):
            old, stored = self.rows[row]
            new = old.copy()[None]
            update(new, gradient[None])
            self._write(row, new[0], max(timestamp, stored))

    def load(self, first_row, timestamps, rows):
        for i, timestamp in enumerate(timestamps):
            self._write(first_row + i, rows[i], timestamp)

    def fingerprint(self):
        digest, dimension = hashlib.sha256(), self.layout.dimension
        for row in sorted(self.rows):
            values = torch.tensor(self.rows[row][0])
            if self.layout.value_dtype == "bfloat16":
                digest.update(values[:dimension].to(torch.bfloat16).view(torch.int16).numpy().tobytes())
            else:
                digest.update(values[:dimension].numpy().tobytes())
            digest.update(values[dimension:].numpy().tobytes())
        return digest.hexdigest()
