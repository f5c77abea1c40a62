"""A trainer's end of the transport, over ZeroMQ.

Guarantees: those of `contract.py` and `zmq_endpoint.py`. A constructed client has proved its rank and has proof that
the server has the run's secret. A connection that ended is never made again: what was on its way would be lost without
anybody's notice. One that is broken off before it was made is tried `_TRIES` times: a server that strangers crowd does
that.
"""

from __future__ import annotations

import random
import select
import time
from collections.abc import Sequence

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from marius_oac.errors import NodeLost, NodeRefused
from marius_oac.nodes.transport.contract import Buffer, Client, Limits, Security, failed, nonsense, passes
from marius_oac.nodes.transport.handshake import ClientSide, Keys
from marius_oac.nodes.transport.wire import Kind, Malformed, parse
from marius_oac.nodes.transport.zmq_endpoint import EVENTS, POLLOUT, Connection, ZmqEndpoint

_PAUSE = 50  # milliseconds between attempts while nobody listens
_TRIES = 6  # attempts that may be broken off, before another program or secret is what is there; 1.5 s in all
_BACKOFF = 0.05  # seconds before the second attempt, twice as many before each further one, more or less
_BROKEN_OFF = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
_WATCHED = _BROKEN_OFF | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_CLOSED


class ZmqClient(ZmqEndpoint, Client):
    """Connects; waits for a server that doesn't listen yet, or is busy, for `patience` seconds.

    Args:
        address: "HOST:PORT" of the server.
        name: the server's node.
        rank: this trainer's.
        timeout: seconds after which a silent server is lost.
        patience: default: `timeout`.

    Raises:
        NodeLost: it can't be reached, or refuses this trainer now: see `Client`.
        NodeRefused: one end refuses the other.
    """

    def __init__(
        self,
        address: str,
        name: str,
        rank: int,
        security: Security,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        timeout: float = 30.0,
        patience: float | None = None,
    ):
        super().__init__(zmq.DEALER, name, limits, timeout)
        self._address, self._rank, self._security = address, rank, security
        self._patience = timeout if patience is None else patience
        self._keys = Keys(security, name)
        self._connection = Connection(name, [], limits)
        self._socket: zmq.Socket | None = None
        self._broken_off = 0
        deadline = time.monotonic() + self._patience
        try:
            while not self._connect(deadline):
                self._socket.close(0)
        except BaseException:
            self._release(0)
            raise
        self._poll.register(self._socket.getsockopt(zmq.FD), select.POLLIN)
        self._keeper.start()

    def send(self, frames: Sequence[Buffer]) -> None:
        self._send(self._connection, frames)

    def receive(self) -> list[memoryview]:
        with self._changed:
            self._wait_until(lambda: bool(self._inbox or self._connection.check()))
            return self._received()[1]

    # --- connecting --------------------------------------------------------------------------------------------------

    def _connect(self, deadline: float) -> bool:
        """One attempt; False if another one may do better."""
        self._socket = socket = self._open()
        if self._security.encrypted:
            public, secret = zmq.curve_keypair()
            socket.setsockopt(zmq.CURVE_SERVERKEY, zmq.curve_public(z85.encode(self._keys.curve_secret())))
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        else:
            socket.setsockopt(zmq.PLAIN_USERNAME, b"%d" % self._rank)
            socket.setsockopt(zmq.PLAIN_PASSWORD, self._keys.token(self._rank).encode())
        socket.setsockopt(zmq.IPV6, "[" in self._address)
        events = socket.get_monitor_socket(_WATCHED)
        try:
            socket.connect(f"tcp://{self._address}")
            return self._shake_hands(events, deadline)
        except zmq.ZMQError as error:
            raise NodeLost(self.name, f"can't connect to {self._address}: {error.strerror}") from None
        finally:
            socket.disable_monitor()
            events.close(0)

    def _shake_hands(self, events: zmq.Socket, deadline: float) -> bool:
        side = ClientSide(self._keys, self._rank, self.limits)
        self._put(self._connection, Kind.HELLO, [side.hello])
        poller = zmq.Poller()
        for socket in (self._socket, events):
            poller.register(socket, zmq.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(1000 * left))
            if self._socket in ready:
                if self._converse(side, self._socket.recv_multipart(zmq.NOBLOCK)):
                    return True
            elif events in ready:
                event = parse_monitor_message(events.recv_multipart(zmq.NOBLOCK))["event"]
                if event == zmq.EVENT_CLOSED:
                    events.poll(min(_PAUSE, 1000 * left))
                    return False
                if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    raise NodeRefused(self.name, f"refused at {self._address}: another secret, or another run")
                self._back_off(left)
                return False
        raise NodeLost(self.name, f"it didn't answer at {self._address} within {self._patience:g} s")

    def _back_off(self, left: float) -> None:
        """The attempt was broken off: waits before the next one, for `left` seconds at most."""
        self._broken_off += 1
        if self._broken_off == _TRIES:
            raise NodeRefused(
                self.name,
                f"broke off at {self._address}: another program or version, secret or run, or encrypted at one end "
                "only",
            )
        pause = _BACKOFF * 2 ** (self._broken_off - 1) * random.uniform(0.5, 1.5)
        self._poll.poll(1000 * min(left, pause))  # for nothing: the socket is not registered yet

    def _converse(self, side: ClientSide, message: list[bytes]) -> bool:
        """Answers the server; returns whether all is said."""
        try:
            kind = parse(message[0]).kind
        except Malformed as reason:
            raise NodeRefused(self.name, f"at {self._address}: {reason}") from None
        if kind is Kind.WELCOME and side.proved:
            return True
        if kind is Kind.REFUSED:
            reason = message[-1].decode("ascii", "replace")
            raise (NodeLost if passes(reason) else NodeRefused)(self.name, f"refused at {self._address}: {reason}")
        proof = side.answer(message[-1]) if kind is Kind.CHALLENGE else None
        if proof is None:
            raise NodeRefused(self.name, f"whoever answers at {self._address} doesn't have the run's secret")
        self._put(self._connection, Kind.PROOF, [proof])
        return False

    # --- what arrives, with the lock ---------------------------------------------------------------------------------

    def _take_in(self, frames: list[zmq.Frame]) -> None:
        try:
            what = parse(frames[0].buffer)
            if what.kind is Kind.FAILED:
                self._server_failed(frames[1:])
            else:
                self._arrived(self._connection, what, frames[1:])
        except Malformed as reason:
            self._connection.over = self._connection.over or nonsense(reason)

    def _server_failed(self, frames: Sequence[zmq.Frame]) -> None:
        """A farewell with a reason, which is answered as one."""
        if len(frames) != 1:
            raise Malformed("malformed message")
        self._say_bye(self._connection)
        self._connection.over = self._connection.over or failed(frames[0].bytes.decode("utf-8", "replace"))

    def _look(self) -> None:
        if not self._socket.getsockopt(EVENTS) & POLLOUT:  # nothing bounds sending but the connection
            self._gone([self._connection])

    def _connections(self) -> Sequence[Connection]:
        return [self._connection]
