"""Checks that the ids of edges are those of nodes and relations, once for each file and process, before kernels run.

Guarantees: edges that passed `check_ids` have ids in range as long as their file is not written to. The first check
reads all edges, in bounded memory. Later checks of the same file only compare its times and size.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from marius_oac.data.graphs.negatives import as_kernel_input
from marius_oac.data.graphs.resident import Resident
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.jit import compiled

_EDGES_AT_ONCE = 1 << 20  # a signal can interrupt between two of these
_RESIDENT_BYTES = 64 << 20
_lock = threading.Lock()
_passed: set[tuple[int, ...]] = set()


def check_ids(edges: np.ndarray, num_nodes: int, num_relations: int, path: Path) -> None:
    """Raises InputError, with the file and the edge, if an id is out of range.

    Args:
        edges: int32 or int64 [E, 3] (head, relation, tail) or [E, 2], mapped from `path`.
        num_nodes, num_relations: ids lie in [0, num_nodes) and [0, num_relations).
    """
    about = os.stat(path)
    known = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns, num_nodes, num_relations)
    with _lock:
        if known in _passed:
            return
    plain, resident = as_kernel_input(edges), Resident(edges, _RESIDENT_BYTES)
    for first in range(0, len(plain), _EDGES_AT_ONCE):
        bad = first_bad_edge(plain[first : first + _EDGES_AT_ONCE], num_nodes, num_relations)
        if bad >= 0:
            limits = f"{num_nodes:,} nodes" + (f" and {num_relations:,} relations" if plain.shape[1] == 3 else "")
            raise InputError(f"edge {first + bad} is {plain[first + bad].tolist()}, but the graph has {limits}", path)
        resident.drop()
    with _lock:
        _passed.add(known)


@compiled
def first_bad_edge(edges: np.ndarray, num_nodes: int, num_relations: int) -> int:
    """The index of the first edge with an id out of range; -1: none. Edges are int32 or int64 [n, 2 or 3]."""
    last = edges.shape[1] - 1
    nodes, relations = np.uint64(num_nodes), np.uint64(num_relations)
    wrong: bool | np.bool_ = False
    # No early exit, so that LLVM vectorises the loop. As unsigned integers negative ids are large.
    for i in range(edges.shape[0]):
        wrong |= (np.uint64(np.int64(edges[i, 0])) >= nodes) | (np.uint64(np.int64(edges[i, last])) >= nodes)
        if last == 2:
            wrong |= np.uint64(np.int64(edges[i, 1])) >= relations
    if not wrong:
        return -1
    for i in range(edges.shape[0]):
        good = 0 <= edges[i, 0] < num_nodes and 0 <= edges[i, last] < num_nodes
        if last == 2:
            good = good and 0 <= edges[i, 1] < num_relations
        if not good:
            return i
    return -1
