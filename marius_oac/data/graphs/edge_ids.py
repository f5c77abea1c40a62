"""Are the ids of edges those of nodes and relations? Asked before any kernel sees them, once for each file and process.

Guarantees: edges that `check_ids` has let pass have ids in range for as long as their file is not written to. It reads
them through once, in bounded memory; asked again about the same file it looks at the file's times and size alone.
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
    """Raises InputError, with the file and the edge, where an id is out of range.

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
def first_bad_edge(edges, num_nodes, num_relations):
    """The first edge with an id out of range; -1: none."""
    last = edges.shape[1] - 1
    nodes, relations = np.uint64(num_nodes), np.uint64(num_relations)
    wrong = False
    for i in range(edges.shape[0]):  # without a way out, so that it becomes vector instructions; negative ids are large
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
