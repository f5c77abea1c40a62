"""Runs a job's processes on Ray, each in the care of an actor of its own, and starts them again after a loss.

Guarantees, beside those of `contract.Watch`:
- All processes are started again from the last checkpoint after one was lost (killed, its actor or node gone or
  silent), `restarts` times at most. After any other end none is, as `agent.exit_code_of` decides.
- A node that was lost is replaced by any that has room, for which a start waits `MEETING` x `timeout`.
- No process, actor or placement group outlives `run`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from marius_oac.config.cluster import ClusterConfig, NodeConfig
from marius_oac.errors import InputError, size_text
from marius_oac.nodes.launch.agent import LOST, exit_code_of
from marius_oac.nodes.launch.cluster import endpoint
from marius_oac.nodes.launch.contract import SIGNALS, Started, Watch
from marius_oac.nodes.launch.launch import MEETING, new_secret
from marius_oac.nodes.launch.on_ray.actor import TrainerActor
from marius_oac.nodes.launch.on_ray.cluster import cluster
from marius_oac.nodes.launch.remote import end_of
from marius_oac.nodes.launch.tunnel import LOOPBACK
from marius_oac.runtime.console import relay, say
from marius_oac.runtime.signals import handled

PROGRAM = ("-m", "marius_oac.training.trainer")
_KILLED = -9  # as the exit code of a process that went with its actor
_LINES = 40  # of a failed process's standard error that are shown
_TAIL = 1 << 15  # bytes of it that are kept
_POLL = 0.2  # seconds that a poll waits, with up to `_CROWD` actors
_CROWD = 16


@dataclass(frozen=True)
class RayRequest:
    """What is run on Ray, and on how many processes.

    Attributes:
        trainers: number of processes, each with an actor.
        job: what each does, as plain JSON values (`marius_oac.training.trainer`).
        threads: CPUs of each; 0: an equal share of the cluster's.
        gpu: whether each needs a GPU; None: if the cluster has one for each.
        memory: bytes of each; 0: not counted.
        restarts: how often all are started again after one was lost.
        timeout: seconds after which a silent process, actor or node is lost.
        encryption: encrypt rows and their gradients.
    """

    trainers: int
    job: Mapping[str, Any]
    threads: int = 0
    gpu: bool | None = None
    memory: int = 0
    restarts: int = 3
    timeout: float = 60.0
    encryption: bool = False

    def check(self) -> None:
        """Raises InputError for numbers that make no sense."""
        for option, value, least in (("--trainers", self.trainers, 1), ("--restarts", self.restarts, 0)):
            if value < least:
                raise InputError(f"must be at least {least}, not {value}", option)
        if not 0 < self.timeout < float("inf"):
            raise InputError(f"must be a number of seconds above 0, not {self.timeout}", "--timeout")


def run(request: RayRequest) -> int:
    """Runs the job until all its processes have ended; returns the exit code, as the command line does.

    Raises:
        InputError: the request is wrong, Ray is not installed or does not answer, or its cluster is too small; nothing
            was started.
    """
    request.check()
    with cluster(request.trainers) as ray:
        resources = resources_of(request, ray.nodes())
        for attempt in range(request.restarts + 1):
            code = _Start(ray, request, resources, attempt).run()
            if code is not None:
                return code
            if attempt < request.restarts:
                say(f"marius-oac: started again ({attempt + 1}), from the last checkpoint")
    return 1


def resources_of(request: RayRequest, nodes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns what each actor asks of Ray: CPUs, GPUs, and bytes of memory.

    Args:
        nodes: as `ray.nodes()` returns them.

    Raises:
        InputError: the cluster has no room for so many such actors.
    """
    there = [each["Resources"] for each in nodes if each["Alive"]]
    gpus = int(sum(each.get("GPU", 0) for each in there))
    gpu = gpus >= request.trainers if request.gpu is None else request.gpu
    asked = {"CPU": 1.0} | ({"GPU": 1.0} if gpu else {}) | ({"memory": float(request.memory)} if request.memory else {})
    most = 0
    wanted = range(request.threads, request.threads + 1) if request.threads else range(1, 4097)
    for cpus in wanted:
        if _room(there, asked | {"CPU": float(cpus)}) < request.trainers:
            break
        most = cpus
    if not most:
        each = f"{request.threads or 1} CPU" + (", a GPU" if gpu else "")
        each += f", {size_text(request.memory)}" if request.memory else ""
        held = _room(there, asked | {"CPU": float(request.threads or 1)})
        raise InputError(f"the Ray cluster has room for {held} of {request.trainers} ({each} each)", "--trainers")
    return asked | {"CPU": float(most)}


def _room(there: Sequence[Mapping[str, float]], asked: Mapping[str, float]) -> int:
    """How many actors the nodes have room for."""
    return sum(min(int(node.get(name, 0) // amount) for name, amount in asked.items()) for node in there)


@dataclass(eq=False)
class _Trainer(Started):
    """A process in the care of an actor."""

    name: str
    actor: Any
    asked: int = 0
    polled: Any = None
    since: float = field(default_factory=time.monotonic)
    code: int | None = None
    tail: bytes = b""

    def ask(self, again: bool) -> None:
        """See `Started.ask`: the next poll tells it."""
        self.asked = 2 if again else max(1, self.asked)


class _Start:
    """One start of all processes."""

    def __init__(self, ray: ModuleType, request: RayRequest, resources: Mapping[str, float], attempt: int) -> None:
        self._ray, self._request, self._resources, self._attempt = ray, request, resources, attempt
        self._trainers: list[_Trainer] = []
        self._watch = Watch(self._trainers)
        self._lost: float | None = None
        self._named = False
        self._wait = _POLL * max(1.0, request.trainers / _CROWD)

    def run(self) -> int | None:
        """Returns the exit code; None: a process was lost."""
        with ExitStack() as stack:
            stack.enter_context(handled(SIGNALS, self._watch.interrupted))
            group = self._ray.util.placement_group([dict(self._resources)] * self._request.trainers, strategy="SPREAD")
            stack.callback(self._quietly, self._ray.util.remove_placement_group, group)
            if not self._until(group.ready(), f"Ray has had no room for {self._request.trainers} trainers"):
                return self._watch.code or 1
            stack.callback(self._end_all)
            try:
                started = self._started(group)
            except self._ray.exceptions.RayError as error:
                say(f"marius-oac: a node was lost while processes started: {_first_line(error)}")
                return self._watch.code or None
            if started:
                self._follow()
            return self._ended()

    def _until(self, reference: Any, else_what: str) -> bool:
        """Waits for a reference, or until a signal comes or `MEETING` x `timeout` have passed."""
        began = time.monotonic()
        while not self._ray.wait([reference], timeout=_POLL)[0]:
            if self._watch.asked:
                return False
            if time.monotonic() > began + MEETING * self._request.timeout:
                say(f"marius-oac: {else_what} for {MEETING * self._request.timeout:g} s")
                return False
        return True

    def _started(self, group: Any) -> bool:
        """Makes the actors and starts their processes; False where that was given up."""
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        remote = self._ray.remote(TrainerActor)
        for number in range(self._request.trainers):
            options = {
                "num_cpus": self._resources["CPU"],
                "num_gpus": self._resources.get("GPU", 0),
                "memory": self._resources.get("memory", 0) or None,
                "max_restarts": 0,
                "scheduling_strategy": strategy(group, placement_group_bundle_index=number),
            }
            self._trainers.append(_Trainer(f"node{number}", remote.options(**options).remote()))
        addresses = self._addresses(group)
        asked = [one.actor.facts.remote(where) for one, where in zip(self._trainers, addresses, strict=True)]
        for reference in asked:
            if not self._until(reference, "Ray has not started an actor"):
                return False
        found = self._ray.get(asked)
        nodes = made(self._request, found, addresses, self._resources)
        first = endpoint(nodes.nodes[0].address, found[0]["ports"][0])
        secret, started = new_secret(), []
        for number, one in enumerate(self._trainers):
            job = {**self._request.job, "rank": number, "attempt": self._attempt, "endpoint": first}
            job["cluster"] = nodes.model_dump(mode="json")
            started.append(one.actor.start.remote(PROGRAM, job, secret, os.getcwd(), self._request.timeout))
        return all(self._until(each, "an actor has not started its process") for each in started)

    def _addresses(self, group: Any) -> list[str]:
        """Of each actor's node, as the others reach it; the loopback where all are on this machine's Ray node."""
        table = self._ray.util.placement_group_table(group)["bundles_to_node_id"]
        address_of = {each["NodeID"]: each["NodeManagerAddress"] for each in self._ray.nodes()}
        found = [address_of[table[number]] for number in range(self._request.trainers)]
        return [LOOPBACK] * len(found) if len(set(found)) == 1 else found

    def _follow(self) -> None:
        """Polls the actors until all processes have ended, or those that had to have not."""
        while open_ones := [one for one in self._trainers if one.code is None]:
            if self._watch.asked >= 3 or self._watch.left == 0:
                return
            if self._lost is not None and time.monotonic() > self._lost + self._request.timeout:
                return
            for one in open_ones:
                if one.polled is None:
                    one.polled = one.actor.poll.remote(one.asked, self._wait)
                    one.since = time.monotonic()
            ready, _ = self._ray.wait([one.polled for one in open_ones], timeout=_POLL)
            for one in open_ones:
                if one.polled in ready:
                    self._take(one)
                elif time.monotonic() > one.since + self._request.timeout:
                    self._end(one, _KILLED, f"its actor has not been heard of for {self._request.timeout:g} s")

    def _take(self, one: _Trainer) -> None:
        reference, one.polled = one.polled, None
        try:
            output, errors, code = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._end(one, _KILLED, f"its actor or its node is gone: {_first_line(error)}")
            return
        if one is self._trainers[0]:
            relay(output, errors)
        one.tail = (one.tail + errors)[-_TAIL:]
        if code is not None:
            self._end(one, code, end_of(code)[1])

    def _end(self, one: _Trainer, code: int, how: str) -> None:
        """Takes note of the end of a process. After a loss the others have `timeout` to end by themselves: the exit
        code of one of them may say why the first was lost."""
        one.code = code
        if not code:
            return
        if exit_code_of([code]) is None and not self._watch.signal:
            if not self._named and code != LOST:
                self._named = True
                say(f"marius-oac: node {one.name}: {how}")
            self._lost = self._lost or time.monotonic()
            return
        self._watch.ended(one, end_of(code)[0], how)

    def _ended(self) -> int | None:
        """The exit code of the run; None: it is to be started again."""
        codes = [one.code for one in self._trainers if one.code]
        if self._watch.signal or not self._trainers:
            return self._watch.code or 1
        if not codes:
            return 1 if any(one.code is None for one in self._trainers) else 0
        found = exit_code_of(codes)
        if found is not None:
            for one in self._trainers[1:]:
                if one.code == found and (found != 2 or self._trainers[0].code != 2):
                    for line in one.tail.decode("utf-8", "replace").splitlines()[-_LINES:]:
                        say(f"{one.name}: {line}")
        return found

    def _end_all(self) -> None:
        for one in self._trainers:
            self._quietly(self._ray.kill, one.actor)

    def _quietly(self, call: Callable[..., object], *given: object) -> None:
        with suppress(self._ray.exceptions.RayError):  # a node that is gone
            call(*given)


def made(
    request: RayRequest, found: Sequence[Mapping[str, Any]], addresses: Sequence[str], resources: Mapping[str, float]
) -> ClusterConfig:
    """Returns the nodes of a run: node0, node1, ... as with `--local-nodes`, so that a replaced node keeps its name.

    Args:
        found: what the actors have said of their machines.
        addresses: of their nodes.
    """
    local = all(address == LOOPBACK for address in addresses)
    nodes = tuple(
        NodeConfig(
            name=f"node{number}",
            address=address,
            port=None if local else each["ports"][1],
            cores=min(int(resources["CPU"]), each["cores"]),
            gpus=(0,) if resources.get("GPU") else None,
        )
        for number, (each, address) in enumerate(zip(found, addresses, strict=True))
    )
    return ClusterConfig(nodes=nodes, timeout=request.timeout, encryption=request.encryption)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(":")
