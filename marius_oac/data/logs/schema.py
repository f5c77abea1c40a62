"""What the readers of all formats share: the type of blocks, and which columns they read."""

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
"""Batches in order, each with its rows' numbers in the file, from 0, int64 [n]."""


class RawBlock(Protocol):
    """A block of n consecutive rows of a file that are not parsed yet."""

    def __len__(self) -> int: ...

    def parse(self, rows: np.ndarray) -> Parsed:
        """Parses the rows with these indices, int64 [k] in [0, n), ascending, k >= 1. Several threads may call it.

        Raises:
            InputError: the format refuses a row.
        """
        ...


def check_columns(names: list[str], config: LogConfig, with_labels: bool, path: Path) -> list[str]:
    """The columns to read from a file with columns `names`.

    Raises:
        InputError: two have the same name; a column of the schema is missing; there is a column that neither the schema
            nor `ignored` names.
    """
    if len(names) > MOST_COLUMNS:
        raise InputError(f"{len(names):,} columns, at most {MOST_COLUMNS:,} are possible", path)
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        raise InputError(f"two columns are named '{twice}'", path)
    label = config.label.column
    wanted = [label] if with_labels else []
    wanted += [each.name for each in config.numeric] + [each.name for each in config.keyed()]
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names[:10])}"
            raise InputError(f"there is no column '{name}', which the schema names; {hint}", path)
    known = {label, *wanted, *config.ignored}
    unknown = [name for name in names if name and name not in known]  # a column without a name can't be listed
    if unknown:
        raise InputError(f"the schema names no column '{unknown[0]}' (data.ignored lists those to leave out)", path)
    return wanted
