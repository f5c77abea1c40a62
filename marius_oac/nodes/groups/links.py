"""Connections of a member of a group to others: TCP, all served by one thread, which waits in `wait`.

Guarantees:
- Both ends prove that they have the secret before any message is read (`transport/handshake.py`). What strangers send
  is bounded in bytes and time, and has no effect. After the proof a connection is neither encrypted nor authenticated.
- A connection is closed by its process's end, by `close` and `end`, and for nothing else. Nothing here waits for a
  peer: what can't be sent at once is kept.
- A message has a fixed form, and nothing is unpickled. A peer that sends another one is reported as such.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import psutil

from marius_oac.nodes.groups.membership import Fact, Kind, Member
from marius_oac.nodes.transport.contract import Limits, Security
from marius_oac.nodes.transport.handshake import (
    HELLO_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    ClientSide,
    Hello,
    Keys,
    ServerSide,
)
from marius_oac.nodes.transport.zmq_gate import most_unproved
from marius_oac.types import present

_HEAD = struct.Struct("<II")  # number of facts, the sender's beat
_FACT = struct.Struct("<IIII")
_MOST_FACTS = 1 << 16
_PIECE = 1 << 16
_AGAIN = 1.0  # seconds until connections are accepted again, when there were no descriptors
_KINDS = {int(kind) for kind in Kind}
Address = tuple[str, int]


class _Refused(Exception):
    """The other end is a stranger, or has sent an invalid message."""


class _Wire:
    """A connection. `read` handles what has come, and returns whether that was enough to go on.

    `link`: its number, once both ends have proved the secret. `peer`: the rank; -1: unknown yet. `late`: when it is
    given up if it has no number by then.
    """

    def __init__(self, connection: socket.socket, peer: int, late: float, read: Callable[[_Wire], bool]):
        self.socket, self.peer, self.late, self.read = connection, peer, late, read
        self.link: int | None = None
        self.came, self.out = bytearray(), bytearray()

    def take(self, count: int) -> bytes | None:
        """Returns the next bytes that have come; None: there are fewer."""
        if len(self.came) < count:
            return None
        found = bytes(self.came[:count])
        del self.came[:count]
        return found


class Links:
    """The links of one member; see `membership.Wires`. `wake` may be called by any thread and by a signal handler.

    Args:
        rank: of the member; `size`: number of members.
        host: IP address to listen at.
        secret: `transport.contract.SECRET_BYTES` bytes that all members have.
        timeout: seconds within which a connection is made.

    Attributes:
        address: where it listens.
    """

    def __init__(self, rank: int, size: int, host: str, secret: bytes, timeout: float):
        self._rank, self._size, self._timeout = rank, size, timeout
        self._security = Security(secret=secret, run="heartbeats")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address: Address = self._listener.getsockname()[:2]
        self._select = selectors.DefaultSelector()
        self._waker_lock = threading.RLock()  # a signal handler may find it taken by its own thread
        self._waker: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._select.register(self._waker, selectors.EVENT_READ)
        self._select.register(self._listener, selectors.EVENT_READ)
        self._deaf_until: float | None = None
        self._unproved: dict[_Wire, None] = {}
        self._wires: dict[int, _Wire] = {}
        self._numbers = 0
        self._failed: list[int] = []
        self._most = most_unproved(size)

    def attach(self, member: Member, addresses: Mapping[int, Address] | Sequence[Address]) -> None:
        """Says whose links these are, and where the others listen, by rank."""
        self._member, self._addresses = member, addresses

    def wait(self, seconds: float) -> None:
        """Tells the member what has happened; waits for so long until something does."""
        ready = self._select.select(0.0 if self._failed else max(0.0, min(seconds, self._patience())))
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.data is None:
                os.eventfd_read(present(self._waker))
            else:
                self._serve(key.data, events)
        now = time.monotonic()
        for wire in [wire for wire in self._unproved if wire.late <= now]:
            self._over(wire)
        if self._deaf_until is not None and self._deaf_until <= now:
            self._deaf_until = None
            self._select.register(self._listener, selectors.EVENT_READ)
        failed, self._failed = self._failed, []
        for peer in failed:
            self._member.failed(peer, now)

    def wake(self) -> None:
        """Has `wait` return."""
        with self._waker_lock:
            if self._waker is not None:
                os.eventfd_write(self._waker, 1)

    def open(self, peer: int) -> None:
        """See `Wires`."""
        host, port = self._addresses[peer]
        late = time.monotonic() + self._timeout
        try:
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError:  # no descriptors
            self._failed.append(peer)
            return
        connection.setblocking(False)
        side = ClientSide(self._keys(peer), self._rank, Limits())
        wire = _Wire(connection, peer, late, lambda wire: self._prove(wire, side))
        wire.out += side.hello
        self._unproved[wire] = None
        problem = connection.connect_ex((host, port))
        self._select.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, wire)
        if problem not in (0, errno.EINPROGRESS):
            self._over(wire)

    def send(self, link: int, beat: int, facts: Iterable[Fact]) -> None:
        """See `Wires`."""
        said = [_FACT.pack(*fact) for fact in facts]
        self._put(self._wires[link], _HEAD.pack(len(said), beat) + b"".join(said))

    def close(self, link: int) -> None:
        """See `Wires`."""
        self._release(self._wires[link])

    def end(self) -> None:
        """Closes all connections. Nothing may be called afterwards but `wake`."""
        for wire in [*self._wires.values(), *self._unproved]:
            self._release(wire)
        self._select.close()
        self._listener.close()
        with self._waker_lock:
            waker, self._waker = present(self._waker), None
        os.close(waker)

    def _keys(self, listener: int) -> Keys:
        return Keys(self._security, f"{listener}")

    def _patience(self) -> float:
        """Seconds until the next connection is given up, or the next may be accepted."""
        times = [wire.late for wire in self._unproved] + ([] if self._deaf_until is None else [self._deaf_until])
        return min(times, default=float("inf")) - time.monotonic()

    # --- handshakes --------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._select.unregister(self._listener)
                    self._deaf_until = time.monotonic() + _AGAIN
                    return
                continue  # that connection has ended
            connection.setblocking(False)
            wire = _Wire(connection, -1, time.monotonic() + self._timeout, self._greet)
            self._select.register(connection, selectors.EVENT_READ, wire)
            self._unproved[wire] = None
            strangers = [each for each in self._unproved if each.peer < 0]
            if len(strangers) > self._most:
                self._release(strangers[0])

    def _greet(self, wire: _Wire) -> bool:
        body = wire.take(HELLO_BYTES)
        if body is None:
            return False
        hello = Hello.parse(body)
        if not 0 <= hello.rank < self._size or hello.rank == self._rank:
            raise _Refused
        side = ServerSide(self._keys(self._rank), hello)
        wire.read = lambda wire: self._check(wire, side)
        self._put(wire, side.challenge())
        return True

    def _check(self, wire: _Wire, side: ServerSide) -> bool:
        proof = wire.take(MAC_BYTES)
        if proof is None:
            return False
        if not side.accepts(proof):
            raise _Refused
        wire.peer = side.hello.rank
        self._link(wire)
        return True

    def _prove(self, wire: _Wire, side: ClientSide) -> bool:
        challenge = wire.take(NONCE_BYTES + MAC_BYTES)
        if challenge is None:
            return False
        proof = side.answer(challenge)
        if proof is None:
            raise _Refused
        self._put(wire, proof)
        wire.read = self._first
        return True

    def _first(self, wire: _Wire) -> bool:
        """The listening end sends a message when it has seen the proof."""
        if len(wire.came) < _HEAD.size:
            return False
        self._link(wire)
        return True

    def _link(self, wire: _Wire) -> None:
        self._numbers += 1
        wire.link, wire.read = self._numbers, self._message
        self._wires[wire.link] = wire
        del self._unproved[wire]
        self._member.linked(wire.link, wire.peer, time.monotonic())

    def _message(self, wire: _Wire) -> bool:
        if len(wire.came) < _HEAD.size:
            return False
        count, beat = _HEAD.unpack_from(wire.came)
        if count > _MOST_FACTS:
            raise _Refused
        body = wire.take(_HEAD.size + count * _FACT.size)
        if body is None:
            return False
        facts = []
        for kind, subject, by, number in _FACT.iter_unpack(body[_HEAD.size :]):
            if kind not in _KINDS or subject >= self._size or by >= self._size:
                raise _Refused
            facts.append(Fact(Kind(kind), subject, by, number))
        self._member.received(present(wire.link), beat, facts, time.monotonic())
        return True

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _serve(self, wire: _Wire, events: int) -> None:
        if wire.socket.fileno() < 0:  # it was closed since
            return
        if events & selectors.EVENT_WRITE:
            self._put(wire, b"")
        if not events & selectors.EVENT_READ:
            return
        lasts = self._receive(wire)
        try:
            while wire.read(wire):
                pass
        except _Refused:
            self._over(wire, Kind.INVALID)
        else:
            if not lasts:
                self._over(wire)

    def _receive(self, wire: _Wire) -> bool:
        """Takes in what has come; returns whether the connection lasts."""
        try:
            while piece := wire.socket.recv(_PIECE):
                wire.came += piece
                if wire.link is None and len(wire.came) >= _PIECE:  # nobody sends so much before the proof
                    return False
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _put(self, wire: _Wire, data: bytes) -> None:
        wire.out += data
        try:
            while wire.out:
                del wire.out[: wire.socket.send(wire.out)]
        except BlockingIOError:
            pass
        except OSError:
            wire.out.clear()  # it has ended, which is read next
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.out else 0)
        if self._select.get_key(wire.socket).events != wanted:
            self._select.modify(wire.socket, wanted, wire)

    def _over(self, wire: _Wire, kind: Kind = Kind.ENDED) -> None:
        """The other end has closed a connection, or it is given up."""
        self._release(wire)
        if wire.link is not None:
            self._member.ended(wire.link, time.monotonic(), kind)
        elif wire.peer >= 0:
            self._failed.append(wire.peer)

    def _release(self, wire: _Wire) -> None:
        self._select.unregister(wire.socket)
        wire.socket.close()
        self._unproved.pop(wire, None)
        if wire.link is not None:
            self._wires.pop(wire.link, None)


def address_of(interface: str) -> str:
    """Returns the IP address of a network interface; "": the host name's, or else loopback's, as gloo chooses.

    Raises:
        OSError: the interface has none.
    """
    if interface:
        own = psutil.net_if_addrs().get(interface, [])
        for family in (socket.AF_INET, socket.AF_INET6):
            for each in own:
                if each.family == family and "%" not in each.address:
                    return str(each.address)
        raise OSError(f"interface {interface} has no address")
    try:
        found = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return str(address[0])
    return "127.0.0.1"
