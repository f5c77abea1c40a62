"""What a run's processes ask of a Ray cluster, how many it has room for, and where they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marius_oac.config.cluster import ClusterConfig, NodeConfig
from marius_oac.errors import InputError, size_text
from marius_oac.nodes.launch.tunnel import LOOPBACK

_MOST_CPUS = 4096  # of a process


@dataclass(frozen=True)
class RayRequest:
    """What is run on Ray, and on how many processes.

    Attributes:
        trainers: number of processes, each with an actor; a range, as (2, 4): as many as there is room for at each
            start.
        job: what each does, as plain JSON values (`marius_oac.nodes.training.trainer`).
        threads: CPUs of each; 0: an equal share of the cluster's.
        gpu: whether each needs a GPU; None: if the cluster has one for each.
        memory: bytes of each; 0: not counted.
        restarts: how often all are started again after one was lost.
        timeout: seconds after which a silent process, actor or node is lost.
        encryption: encrypt rows and their gradients.
    """

    trainers: int | tuple[int, int]
    job: Mapping[str, Any]
    threads: int = 0
    gpu: bool | None = None
    memory: int = 0
    restarts: int = 3
    timeout: float = 60.0
    encryption: bool = False

    @property
    def least(self) -> int:
        """The smallest number of processes."""
        return self.trainers if isinstance(self.trainers, int) else self.trainers[0]

    @property
    def most(self) -> int:
        """The largest number of processes."""
        return self.trainers if isinstance(self.trainers, int) else self.trainers[1]

    @property
    def options(self) -> list[str]:
        """The options of the command line that ask for the same; those that have their defaults are left out."""
        trainers = str(self.most) if self.least == self.most else f"{self.least}..{self.most}"
        words = ["--on", "ray", "--trainers", trainers]
        for name in ("restarts", "timeout"):
            if (value := getattr(self, name)) != getattr(RayRequest, name):
                words += [f"--{name}", f"{value:g}"]
        return [*words, "--encrypt"] if self.encryption else words

    def check(self) -> None:
        """Raises InputError for numbers that make no sense."""
        for option, value, least in (("--trainers", self.least, 1), ("--restarts", self.restarts, 0)):
            if value < least:
                raise InputError(f"must be at least {least}, not {value}", option)
        if self.most < self.least:
            raise InputError(f"{self.least}..{self.most} ends before it begins", "--trainers")
        if not 0 < self.timeout < math.inf:
            raise InputError(f"must be a number of seconds above 0, not {self.timeout}", "--timeout")


def resources_of(request: RayRequest, nodes: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], int]:
    """Returns what each actor asks of Ray, CPUs, GPUs and bytes of memory, and for how many there is room now.

    Args:
        nodes: as `ray.nodes()` returns them.

    Raises:
        InputError: the cluster has no room for the smallest number of such actors.
    """
    asked: dict[str, float] = {}
    for count in range(request.most, request.least - 1, -1):
        asked = _asked(request, nodes, count)
        most = 0
        for cpus in (request.threads,) if request.threads else range(1, _MOST_CPUS + 1):
            if room(nodes, asked | {"CPU": float(cpus)}) < count:
                break
            most = cpus
        if most:
            return asked | {"CPU": float(most)}, count
    each = f"{request.threads or 1} CPU" + (", a GPU" if "GPU" in asked else "")
    each += f", {size_text(request.memory)}" if request.memory else ""
    held = room(nodes, asked)
    raise InputError(f"the Ray cluster has room for {held} of {request.least} ({each} each)", "--trainers")


def _asked(request: RayRequest, nodes: Sequence[Mapping[str, Any]], count: int) -> dict[str, float]:
    """What each of so many actors asks at least."""
    gpus = int(sum(each["Resources"].get("GPU", 0) for each in nodes if each["Alive"]))
    gpu = gpus >= count if request.gpu is None else request.gpu
    asked = {"CPU": float(request.threads or 1)} | ({"GPU": 1.0} if gpu else {})
    return asked | ({"memory": float(request.memory)} if request.memory else {})


def room(nodes: Sequence[Mapping[str, Any]], asked: Mapping[str, float]) -> int:
    """How many actors the nodes that are alive have room for."""
    there = [each["Resources"] for each in nodes if each["Alive"]]
    return sum(min(int(node.get(name, 0) // amount) for name, amount in asked.items()) for node in there)


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
