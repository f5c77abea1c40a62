"""A shard server's end of the transport, over ZeroMQ.

Guarantees, beyond those of `contract.py` and `zmq_endpoint.py`:
- A connection belongs to a rank from its proof (`handshake.py`) until it ends. ZeroMQ identifies connections by numbers
  that clients can't choose.
- Messages of strangers have no effect: they are counted in `refused`, by reason, and logged from time to time. Unproved
  connections are bounded in number and time (`zmq_gate.Visitors`); of proved ones a rank has one.
- A trainer that has proved its rank and sends an invalid message is lost, which is counted as well. Its later messages
  have no effect.
- It listens at the address that it was given and nowhere else.
"""

from __future__ import annotations

import ipaddress
import select
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping, Sequence

import zmq
from zmq.utils import z85

from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.transport.contract import TAKEN, Frames, Limits, Request, Security, Server, failed, nonsense
from marius_oac.nodes.transport.handshake import HELLO_BYTES, MAC_BYTES, Hello, Keys, ServerSide, Tokens
from marius_oac.nodes.transport.keeper import KEEPER
from marius_oac.nodes.transport.refusals import Refusals
from marius_oac.nodes.transport.wire import Head, Kind, Malformed, parse
from marius_oac.nodes.transport.zmq_endpoint import LEFT, Connection, ZmqEndpoint
from marius_oac.nodes.transport.zmq_gate import PROVING, ZAP_DOMAIN, Gate, Visitor, Visitors, most_unproved

_BACKLOG = 1024  # connections that wait to be accepted; clients beyond it retry only after seconds
_LONGEST_REASON = 1000  # characters
_PROBED_AT_ONCE, _TURNS = 64, 5  # a tick checks so many connections, or such a part of them: all in half the timeout
_SUSPICIONS = 3  # checks of all connections after one has ended: ZeroMQ reports an end a little before it happens
_SUSPICIOUS = 2  # times the timeout after that, in which connections are checked at ticks, and else never


class ZmqServer(ZmqEndpoint, Server):
    """Listens at one address.

    Args:
        address: "IP:PORT" of one interface ("127.0.0.1:0", "[::1]:7000"); port 0: any that is free.
        name: this node's.
        peers: rank -> name of its node, for all that may connect.
        security: of the run.
        limits: of messages.
        timeout: seconds after which a silent trainer is lost.
        log: called with one line at a time about refusals, from any thread that is in a call; must not call back.
        elastic_workers: ranks that may come and go.

    Raises:
        InputError: the address is invalid, or the server can't listen there.
    """

    def __init__(
        self,
        address: str,
        name: str,
        peers: Mapping[int, str],
        security: Security,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        timeout: float = 30.0,
        log: Callable[[str], None] = lambda line: None,
        elastic_workers: Container[int] = (),
    ):
        endpoint = _endpoint(address, name)
        super().__init__(zmq.Context(), zmq.ROUTER, name, limits, timeout)
        self.names, self._why, self._elastic_workers = dict(peers), "", elastic_workers
        self._keys = Keys(security, name)
        self._refusals = Refusals(log)
        self._by_rank: dict[int, Connection] = {}
        self._by_route: dict[bytes, tuple[int, Connection]] = {}
        self._lost: list[Connection] = []  # of trainers of the run
        self._departures: deque[int] = deque()  # elastic workers that are gone, which was not told yet
        self._next_probed = 0
        self._pending: dict[bytes, tuple[Visitor, ServerSide]] = {}
        self._suspicions, self._next_probe, self._probed_until = 0, 0.0, 0.0
        self._gate = None if security.encrypted else Gate(self._context, Tokens(self._keys), self._refusals)
        most, patience = most_unproved(len(self.names)), min(timeout, PROVING)
        self._visitors = Visitors(self._socket, self._gate, self._refusals, most, patience)
        try:
            self._listen(endpoint)
            self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
            KEEPER.add(self)
        except zmq.ZMQError as error:
            self._release(0)
            why = zmq.strerror(error.errno or 0)
            raise InputError(f"can't listen at {address}: {why}", where=f"node {name}") from None
        except BaseException:
            self._release(0)
            raise

    def _listen(self, endpoint: str) -> None:
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.BACKLOG, _BACKLOG)
        self._socket.setsockopt(zmq.IPV6, "[" in endpoint)
        if self._gate is None:
            self._socket.setsockopt(zmq.CURVE_SERVER, 1)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, z85.encode(self._keys.curve_secret()))
        else:
            self._socket.setsockopt(zmq.PLAIN_SERVER, 1)
            self._socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
            self._poll.register(self._gate.socket, select.POLLIN)
        self._socket.bind(endpoint)
        for socket in (self._socket, self._visitors.socket):
            self._poll.register(socket, select.POLLIN)

    @property
    def refused(self) -> Counter[str]:
        """The number of refusals so far, by reason."""
        return self._refusals.counts

    def receive(self) -> Request:
        """See `Server.receive`."""
        with self._changed:
            self._wait_until(self._has_request)
            if not self._inbox:
                return Request(self._departed(), None)
            connection, frames = self._received()
            rank, _ = self._by_route[connection.route[0]]
        return Request(rank, frames)

    def send(self, peer: int, frames: Frames) -> None:
        """See `Server.send`."""
        connection = self._by_rank.get(peer)
        if connection is None:
            raise NodeLost(self.names.get(peer, f"of rank {peer}"), "it is not connected")
        self._send(connection, frames)

    def fail(self, why: str) -> None:
        """See `Server.fail`."""
        with self._changed:
            if self._failed or self._closed:
                return
            self._failed, self._why = True, why[:_LONGEST_REASON]
            for connection in self._connections():
                if connection.over != LEFT:
                    # It is a goodbye, too. One more could come to a trainer that has answered it and is gone: ZeroMQ
                    # would keep it for `timeout` seconds, and `close` would wait.
                    connection.said_bye = True
                    self._put(connection, Kind.FAILED, [self._why.encode()])
            self._after_sending()
            self._wake()

    def _has_request(self) -> bool:
        if not self._inbox and self._lost:
            self._lost[0].check()
        return bool(self._inbox or self._departures)

    def _departed(self) -> int:
        """Returns an elastic worker that is gone; its rank may connect again."""
        rank = self._departures.popleft()
        del self._by_route[self._by_rank.pop(rank).route[0]]
        return rank

    def _has_ended(self, connection: Connection) -> None:
        rank, _ = self._by_route[connection.route[0]]
        if rank in self._elastic_workers:
            self._departures.append(rank)
        elif connection.over != LEFT:
            self._lost.append(connection)

    # --- what arrives, with the lock ---------------------------------------------------------------------------------

    def _take_in(self, frames: list[zmq.Frame]) -> None:
        route = frames[0].bytes
        known = self._by_route.get(route)
        if known is None:
            visitor = self._visitors.whose(frames[-1])
            try:
                self._from_stranger(route, visitor, *_parsed(frames))
            except Malformed as reason:
                self._refusals.count(str(reason), "a connection")
                visitor.counted = True
            return
        rank, connection = known
        try:
            what, rest = _parsed(frames)
            if connection.over is None:
                self._arrived(connection, what, rest)
        except Malformed as reason:
            self._refusals.count(str(reason), f"a message of node {connection.name} (rank {rank})")
            connection.end(nonsense(reason))

    def _from_stranger(self, route: bytes, visitor: Visitor, what: Head, frames: Sequence[zmq.Frame]) -> None:
        sizes = [len(frame) for frame in frames]
        if what.kind is Kind.HELLO and route not in self._pending:
            if sizes != [HELLO_BYTES] or route[0]:  # numbers that ZeroMQ gives begin with 0, those of clients don't
                raise Malformed("malformed handshake")
            self._challenge(route, visitor, Hello.parse(frames[0].bytes))
        elif what.kind is Kind.PROOF and route in self._pending:
            _, side = self._pending.pop(route)
            if sizes != [MAC_BYTES] or not side.accepts(frames[0].bytes):
                raise Malformed("wrong proof")
            self._welcome(route, side.hello)
            self._visitors.proved(visitor)
        else:
            raise Malformed("message before the handshake")

    def _challenge(self, route: bytes, visitor: Visitor, hello: Hello) -> None:
        if hello.limits != self.limits:
            self._turn_away(route, "other limits of messages")
        self._check_rank(route, hello.rank)
        side = ServerSide(self._keys, hello)
        self._pending[route] = visitor, side
        visitor.since, visitor.greeted = time.monotonic(), True
        self._say(route, Kind.CHALLENGE, side.challenge())

    def _welcome(self, route: bytes, hello: Hello) -> None:
        self._check_rank(route, hello.rank)
        connection = Connection(self.names[hello.rank], [route], self.limits, self._has_ended)
        self._by_rank[hello.rank] = connection
        self._by_route[route] = hello.rank, connection
        self._say(route, Kind.WELCOME)

    def _check_rank(self, route: bytes, rank: int) -> None:
        if self._failed:
            self._turn_away(route, failed(self._why))
        if rank not in self.names:
            self._turn_away(route, "unknown rank")
        if rank in self._by_rank and (rank in self._elastic_workers or self._by_rank[rank].over != LEFT):
            self._turn_away(route, TAKEN)

    def _turn_away(self, route: bytes, reason: str) -> None:
        self._say(route, Kind.REFUSED, reason.encode())
        raise Malformed(reason)

    def _say(self, route: bytes, kind: Kind, *parts: bytes) -> None:
        self._put(Connection("", [route], self.limits), kind, parts)

    # --- connections, with the lock ----------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._gate is not None:
            self._gate.answer()
        super()._drain()
        if self._visitors.look():
            self._suspicions, self._probed_until = _SUSPICIONS, time.monotonic() + _SUSPICIOUS * self.timeout
            self._pending = {route: each for route, each in self._pending.items() if each[0].here}
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        # On a busy machine an end may come after the first checks; where none was reported nobody is checked.
        if self._suspicions or self._next_probe <= now < self._probed_until:
            connected = [connection for connection in self._by_rank.values() if connection.over is None]
            if not self._suspicions:  # of many some, in turn
                most = max(_PROBED_AT_ONCE, -(-len(connected) // _TURNS))
                first = self._next_probed if self._next_probed < len(connected) else 0
                self._next_probed = first + most
                connected = connected[first : first + most]
            self._suspicions = max(0, self._suspicions - 1)
            self._next_probe = now + self._tick
            gone = [connection for connection in connected if not self._put(connection, Kind.PROBE)]
            if gone:
                self._gone(gone)

    def _connections(self) -> Sequence[Connection]:
        return list(self._by_rank.values())

    def _after_pumping(self) -> None:
        self._refusals.say()

    def _release(self, linger: int) -> None:
        self._socket.disable_monitor()  # it would block on its full queue of events, which are not read any more
        self._visitors.close()
        super()._release(linger)

    def _sockets(self) -> Sequence[zmq.Socket[bytes]]:
        return [*([self._gate.socket] if self._gate else []), self._socket]


def _parsed(frames: list[zmq.Frame]) -> tuple[Head, list[zmq.Frame]]:
    if len(frames) < 2:
        raise Malformed("malformed message")
    return parse(frames[1].buffer), frames[2:]


def _endpoint(address: str, name: str) -> str:
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        written = f"[{bare}]" if ipaddress.ip_address(bare).version == 6 else bare
        if host != written or not 0 <= int(port) < 1 << 16:
            raise ValueError
    except ValueError:
        raise InputError(f"{address!r} is not an address and port (IP:PORT)", f"node {name}") from None
    return f"tcp://{address}"
