"""Who may connect: ZeroMQ's own questions, answered (ZAP), and connections that have not proved that they may stay.

Not safe for threads: the server's lock is held.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from marius_oac.nodes.transport.handshake import Tokens
from marius_oac.nodes.transport.refusals import Refusals
from marius_oac.nodes.transport.zmq_endpoint import EVENTS, NOBLOCK, POLLIN

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"marius-oac"
PROVING = 10.0  # seconds that a connection has to prove that it has the secret, if the server's timeout is not less
MOST_UNPROVED = 256
FOREIGN = "no handshake of ours, or another key"
UNFINISHED = "handshake not finished"
SLOW = "no proof of the secret in time"
CROWD = "too many connections without proof"
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_ACCEPT_FAILED | zmq.EVENT_DISCONNECTED


class Gate:
    """Admits connections that show a good token. ZeroMQ asks before it lets a single message through.

    Args:
        context: of the server's socket, which must be bound later than this.
    """

    def __init__(self, context: zmq.Context, tokens: Tokens, refusals: Refusals):
        self._tokens, self._refusals = tokens, refusals
        self.turned_away = 0
        """Connections that are counted already, and will end."""
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answers every question that waits."""
        while self.socket.getsockopt(EVENTS) & POLLIN:
            version, request, _, address, _, mechanism, *credentials = self.socket.recv_multipart(NOBLOCK)
            why = "no token"
            if mechanism == b"PLAIN" and len(credentials) == 2:
                why = self._tokens.why_not(*credentials)
            if why is not None:
                self.turned_away += 1
                self._refusals.count(why, f"a connection from {address.decode('ascii', 'replace')}")
            status = (b"200", b"OK") if why is None else (b"400", b"refused")
            self.socket.send_multipart([version, request, *status, b"", b""], NOBLOCK)


_MOST_TOLD = 2500  # events that may wait to be read: ZeroMQ's high-water marks of 1000 at both ends, and some


@dataclass(eq=False)
class Visitor:
    """A connection that has proved nothing yet.

    Attributes:
        since: when it came, or said something that fits.
        greeted: whether it did; `counted`: whether it was refused already; `here`: whether it still is one.
    """

    since: float
    greeted: bool = False
    counted: bool = False
    here: bool = True


class Visitors:
    """Connections that have proved nothing yet: how many there are, and how long, is bounded.

    ZeroMQ bounds neither, and when the process has no descriptors left it tries to accept the next one for ever. So the
    oldest is cut where there are more than `most` or none can be accepted, and each after `patience` seconds. An honest
    one is through in milliseconds, or comes again.

    A connection is counted once when it is refused, or twice if it ends by itself before the gate has answered.
    """

    def __init__(self, server: zmq.Socket, gate: Gate | None, refusals: Refusals, most: int, patience: float):
        self._gate, self._refusals, self._most, self._patience = gate, refusals, most, patience
        self._waiting: dict[int, Visitor] = {}  # by descriptor, in the order in which they came
        self._ended = self._full = False
        self._hand = socket.socket()
        self.socket = server.get_monitor_socket(_WATCHED)

    def whose(self, frame: zmq.Frame) -> Visitor:
        """The connection that a frame came by."""
        self._read()
        return self._waiting.get(frame.get(zmq.SRCFD)) or Visitor(time.monotonic(), here=False)  # it has ended

    def proved(self, visitor: Visitor) -> None:
        """It may stay."""
        visitor.here = False
        self._waiting = {descriptor: each for descriptor, each in self._waiting.items() if each is not visitor}

    def look(self) -> bool:
        """Cuts those who are too many or too slow; returns whether any connection ended since the last call."""
        self._read()
        excess = max(len(self._waiting) - self._most, (len(self._waiting) + 1) // 2 if self._full else 0)
        self._full = False
        for descriptor in list(self._waiting)[:excess]:
            self._cut(descriptor, CROWD)
        late = time.monotonic() - self._patience
        for descriptor, visitor in list(self._waiting.items()):
            if visitor.since < late:
                self._cut(descriptor, UNFINISHED if visitor.greeted else SLOW)
        ended, self._ended = self._ended, False
        return ended

    def close(self) -> None:
        self._hand.close()
        self.socket.close(0)

    def _cut(self, descriptor: int, why: str) -> None:
        """Ends a connection of ZeroMQ's, which will then let go of it.

        ZeroMQ tells of an end before it closes the descriptor, which something else may have the moment after. So it is
        held first; if no end has been told then, what is held is the connection.
        """
        visitor = self._waiting.get(descriptor)
        if visitor is None or not self._held(descriptor):
            return
        self._read()
        if self._waiting.get(descriptor) is not visitor:
            return
        self._count(visitor, why)
        visitor.here = False
        del self._waiting[descriptor]
        try:
            self._hand.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise

    def _held(self, descriptor: int) -> bool:
        try:
            os.dup2(descriptor, self._hand.fileno(), inheritable=False)  # needs no new descriptor: there may be none
            return True
        except OSError:
            return False

    def _read(self) -> None:
        """Takes in all that was told before this call; not more: where none can be accepted ZeroMQ tells so faster than
        it can be read."""
        for _ in range(_MOST_TOLD):
            if not self.socket.getsockopt(EVENTS) & POLLIN:
                return
            told = parse_monitor_message(self.socket.recv_multipart(NOBLOCK))
            if told["event"] == zmq.EVENT_ACCEPTED:
                self._waiting[told["value"]] = Visitor(time.monotonic())
            elif told["event"] == zmq.EVENT_ACCEPT_FAILED:
                self._full = True
            else:
                self._ended = True
                self._left(self._waiting.pop(told["value"], None))

    def _left(self, visitor: Visitor | None) -> None:
        if visitor is None:  # it had proved itself, or was cut
            return
        visitor.here = False
        if visitor.counted:
            return
        if visitor.greeted:
            self._count(visitor, UNFINISHED)
        elif self._gate is not None and self._gate.turned_away:
            self._gate.turned_away -= 1
        else:
            self._count(visitor, FOREIGN)

    def _count(self, visitor: Visitor, why: str) -> None:
        if not visitor.counted:
            visitor.counted = True
            self._refusals.count(why, "a connection")


def most_unproved(ranks: int, descriptors: Callable[[int], tuple[int, int]] = resource.getrlimit) -> int:
    """How many connections may be unproved: room for all ranks at once, but a quarter of what the process may open."""
    soft, _ = descriptors(resource.RLIMIT_NOFILE)
    wanted = max(MOST_UNPROVED, 2 * ranks)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 4))
