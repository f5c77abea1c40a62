"""The machine's CPUs, memory and devices, and how near they are to each other, read from Linux's sysfs.

A *CPU* is what the kernel schedules threads on, a *core* the physical core with its one, two or more CPUs (SMT), a
*node* a NUMA node: cores and the memory next to them. What the kernel does not tell is None or missing, never an error:
containers and virtual machines hide much. Any tree of the layout of /sys can be read, so that other machines can be
looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from marius_oac.runtime.machine import sysfs
from marius_oac.runtime.machine.devices import Disk, Gpu, Nic, read_disks, read_gpus, read_nics
from marius_oac.runtime.machine.numa_memory import allowed_nodes
from marius_oac.runtime.machine.sysfs import SYSFS

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LOCAL, _REMOTE = 10, 20  # ACPI's distances where the kernel gives none: of a node to itself, to another


@dataclass(frozen=True)
class Core:
    """A physical core.

    Attributes:
        cpus: its online CPUs, ascending: one, or its SMT siblings.
        node: the NUMA node it is on.
    """

    cpus: tuple[int, ...]
    node: int


@dataclass(frozen=True)
class Node:
    """A NUMA node.

    Attributes:
        number: the kernel's number of it; numbers may have gaps.
        cpus: its online CPUs; none for a node of memory alone.
        num_bytes: its memory; None: unknown.
        distances: node number -> relative cost of reaching that node's memory from here, 10 for its own.
    """

    number: int
    cpus: tuple[int, ...]
    num_bytes: int | None
    distances: Mapping[int, int]


@dataclass(frozen=True)
class Topology:
    """A machine.

    Attributes:
        allowed: CPUs that this process may use (its affinity, which a cgroup's cpuset bounds).
        memory_nodes: nodes with memory that it may use, and with CPUs: memory without CPUs is slower (CXL, persistent).
    """

    nodes: tuple[Node, ...]
    cores: tuple[Core, ...]
    allowed: tuple[int, ...]
    memory_nodes: tuple[int, ...]
    disks: tuple[Disk, ...]
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]

    def node(self, number: int) -> Node:
        """The node with this number."""
        return next(node for node in self.nodes if node.number == number)

    def allowed_cores(self, node: int | None = None) -> list[tuple[int, ...]]:
        """The allowed CPUs of each core, of all nodes or of one; cores without any are left out."""
        allowed = set(self.allowed)
        found = (tuple(cpu for cpu in core.cpus if cpu in allowed) for core in self.cores if node in (None, core.node))
        return [cpus for cpus in found if cpus]

    def usable_nodes(self) -> list[int]:
        """Numbers of the nodes on which this process may run."""
        return [node.number for node in self.nodes if self.allowed_cores(node.number)]

    def nearest(self, node: int, among: Iterable[int]) -> int:
        """The node of `among` that is nearest to `node`, itself if it is there; of equal ones the first in number."""
        distances = self.node(node).distances
        return min(among, key=lambda other: (other != node, distances.get(other, _REMOTE), other))

    def gpu(self, address: str) -> Gpu | None:
        """The GPU with this PCI address."""
        return next((gpu for gpu in self.gpus if gpu.address == address.lower()), None)


def read(root: Path = SYSFS, allowed: Iterable[int] | None = None) -> Topology:
    """The machine that a tree describes.

    Args:
        root: a tree of the layout of /sys.
        allowed: CPUs that may be used; by default those of this thread for /sys itself, else all that are online.
    """
    live = root == SYSFS
    memory_nodes = allowed_nodes() if live else None
    online = _online(root)
    if live:
        allowed = os.sched_getaffinity(0) if allowed is None else allowed
        online = online or tuple(sorted(os.sched_getaffinity(0)))
    nodes = _nodes(root, online, psutil.virtual_memory().total if live else None)
    node_cpus = {node.number: node.cpus for node in nodes}
    return Topology(
        nodes=nodes,
        cores=_cores(root, online, node_cpus),
        allowed=online if allowed is None else tuple(sorted(set(allowed) & set(online))),
        memory_nodes=tuple(
            node.number
            for node in nodes
            if node.cpus and node.num_bytes != 0 and (memory_nodes is None or node.number in memory_nodes)
        ),
        disks=read_disks(root, node_cpus),
        gpus=read_gpus(root, node_cpus),
        nics=read_nics(root, node_cpus),
    )


def running_kernel() -> str:
    """An identifier of this machine's kernel since it was booted, the same in all containers of a machine; "" where the
    kernel has none."""
    return sysfs.text(_BOOT_ID) or ""


def _online(root: Path) -> tuple[int, ...]:
    folder = root / "devices/system/cpu"
    listed = sysfs.numbers(folder / "online")
    if listed:
        return listed
    present = [entry for entry in sysfs.entries(folder) if (entry / "topology").is_dir()]  # an offline CPU has none
    return tuple(sorted(int(entry.name[3:]) for entry in present if entry.name[3:].isdigit()))


def _nodes(root: Path, online: tuple[int, ...], memory: int | None) -> tuple[Node, ...]:
    """The online nodes; one node of everything where the kernel tells of none."""
    folder = root / "devices/system/node"
    listed = sysfs.numbers(folder / "online") or tuple(
        sorted(int(entry.name[4:]) for entry in sysfs.entries(folder) if entry.name[4:].isdigit())
    )
    found = {}
    for one in listed:
        cpus = sysfs.numbers(folder / f"node{one}/cpulist")
        cpus = sysfs.mask(folder / f"node{one}/cpumap") if cpus is None else cpus
        if cpus is not None:
            found[one] = tuple(cpu for cpu in cpus if cpu in online)
    if not any(found.values()):
        return (Node(0, online, memory, {0: _LOCAL}),)
    homeless = set(online) - {cpu for cpus in found.values() for cpu in cpus}
    first = min(found)
    found[first] = tuple(sorted({*found[first], *homeless}))
    return tuple(
        Node(one, cpus, _memory(folder / f"node{one}" / "meminfo"), _distances(folder / f"node{one}", listed))
        for one, cpus in sorted(found.items())
    )


def _memory(path: Path) -> int | None:
    for line in (sysfs.text(path) or "").splitlines():
        words = line.split()
        if len(words) >= 4 and words[2] == "MemTotal:" and words[3].isdigit():
            return int(words[3]) * 1024
    return None


def _distances(folder: Path, listed: tuple[int, ...]) -> dict[int, int]:
    """The columns of `distance` are the online nodes in ascending order, whatever gaps their numbers have."""
    row = (sysfs.text(folder / "distance") or "").split()
    if len(row) != len(listed) or not all(word.isdigit() for word in row):
        return {}
    return dict(zip(listed, map(int, row), strict=True))


def _cores(root: Path, online: tuple[int, ...], node_cpus: dict[int, tuple[int, ...]]) -> tuple[Core, ...]:
    node_of = {cpu: node for node, cpus in node_cpus.items() for cpu in cpus}
    seen: set[int] = set()
    cores = []
    for cpu in online:
        if cpu in seen:
            continue
        folder = root / f"devices/system/cpu/cpu{cpu}/topology"
        listed = sysfs.numbers(folder / "thread_siblings_list") or sysfs.numbers(folder / "core_cpus_list") or ()
        same = {other for other in listed if node_of.get(other) == node_of[cpu] and other not in seen}
        cpus = tuple(sorted({cpu, *same}))
        seen.update(cpus)
        cores.append(Core(cpus, node_of[cpu]))
    return tuple(cores)
