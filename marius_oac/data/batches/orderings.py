"""The order in which a graph's edges are trained if memory holds only a buffer of node partitions: BETA and COMET.

Nodes are divided into P partitions of consecutive ids, and edges into P x P buckets by the partitions of their ends.
The buffer holds C partitions at a time, which are its *state*. A bucket is trained in a state that holds both its
partitions.

- BETA (Mohoney et al., "Marius", OSDI 2021, section 4): all partitions of the buffer except one stay while the others
  pass through the last place. Then those that stayed have met all others, and are replaced. From state to state one
  partition changes. A bucket is trained in the first state that holds it. Here partitions are permuted every epoch.
- COMET (Waleffe et al., "MariusGNN", EuroSys 2023, section 5): the same over groups of partitions (*logical* ones) that
  are drawn every epoch. A bucket is trained in a state drawn among all that hold it, which balances the states.

Everything is a pure function of (configuration, seed, epoch).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_oac.config.link_prediction import OrderingConfig
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.random import below, bits_at, floats, stream_key, wrapping
from marius_oac.types import present

NOWHERE = -1


@dataclass(frozen=True)
class EpochOrder:
    """The order of one epoch.

    Attributes:
        states: int64 [S, C], the partitions in the buffer for each state, ascending in each row.
        state_of: int64 [P, P], the state in which bucket (partition of the head, partition of the tail) is trained.
    """

    states: np.ndarray
    state_of: np.ndarray


@dataclass(frozen=True)
class OrderingIo:
    """The I/O of an epoch between disk and buffer, by formula.

    Attributes:
        swaps: the number of partitions (for comet physical ones) that replace another one.
        loads: the number of partitions read: those of the first state, and the swaps. As many are written.
        bytes_read, bytes_written: loads times the mean size of a partition.
    """

    swaps: int
    loads: int
    bytes_read: int
    bytes_written: int


def epoch_order(ordering: OrderingConfig, seed: int, epoch: int) -> EpochOrder:
    """The order of an epoch by BETA or COMET."""
    partitions, groups = present(ordering.partitions), ordering.groups
    shuffled = np.argsort(floats(stream_key(seed, "ordering", epoch), partitions), kind="stable")
    members = shuffled.reshape(groups, partitions // groups)
    coarse = beta_states(groups, ordering.groups_in_buffer)
    states = np.sort(members[coarse].reshape(len(coarse), -1), axis=1)
    key = stream_key(seed, "bucket states", epoch)
    return EpochOrder(states, _choose(key, states, partitions, ordering.kind == "comet"))


def epoch_io(ordering: OrderingConfig, num_rows: int, row_bytes: int) -> OrderingIo:
    """The published cost of an epoch over a table of `num_rows` rows of `row_bytes` bytes.

    The actual I/O may differ: the formula ignores rows that are still in the buffer from the epoch before, and
    partitions of which no row is needed.
    """
    partitions = present(ordering.partitions)
    swaps = partitions // ordering.groups * beta_swaps(ordering.groups, ordering.groups_in_buffer)
    loads = present(ordering.buffer) + swaps
    moved = num_rows * row_bytes * loads // partitions
    return OrderingIo(swaps, loads, moved, moved)


def beta_states(partitions: int, buffer: int) -> np.ndarray:
    """BETA's sequence of buffer states, int64 [S, C]. Consecutive states differ in one partition, and every pair of
    partitions is in some state.

    Raises:
        ValueError: not 2 <= buffer < partitions.
    """
    if not 2 <= buffer < partitions:
        raise ValueError(f"a buffer must hold 2 to {partitions - 1} of {partitions} partitions, not {buffer}")
    held, waiting = list(range(buffer)), list(range(buffer, partitions))
    states = [list(held)]
    while waiting:
        for place, partition in enumerate(waiting):
            waiting[place], held[-1] = held[-1], partition
            states.append(list(held))
        count = min(buffer - 1, len(waiting))
        for place in range(count):  # the partition here has met every other one
            held[place] = waiting[place]
            states.append(list(held))
        waiting = waiting[count:]
    return np.array(states, dtype=np.int64)


def beta_swaps(partitions: int, buffer: int) -> int:
    """The number of BETA's swaps: w + (x + 1) (w - x (C - 1) / 2), where w = P - C and x = floor(w / (C - 1))."""
    waiting, kept = partitions - buffer, buffer - 1
    rounds = waiting // kept
    return waiting + (rounds + 1) * waiting - kept * rounds * (rounds + 1) // 2


@wrapping
def _choose(key: np.uint64, states: np.ndarray, partitions: int, drawn: bool) -> np.ndarray:
    state_of = np.full((partitions, partitions), NOWHERE, dtype=np.int64)
    left = np.zeros((partitions, partitions), dtype=np.int64)
    _choose_states(key, states, drawn, left, state_of)
    return state_of


@compiled
def _choose_states(key: np.uint64, states: np.ndarray, drawn: bool, left: np.ndarray, state_of: np.ndarray) -> None:
    """Writes for each bucket the first of the states that hold it, or one drawn among them, to `state_of`, int64
    [P, P]; `left` are zeros, int64 [P, P]."""
    if drawn:
        for s in range(states.shape[0]):
            for i in states[s]:
                for j in states[s]:
                    left[i, j] += 1
        for i in range(left.shape[0]):
            for j in range(left.shape[0]):
                left[i, j] = below(bits_at(key, i * left.shape[0] + j), left[i, j])
    for s in range(states.shape[0]):
        for i in states[s]:
            for j in states[s]:
                if left[i, j] == 0:
                    state_of[i, j] = s
                left[i, j] -= 1
