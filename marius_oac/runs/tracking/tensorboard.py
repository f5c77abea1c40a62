"""TensorBoard: scalars in `RUN/tensorboard`, by `torch.utils.tensorboard`; steps are batches."""

from __future__ import annotations

from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.tracking.contract import Tracker, Values
from marius_oac.runtime.files.atomic import check_no_link


class TensorBoard(Tracker):
    """Writes event files. Values have all their digits (float64); those of batches that a resumed run trains again are
    purged."""

    def __init__(self, folder: RunFolder, first: int):
        from torch.utils.tensorboard import SummaryWriter

        check_no_link(folder.path / "tensorboard")
        self._writer = SummaryWriter(str(folder.path / "tensorboard"), purge_step=first or None)

    def log(self, values: Values) -> None:
        """See `Tracker.log`."""
        for name, number in values.numbers.items():
            self._writer.add_scalar(
                f"{values.kind}/{name}", float(number), values.batch, new_style=True, double_precision=True
            )

    def close(self) -> None:
        """See `Tracker.close`."""
        self._writer.close()
