"""The protocol by which members find out who is lost: the state of one member, without sockets, threads or clocks.

Each member has links to its neighbours (`overlay.py`), O(log N) of them, and sends a message over each at least every
eighth of `timeout`: a beat, over all links at once. A message has the number of the sender's last beat and a list of
facts, mostly none. Whoever learns a fact that it did not know passes it on over its other links at once. So a fact
reaches all members in O(log N) steps.

Guarantees, where each link delivers its messages in order:
- *Ended.* A link closes with its process. Each neighbour tells this at once, unless the process has said that it
  leaves.
- *Silent.* A member that a neighbour has not heard of for `timeout` is lost. Nobody relays for another whether
  it lives, so no silence is taken for that of a member behind it. Time in which a member itself does not run is left
  out.
- *Cut.* At half of `timeout` the neighbour asks its other neighbours for the last beat of the silent member that they
  have. If one of them has a later one, the verdict names both ends of the link: the member and who has not heard of it.
  Beats are compared and not times, which mean little where a process is slow to read what has come.
- The first verdict that a member learns stays, and it passes on no other. It passes it on before its calls end, so
  before its own process ends because of it.
- *Leaving.* A member that leaves says so, and waits until its neighbours have closed their links to it, for `timeout`
  at most. A member whose neighbour has left links itself to another member. One that it can't reach has left, too, or
  its own neighbours see that it is lost.
- Of each group, who aborted it first is passed on.

Verdicts and aborts are passed on at once. Who has left is passed on within `GATHER` seconds, with others: where all of
N members leave, each would else send N messages to each neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple, Protocol

from marius_oac.nodes.groups.overlay import jumps, neighbours, next_after

BEATS = 8
"""Messages over a link within `timeout`, at least."""
GATHER = 0.1


class Kind(IntEnum):
    """What a fact says of its subject, a member."""

    LEFT = 1
    ABORTED = 2
    """It has aborted the group `number`."""
    ENDED = 3
    """Its link to `by` is closed."""
    SILENT = 4
    """`by` has not heard of it for `timeout`."""
    CUT = 5
    """`by` has not heard of it for `timeout`, but another member has."""
    INVALID = 6
    """It has sent `by` an invalid message."""
    ASKED = 7
    """The sender has not heard of it for some time, and asks for the last beat of it that the receiver has."""
    HEARD = 8
    """The last beat of it that the sender has is `number`."""


class Fact(NamedTuple):
    """A part of a message; see `Kind`."""

    kind: Kind
    subject: int
    by: int = 0
    number: int = 0


class Wires(Protocol):
    """What carries the messages of a member. It calls the member back later, never from these calls."""

    def open(self, peer: int) -> None:
        """Begins to make a link; `linked` or `failed` follows."""

    def send(self, link: int, beat: int, facts: Iterable[Fact]) -> None:
        """Sends a message; never waits."""

    def close(self, link: int) -> None:
        """Closes a link once what was sent is on its way; nothing follows."""


class _Link:
    """A link to `peer`.

    `heard`: when something came over it, by the member's clock. `beat`: the peer's last. `came`: whether anything has
    come; if not, the peer may have no such link yet, and then closes it when it leaves without saying so. `silent`: for
    so long that nothing is expected any more.
    """

    def __init__(self, peer: int, now: float, facts: Iterable[Fact]):
        self.peer, self.heard, self.beat, self.came, self.silent = peer, now, 0, False, False
        self.pending = list(facts)


class Member:
    """One member of a group.

    Its methods are told what happens, and the time in seconds. `tick`, which sends, is called after each of them, and
    when `wait` seconds have passed.

    Args:
        rank: this member's; `size`: number of members.
        timeout: seconds.
        wires: carry its messages.

    Attributes:
        lost: the first verdict; None: nobody is lost.
        left: the members that have left, as keys, in the order in which it became known.
        aborted: group -> who was the first to abort it.
        news: facts that are new since they were last taken from here: verdicts, members that left, aborts.
    """

    def __init__(self, rank: int, size: int, timeout: float, wires: Wires):
        self.rank, self._size, self._timeout, self._wires = rank, size, timeout, wires
        self._interval, self._beat = timeout / BEATS, 0
        self._clock = self._seen = 0.0
        self._links: dict[int, _Link] = {}
        self._awaited = neighbours(rank, size)
        self._fingers = {jump: (rank + jump) % size for jump in jumps(size)}
        self._opening: set[int] = set()
        self._unreached: set[int] = set()
        self._vouched: dict[int, int] = {}
        self._asked = self._beaten = self._judged = 0.0
        self._due = math.inf  # when what is pending must be sent
        self._leaving = False
        self.lost: Fact | None = None
        self.left: dict[int, None] = {}
        self.aborted: dict[int, int] = {}
        self.news: list[Fact] = []

    @property
    def missing(self) -> set[int]:
        """Neighbours of which nothing has come yet since the start."""
        return self._awaited

    @property
    def done(self) -> bool:
        """Whether it has left: nobody waits for anything from it."""
        return self._leaving and all(state.silent for state in self._links.values())

    @property
    def wait(self) -> float:
        """Seconds until `tick` must be called, if nothing happens before."""
        return min(self._beaten + self._interval, self._due) - self._clock

    @property
    def degree(self) -> int:
        """Number of links."""
        return len(self._links)

    def start(self, now: float) -> None:
        """Begins to link itself to its neighbours. Of two the one that is `jump` below the other opens the link."""
        self._seen = now
        for jump, peer in self._fingers.items():
            if 2 * jump < self._size or self.rank < peer:
                self._open(peer)

    def linked(self, link: int, peer: int, now: float) -> None:
        """There is a new link, opened by either end."""
        self._advance(now)
        known = [Fact(Kind.LEFT, each) for each in self.left]
        known += [Fact(Kind.ABORTED, who, 0, number) for number, who in self.aborted.items()]
        known += [] if self.lost is None else [self.lost]
        known += [Fact(Kind.LEFT, self.rank)] if self._leaving else []
        self._links[link] = _Link(peer, self._clock, known)
        self._opening.discard(peer)
        self._unreached.discard(peer)
        self._send(link, self._links[link])

    def failed(self, peer: int, now: float) -> None:
        """A link could not be made."""
        self._advance(now)
        self._opening.discard(peer)
        self._unreached.add(peer)

    def received(self, link: int, beat: int, facts: Iterable[Fact], now: float) -> None:
        """A message has come."""
        self._advance(now)
        if link in self._links:
            state = self._links[link]
            state.heard, state.beat, state.came = self._clock, beat, True
            self._awaited.discard(state.peer)
            for fact in facts:
                self._learn(fact, link)

    def ended(self, link: int, now: float, kind: Kind = Kind.ENDED) -> None:
        """A link is closed by the other end, or (INVALID) because of what has come over it."""
        self._advance(now)
        state = self._links.pop(link, None)
        if state is not None and state.peer not in self.left and (state.came or kind is Kind.INVALID):
            self._convict(Fact(kind, state.peer, self.rank))

    def abort(self, group: int) -> None:
        """This member aborts a group."""
        self._learn(Fact(Kind.ABORTED, self.rank, 0, group), None)

    def leave(self, now: float) -> None:
        """This member leaves."""
        self._advance(now)
        if not self._leaving:
            self._leaving = True
            self._spread(Fact(Kind.LEFT, self.rank), None)
            self._due = self._clock

    def tick(self, now: float) -> None:
        """Looks who is silent, replaces neighbours that are gone, and sends what there is to send."""
        self._advance(now)
        if self._clock - self._judged >= self._interval / 4:
            self._judged = self._clock
            self._judge()
        if not self._leaving:
            self._replace()
        if beats := self._clock - self._beaten >= self._interval:
            self._beaten, self._beat = self._clock, self._beat + 1
        if due := self._clock >= self._due:
            self._due = math.inf
        for link, state in list(self._links.items()):
            if beats or (due and state.pending):
                self._send(link, state)
            if state.peer in self.left:
                del self._links[link]
                self._wires.close(link)

    def _advance(self, now: float) -> None:
        """Its clock stands still while it does not run itself: then it can't hear the others."""
        self._clock += min(now - self._seen, 2 * self._interval)
        self._seen = now

    def _send(self, link: int, state: _Link) -> None:
        facts, state.pending = state.pending, []
        self._wires.send(link, self._beat, facts)

    def _spread(self, fact: Fact, source: int | None) -> None:
        for link, state in self._links.items():
            if link != source:
                state.pending.append(fact)

    def _learn(self, fact: Fact, source: int | None) -> None:
        match fact.kind:
            case Kind.LEFT:
                if fact.subject in self.left or fact.subject == self.rank:
                    return
                self.left[fact.subject] = None
                self._due = min(self._due, self._clock + GATHER)
            case Kind.ABORTED:
                if fact.number in self.aborted:
                    return
                self.aborted[fact.number] = fact.subject
            case Kind.ASKED:
                self._answer(fact.subject, source)
                self._due = self._clock
                return
            case Kind.HEARD:
                self._vouched[fact.subject] = max(fact.number, self._vouched.get(fact.subject, 0))
                return
            case _:
                if self.lost is not None:
                    return
                self.lost = fact
        if fact.kind is not Kind.LEFT or self._leaving:
            self._due = self._clock
        self.news.append(fact)
        self._spread(fact, source)

    def _convict(self, fact: Fact) -> None:
        """Finds a member lost by itself; while it leaves, that is up to the others."""
        if not self._leaving:
            self._learn(fact, None)

    def _peers(self) -> dict[int, tuple[float, int]]:
        """When this member last heard of each neighbour that has not left, and the neighbour's last beat."""
        found: dict[int, tuple[float, int]] = {}
        for state in self._links.values():
            if state.peer not in self.left:
                found[state.peer] = max((state.heard, state.beat), found.get(state.peer, (0.0, 0)))
        return found

    def _answer(self, subject: int, source: int | None) -> None:
        peers = self._peers()
        if subject in peers and source in self._links:
            self._links[source].pending.append(Fact(Kind.HEARD, subject, self.rank, peers[subject][1]))

    def _judge(self) -> None:
        silent = {peer: each for peer, each in self._peers().items() if self._clock - each[0] >= self._timeout / 2}
        for peer, (heard, beat) in silent.items():
            if self._clock - heard >= self._timeout:
                # A process that stops in the middle of a beat has sent it to some neighbours only.
                cut = self._vouched.get(peer, 0) > beat + 1
                self._convict(Fact(Kind.CUT if cut else Kind.SILENT, peer, self.rank))
                for state in self._links.values():
                    state.silent = state.silent or state.peer == peer
        if silent and self._clock - self._asked >= self._interval:
            self._asked = self._due = self._clock
            for state in self._links.values():
                state.pending += [Fact(Kind.ASKED, peer) for peer in silent if peer != state.peer]

    def _replace(self) -> None:
        """Links itself to others in place of the neighbours above that are gone."""
        for jump, peer in self._fingers.items():
            if peer in self.left or peer in self._unreached:
                gone = self._unreached.union(self.left)
                self._fingers[jump] = next_after(self.rank, jump, self._size, gone)
                self._open(self._fingers[jump])

    def _open(self, peer: int) -> None:
        there = any(state.peer == peer for state in self._links.values())
        if peer != self.rank and peer not in self._opening and not there:
            self._opening.add(peer)
            self._wires.open(peer)
