"""The doors of this process's shard, and the lines to those of all others."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

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
from marius_oac.nodes.transport.contract import Client, Limits, Security
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.console import logger
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.types import Plan

_LIMITS = Limits()


class Connections:
    """Serves this process's tables, and connects it to the servers of all.

    Args:
        place: who this process is.
        lockstep: whether all trainers compute the same batches.
        group: of the processes that serve, and of those that train with them.
        rowless: names of the run's trainers that are not in the group (`training.rowless`).
        tell: tells the latter of the run, as elastic workers are told; called by every process of the group, once.
        alpha: of EASGD's sync servers; None: there are none.
        crowd: which of the group train; None: all.
        ahead: no trainer plans further than that many batches ahead of the one it computes.
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
        self._server: ShardServer | None = None
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
        """Collective. What must be closed is entered into `stack`.

        Args:
            binding: of the threads that are started: roles `network`, `serve` and `receive`.
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
        own, outer, shard = self._served(stack, tables, called, binding) if tables else (None, None, None)
        server = self._server
        connections = []
        addresses = {
            other: where for other, where in enumerate(group.gather(outer and outer.address)) if where is not None
        }
        for other, where in addresses.items():
            if other == rank:
                connections.append(own)
            else:
                line = ZmqClient(
                    where, called[other], self._crowd.peer(rank), self._security(), _LIMITS, cluster.timeout
                )
                connections.append(stack.enter_context(closing(line)))  # the next one may not be there

        def begin(*batch_range: int) -> None:
            if server:
                dispatching, about = source.dispatching, (tables, self._crowd.within, self._ahead)
                server.begin(
                    batch_range[0],
                    make_dispatched_shard(*about, dispatching, batch_range, place) if dispatching else shard,
                )
            group.barrier()  # nobody asks before all are ready

        def finish() -> None:
            if self._crowd.serving:
                group.barrier()  # who only serves is not told when the others are through
            if server:
                server.finish()
            group.barrier()

        def abort() -> None:
            for line in connections:
                if line is not own:  # the others' batches wait for ours: they must find us lost, not gone in peace
                    line.abort()
            group.abort()

        about = (connections, dimensions, self._lockstep, self._ahead)
        source = self._source = RemoteSource(*about, begin, abort, factor, finish, binding.bind_thread)
        if server:
            self._source.refused = lambda: outer.refused.total()
            self._source.counts = lambda: server.counts
            place = connections.index(own)
            self._is_first = place == COORDINATOR
            self._source.reconcile = lambda *said: connections[COORDINATOR].send(
                replace(server.reconcile(*said), table=place).frames()
            )
        servers = [[called[other], where] for other, where in addresses.items()]

        def announce(run: Mapping[str, Any]) -> None:
            told = {**run, "servers": servers}
            if server:
                server.welcome(json.dumps(told).encode())
            self._tell(None if rank else told)

        source.announce = announce
        if self._error:
            self._source.fail(self._error)
        return stack.enter_context(self._source)

    def _served(
        self, stack: ExitStack, tables: Sequence[ShardTable], called: Sequence[str], binding: Binding
    ) -> tuple[Client, ZmqServer, Shard]:
        """Serves this process's tables: its own line to them, the door of others, and what is served in lockstep."""
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
        outer = ZmqServer(here, mine, every, self._security(), _LIMITS, cluster.timeout, _log, outside)
        sync = None if self._alpha is None else SyncServer(self._alpha)
        shard = Shard(tables, crowd.within, self._lockstep, sync, self._ahead)
        # It serves before anybody connects: a server makes connections while it receives.
        endpoints = [(endpoint, [number]), (outer, list(every))]
        self._server = ShardServer(shard, endpoints, self._failed, group.size, self._is_lost, binding.bind_thread)
        stack.enter_context(self._server)
        return own, outer, shard

    def _failed(self, error: BaseException) -> None:
        """Its own trainer has the error itself; the others are told of it before they find this one gone."""
        self._error = error
        if self._source:
            self._source.fail(error)
        self._server.fail(error)
        self._group.abort(error)

    def _is_lost(self, rank: int) -> None:
        """Who is not in the group has died; those of them that are the run's own are counted."""
        number = rank - self._group.size
        if number >= len(self._rowless):
            return
        self._lost += 1
        self._server.counts["trainers_lost_max"] = self._lost
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
    """Raises InputError where the server of this process could not listen; before anything is written."""
    if not place.carries:
        return
    try:
        family, *_, where = socket.getaddrinfo(place.node.address, place.port, proto=socket.IPPROTO_TCP)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise InputError(f"can't listen at {place.node.address}, port {place.port}: {error.strerror}") from None


def _log(line: str) -> None:
    logger.warning(line)
