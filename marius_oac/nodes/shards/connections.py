"""Starts the server of this process's shard, and connects to the servers of all others."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, NamedTuple

from marius_oac.config.cluster import read_secret
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
from marius_oac.nodes.transport.contract import Client, Frames, Limits, Security
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.messages import Message
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.console import logger
from marius_oac.runtime.machine.binding import UNBOUND, Binding
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
        rowless: names of the run's trainers that are not in the group (`training.rowless`).
        tell: sends the latter the description of the run that elastic workers get; called by every process of the
            group, once.
        crowd: which of the group train; None: all.
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
    ):
        self._crowd = crowd or Crowd([True] * group.size if group else [])
        self._alpha, self._rowless, self._tell = alpha, rowless, tell
        self._lost, self._is_first = 0, False
        self._place, self._group, self._lockstep, self._ahead = place, group, lockstep, ahead
        self._served: _Served | None = None
        self._source: RemoteSource | None = None
        self._error: BaseException | None = None

    def __call__(
        self,
        stack: ExitStack,
        tables: Sequence[ShardTable],
        dimensions: Sequence[int],
        factor: Callable[[Plan], float],
        binding: Binding = UNBOUND,
    ) -> RemoteSource:
        """Starts the server, connects, and returns the rows of all nodes as a source; collective.

        Args:
            stack: closes what is opened here.
            tables: of this process; empty: it serves none.
            dimensions: floats of a value, of each table.
            factor: see `RemoteSource`.
            binding: of the threads that are started: roles `network`, `serve` and `receive`.

        Raises:
            InputError: the server can't listen at its address.
            NodeLost, NodeRefused: see `ZmqClient`.
        """
        with binding.bound("network"):  # of the threads that the transport starts by itself
            return self._connected(stack, tables, dimensions, factor, binding)

    def _connected(
        self,
        stack: ExitStack,
        tables: Sequence[ShardTable],
        dimensions: Sequence[int],
        factor: Callable[[Plan], float],
        binding: Binding,
    ) -> RemoteSource:
        cluster, group, rank = self._place.cluster, self._group, self._group.rank
        called = [name for name in names(cluster) if name not in self._rowless]
        served = self._served = self._serve(stack, tables, called, binding) if tables else None
        addresses = {
            other: where
            for other, where in enumerate(group.gather(served.endpoint.address if served else None))
            if where is not None
        }
        connections: list[Client] = []
        others: list[Client] = []
        for other, where in addresses.items():
            if served and other == rank:
                connections.append(served.own)
                continue
            about = where, called[other], self._crowd.peer(rank), self._security(), _LIMITS, cluster.timeout
            others.append(stack.enter_context(closing(ZmqClient(*about))))  # closed if the next one can't be reached
            connections.append(others[-1])
        place = list(addresses).index(rank) if served else -1
        self._is_first = place == COORDINATOR

        def begin(first: int, last: int) -> None:
            if served:
                shard, parts = served.shard, (tables, self._crowd.within, self._ahead)
                if source.dispatching:
                    shard = make_dispatched_shard(*parts, source.dispatching, (first, last), place)
                served.server.begin(first, shard)
            group.barrier()  # no trainer pulls before all are ready

        def finish() -> None:
            if self._crowd.serving:
                group.barrier()  # a process that only serves does not know when the others are through
            if served:
                served.server.finish()
            group.barrier()

        def abort() -> None:
            for each in others:  # these nodes wait for our batches: they must find us lost, not gone
                each.abort()
            group.abort()

        def announce(run: Mapping[str, Any]) -> None:
            whole = {**run, "servers": [[called[other], where] for other, where in addresses.items()]}
            if served:
                served.server.welcome(json.dumps(whole).encode())
            self._tell(None if rank else whole)

        def reconcile(message: Message, frames: Frames) -> None:
            answer = replace(present(served).server.reconcile(message, frames), table=place)
            connections[COORDINATOR].send(answer.frames())

        what = (connections, dimensions, self._lockstep, self._ahead)
        source = self._source = RemoteSource(*what, begin, abort, factor, finish, binding.bind_thread)
        if served:
            source.refused, source.counts = lambda: served.endpoint.refused.total(), lambda: served.server.counts
            source.reconcile = reconcile
        source.announce = announce
        if self._error:
            source.fail(self._error)
        return stack.enter_context(source)

    def _serve(
        self, stack: ExitStack, tables: Sequence[ShardTable], called: Sequence[str], binding: Binding
    ) -> _Served:
        cluster, group, rank = self._place.cluster, self._group, self._group.rank
        crowd, number = self._crowd, self._crowd.peer(rank)
        every = {crowd.peer(other): name for other, name in enumerate(called)}
        every |= {len(called) + other: name for other, name in enumerate(self._rowless)}
        mine = every.pop(number)
        inside = Network()
        endpoint, own = inside.server(mine, {number: mine}, _LIMITS), inside.client(mine, number)
        first = len(every) + 1
        every |= {first + number: elastic_worker_name(number) for number in range(cluster.elastic_workers)}
        outside = range(group.size, first + cluster.elastic_workers)
        here = listening_at(self._place.node.address, self._place.port)
        outer = ZmqServer(here, mine, every, self._security(), _LIMITS, cluster.timeout, logger.warning, outside)
        sync = None if self._alpha is None else SyncServer(self._alpha)
        shard = Shard(tables, crowd.within, self._lockstep, sync, self._ahead)
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
        if self._is_first:
            trainers = self._crowd.trainers
            logger.warning(
                f"trainer {self._rowless[number]} has ended: its tokens are dispatched to the others; "
                f"{trainers - self._lost} of {trainers} trainers are left"
            )

    def _security(self) -> Security:
        cluster = self._place.cluster
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
