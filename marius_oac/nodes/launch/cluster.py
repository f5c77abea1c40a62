"""Finds the entry of nodes.yaml that a process belongs to.

torchrun numbers processes in the order in which their machines arrive. Here a process finds its node by the machine's
addresses, or by `--node` where several nodes share one. Its `rank` follows the order of the file, so it is the same in
every start: sums over nodes keep their order, and their bits.
"""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from marius_oac.config.cluster import ClusterConfig, NodeConfig, is_loopback
from marius_oac.errors import InputError, size_text
from marius_oac.runtime.machine.topology import running_kernel

STARTED_TWICE = "two agents of this name were started"
"""Why an agent is refused at the rendezvous."""


@dataclass(frozen=True)
class Machine:
    """A machine's identity and resources.

    Attributes:
        host: its name.
        boot: identifies the running kernel: processes with the same `host` and `boot` share memory and disks.
        addresses: of each network interface, by its name.
        cores: CPUs that this process may use.
        memory: bytes in all.
    """

    host: str
    boot: str
    addresses: Mapping[str, tuple[str, ...]]
    cores: int
    memory: int

    def interface_of(self, address: str) -> str | None:
        """Returns the interface that has an address; None if none has."""
        wanted = set(_resolved(address))
        return next((name for name, own in self.addresses.items() if wanted & set(own)), None)

    def is_at(self, address: str) -> bool:
        """Whether an address or host name belongs to this machine."""
        own = {self.host, self.host.partition(".")[0]}
        return is_loopback(address) or address in own or self.interface_of(address) is not None


@dataclass(frozen=True)
class Place:
    """A process's node and number.

    Attributes:
        cluster: all nodes.
        node: the process's entry in nodes.yaml.
        index: the entry's number.
        local: the process's number on its node, from 0.
        interface: for collectives and for its server; None: the machine has no interface with the node's address (it is
            translated on the way), so libraries choose one.
        attempt: how often torchrun has started this node again since one was lost. It may differ between nodes: one
            that was stopped because of another does not count it.
        beside: trainers that torchrun started on this machine before this process.
    """

    cluster: ClusterConfig
    node: NodeConfig
    index: int
    local: int
    interface: str | None
    attempt: int = 0
    beside: int = 0

    @property
    def rank(self) -> int:
        """The process's number among all, 0 to `size` - 1, in the order of nodes.yaml (not torchrun's RANK)."""
        return sum(node.processes for node in self.cluster.nodes[: self.index]) + self.local

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.cluster.size

    @property
    def carries(self) -> bool:
        """Whether it has a shard server."""
        return self.node.shards > 0

    @property
    def port(self) -> int:
        """The port of its shard server; 0: any free one, announced to the others."""
        first = self.cluster.node_port(self.node)
        return first and first + self.local

    @property
    def threads(self) -> int | None:
        """Threads that compute: the process's share of the node's cores; None: as the config says."""
        return None if self.node.cores is None else max(1, self.node.cores // self.node.processes)

    @property
    def device(self) -> str | None:
        """The process's device; None: as the config says."""
        if not self.node.trainers:
            return "cpu"
        if self.node.gpus is None:
            return None
        return f"cuda:{self.node.gpus[self.local]}" if self.node.gpus else "cpu"

    def environment(self) -> dict[str, str]:
        """Returns the environment variables that torch.distributed needs before a process group is made."""
        found = {"RANK": str(self.rank)}
        if self.interface is not None:
            found |= {"GLOO_SOCKET_IFNAME": self.interface, "NCCL_SOCKET_IFNAME": self.interface}
        return found


def names(cluster: ClusterConfig) -> list[str]:
    """Returns the name of each process, by rank: its node's; a node's second process is called NAME/1."""
    return [f"{node.name}/{local}" if local else node.name for node in cluster.nodes for local in range(node.processes)]


def weights_of(cluster: ClusterConfig) -> list[float]:
    """Returns the weight of each process's share of the rows, by rank; 0: it has none."""
    return [node.shards for node in cluster.nodes for _ in range(node.processes)]


def trains_of(cluster: ClusterConfig) -> list[bool]:
    """Returns whether each process trains, by rank."""
    return [node.trainers > 0 for node in cluster.nodes for _ in range(node.processes)]


def endpoint(host: str, port: int) -> str:
    """Returns HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listening_at(host: str, port: int) -> str:
    """Returns IP:PORT where a node's servers listen: the first address of its name, and no other of the machine's.

    Raises:
        OSError: the name has no address.
    """
    found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    return endpoint(str(found[0][4][0]), port)


def elastic_worker_name(number: int) -> str:
    """Returns the name of an elastic worker, from its number, from 0."""
    return f"elastic worker {number + 1}"


def this_machine() -> Machine:
    """Returns this machine, as psutil and the kernel describe it."""
    found = {
        name: tuple(one.address.partition("%")[0] for one in each if one.family in (socket.AF_INET, socket.AF_INET6))
        for name, each in psutil.net_if_addrs().items()
    }
    return Machine(
        host=socket.gethostname(),
        boot=running_kernel(),
        addresses=found,
        cores=len(os.sched_getaffinity(0)),
        memory=psutil.virtual_memory().total,
    )


def find_place(
    cluster: ClusterConfig,
    name: str | None = None,
    machine: Machine | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Place:
    """Returns the node and number of this process, which torchrun has started.

    Args:
        cluster: all nodes.
        name: the node's name; None: the machine's addresses decide.
        machine: this machine; None: it is looked at.
        environment: torchrun's variables.

    Raises:
        InputError: this machine is no node; torchrun started another number of processes than nodes.yaml says; the
            entry's interface is not here or lacks its address, or it has more cores or memory than the machine.
    """
    machine = machine or this_machine()
    here = _entries_here(cluster, name, machine)
    try:
        world, local, together = (int(environment[key]) for key in ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    except (KeyError, ValueError) as error:
        raise InputError(f"torchrun did not start this process: {error}", "nodes") from None
    who = ", ".join(cluster.nodes[index].name for index in here)
    expected = sum(cluster.nodes[index].processes for index in here)
    if together != expected:
        raise InputError(
            f"nodes.yaml gives it {expected} processes, torchrun started {together}: --nproc-per-node {expected}"
            + (", or `--node NAME` says which of these nodes this is" if len(here) > 1 else ""),
            f"node {who}",
        )
    if world != cluster.size:
        each = ", ".join(f"{node.name} {node.processes}" for node in cluster.nodes)
        raise InputError(f"nodes.yaml has {cluster.size} processes ({each}), torchrun started {world}", f"node {who}")
    beside = 0
    for index in here:
        node = cluster.nodes[index]
        if local < node.processes:
            break
        local, beside = local - node.processes, beside + node.trainers
    interface = check_machine(node, machine)
    attempt = int(environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return Place(cluster, node, index, local, interface, attempt, beside + local)


def check_machine(node: NodeConfig, machine: Machine) -> str | None:
    """Checks a node's entry against its machine; returns its network interface, None where libraries choose.

    Raises:
        InputError: the entry's interface is not here or lacks its address, or it has more cores or memory than the
            machine.
    """
    who = f"node {node.name}"
    if node.interface is not None:
        if node.interface not in machine.addresses:
            there = ", ".join(machine.addresses)
            raise InputError(f"{machine.host} has no interface {node.interface}; it has {there}", f"{who}: interface")
        own = machine.addresses[node.interface]
        wanted = [one for one in _resolved(node.address) if is_loopback(node.address) or not is_loopback(one)]
        if wanted and not set(wanted) & set(own):  # many machines resolve their own name to 127.0.1.1: not compared
            has = ", ".join(own) or "none"
            raise InputError(f"{node.interface} does not have {node.address}; it has {has}", f"{who}: interface")
    if node.cores is not None and node.cores > machine.cores:
        raise InputError(f"{node.cores}, but {machine.host} has {machine.cores} for this program", f"{who}: cores")
    if node.memory is not None and node.memory > machine.memory:
        raise InputError(
            f"{size_text(node.memory)}, but {machine.host} has {size_text(machine.memory)}", f"{who}: memory"
        )
    return node.interface or machine.interface_of(node.address)


def disk_sizes(folders: Iterable[str], what: Literal["total", "free"]) -> dict[str, int]:
    """Returns the bytes of each disk under the folders, by device number; folders need not exist yet."""
    found = {}
    for folder in folders:
        existing = next(one for one in (Path(folder), *Path(folder).absolute().parents) if one.exists())
        found[str(existing.stat().st_dev)] = int(getattr(psutil.disk_usage(str(existing)), what))
    return found


def node_named(cluster: ClusterConfig, name: str) -> int:
    """Returns the index of the node with that name.

    Raises:
        InputError: nodes.yaml has none.
    """
    known = [node.name for node in cluster.nodes]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
        raise InputError(f"nodes.yaml has no node {name}{hint}", "--node")
    return known.index(name)


def _entries_here(cluster: ClusterConfig, name: str | None, machine: Machine) -> list[int]:
    if name is not None:
        return [node_named(cluster, name)]
    here = [index for index, node in enumerate(cluster.nodes) if machine.is_at(node.address)]
    if not here:
        own = [one for each in machine.addresses.values() for one in each if not is_loopback(one)]
        raise InputError(
            f"this machine ({', '.join([machine.host, *own])}) is none of the nodes "
            f"({', '.join(node.name for node in cluster.nodes)}); add an entry, or say which it is with --node",
            "nodes.yaml",
        )
    return here


def _resolved(address: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(address, None, proto=socket.IPPROTO_TCP)]
    except OSError:
        return []
