"""Hands batches from the pipeline's compute thread to the user's loop, and back.

Guarantees:
- One batch at a time is with the user. The compute thread waits until it is handed back.
- After `drain` a batch that the user has not taken passes at once; so do all later ones.
- After `abort` every present and future wait of the compute thread ends with `Closed`; the user's ends, too.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from marius_oac.runtime.channel import Closed
from marius_oac.runtime.signals import wait_for

Item = TypeVar("Item")


class HandOver(Generic[Item]):
    """The place where a batch changes hands."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._offered: Item | None = None
        self._taken = self._draining = self._ended = self._aborted = False

    def offer(self, item: Item) -> bool:
        """Offers a batch and waits until it is handed back. Returns whether the user had it.

        Raises:
            Closed: after `abort`.
        """
        with self._changed:
            self._offered, self._taken = item, False
            self._changed.notify_all()
            self._changed.wait_for(self._may_pass)
            self._offered = None
            if self._aborted:
                raise Closed("hand-over")
            return self._taken

    def _may_pass(self) -> bool:
        return self._aborted or self._offered is None or (self._draining and not self._taken)

    def take(self) -> Item | None:
        """Waits for the next batch, which the caller must hand back. None: no more come."""
        with self._changed:
            wait_for(self._changed, self._has_news)
            if self._aborted or self._ended or self._draining:
                return None
            self._taken = True
            return self._offered

    def _has_news(self) -> bool:
        return self._aborted or self._ended or self._draining or (self._offered is not None and not self._taken)

    def give_back(self) -> None:
        """Hands the batch that was taken back, if there is one."""
        with self._changed:
            if self._taken:
                self._offered = None
                self._changed.notify_all()

    def drain(self) -> None:
        """Hands back what was taken, and lets every later batch pass."""
        with self._changed:
            self._draining = True
            if self._taken:
                self._offered = None
            self._changed.notify_all()

    def end(self) -> None:
        """Says that no more batches will be offered."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Everything stops."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
