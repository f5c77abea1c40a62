"""Heartbeats over real connections: members that are threads of this process, and strangers that connect to them."""

import os
import resource
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import timedelta

import pytest
import torch.distributed as dist

from marius_oac.nodes.groups import links
from marius_oac.nodes.groups.heartbeat import Heartbeat
from marius_oac.nodes.groups.links import Links, address_of
from marius_oac.nodes.groups.membership import Kind
from marius_oac.nodes.transport.contract import Limits, Security
from marius_oac.nodes.transport.handshake import ClientSide, Hello, Keys
from tests.threads import PATIENCE

SECRET = bytes(range(32))


class Crowd:
    """Members that meet, and the calls that each was told to end."""

    def __init__(self, size, timeout=PATIENCE, store=None):
        self.store, self.names = store or dist.HashStore(), [f"n{rank}" for rank in range(size)]
        self.ends, self.changed = [[] for _ in range(size)], threading.Condition()
        with ThreadPoolExecutor(size) as pool:
            self.beats = list(pool.map(lambda rank: self.made(rank, timeout), range(size)))

    def made(self, rank, timeout):
        return Heartbeat(self.store, "127.0.0.1", rank, self.names, timeout, lambda slot: self.told(rank, slot))

    def told(self, rank, slot):
        with self.changed:
            self.ends[rank].append(slot)
            self.changed.notify_all()

    def all_told(self, ranks, slot):
        with self.changed:
            assert self.changed.wait_for(lambda: all(self.ends[rank] == [slot] for rank in ranks), PATIENCE)

    def leave(self, ranks):
        with ThreadPoolExecutor(len(ranks)) as pool:
            list(pool.map(lambda rank: self.beats[rank].leave(), ranks))


def die(beat):
    """What the kernel does when a process ends: its connections close."""
    for wire in list(beat._links._wires.values()):
        with suppress(OSError):
            wire.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("size", [2, 5, 20])
def test_a_member_that_ends_is_named_by_all_and_all_can_leave(size):
    crowd = Crowd(size)
    last = crowd.beats[-1]
    last._member._learn = lambda fact, source: None  # it finds nothing lost itself
    die(last)
    others = range(size - 1)
    crowd.all_told(others, None)
    found = {crowd.beats[rank].await_verdict(0) for rank in others}
    assert found == {(f"n{size - 1}", "has ended: its connection is closed")}
    crowd.leave(range(size))


def test_a_member_whose_heartbeats_fail_ends_its_own_calls_and_is_lost_to_the_others(monkeypatch):
    crowd, seen = Crowd(3), []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_value))
    broken = crowd.beats[1]
    broken._turn = lambda: 1 / 0
    broken._links.wake()
    crowd.all_told(range(3), None)
    assert broken.await_verdict(0) == ("n1", "its heartbeats have failed: ZeroDivisionError('division by zero')")
    assert {crowd.beats[rank].await_verdict(0) for rank in (0, 2)} == {("n1", "has ended: its connection is closed")}
    crowd.leave(range(3))
    assert [type(each) for each in seen] == [ZeroDivisionError]


def test_an_abort_reaches_all_before_its_member_leaves():
    crowd = Crowd(20)
    crowd.beats[7].abort(3)
    crowd.beats[7].leave()
    others = [rank for rank in range(20) if rank != 7]
    crowd.all_told(others, 3)
    found = {crowd.beats[rank].await_verdict(3) for rank in others}
    assert found <= {("n7", "has aborted"), ("n7", "has left the group")}
    crowd.leave(others)
    assert crowd.ends[7] == []


def test_members_that_leave_are_not_lost_and_the_others_find_new_neighbours():
    crowd = Crowd(20)
    staying = [3, 8, 13, 18]
    crowd.leave([rank for rank in range(20) if rank not in staying])
    for rank in staying:
        beat = crowd.beats[rank]
        with beat._changed:
            assert beat._changed.wait_for(lambda beat=beat: len(beat._left) == 16, PATIENCE)
            beat.excused.update(set(range(20)).difference(staying))
        assert crowd.ends[rank] == [] and beat.lost is None
    crowd.beats[8].abort(1)  # reaches all
    crowd.all_told([3, 13, 18], 1)
    assert crowd.beats[18].await_verdict(1) == ("n8", "has aborted")
    crowd.leave(staying)


def test_who_is_silent_is_named_and_not_waited_for_when_others_leave():
    crowd = Crowd(3, timeout=0.6)
    frozen, gate = crowd.beats[1], threading.Event()
    frozen._links.wait = lambda seconds, wait=frozen._links.wait: (gate.wait(), wait(0.0))
    frozen._links.wake()
    crowd.all_told([0, 2], None)
    assert crowd.beats[0].lost == crowd.beats[2].lost == ("n1", "has not been heard of for 0.6 s")
    crowd.leave([0, 2])
    gate.set()  # and is told so when it goes on
    crowd.all_told([1], None)
    assert frozen.lost == ("n1", "has not been heard of for 0.6 s")
    frozen.leave()


def test_a_cut_link_is_named_with_both_ends():
    crowd = Crowd(3, timeout=0.6)
    one = crowd.beats[0]._links
    (wire,) = [wire for wire in one._wires.values() if wire.peer == 2]
    one._put = lambda to, data, put=one._put: None if to is wire else put(to, data)
    crowd.all_told([0, 1, 2], None)
    ends = "has not heard of it for 0.6 s, but others have: the connection between them is cut"
    assert {beat.lost for beat in crowd.beats} == {("n0", f"n2 {ends}")}
    crowd.leave(range(3))


def test_who_does_not_come_is_named():
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.3))
    store.set("1", "[]")
    crowd = Crowd.__new__(Crowd)
    crowd.store, crowd.names = store, ["n0", "n1"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store.set("1", f'["127.0.0.1", {silent.getsockname()[1]}]')
        with pytest.raises(RuntimeError, match="no connection for heartbeats with n1"):
            crowd.made(0, 0.3)
    store.delete_key("1")
    with pytest.raises(RuntimeError, match="(?i)timeout"):
        crowd.made(0, 0.3)
    assert not [each for each in threading.enumerate() if each.name == "heartbeat"]


class Listening:
    """A member that keeps what its links tell it."""

    def __init__(self):
        self.told = []
        self.links = Links(0, 3, "127.0.0.1", SECRET, 4 * PATIENCE)
        self.links.attach(self, [])

    def linked(self, link, peer, now):
        self.told.append(("linked", link, peer))
        self.links.send(link, 1, [])

    def received(self, link, beat, facts, now):
        self.told.append(("received", link, beat, facts))

    def ended(self, link, now, kind):
        self.told.append(("ended", link, kind))

    def failed(self, peer, now):
        self.told.append(("failed", peer))

    def until(self, happened):
        end = time.monotonic() + PATIENCE
        while not happened():
            assert time.monotonic() < end
            self.links.wait(0.05)

    def close(self):
        self.links.end()


@pytest.fixture
def listening():
    with closing(Listening()) as member:
        yield member


def connected(member):
    stranger = socket.create_connection(member.links.address)
    stranger.settimeout(PATIENCE)
    return stranger


def shut(stranger):
    """Whether the other end has closed a connection."""
    stranger.setblocking(False)
    try:
        while stranger.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def member_of(secret, rank=1, server="0"):
    return ClientSide(Keys(Security(secret=secret, run="heartbeats"), server), rank, Limits())


def proved(member, side):
    """A connection of one that does the handshake; None: it was not let in."""
    one = connected(member)
    one.sendall(side.hello)
    challenge = b""
    one.setblocking(False)

    def come():
        nonlocal challenge
        with suppress(BlockingIOError):
            challenge += one.recv(64 - len(challenge))
        return len(challenge) == 64

    member.until(come)
    one.setblocking(True)
    answer = side.answer(challenge)
    one.sendall(answer or bytes(32))
    return one


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: somewhere\r\nAccept: text/html, and some more words\r\n\r\n",
        bytes(1 << 17),
        Hello.new(3, Limits()).body,
        Hello.new(0, Limits()).body,
        b"x",
    ],
    ids=["another protocol", "much", "a rank that is not there", "its own rank", "little"],
)
def test_strangers_are_told_nothing_and_have_no_effect(listening, said):
    with connected(listening) as stranger:
        with suppress(OSError):
            stranger.sendall(said)
        if said == b"x":
            listening.links._timeout = 0.0
            stranger.shutdown(socket.SHUT_WR)
        listening.until(lambda: shut(stranger))
    assert listening.told == [] and not listening.links._unproved


@pytest.mark.parametrize("secret, server", [(bytes(32), "0"), (SECRET, "1")])
def test_who_does_not_have_the_secret_or_means_another_is_refused(listening, secret, server):
    with proved(listening, member_of(secret, server=server)) as stranger:
        stranger.sendall(bytes(8))
        listening.until(lambda: shut(stranger))
    assert listening.told == []


def test_a_listener_without_the_secret_gets_no_proof(listening):
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening.links.attach(listening, {2: server.getsockname()})
        listening.links.open(2)
        stranger, _ = server.accept()
        with stranger:
            stranger.sendall(bytes(64))
            listening.until(lambda: listening.told)
            stranger.settimeout(PATIENCE)
            came = b""
            while piece := stranger.recv(1 << 16):
                came += piece
    assert listening.told == [("failed", 2)] and len(came) == len(member_of(SECRET).hello)


def test_strangers_who_wait_are_cut(listening):
    listening.links._timeout = 0.05
    with connected(listening) as stranger:
        listening.until(lambda: shut(stranger))
    listening.links._timeout, listening.links._most = PATIENCE, 2
    first, *later = [connected(listening) for _ in range(3)]
    listening.until(lambda: shut(first))
    assert not any(shut(each) for each in later) and len(listening.links._unproved) == 2
    for each in (first, *later):
        each.close()


def test_a_member_is_let_in_and_an_invalid_message_of_it_is_told(listening):
    for number, said in enumerate(
        [
            struct.pack("<II", 1, 5) + struct.pack("<IIII", 99, 0, 0, 0),
            struct.pack("<II", 1, 5) + struct.pack("<IIII", Kind.LEFT, 3, 0, 0),
            struct.pack("<II", 1, 5) + struct.pack("<IIII", Kind.SILENT, 1, 3, 0),
            struct.pack("<II", 1 << 31, 5),
        ]
    ):
        listening.told.clear()
        with proved(listening, member_of(SECRET)) as one:
            one.sendall(struct.pack("<II", 1, 7) + struct.pack("<IIII", Kind.ABORTED, 2, 1, 1 << 20))
            one.sendall(said)
            listening.until(lambda one=one: shut(one))
        link = number + 1
        assert listening.told == [
            ("linked", link, 1),
            ("received", link, 7, [(Kind.ABORTED, 2, 1, 1 << 20)]),
            ("ended", link, Kind.INVALID),
        ]


def test_messages_in_pieces_and_the_end(listening):
    with proved(listening, member_of(SECRET, rank=2)) as one:
        for byte in struct.pack("<II", 0, 9):
            one.sendall(bytes([byte]))
            listening.links.wait(0.01)
        listening.until(lambda: len(listening.told) == 2)
    listening.until(lambda: len(listening.told) == 3)
    assert listening.told == [("linked", 1, 2), ("received", 1, 9, []), ("ended", 1, Kind.ENDED)]


def test_what_can_not_be_sent_is_kept(listening):
    with proved(listening, member_of(SECRET)) as one:
        listening.until(lambda: listening.told)
        for beat in range(2, 40_000):
            listening.links.send(1, beat, [])
        (wire,) = listening.links._wires.values()
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        while not wire.out:
            listening.links.send(1, 40_000, [(Kind.LEFT, 1, 0, 0)] * 1000)
        came, last = bytearray(), struct.pack("<IIII", Kind.LEFT, 1, 0, 0)
        one.setblocking(False)

        def drained():
            with suppress(BlockingIOError):
                came.extend(one.recv(1 << 20))
            return not wire.out and came.endswith(last)

        listening.until(drained)
    assert came[:8] == struct.pack("<II", 0, 1) and came[16:24] == struct.pack("<II", 0, 3)


def test_nobody_is_accepted_while_there_are_no_descriptors(listening, monkeypatch):
    monkeypatch.setattr(links, "_AGAIN", 0.2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as stranger:
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            stranger.connect(listening.links.address)
            listening.until(lambda: listening.links._deaf_until is not None)
            began = time.process_time()
            listening.links.wait(0.1)
            assert time.process_time() - began < 0.05
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        listening.until(lambda: listening.links._unproved)


def test_an_interface_s_address():
    assert address_of("lo") == "127.0.0.1"
    with pytest.raises(OSError, match="interface no0 has no address"):
        address_of("no0")
    with socket.create_server((address_of(""), 0)):
        pass


def test_a_host_without_a_name_listens_on_loopback(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.invalid")
    assert address_of("") == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "192.0.2.1")  # of documentation: nobody's
    assert address_of("") == "127.0.0.1"


def test_how_long_a_call_may_still_take():
    """Any time while nobody is gone whom it needs. What a member has sent that has left may be on its way."""
    heartbeat = Heartbeat.__new__(Heartbeat)
    heartbeat._changed, heartbeat._names, heartbeat._timeout = threading.Condition(), ["a", "b", "c"], 30.0
    heartbeat.lost, heartbeat._left, heartbeat._aborted, heartbeat.excused = None, [], {}, {1}
    assert heartbeat.patience(5) is None
    heartbeat._left = [1]
    assert heartbeat.patience(5) is None, "no call needs it"
    heartbeat._left = [1, 2]
    assert heartbeat.patience(5) == 30
    heartbeat._aborted = {5: 2}
    assert (heartbeat.patience(5), heartbeat.patience(6)) == (0, 30)
    heartbeat.lost = "a", "has ended"
    assert heartbeat.patience(6) == 0
