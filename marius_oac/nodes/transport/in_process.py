"""The transport between threads of one process: it copies nothing, and tests can force any race.

Guarantees, beyond those of `contract.py`:
- A received frame is the memory that was sent, but read-only (copied only where it is not aligned).
- A message that is *held* does not arrive until it is released. Only messages of different connections or directions
  overtake each other. A test that holds and releases from one thread decides the order of arrival.
- Each server has one lock, shared by its clients.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from marius_oac.errors import NodeLost, NodeRefused
from marius_oac.nodes.transport.contract import (
    TAKEN,
    Client,
    Frames,
    Limits,
    Request,
    Server,
    Watcher,
    failed,
    views,
)
from marius_oac.nodes.transport.windows import SendWindow
from marius_oac.runtime.channel import Closed

_ALIGNMENT = 8
_LEFT = "it has left"


class Way(Enum):
    """A direction: from a trainer to the server, or back."""

    REQUEST = "request"
    REPLY = "reply"


@dataclass
class _Direction:
    """One direction of one connection."""

    window: SendWindow
    held: bool = False
    flying: deque[list[memoryview]] = field(default_factory=deque)  # sent, not arrived


class _Connection:
    """A connection; `client_over` and `server_over` say why that end is gone, if it is."""

    def __init__(self, rank: int, name: str, limits: Limits):
        self.rank, self.name = rank, name
        self.directions = {way: _Direction(SendWindow(limits)) for way in Way}
        self.replies: deque[list[memoryview]] = deque()
        self.client_over: str | None = None
        self.server_over: str | None = None
        self.watcher: Watcher | None = None

    def tell(self) -> None:
        """Tells whoever receives without waiting that there is something new; with the lock."""
        if self.watcher is not None:
            self.watcher.wake()


class _Hub:
    """What a server and its clients share, under one lock."""

    def __init__(self, name: str, names: Mapping[int, str], limits: Limits, delay: Callable[[Way, int], None]):
        self.name, self.names, self.limits, self.delay = name, dict(names), limits, delay
        self.changed = threading.Condition()
        self.connections: dict[int, _Connection] = {}
        self.inbox: deque[tuple[_Connection, list[memoryview]]] = deque()
        self.over: str | None = None

    def admit(self, rank: int) -> _Connection:
        """Connects a rank. Raises NodeLost or NodeRefused, as `Client` says."""
        with self.changed:
            why = self.over
            if rank not in self.names:
                raise NodeRefused(self.name, "refused: unknown rank")
            if rank in self.connections and self.connections[rank].client_over != _LEFT:
                why = f"refused: {TAKEN}"
            if why is not None:
                raise NodeLost(self.name, why)
            connection = self.connections[rank] = _Connection(rank, self.names[rank], self.limits)
            return connection

    def send(self, connection: _Connection, way: Way, frames: Frames, check: Callable[[], bool]) -> None:
        """Sends a message. `check` returns True, or raises where the sender must not wait any longer."""
        flat, size = views(frames, self.limits)
        message = [_handed_over(view) for view in flat]
        check()
        self.delay(way, connection.rank)
        direction = connection.directions[way]
        with self.changed:
            self.changed.wait_for(lambda: check() and direction.window.fits(size))
            direction.window.add(size)
            direction.flying.append(message)
            if not direction.held:
                self.land(connection, way)

    def land(self, connection: _Connection, way: Way) -> None:
        """Makes the oldest message in that direction arrive."""
        message = connection.directions[way].flying.popleft()
        if way is Way.REPLY:
            connection.replies.append(message)
            connection.tell()
        else:
            self.inbox.append((connection, message))
        self.changed.notify_all()

    def took(self, connection: _Connection, way: Way) -> None:
        """Counts a message as received."""
        connection.directions[way].window.took_one()
        self.changed.notify_all()

    def end(self, why: str) -> None:
        """Ends all connections: the server is gone."""
        self.over = self.over or why
        for connection in self.connections.values():
            connection.server_over = connection.server_over or why
            connection.tell()
        self.changed.notify_all()


class InProcessServer(Server):
    """A server; made by `Network.server`."""

    def __init__(self, hub: _Hub):
        self._hub, self._stopped = hub, False
        self.address, self.names = f"in-process:{hub.name}", hub.names

    def receive(self) -> Request:
        """See `Server.receive`."""
        hub = self._hub
        with hub.changed:
            hub.changed.wait_for(self._has_request)
            connection, frames = hub.inbox.popleft()
            hub.took(connection, Way.REQUEST)
            return Request(connection.rank, frames)

    def send(self, peer: int, frames: Frames) -> None:
        """See `Server.send`."""
        connection = self._hub.connections.get(peer)
        if connection is None:
            raise NodeLost(self._hub.names.get(peer, f"of rank {peer}"), "it is not connected")
        self._hub.send(connection, Way.REPLY, frames, lambda: self._check(connection))

    def fail(self, why: str) -> None:
        """See `Server.fail`."""
        self.abort()
        with self._hub.changed:
            self._hub.end(failed(why))

    def abort(self) -> None:
        """See `Endpoint`."""
        self._stopped = True
        with self._hub.changed:
            self._hub.changed.notify_all()

    def close(self) -> None:
        """See `Endpoint`."""
        self.abort()
        with self._hub.changed:
            self._hub.end("it has closed the connection")

    def _check(self, connection: _Connection) -> bool:
        if self._stopped:
            raise Closed(self._hub.name)
        if connection.client_over is not None:
            raise NodeLost(connection.name, connection.client_over)
        return True

    def _has_request(self) -> bool:
        if self._stopped:
            raise Closed(self._hub.name)
        if not self._hub.inbox:
            for connection in self._hub.connections.values():
                if connection.client_over != _LEFT:
                    self._check(connection)
        return bool(self._hub.inbox)


class InProcessClient(Client):
    """A client; made by `Network.client`."""

    def __init__(self, hub: _Hub, connection: _Connection):
        self._hub, self._connection, self._stopped, self.name = hub, connection, False, hub.name

    def send(self, frames: Frames) -> None:
        """See `Client.send`."""
        self._hub.send(self._connection, Way.REQUEST, frames, self._check)

    def receive(self) -> list[memoryview]:
        """See `Client.receive`."""
        with self._hub.changed:
            self._hub.changed.wait_for(self._has_reply)
            self._hub.took(self._connection, Way.REPLY)
            return self._connection.replies.popleft()

    def attach(self, watcher: Watcher) -> None:
        """See `Client.attach`."""
        with self._hub.changed:
            self._connection.watcher = watcher

    def receive_nowait(self) -> list[memoryview] | None:
        """See `Client.receive_nowait`."""
        with self._hub.changed:
            if not self._has_reply():
                return None
            found = self.receive()
            if self._connection.replies:
                self._connection.tell()
            return found

    def detach(self) -> None:
        """See `Client.detach`."""
        with self._hub.changed:
            self._connection.watcher = None

    def abort(self) -> None:
        """See `Endpoint`."""
        self._stopped = True
        with self._hub.changed:
            self._connection.tell()
            self._hub.changed.notify_all()

    def close(self) -> None:
        """See `Endpoint`."""
        aborted, self._stopped = self._stopped, True
        with self._hub.changed:
            why = "its connection is lost" if aborted else _LEFT
            self._connection.client_over = self._connection.client_over or why
            self._connection.tell()
            self._hub.changed.notify_all()

    def _check(self) -> bool:
        if self._stopped:
            raise Closed(self._hub.name)
        if self._connection.server_over is not None:
            raise NodeLost(self._hub.name, self._connection.server_over)
        return True

    def _has_reply(self) -> bool:
        if self._stopped or not self._connection.replies:
            self._check()
        return bool(self._connection.replies)


class Network:
    """Connects clients to servers by name.

    Args:
        delay: called by the thread that sends, as `delay(way, rank)`, before its message is sent and without any lock:
            it may wait.
    """

    def __init__(self, delay: Callable[[Way, int], None] = lambda way, rank: None):
        self._delay = delay
        self._hubs: dict[str, _Hub] = {}
        self._servers: dict[str, InProcessServer] = {}
        self._clients: dict[tuple[str, int], InProcessClient] = {}
        self._changed = threading.Condition()

    def server(self, name: str, peers: Mapping[int, str], limits: Limits = Limits()) -> InProcessServer:  # noqa: B008
        """Returns a server of that name, to which the ranks of `peers` (rank -> name of its node) may connect."""
        hub = _Hub(name, peers, limits, self._delay)
        with self._changed:
            self._hubs[name], self._servers[name] = hub, InProcessServer(hub)
            self._changed.notify_all()
            return self._servers[name]

    def client(self, name: str, rank: int, timeout: float = 30.0) -> InProcessClient:
        """Connects that rank to the server of that name, for which it waits up to `timeout` seconds.

        Raises:
            NodeLost: there is no such server in time, or it refuses: see `Client`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._hubs, timeout):
                raise NodeLost(name, f"it didn't answer within {timeout:g} s")
            hub = self._hubs[name]
            client = self._clients[name, rank] = InProcessClient(hub, hub.admit(rank))
            return client

    def hold(self, name: str, rank: int, way: Way) -> None:
        """Holds later messages between that server and rank."""
        hub = self._hubs[name]
        with hub.changed:
            hub.connections[rank].directions[way].held = True

    def release(self, name: str, rank: int, way: Way, count: int | None = None) -> None:
        """Lets the oldest `count` messages arrive and goes on holding; None: lets all arrive and stops holding."""
        hub = self._hubs[name]
        with hub.changed:
            connection = hub.connections[rank]
            direction = connection.directions[way]
            direction.held = count is not None
            for _ in range(len(direction.flying) if count is None else count):
                hub.land(connection, way)

    def kill(self, name: str, rank: int | None = None) -> None:
        """Ends that server, or its client of that rank, as if by `kill -9`: its own calls raise `Closed`."""
        hub = self._hubs[name]
        with hub.changed:
            if rank is None:
                self._servers[name].abort()
                hub.end("its process has ended")
            else:
                self._clients[name, rank].abort()
                self._clients[name, rank].close()


def _handed_over(view: memoryview) -> memoryview:
    if np.frombuffer(view, np.uint8).ctypes.data % _ALIGNMENT:
        view = memoryview(bytes(view))
    return view.toreadonly()
