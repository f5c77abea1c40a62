"""The first node's store, within reach of the others: TCP connections carried from one machine's loopback to another's.

torch's store knows no secret, so it listens on the loopback of the first node's machine. There a `StoreGate` listens
for the other nodes. Each of these has a `StoreLine`: it listens on its own loopback, and what connects there is
connected to the store.

Guarantees:
- Between machines all travels over one connection of our transport for each node, always encrypted: both ends have
  proved the run's secret, and what is sent can be neither read, changed, replayed nor reordered. What strangers say has
  no effect; it is counted, and said at the end.
- Each direction of a connection ends by itself, after all that was said before.
- An end that is lost ends the connections that it had, and nothing else. The first error is kept in `error`.
- `close` leaves no thread or socket.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Self

from marius_oac.errors import NodeLost
from marius_oac.nodes.transport.contract import Endpoint, Limits, Security, nonsense
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.channel import Closed

LOOPBACK = "127.0.0.1"
_CHUNK = 64 << 10
_LIMITS = Limits(max_bytes=_CHUNK + 64, max_frames=2, queue=64)
_HEAD = struct.Struct("<BQ")  # what, number of the connection
_OPEN, _SAID, _ENDED = range(3)
_STUCK = 60  # seconds that a process of this machine may take to read what was sent to it


class _Stream:
    """A local connection. `say` is called by one thread; another one runs `carry`, and closes it at last."""

    def __init__(self, local: socket.socket):
        local.settimeout(None)
        local.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _STUCK, 0))
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._local = local
        self._silent = threading.Event()  # nothing more is said to it
        self._saying, self._shutting = threading.Lock(), threading.Lock()  # while it is not closed

    def say(self, data: bytes | memoryview) -> None:
        with self._saying:
            try:
                if not self._silent.is_set():
                    self._local.sendall(data)
            except OSError:  # it has gone, or reads no more
                self.cut()

    def end(self) -> None:
        """Nothing more will be said to it."""
        self._shut(socket.SHUT_WR)

    def cut(self) -> None:
        """Both directions end now."""
        self._shut(socket.SHUT_RDWR)

    def carry(self, put: Callable[[int, bytes], None], opens: bool) -> None:
        """Hands over that it is there, if it `opens` the connection, and what it says, until both directions end."""
        try:
            if opens:
                put(_OPEN, b"")
            while data := self._heard():
                put(_SAID, data)
            put(_ENDED, b"")
            self._silent.wait()
        except (NodeLost, Closed):  # whoever receives from that end hears of it, too
            pass
        finally:
            self._silent.set()
            with self._saying, self._shutting:
                self._local.close()

    def _heard(self) -> bytes:
        try:
            return self._local.recv(_CHUNK)
        except OSError:
            self.cut()
            return b""

    def _shut(self, how: int) -> None:
        with self._shutting, suppress(OSError):  # both directions have ended, or it is closed
            self._local.shutdown(how)
        self._silent.set()


class _Tunnel(ABC):
    """What both ends share: local connections by key, and a thread for each besides the one that receives."""

    def __init__(self, endpoint: Endpoint):
        self._endpoint = endpoint
        self.error: BaseException | None = None
        """Why it ended before it was closed."""
        self._lock = threading.Lock()
        self._streams: dict[Hashable, _Stream] = {}
        self._carriers: set[threading.Thread] = set()
        self._over = False
        self._receiver = threading.Thread(target=self._receive, name="tunnel")
        self._receiver.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._endpoint.abort()
        self.close()

    def close(self) -> None:
        """Cuts all connections, and waits for the threads to end."""
        self._finish()
        self._endpoint.close()
        self._receiver.join()
        with self._lock:
            carriers = list(self._carriers)
        for carrier in carriers:
            carrier.join()

    @abstractmethod
    def _end(self, error: BaseException) -> None:
        """Nothing is received any more."""

    @abstractmethod
    def _next(self) -> None:
        """Receives a message and does what it says."""

    @abstractmethod
    def _put(self, key: Hashable, what: int, data: bytes) -> None:
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
        """From now on there are no connections."""
        with self._lock:
            self._over = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.cut()

    def _add(self, key: Hashable, local: socket.socket, opens: bool) -> None:
        stream = _Stream(local)

        def carry() -> None:
            try:
                stream.carry(lambda what, data: self._put(key, what, data), opens)
            except BaseException as error:  # noqa: BLE001 - kept
                self._fail(error)
            with self._lock:
                if self._streams.get(key) is stream:
                    del self._streams[key]
                self._carriers.discard(carrier)

        carrier = threading.Thread(target=carry, name="tunnel, a connection")
        with self._lock:
            if self._over:
                local.close()
                return
            self._streams[key] = stream
            self._carriers.add(carrier)
            carrier.start()

    def _say(self, key: Hashable, what: int, data: memoryview) -> None:
        """What the other end has sent about a connection."""
        with self._lock:
            stream = self._streams.get(key)
        if stream is None:  # it was cut here, of which the other end has not heard yet
            return
        if what == _SAID:
            stream.say(data)
        else:
            stream.end()


def _read(name: str, frames: Sequence[memoryview]) -> tuple[int, int, memoryview]:
    """What, number, data. Raises NodeLost for a message that can't be."""
    if len(frames) != 2 or len(frames[0]) != _HEAD.size:
        raise NodeLost(name, nonsense("malformed message"))
    what, number = _HEAD.unpack(frames[0])
    if what > _ENDED:
        raise NodeLost(name, nonsense("unknown kind"))
    return what, number, frames[1]


class StoreGate(_Tunnel):
    """The first node's end.

    Args:
        where: IP:PORT to listen at.
        store: port of the store, on this machine's loopback.
        names: of all nodes, this one first.
        timeout: seconds after which a silent node is lost.
        log: gets a line about strangers.

    Raises:
        InputError: it can't listen there.
    """

    def __init__(
        self, where: str, store: int, names: Sequence[str], security: Security, timeout: float,
        log: Callable[[str], None],
    ):  # fmt: skip
        others = dict(enumerate(names[1:], 1))
        self._server = ZmqServer(
            where, names[0], others, _encrypted(security), _LIMITS, timeout, log, elastic_workers=others
        )
        self._store, self._log = store, log
        self.address = self._server.address
        super().__init__(self._server)

    def close(self) -> None:
        super().close()
        if refused := self._server.refused:
            reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(refused.items()))
            self._log(f"strangers at the rendezvous, {self.address}, were refused: {reasons}")

    def _end(self, error: BaseException) -> None:
        self._server.fail(str(error))  # the others hear of it

    def _next(self) -> None:
        request = self._server.receive()
        if request.frames is None:
            self._cut(request.peer)
            return
        what, number, data = _read(self._server.names[request.peer], request.frames)
        key = request.peer, number
        if what == _OPEN:
            self._open(key)
        else:
            self._say(key, what, data)

    def _open(self, key: tuple[int, int]) -> None:
        try:
            local = socket.create_connection((LOOPBACK, self._store), timeout=_STUCK)
        except OSError:  # the run is over
            self._put(key, _ENDED, b"")
        else:
            self._add(key, local, opens=False)

    def _cut(self, peer: int) -> None:
        """All connections of a node that is gone."""
        with self._lock:
            theirs = [key for key in self._streams if key[0] == peer]
            streams = [self._streams.pop(key) for key in theirs]
        for stream in streams:
            stream.cut()

    def _put(self, key: tuple[int, int], what: int, data: bytes) -> None:
        peer, number = key
        self._server.send(peer, [_HEAD.pack(what, number), data])


class StoreLine(_Tunnel):
    """Another node's end; waits until the first one listens.

    Args:
        address: HOST:PORT of the first node's gate.
        name: the first node's.
        index: this node's number, from 1.
        timeout: seconds after which a silent first node is lost.
        patience: seconds to wait for it.

    Attributes:
        port: where it listens, on this machine's loopback.

    Raises:
        NodeLost, NodeRefused: see `ZmqClient`.
    """

    def __init__(self, address: str, name: str, index: int, security: Security, timeout: float, patience: float):
        self._name = name
        self._numbers = itertools.count()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        try:
            self._client = ZmqClient(address, name, index, _encrypted(security), _LIMITS, timeout, patience)
        except BaseException:
            self._listener.close()
            raise
        self._acceptor = threading.Thread(target=self._accept, name="tunnel, accepting")
        super().__init__(self._client)
        self._acceptor.start()

    def close(self) -> None:
        self._finish()
        self._acceptor.join()
        self._listener.close()
        super().close()

    def _finish(self) -> None:
        super()._finish()
        with suppress(OSError):  # it was done before
            self._listener.shutdown(socket.SHUT_RDWR)  # whoever accepts is woken

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
        self._say(number, what, data)

    def _put(self, key: int, what: int, data: bytes) -> None:
        self._client.send([_HEAD.pack(what, key), data])


def _encrypted(security: Security) -> Security:
    return Security(secret=security.secret, run=security.run, encrypted=True)
