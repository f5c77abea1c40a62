"""Members of a group in a simulated network: slow ones, some that end, freeze, are cut off, leave or abort.

A message takes 0.1 to 0.5 ms, one of a hundred 50 ms. Each twentieth member is slow: again and again its thread does
not run for 0.1 to 0.6 of the timeout. A process that has learnt a verdict ends within a second, every third of them
without leaving. `simulate` raises AssertionError if a member learns anything wrong, or too late.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from marius_oac.nodes.groups.membership import BEATS, Fact, Kind, Member
from marius_oac.nodes.groups.overlay import neighbours

TIMEOUT, SETTLED, SLOW = 8.0, 4.0, 0.6
_BEAT = TIMEOUT / BEATS
_LOOK = 0.05


class Process:
    """A simulated process: a member, its links with their peers, those among them over which nothing has come yet since
    it opened them, and what waits to be read."""

    def __init__(self, world: World, rank: int, slow: bool):
        self.world, self.rank, self.slow = world, rank, slow
        self.member = Member(rank, world.size, TIMEOUT, self)
        self.links: dict[int, int] = {}
        self.proving: set[int] = set()
        self.inbox: list[Callable[[], None]] = []
        self.there, self.frozen, self.busy_until, self._wake = True, False, 0.0, -1.0
        self.knew: float | None = None
        self.sent = 0
        self.heard: list[Fact] = []

    def open(self, peer: int) -> None:
        """See `Wires`: the handshake takes two ways there and back."""
        world = self.world
        other = world.processes[peer]

        def shake() -> None:
            if not world.passes(self.rank, peer) or other.frozen:
                world.after(TIMEOUT, lambda: self.take(lambda: self.member.failed(peer, world.now)))
            elif not other.there or not self.there:
                self.take(lambda: self.member.failed(peer, world.now))
            else:
                link = world.number()
                self.links[link], other.links[link] = peer, self.rank
                self.proving.add(link)  # until the other end sends something
                world.after(TIMEOUT, lambda: self.give_up(link))
                other.take(lambda: other.member.linked(link, self.rank, world.now))

        world.after(4 * world.takes(), shake)

    def send(self, link: int, beat: int, facts: Iterable[Fact]) -> None:
        """See `Wires`."""
        self.sent += 1
        said = list(facts)
        self._carry(link, lambda other: other.received(link, beat, said))

    def close(self, link: int) -> None:
        """See `Wires`."""
        self._carry(link, lambda other: other.ended(link))
        del self.links[link]

    def give_up(self, link: int) -> None:
        """The other end has not said anything in time."""
        if self.there and link in self.links and link in self.proving:
            peer = self.links[link]
            self.close(link)
            self.take(lambda: self.member.failed(peer, self.world.now))

    def received(self, link: int, beat: int, facts: Iterable[Fact]) -> None:
        """A message has come."""
        if link in self.proving and link in self.links:
            self.proving.discard(link)
            self.member.linked(link, self.links[link], self.world.now)
        self.member.received(link, beat, facts, self.world.now)

    def ended(self, link: int) -> None:
        """The other end has closed a link."""
        peer = self.links.pop(link, None)
        if peer is not None and link in self.proving:
            self.member.failed(peer, self.world.now)
        elif peer is not None:
            self.member.ended(link, self.world.now)

    def end(self) -> None:
        """The process ends, in whatever way: the kernel closes its links."""
        if self.there:
            self.there = False
            for link in list(self.links):
                self.close(link)

    def freeze(self) -> None:
        """The process stops."""
        self.frozen = True

    def take(self, event: Callable[[], None]) -> None:
        """Something has come, which the thread handles when it runs."""
        self.inbox.append(event)
        self.plan(self.world.draw.uniform(0.0, 2e-4))

    def plan(self, after: float) -> None:
        """The thread runs after so many seconds, or when it runs at all."""
        world = self.world
        at = max(world.now + after, self.busy_until)
        if not self.frozen and self.there and (self._wake <= world.now or at < self._wake):
            self._wake = at
            world.after(at - world.now, lambda: self._run() if self._wake == at else None)

    def _run(self) -> None:
        world = self.world
        if not self.there or self.frozen:
            return
        events, self.inbox = self.inbox, []
        for event in events:
            event()
        self.member.tick(world.now)
        news, self.member.news = self.member.news, []
        for fact in news:
            self.heard.append(fact)
            if fact.kind is not Kind.LEFT and self.knew is None:
                self.knew = world.now
                if self.member.rank != fact.subject or fact.kind is not Kind.ABORTED:
                    orderly = world.draw.random() > 1 / 3
                    world.after(world.draw.uniform(0.0, 1.0), self.leave if orderly else self.end)
        if self.member.done:
            self.end()
        self._wake = -1.0
        if self.slow and world.settled and world.draw.random() < 0.1:
            self.busy_until = world.now + world.draw.uniform(0.1, SLOW) * TIMEOUT
        self.plan(max(1e-4, self.member.wait))

    def leave(self) -> None:
        """The owner closes the group."""
        self.take(lambda: self.member.leave(self.world.now))

    def abort(self) -> None:
        """The owner aborts group 3, and leaves."""
        self.take(lambda: self.member.abort(3))
        self.leave()

    def _carry(self, link: int, event: Callable[[Process], None]) -> None:
        world, other = self.world, self.world.processes[self.links[link]]
        if world.passes(self.rank, other.rank):
            key = link, self.rank
            arrives = world.arrivals[key] = max(world.arrivals.get(key, 0.0), world.now + world.takes())
            world.after(arrives - world.now, lambda: other.take(lambda: event(other)) if other.there else None)


class World:
    """So many processes, all linked and running since `SETTLED` seconds."""

    def __init__(self, size: int, seed: int):
        self.size, self.draw, self.now = size, random.Random(f"{size} {seed}"), 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self.settled = 0, False
        self.arrivals: dict[tuple[int, int], float] = {}
        self.sides: Callable[[int, int], bool] = lambda one, other: False
        slow = set(self.draw.sample(range(size), -(-size // 20)))
        self.processes = [Process(self, rank, rank in slow) for rank in range(size)]
        for each in self.processes:
            each.take(lambda each=each: each.member.start(self.now))  # type: ignore[misc]
        self.run(4 * TIMEOUT, lambda: not any(each.member.missing for each in self.processes))
        assert not any(each.member.missing for each in self.processes), "not linked"
        self.settled = True
        self.run(SETTLED)

    def number(self) -> int:
        """Returns a number that was not used before."""
        self._order += 1
        return self._order

    def takes(self) -> float:
        """Returns the seconds that a message is on its way."""
        return 0.050 if self.draw.random() < 0.01 else self.draw.uniform(1e-4, 5e-4)

    def passes(self, one: int, other: int) -> bool:
        """Whether messages pass between two members."""
        return not self.sides(one, other)

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Has something happen."""
        heapq.heappush(self._events, (self.now + seconds, self.number(), event))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Lets so many seconds pass; looks every `_LOOK` whether that is enough."""
        end = self.now + seconds
        while self.now < end and not until():
            look = min(end, self.now + _LOOK)
            while self._events and self._events[0][0] <= look:
                self.now, _, event = heapq.heappop(self._events)
                event()
            self.now = look

    def some(self, most: int) -> list[Process]:
        """Returns 1 to `most` processes, but not all."""
        return self.draw.sample(self.processes, self.draw.randint(1, max(1, min(most, self.size - 1))))


def _all_know(
    world: World, right: Callable[[Process, Fact], bool], within: float, leaving: Collection[int] = ()
) -> float:
    """Returns after how many seconds all processes but slow ones know something; that must be right, and all that run
    must end, and know unless they leave."""
    began = world.now
    waiting = [each for each in world.processes if each.there and not each.frozen]
    told_too = [each for each in waiting if each.rank not in leaving]
    world.run(within, lambda: all(each.knew is not None or not each.there for each in told_too))
    for each in told_too:
        told = [fact for fact in each.heard if fact.kind is not Kind.LEFT]
        assert told, f"{each.rank} of {world.size} knows nothing after {world.now - began:.2f} s"
        assert right(each, told[0]), f"{each.rank} of {world.size} says {told[0]}"
    took = max((each.knew - began for each in told_too if each.knew and not each.slow), default=0.0)
    world.run(1.0 + 2 * TIMEOUT, lambda: not any(each.there for each in waiting))
    assert not any(each.there for each in waiting), "somebody does not end"
    return took


_LATE = SLOW * TIMEOUT + 1.0
"""Seconds within which all know what one member knows: slow ones read it when they run again."""


def _noticed(world: World, lost: set[int]) -> float:
    """Returns the seconds within which all know who is silent. The clock of a slow process is slow; where no other one
    is a neighbour of those that are lost, it takes longer."""
    near = {each for rank in lost for each in world.processes[rank].links.values()} - lost
    slow = all(world.processes[each].slow for each in near)
    return (3 if slow else 1) * TIMEOUT + 3 * _BEAT + _LATE


def _ends(world: World, lost: Iterable[Process]) -> float:
    lost = list(lost)
    for each in lost:
        each.end()
    ranks = {each.rank for each in lost}
    return _all_know(world, lambda _, fact: fact.kind is Kind.ENDED and fact.subject in ranks, _LATE)


def _thaws(world: World) -> float:
    """A process that goes on when it has been lost is told so, and ends."""
    (one,) = world.some(1)
    took = _freezes(world, [one])
    one.frozen, one.knew = False, None
    one.plan(0.0)
    right = lambda each, fact: fact.kind is Kind.SILENT and fact.subject == one.rank  # noqa: E731
    _all_know(world, right, _LATE)
    return took


def _freezes(world: World, lost: Iterable[Process]) -> float:
    lost = list(lost)
    for each in lost:
        each.freeze()
    ranks = {each.rank for each in lost}
    return _all_know(world, lambda _, fact: fact.kind is Kind.SILENT and fact.subject in ranks, _noticed(world, ranks))


def _block(world: World) -> list[Process]:
    """A machine: neighbouring ranks, at most half of all."""
    first, count = world.draw.randrange(world.size), max(1, min(16, world.size // 2))
    return [world.processes[(first + each) % world.size] for each in range(count)]


def _split(world: World, inside: set[int]) -> float:
    world.sides = lambda one, other: (one in inside) != (other in inside)
    right = lambda each, fact: fact.kind is Kind.SILENT and (fact.subject in inside) != (each.rank in inside)  # noqa: E731
    outside = {each.rank for each in world.processes} - inside
    return _all_know(world, right, max(_noticed(world, inside), _noticed(world, outside)))


def _link(world: World) -> float:
    one = world.draw.randrange(world.size)
    ends = {one, world.draw.choice(sorted(neighbours(one, world.size)))}
    world.sides = lambda one, other: {one, other} == ends
    return _watched_link(world, ends)


def _one_way(world: World) -> float:
    """What one end says does not reach the other."""
    one = world.draw.randrange(world.size)
    other = world.draw.choice(sorted(neighbours(one, world.size)))
    world.sides = lambda *way: way == (one, other)
    return _watched_link(world, {one, other})


def _watched_link(world: World, ends: set[int]) -> float:
    # Nobody else can tell, or there were few beats that others could have had.
    one, other = (neighbours(each, world.size) - ends for each in ends)
    witnesses = [each for each in one & other if not world.processes[each].slow]
    unknown = not witnesses or any(world.processes[each].slow for each in ends)
    kinds = {Kind.CUT, Kind.SILENT} if unknown else {Kind.CUT}
    return _all_know(world, lambda _, fact: fact.kind in kinds and {fact.subject, fact.by} == ends, 3 * TIMEOUT + _LATE)


def _most_leave(world: World) -> float:
    """All but a few leave at almost the same time; of these one ends or freezes. Nobody is lost before."""
    staying = world.draw.sample(world.processes, max(2, min(world.size - 1, world.size // 8)))
    for each in world.processes:
        if each not in staying:
            world.after(world.draw.choice((0.0, 1.0)) * world.draw.random(), each.leave)
    world.run(3.0 + 2 * _LATE)
    for each in world.processes:
        assert each.there == (each in staying), f"{each.rank} of {world.size} is {'there' if each.there else 'gone'}"
    knows = {len(each.member.left) for each in staying}
    assert knows == {world.size - len(staying)}, f"members that have left are known to be {knows}"
    _nothing(world)
    return (_ends if world.draw.random() < 0.5 else _freezes)(world, staying[:1])


def _nothing(world: World) -> None:
    for each in world.processes:
        told = [fact for fact in each.heard if fact.kind is not Kind.LEFT]
        assert not told, f"{each.rank} of {world.size} says {told[0]}, but nothing has happened"


def _all_leave(world: World) -> float:
    """All leave within a second, and nobody is lost. Returns the seconds that it takes the last one."""
    last = world.now
    for each in world.processes:
        world.after(world.draw.random(), each.leave)
    world.run(1.0 + TIMEOUT + _LATE, lambda: not any(each.there for each in world.processes))
    assert not any(each.there for each in world.processes), "somebody does not end"
    _nothing(world)
    return world.now - last


def _quiet(world: World) -> float:
    """Slow members are not lost."""
    world.run(4 * TIMEOUT)
    _nothing(world)
    return 0.0


def _several(world: World) -> float:
    """Within half a second some end, some freeze, some abort and some leave; any of these is a right answer."""
    kinds = {
        Kind.ENDED: Process.end,
        Kind.SILENT: Process.freeze,
        Kind.ABORTED: Process.abort,
        Kind.LEFT: Process.leave,
    }
    drawn, count = world.draw.sample(range(1, world.size), world.size - 1), max(1, world.size // 8)
    of = {kind: set(drawn[place * count : (place + 1) * count]) for place, kind in enumerate(kinds)}
    for kind, ranks in of.items():
        for rank in ranks:
            world.after(world.draw.uniform(0.0, 0.5), partial(kinds[kind], world.processes[rank]))
    within = _noticed(world, of[Kind.SILENT])
    world.run(0.5)
    return 0.5 + _all_know(world, lambda _, fact: fact.subject in of[fact.kind], within, of[Kind.LEFT])


def _aborts(world: World) -> float:
    several = world.some(3)
    for each in several:
        each.abort()
    ranks = {each.rank for each in several}
    right = lambda _, fact: fact.kind is Kind.ABORTED and fact.subject in ranks and fact.number == 3  # noqa: E731
    return _all_know(world, right, _LATE)


TROUBLES: dict[str, Callable[[World], float]] = {
    "one ends": lambda world: _ends(world, world.some(1)),
    "several end": lambda world: _ends(world, world.some(world.size // 3)),
    "a machine ends": lambda world: _ends(world, _block(world)),
    "one freezes": lambda world: _freezes(world, world.some(1)),
    "several freeze": lambda world: _freezes(world, world.some(world.size // 3)),
    "a machine freezes": lambda world: _freezes(world, _block(world)),
    "one freezes and goes on": _thaws,
    "one is cut off": lambda world: _split(world, {world.draw.randrange(world.size)}),
    "a split in halves": lambda world: _split(
        world, set(world.draw.sample(range(world.size), max(1, world.size // 2)))
    ),
    "a link is cut": _link,
    "a link is cut one way": _one_way,
    "several at once": _several,
    "some abort": _aborts,
    "most leave, one is lost": _most_leave,
    "all leave": _all_leave,
    "slow members": _quiet,
}


def simulate(trouble: str, size: int, seed: int) -> float:
    """Returns within how many seconds all members knew.

    Raises:
        AssertionError: a member has learnt something wrong, nothing, or too late, or does not end.
    """
    return TROUBLES[trouble](World(size, seed))


def messages(size: int) -> tuple[int, float]:
    """Returns the most links of a member, and the most messages a second that one sends while nothing happens, for a
    timeout of `TIMEOUT`."""
    world = World(size, 0)
    before: list[Any] = [each.sent for each in world.processes]
    world.run(4 * TIMEOUT)
    sent = max(each.sent - was for each, was in zip(world.processes, before, strict=True))
    return max(each.member.degree for each in world.processes), sent / (4 * TIMEOUT)
