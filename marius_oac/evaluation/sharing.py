"""How an evaluation is divided among processes.

Each process scores a part of the edges or examples. What it found for each of them, a rank or a probability, goes to
the leading process, which computes the metrics in the order in which one process would have found it. Nothing is summed
before. So metrics have the same bits whoever scored what, also those of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from marius_oac.runtime.files.npy import mapped_npy


class Sharing:
    """The processes that evaluate together. This class is for one that does so alone.

    Attributes:
        rank: this process's number among them; the leading process is 0.
        count: of them.
    """

    rank, count = 0, 1

    def share(self, units: int) -> range:
        """This process's of so many units of work: consecutive ones, in the order of ranks. Their number differs
        between processes by at most 1."""
        starts = self.starts(units)
        return range(starts[self.rank], starts[self.rank + 1])

    def starts(self, units: int) -> list[int]:
        """Where the share of each process begins, and, last, `units`."""
        return [units * rank // self.count for rank in range(self.count + 1)]

    def of_others(self, units: int) -> range:
        """All units of work but the leading process's."""
        return range(units // self.count, units)

    def turn(self) -> None:
        """Called after each piece of work, which should take less than a second.

        Raises:
            StopSignal: another process was asked to stop.
            MariusOacError: another process can't go on.
        """

    def collected(self, mine: BinaryIO, size: int) -> BinaryIO:
        """Returns, on the leading process, what all have found, at its beginning: `mine` and behind it what the others
        gave, in the order of ranks. On others the result is of no use. Collective.

        Args:
            mine: a file open for reading and writing, all of which counts.
            size: the number of bytes of all together.

        Raises:
            MariusOacError: there are more or fewer bytes; or as `turn`.
        """
        mine.seek(0)
        return mine

    def mapped(self, path: Path, shape: tuple[int, int]) -> np.ndarray:
        """Makes a .npy file of zeros, float32 of this shape, that all processes fill together, and maps it for writing.
        Collective.

        Processes of one machine map one file, so it is at `path` of the first of them alone. The last part of `path`
        is the same for all.

        Raises:
            OSError: the disk is full, or can't be written.
            StopSignal, MariusOacError: as `turn`.
        """
        return mapped_npy(path, shape, np.float32)

    def completed(self, rows: np.ndarray, starts: list[int], dropped: Callable[[], object]) -> None:
        """Has all rows of an array of `mapped` on all processes. Collective.

        Args:
            rows: the array. The process of rank r has filled the rows from starts[r] to starts[r + 1] - 1.
            dropped: called after each few MiB that are sent between machines, to release memory.

        Raises:
            StopSignal, MariusOacError: as `turn`.
        """


UNSHARED = Sharing()
