"""AUC, log loss, normalised entropy and calibration of predicted probabilities, over any number of examples.

The examples go to a database in a temporary folder ($TMPDIR), which sorts them by score and spills to disk, so memory
is bounded. All metrics are computed from the numbers of positive and negative examples of each score. The counts of AUC
are exact integers; losses and probabilities are rounded to multiples of 2**-40 before they are summed. So the metrics
depend only on the set of examples, not on their order or on how they are divided into batches.
"""

from __future__ import annotations

import math
import operator
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from marius_oac.data.prepare.database import connect, query_errors
from marius_oac.errors import MariusOacError
from marius_oac.runtime.closing import Closable

MEMORY_LIMIT_BYTES = 256 << 20  # of DuckDB, which spills the rest to the temporary folder
LEAST_PROBABILITY = 2.0**-24
"""For the log loss, probabilities are clipped to at least this and at most 1 minus this, which is the largest float32
below 1. So an example costs at most 24 ln 2 = 16.6."""

INSERT_ROWS = 1 << 20
STREAM_ROWS = 1 << 18
_UNIT = 2.0**-40


class Counts(NamedTuple):
    """The numbers of positive and negative examples with each of n ascending scores."""

    scores: np.ndarray  # float32 [n]
    positives: np.ndarray  # int64 [n]
    negatives: np.ndarray  # int64 [n]


class ClickMetrics(Closable):
    """Computes metrics of labels and predictions. Use it as a context manager; one thread at a time.

    Args:
        memory_limit: of the database, in bytes, at least 32 MiB. Its code and pending examples need more.

    Raises:
        InputError: the disk of the temporary folder is full; also by `add` and `result`.
    """

    def __init__(self, memory_limit: int = MEMORY_LIMIT_BYTES) -> None:
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="marius-oac-scores-")))
            with self._errors():
                self._connection = connect(self._folder, memory_limit, most_threads=1)
                stack.callback(self._connection.close)
                self._connection.execute("CREATE TABLE examples (score UINTEGER, positive UTINYINT)")
            self._stack = stack.pop_all()
        self._scores, self._positive = np.empty(INSERT_ROWS, np.uint32), np.empty(INSERT_ROWS, np.uint8)
        self._pending = self._added = 0

    def add(self, labels: np.ndarray, probabilities: np.ndarray) -> None:
        """Adds n examples. The arrays are copied.

        Args:
            labels: float32 [n], each 0 or 1.
            probabilities: float32 [n] in [0, 1].

        Raises:
            ValueError: an array has another type or shape.
            MariusOacError: a probability is NaN or outside [0, 1], or a label is neither 0 nor 1. No example is added.
        """
        if not (labels.dtype == probabilities.dtype == np.float32 and labels.ndim == 1):
            raise ValueError("labels and probabilities must be float32 [n]")
        if labels.shape != probabilities.shape:
            raise ValueError(f"{labels.size} labels for {probabilities.size} probabilities")
        self._refuse(
            ~((probabilities >= 0) & (probabilities <= 1)), probabilities, "probability", "a number from 0 to 1"
        )
        self._refuse((labels != 0) & (labels != 1), labels, "label", "0 or 1")
        scores = (probabilities + np.float32(0)).view(np.uint32)  # in the order of the floats; + 0 makes -0 a 0
        start = 0
        while start < scores.size:
            size = min(scores.size - start, INSERT_ROWS - self._pending)
            self._scores[self._pending : self._pending + size] = scores[start : start + size]
            self._positive[self._pending : self._pending + size] = labels[start : start + size]
            self._pending, start = self._pending + size, start + size
            if self._pending == INSERT_ROWS:
                self._insert()
        self._added += scores.size

    def result(self) -> dict[str, float]:
        """The metrics of all examples so far.

        Returns:
            `auc`: the probability that a positive example scores above a negative one, where ties count one half; NaN
                unless there are both classes.
            `log_loss`: mean negative log likelihood, natural logarithm; see `LEAST_PROBABILITY`.
            `normalized_entropy`: `log_loss` over the entropy of the mean label (He et al., "Practical lessons from
                predicting clicks on ads at Facebook", ADKDD 2014, section 3). Below 1 is better than predicting the
                mean label; NaN unless there are both classes.
            `calibration`: mean prediction over mean label, 1 is best; NaN without positive examples.
            `examples`: their number.

        Raises:
            MariusOacError: there are no examples.
        """
        if not self._added:
            raise MariusOacError("no examples: there is nothing to evaluate")
        self._insert()
        with self._errors():
            return metrics_of_counts(self._counts())

    def close(self) -> None:
        """Removes the temporary folder."""
        self._stack.close()

    def _errors(self) -> AbstractContextManager[None]:
        return query_errors(self._folder, "$TMPDIR can name another folder")

    def _refuse(self, wrong: np.ndarray, values: np.ndarray, what: str, must: str) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            value = "NaN" if np.isnan(values[first]) else f"{values[first]:g}"
            raise MariusOacError(f"the {what} of example {self._added + first} (from 0) is {value}, not {must}")

    def _insert(self) -> None:
        if self._pending:
            columns = [self._scores[: self._pending], self._positive[: self._pending]]
            with self._errors():
                self._connection.register("pending", pa.table(columns, names=["score", "positive"]))
                self._connection.execute("INSERT INTO examples FROM pending")
                self._connection.unregister("pending")
            self._pending = 0

    def _counts(self) -> Iterator[Counts]:
        """The counts of all scores in ascending order, at most STREAM_ROWS + 1 at a time."""
        # Sorting the rows is twice as fast as GROUP BY if most scores are distinct.
        reader = self._connection.sql("SELECT score, positive FROM examples ORDER BY score").to_arrow_reader(
            STREAM_ROWS
        )
        last, positives, negatives = 0, 0, 0  # of the last score, which the next batch may continue
        for batch in reader:
            scores, positive = (column.to_numpy() for column in batch.columns)
            if not scores.size:
                continue
            starts = np.concatenate(([0], np.flatnonzero(scores[1:] != scores[:-1]) + 1))
            values, sizes = scores[starts], np.diff(starts, append=scores.size)
            ones = np.add.reduceat(positive, starts, dtype=np.int64)
            zeros = sizes - ones
            if values[0] == last:
                ones[0], zeros[0] = ones[0] + positives, zeros[0] + negatives
            elif positives or negatives:
                values = np.concatenate((np.array([last], np.uint32), values))
                ones, zeros = np.concatenate(([positives], ones)), np.concatenate(([negatives], zeros))
            last, positives, negatives = int(values[-1]), int(ones[-1]), int(zeros[-1])
            yield Counts(values[:-1].view(np.float32), ones[:-1], zeros[:-1])
        yield Counts(np.array([last], np.uint32).view(np.float32), np.array([positives]), np.array([negatives]))


def metrics_of_counts(blocks: Iterator[Counts]) -> dict[str, float]:
    """The metrics of at least one example; see `ClickMetrics.result`. Scores ascend over all blocks."""
    positives = negatives = doubled_wins = loss = prediction = 0
    for scores, ones, zeros in blocks:
        below = np.cumsum(zeros) - zeros  # negatives below, within the block
        doubled_wins += _dot(ones, 2 * below + zeros) + 2 * negatives * int(ones.sum())
        values = scores.astype(np.float64)
        clipped = values.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        loss += _dot(ones, _units(-np.log(clipped))) + _dot(zeros, _units(-np.log(1 - clipped)))
        prediction += _dot(ones + zeros, _units(values))
        positives, negatives = positives + int(ones.sum()), negatives + int(zeros.sum())
    examples = positives + negatives
    log_loss, rate = loss / examples * _UNIT, positives / examples
    both = positives > 0 and negatives > 0
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)) if both else math.nan
    return {
        "auc": doubled_wins / (2 * positives * negatives) if both else math.nan,
        "log_loss": log_loss,
        "normalized_entropy": log_loss / entropy,
        "calibration": prediction / positives * _UNIT if positives else math.nan,
        "examples": examples,
    }


def _units(values: np.ndarray) -> np.ndarray:
    return np.rint(values / _UNIT).astype(np.int64)


def _dot(counts: np.ndarray, values: np.ndarray) -> int:
    """The exact sum of products of two arrays int64 [n] of numbers >= 0."""
    if not counts.size:
        return 0
    if int(counts.sum()) * int(values.max()) < 1 << 63:
        return int(counts @ values)
    return sum(map(operator.mul, counts.tolist(), values.tolist()))
