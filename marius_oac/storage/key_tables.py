"""The tables of keys of a run together: which rows their keys share over nodes, and their arrays in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from marius_oac.storage.keys.table import NO_KEY, KeyTable
from marius_oac.storage.placement import FEWEST_SHARDS, shard_of_keys


def shared_by_shard(vocabularies: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The `SharedKeys` over nodes: one row for each vocabulary and virtual shard, on the node that has the shard. So
    which keys share a row depends neither on the number of nodes nor on the placement."""
    return NO_KEY + 1 + shard_of_keys(vocabularies, keys, FEWEST_SHARDS)


def key_arrays(tables: Sequence[KeyTable]) -> dict[str, np.ndarray]:
    """Returns the keys of each table, as `TABLE.NAME`."""
    return {f"{keys.store.name}.{name}": array for keys in tables for name, array in keys.arrays().items()}


def load_key_arrays(tables: Sequence[KeyTable], arrays: Mapping[str, np.ndarray]) -> None:
    """Restores what `key_arrays` returned."""
    for keys in tables:
        keys.load(_of_table(arrays, keys.store.name))


def key_counts(tables: Sequence[KeyTable]) -> dict[str, int]:
    """Returns the number of keys of each table, and of those that wait or were dropped."""
    found: dict[str, int] = {}
    for keys in tables:
        name = f"tables.{keys.store.name}"
        found |= {f"{name}.keys": len(keys), f"{name}.waiting": keys.waiting, f"{name}.dropped": keys.dropped}
    return found


def _of_table(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Those of `TABLE.NAME` that belong to a table, by `NAME`."""
    return {each.removeprefix(f"{name}."): array for each, array in arrays.items() if each.startswith(f"{name}.")}
