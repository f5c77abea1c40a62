"""Admission of connections: answers ZeroMQ's authentication requests (ZAP) and bounds unproved connections.

Not thread-safe: the server's lock is held.
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
from marius_oac.nodes.transport.zmq_endpoint import NOBLOCK, POLLIN, has_event

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
    """Admits connections with a valid token. ZeroMQ asks it before it passes on any message.

    Args:
        context: of the server's socket, which must be bound after this is made.
        tokens: checks them.
        refusals: counts them.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], tokens: Tokens, refusals: Refusals):
        self._tokens, self._refusals = tokens, refusals
        self.turned_away = 0
        """Refused connections, counted already, that have yet to end."""
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answers every waiting request."""
        while has_event(self.socket, POLLIN):
            version, request, _, address, _, mechanism, *credentials = self.socket.recv_multipart(NOBLOCK)
            why: str | None = "no token"
            if mechanism == b"PLAIN" and len(credentials) == 2:
                why = self._tokens.why_not(*credentials)
            if why is not None:
                self.turned_away += 1
                self._refusals.count(why, f"a connection from {address.decode('ascii', 'replace')}")
            status = (b"200", b"OK") if why is None else (b"400", b"refused")
            self.socket.send_multipart([version, request, *status, b"", b""], NOBLOCK)


_MOST_EVENTS = 2500  # that may wait to be read: ZeroMQ's high-water marks of 1000 at both ends, and some


@dataclass(eq=False)
class Visitor:
    """A connection that has not proved the secret yet.

    Attributes:
        since: when it was accepted, or sent a valid hello.
        greeted: whether it has sent a valid hello.
        counted: whether it is counted as refused.
        here: whether it is still connected and unproved.
    """

    since: float
    greeted: bool = False
    counted: bool = False
    here: bool = True


class Visitors:
    """Bounds the number and the time of connections that have not proved the secret yet.

    ZeroMQ bounds neither, and when the process has no descriptors left it tries to accept the next connection for ever.
    So the oldest is cut when there are more than `most` or none can be accepted, and each after `patience` seconds. A
    trainer's proof takes milliseconds, and a trainer that was cut connects again.

    A connection is counted once when it is refused, or twice if it ends by itself before the gate has answered.
    """

    def __init__(self, server: zmq.Socket[bytes], gate: Gate | None, refusals: Refusals, most: int, patience: float):
        self._gate, self._refusals, self._most, self._patience = gate, refusals, most, patience
        self._waiting: dict[int, Visitor] = {}  # by descriptor, in the order in which they came
        self._ended = self._full = False
        self._duplicate = socket.socket()
        self.socket = server.get_monitor_socket(_WATCHED)

    def whose(self, frame: zmq.Frame) -> Visitor:
        """Returns the connection of a frame."""
        self._read()
        return self._waiting.get(frame.get(zmq.SRCFD)) or Visitor(time.monotonic(), here=False)  # it has ended

    def proved(self, visitor: Visitor) -> None:
        """Stops to watch a connection that has proved the secret."""
        visitor.here = False
        self._waiting = {descriptor: each for descriptor, each in self._waiting.items() if each is not visitor}

    def look(self) -> bool:
        """Cuts connections that are too many or too slow; returns whether any has ended since the last call."""
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
        """Releases the sockets."""
        self._duplicate.close()
        self.socket.close(0)

    def _cut(self, descriptor: int, why: str) -> None:
        """Ends a connection of ZeroMQ's, which then closes it.

        ZeroMQ reports an end before it closes the descriptor, whose number may be reused at once. So the descriptor is
        duplicated first. If no end is reported then, the duplicate is the connection.
        """
        visitor = self._waiting.get(descriptor)
        if visitor is None or not self._duplicated(descriptor):
            return
        self._read()
        if self._waiting.get(descriptor) is not visitor:
            return
        self._count(visitor, why)
        visitor.here = False
        del self._waiting[descriptor]
        try:
            self._duplicate.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise

    def _duplicated(self, descriptor: int) -> bool:
        try:
            os.dup2(descriptor, self._duplicate.fileno(), inheritable=False)  # needs no new descriptor number
            return True
        except OSError:
            return False

    def _read(self) -> None:
        """Reads the events before this call, and no more: when ZeroMQ can't accept connections it reports so faster
        than it can be read."""
        for _ in range(_MOST_EVENTS):
            if not has_event(self.socket, POLLIN):
                return
            message = parse_monitor_message(self.socket.recv_multipart(NOBLOCK))
            event, descriptor = message["event"], message["value"]
            if event == zmq.EVENT_ACCEPTED:
                self._waiting[descriptor] = Visitor(time.monotonic())
            elif event == zmq.EVENT_ACCEPT_FAILED:
                self._full = True
            else:
                self._ended = True
                self._left(self._waiting.pop(descriptor, None))

    def _left(self, visitor: Visitor | None) -> None:
        if visitor is None:  # it had proved the secret, or was cut
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
    """Returns how many connections may be unproved: enough for all ranks, a quarter of the descriptors at most."""
    soft, _ = descriptors(resource.RLIMIT_NOFILE)
    wanted = max(MOST_UNPROVED, 2 * ranks)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 4))
