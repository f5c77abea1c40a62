"""Detects lost members: they exchange heartbeats in a thread and over connections of their own.

Guarantees:
- A member whose process has ended is lost at once. One that is silent for `timeout` seconds (frozen, cut off) is lost
  then. One that computes is not lost, however long it takes. Each member finds out from its own connections.
- When a member is lost the calls of every group end. When it aborts a group, the calls of that group end.
- A member that leaves announces it and is not lost. `leave` returns when its thread has ended, which takes at most a
  round of the others, or `timeout` if one of them is silent.

A round sends one message to each member and receives one from each, with gloo's point-to-point calls. They have
timeouts and name the peer; the rendezvous' store has neither, and would be a single point of failure.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from marius_oac.types import present

SLOTS = 128
"""Numbers in a message: whether the sender leaves, then for each group whether the sender has aborted it."""
_TAG = 1
INTERVAL = 1.0
"""Seconds between two rounds, at most."""


class Heartbeat:
    """Exchanges heartbeats with all members, from its creation until `leave`.

    Args:
        group: a process group of all members that nothing else uses.
        rank: this member's.
        names: of the members.
        timeout: seconds of silence after which a member is lost.
        end: makes waiting calls of this member raise, those of the group of this number or, for None, all; called by
            the heartbeat's thread.

    Attributes:
        aborted: for each group, 1 if this member has aborted it.
        lost: the name of the first member that was lost, and why.
        excused: members that no call of this member needs any more: none fails because they have left.
    """

    def __init__(
        self, group: ProcessGroup, rank: int, names: Sequence[str], timeout: float, end: Callable[[int | None], None]
    ) -> None:
        self._group: ProcessGroup | None = group
        self._names, self._timeout, self._end = names, timeout, end
        self._interval = min(INTERVAL, timeout / 8)
        self._leaving = threading.Event()
        self._changed = threading.Condition()
        self._ended = False
        self._there = [peer for peer in range(len(names)) if peer != rank]
        self._heard: dict[int, list[int]] = {}
        self.aborted = [0] * (SLOTS - 1)
        self.lost: tuple[str, str] | None = None
        self._left: list[int] = []
        self.excused: set[int] = set()
        self._thread = threading.Thread(target=self._run, name="heartbeat")
        self._thread.start()

    def await_verdict(self, slot: int) -> tuple[str, str] | None:
        """Returns the name of the member that made a call of a group fail, and why; None: no member did.

        Called after the call has failed: it waits for up to two rounds, in which every reason becomes known.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._verdict(slot) or self._ended, 2 * self._interval + 1)
            return self._verdict(slot)

    def _verdict(self, slot: int) -> tuple[str, str] | None:
        aborted = [peer for peer, said in sorted(self._heard.items()) if said[slot]]
        if self.lost is not None:
            return self.lost
        if left := [peer for peer in self._left if peer not in self.excused]:
            return self._names[left[0]], "has left the group"
        return (self._names[aborted[0]], "has aborted") if aborted else None

    def leave(self) -> None:
        """Announces that this member leaves, and ends the thread."""
        self._leaving.set()
        self._thread.join()
        self._group = None  # its connections close with the last reference

    def _run(self) -> None:
        try:
            leaves = False
            while self._there and not leaves:
                leaves = self._leaving.wait(self._interval)
                before = self.lost
                self._round(leaves)
                if self.lost is not before and not leaves:
                    self._end(None)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _round(self, leaves: bool) -> None:
        message = torch.tensor([int(leaves), *self.aborted], dtype=torch.int64)
        answers = {peer: torch.empty_like(message) for peer in self._there}
        sent = {peer: self._attempt(peer, dist.isend, message) for peer in self._there}
        received = {peer: self._attempt(peer, dist.irecv, answers[peer]) for peer in self._there}
        for peer in list(self._there):
            if self._wait(peer, received[peer]) and self._wait(peer, sent[peer]):
                self._hear(peer, *answers[peer].tolist())

    def _hear(self, peer: int, leaves: int, *aborted: int) -> None:
        with self._changed:
            before = self._heard.get(peer, [0] * len(aborted))
            self._heard[peer] = list(aborted)
            self._changed.notify_all()
        for slot, (was, now) in enumerate(zip(before, aborted, strict=True)):
            if now and not was:
                self._end(slot)
        if leaves:
            self._forget(peer, left=True)

    def _attempt(self, peer: int, call: Callable[..., Work | None], tensor: torch.Tensor) -> Work | RuntimeError:
        """Starts a send or a receive; returns its work, or the error that it failed with."""
        try:
            return present(call(tensor, peer, self._group, _TAG))
        except RuntimeError as error:
            return error

    def _wait(self, peer: int, work: Work | RuntimeError) -> bool:
        """Waits for a send or a receive; if it fails, the peer is lost, unless another member was before. Returns
        whether it succeeded."""
        if peer not in self._there:
            return False
        try:
            if isinstance(work, RuntimeError):
                raise work
            work.wait(timedelta(seconds=self._timeout))
            return True
        except RuntimeError as error:
            if "Timed out" in str(error):
                self._forget(peer, f"has not been heard of for {self._timeout:g} s")
                self._there.clear()  # gloo has closed all connections
            else:
                self._forget(peer, "has ended: its connection is closed")
            return False

    def _forget(self, peer: int, why: str = "", left: bool = False) -> None:
        with self._changed:
            self._there.remove(peer)
            if left:
                self._left.append(peer)
            elif self.lost is None:
                self.lost = self._names[peer], why
            self._changed.notify_all()
