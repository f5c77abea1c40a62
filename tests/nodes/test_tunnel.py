"""TCP connections over the tunnel: what is said arrives whole or not at all, and only who has the secret says it."""

import gc
import select
import socket
import threading
from contextlib import ExitStack, closing

import psutil
import pytest

from marius_oac.errors import InputError, NodeLost, NodeRefused
from marius_oac.nodes.launch.tunnel import _HEAD, _LIMITS, _OPEN, LOOPBACK, StoreGate, StoreProxy
from marius_oac.nodes.transport import zmq_client
from marius_oac.nodes.transport.contract import TAKEN, Limits, Security
from marius_oac.nodes.transport.zmq_client import ZmqClient
from tests.nodes.transport.strangers import place
from tests.threads import PATIENCE, in_thread

SECURE = Security(secret=bytes(range(32)), run="rendezvous")
ALL = 1 << 30


class World:
    """A listener that stands for the store, the gate before it, and lines of other nodes."""

    def __init__(self, stack):
        self.stack, self.said = stack, []
        self.store = stack.enter_context(socket.create_server((LOOPBACK, 0)))
        self.store.settimeout(PATIENCE)
        port = self.store.getsockname()[1]
        self.gate = StoreGate(f"{LOOPBACK}:0", port, ["a", "b", "c"], SECURE, PATIENCE, self.said.append)
        stack.callback(self.gate.close)

    def line(self, index=1, address=None, security=SECURE):
        line = StoreProxy(address or self.gate.address, "a", index, security, PATIENCE, PATIENCE)
        self.stack.callback(line.close)
        return line

    def connect(self, line):
        """Both ends of a connection: at the node, at the store."""
        here = self.stack.enter_context(socket.create_connection((LOOPBACK, line.port), PATIENCE))
        there = self.stack.enter_context(self.store.accept()[0])
        there.settimeout(PATIENCE)
        return here, there


def connections():
    return {(one.fd, one.laddr, one.raddr) for one in psutil.Process().net_connections("inet")}


@pytest.fixture
def world():
    gc.collect()  # tests before may have left connections to the collector, which then come and go without a test
    before = connections()
    with ExitStack() as stack:
        yield World(stack)
    assert not [one for one in threading.enumerate() if one.name.startswith(("tunnel", "transport"))]
    left = connections() - before
    assert not left


def heard(connection, count=ALL):
    """What the other end says, up to `count` bytes or its end."""
    parts = []
    while count and (data := connection.recv(min(count, 1 << 16))):
        parts.append(data)
        count -= len(data)
    return b"".join(parts)


def say_all(connection, data):
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def pattern(count, step):
    return bytes((step * number) % 251 for number in range(1000)) * (count // 1000)


# --- what is said ----------------------------------------------------------------------------------------------------


def test_much_goes_both_ways_at_once_and_each_direction_ends_by_itself(world):
    here, there = world.connect(world.line())
    up, down = pattern(5_000_000, 7), pattern(3_000_000, 11)
    speakers = [in_thread(lambda: say_all(here, up)), in_thread(lambda: say_all(there, down))]
    hearers = [in_thread(lambda: heard(there)), in_thread(lambda: heard(here))]
    for thread, _ in speakers + hearers:
        thread.join(PATIENCE)
    assert [outcome[0] == data for (_, outcome), data in zip(hearers, (up, down), strict=True)] == [True, True]


def test_who_says_nothing_more_still_hears(world):
    here, there = world.connect(world.line())
    say_all(here, b"question")
    assert heard(there) == b"question"
    say_all(there, b"answer")
    assert heard(here) == b"answer"


def test_connections_are_kept_apart(world):
    lines = [world.line(1), world.line(2)]
    ends = [world.connect(line) for line in lines * 3]
    for number, (here, there) in enumerate(ends):
        here.sendall(b"up %d" % number)
        there.sendall(b"down %d" % number)
    for number, (here, there) in enumerate(ends):
        assert heard(there, 4) == b"up %d" % number and heard(here, 6) == b"down %d" % number
    ends[0][0].close()
    assert heard(ends[0][1]) == b""
    ends[1][0].sendall(b"still here")
    assert heard(ends[1][1], 10) == b"still here"


def test_no_store(world):
    line = world.line()
    world.store.close()
    with socket.create_connection((LOOPBACK, line.port), PATIENCE) as here:
        assert heard(here) == b""


# --- who is gone -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["gate", "line"])
def test_an_end_that_is_closed_ends_the_connections_of_both(world, first):
    line = world.line()
    here, there = world.connect(line)
    (world.gate if first == "gate" else line).close()
    assert heard(here) == heard(there) == b""


def test_a_node_that_is_lost_takes_its_connections_along_and_no_others(world):
    lost, other = world.line(1), world.line(2)
    (here, there), (far, near) = world.connect(lost), world.connect(other)
    lost._endpoint.abort()
    lost._endpoint.close()
    assert heard(there) == heard(here) == b""
    far.sendall(b"still here")
    assert heard(near, 10) == b"still here"
    again, at_store = world.connect(world.line(1))  # started anew
    again.sendall(b"me again")
    assert heard(at_store, 8) == b"me again"


def test_the_first_node_is_lost(world):
    line = world.line()
    here, there = world.connect(line)
    world.gate._endpoint.abort()
    world.gate.close()
    assert heard(here) == heard(there) == b""
    line._receiver.join(PATIENCE)
    assert isinstance(line.error, NodeLost)


# --- who may not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "security",
    [Security(secret=bytes(32), run="rendezvous"), Security(secret=SECURE.secret, run="another")],
    ids=["secret", "run"],
)
def test_another_secret_is_refused_and_counted(world, security, monkeypatch):
    monkeypatch.setattr(zmq_client, "_TRIES", 2)
    monkeypatch.setattr(zmq_client, "_CROWDED", 0.0)
    with pytest.raises(NodeRefused, match="another program or version, secret or run"):
        world.line(security=security)
    here, there = world.connect(world.line())
    here.sendall(b"honest")
    assert heard(there, 6) == b"honest" and not select.select([world.store], [], [], 0)[0]
    world.gate.close()
    assert world.said[-1].startswith(f"strangers at the rendezvous, {world.gate.address}, were refused: no handshake")


def test_without_strangers_nothing_is_said(world):
    world.connect(world.line())
    world.gate.close()
    assert world.said == []


def test_two_of_one_node(world):
    world.line(1)
    with pytest.raises(NodeLost, match=TAKEN):
        world.line(1)


def test_a_crowd_that_is_silent(world):
    """Among more than may wait for their proof an honest node gets in."""
    crowd = [world.stack.enter_context(socket.create_connection(place(world.gate.address))) for _ in range(300)]
    here, there = world.connect(world.line())
    here.sendall(b"honest")
    assert heard(there, 6) == b"honest" and len(crowd) == 300


@pytest.mark.parametrize(
    "frames",
    [[b"", b""], [_HEAD.pack(_OPEN, 1)], [_HEAD.pack(9, 1), b""]],
    ids=["no head", "one frame", "unknown kind"],
)
def test_a_member_that_says_what_none_says_ends_all(world, frames):
    line = world.line(2)
    with closing(ZmqClient(world.gate.address, "a", 1, Security(
        secret=SECURE.secret, run=SECURE.run, encrypted=True
    ), Limits(max_bytes=_LIMITS.max_bytes, max_frames=2, queue=_LIMITS.queue), PATIENCE)) as client:  # fmt: skip
        client.send(frames)
        world.gate._receiver.join(PATIENCE)
    assert isinstance(world.gate.error, NodeLost) and "it sent an invalid message" in str(world.gate.error)
    line._receiver.join(PATIENCE)
    assert isinstance(line.error, NodeLost)


def test_a_port_that_is_taken():
    with socket.create_server((LOOPBACK, 0)) as taken:
        where = f"{LOOPBACK}:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"node a: can't listen at {where}: Address already in use$"):
            StoreGate(where, 1, ["a", "b"], SECURE, PATIENCE, print)


def test_nobody_listens(world):
    with socket.create_server((LOOPBACK, 0)) as free:
        where = f"{LOOPBACK}:{free.getsockname()[1]}"
    with pytest.raises(NodeLost, match=f"node a: it didn't answer at {where} within 0.3 s"):
        StoreProxy(where, "a", 1, SECURE, PATIENCE, 0.3)


# --- whoever holds the wire ------------------------------------------------------------------------------------------


class Wire:
    """Carries bytes between a line and the gate, as they come; once armed, changes what the line says next."""

    def __init__(self, address, change):
        self._address, self._change = address, change
        self._listener = socket.create_server((LOOPBACK, 0))
        self.address = f"{LOOPBACK}:{self._listener.getsockname()[1]}"
        self.armed, self.changed = threading.Event(), False
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self):
        near, _ = self._listener.accept()
        with near, socket.create_connection(place(self._address)) as far:
            past = []
            while True:
                for source in select.select([near, far], [], [])[0]:
                    try:
                        data = source.recv(1 << 16)
                        if source is near and data:
                            past.append(data)
                            if self.armed.is_set():
                                data, self.changed = self._change(data, past), True
                                self.armed.clear()
                        (far if source is near else near).sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        return

    def close(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        self._listener.close()


def flipped(at, bit):
    def change(data, past):
        data = bytearray(data)
        data[at % len(data)] ^= 1 << bit
        return bytes(data)

    return change


CHANGES = {
    "flipped in the data": flipped(-20, 3),
    "flipped in the length": flipped(1, 7),
    "inserted": lambda data, past: data[:-30] + b"inserted" + data[-30:],
    "twice": lambda data, past: data + data,
    "said before": lambda data, past: past[-2] + data,
    "left out": lambda data, past: past[1],
    "foreign": lambda data, past: b"\x00\x05hello" + data,
    "huge": lambda data, past: b"\x02" + b"\xff" * 8 + data,
}


def tampered(world, change):
    """What the store has heard when the wire changes what is said after the first word."""
    wire = Wire(world.gate.address, change)
    world.stack.callback(wire.close)
    line = world.line(address=wire.address)
    here, there = world.connect(line)
    here.sendall(b"first" * 20)
    assert heard(there, 100) == b"first" * 20
    wire.armed.set()
    here.sendall(b"other" * 20)
    here.sendall(b"third" * 20)
    rest = heard(there)
    assert wire.changed
    line.close()
    return rest


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_on_the_wire_is_not_heard(world, change):
    """Nor what follows: the connection is lost. Words are heard whole or not at all."""
    said = [b"other" * 20, b"third" * 20]
    assert tampered(world, change) in [b"".join(said[:count]) for count in range(3)]
