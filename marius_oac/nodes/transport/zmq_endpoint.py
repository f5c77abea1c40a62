"""The base of a server and a client over ZeroMQ: one socket, and the threads that wait for it.

Guarantees:
- One thread at a time uses the socket, under `_changed`. The thread that calls `send` sends, and the thread that waits
  receives: there is no thread between them and ZeroMQ's own.
- Threads that wait, for a message or until they may send, *pump*: one of them sleeps on the socket's descriptor, takes
  in everything that has arrived, and wakes the others, one of which goes on pumping. `abort` wakes the pumping thread.
- A client that is attached to a receiver (`receiver.py`) is pumped by the receiver's thread, and others wait for that.
- While no thread waits, the process's keeper (`keeper.py`) pumps, so peers that connect or leave are answered soon,
  whatever the owner does.
- An endpoint at which a thread waits, and nothing arrives, wakes up every tick, a tenth of `timeout`, and never else.
- Everything that arrives is taken in at once: its amount is bounded by the windows of the senders (`windows.py`). So no
  message delays a heartbeat.
- ZeroMQ's own thread sends and watches heartbeats, without Python. So a peer that computes for minutes is not lost. One
  whose process, host or network is gone or frozen is lost within `timeout` seconds.
"""

from __future__ import annotations

import os
import select
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import zmq

from marius_oac.errors import NodeLost
from marius_oac.nodes.transport.contract import Endpoint, Frames, Limits, views
from marius_oac.nodes.transport.keeper import KEEPER
from marius_oac.nodes.transport.windows import ReceiveWindow, SendWindow
from marius_oac.nodes.transport.wire import Head, Kind, Malformed, head
from marius_oac.runtime.channel import Closed
from marius_oac.types import present

SMALL_BYTES = 64 << 10  # smaller frames are copied: it costs less than keeping them, and aligns them
_OVERHEAD_BYTES = 1024  # for ZeroMQ's handshake and encryption, and our head
_MOST_AT_ONCE = 1024  # messages taken in before other threads get the lock
_TICKS = 10  # looks at the connections within `timeout`
_LONGEST_TICK = 3.0
# Plain numbers: arithmetic on the binding's enumerations would take a tenth of a small message's time.
POLLIN, POLLOUT, EVENTS = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.EVENTS)
NOBLOCK, MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)
LEFT = "it has left"


class Connection:
    """One connection: its windows, and why it is over, if it is.

    Args:
        name: of the node at the other end.
        route: the first frames of a ROUTER's messages to it; empty on a client.
        limits: of messages.
        ended: called once, when it is over.
    """

    def __init__(
        self,
        name: str,
        route: list[bytes],
        limits: Limits,
        ended: Callable[[Connection], object] = lambda connection: None,
    ):
        self.name, self.route, self._ended = name, route, ended
        self.outgoing, self.incoming = SendWindow(limits), ReceiveWindow(limits)
        self.over: str | None = None
        self.said_bye = False

    def end(self, why: str) -> None:
        """Says that it is over; the first reason counts."""
        if self.over is None:
            self.over = why
            self._ended(self)

    def check(self) -> bool:
        """Returns True while the connection lasts.

        Raises:
            NodeLost: it is over.
        """
        if self.over is not None:
            raise NodeLost(self.name, self.over)
        return True


class ZmqEndpoint(Endpoint):
    """Sends and receives messages through one socket.

    Args:
        context: where sockets are opened.
        kind: zmq.ROUTER or zmq.DEALER.
        name: for messages.
        limits: of messages.
        timeout: seconds after which a silent peer is lost.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], kind: int, name: str, limits: Limits, timeout: float):
        self.name, self.limits, self.timeout = name, limits, timeout
        self._changed = threading.Condition(threading.Lock())
        self._pumping = self._aborted = self._closed = self._failed = False
        self._context, self._kind = context, kind
        self._socket = self._open()
        self._waker_lock = threading.RLock()
        self._waker: int | None = None  # made when a thread first pumps: most clients never need it
        self._tick = min(timeout / _TICKS, _LONGEST_TICK)
        self._inbox: deque[tuple[Connection, list[memoryview], int]] = deque()
        self._next_look = 0.0
        self._error: BaseException | None = None
        self._poll = select.poll()

    def _open(self) -> zmq.Socket[bytes]:
        """Returns a new socket with our options."""
        socket = self._context.socket(self._kind)
        milliseconds = max(4, round(1000 * self.timeout))
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 0),  # windows bound the messages under way
            (zmq.RCVHWM, 0),
            (zmq.MAXMSGSIZE, self.limits.max_bytes + _OVERHEAD_BYTES),
            (zmq.HEARTBEAT_IVL, milliseconds * 2 // 5),  # each costs both ends 15 us, so as seldom as they may be
            (zmq.HEARTBEAT_TIMEOUT, milliseconds * 9 // 20),
            (zmq.HANDSHAKE_IVL, milliseconds),
            (zmq.RECONNECT_IVL, -1),  # messages under way would be lost unnoticed
        ):
            socket.setsockopt(option, value)
        return socket

    @abstractmethod
    def _take_in(self, frames: list[zmq.Frame]) -> None:
        """Handles a message that has arrived."""

    @abstractmethod
    def _look(self) -> None:
        """Checks the connections: every tick, and whenever the descriptor was ready without a message."""

    def _after_pumping(self) -> None:
        """Called without the lock."""

    # --- messages ----------------------------------------------------------------------------------------------------

    def _put(
        self, connection: Connection, kind: Kind, parts: Sequence[bytes | zmq.Frame] = (), number: int = 0
    ) -> bool:
        """Gives a message to ZeroMQ without waiting; returns whether the connection still exists."""
        frames: list[bytes | zmq.Frame] = [*connection.route, head(kind, number, connection.incoming.tell()), *parts]
        try:
            for frame in frames[:-1]:
                self._socket.send(frame, MORE | NOBLOCK)
            self._socket.send(frames[-1], NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        return True

    def _send(self, connection: Connection, frames: Frames) -> None:
        """Sends a message as `Client.send` does."""
        flat, size = views(frames, self.limits)
        parts = [bytes(view) if len(view) < SMALL_BYTES else zmq.Frame(view, copy=False) for view in flat]
        with self._changed:
            self._wait_until(lambda: connection.check() and connection.outgoing.fits(size))
            if not self._put(connection, Kind.DATA, parts, connection.outgoing.add(size)):
                self._gone([connection])
                connection.check()
            self._after_sending()

    def _received(self) -> tuple[Connection, list[memoryview]]:
        """Returns the oldest message of the inbox; with the lock."""
        connection, frames, size = self._inbox.popleft()
        if connection.incoming.take(size) and connection.over is None:
            self._put(connection, Kind.TAKEN)
            self._after_sending()
        return connection, frames

    def _arrived(self, connection: Connection, what: Head, frames: Sequence[zmq.Frame]) -> None:
        """Handles a message of an authenticated peer.

        Raises:
            Malformed: it is invalid, and has had no effect.
        """
        if what.kind is Kind.DATA:
            if len(frames) > self.limits.max_frames:
                raise Malformed("too many frames")
            size = sum(map(len, frames))
            if size > self.limits.max_bytes:
                raise Malformed("oversized message")
            connection.outgoing.taken(what.taken)
            connection.incoming.arrived(what.number, size)
            self._inbox.append((connection, [frame_view(frame) for frame in frames], size))
        elif what.kind in (Kind.TAKEN, Kind.PROBE):  # every message reports the count, see `_put`
            connection.outgoing.taken(what.taken)
        elif what.kind is Kind.BYE:
            self._say_bye(connection)
            connection.end(LEFT)
        else:
            raise Malformed("unexpected message")

    def _gone(self, connections: Sequence[Connection]) -> None:
        """Marks connections as lost, after what arrived before, such as a goodbye, is taken in."""
        self._take_in_all()
        why = f"the connection is lost: its process has ended, or nothing was heard of it for {self.timeout:g} s"
        for connection in connections:
            connection.end(why)
        self._wake()

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Waits, with the lock held. `ready` may raise.

        Raises:
            Closed: after `abort`, `close` or `fail`.
        """
        while True:
            if self._aborted or self._closed or self._failed:
                raise Closed(self.name)
            if self._error is not None:
                raise self._error
            if ready():
                return
            if self._pumping:
                self._changed.wait()
            elif self._take_in_all():  # arrivals that the descriptor signalled while no thread pumped
                self._changed.notify_all()
            else:
                self._rest()

    def _rest(self) -> None:
        """Waits for something to arrive, with the lock held, while no other thread pumps."""
        self._pump()

    def _pump(self) -> None:
        self._make_waker()
        if self._aborted:
            return
        self._pumping = True
        self._changed.release()
        try:
            self._after_pumping()
            ready = self._poll.poll(1000 * self._tick)
        finally:
            self._changed.acquire()
            self._pumping = False
            self._changed.notify_all()
        if not self._aborted:
            if any(descriptor == self._waker for descriptor, _ in ready):
                os.eventfd_read(present(self._waker))
            self._drain()

    def _make_waker(self) -> None:
        with self._waker_lock:
            if self._waker is None:
                self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                self._poll.register(self._waker, select.POLLIN)

    def tend(self) -> None:
        """See `Kept`: pumps, without waiting, while no other thread does."""
        if self._pumping or self._aborted or self._error is not None or not self._changed.acquire(blocking=False):
            return
        try:
            try:
                if not self._pumping:
                    self._drain()
            finally:
                self._changed.release()
            self._after_pumping()
        except BaseException as error:  # noqa: BLE001 - raised in every call
            self._error = error
            self._wake()

    def _drain(self) -> None:
        """Takes in what has arrived; checks the connections if that was nothing, and every tick."""
        nothing, now = not self._take_in_all(), time.monotonic()
        if nothing or now >= self._next_look:
            self._next_look = now + self._tick
            self._look()

    def _take_in_all(self) -> int:
        """Takes in all that has arrived; returns the number of messages."""
        for number in range(_MOST_AT_ONCE):
            if not has_event(self._socket, POLLIN):
                return number
            try:
                frames = [self._socket.recv(NOBLOCK, copy=False)]
            except zmq.Again:
                # Before every 100th frame libzmq looks whether the peer has gone; a client's socket then drops what is
                # unread. (In the middle of a message its own assertion ends the process: fq.cpp, `!_more`.)
                return number
            while frames[-1].more:
                frames.append(self._socket.recv(NOBLOCK, copy=False))
            self._take_in(frames)
        self._wake()  # the descriptor is edge-triggered: it signals arrivals, not waiting messages
        return _MOST_AT_ONCE

    def _after_sending(self) -> None:
        """Wakes the pumping thread if messages wait: sending may have reset the descriptor before it looked."""
        if self._pumping and has_event(self._socket, POLLIN):
            self._wake()

    # --- stopping ----------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        with self._waker_lock:
            if self._waker is not None:
                os.eventfd_write(self._waker, 1)

    def abort(self) -> None:
        """See `Endpoint`."""
        self._aborted = True  # takes no lock that a signal handler could find taken; waiting threads look when woken
        self._wake()

    def close(self) -> None:
        """See `Endpoint`."""
        with ExitStack() as ending, self._changed:
            if self._closed:
                return
            ending.callback(self._end)  # without the lock; later callers find it closed
            self._closed = True
            try:
                self._wake()
                self._before_parting()
            finally:
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._pumping)
            if self._error is None:
                self._part()

    def _end(self) -> None:
        KEEPER.remove(self)
        self._release(0 if self._aborted else round(1000 * self.timeout))

    def _before_parting(self) -> None:
        """Called with the lock, when it is closed."""

    def _part(self) -> None:
        """Says goodbye to the peers that are still connected, and waits until they have answered.

        A TCP connection that is closed while the other end still sends is reset, and may lose what was sent before.
        """
        deadline = time.monotonic() + self.timeout
        for connection in self._connections():
            self._say_bye(connection)
        while (
            any(connection.over is None for connection in self._connections())
            and time.monotonic() < deadline
            and not self._aborted
        ):
            if not self._take_in_all():
                self._pump()

    def _say_bye(self, connection: Connection) -> None:
        if connection.over is None and not connection.said_bye and not self._aborted:
            connection.said_bye = True
            if not self._put(connection, Kind.BYE):
                self._gone([connection])

    @abstractmethod
    def _connections(self) -> Sequence[Connection]:
        """Returns all connections, also those that are over."""

    def _sockets(self) -> Sequence[zmq.Socket[bytes]]:
        return [self._socket]

    def _release(self, linger: int) -> None:
        for socket in self._sockets():
            socket.close(linger)
        self._end_context()
        with self._waker_lock:
            waker, self._waker = self._waker, None
        if waker is not None:
            os.close(waker)

    def _end_context(self) -> None:
        """Called when its sockets are closed."""
        self._context.term()


def has_event(socket: zmq.Socket[bytes], event: int) -> bool:
    """Whether a message can be received now (POLLIN), or sent (POLLOUT)."""
    return bool(int(socket.getsockopt(EVENTS)) & event)


def frame_view(frame: zmq.Frame) -> memoryview:
    """Returns a received frame's bytes, read-only, at an address that is a multiple of 8."""
    if len(frame) < SMALL_BYTES:
        return memoryview(frame.bytes)
    return memoryview(frame.buffer).toreadonly()
