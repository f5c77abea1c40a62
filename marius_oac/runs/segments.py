"""What the training loop asks about the segments that it cuts training into, such as when the next one must end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any


class Segments(ABC):
    """How batches reach the processes of a run, and how these agree on it. The loop calls it between segments, while
    the pipeline is drained; each call is collective."""

    @property
    @abstractmethod
    def stop_requested(self) -> bool:
        """Whether a user has asked a process outside the group to stop the run."""

    @abstractmethod
    def next_pause(self, batch: int) -> int | None:
        """The first batch after this one before which the pipeline must be drained; None: there is none."""

    @abstractmethod
    def begin(self, first: int) -> None:
        """Called before the pipeline runs batches from `first` on."""

    @abstractmethod
    def reached(self, planned: int) -> int:
        """The next batch of the run, given the next batch of this process."""

    @abstractmethod
    def end(self, of_run: bool) -> None:
        """Called when the pipeline has run them; `of_run`: they were the last of the run."""

    @abstractmethod
    def trained_outside(self) -> tuple[int, float]:
        """Examples that processes outside the group have trained since the last call, and the sum of their losses."""

    @abstractmethod
    def mode_changes(self, reached: int) -> Sequence[Mapping[str, Any]]:
        """Decides on the mode of the batches from `reached` on; returns lines of metrics."""


class LocalSegments(Segments):
    """A run of one process, which has all batches: nothing is to be agreed."""

    @property
    def stop_requested(self) -> bool:
        """False: there is no other process."""
        return False

    def next_pause(self, batch: int) -> None:
        """None."""

    def begin(self, first: int) -> None:
        """Nothing."""

    def reached(self, planned: int) -> int:
        """The same batch."""
        return planned

    def end(self, of_run: bool) -> None:
        """Nothing."""

    def trained_outside(self) -> tuple[int, float]:
        """None."""
        return 0, 0.0

    def mode_changes(self, reached: int) -> tuple[()]:
        """None."""
        return ()
