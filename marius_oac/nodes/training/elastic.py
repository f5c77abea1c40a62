"""An elastic worker: a process that attaches to a run over nodes, trains batches that are dispatched to it, and may
leave or die at any time.

It has no rows and takes no part in the decisions of the run's own processes. In lockstep, while the run is evaluated
and while it is started again from a checkpoint, an elastic worker waits.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from marius_oac import __version__
from marius_oac.config.base import BaseConfig
from marius_oac.config.cluster import ClusterConfig, read_secret
from marius_oac.config.errors import parse as parse_yaml
from marius_oac.config.modes import NodesConfig
from marius_oac.config.task import build_config
from marius_oac.data.logs.run_log import LOG, RunLog
from marius_oac.errors import InputError, NodeLost, NodeRefused
from marius_oac.models.compute.user_code import admit
from marius_oac.nodes.launch.cluster import listening_at, names
from marius_oac.nodes.sharded.place import with_fixed_numbers
from marius_oac.nodes.shards.connections import security_of
from marius_oac.nodes.training.detached import outside
from marius_oac.nodes.transport.contract import TAKEN, Limits, nonsense
from marius_oac.nodes.transport.messages import Join, Malformed, Welcome, parse
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_endpoint import LEFT
from marius_oac.runs.reporting import LINE_SECONDS
from marius_oac.runs.task import Task
from marius_oac.runtime.console import logger
from marius_oac.runtime.signals import stop_on_interrupt
from marius_oac.tasks.registry import entry_of

PATIENCE = 600.0  # seconds that a run may take to be started, or started again
_PAUSE = 1.0  # seconds between attempts to reach it
_OWN = ("threads", "device", "binding", "data.path", "pipeline.workers")
"""Keys of the configuration that are this machine's; all others are the run's."""


def attach(cluster: ClusterConfig, overrides: Iterable[str] = (), *, trust: bool = False) -> int:
    """Trains in the run of these nodes until it ends, or the user stops; returns how many batches.

    Args:
        overrides: of the run's configuration, for what is this machine's own.
        trust: run the files of own code that the run names, also where this user has not trained with them.
    Raises:
        InputError: the run has no elastic workers, program or data are others here, or the run decides an override.
        NodeLost: the run can't be reached, or has ended with an error.
        NodeRefused: it refuses this secret and this nodes.yaml.
    """
    if not cluster.elastic_workers:
        raise InputError("no worker may attach: `elastic_workers` is 0", "nodes.yaml")
    read_secret(cluster)
    elastic_worker = _ElasticWorker(cluster, _own(overrides), trust)
    deadline, said = time.monotonic() + PATIENCE, set[str]()
    logger.info(f"waiting for the run of {cluster.nodes[0].name}, {PATIENCE:g} s at most")
    while True:
        try:
            with elastic_worker.connected() as (lines, rank, run):
                elastic_worker.train(lines, rank, run)
            return elastic_worker.batches
        except NodeLost as error:
            if error.why == LEFT and elastic_worker.joined:
                return elastic_worker.batches
            if isinstance(error, NodeRefused) and not elastic_worker.known:
                raise
            if elastic_worker.joined:
                deadline, elastic_worker.joined, said = time.monotonic() + PATIENCE, False, set()
            if elastic_worker.stopped or time.monotonic() > deadline:
                raise
            if str(error) not in said:
                said.add(str(error))
                logger.info(f"{error}; waiting for the run{' to go on' if elastic_worker.known else ''}")
            elastic_worker.pause()


def _own(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides. Raises InputError for a key that the run decides, or an impossible value."""
    found = tuple(overrides)
    for item in found:
        key = item.partition("=")[0]
        if not any(key == own or key.startswith(f"{own}.") for own in _OWN):
            raise InputError(f"the run decides it; an elastic worker may set {', '.join(_OWN)}", f"--set {key}")
    BaseConfig.build({}, [item for item in found if not item.startswith("data.path=")])
    return found


class _ElasticWorker:
    """The connection to a run, which may be lost and made again.

    Attributes:
        batches: number of batches trained so far.
        joined: whether it has received the run's description since it last connected; `known`: whether it ever has.
    """

    def __init__(self, cluster: ClusterConfig, overrides: Sequence[str], trust: bool = False):
        self._cluster, self._overrides, self._trust = cluster, overrides, trust
        self._security = security_of(cluster)
        self.batches, self.joined, self.known, self.stopped = 0, False, False, False
        self._next_line = 0.0

    @contextmanager
    def connected(self) -> Iterator[tuple[list[ZmqClient], int, dict[str, Any]]]:
        """Yields connections to all servers of the run, the rank of this elastic worker, and the run's description.

        Raises:
            NodeLost: the run can't be reached now.
            InputError: the run is one of another version of this program.
        """
        with ExitStack() as stack:
            first, rank = self._enter(stack)
            first.send(Join().frames())
            try:
                message = parse(first.receive())
            except Malformed as error:
                raise NodeLost(first.name, nonsense(error)) from None
            if not isinstance(message, Welcome):
                raise NodeLost(first.name, f"answers with {message.kind.name}")
            run = json.loads(bytes(message.run))
            if (theirs := run.get("version")) != __version__:
                raise InputError(f"its marius_oac is {theirs}, this one is {__version__}", f"node {first.name}")
            lines = [first]
            for name, address in run["servers"][1:]:
                lines.append(stack.enter_context(closing(self._client(address, name, rank))))
            yield lines, rank, run

    def _enter(self, stack: ExitStack) -> tuple[ZmqClient, int]:
        """Connects to the coordinator, as the first elastic worker whose rank is free."""
        node = next(each for each in self._cluster.nodes if each.shards)
        size = self._cluster.size
        try:
            address = listening_at(node.address, self._cluster.node_port(node))
        except OSError as error:
            raise NodeLost(node.name, f"its address {node.address} is not known: {error.strerror}") from None
        for rank in range(size, size + self._cluster.elastic_workers):
            try:
                line = self._client(address, names(self._cluster)[self._cluster.first_rank(node)], rank)
            except NodeLost as error:
                if not error.why.endswith(TAKEN):
                    raise
                continue
            return stack.enter_context(closing(line)), rank
        raise NodeLost(node.name, f"it has {self._cluster.elastic_workers} elastic workers already")

    def _client(self, address: str, name: str, rank: int) -> ZmqClient:
        return ZmqClient(address, name, rank, self._security, Limits(), self._cluster.timeout)

    def train(self, lines: Sequence[ZmqClient], rank: int, run: dict[str, Any]) -> None:
        """Trains until the user stops. Raises NodeLost when the run ends."""
        task = self._task(run)
        with (
            outside(task, lines, run, NodesConfig(), True) as (session, _),
            stop_on_interrupt(session.pipeline.request_stop),
        ):
            session.report_to(lambda result: self._trained())
            self.joined = self.known = True
            logger.info(f"joined the run of {self._cluster.nodes[0].name} as number {rank}")
            while not session.pipeline.stop_requested:
                session.pipeline.run(self.batches, self.batches + 1)
        self.stopped = True

    def _task(self, run: dict[str, Any]) -> Task:
        """The run's task with the data of this machine. Raises InputError if they are other data."""
        tree, _ = parse_yaml(run["config"], "the run")
        for key in ("device", "threads"):  # those of the process that described the run, on another machine
            tree.pop(key, None)
        tree["binding"] = "off"  # the run's other processes on this machine are unknown
        config = with_fixed_numbers(build_config(tree).replace(*self._overrides))
        admit(config, self._trust)
        log = run["files"].get(LOG)
        task = entry_of(config).resume(config, RunLog.parse(log.encode(), Path(LOG)) if log else None, ())
        if task.fingerprint != run["fingerprint"]:
            raise InputError("the data here are not those of the run")
        for name, text in task.run_files().items():
            if name.endswith(".py") and text != run["files"].get(name):
                raise InputError("is not the text that the run trains with", name)
        task.check_data_from(0)
        return task

    def _trained(self) -> None:
        self.batches += 1
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            logger.info(f"{self.batches:,} batches")

    @staticmethod
    def pause() -> None:
        """Waits between two attempts to connect."""
        threading.Event().wait(_PAUSE)
