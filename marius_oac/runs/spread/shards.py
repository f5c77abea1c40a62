"""Moves rows between the parts of a run over nodes, and digests them by virtual shard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore


def load_rows(store: ParameterStore, whole: Checkpoint, source: np.ndarray) -> None:
    """Row i of the store becomes row `source[i]`, int64 [n], of a checkpoint's table."""
    values, state, timestamps = (whole.array(store.name, part) for part in ("values", "state", "timestamps"))
    for first in range(0, source.size, ROWS_PER_BLOCK):
        rows = source[first : first + ROWS_PER_BLOCK]
        store.load(first, timestamps[rows], np.concatenate((values[rows], state[rows]), axis=1))


def digest_rows(store: ParameterStore, rows: np.ndarray, names: Callable[[np.ndarray], bytes]) -> str:
    """SHA-256 of the names, values and states (float32) of some rows, in the given order."""
    digest = hashlib.sha256()
    for first in range(0, rows.size, ROWS_PER_BLOCK):
        part = rows[first : first + ROWS_PER_BLOCK]
        unique, back = np.unique(part, return_inverse=True)
        values = np.empty((unique.size, store.layout.width), np.float32)
        store.read(unique, values, np.empty(unique.size, np.int64))
        digest.update(names(part))
        digest.update(values[back].astype("<f4").tobytes())
    return digest.hexdigest()
