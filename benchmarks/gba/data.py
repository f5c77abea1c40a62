"""Days of a click log in memory, their keys numbered: generated ones with drift, and Frappe cut in days."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.generate.log import LogSpec, day_batches

FRAPPE = ("user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")


@dataclass(frozen=True)
class Days:
    """Days of equal size, one after the other.

    Attributes:
        ids: int64 [n, F], rows of one table. numbers: float32 [n, N]. labels: float32 [n].
        size: examples of a day.
        num_rows: of the table.
    """

    name: str
    ids: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray
    size: int
    num_rows: int

    def __len__(self) -> int:
        return len(self.labels) // self.size


def generated(days: int, size: int, seed: int) -> Days:
    """Keys come and go and the structure drifts, as in `benchmarks.clicks.days`, with fewer keys as days are small."""
    spec = LogSpec(seed=seed, categorical=10, numeric=4, keys=50_000, drift=0.01, new_keys=0.02)
    blocks = [block.examples for day in range(days) for block in day_batches(day, size, spec)]
    columns = [np.concatenate([block.keys[name] for block in blocks]) for name in blocks[0].keys]
    numbers = np.concatenate([block.numbers for block in blocks])
    labels = np.concatenate([block.labels for block in blocks])
    return _numbered("generated", columns, numbers, labels, size)


def frappe(folder: Path, days: int, size: int, seed: int) -> Days:
    """All examples of Frappe's three files in a random order, cut in days. They carry no time: nothing drifts."""
    names = [folder / f"{split}.csv.gz" for split in ("train", "valid", "test")]
    table = pa.concat_tables([pyarrow.csv.read_csv(name) for name in names])
    chosen = np.random.default_rng(seed).permutation(table.num_rows)[: days * size]
    if len(chosen) < days * size:
        raise SystemExit(f"Frappe has {table.num_rows:,} examples, too few for {days} days of {size:,}")
    columns = [table[name].to_numpy()[chosen] for name in FRAPPE]
    labels = table["label"].to_numpy()[chosen].astype(np.float32)
    return _numbered("Frappe", columns, np.zeros((len(chosen), 0), np.float32), labels, size)


def _numbered(name: str, columns: list[np.ndarray], numbers: np.ndarray, labels: np.ndarray, size: int) -> Days:
    ids, first = np.empty((len(labels), len(columns)), np.int64), 0
    for place, column in enumerate(columns):
        keys, numbered = np.unique(column, return_inverse=True)
        ids[:, place] = numbered + first
        first += len(keys)
    return Days(name, ids, np.ascontiguousarray(numbers), labels, size, first)
