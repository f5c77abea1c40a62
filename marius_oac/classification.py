"""How good predicted probabilities of clicks are: AUC, log loss, normalised entropy, calibration.

Examples are counted by score, by DuckDB, which spills to disk: any number of them takes bounded memory. Every metric is
made of these counts in the order of the scores, so it depends on what was added, not on the pieces or their order.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import ExitStack
from types import TracebackType

import duckdb
import numpy as np
import pyarrow as pa

from marius_oac.errors import MariusOacError

_MEMORY = "256MB"
_SCORES_AT_ONCE = 1 << 18
_COUNTS = "SELECT score, sum(click)::BIGINT, count(*) FROM examples GROUP BY score ORDER BY score"


class ClickMetrics:
    """Metrics of predictions that are added piece by piece. A context manager: it keeps a temporary folder.

    Args:
        memory: DuckDB's limit.
    """

    def __init__(self, memory: str = _MEMORY) -> None:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="marius-oac-"))
            settings = {
                "memory_limit": memory,
                "temp_directory": folder,
                "threads": 1,
                "preserve_insertion_order": False,
            }
            self._database = stack.enter_context(duckdb.connect(f"{folder}/examples.duckdb", config=settings))
            self._database.execute("CREATE TABLE examples (score UINTEGER, click UTINYINT)")
            self._stack = stack.pop_all()

    def add(self, labels: np.ndarray, probabilities: np.ndarray) -> None:
        """Counts some examples: `labels` float32 [n], 0 or 1, `probabilities` float32 [n] in [0, 1].

        Raises:
            MariusOacError: a probability is NaN or outside [0, 1].
        """
        bad = ~((probabilities >= 0) & (probabilities <= 1))
        if bad.any():
            raise MariusOacError(
                f"a predicted probability is {probabilities[bad][0]}: the model's numbers are no longer finite"
            )
        # Bits of floats that are not negative have the order of the floats, and count exactly; -0.0 becomes 0.0.
        scores = (probabilities.astype(np.float32) + np.float32(0)).view(np.uint32)
        piece = pa.table({"score": scores, "click": labels.astype(np.uint8)})
        self._database.register("piece", piece)
        self._database.execute("INSERT INTO examples SELECT * FROM piece")
        self._database.unregister("piece")

    def result(self) -> dict[str, float]:
        """The metrics of everything that was added.

        - `auc`: the share of pairs of a click and a non-click in which the click has the higher score, ties counting
          one half; exact. NaN where there are no such pairs.
        - `log_loss`: the mean of -ln of the probability of what happened, which is taken as 1e-7 at least (float32
          tells no finer from 1).
        - `normalized_entropy`: log loss over that of always predicting the mean label (He et al., "Practical Lessons
          from Predicting Clicks on Ads at Facebook", ADKDD 2014, equation 1). NaN where that is 0.
        - `calibration`: mean prediction over mean label; NaN without clicks.
        - `examples`: how many.
        """
        clicks = others = twice_wins = 0
        losses, predicted = [], []
        for batch in self._database.sql(_COUNTS).to_arrow_reader(_SCORES_AT_ONCE):
            scores, positives, counts = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
            positives, counts = positives.astype(np.int64), counts.astype(np.int64)
            negatives = counts - positives
            below = np.cumsum(negatives) - negatives
            twice_wins += 2 * others * int(positives.sum()) + int((positives * (2 * below + negatives)).sum())
            probabilities = scores.astype(np.uint32).view(np.float32).astype(np.float64)
            safe = np.clip(probabilities, 1e-7, 1 - 1e-7)
            losses.append(math.fsum(-positives * np.log(safe) - negatives * np.log1p(-safe)))
            predicted.append(math.fsum(counts * probabilities))
            clicks, others = clicks + int(positives.sum()), others + int(negatives.sum())
        return _metrics(clicks, others, twice_wins, math.fsum(losses), math.fsum(predicted))

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> ClickMetrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _metrics(clicks: int, others: int, twice_wins: int, loss: float, predicted: float) -> dict[str, float]:
    count = clicks + others
    if not count:
        raise ValueError("no examples were added")
    rate, log_loss = clicks / count, loss / count
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate)) if 0 < rate < 1 else 0.0
    return {
        "auc": twice_wins / (2 * clicks * others) if clicks and others else math.nan,
        "log_loss": log_loss,
        "normalized_entropy": log_loss / entropy if entropy else math.nan,
        "calibration": predicted / clicks if clicks else math.nan,
        "examples": count,
    }
