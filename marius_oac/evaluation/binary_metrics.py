"""AUC, log loss, normalised entropy and calibration of predicted probabilities, over any number of examples.

An example is kept in 4 bytes, its score and its label. What memory does not hold is sorted and written to a file in the
temporary folder ($TMPDIR) that has no name, and merged at the end. All metrics are computed from the numbers of
positive and negative examples of each score. The counts of AUC are exact integers; losses and probabilities are rounded
to multiples of 2**-40 before they are summed. So the metrics depend only on the set of examples, not on their order or
on how they are divided into batches.
"""

from __future__ import annotations

import math
import operator
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from io import FileIO
from typing import NamedTuple

import numpy as np

from marius_oac.data.reading.database import query_errors
from marius_oac.errors import MariusOacError
from marius_oac.runtime.closing import Closable
from marius_oac.types import present

MEMORY_LIMIT_BYTES = 256 << 20  # of examples: half for those that are added, half for what is made of them
LEAST_PROBABILITY = 2.0**-24
"""For the log loss, probabilities are clipped to at least this and at most 1 minus this, which is the largest float32
below 1. So an example costs at most 24 ln 2 = 16.6."""

STREAM_ROWS = 1 << 18
_FIRST_ROWS = 1 << 16
_ROW_BYTES = 4
_UNIT = 2.0**-40


class Counts(NamedTuple):
    """The numbers of positive and negative examples with each of n ascending scores."""

    scores: np.ndarray  # float32 [n]
    positives: np.ndarray  # int64 [n]
    negatives: np.ndarray  # int64 [n]


class ClickMetrics(Closable):
    """Computes metrics of labels and predictions. Use it as a context manager; one thread at a time.

    Args:
        memory_limit: in bytes.

    Raises:
        InputError: the disk of the temporary folder is full; by `add` and `result`.
    """

    def __init__(self, memory_limit: int = MEMORY_LIMIT_BYTES) -> None:
        self._most = max(1, memory_limit // (2 * _ROW_BYTES))
        self._pending = np.empty(min(_FIRST_ROWS, self._most), np.uint32)
        """Twice the score's bits, which are in the order of the floats, and 1 more for a positive example."""
        self._num_pending = self._added = 0
        self._file: FileIO | None = None
        self._runs: list[int] = []
        """The numbers of examples that were sorted and written, one run behind the other."""

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
        packed = probabilities.view(np.uint32) << np.uint32(1)  # without the sign: -0 is 0
        packed += labels.astype(np.uint32)
        start = 0
        while start < packed.size:
            if self._num_pending == self._most:
                self._write_run()
            size = min(packed.size - start, self._most - self._num_pending)
            self._reserve(self._num_pending + size)
            self._pending[self._num_pending : self._num_pending + size] = packed[start : start + size]
            self._num_pending, start = self._num_pending + size, start + size
        self._added += packed.size

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
        with self._errors():
            return metrics_of_counts(self._counts())

    def close(self) -> None:
        """Closes the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def _errors(self) -> AbstractContextManager[None]:
        return query_errors(tempfile.gettempdir(), "$TMPDIR can name another folder")

    def _refuse(self, wrong: np.ndarray, values: np.ndarray, what: str, must: str) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            value = "NaN" if np.isnan(values[first]) else f"{values[first]:g}"
            raise MariusOacError(f"the {what} of example {self._added + first} (from 0) is {value}, not {must}")

    def _reserve(self, rows: int) -> None:
        if rows > self._pending.size:
            larger = np.empty(min(self._most, max(rows, 2 * self._pending.size)), np.uint32)
            larger[: self._num_pending] = self._pending[: self._num_pending]
            self._pending = larger

    def _write_run(self) -> None:
        with self._errors():
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - see close
            run = self._pending[: self._num_pending]
            run.sort()
            rest = run.data.cast("B")
            while rest:
                rest = rest[self._file.write(rest) :]
        self._runs.append(self._num_pending)
        self._num_pending = 0

    def _read(self, first: int, stop: int) -> np.ndarray:
        """Examples that were written."""
        found = os.pread(present(self._file).fileno(), (stop - first) * _ROW_BYTES, first * _ROW_BYTES)
        if len(found) != (stop - first) * _ROW_BYTES:
            raise MariusOacError(f"a temporary file in {tempfile.gettempdir()} has become shorter")
        return np.frombuffer(found, np.uint32)

    def _sorted(self) -> Iterator[np.ndarray]:
        """All examples in ascending order, uint32 [n] at a time: of each run the next block is at hand, and what is not
        above the last one of any block is complete."""
        pending = self._pending[: self._num_pending]
        pending.sort()
        if not self._runs:
            yield from (pending[i : i + STREAM_ROWS] for i in range(0, pending.size, STREAM_ROWS))
            return
        stops = np.cumsum(self._runs).tolist()
        places = [stop - size for stop, size in zip(stops, self._runs, strict=True)]
        blocks = [np.empty(0, np.uint32) for _ in stops]
        while True:
            for number, (place, stop) in enumerate(zip(places, stops, strict=True)):
                if not blocks[number].size and place < stop:
                    places[number] = min(stop, place + STREAM_ROWS)
                    blocks[number] = self._read(place, places[number])
            lasts = [each[-1] for each, place, stop in zip(blocks, places, stops, strict=True) if place < stop]
            if not lasts:
                break
            bound = min(lasts)
            cuts = [int(each.searchsorted(bound, "right")) for each in (*blocks, pending)]
            yield _merged([each[:cut] for each, cut in zip((*blocks, pending), cuts, strict=True)])
            *blocks, pending = (each[cut:] for each, cut in zip((*blocks, pending), cuts, strict=True))
        yield _merged([*blocks, pending])

    def _counts(self) -> Iterator[Counts]:
        """The counts of all scores in ascending order."""
        last, positives, negatives = 0, 0, 0  # of the last score, which the next block may continue
        for block in self._sorted():
            if not block.size:
                continue
            scores, positive = block >> np.uint32(1), block & np.uint32(1)
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


def _merged(parts: list[np.ndarray]) -> np.ndarray:
    found = np.concatenate(parts)
    found.sort()
    return found


def metrics_of_counts(blocks: Iterator[Counts]) -> dict[str, float]:
    """The metrics of at least one example; see `ClickMetrics.result`. Scores ascend over all blocks."""
    positives = negatives = wins = loss = prediction = 0
    for scores, ones, zeros in blocks:
        wins += doubled_wins(ones, zeros) + 2 * negatives * int(ones.sum())
        values = scores.astype(np.float64)
        clipped = values.clip(LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        loss += _dot(ones, in_units(-np.log(clipped))) + _dot(zeros, in_units(-np.log(1 - clipped)))
        prediction += _dot(ones + zeros, in_units(values))
        positives, negatives = positives + int(ones.sum()), negatives + int(zeros.sum())
    return metrics_of_sums(wins, positives, negatives, loss, prediction)


def doubled_wins(positives: np.ndarray, negatives: np.ndarray) -> int:
    """Twice the number of pairs in which the positive example scores above the negative one, where a tie is half a
    pair; of the numbers of examples by ascending score, int64 [n] each."""
    below = np.cumsum(negatives) - negatives
    return _dot(positives, 2 * below + negatives)


def metrics_of_sums(wins: int, positives: int, negatives: int, loss: int, prediction: int) -> dict[str, float]:
    """The metrics of at least one example; see `ClickMetrics.result`.

    Args:
        wins: of `doubled_wins`.
        positives, negatives: numbers of examples.
        loss, prediction: their sums, in multiples of 2**-40.
    """
    examples = positives + negatives
    log_loss, rate = loss / examples * _UNIT, positives / examples
    both = positives > 0 and negatives > 0
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate)) if both else math.nan
    return {
        "auc": wins / (2 * positives * negatives) if both else math.nan,
        "log_loss": log_loss,
        "normalized_entropy": log_loss / entropy,
        "calibration": prediction / positives * _UNIT if positives else math.nan,
        "examples": examples,
    }


def in_units(values: np.ndarray) -> np.ndarray:
    """Values rounded to multiples of 2**-40, int64 [n], whose sums are exact."""
    return np.rint(values / _UNIT).astype(np.int64)


def _dot(counts: np.ndarray, values: np.ndarray) -> int:
    """The exact sum of products of two arrays int64 [n] of numbers >= 0."""
    if not counts.size:
        return 0
    if int(counts.sum()) * int(values.max()) < 1 << 63:
        return int(counts @ values)
    return sum(map(operator.mul, counts.tolist(), values.tolist()))
