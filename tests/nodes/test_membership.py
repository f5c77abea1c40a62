"""The protocol by which members find out who is lost: in a simulated network, and one member by itself."""

import random
from collections import deque

import pytest

from benchmarks.nodes import heartbeats, simulated_members
from benchmarks.nodes.simulated_members import TIMEOUT, TROUBLES, World, simulate
from marius_oac.nodes.groups.membership import BEATS, GATHER, Fact, Kind, Member
from marius_oac.nodes.groups.overlay import MESH, jumps, neighbours, next_after

BEAT = TIMEOUT / BEATS
SIZES = (1, 2, 3, 8, MESH, MESH + 1, 24, 64, 100, 256, 1000)


def reached(size, gone=()):
    """Steps from one member that is not gone to each other: breadth first."""
    first = next(rank for rank in range(size) if rank not in gone)
    steps, waiting = {first: 0}, deque([first])
    while waiting:
        one = waiting.popleft()
        for other in neighbours(one, size) - set(gone) - set(steps):
            steps[other] = steps[one] + 1
            waiting.append(other)
    return steps


@pytest.mark.parametrize("size", SIZES)
def test_members_have_few_neighbours_near_all_others(size):
    degrees = {len(neighbours(rank, size)) for rank in range(size)}
    assert all(rank in neighbours(other, size) for rank in range(size) for other in neighbours(rank, size))
    if size <= MESH:
        assert degrees == {size - 1}
    else:
        assert len(degrees) == 1 and degrees.pop() <= 2 * size.bit_length() - 1
    assert max(reached(size).values()) <= 1 + size.bit_length() // 2


@pytest.mark.parametrize("size", [size for size in SIZES if size > 2])
def test_members_stay_connected_when_fewer_are_gone_than_one_has_neighbours(size):
    draw = random.Random(size)
    near = sorted(neighbours(0, size))
    for gone in [near[1:], *(draw.sample(range(size), len(near) - 1) for _ in range(5))]:
        assert len(reached(size, gone)) == size - len(gone)
    assert len(reached(size, near)) == (1 if near[0] else size - len(near))


@pytest.mark.parametrize("size", SIZES)
def test_neighbours_have_neighbours_in_common(size):
    if size > 2:
        assert all(neighbours(0, size) & neighbours(other, size) for other in neighbours(0, size))


def test_a_neighbour_that_is_gone_is_replaced_in_the_ring_of_the_others():
    assert [next_after(5, 1, 8, {6, 7}), next_after(5, 2, 8, {6, 7}), next_after(5, 3, 4 + 4, {0, 6, 7})] == [0, 1, 3]
    assert next_after(5, 3, 8, set(range(8)) - {5}) == 5


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("size", [3, 20])
def test_every_trouble_is_named_by_all_in_time(trouble, size):
    simulate(trouble, size, 0)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("size, seeds", [(2, 40), (3, 40), (8, 20), (17, 10), (64, 3)])
def test_every_trouble_is_named_in_many_networks(trouble, size, seeds):
    for seed in range(1, seeds):
        simulate(trouble, size, seed)


@pytest.mark.parametrize("trouble", ["one freezes", "a link is cut", "slow members", "one ends"])
def test_the_simulation_finds_wrong_protocols(trouble, monkeypatch):
    if trouble == "slow members":  # the clock goes on while the member does not run
        monkeypatch.setattr(Member, "_advance", lambda self, now: setattr(self, "_clock", now))
        monkeypatch.setattr(simulated_members, "SLOW", 1.2)
    elif trouble == "one ends":
        monkeypatch.setattr(Member, "_spread", lambda self, fact, source: None)
    else:
        monkeypatch.setattr(Member, "_answer", lambda self, subject, source: None)
    sizes = 20, 8
    if trouble == "one freezes":  # the answer is about nobody
        monkeypatch.setattr(Member, "_answer", lambda self, subject, source: self._links[source].pending.append(
            Fact(Kind.HEARD, subject, self.rank, 1 << 20)))  # fmt: skip
    with pytest.raises(AssertionError, match="says|knows nothing"):
        for size in sizes:
            for seed in range(5):
                simulate(trouble, size, seed)


def test_a_member_sends_a_beat_to_each_neighbour_and_has_few_links_when_many_have_left():
    assert simulated_members.messages(8) == (7, pytest.approx(7 / BEAT, rel=0.1))
    assert simulated_members.messages(40) == (10, pytest.approx(10 / BEAT, rel=0.25))
    world = World(40, 0)
    for each in world.processes[8:]:
        each.leave()
    world.run(2 * TIMEOUT)
    degrees = [each.member.degree for each in world.processes if each.there]
    assert len(degrees) == 8 and max(degrees) <= 2 * len(jumps(40))


class Wires:
    """Keeps what a member sends and does."""

    def __init__(self):
        self.opened, self.sent, self.closed = [], [], []

    def open(self, peer):
        self.opened.append(peer)

    def send(self, link, beat, facts):
        self.sent.append((link, beat, list(facts)))

    def close(self, link):
        self.closed.append(link)

    def facts(self):
        found, self.sent = [(link, fact) for link, _, facts in self.sent for fact in facts], []
        return found


@pytest.fixture
def member():
    """Member 0 of 4, with link 10 + r to member r."""
    wires = Wires()
    member = Member(0, 4, TIMEOUT, wires)
    member.start(100.0)
    assert wires.opened == [1, 2]
    for peer in (1, 2, 3):
        member.linked(10 + peer, peer, 100.0)
    assert member.missing == {1, 2, 3}
    for peer in (1, 2, 3):
        member.received(10 + peer, 0, [], 100.0)
    assert not member.missing
    member.tick(100.0)
    wires.sent.clear()
    return member


def passes(member, seconds, heard=()):
    """Time passes, in which these links are heard of."""
    now = member._seen
    for _ in range(round(seconds / BEAT)):
        now += BEAT
        for link in heard:
            member.received(link, round(now - 100), [], now)
        member.tick(now)
    return now


def test_the_first_verdict_stays_and_is_passed_on_once(member):
    first, second = Fact(Kind.ENDED, 2, 1), Fact(Kind.SILENT, 3, 1)
    member.received(11, 1, [first, second], 100.1)
    member.received(13, 1, [first], 100.1)
    member.ended(12, 100.1)
    member.tick(100.1)
    assert member._wires.facts() == [(13, first)] and member.lost == first and member.news == [first]
    member.linked(14, 3, 100.2)
    assert member._wires.facts() == [(14, first)]


def test_the_first_abort_of_each_group_is_passed_on(member):
    first, other = Fact(Kind.ABORTED, 2, 0, 5), Fact(Kind.ABORTED, 0, 0, 6)
    member.received(12, 1, [first], 100.1)
    member.abort(5)
    member.received(13, 1, [Fact(Kind.ABORTED, 3, 0, 5)], 100.1)
    member.abort(6)
    member.tick(100.1)
    told = member._wires.facts()
    assert [fact for link, fact in told if link == 12] == [other]
    assert [fact for link, fact in told if link == 11] == [first, other] == member.news
    member.linked(14, 3, 100.2)
    assert member._wires.facts() == [(14, first), (14, other)]


def test_a_silent_member_is_asked_after_at_half_time_and_lost_at_the_end(member):
    passes(member, TIMEOUT / 2 - BEAT, (11, 12))
    assert not member._wires.facts() and member.lost is None
    now = passes(member, BEAT, (11, 12))
    assert member._wires.facts() == [(link, Fact(Kind.ASKED, 3)) for link in (11, 12)]
    member.received(11, 4, [Fact(Kind.HEARD, 3, 1, 1)], now)  # a beat that had reached one of two when it stopped
    passes(member, TIMEOUT / 2 - BEAT, (11, 12))
    assert member.lost is None
    passes(member, BEAT, (11, 12))
    assert member.lost == Fact(Kind.SILENT, 3, 0)


def test_a_link_is_cut_where_another_member_has_later_beats(member):
    now = passes(member, TIMEOUT - BEAT, (11, 12))
    member.received(11, 4, [Fact(Kind.HEARD, 3, 1, 2)], now)
    passes(member, BEAT, (11, 12))
    assert member.lost == Fact(Kind.CUT, 3, 0)


def test_a_member_says_which_beat_it_has_of_another(member):
    now = passes(member, 3 * BEAT, (11, 12, 13))
    member._wires.sent.clear()
    member.received(11, 4, [Fact(Kind.ASKED, 3), Fact(Kind.ASKED, 0)], now)
    member.tick(now)
    assert member._wires.facts() == [(11, Fact(Kind.HEARD, 3, 0, 3))]


def test_a_member_that_did_not_run_blames_nobody(member):
    member.tick(100.0 + 5 * TIMEOUT)
    assert member.lost is None
    now = passes(member, TIMEOUT - 3 * BEAT)
    assert member.lost is None
    member.tick(now + BEAT)
    assert member.lost is not None


def test_who_leaves_waits_until_the_others_have_closed(member):
    member.leave(100.1)
    member.tick(100.1)
    assert member._wires.facts() == [(link, Fact(Kind.LEFT, 0)) for link in (11, 12, 13)] and not member.done
    member.received(12, 1, [Fact(Kind.LEFT, 2)], 100.2)
    member.tick(100.2)
    assert member._wires.closed == [12]
    member.ended(11, 100.2)
    assert not member.done and member.lost is None
    passes(member, TIMEOUT)  # the third is silent
    assert member.done and member.lost is None


def test_who_leaves_itself_passes_on_at_once_who_has_left(member):
    left = Fact(Kind.LEFT, 2)
    member.leave(100.1)
    member.tick(100.1)
    member._wires.sent.clear()
    member.received(13, 1, [left], 100.2)
    member.tick(100.2)
    assert (11, left) in member._wires.facts()


def test_a_new_link_to_one_that_leaves_is_told_so(member):
    member.leave(100.1)
    member.tick(100.1)
    member._wires.sent.clear()
    member.linked(20, 3, 100.2)
    assert member._wires.facts() == [(20, Fact(Kind.LEFT, 0))]


def test_a_new_link_over_which_nothing_has_come_may_close(member):
    """The other end may have left before it knew that the link was there."""
    member.linked(20, 3, 100.1)
    member.ended(20, 100.1)
    assert member.lost is None
    member.linked(21, 3, 100.1)
    member.received(21, 0, [], 100.1)
    member.ended(21, 100.1)
    assert member.lost == Fact(Kind.ENDED, 3, 0)


def test_a_new_link_over_which_nothing_valid_comes_is_told(member):
    member.linked(20, 3, 100.1)
    member.ended(20, 100.1, Kind.INVALID)
    assert member.lost == Fact(Kind.INVALID, 3, 0)


def test_who_has_left_is_closed_and_not_lost(member):
    left = Fact(Kind.LEFT, 2)
    member.received(13, 1, [left], 100.1)  # which had it from member 2
    member.tick(100.1)
    assert member._wires.facts() == [] and member._wires.closed == [12] and member.wait == pytest.approx(GATHER)
    member.ended(12, 100.1)
    member.tick(100.11 + GATHER)
    assert member._wires.facts() == [(11, left)]
    assert member.lost is None and list(member.left) == [2] and member._wires.opened == [1, 2]


def test_who_says_that_it_leaves_and_ends_at_once_is_not_lost(member):
    member.received(12, 1, [Fact(Kind.LEFT, 2)], 100.1)
    member.ended(12, 100.1)
    assert member.lost is None and list(member.left) == [2]


def test_one_that_can_not_be_reached_is_passed_over():
    wires = Wires()
    member = Member(0, 40, TIMEOUT, wires)
    member.start(0.0)
    assert wires.opened == [1, 2, 4, 8, 16]
    member.linked(1, 1, 0.0)
    member.received(1, 1, [Fact(Kind.LEFT, 1), Fact(Kind.LEFT, 2), Fact(Kind.LEFT, 3)], 0.1)
    member.failed(2, 0.1)
    member.tick(0.1)
    assert wires.opened[5:] == [5] and wires.closed == [1]  # 4 is being opened; two further than it is 5
    member.failed(4, 0.2)
    member.tick(0.2)
    assert wires.opened[6:] == []  # 5 and 8 are being opened
    member.failed(5, 0.3)
    member.tick(0.3)
    assert wires.opened[6:] == [6, 7]


def test_the_benchmark_runs(capsys):
    heartbeats.main(["--members", "3", "--seeds", "1"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("| 3 | 2 | 2.")
