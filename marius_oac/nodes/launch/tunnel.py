"""Forwards TCP connections to the first node's store, from the loopback of other machines to that of the first.

torch's store has no authentication, so it listens on the loopback of the first node's machine. There a `StoreGate`
listens for the other nodes. Each of them has a `StoreProxy`, which listens on its own loopback and forwards every
connection to the store.

Guarantees:
- Each node's traffic travels over one connection of our transport, always encrypted. Both ends have proved the run's
  secret, and data can be neither read, changed, replayed nor reordered. Messages of strangers have no effect; they are
  counted, and the counts are logged at the end.
- Each direction of a forwarded connection ends by itself, after all data before its end.
- The loss of a node ends its connections and nothing else. The first error is kept in `error`.
- `close` leaves no thread or socket.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from marius_oac.errors import NodeLost
from marius_oac.nodes.transport.contract import Endpoint, Limits, Security, nonsense
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.closing import Abortable
from marius_oac.runtime.workers import join

LOOPBACK = "127.0.0.1"
_CHUNK = 64 << 10
_LIMITS = Limits(max_bytes=_CHUNK + 64, max_frames=2, queue=64)
_HEAD = struct.Struct("<BQ")  # what happened, number of the connection
_OPEN, _SAID, _ENDED = range(3)
_STUCK = 60  # seconds that a process of this machine may take to read what was sent to it
Key = TypeVar("Key", bound=Hashable)


class _Stream:
    """A local connection. One thread calls `send`; another one runs `forward`, which closes it at last."""

    def __init__(self, local: socket.socket):
        local.settimeout(None)
        local.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _STUCK, 0))
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._local = local
        self._silent = threading.Event()  # nothing more is sent to it
        self._sending, self._shutting = threading.Lock(), threading.Lock()  # held while it must not be closed

    def send(self, data: bytes | memoryview) -> None:
        """Sends data to the local end; cuts the connection if that fails."""
        with self._sending:
            try:
                if not self._silent.is_set():
                    self._local.sendall(data)
            except OSError:  # it has gone, or reads no more
                self.cut()

    def end(self) -> None:
        """Ends the direction to the local end."""
        self._shut(socket.SHUT_WR)

    def cut(self) -> None:
        """Ends both directions now."""
        self._shut(socket.SHUT_RDWR)

    def forward(self, put: Callable[[int, bytes], None], opens: bool) -> None:
        """Forwards what the local end sends until both directions end; first that it is there, if it `opens`."""
        try:
            if opens:
                put(_OPEN, b"")
            while data := self._received():
                put(_SAID, data)
            put(_ENDED, b"")
            self._silent.wait()
        except (NodeLost, Closed):  # the thread that receives from the other end finds out, too
            pass
        finally:
            self._silent.set()
            with self._sending, self._shutting:
                self._local.close()

    def _received(self) -> bytes:
        try:
            return self._local.recv(_CHUNK)
        except OSError:
            self.cut()
            return b""

    def _shut(self, how: int) -> None:
        with self._shutting, suppress(OSError):  # both directions have ended, or it is closed
            self._local.shutdown(how)
        self._silent.set()


class _Tunnel(Abortable, Generic[Key]):
    """The base of both ends: has local connections by key, a thread for each, and one that receives."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self.error: BaseException | None = None
        """Why it ended before it was closed."""
        self._lock = threading.Lock()
        self._streams: dict[Key, _Stream] = {}
        self._forwarders: set[threading.Thread] = set()
        self._over = False
        self._receiver = threading.Thread(target=self._receive, name="tunnel")

    def _start(self, *others: threading.Thread) -> None:
        """Starts the threads, or closes this end again."""
        try:
            for thread in (self._receiver, *others):
                thread.start()
        except BaseException:
            self.abort()
            self.close()
            raise

    def abort(self) -> None:
        """Ends the connection to the other nodes, so that `close` does not wait for them."""
        self._endpoint.abort()

    def close(self) -> None:
        """Cuts all connections, and waits for the threads to end."""
        self._finish()
        self._endpoint.close()
        join(self._receiver)
        with self._lock:
            forwarders = list(self._forwarders)
        for forwarder in forwarders:
            forwarder.join()

    @abstractmethod
    def _end(self, error: BaseException) -> None:
        """Ends the connection to the other nodes."""

    @abstractmethod
    def _next(self) -> None:
        """Receives a message and handles it."""

    @abstractmethod
    def _put(self, key: Key, what: int, data: bytes) -> None:
        """Sends a message about a connection."""

    def _receive(self) -> None:
        try:
            while True:
                self._next()
        except Closed:
            pass
        except BaseException as error:  # noqa: BLE001 - kept
            self._fail(error)
        self._finish()

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._end(error)

    def _finish(self) -> None:
        """Cuts all connections and takes no new ones."""
        with self._lock:
            self._over = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.cut()

    def _add(self, key: Key, local: socket.socket, opens: bool) -> None:
        stream = _Stream(local)

        def forward() -> None:
            try:
                stream.forward(lambda what, data: self._put(key, what, data), opens)
            except BaseException as error:  # noqa: BLE001 - kept
                self._fail(error)
            with self._lock:
                if self._streams.get(key) is stream:
                    del self._streams[key]
                self._forwarders.discard(forwarder)

        forwarder = threading.Thread(target=forward, name="tunnel, a connection")
        with self._lock:
            if self._over:
                local.close()
                return
            self._streams[key] = stream
            self._forwarders.add(forwarder)
            forwarder.start()

    def _handle(self, key: Key, what: int, data: memoryview) -> None:
        """Handles what the other end has sent about a connection."""
        with self._lock:
            stream = self._streams.get(key)
        if stream is None:  # it was cut here, which the other end doesn't know yet
            return
        if what == _SAID:
            stream.send(data)
        else:
            stream.end()


def _read(name: str, frames: Sequence[memoryview]) -> tuple[int, int, memoryview]:
    """Returns what happened, the connection's number, and data. Raises NodeLost for a malformed message."""
    if len(frames) != 2 or len(frames[0]) != _HEAD.size:
        raise NodeLost(name, nonsense("malformed message"))
    what, number = _HEAD.unpack(frames[0])
    if what > _ENDED:
        raise NodeLost(name, nonsense("unknown kind"))
    return what, number, frames[1]


class StoreGate(_Tunnel[tuple[int, int]]):
    """The first node's end.

    Args:
        where: IP:PORT to listen at.
        store: port of the store, on this machine's loopback.
        names: of all nodes, this one first.
        security: of the run.
        timeout: seconds after which a silent node is lost.
        log: called with a line about refused strangers.
        gone: called with the number of each node that was connected and is not any more, by the thread that receives.

    Attributes:
        address: IP:PORT where it listens.

    Raises:
        InputError: it can't listen there.
    """

    def __init__(
        self, where: str, store: int, names: Sequence[str], security: Security, timeout: float,
        log: Callable[[str], None], gone: Callable[[int], None] = lambda index: None,
    ):  # fmt: skip
        others = dict(enumerate(names[1:], 1))
        self._server = ZmqServer(
            where, names[0], others, _encrypted(security), _LIMITS, timeout, log, elastic_workers=others
        )
        self._store, self._log, self._gone = store, log, gone
        self.address = self._server.address
        super().__init__(self._server)
        self._start()

    def close(self) -> None:
        """Closes as `_Tunnel.close` does, then logs refused strangers."""
        super().close()
        if refused := self._server.refused:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(refused.items()))
            self._log(f"strangers at the rendezvous, {self.address}, were refused: {reasons}")

    def _end(self, error: BaseException) -> None:
        self._server.fail(str(error))  # the others get the reason

    def _next(self) -> None:
        request = self._server.receive()
        if request.frames is None:
            self._cut(request.peer)
            self._gone(request.peer)
            return
        what, number, data = _read(self._server.names[request.peer], request.frames)
        key = request.peer, number
        if what == _OPEN:
            self._open(key)
        else:
            self._handle(key, what, data)

    def _open(self, key: tuple[int, int]) -> None:
        try:
            local = socket.create_connection((LOOPBACK, self._store), timeout=_STUCK)
        except OSError:  # the run is over
            self._put(key, _ENDED, b"")
        else:
            self._add(key, local, opens=False)

    def _cut(self, peer: int) -> None:
        """Cuts all connections of a node that is gone."""
        with self._lock:
            theirs = [key for key in self._streams if key[0] == peer]
            streams = [self._streams.pop(key) for key in theirs]
        for stream in streams:
            stream.cut()

    def _put(self, key: tuple[int, int], what: int, data: bytes) -> None:
        peer, number = key
        self._server.send(peer, [_HEAD.pack(what, number), data])


class StoreProxy(_Tunnel[int]):
    """Another node's end; waits until the first one listens.

    Args:
        address: HOST:PORT of the first node's gate.
        name: the first node's.
        index: this node's number, from 1.
        security: of the run.
        timeout: seconds after which a silent first node is lost.
        patience: seconds to wait for it.
        began: when that wait began (`time.monotonic`); None: now.

    Attributes:
        port: where it listens, on this machine's loopback.

    Raises:
        NodeLost, NodeRefused: see `ZmqClient`.
    """

    def __init__(
        self, address: str, name: str, index: int, security: Security, timeout: float, patience: float,
        began: float | None = None,
    ):  # fmt: skip
        self._name = name
        self._numbers = itertools.count()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        try:
            about = _encrypted(security), _LIMITS, timeout, patience, began
            self._client = ZmqClient(address, name, index, *about)
        except BaseException:
            self._listener.close()
            raise
        self._acceptor = threading.Thread(target=self._accept, name="tunnel, accepting")
        super().__init__(self._client)
        self._start(self._acceptor)

    def close(self) -> None:
        """Stops listening, then closes as `_Tunnel.close` does."""
        self._finish()
        join(self._acceptor)
        self._listener.close()
        super().close()

    def _finish(self) -> None:
        super()._finish()
        with suppress(OSError):  # it was done before
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread

    def _accept(self) -> None:
        while True:
            try:
                local, _ = self._listener.accept()
            except OSError as error:
                if not self._over:
                    self._fail(error)
                return
            self._add(next(self._numbers), local, opens=True)

    def _end(self, error: BaseException) -> None:
        self._client.abort()

    def _next(self) -> None:
        what, number, data = _read(self._name, self._client.receive())
        self._handle(number, what, data)

    def _put(self, key: int, what: int, data: bytes) -> None:
        self._client.send([_HEAD.pack(what, key), data])


def _encrypted(security: Security) -> Security:
    return Security(secret=security.secret, run=security.run, encrypted=True)
