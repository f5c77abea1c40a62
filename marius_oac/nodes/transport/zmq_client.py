"""A trainer's end of the transport, over ZeroMQ.

Guarantees: those of `contract.py` and `zmq_endpoint.py`. A constructed client has proved its rank, and the server has
proved that it has the run's secret. A connection that has ended is never made again, since messages under way would be
lost unnoticed. An attempt to connect that the server closes is repeated: a server to which too many connect at once,
strangers or all trainers of a large run, does that. After `_TRIES` and a part of the patience it counts as refused.
"""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Sequence

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from marius_oac.errors import NodeLost, NodeRefused
from marius_oac.nodes.transport.client_context import CLIENT_CONTEXT
from marius_oac.nodes.transport.contract import Client, Frames, Limits, Security, Watcher, failed, nonsense, passes
from marius_oac.nodes.transport.handshake import ClientSide, Keys
from marius_oac.nodes.transport.keeper import KEEPER
from marius_oac.nodes.transport.wire import Kind, Malformed, parse
from marius_oac.nodes.transport.zmq_endpoint import EVENTS, POLLIN, POLLOUT, Connection, ZmqEndpoint, has_event
from marius_oac.runtime.channel import Closed
from marius_oac.types import present

_PAUSE = 50  # milliseconds between attempts while nobody listens
_TRIES = 6  # closed attempts after which the server may count as one of another program or secret; 1.5 s in all
_CROWDED = 0.25  # of the patience, in which a server that closes attempts counts as crowded
_LONGEST_PAUSE = 1.0
_LOOKS = 4  # at an attached client within `timeout`, though its descriptor tells everything
_BACKOFF = 0.05  # seconds before the second attempt, about twice as many before each further one
_BROKEN_OFF = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
_WATCHED = _BROKEN_OFF | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_CLOSED


class ZmqClient(ZmqEndpoint, Client):
    """Connects to a server.

    Args:
        address: "HOST:PORT" of the server.
        name: the server's node.
        rank: this trainer's.
        security: of the run.
        limits: of messages.
        timeout: seconds after which a silent server is lost.
        patience: seconds to wait for a server that doesn't listen yet or is busy; None: `timeout`.
        began: when that wait began (`time.monotonic`); None: now.

    Raises:
        NodeLost: the server can't be reached, or refuses this trainer for now: see `Client`.
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
        began: float | None = None,
    ):
        context = CLIENT_CONTEXT.acquire()
        try:
            super().__init__(context, zmq.DEALER, name, limits, timeout)
        except BaseException:
            CLIENT_CONTEXT.release()
            raise
        self._watcher: Watcher | None = None
        self._receiver = 0  # the thread that it is attached to
        self._taking = False  # by that thread
        self._address, self._rank, self._security = address, rank, security
        self._patience = timeout if patience is None else patience
        self._keys = Keys(security, name)
        self._connection = Connection(name, [], limits)
        self._broken_off = 0
        deadline = (began or time.monotonic()) + self._patience
        try:
            while not self._connect(deadline):
                self._socket.close(0)
                self._socket = self._open()
            self._poll.register(self._socket, select.POLLIN)
            KEEPER.add(self)
        except BaseException:
            self._release(0)
            raise

    def send(self, frames: Frames) -> None:
        """See `Client.send`."""
        self._send(self._connection, frames)

    def receive(self) -> list[memoryview]:
        """See `Client.receive`."""
        with self._changed:
            self._wait_until(lambda: bool(self._inbox) or not self._connection.check())
            return self._received()[1]

    # --- attached to a receiver --------------------------------------------------------------------------------------

    def attach(self, watcher: Watcher) -> None:
        """See `Client.attach`."""
        with self._changed:
            if not self._closed:
                self._watcher, self._receiver = watcher, threading.get_ident()
                watcher.watch(self._socket.fileno(), self.timeout / _LOOKS)
                super()._wake()  # a sender that pumps waits for the receiver from now on
        KEEPER.remove(self)

    def receive_nowait(self) -> list[memoryview] | None:
        """See `Client.receive_nowait`."""
        with self._changed:
            if self._aborted or self._closed:
                raise Closed(self.name)
            if self._error is None and not self._inbox:
                self._take_in_what_came()
            if self._error is not None:
                raise self._error
            if not self._inbox:
                self._connection.check()
                if self._ready() & POLLIN:  # a look at the connection may have reset the descriptor after the last one
                    present(self._watcher).wake()
                return None
            frames = self._received()[1]
            # Taking this in may have reset the descriptor before more came, or the end.
            if self._inbox or self._connection.over is not None or self._ready() != POLLOUT:
                present(self._watcher).wake()
            return frames

    def detach(self) -> None:
        """See `Client.detach`."""
        with self._changed:
            if self._watcher is not None and not self._closed:
                self._before_parting()
                self._changed.notify_all()  # threads that wait to send pump again
                KEEPER.add(self)

    def _take_in_what_came(self) -> None:
        self._taking = True
        try:
            self._drain()
        except BaseException as error:  # noqa: BLE001 - raised in every call
            self._error = error
        finally:
            self._taking = False
            self._changed.notify_all()

    def _before_parting(self) -> None:
        if self._watcher is not None:
            self._watcher.forget()
            self._watcher = None

    def _wake(self) -> None:
        super()._wake()
        watcher = self._watcher  # a signal handler that aborts takes no lock
        if watcher is not None:
            watcher.wake()

    def _rest(self) -> None:
        if self._watcher is None or self._receiver == threading.get_ident():
            self._pump()
            return
        ready = self._ready()
        if not ready & POLLOUT:
            self._gone([self._connection])
        elif not ready & POLLIN:
            self._changed.wait()  # for the receiver, which takes in what arrives

    def _after_sending(self) -> None:
        """Wakes who waits if something is told: sending may have reset the descriptor before they looked."""
        if (self._pumping or self._watcher is not None) and self._ready() != POLLOUT:
            self._wake()

    def _ready(self) -> int:
        return int(self._socket.getsockopt(EVENTS))

    # --- connecting --------------------------------------------------------------------------------------------------

    def _connect(self, deadline: float) -> bool:
        """Makes one attempt; returns False if another one may succeed."""
        socket = self._socket
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

    def _shake_hands(self, events: zmq.Socket[bytes], deadline: float) -> bool:
        side = ClientSide(self._keys, self._rank, self.limits)
        self._put(self._connection, Kind.HELLO, [side.hello])
        poller = zmq.Poller()
        for socket in (self._socket, events):
            poller.register(socket, zmq.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poller.poll(int(1000 * left)))
            if self._socket in ready:
                if self._converse(side, self._socket.recv_multipart(zmq.NOBLOCK)):
                    return True
            elif events in ready:
                event = parse_monitor_message(events.recv_multipart(zmq.NOBLOCK))["event"]
                if event == zmq.EVENT_CLOSED:
                    events.poll(min(_PAUSE, int(1000 * left)))
                    return False
                if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    raise NodeRefused(self.name, f"refused at {self._address}: another secret, or another run")
                self._back_off(left)
                return False
        raise NodeLost(self.name, f"it didn't answer at {self._address} within {self._patience:g} s")

    def _back_off(self, left: float) -> None:
        """Waits before the next attempt, for `left` seconds at most, since the server has closed this one."""
        self._broken_off += 1
        if self._broken_off >= _TRIES and self._patience - left >= _CROWDED * self._patience:
            why = "another program or version, secret or run, or encrypted at one end only"
            raise NodeRefused(self.name, f"it closed the connection at {self._address}: {why}")
        pause = min(_LONGEST_PAUSE, _BACKOFF * 2.0 ** (self._broken_off - 1)) * random.uniform(0.5, 1.5)
        self._poll.poll(1000 * min(left, pause))  # ended by `abort` alone: the socket is not registered yet

    def _converse(self, side: ClientSide, message: list[bytes]) -> bool:
        """Answers the server; returns whether the handshake is complete."""
        try:
            kind = parse(message[0]).kind
        except Malformed as error:
            raise NodeRefused(self.name, f"at {self._address}: {error}") from None
        if kind is Kind.WELCOME and side.proved:
            return True
        if kind is Kind.REFUSED:
            reason = message[-1].decode("ascii", "replace")
            raise (NodeLost if passes(reason) else NodeRefused)(self.name, f"refused at {self._address}: {reason}")
        proof = side.answer(message[-1]) if kind is Kind.CHALLENGE else None
        if proof is None:
            raise NodeRefused(self.name, f"the server at {self._address} doesn't have the run's secret")
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
            self._connection.end(nonsense(reason))
        if not self._taking and self._watcher is not None and (self._inbox or self._connection.over is not None):
            self._watcher.wake()

    def _server_failed(self, frames: Sequence[zmq.Frame]) -> None:
        """Handles the reason of a server that has failed; answers it as a goodbye."""
        if len(frames) != 1:
            raise Malformed("malformed message")
        self._say_bye(self._connection)
        self._connection.end(failed(frames[0].bytes.decode("utf-8", "replace")))

    def _look(self) -> None:
        if not has_event(self._socket, POLLOUT):  # without high-water marks, sending fails only without a connection
            self._gone([self._connection])

    def _connections(self) -> Sequence[Connection]:
        return [self._connection]

    def _end_context(self) -> None:
        CLIENT_CONTEXT.release()
