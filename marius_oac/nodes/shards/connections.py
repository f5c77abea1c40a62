"""Starts the server of this process's shard, and connects to the servers of all others."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

from marius_oac.config.cluster import ClusterConfig, read_secret
from marius_oac.errors import InputError
from marius_oac.nodes.dense.sync_server import SyncServer
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.trainers import Crowd
from marius_oac.nodes.launch.cluster import Place, elastic_worker_name, listening_at, names
from marius_oac.nodes.shards.dispatched_rows import COORDINATOR
from marius_oac.nodes.shards.dispatched_shard import make_dispatched_shard
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import ShardTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Client, Limits, Security
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.console import logger
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.storage.contract import backing_of
from marius_oac.types import Plan, present

_LIMITS = Limits()


class _Served(NamedTuple):
    """What serves this process's tables: the server, this process's connection, the others' endpoint, the shard."""

    server: ShardServer
    own: Client
    endpoint: ZmqServer
    shard: Shard


class Connections:
    """Serves this process's tables, and connects it to the servers of all.

    Args:
        place: this process's node and number.
        group: of the processes that serve, and of those that train with them.
        lockstep: whether all trainers compute the same batches.
        ahead: no trainer plans further than that many batches ahead of the one it computes.
        alpha: of EASGD's sync servers; None: there are none.
        rowless: names of the run's trainers that are not in the group (`nodes.training.rowless`).
        tell: sends the latter the description of the run that elastic workers get; called by every process of the
            group, once.
        crowd: which of the group train; None: all.
        parts: see `Shard`.
    """

    def __init__(
        self,
        place: Place,
        group: Group,
        lockstep: bool,
        ahead: int,
        alpha: float | None = None,
        rowless: Sequence[str] = (),
        tell: Callable[[Mapping[str, Any] | None], object] = lambda run: None,
        crowd: Crowd | None = None,
        parts: int | None = None,
    ):
        self._parts = parts
        self._crowd = crowd or Crowd([True] * group.size if group else [])
        self._alpha, self._rowless, self._tell = alpha, rowless, tell
        self._place, self._group, self._lockstep, self._ahead = place, group, lockstep, ahead
        self._tables: Sequence[ShardTable] = ()  # of this process
        self._called: list[str] = []
        self._addresses: dict[int, str] = {}
        self._connections: list[Client] = []
        self._number = -1  # of this process, among those that have rows
        self._served: _Served | None = None
        self._source: RemoteSource | None = None
        self._error: BaseException | None = None
        self._lost = 0

    def __call__(
        self,
        stack: ExitStack,
        tables: Sequence[ShardTable] | None,
        formats: Sequence[ValueFormat],
        factor: Callable[[Plan[Any]], float],
        binding: Binding = UNBOUND,
    ) -> RemoteSource:
        """Starts the server, connects, and returns the rows of all nodes as a source; collective.

        Args:
            stack: closes what is opened here.
            tables: of this process; None: it carries no rows, and serves nothing.
            formats: of the values of each table's rows.
            factor: see `RemoteSource`.
            binding: of the threads that are started: roles `network`, `serve` and `receive`.

        Raises:
            InputError: the server can't listen at its address.
            NodeLost, NodeRefused: see `ZmqClient`.
        """
        self._tables = tables or ()
        self._called = [name for name in names(self._place.cluster) if name not in self._rowless]
        with binding.bound("network"):  # of the threads that the transport starts by itself
            served = self._served = self._serve(stack, binding) if tables is not None else None
            self._connect(stack)
            about = (self._connections, formats, self._lockstep, self._ahead)
            source = self._source = RemoteSource(
                *about, self._begin, self._abort, factor, self._finish, binding.bind_thread,
                backing_of([table.store for table in self._tables]),
            )  # fmt: skip
            if served:
                source.refused, source.counts = lambda: served.endpoint.refused.total(), lambda: served.server.counts
                source.reconcile, source.server = self._reconcile, served.server
            source.announce = self._announce
            if self._error:
                source.fail(self._error)
            return stack.enter_context(source)

    def _connect(self, stack: ExitStack) -> None:
        served, security, timeout = self._served, security_of(self._place.cluster), self._place.cluster.timeout
        gathered = self._group.gather(served.endpoint.address if served else None)
        self._addresses = {other: where for other, where in enumerate(gathered) if where is not None}
        made: dict[int, Client] = {}
        # Each begins behind itself: otherwise all would come to the first server at once, then to the second.
        for other in sorted(self._addresses, key=lambda other: (other <= self._group.rank, other)):
            if served and other == self._group.rank:
                made[other] = served.own
                continue
            where = self._addresses[other]
            client = ZmqClient(where, self._called[other], self._peer, security, _LIMITS, timeout)
            made[other] = stack.enter_context(closing(client))  # the next one may not be reached
        self._connections = [made[other] for other in self._addresses]
        if served:
            self._number = list(self._addresses).index(self._group.rank)

    @property
    def _peer(self) -> int:
        return self._crowd.peer(self._group.rank)

    def _begin(self, first: int, last: int) -> None:
        if self._served:
            shard, dispatching = self._served.shard, present(self._source).dispatching
            if dispatching:
                about = self._tables, self._crowd.within, self._ahead
                shard = make_dispatched_shard(*about, dispatching, (first, last), self._number)
            self._served.server.begin(first, shard)
        self._group.barrier()  # no trainer pulls before all are ready

    def _finish(self) -> None:
        if self._crowd.serving:
            self._group.barrier()  # a process that only serves does not know when the others are through
        if self._served:
            self._served.server.finish()
        self._group.barrier()

    def _abort(self) -> None:
        for number, each in enumerate(self._connections):
            if number != self._number:  # the other nodes wait for our batches: they must find us lost, not gone
                each.abort()
        self._group.abort()

    def _announce(self, run: Mapping[str, Any]) -> None:
        whole = {**run, "servers": [[self._called[other], where] for other, where in self._addresses.items()]}
        if self._served:
            self._served.server.welcome(json.dumps(whole).encode())
        self._tell(None if self._group.rank else whole)

    def _reconcile(self, message: messages.Refuse | messages.Fill) -> None:
        answer = present(self._served).server.reconcile(message, self._number)
        self._connections[COORDINATOR].send(answer.frames())

    def _serve(self, stack: ExitStack, binding: Binding) -> _Served:
        cluster, group, crowd, number = self._place.cluster, self._group, self._crowd, self._peer
        every = {crowd.peer(other): name for other, name in enumerate(self._called)}
        every |= {len(every) + other: name for other, name in enumerate(self._rowless)}
        mine = every.pop(number)
        inside = Network()
        endpoint, own = inside.server(mine, {number: mine}, _LIMITS), inside.client(mine, number)
        first = len(every) + 1
        every |= {first + number: elastic_worker_name(number) for number in range(cluster.elastic_workers)}
        outside = range(group.size, first + cluster.elastic_workers)
        here = listening_at(self._place.node.address, self._place.port)
        outer = ZmqServer(here, mine, every, security_of(cluster), _LIMITS, cluster.timeout, logger.warning, outside)
        sync = None if self._alpha is None else SyncServer(self._alpha)
        shard = Shard(self._tables, crowd.within, self._lockstep, sync, self._ahead, self._parts)
        # It serves before others connect, since a server completes connections while it receives.
        endpoints = [(endpoint, [number]), (outer, list(every))]
        server = ShardServer(shard, endpoints, self._failed, group.size, self._is_lost, binding.bind_thread)
        self._served = _Served(server, own, outer, shard)  # the server's threads use it
        stack.enter_context(server)
        return self._served

    def _failed(self, error: BaseException) -> None:
        """Fails this process's own trainer with the error, and reports it to the others before they find this process
        gone."""
        self._error = error
        if self._source:
            self._source.fail(error)
        present(self._served).server.fail(error)
        self._group.abort(error)

    def _is_lost(self, rank: int) -> None:
        """Counts and logs the loss of a trainer of the run that is not in the group; elastic workers are ignored."""
        number = rank - self._group.size
        if number >= len(self._rowless):
            return
        self._lost += 1
        present(self._served).server.counts["trainers_lost_max"] = self._lost
        if self._number == COORDINATOR:
            trainers = self._crowd.trainers
            logger.warning(
                f"trainer {self._rowless[number]} has ended: its tokens are dispatched to the others; "
                f"{trainers - self._lost} of {trainers} trainers are left"
            )


def security_of(cluster: ClusterConfig) -> Security:
    """Returns the protection of connections to the servers of a run."""
    secret = hashlib.sha256(read_secret(cluster).encode()).digest()
    return Security(secret=secret, run=cluster.digest(), encrypted=cluster.encryption)


def check_port(place: Place) -> None:
    """Checks, before anything is written, that the server of this process can listen.

    Raises:
        InputError: it can't.
    """
    if not place.carries:
        return
    try:
        family, *_, where = socket.getaddrinfo(place.node.address, place.port, proto=socket.IPPROTO_TCP)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise InputError(f"can't listen at {place.node.address}, port {place.port}: {error.strerror}") from None
