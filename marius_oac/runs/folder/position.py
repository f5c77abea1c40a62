"""The position of a run in training, as its checkpoints hold it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from marius_oac.errors import CheckpointError
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.reporting import Totals
from marius_oac.runtime.files.untrusted import typed

_BATCH_INDEX = "sequence"  # of the next batch, in files


@dataclass(frozen=True)
class Position:
    """The position of a run in training; saved with every checkpoint.

    Attributes:
        batch_index: the next batch.
        total, epoch: sums over the run and over the present epoch so far.
        first_loss: the median of the first few batches; None: there was none, or it was not kept.
        device: what computed it, as `session.name_of_device` has it; empty if it was not kept.
        best: the best value of the decisive metric, -1 before the first; `best_epoch` when; `worse` evaluations since.
    """

    batch_index: int = 0
    total: Totals = Totals()
    epoch: Totals = Totals()
    best: float = -1.0
    best_epoch: int = 0
    worse: int = 0
    first_loss: float | None = None
    device: str = ""

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Position:
        """The position of a checkpoint. Raises CheckpointError if it is damaged."""
        fields = {"batch_index" if key == _BATCH_INDEX else key: value for key, value in checkpoint.extra.items()}
        position = typed(fields, checkpoint.path, cls, CheckpointError)
        if position.batch_index != checkpoint.batch_index or not 0 <= position.best_epoch <= position.batch_index:
            raise CheckpointError("is damaged: its position is another's", checkpoint.path)
        return position

    def dump(self) -> dict[str, Any]:
        """The position as plain data, for a checkpoint."""
        return {_BATCH_INDEX if key == "batch_index" else key: value for key, value in asdict(self).items()}
