"""The gradient buffer of a shard (Su et al., section 4.1, Algorithm 2): averages gradients into global steps.

A shard has one aggregator for its dense parameters and one for each table. Every push goes to all of them, and is empty
where the batch has no rows on this shard. So all aggregators count alike, on all shards.

    global step k takes the next M gradients, whatever their order
    dense     sum of weight(k - token) * gradient / gradients taken, those of weight 0 included
    a row     sum of weight(last_update_step - token) * gradient / gradients taken that hold the row, as before
              (`Mode.rows_over`); last_update_step is its tag, the step that changed it last, -1 if none has

A step returns the rows that it changes, and only their tags become k. A row whose gradients were all excluded is not
returned: it has not changed, so gradients computed from it are no staler than before. Weights use the tag from before
the step. So a row's weight is known when its gradient arrives, and is summed at once: memory grows with the rows of a
step, not with M.

Guarantees:
- The result is a function of the gradients and the order of their arrival. Sums are float32, in that order.
- A batch is taken once. Pushed again, or after it was refused, it is `Malformed` and changes nothing.
- Memory grows with the rows of a step, and with how far batches overtake each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

from marius_oac.kernels.cpu import aggregation as kernels
from marius_oac.kernels.cpu.random import wrapping
from marius_oac.nodes.gba.modes import Mode
from marius_oac.nodes.transport.messages import Malformed

Average = TypeVar("Average")
Tags = Callable[[np.ndarray], np.ndarray]
"""Returns last_update_step, int64 [n], of rows, int64 [n], ascending."""


class Aggregator(ABC, Generic[Average]):
    """Counts gradients towards global steps, and knows which batches are settled: taken, discarded or refused.

    Args:
        mode: the rules.
        step: the global step to begin with.
        first: batches before this one are settled.

    Attributes:
        step: the current global step; those before it are finished.
    """

    def __init__(self, mode: Mode, step: int = 0, first: int = 0):
        self.mode, self.step = mode, step
        self._places = 0  # slots of the current step that are filled
        self._below, self._above = first, set[int]()  # batches that are settled: all below, and these
        self._counts = dict.fromkeys(("gradients", "dropped", "staleness_sum", "staleness_max"), 0)

    def refuse(self, batch: int) -> bool:
        """Refuses a batch of a lost worker from now on. Returns whether the batch was settled before."""
        before = self.settled(batch)
        self._settle(batch)
        return before

    def settled(self, batch: int) -> bool:
        """Whether this batch has been taken, discarded or refused."""
        return batch < self._below or batch in self._above

    def fill(self, token: int) -> Average | None:
        """Fills a slot with no gradient, for a batch that this shard has refused and another shard has taken.

        Returns:
            The average of the step that this finishes; None if it finishes none.
        """
        return self._placed() if self.mode.counts(token, self.step) else None

    def flush(self) -> Average | None:
        """Ends the current step with the gradients that it has; returns its average, None where it has none."""
        return self._finished() if self._places else None

    def metrics(self) -> dict[str, int]:
        """Counts so far: `gradients` taken, those `dropped` (weight 0, or too late to be taken), `staleness_sum` and
        `staleness_max` of those taken, in global steps, a negative staleness counted as 0.

        For rows, one gradient of one row is counted as one.
        """
        return dict(self._counts)

    def _settle(self, batch: int) -> None:
        if not self.settled(batch):
            self._above.add(batch)
        while self._below in self._above:
            self._above.remove(self._below)
            self._below += 1

    def _take(self, batch: int, token: int, count: int) -> bool:
        """Settles a batch; returns whether it fills a slot of the current step."""
        if self.settled(batch):
            raise Malformed(f"batch {batch} is pushed again, or was refused")
        self._settle(batch)
        counts = self.mode.counts(token, self.step)
        if not counts:
            self._counts["dropped"] += count
        return counts

    def _weigh(self, staleness: np.ndarray) -> np.ndarray:
        """Returns the weights, float32 [n], of gradients with this staleness, int64 [n], and counts them."""
        weights, stale = self.mode.weights(staleness), np.maximum(staleness, 0)
        self._counts["gradients"] += staleness.size
        self._counts["dropped"] += int(np.count_nonzero(weights == 0))
        self._counts["staleness_sum"] += int(stale.sum())
        self._counts["staleness_max"] = max(self._counts["staleness_max"], int(stale.max(initial=0)))
        return weights

    def _placed(self) -> Average | None:
        self._places += 1
        return self._finished() if self._places == self.mode.aggregate else None

    def _finished(self) -> Average:
        average = self._average(self._places)
        self._places = 0
        self.step += 1
        return average

    @abstractmethod
    def _average(self, gradients: int) -> Average:
        """Returns the average of a step of so many gradients, and clears the sums for the next step."""


class DenseAggregator(Aggregator[np.ndarray]):
    """Averages gradients of the dense parameters, as one vector.

    Args:
        mode, step, first: see `Aggregator`.
        size: floats of the vector.
    """

    def __init__(self, mode: Mode, size: int, step: int = 0, first: int = 0):
        super().__init__(mode, step, first)
        self._total, self._begun = np.zeros(size, np.float32), False

    def add(self, batch: int, token: int, gradient: np.ndarray) -> np.ndarray | None:
        """Takes a gradient, float32 [size].

        Returns:
            The average of the step that this finishes, a new float32 [size]; None if it finishes none.

        Raises:
            Malformed: the batch is settled, or the gradient has another shape or type.
        """
        if gradient.shape != self._total.shape or gradient.dtype != np.float32:
            raise Malformed(f"{gradient.dtype} {gradient.shape}, not float32 {self._total.shape}")
        if not self._take(batch, token, 1):
            return None
        weight = self._weigh(np.array([self.step - token], np.int64))[0]
        if weight:  # what is excluded may be infinite
            kernels.add_vector(gradient, weight, self._begun, self._total)
            self._begun = True
        return self._placed()

    def _average(self, gradients: int) -> np.ndarray:
        average = self._total / np.float32(gradients) if self._begun else np.zeros_like(self._total)
        self._begun = False
        return average


class RowAggregator(Aggregator[tuple[np.ndarray, np.ndarray]]):
    """Averages gradients of the rows of a table.

    Args:
        mode, step, first: see `Aggregator`.
        dimension: floats of a row's gradient.
        tags: returns last_update_step of rows, as the finished steps have left it. The caller, before it adds the next
            gradient, sets that of the rows which a step returned to the number of the step, `step - 1` by then.
    """

    def __init__(self, mode: Mode, dimension: int, tags: Tags, step: int = 0, first: int = 0):
        super().__init__(mode, step, first)
        self._tags, self._count, self._slots = tags, 0, np.zeros(16, np.int64)
        self._rows = np.empty(0, np.int64)
        self._holders, self._kept = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._totals = np.empty((0, dimension), np.float32)

    def add(
        self, batch: int, token: int, rows: np.ndarray, gradients: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Takes a batch's rows, int64 [n], ascending and unique, and their gradients, float32 [n, D].

        Returns:
            Of the step that this finishes: the rows to update, int64 [m], ascending, and their averages, float32
            [m, D], both new arrays; None if it finishes none.

        Raises:
            Malformed: the batch is settled, or the arrays have other shapes or types.
        """
        if rows.dtype != np.int64 or gradients.dtype != np.float32:
            raise Malformed(f"rows of {rows.dtype} and gradients of {gradients.dtype}")
        if rows.ndim != 1 or gradients.shape != (rows.size, self._totals.shape[1]):
            raise Malformed(f"{rows.shape} rows and {gradients.shape} gradients")
        if rows.size and (rows[0] < 0 or not (rows[1:] > rows[:-1]).all()):
            raise Malformed("rows that do not ascend")
        if not self._take(batch, token, rows.size):
            return None
        if rows.size:
            self._add(rows, gradients, self._weigh(self._tags(rows) - token))
        return self._placed()

    @wrapping
    def _add(self, rows: np.ndarray, gradients: np.ndarray, weights: np.ndarray) -> None:
        self._reserve(self._count + rows.size)
        places = np.empty(rows.size, np.int64)
        self._count = kernels.place_rows(rows, self._slots, self._rows, self._count, places)
        kernels.add_rows(places, gradients, weights, self._holders, self._kept, self._totals)

    def _reserve(self, needed: int) -> None:
        if needed > self._rows.size:
            capacity = max(needed, 2 * self._rows.size)
            for name in ("_rows", "_holders", "_kept", "_totals"):
                old = getattr(self, name)
                new = np.zeros((capacity, *old.shape[1:]), old.dtype)
                new[: self._count] = old[: self._count]
                setattr(self, name, new)
        if 2 * needed > self._slots.size:
            self._slots = np.zeros(1 << (2 * needed - 1).bit_length(), np.int64)
            known = self._rows[: self._count].copy()
            kernels.place_rows(known, self._slots, self._rows, 0, np.empty(known.size, np.int64))

    def _average(self, gradients: int) -> tuple[np.ndarray, np.ndarray]:
        places = np.flatnonzero(self._kept[: self._count])
        places = places[np.argsort(self._rows[places])]
        divisors = self._holders[places] if self.mode.rows_over == "holders" else np.full(places.size, gradients)
        averages = np.empty((places.size, self._totals.shape[1]), np.float32)
        kernels.divided(places, self._totals, divisors.astype(np.float32), averages)
        rows = self._rows[places]
        self._slots[:] = 0
        self._holders[: self._count] = 0
        self._kept[: self._count] = 0
        self._count = 0
        return rows, averages
