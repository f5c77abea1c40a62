"""Types that all packages share. Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

NEVER = -1
"""The timestamp of a row that no batch has written yet (OAC, section 3.2)."""

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """Returns a value that may be None by its type, but not here. Raises RuntimeError if it is."""
    if value is None:
        raise RuntimeError("something is missing that should have been checked before")
    return value


class Side(IntEnum):
    """Which end of an edge is replaced by a negative."""

    HEAD = 0
    TAIL = 1


@dataclass(frozen=True)
class TableSpec:
    """A table of rows that the pipeline moves.

    Attributes:
        name: the table's name in checkpoints, exports and metrics.
        num_rows: rows of the table.
        max_batch_rows: no batch has more unique rows of this table: staging buffers are made this long.
    """

    name: str
    num_rows: int
    max_batch_rows: int


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchData:
    """What a step computes a batch from, beside its rows; each task has a record of its own (`marius_oac.batches`).

    These numbers stay on the host when the arrays are copied to a device, so reading them never waits for it.

    Attributes:
        epoch: the batch's epoch, from 0: learning rates decay by it.
        share: the part of a global batch that these examples are, 1 where one trainer has all of it. 0: the example is
            another trainer's, and nothing is updated by it.
        part: where batches are dispatched to trainers, the global batch and the number of the part of it; else None.
    """

    epoch: int = 0
    share: float = 1.0
    part: tuple[int, int] | None = None


def map_arrays(record: Any, change: Callable[[np.ndarray], Any]) -> Any:
    """Returns a copy of a dataclass in which each NumPy array, also in nested dataclasses and tuples, is `change` of
    it."""
    if isinstance(record, np.ndarray):
        return change(record)
    if isinstance(record, tuple):
        return tuple(map_arrays(each, change) for each in record)
    if not is_dataclass(record) or isinstance(record, type):
        return record
    return replace(record, **{each.name: map_arrays(getattr(record, each.name), change) for each in fields(record)})


def arrays_of(record: Any) -> list[np.ndarray]:
    """Returns the NumPy arrays of a record, in the order in which `map_arrays` changes them."""
    found: list[np.ndarray] = []
    map_arrays(record, found.append)
    return found


Data = TypeVar("Data", bound=BatchData, covariant=True)


@dataclass(frozen=True)
class Plan(Generic[Data]):
    """What one batch will read and compute: a pure function of (seed, epoch, index), so any thread can make any batch.

    Attributes:
        batch_index: the batch's place in plan order, from 0, over all epochs.
        rows: for each table, in the planner's table order, the sorted unique row ids, int64.
        data: what the step needs beside the rows: local indices, targets.
        examples: training examples in the batch, for throughput.
    """

    batch_index: int
    rows: Sequence[np.ndarray]
    data: Data
    examples: int


class Planner(Protocol):
    """Makes batches, in two steps.

    `plan` does the work: thread-safe, called by several plan workers at once, in any order. `assign_rows` then gets
    each plan in the order of its batch index, one at a time, before any of its rows is read: what depends on the
    batches before, such as the numbers of new rows, is decided there. It returns the plan as the step will see it;
    None: there is no such batch, nor any after it, and what has been planned of them is forgotten.
    """

    @property
    def tables(self) -> Sequence[TableSpec]:
        """The tables whose rows the batches name, in the order of `Plan.rows`."""

    def plan(self, batch_index: int) -> Plan[Any]:
        """Batch number `batch_index`, counted from 0 over all epochs."""

    def assign_rows(self, plan: Any) -> Plan[Any] | None:
        """`plan`, which `plan` made, with the rows of all its keys."""


class Step(Protocol):
    """Forward, loss, gradient and row optimizer of one batch; called by one thread, in computation order.

    `compute` changes the rows in place: `rows[k]` is float32 [n, width] of the planner's table k (value columns first,
    then optimizer state), on the step's device. `data` is the record of the step's task, with NumPy arrays on the CPU
    device, with tensors on CUDA.
    Dense parameters (relations, networks) belong to the step and are updated in the same call, hence in computation
    order; `dense_state` and `load_dense_state` carry them and their optimizer state through checkpoints.
    """

    def compute(self, rows: Sequence[Any], data: Any, timestamp: int) -> Any:
        """Returns the batch's mean loss: a float, or on CUDA a 0-d tensor, which is read after the download."""

    def dense_state(self) -> Mapping[str, Any]:
        """A copy of the dense parameters and of their optimizers' state: tensors by name."""

    def load_dense_state(self, state: Mapping[str, Any]) -> None:
        """Takes over, by copy, what `dense_state` gave. Raises ValueError if it is the state of another model."""

    def close(self) -> None:
        """Ends the step's threads."""


class DenseSlice(Protocol):
    """A range of a model's concatenated dense parameters, held by a shard that runs their optimizer."""

    def values(self) -> np.ndarray:
        """Returns the parameters, float32 [n]; the next `apply` may change this array."""

    def apply(self, gradient: np.ndarray, timestamp: int, epoch: int) -> None:
        """Takes one step of the optimizer with `gradient`, float32 [n], and the learning rate of the epoch."""

    def state(self) -> np.ndarray:
        """Returns the values and the optimizer's state, float32 [m], as `ServedDense.take` takes them."""


class ServedDense(Protocol):
    """A step's dense parameters, for shards that serve them (see `DenseSync.dispatched`)."""

    @property
    def size(self) -> int:
        """The number of floats of all parameters, concatenated in the order in which `DenseSync.attach` got them."""

    def cut(self, position: int) -> int:
        """The last place at or before `position`, 0 to `size`, where a slice may begin or end."""

    def slice(self, first: int, end: int) -> DenseSlice:
        """Returns a copy of the parameters [first, end) and of their optimizer's state."""

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """Copies in `DenseSlice.state` of the slices [bounds[i], bounds[i + 1]), which cover all parameters."""


class DenseSync(Protocol):
    """Synchronises the dense parameters of several trainers. Tensors are torch's. On one machine there is none.

    A step's compute thread calls, in computation order and for every batch, `reduce` with the gradients, then, if that
    says so, its optimizer, then `updated`. Parameters are attached once, before the first batch, and never replaced.
    Background threads live from `start` to `pause` or `finish`, after which `start` may be called again; the first
    error of one of them is raised by the next `updated`, `pause` or `finish`.

    Attributes:
        dispatched: the step calls `hand_over` with its gradients instead of all that, and updates nothing.
    """

    dispatched: bool

    def hand_over(self, gradients: Sequence[Any], epoch: int) -> None:
        """Copies a batch's gradients, and notes its epoch, on which their learning rates depend."""

    def optimizer(self, sections: Sequence[Mapping[str, Any]]) -> Any | None:
        """Returns the torch.optim.Optimizer that contains the algorithm; None: the configured ones are used.

        Args:
            sections: as torch's optimizers take them: `params`, `lr` and `weight_decay` of each.
        """

    def attach(self, parameters: Sequence[Any]) -> None:
        """Registers the tensors to synchronise, which training updates in place; all start from rank 0's.
        Collective."""

    def begin_anew(self) -> None:
        """Restarts the algorithm from the values that rank 0 has now; starts no threads. Collective."""

    def start(self) -> None:
        """Starts the background threads, if the algorithm has any."""

    def reduce(self, gradients: Sequence[Any], share: float) -> bool:
        """Called before the update: allreduce replaces the gradients by the sum over trainers of share * gradient.

        Returns:
            Whether an update follows. If each trainer updates by its own gradients, there is none for a share of 0,
            whose example is another trainer's. An optimizer of the algorithm's own is called for every batch.
        """

    def updated(self, batch_index: int) -> None:
        """Called after the update of a batch: counts it, and synchronises in the foreground when that is due."""

    def pause(self) -> None:
        """Ends the background threads after a last exchange; replicas may differ. Collective."""

    def finish(self) -> None:
        """Calls `pause` and makes all replicas equal. Collective."""

    def stop(self) -> None:
        """Ends everything without waiting for other trainers; called when the run ends, also after an error."""

    def metrics(self) -> Mapping[str, float]:
        """Returns `iterations`, `syncs`, `average_sync_gap`, `bytes`, `bytes_per_sync` and `seconds_per_sync`.

        They are this trainer's, and after `finish` those of all trainers (sums and means).
        """

    def state(self) -> Mapping[str, Any]:
        """Returns copies of what a checkpoint keeps besides parameters and optimizer: tensors by name."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Copies in what `state` gave; called after `attach`, before `start`. Collective.

        Raises:
            ValueError: the state is that of another algorithm or model.
        """
