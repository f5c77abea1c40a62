"""ZeroMQ's own questions, answered: who may connect (ZAP), and what happened to connections (socket monitor).

Not safe for threads: the server's lock is held.
"""

from __future__ import annotations

import zmq
from zmq.utils.monitor import parse_monitor_message

from marius_oac.nodes.transport.handshake import Tokens
from marius_oac.nodes.transport.refusals import Refusals
from marius_oac.nodes.transport.zmq_endpoint import EVENTS, NOBLOCK, POLLIN

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"marius-oac"


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


class Events:
    """Which connections to a server ended, and whether anything was heard of them before.

    A connection that is turned away is counted once, or twice if it ends by itself before the gate has answered.
    """

    def __init__(self, socket: zmq.Socket, gate: Gate | None, refusals: Refusals):
        self._gate, self._refusals = gate, refusals
        self._heard: set[int] = set()
        self._ended = False
        self.socket = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def heard(self, frame: zmq.Frame) -> None:
        """A message came by that connection."""
        self._read()  # one that ended before had the same descriptor, perhaps
        self._heard.add(frame.get(zmq.SRCFD))

    def disconnected(self) -> bool:
        """Whether any connection ended since the last call. Those of whom nothing was heard are counted as refused."""
        self._read()
        ended, self._ended = self._ended, False
        return ended

    def _read(self) -> None:
        while self.socket.getsockopt(EVENTS) & POLLIN:
            self._ended = True
            descriptor = parse_monitor_message(self.socket.recv_multipart(NOBLOCK))["value"]
            if descriptor in self._heard:
                self._heard.remove(descriptor)
            elif self._gate is not None and self._gate.turned_away:
                self._gate.turned_away -= 1
            else:
                self._refusals.count("no handshake of ours, or another key", "a connection")
