"""What the readers of all formats share: what they give, and which columns they read."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from marius_oac.config.ctr import LogConfig
from marius_oac.errors import InputError

MOST_COLUMNS = 10_000

Parsed = Iterator[tuple[np.ndarray, pa.RecordBatch]]
"""Batches in order, and the number in the file, from 0, of each of their rows, int64 [n]."""


class RawBlock(Protocol):
    """Consecutive rows of a file, n in all, not parsed yet."""

    def __len__(self) -> int: ...

    def parse(self, rows: np.ndarray) -> Parsed:
        """The rows with these numbers, int64 [k] in [0, n), ascending, k >= 1; may be called by several threads.

        Raises:
            InputError: what the format refuses.
        """
        ...


def check_columns(names: list[str], config: LogConfig, with_labels: bool, path: Path) -> list[str]:
    """The columns to read of a file that has columns `names`.

    Raises:
        InputError: two have the same name; the schema's are not all there; there are others that `ignored` lacks.
    """
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{len(names):,} columns, at most {MOST_COLUMNS:,} are possible", path)
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        raise InputError(f"two columns are named '{twice}'", path)
    label = config.label.column
    wanted = [each.name for each in (*config.numeric, *config.keyed())]
    wanted = [label, *wanted] if with_labels else wanted
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names[:10])}"
            raise InputError(f"there is no column '{name}', which the schema names; {hint}", path)
    known = {label, *wanted, *config.ignored}
    unknown = [name for name in names if name and name not in known]  # what has no name can't be named
    if unknown:
        raise InputError(f"the schema names no column '{unknown[0]}' (data.ignored lists those to leave out)", path)
    return wanted
