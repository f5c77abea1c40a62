"""Names of the domain that every room shares. Imports neither torch nor numba."""

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
    """The value of what may be None, where what was checked before says that it isn't."""
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

    Numbers are the host's wherever the arrays of a record are, so that nobody waits for a device to read them.

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
    """A copy of a dataclass with `change` of each NumPy array in its fields, in records and tuples within it too."""
    if isinstance(record, np.ndarray):
        return change(record)
    if isinstance(record, tuple):
        return tuple(map_arrays(each, change) for each in record)
    if not is_dataclass(record) or isinstance(record, type):
        return record
    return replace(record, **{each.name: map_arrays(getattr(record, each.name), change) for each in fields(record)})


def arrays_of(record: Any) -> list[np.ndarray]:
    """The NumPy arrays of a record, in the order in which `map_arrays` changes them."""
    found: list[np.ndarray] = []
    map_arrays(record, found.append)
    return found


Data = TypeVar("Data", bound=BatchData, covariant=True)


@dataclass(frozen=True)
class Plan(Generic[Data]):
    """What one batch will read and compute: a pure function of (seed, epoch, index), so any thread can make any batch.

    Attributes:
        sequence: the batch's place in plan order, from 0, over all epochs.
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
    each plan in the order of its sequence, one at a time, before any of its rows is read: what depends on the batches
    before, such as the numbers of new rows, is decided there. It returns the plan as the step will see it; None: there
    is no such batch, nor any after it, and what has been planned of them is forgotten.
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

    @property
    def served(self) -> ServedDense | None:
        """The dense parameters that nodes may serve; None: there are none, or nothing to agree with."""

    def compute(self, rows: Sequence[Any], data: Any, timestamp: int) -> Any:
        """Returns the batch's mean loss, a float (or a 0-d tensor on CUDA, which nobody reads before the download)."""

    def dense_state(self) -> Mapping[str, Any]:
        """A copy of the dense parameters and of their optimizers' state: tensors by name."""

    def load_dense_state(self, state: Mapping[str, Any]) -> None:
        """Takes over, by copy, what `dense_state` gave. Raises ValueError if it is the state of another model."""

    def close(self) -> None:
        """Ends the step's threads."""


class DenseSlice(Protocol):
    """A stretch of a model's dense parameters, laid end to end, where a shard has it and runs the optimizer."""

    def values(self) -> np.ndarray:
        """float32 [n], of this moment; the next `apply` may change it."""

    def apply(self, gradient: np.ndarray, timestamp: int, factor: float) -> None:
        """One step of the optimizer: gradient float32 [n], the learning rate multiplied by `factor`."""

    def state(self) -> np.ndarray:
        """float32 [m]: values and the optimizer's state, as `ServedDense.take` wants them."""


class ServedDense(Protocol):
    """What a step lends to those who serve its dense parameters (see `DenseSync.dispatched`).

    Attributes:
        size: floats of the parameters, laid end to end as `DenseSync.attach` got them.
        grain: a slice begins and ends at multiples of it.
    """

    size: int
    grain: int

    def slice(self, first: int, end: int) -> DenseSlice:
        """The parameters [first, end), with the optimizer's state, as they are now: a copy."""

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """Takes over, by copy, `DenseSlice.state` of the slices [bounds[i], bounds[i + 1]) that cover them all."""


class DenseSync(Protocol):
    """How the dense parameters of several trainers agree; tensors are torch's. A single box has none.

    A step's compute thread calls, in computation order and for every batch, `reduce` with the gradients, then, if that
    says so, its optimizer, then `updated`. Parameters are attached once, before the first batch, and never replaced.
    Background threads live from `start` to `pause` or `finish`, after which `start` may be called again; the first
    error of one of them is raised by the next `updated`, `pause` or `finish`.

    Attributes:
        dispatched: a step hands its gradients over, with `hand_over` in place of all that, and updates nothing.
    """

    dispatched: bool

    def hand_over(self, gradients: Sequence[Any], factor: float) -> None:
        """Takes a copy of a batch's gradients, and what their learning rate is to be multiplied with."""

    def optimizer(self, parameters: Sequence[Any]) -> Any | None:
        """The torch.optim.Optimizer that the algorithm is part of; None: the configuration's is used."""

    def attach(self, parameters: Sequence[Any]) -> None:
        """These tensors, which training updates in place, agree; all trainers call it, and begin with rank 0's."""

    def begin_anew(self) -> None:
        """All trainers go on from the values that rank 0 has now, as if begun with them; nothing is started."""

    def start(self) -> None:
        """Begins work in the background, if there is any."""

    def reduce(self, gradients: Sequence[Any], share: float) -> bool:
        """Before the update: allreduce makes the gradients, in place, the sum over trainers of share * gradient.

        Returns whether an update follows: where each trainer makes its own, none is made of a share of 0, an example of
        another trainer's. An optimizer of the agreement's own is called for every batch, and knows that by itself.
        """

    def updated(self, batch_index: int) -> None:
        """After the update of batch `batch_index`: counts it, and synchronises in the foreground when it is due."""

    def pause(self) -> None:
        """Ends background threads, after an exchange that all trainers agree on; all call it. Replicas may differ."""

    def finish(self) -> None:
        """`pause`; then all trainers hold the same parameters."""

    def stop(self) -> None:
        """Ends everything, whatever the others do; called when the run ends, also after an error."""

    def metrics(self) -> Mapping[str, float]:
        """`iterations`, `syncs`, `average_sync_gap`, `bytes`, `bytes_per_sync`, `seconds_per_sync`.

        This trainer's, and after `finish` those of all trainers (sums and means).
        """

    def state(self) -> Mapping[str, Any]:
        """What a checkpoint must keep beside parameters and optimizer: tensors by name, copies."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes over, by copy, what `state` gave; after `attach`, while nothing is started; all trainers call it.

        Raises:
            ValueError: the state is that of another algorithm or model.
        """
