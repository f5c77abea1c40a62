"""Maps keys to nodes: a hash maps keys to virtual shards, and a placement maps virtual shards to nodes.

A table has V virtual shards, whatever the number of nodes, so that one can be measured, moved and saved as a whole. The
hash decides only the shard: keys are still compared exactly, as (vocabulary, 64-bit integer).

- Click logs: shard = high word of hash(vocabulary, key) * V. A node assigns rows to its keys by itself.
- Graphs have ids 0 to N - 1, so a fixed permutation replaces the hash: id -> position in [0, N). Shard v has the
  positions from floor(v N / V) on, and a node keeps its shards one after the other, ascending. Ids and rows follow from
  each other without an index: `IdPlaces`.

Both are part of the format of checkpoints. They use other hash bits than the index of keys and the initial values of
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from marius_oac.kernels.cpu import routes as kernels
from marius_oac.kernels.cpu.permutation import MAX_SIZE
from marius_oac.kernels.cpu.random import stream_key, wrapping
from marius_oac.storage.keys.distinct import number_distinct

NUM_SHARDS = 1 << 12
"""Four for each of a thousand processes."""
FEWEST_SHARDS = 1 << 8
"""Where the keys of a shard that wait to be admitted share a row, and in a loop of one's own."""
MAX_SHARDS = 1 << 16
MAX_KEYS = 1 << 30  # of one batch

_SALT = stream_key(0, "shards of keys")
_ORDER = stream_key(0, "shards of ids")


@dataclass(frozen=True, eq=False)
class Placement:
    """The node of each virtual shard of a table.

    Attributes:
        nodes: int32 [V], the node of each shard.
        num_nodes: number of nodes; some may have no shard.

    Raises:
        ValueError: shards or nodes out of range.
    """

    nodes: np.ndarray
    num_nodes: int

    def __post_init__(self) -> None:
        nodes = np.ascontiguousarray(self.nodes, np.int32)
        if nodes.ndim != 1 or not 1 <= nodes.size <= MAX_SHARDS:
            raise ValueError(f"nodes must be [1 to {MAX_SHARDS}], not {list(nodes.shape)}")
        if not 0 <= nodes.min() <= nodes.max() < self.num_nodes:
            raise ValueError(f"nodes must be 0 to {self.num_nodes - 1}, not {nodes.min()} to {nodes.max()}")
        object.__setattr__(self, "nodes", nodes)

    @classmethod
    def by_number(cls, num_nodes: int, num_shards: int = NUM_SHARDS) -> Placement:
        """Returns the placement of shard v on node v mod n: the hash alone, before anything was measured."""
        return cls(np.arange(num_shards, dtype=np.int32) % num_nodes, num_nodes)

    @property
    def num_shards(self) -> int:
        """V, the number of virtual shards."""
        return self.nodes.size

    def shards_of(self, node: int) -> np.ndarray:
        """Returns the shards on a node, int64, ascending."""
        return np.flatnonzero(self.nodes == node)


@dataclass(frozen=True)
class Route:
    """The rows of a batch, grouped by node.

    Attributes:
        order: int64 [n], positions in the batch, grouped by node, a node's in the order of the batch.
        offsets: int64 [nodes + 1]: those of node k are `order[offsets[k]:offsets[k + 1]]`.
        asked: the requests to the nodes, arrays [n] in that order. Of a graph: (rows,), int64, each node's own; of a
            click log: (vocabularies, keys, checks).
    """

    order: np.ndarray
    offsets: np.ndarray
    asked: tuple[np.ndarray, ...]

    def places(self, node: int) -> np.ndarray:
        """Returns the positions of the node's rows in the batch, int64."""
        return self.order[self.offsets[node] : self.offsets[node + 1]]

    def asked_of(self, node: int) -> tuple[np.ndarray, ...]:
        """Returns views of the node's part of `asked`."""
        return tuple(each[self.offsets[node] : self.offsets[node + 1]] for each in self.asked)


@wrapping
def shard_of_keys(vocabularies: np.ndarray, keys: np.ndarray, num_shards: int) -> np.ndarray:
    """Returns the shard of each key, int64 [n], from vocabularies, uint16 [n], and keys, int64 [n]."""
    if not 1 <= num_shards <= MAX_SHARDS:
        raise ValueError(f"num_shards must be 1 to {MAX_SHARDS}, not {num_shards}")
    vocabularies, keys = _arrays(keys.size, vocabularies=(vocabularies, np.uint16), keys=(keys, np.int64))
    out = np.empty(keys.size, np.int64)
    kernels.key_shards(_SALT, num_shards, vocabularies, keys, out)
    return out


@wrapping
def node_of_keys(placement: Placement, vocabularies: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns the node of each key, int32 [n], from vocabularies, uint16 [n], and keys, int64 [n]."""
    vocabularies, keys = _arrays(keys.size, vocabularies=(vocabularies, np.uint16), keys=(keys, np.int64))
    nodes = np.empty(keys.size, np.int32)
    kernels.key_nodes(_SALT, placement.nodes, vocabularies, keys, nodes)
    return nodes


@wrapping
def route_keys(
    placement: Placement, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray, *others: np.ndarray
) -> Route:
    """Returns the route of a batch's keys: vocabularies uint16 [n], keys int64 [n], checks uint32 [n], and other arrays
    [n] that go with them."""
    asked = (*_keys(vocabularies, keys, checks), *others)
    return group(node_of_keys(placement, vocabularies, keys), placement.num_nodes, *asked)


@wrapping
def unique_keys(vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers a batch's different keys in the order of their first occurrence.

    A key with two checks counts as two, so that the index that holds it sees both and refuses them.

    Args:
        vocabularies: uint16 [n].
        keys: int64 [n].
        checks: uint32 [n].

    Returns:
        The number of each key, int64 [n], and the position of each number's first key, int64 [m], ascending.

    Raises:
        ValueError: there are `MAX_KEYS` keys or more, or arrays have other shapes or types.
    """
    vocabularies, keys, checks = _keys(vocabularies, keys, checks)
    if keys.size >= MAX_KEYS:
        raise ValueError(f"a batch of {keys.size} keys is too large")
    numbers, firsts, _ = number_distinct(vocabularies, keys, checks)
    return numbers.astype(np.int64), firsts


@dataclass(frozen=True, eq=False)
class IdPlaces:
    """Maps the ids 0 to size - 1 of a graph to nodes and their rows.

    Args:
        size: number of ids.
        placement: of the table's shards.

    Raises:
        ValueError: a size outside 1 to 2**40.
    """

    size: int
    placement: Placement
    starts: np.ndarray = field(init=False)
    """int64 [V + 1]: shard v has the positions starts[v] to starts[v + 1] - 1."""
    first_rows: np.ndarray = field(init=False)
    """int64 [V]: the row on its node where a shard begins."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= MAX_SIZE:
            raise ValueError(f"size must be 1 to 2**40, not {self.size}")
        num_shards, nodes = self.placement.num_shards, self.placement.nodes
        starts = np.arange(num_shards + 1) * self.size // num_shards
        first_rows, sizes = np.empty(num_shards, np.int64), np.diff(starts)
        for node in range(self.placement.num_nodes):
            mine = nodes == node
            first_rows[mine] = np.cumsum(sizes[mine]) - sizes[mine]
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "first_rows", first_rows)

    @wrapping
    def shard_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the shard of each id, int64 [n]; `ids` is int64 [n]."""
        ids = self._ids(ids)
        out = np.empty(ids.size, np.int64)
        kernels.id_shards(_ORDER, self.size, self.placement.num_shards, ids, out)
        return out

    @wrapping
    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the node of each id, int32 [n], and its row there, int64 [n].

        Raises:
            ValueError: ids are not int64 [n] in [0, size).
        """
        ids = self._ids(ids)
        nodes, rows = np.empty(ids.size, np.int32), np.empty(ids.size, np.int64)
        bases = self.first_rows - self.starts[:-1]
        kernels.id_places(_ORDER, self.size, self.placement.nodes, bases, ids, nodes, rows)
        return nodes, rows

    def route(self, ids: np.ndarray) -> Route:
        """Returns the route of a batch's ids, int64 [n]; `asked` are the rows."""
        nodes, rows = self.find(ids)
        return group(nodes, self.placement.num_nodes, rows)

    def num_rows(self, node: int) -> int:
        """Returns the number of rows of a node."""
        return int(self.shard_sizes[self.placement.nodes == node].sum())

    @property
    def shard_sizes(self) -> np.ndarray:
        """Rows of each shard, int64 [V]."""
        return np.diff(self.starts)

    def rows_of(self, shard: int) -> range:
        """Returns a shard's rows on its node."""
        first = int(self.first_rows[shard])
        return range(first, first + int(self.starts[shard + 1] - self.starts[shard]))

    def ids_of(self, shard: int) -> np.ndarray:
        """Returns a shard's ids in the order of its rows, int64; independent of its node."""
        return self._ids_at(np.arange(self.starts[shard], self.starts[shard + 1]))

    def ids_on(self, node: int, rows: np.ndarray) -> np.ndarray:
        """Returns the ids of rows of a node, both int64 [n].

        Raises:
            ValueError: the node does not have these rows.
        """
        (rows,) = _arrays(rows.size, rows=(rows, np.int64))
        last = self.num_rows(node) - 1
        if rows.size and not 0 <= rows.min() <= rows.max() <= last:
            raise ValueError(f"rows must be 0 to {last}")
        shards = self.placement.shards_of(node)
        # An empty shard begins where the next one does: the last shard that begins there has the row.
        mine = shards[np.searchsorted(self.first_rows[shards], rows, side="right") - 1]
        return self._ids_at(rows - self.first_rows[mine] + self.starts[mine])

    @wrapping
    def _ids_at(self, positions: np.ndarray) -> np.ndarray:
        out = np.empty(positions.size, np.int64)
        kernels.ids_at(_ORDER, self.size, positions, out)
        return out

    def _ids(self, ids: np.ndarray) -> np.ndarray:
        (ids,) = _arrays(ids.size, ids=(ids, np.int64))
        if ids.size and not 0 <= ids.min() <= ids.max() < self.size:
            raise ValueError(f"ids must be 0 to {self.size - 1}")
        return ids


def group(nodes: np.ndarray, num_nodes: int, *asked: np.ndarray) -> Route:
    """Returns the route of a batch from the node of each position, int32 [n], and the requests, arrays [n]."""
    order, offsets = np.empty(nodes.size, np.int64), np.zeros(num_nodes + 1, np.int64)
    kernels.group(nodes, order, offsets)
    return Route(order, offsets, tuple(each[order] for each in asked))


def _keys(vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray) -> Sequence[np.ndarray]:
    named = {"vocabularies": (vocabularies, np.uint16), "keys": (keys, np.int64), "checks": (checks, np.uint32)}
    return _arrays(keys.size, **named)


def _arrays(size: int, **named: tuple[np.ndarray, type]) -> Sequence[np.ndarray]:
    """Returns the arrays, contiguous. Raises ValueError where one is not [size] of the type beside it."""
    for name, (array, dtype) in named.items():
        if array.dtype != dtype or array.shape != (size,):
            raise ValueError(f"{name} must be {np.dtype(dtype)} [{size}], not {array.dtype} {list(array.shape)}")
    return [np.ascontiguousarray(array) for array, _ in named.values()]
