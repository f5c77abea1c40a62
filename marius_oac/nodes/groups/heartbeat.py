"""Detects lost members: they exchange heartbeats in a thread and over connections of their own.

Guarantees:
- A member whose process has ended is lost at once. One that is silent for `timeout` seconds (frozen, cut off) is lost
  then. One that computes is not lost, however long it takes. All members learn the name of the one that was lost.
- When a member is lost the calls of every group end. When it aborts a group, the calls of that group end.
- A member that leaves announces it and is not lost. `leave` returns when its thread has ended: when its neighbours
  know, or after `timeout` if one of them is silent.
- A process has O(log N) connections, and sends O(log N) messages within an eighth of `timeout`.

The protocol is in `membership.py`, who watches whom in `overlay.py`, the connections in `links.py`. gloo's
point-to-point calls are of no use for it: each process group connects all members, and one call that times out closes
all connections. The rendezvous' store has no timeouts and would be a single point of failure, so members meet by it and
use it no more.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from torch.distributed import Store

from marius_oac.nodes.groups.links import Links
from marius_oac.nodes.groups.membership import Fact, Kind, Member
from marius_oac.nodes.transport.contract import SECRET_BYTES
from marius_oac.runtime.workers import join

_VERDICT = 3.0
"""Seconds within which the reason why a call has failed becomes known: a message to each of a few members in turn."""


class Heartbeat:
    """Exchanges heartbeats with the neighbours among all members, from its creation until `leave`; collective.

    Args:
        store: by which the members meet. Nobody else has it: it carries the secret with which they know each other.
        host: IP address to listen at.
        rank: this member's.
        names: of the members.
        timeout: seconds of silence after which a member is lost.
        end: makes waiting calls of this member raise, those of the group of this number or, for None, all; called by
            the heartbeat's thread.

    Attributes:
        lost: the name of the first member that was lost, and why.
        excused: members that no call of this member needs any more: none fails because they have left.

    Raises:
        RuntimeError: not all members came to the store, or not all neighbours could be connected, within `timeout`.
        OSError: it can't listen.
    """

    def __init__(
        self, store: Store, host: str, rank: int, names: Sequence[str], timeout: float,
        end: Callable[[int | None], None],
    ) -> None:  # fmt: skip
        self._rank, self._names, self._timeout, self._end = rank, names, timeout, end
        self.lost: tuple[str, str] | None = None
        self.excused: set[int] = set()
        self._left: list[int] = []
        self._aborted: dict[int, int] = {}
        self._aborting: deque[int] = deque()
        self._changed = threading.Condition()
        self._leaving = self._linked = self._ended = self._begun = self._given_up = False
        if rank == 0:
            store.set("secret", secrets.token_hex(SECRET_BYTES))
        self._links = Links(rank, len(names), host, bytes.fromhex(store.get("secret").decode()), timeout)
        self._member = Member(rank, len(names), timeout, self._links)
        self._thread = threading.Thread(target=self._run, name="heartbeat")
        try:
            store.set(f"{rank}", json.dumps(self._links.address))
            addresses = store.multi_get([f"{each}" for each in range(len(names))])
        except BaseException:
            self._links.end()
            raise
        self._links.attach(self._member, [(host, port) for host, port in map(json.loads, addresses)])
        try:
            self._thread.start()
            self._await_neighbours()
        except BaseException:
            self.leave()
            self._give_up()
            raise

    def abort(self, slot: int) -> None:
        """Tells the others that this member has aborted the group of this number; never waits."""
        self._aborting.append(slot)
        self._links.wake()

    def await_verdict(self, slot: int) -> tuple[str, str] | None:
        """Returns the name of the member that made a call of a group fail, and why; None: no member did.

        Called after the call has failed: it waits for up to `_VERDICT` seconds, in which every reason becomes known.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._verdict(slot) or self._ended, _VERDICT)
            return self._verdict(slot)

    def patience(self, slot: int) -> float | None:
        """Seconds within which a call of a group must have ended, from now on; None: it may take any time.

        At once if a member was lost or has aborted the group. What a member that has left had sent may still be on its
        way, but for no longer than a heartbeat may.
        """
        with self._changed:
            if self._verdict(slot) is None:
                return None
            return 0.0 if self.lost is not None or slot in self._aborted else self._timeout

    def leave(self) -> None:
        """Announces that this member leaves, and ends the thread."""
        self._leaving = True
        self._links.wake()
        join(self._thread)

    def _verdict(self, slot: int) -> tuple[str, str] | None:
        if self.lost is not None:
            return self.lost
        if left := [peer for peer in self._left if peer not in self.excused]:
            return self._names[left[0]], "has left the group"
        return (self._names[self._aborted[slot]], "has aborted") if slot in self._aborted else None

    def _await_neighbours(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._linked or self.lost or self._ended, self._timeout)
            if not self._linked and not self.lost:
                missing = ", ".join(self._names[each] for each in sorted(self._member.missing))
                raise RuntimeError(f"no connection for heartbeats with {missing}")

    def _give_up(self) -> None:
        """Ends the links if the thread has not begun: a signal may interrupt its start."""
        with self._changed:
            self._given_up = not self._begun
        if self._given_up:
            self._links.end()

    def _run(self) -> None:
        with self._changed:
            self._begun = not self._given_up
        if not self._begun:
            return
        try:
            self._member.start(time.monotonic())
            while not self._member.done:
                self._links.wait(self._member.wait)
                self._turn()
        except BaseException as error:  # its calls must not wait for ever; Python prints the traceback
            with self._changed:
                self.lost = self.lost or (self._names[self._rank], f"its heartbeats have failed: {error!r}")
            self._end(None)
            raise
        finally:
            self._links.end()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _turn(self) -> None:
        """Sends what follows from what has come, then tells the calls of this member."""
        while self._aborting:
            self._member.abort(self._aborting.popleft())
        if self._leaving:
            self._member.leave(time.monotonic())
        self._member.tick(time.monotonic())
        news, self._member.news = self._member.news, []
        with self._changed:
            for fact in news:
                self._note(fact)
            self._linked = not self._member.missing
            self._changed.notify_all()
        for fact in news:
            if fact.kind is Kind.ABORTED and fact.subject != self._rank:
                self._end(fact.number)
            elif fact.kind not in (Kind.ABORTED, Kind.LEFT):
                self._end(None)

    def _note(self, fact: Fact) -> None:
        match fact.kind:
            case Kind.LEFT:
                self._left.append(fact.subject)
            case Kind.ABORTED if fact.subject != self._rank:
                self._aborted[fact.number] = fact.subject
            case Kind.ENDED:
                self.lost = self._names[fact.subject], "has ended: its connection is closed"
            case Kind.SILENT:
                self.lost = self._names[fact.subject], f"has not been heard of for {self._timeout:g} s"
            case Kind.CUT:
                silent = f"{self._names[fact.by]} has not heard of it for {self._timeout:g} s, but others have"
                self.lost = self._names[fact.subject], f"{silent}: the connection between them is cut"
            case Kind.INVALID:
                self.lost = self._names[fact.subject], "has sent an invalid heartbeat"
