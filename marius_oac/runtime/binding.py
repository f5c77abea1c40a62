"""Which thread runs on which cores, and on which nodes the tables lie (Zhao et al., k-step, section 3.1).

Every thread sits next to the device that it serves: the I/O threads of a disk on a core of their own next to it, the
compute thread on a core of its own next to its GPU, with the stages that feed the GPU around it, and one core for the
network; whoever makes the batches gets what is left. On one NUMA node everything is next to everything, and threads
and memory are left alone.

Guarantees:
- No thread is ever bound to a CPU that this process was not allowed to use when the topology was read.
- Binding changes where work is done, never its result. A thread that can't be bound runs on, and one line on standard
  error says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marius_oac.runtime.devices import Gpu
from marius_oac.runtime.numa_memory import MemoryPolicy, say
from marius_oac.runtime.places import Place
from marius_oac.runtime.sysfs import format_list
from marius_oac.runtime.topology import Topology

STAGE_ROLES = ("plan", "settle", "fetch", "read", "upload", "compute", "download", "write")
_ROLE = re.compile("|".join((*STAGE_ROLES, "network", r"io(:\d+)?")))
_COMMON = "all cores that are nobody's own"
_LARGE_SHARE = 0.5  # of a node's memory: tables that need more are spread, for buffers and the system live there too


@dataclass(frozen=True)
class Seat:
    """CPUs for the threads of a role, the nodes that these are on, and why they are there, in words."""

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Binding:
    """What `choose` chose.

    Roles are the pipeline's stages, `io:N` for the N-th disk, `io` for threads that serve all disks alike, and
    `network`.

    Attributes:
        seats: role -> seat; empty where there is nothing to do.
        memory: where the tables' pages go; None: where the kernel puts them.
        note: the choice in one line.
        disk_roles: path of the disk tier -> the `io:N` of the disks under it.
    """

    seats: Mapping[str, Seat]
    memory: MemoryPolicy | None
    note: str
    disk_roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def cpus(self, role: str) -> tuple[int, ...] | None:
        """The CPUs for a role; None: it is left unbound.

        Raises:
            ValueError: there is no such role.
        """
        if not _ROLE.fullmatch(role):
            raise ValueError(f"no role is named {role!r}")
        if role not in self.seats and role.startswith("io:"):
            role = "io"
        seat = self.seats.get(role)
        return seat.cpus if seat else None

    def bind_thread(self, role: str) -> bool:
        """Binds the calling thread, and the threads that it will start, to the CPUs of its role.

        Returns:
            Whether it is bound now.

        Raises:
            ValueError: there is no such role.
        """
        cpus = self.cpus(role)
        if cpus is None:
            if self.seats:
                say(f"binding: threads for {role} are left unbound")
            return False
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:  # the cpuset has changed since, or a sandbox forbids the call
            say(f"binding: threads for {role} are left unbound: CPUs {format_list(cpus)}: {error.strerror}")
            return False
        return True


def unbound(note: str) -> Binding:
    """Threads and memory are left alone."""
    return Binding({}, None, note)


UNBOUND = unbound("threads and memory are left alone")


def choose(
    topology: Topology, places: Sequence[Place] = (), gpu: Gpu | None = None, threads: int = 0, table_bytes: int = 0
) -> Binding:
    """The cores for each role and the memory policy for the tables. A pure function.

    Args:
        places: the paths of the disk tier; none: the tables are in memory alone.
        gpu: that the run computes on; None: it computes on the CPU.
        threads: that compute on the CPU; 0: one for each CPU that `compute` gets.
        table_bytes: of the tables in memory; 0: they fit on any node.
    """
    usable = topology.usable_nodes()
    if len(topology.nodes) == 1:
        return unbound("one NUMA node: threads and memory are left alone")
    if len(usable) < 2:
        here = f"all on node {usable[0]}" if usable else "none that the kernel knows of"
        return unbound(f"the CPUs that may be used are {here}: threads and memory are left alone")
    disks = list(dict.fromkeys(name for place in places for name in place.disks))
    seats = _Seats(topology)
    for number, name in enumerate(disks):
        seats.take_disk(f"io:{number}", name, disks)
    if gpu is not None:
        seats.take_network()
        seats.take_compute(gpu)
    else:  # cores are what it computes with: none is kept for a network that may be idle
        seats.share_compute(disks, threads)
    seats.share_rest(disks)
    memory = _memory(topology, seats.found, table_bytes)
    by_place = {place.path: tuple(f"io:{disks.index(name)}" for name in place.disks) for place in places}
    note = f"{len(usable)} NUMA nodes: threads are bound next to the devices that they serve"
    return Binding(seats.found, memory, f"{note}; tables are {memory}" if memory else note, by_place)


def _memory(topology: Topology, seats: Mapping[str, Seat], table_bytes: int) -> MemoryPolicy | None:
    """Interleaved where their users sit on several nodes, local where all sit on one, and there is room for them."""
    if not topology.memory_nodes:
        return None
    users = {node for role, seat in seats.items() if role in ("fetch", "read", "write", "io") for node in seat.nodes}
    home = min(users)
    if len(users) == 1 and home in topology.memory_nodes:
        room = topology.node(home).num_bytes
        if room is None or table_bytes <= _LARGE_SHARE * room:
            return MemoryPolicy("local", (home,))
    return MemoryPolicy("interleave", topology.memory_nodes)


class _Seats:
    """Cores as they are handed out: first to those that get some of their own, then the rest is shared."""

    def __init__(self, topology: Topology):
        self.topology = topology
        self.usable = topology.usable_nodes()
        self.free = {node: topology.allowed_cores(node) for node in self.usable}
        self.found: dict[str, Seat] = {}
        self.home: int | None = None  # the node of whoever computes; None: it is on all of them

    def take_disk(self, role: str, name: str, disks: Sequence[str]) -> None:
        """A core of its own for a disk's I/O; disks share cores where its node would have none left for the rest."""
        node = self._near(self._disk_node(name))
        on_node = [other for other in disks if self._near(self._disk_node(other)) == node]
        cores = self.topology.allowed_cores(node)
        count = max(1, min(len(on_node), len(cores) - 1))
        cpus = cores[-1 - on_node.index(name) % count]
        self._drop(node, cpus)
        known = "" if self._disk_node(name) is not None else " (its node is unknown)"
        self._seat(role, cpus, f"I/O of {name}{known}")

    def take_network(self) -> None:
        """A core of its own next to the fastest card that is up, where its node can spare one."""
        cards = [nic for nic in self.topology.nics if nic.up and nic.node is not None]
        if not cards:
            return
        card = max(cards, key=lambda nic: nic.megabits or 0)
        node = self._near(card.node)
        if len(self.free[node]) > 2:
            self._seat("network", self.free[node].pop(), f"next to {card.name}")

    def take_compute(self, gpu: Gpu) -> None:
        """A core of its own next to the GPU, where its node has one left beside the stages that feed the GPU."""
        if gpu.node is None:
            self._seat("compute", self._everywhere(), f"the node of {gpu.name} at {gpu.address} is unknown")
            return
        self.home = node = self._near(gpu.node)
        cpus = self.free[node].pop() if len(self.free[node]) > 1 else self._pool(node)
        self._seat("compute", cpus, f"next to {gpu.name} at {gpu.address}")

    def share_compute(self, disks: Sequence[str], threads: int) -> None:
        """As many cores of one node as there are threads; all that is free of all nodes where none has so many."""
        if not threads:
            self._seat("compute", self._everywhere(), _COMMON)
            return
        nodes = [self._near(self._disk_node(name)) for name in disks]
        rooms = sorted(self.usable, key=lambda node: (-nodes.count(node), -len(self._flat(self.free[node])), node))
        for node in rooms:
            taken: list[tuple[int, ...]] = []
            while len(self._flat(taken)) < threads and len(self.free[node]) - len(taken) > 1:
                taken.append(self.free[node][-1 - len(taken)])
            if len(self._flat(taken)) >= threads:
                self.home = node
                del self.free[node][-len(taken) :]
                self._seat("compute", self._flat(taken), f"{threads} threads of one node")
                return
        self._seat("compute", self._everywhere(), f"{threads} threads: more than a node has cores for")

    def share_rest(self, disks: Sequence[str]) -> None:
        """What is not taken: next to the GPU for what feeds it, next to the disks for what fetches, else for plans."""
        feeding = self._pool(self.home) if self.home is not None else self._everywhere()
        beside = "next to compute" if self.home is not None else _COMMON
        for role in ("read", "upload", "download", "write"):
            self._seat(role, feeding, beside)
        near = {self._near(node) for node in map(self._disk_node, disks) if node is not None}
        fetching = tuple(sorted(cpu for node in near for cpu in self._pool(node)))
        self._seat("fetch", fetching or feeding, "next to the disks" if near else beside)
        if disks:
            io = sorted({cpu for role, seat in self.found.items() if role.startswith("io:") for cpu in seat.cpus})
            self._seat("io", tuple(io), "I/O of all disks")
        free = set(self._everywhere())
        left = free - set(feeding) - set(fetching) or free - set(feeding) or free
        for role in ("plan", "settle"):
            self._seat(role, tuple(sorted(left)), "what is left" if left != set(feeding) else beside)

    def _disk_node(self, name: str) -> int | None:
        return next((disk.node for disk in self.topology.disks if disk.name == name), None)

    def _near(self, node: int | None) -> int:
        """The usable node nearest to a device's; for an unknown one the node with the most cores."""
        if node is None:
            return max(self.usable, key=lambda one: (len(self.topology.allowed_cores(one)), -one))
        return self.topology.nearest(node, self.usable)

    def _drop(self, node: int, cpus: tuple[int, ...]) -> None:
        self.free[node] = [core for core in self.free[node] if core != cpus]

    def _pool(self, node: int) -> tuple[int, ...]:
        """What is free on a node; all of it where nothing is."""
        return self._flat(self.free[node] or self.topology.allowed_cores(node))

    def _everywhere(self) -> tuple[int, ...]:
        free = [core for node in self.usable for core in self.free[node]]
        return self._flat(free or self.topology.allowed_cores())

    @staticmethod
    def _flat(cores: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in cores for cpu in core))

    def _seat(self, role: str, cpus: tuple[int, ...], why: str) -> None:
        on = tuple(node.number for node in self.topology.nodes if set(cpus) & set(node.cpus))
        self.found[role] = Seat(cpus, on, why)
