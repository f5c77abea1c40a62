"""Runs a job's processes on Ray, each in the care of an actor of its own, and starts them again after a loss.

Guarantees, beside those of `contract.Watch`:
- All processes are started again from the last checkpoint after one was lost (killed, its actor or node gone or
  silent), `restarts` times at most. After any other end none is, as `agent.exit_code_of` decides.
- A node that was lost is replaced by any that has room, for which a start waits `MEETING` x `timeout`. Where a range of
  numbers was asked for, it waits `timeout`, and as many as have room go on then; the next start is by the largest
  number again.
- Each start has an instance of Ray of its own where there is no cluster at hand, so it may be lost as a whole.
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

from marius_oac.nodes.launch.agent import LOST, exit_code_of
from marius_oac.nodes.launch.cluster import endpoint
from marius_oac.nodes.launch.contract import SIGNALS, Started, Watch
from marius_oac.nodes.launch.launch import new_secret
from marius_oac.nodes.launch.on_ray.actor import TrainerActor
from marius_oac.nodes.launch.on_ray.cluster import cluster
from marius_oac.nodes.launch.on_ray.job import MEETING
from marius_oac.nodes.launch.on_ray.placing import RayRequest, made, resources_of, room
from marius_oac.nodes.launch.remote import end_of
from marius_oac.nodes.launch.tunnel import LOOPBACK
from marius_oac.runtime.console import is_terminal, relay, say
from marius_oac.runtime.signals import handled

PROGRAM = ("-P", "-m", "marius_oac.nodes.training.trainer")
_KILLED = -9  # as the exit code of a process that went with its actor
_LINES = 40  # of a failed process's standard error that are shown
_TAIL = 1 << 15  # bytes of it that are kept
_POLL = 0.2  # seconds that a poll waits, with up to `_CROWD` actors
_CROWD = 16
_SETTLED = 5.0  # seconds within which Ray places what there is room for
_BEGUN = 120.0  # seconds that Ray has at least to start its actors: Python with its imports on busy machines


def run(request: RayRequest) -> int:
    """Runs the job until all its processes have ended; returns the exit code, as the command line does.

    Raises:
        InputError: the request is wrong, Ray is not installed or does not answer, or its cluster is too small; nothing
            was started.
    """
    request.check()
    token, resources, count = new_secret(), {}, 0  # type: str, Mapping[str, float], int
    for attempt in range(request.restarts + 1):
        with cluster(request.most, token, request.timeout) as ray:  # an instance of ours may be lost as a whole
            if not attempt:
                resources, count = resources_of(request, ray.nodes())
            code = _Start(ray, request, resources, attempt, count if attempt == 0 else request.most).run()
        if code is not None:
            return code
        if attempt < request.restarts:
            say(f"marius-oac: started again ({attempt + 1}), from the last checkpoint")
    return 1


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

    def __init__(
        self, ray: ModuleType, request: RayRequest, resources: Mapping[str, float], attempt: int, count: int
    ) -> None:
        self._ray, self._request, self._resources = ray, request, resources
        self._attempt, self._count = attempt, count
        self._trainers: list[_Trainer] = []
        self._watch = Watch(self._trainers)
        self._lost: float | None = None
        self._named = False
        self._wait = _POLL * max(1.0, count / _CROWD)

    def run(self) -> int | None:
        """Returns the exit code; None: a process was lost."""
        with ExitStack() as stack:
            stack.enter_context(handled(SIGNALS, self._watch.interrupted))
            group = self._placed(stack)
            if group is None:
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

    def _placed(self, stack: ExitStack) -> Any | None:
        """Returns a placement group that has room, and sets the number of trainers to its own. None: a signal came, or
        there was no room for the smallest number for `MEETING` x `timeout`."""
        least, timeout = self._request.least, self._request.timeout
        began = time.monotonic()
        while True:
            group = self._ray.util.placement_group([dict(self._resources)] * self._count, strategy="SPREAD")
            removed = stack.push(ExitStack())
            removed.callback(self._quietly, self._ray.util.remove_placement_group, group)
            patience = timeout if self._count == self._request.most else _SETTLED
            if self._count == least:
                patience = max(_SETTLED, began + MEETING * timeout - time.monotonic())
            if self._until(group.ready(), patience):
                return group
            fewer = max(least, min(self._count - 1, room(self._ray.nodes(), self._resources)))
            if self._watch.asked:
                return None
            said = f"marius-oac: Ray has had no room for {self._count} trainers for {time.monotonic() - began:.0f} s"
            say(said if self._count == least else f"{said}; {fewer} are tried")
            if self._count == least:
                return None
            self._count = fewer
            removed.close()

    def _until(self, reference: Any, patience: float) -> bool:
        """Waits for a reference so many seconds, or until a signal comes; whether it is there."""
        began = time.monotonic()
        while not self._ray.wait([reference], timeout=min(_POLL, patience))[0]:
            if self._watch.asked or time.monotonic() > began + patience:
                return False
        return True

    def _all(self, references: Sequence[Any], else_what: str) -> bool:
        """Waits for all references; whether they are there. Otherwise says what has not happened, unless a signal
        came."""
        patience = max(_BEGUN, MEETING * self._request.timeout)
        if all(self._until(each, patience) for each in references):
            return True
        if not self._watch.asked:
            say(f"marius-oac: {else_what} for {patience:g} s")
        return False

    def _started(self, group: Any) -> bool:
        """Makes the actors and starts their processes; False where that was given up."""
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        remote = self._ray.remote(TrainerActor)
        for number in range(self._count):
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
        if not self._all(asked, "Ray has not started an actor"):
            return False
        found = self._ray.get(asked)
        nodes = made(self._request, found, addresses, self._resources)
        first = endpoint(nodes.nodes[0].address, found[0]["ports"][0])
        secret, started = new_secret(), []
        for number, one in enumerate(self._trainers):
            job = {**self._request.job, "rank": number, "attempt": self._attempt, "endpoint": first}
            job |= {"cluster": nodes.model_dump(mode="json"), "terminal": not number and is_terminal()}
            started.append(one.actor.start.remote(PROGRAM, job, secret, os.getcwd(), self._request.timeout))
        return self._all(started, "an actor has not started its process")

    def _addresses(self, group: Any) -> list[str]:
        """Of each actor's node, as the others reach it; the loopback where all are on this machine's Ray node."""
        table = self._ray.util.placement_group_table(group)["bundles_to_node_id"]
        address_of = {each["NodeID"]: each["NodeManagerAddress"] for each in self._ray.nodes()}
        found = [address_of[table[number]] for number in range(self._count)]
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


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(":")
