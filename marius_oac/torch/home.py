"""Where the rows of an engine's loops are, and what their pipelines are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from marius_oac.pipeline.rows import RowSource
from marius_oac.runtime.channel import Channel
from marius_oac.torch import checkpoints
from marius_oac.torch.checkpoints import Moment, Parts
from marius_oac.torch.hand_over import HandOver
from marius_oac.torch.layouts import layouts, newest, part_at
from marius_oac.torch.pipeline import LoopSource, LoopStep, OpenBatch
from marius_oac.torch.planner import Fed, LoopPlanner
from marius_oac.torch.sharing import ALONE
from marius_oac.torch.tables import Table


class Home:
    """All rows are in this process. The base of others.

    Args:
        tables: of the engine.

    Attributes:
        waits: rows take time to come, so that the pipeline needs threads from the first batch on.
    """

    waits = False

    def __init__(self, tables: Sequence[Table]):
        self._tables = tables

    def begin(self, first: int, accumulate: int, uneven: str) -> None:
        """Called before a loop whose first batch has this number, and `accumulate` of the loader's in each."""

    def source(self, mode: str, stop: Callable[[], None]) -> RowSource:
        """The rows, as the pipeline's source; where the pipeline stops, it calls `stop`."""
        return LoopSource(self._tables, mode, stop)

    def planner(self, feed: Channel[Fed]) -> LoopPlanner:
        """Plans what is fed."""
        return LoopPlanner(self._tables, feed)

    def step(self, hand_over: HandOver[OpenBatch]) -> LoopStep:
        """Hands batches to the user."""
        return LoopStep(self._tables, hand_over)

    def most(self, drawn: int) -> int:
        """The most batches that any process has drawn in this pass, of which this one has `drawn`."""
        return drawn

    def drawn(self, fed: list[Fed], until: int, error: Exception | None) -> tuple[list[Fed], Exception | None]:
        """What of the batches that were drawn is trained, and the error that comes after it, if any. With them `until`
        batches have been drawn in this pass."""
        return fed, error

    def cut(self, number: int) -> None:
        """Ends the loop before this batch: the user trains no other."""

    def wait_until_written(self, last: int | None = None) -> None:
        """Waits until all batches up to this one, which were handed back, can be read; None: those of the last loop."""

    def save(self, folder: Path, parts: Parts, moment: Moment, keep: int) -> None:
        """See `checkpoints.save`."""
        least = newest(layouts(folder)) + 1
        checkpoints.save(folder, parts, moment, keep, least=least)

    def load(self, folder: Path, parts: Parts) -> Moment | None:
        """Sets everything to the newest checkpoint of a folder; None: there is none yet. See `checkpoints.load`."""
        there = layouts(folder)
        if there.keys() - {1}:
            from marius_oac.torch.shared_checkpoints import load  # it takes long, and few need it

            return load(lambda call, value: [value], ALONE, folder, parts)
        return checkpoints.load(part_at(folder).open(), parts) if there else None

    def abort(self, error: BaseException) -> None:
        """Called before `close` where the program does not go on, because of an error."""

    def close(self) -> None:
        """Called when the engine takes no more batches."""
