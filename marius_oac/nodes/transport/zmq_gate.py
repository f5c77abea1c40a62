"""ZeroMQ's own questions, answered: who may connect (ZAP), and what happened to connections (socket monitor).

Not safe for threads: the server's lock is held.
"""

from __future__ import annotations

import zmq
from zmq.utils.monitor import parse_monitor_message

from marius_oac.nodes.transport.handshake import Tokens
from marius_oac.nodes.transport.refusals import Refusals

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"marius-oac"
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class Gate:
    """Admits connections that show a good token. ZeroMQ asks before it lets a single message through.

    Args:
        context: of the server's socket, which must be bound later than this.
    """

    def __init__(self, context: zmq.Context, tokens: Tokens, refusals: Refusals):
        self._tokens, self._refusals = tokens, refusals
        self.socket = context.socket(zmq.REP)
        self.socket.bind(ZAP_ADDRESS)

    def answer(self) -> None:
        """Answers every question that waits."""
        while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            version, request, _, address, _, mechanism, *credentials = self.socket.recv_multipart(zmq.NOBLOCK)
            why = "no token"
            if mechanism == b"PLAIN" and len(credentials) == 2:
                why = self._tokens.why_not(*credentials)
            if why is not None:
                self._refusals.count(why, f"a connection from {address.decode('ascii', 'replace')}")
            status = (b"200", b"OK") if why is None else (b"400", b"refused")
            self.socket.send_multipart([version, request, *status, b"", b""], zmq.NOBLOCK)


class Events:
    """What happened to a server's connections."""

    def __init__(self, socket: zmq.Socket, refusals: Refusals):
        self._refusals = refusals
        self.socket = socket.get_monitor_socket(_FAILED | zmq.EVENT_DISCONNECTED)

    def disconnected(self) -> bool:
        """Whether any connection ended since the last call. Handshakes that failed are counted."""
        ended = False
        while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            event = parse_monitor_message(self.socket.recv_multipart(zmq.NOBLOCK))
            if event["event"] & _FAILED:
                self._refusals.count("not our protocol, or another key", "a connection")
            ended |= event["event"] == zmq.EVENT_DISCONNECTED
        return ended
