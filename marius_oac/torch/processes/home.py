"""The rows of an engine's loops, where they are in several processes.

Guarantees:
- All processes train the same number of batches, one after the other: batch n is every process's n-th. Rows have the
  averages of all gradients, in the order of ranks, so results are the same for any number of batches in flight.
- Whatever ends a loop waits for no other process. What needs all of them (beginning a loop, drawing from loaders,
  checkpoints, closing) is agreed on by `Agreement`, which ends with one line for all where they differ.
- A process that is gone, or has failed, ends the others with one line. One that fails, or is ended by `abort`, tells
  the others why before any connection of it ends. They raise that reason, even if they hear of the end before it.
- Threads (two that serve, one for each process that receive) live from the first call to `close`, or to the
  interpreter's exit.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from marius_oac.errors import InputError, MariusOacError, NodeLost
from marius_oac.nodes.launch.cluster import endpoint
from marius_oac.nodes.shards.serving import ShardServer, reason_of
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.contract import Client, Limits, Security
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.pipeline.rows import RowSource
from marius_oac.runtime.channel import Channel
from marius_oac.runtime.console import logger
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.storage.placement import route_keys
from marius_oac.torch import shared_checkpoints
from marius_oac.torch.checkpoints import Moment, Parts, about
from marius_oac.torch.exits import end_at_exit
from marius_oac.torch.feeding import Feeding
from marius_oac.torch.hand_over import HandOver
from marius_oac.torch.home import Home
from marius_oac.torch.key_forms import KeyArray
from marius_oac.torch.pipeline import LoopStep, OpenBatch
from marius_oac.torch.planner import Fed, LoopPlanner
from marius_oac.torch.processes.agreement import Agreement, check_same
from marius_oac.torch.processes.batches import SharedPlanner, SharedStep
from marius_oac.torch.processes.exchange import LoopRows, SharedSource
from marius_oac.torch.processes.shard import FRAMES, LoopShard, LoopTable
from marius_oac.torch.sharing import Share
from marius_oac.types import present

_SILENCE = 60.0
"""Seconds after which a process that says nothing is lost, if the group's timeout is longer."""


class Processes(Home):
    """Rows in several processes. Made by all of them together.

    Args:
        group: of torch's.
        share: this process's part of the keys.
        feedings: of the engine: its tables and their optimizers.
        in_flight, mode: of the engine.
        first: the number of the first batch.
        on_broken: called with the error when the processes can't go on together.

    Raises:
        InputError: the processes' engines differ, or this one can't listen.
        NodeLost: another process is not there.
    """

    waits = True

    def __init__(
        self, group: dist.ProcessGroup, share: Share, feedings: Sequence[Feeding], in_flight: int, mode: str,
        first: int, on_broken: Callable[[Exception], None],
    ):  # fmt: skip
        super().__init__([each.table for each in feedings])
        self._share, self._pid, self._on_broken = share, os.getpid(), on_broken
        self._first, self._last = first, first - 1  # batch of the next loop; last one handed back
        self._broken = self._closed = False
        self._stack = ExitStack()
        with self._stack:
            self._agreement = self._stack.enter_context(closing(Agreement(group)))
            self._compare(feedings, in_flight=in_flight, mode=mode, first=first)
            self._connect(feedings, in_flight)
            self._stack = self._stack.pop_all()
        end_at_exit(self)
        for number, table in enumerate(self._tables):
            table.elsewhere = self._reader(number)

    def _compare(self, feedings: Sequence[Feeding], **others: Any) -> None:
        values: dict[str, Any] = {"tables": [each.table.name for each in feedings], **others}
        for each in feedings:
            own = about(each.table)
            told = {**own, **own["initial"], **each.optimizer.config.model_dump(mode="json")}
            values |= {
                f"{name} of table {each.table.name!r}": value for name, value in told.items() if name != "initial"
            }
        check_same(self._agreement.gather("makes an engine", values))

    def _connect(self, feedings: Sequence[Feeding], in_flight: int) -> None:
        rank, size = self._share
        names, ahead = [f"rank {each}" for each in range(size)], 2 * in_flight + 4
        limits = Limits(max_frames=max(Limits().max_frames, 4 * FRAMES * len(feedings)))
        drawn = [secrets.token_hex(32), secrets.token_hex(8)] if rank == 0 else None
        secret, run = self._agreement.gather("makes an engine", drawn)[0]
        security = Security(secret=hashlib.sha256(secret.encode()).digest(), run=run)
        inside, silence = Network(), min(_SILENCE, self._agreement.timeout)
        self._silence = silence
        here, own = inside.server(names[rank], {rank: names[rank]}, limits), inside.client(names[rank], rank)
        others = {other: name for other, name in enumerate(names) if other != rank}
        self._outer = ZmqServer(_listening_at(), names[rank], others, security, limits, silence, logger.warning)
        self._shard = LoopShard([LoopTable(each.table, each.optimizer) for each in feedings], size, ahead=ahead)
        self._server = ShardServer(self._shard, [(here, [rank]), (self._outer, list(others))], self._server_failed)
        self._source: SharedSource | None = None
        self._stack.enter_context(self._server)
        connections: list[Client] = []
        for other, where in enumerate(self._agreement.gather("makes an engine", self._outer.address)):
            if other == rank:
                connections.append(own)
            else:
                client = ZmqClient(where, names[other], rank, security, limits, silence)
                connections.append(self._stack.enter_context(closing(client)))
        formats = [ValueFormat(each.table.dimension) for each in feedings]
        self._source = SharedSource(connections, rank, formats, ahead)
        self._stack.enter_context(self._source)

    def _server_failed(self, error: BaseException) -> None:
        """Called by a thread that serves: tells the others, and ends this process's loop."""
        if self._source is not None:
            error = self._source.told(error, self._silence)
            self._outer.fail(reason_of(error))  # before: this process may end as soon as its loop has
            self._source.fail(error)  # before: its own connection would only repeat it
        self._server.fail(error)

    def _reader(self, number: int) -> Callable[[KeyArray], tuple[np.ndarray, np.ndarray]]:
        table = self._tables[number]

        def look_up(keys: KeyArray) -> tuple[np.ndarray, np.ndarray]:
            if self._closed:
                raise InputError("rows are in several processes, and the engine is closed: read them before",
                                 f"table {table.name!r}")  # fmt: skip
            distinct = DistinctKeys.of(table.name, *keys)
            values, _ = present(self._source).look_up(number, route_keys(self._share.placement, *distinct.asked))
            return values, distinct.numbers.astype(np.int64)

        return look_up

    def _agreed(self, call: str, value: Any = None) -> list[Any]:
        """`Agreement.gather`; where it fails no process can go on."""
        until = time.monotonic() + self._agreement.timeout
        try:
            return self._agreement.gather(call, value)
        except MariusOacError as found:
            source = present(self._source)
            if isinstance(found, NodeLost):  # whoever is gone may have said why
                source.stopped.wait(min(self._silence, until - time.monotonic()))
            known = source.error
            error = known if isinstance(known, MariusOacError) else found  # the former says more
            self._on_broken(error)
            self._fail(error)
            raise error from None

    def begin(self, first: int, accumulate: int, uneven: str) -> None:
        """See `Home.begin`."""
        what = "begins a loop"
        check_same(
            self._agreed(what, {"accumulate": accumulate, "uneven": uneven, "first": first, "before": self._last})
        )
        self.wait_until_written()
        self._agreed(what)  # nobody pushes anything of the loop before
        self._server.begin(first, self._shard)
        self._agreed(what)
        self._first = first

    def source(self, mode: str, stop: Callable[[], None]) -> RowSource:
        """See `Home.source`."""
        source = present(self._source)
        source.prepare(LoopRows(source, self._first, stop, 1 / self._share.size))
        return source

    def planner(self, feed: Channel[Fed]) -> LoopPlanner:
        """See `Home.planner`."""
        return SharedPlanner(self._tables, feed, self._share.placement)

    def step(self, hand_over: HandOver[OpenBatch]) -> LoopStep:
        """See `Home.step`."""
        return SharedStep(self._tables, hand_over)

    def most(self, drawn: int) -> int:
        """See `Home.most`."""
        return int(max(self._agreed("asks for batches", drawn)))

    def drawn(self, fed: list[Fed], until: int, error: Exception | None) -> tuple[list[Fed], Exception | None]:
        """See `Home.drawn`. Where processes differ, what all have is trained, and the line says who has less."""
        own = [len(each.batches) for each in fed]
        every = self._agreed("asks for batches", [own, until, error is not None])
        failed = [rank for rank, (_, _, wrong) in enumerate(every) if wrong]
        if not failed and all(each == every[0] for each in every):
            return fed, None
        common = [len({*ends}) == 1 for ends in zip(*(ends for ends, _, _ in every), strict=False)]
        if error is None:
            totals = [total for _, total, _ in every]
            short, most = totals.index(min(totals)), totals.index(max(totals))
            if failed:
                what = f"rank {failed[0]} goes no further: its loader has failed, or a batch of it is wrong"
            else:
                what = (f"rank {short} has {min(totals)} batches in this pass, and rank {most} more: give all as many, "
                        'or say uneven="pad"')  # fmt: skip
            error = InputError(what, "Engine.batches")
        return fed[: [*common, False].index(False)], error

    def cut(self, number: int) -> None:
        """See `Home.cut`."""
        loop = present(self._source).loop
        if loop is not None:
            self._last = number - 1
            loop.cut(number)

    def wait_until_written(self, last: int | None = None) -> None:
        """See `Home.wait_until_written`."""
        loop = present(self._source).loop
        if loop is not None:
            loop.wait_until_applied(self._last if last is None else last, self._agreement.timeout)

    def save(self, folder: Path, parts: Parts, moment: Moment, keep: int) -> None:
        """See `Home.save`. Each process writes its part."""
        shared_checkpoints.save(self._agreed, self._share, folder, parts, moment, keep)

    def load(self, folder: Path, parts: Parts) -> Moment | None:
        """See `Home.load`."""
        return shared_checkpoints.load(self._agreed, self._share, folder, parts)

    def abort(self, error: BaseException) -> None:
        """See `Home.abort`. Tells the others why."""
        self._fail(error if isinstance(error, MariusOacError) else InputError(reason_of(error), "Engine"))

    def _fail(self, error: MariusOacError) -> None:
        self._broken, source = True, present(self._source)
        self._outer.fail(reason_of(source.error or error))
        source.fail(error)  # before: threads of a pipeline take the end of a connection for a normal one
        source.abort()

    def close(self) -> None:
        """Ends threads and connections, after all processes have come here, unless one of them has failed."""
        if self._closed:
            return
        try:
            if not self._broken and not present(self._source).stopped.is_set():
                self._agreed("closes its engine")
        finally:
            self._closed = True
            self._stack.close()

    def end_quietly(self) -> None:
        """Called at the interpreter's exit; see `exits.Endable`."""
        if os.getpid() == self._pid and not self._closed:
            self.abort(InputError("its interpreter exits", "Engine"))
            self.close()


def _listening_at() -> str:
    """IP:PORT of the interface through which this machine reaches the group's first process, with any free port."""
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return endpoint(str(probe.getsockname()[0]), 0)
    except OSError as error:
        raise InputError(f"{master} can't be reached: {error.strerror}", "MASTER_ADDR") from None
