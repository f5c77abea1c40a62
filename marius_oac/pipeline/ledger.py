"""The ledger of timestamps: which batches have been written back, and which may start reading.

Names are the paper's (Optimistic Asynchrony Control, section 3.3): the *maximum finished timestamp* (MFT) is the
largest t such that the batches with timestamps 0..t have all been written to the store; a batch notes it before it
reads its first row. *Safe to evict* (STE) is the smallest MFT noted by a batch that has still to be validated.

Guarantees, with `in_flight` = S + 1, the largest window that there has been:
- Batch n notes its MFT, and may read, only when MFT >= n - in_flight: a window over the plan order. A bound on the mere
  number of batches in flight would let one stalled writer hold the MFT back while others finish, and the device cache
  would grow without limit.
- A batch that is validated later has noted an MFT >= the STE returned now. So no such batch needs a cached row with
  timestamp <= STE. (The paper takes the minimum when a batch is created, over all batches not yet written. Taking it
  at validation, over those not yet validated, is as safe and evicts earlier: in plan order the cache then holds rows
  of at most `in_flight` batches, against 2S + 1.)
- The window may change at any time. A batch enters by the window of that moment, so all bounds hold for the largest.
- A batch that `needs_caching` says no to is in the store before another one reads: with a window of one none is cached.
- Every wait ends when `abort` is called.
"""

from __future__ import annotations

import threading

from marius_oac.runtime.channel import Closed


class Ledger:
    """Starts with every timestamp below `first` finished and no batch outstanding."""

    def __init__(self, first: int, in_flight: int):
        self._in_flight = in_flight
        self._uncached = first - 1
        self._changed = threading.Condition()
        self._mft = first - 1
        self._finished: set[int] = set()
        self._noted: dict[int, int] = {}
        self._aborted = False

    @property
    def maximum_finished(self) -> int:
        """The MFT (OAC, section 3.3): all batches up to this timestamp are written."""
        return self._mft

    def enter(self, batch_index: int) -> int:
        """Waits until batch `batch_index` is within the window; returns the MFT at which it reads."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._aborted or self._mft >= max(batch_index - self._in_flight, self._uncached)
            )
            if self._aborted:
                raise Closed("ledger")
            self._noted[batch_index] = self._mft
            return self._mft

    def resize(self, in_flight: int) -> None:
        """Sets the window for the batches that enter from now on."""
        with self._changed:
            self._in_flight = in_flight
            self._changed.notify_all()

    def needs_caching(self, timestamp: int) -> bool:
        """Whether a batch may read before the one with this timestamp, validated last, is in the store, or has done so.

        If not, none will: they wait, also where the window is widened meanwhile.
        """
        with self._changed:
            if self._in_flight > 1 or self._noted:
                return True
            self._uncached = timestamp
            return False

    def validating(self, batch_index: int) -> int:
        """The STE as batch `batch_index` is about to be validated; the batch counts as validated from now on."""
        with self._changed:
            safe_to_evict = min(self._noted.values())
            del self._noted[batch_index]
            return safe_to_evict

    def finish(self, timestamp: int) -> None:
        """Records that the batch with this timestamp has been written back."""
        with self._changed:
            self._finished.add(timestamp)
            while self._mft + 1 in self._finished:
                self._mft += 1
                self._finished.remove(self._mft)
            self._changed.notify_all()

    def wait_before(self, timestamp: int) -> None:
        """Waits until every batch before the one with this timestamp has been written back."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self._mft >= timestamp - 1)
            if self._aborted:
                raise Closed("ledger")

    def abort(self) -> None:
        """Makes every call that waits, now or later, raise `Closed`."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()
