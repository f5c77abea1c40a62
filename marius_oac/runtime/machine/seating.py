"""The choice of cores for each thread of each process, and of NUMA nodes for tables (Zhao et al., k-step, section 3.1).

Every thread runs on the NUMA node of the device that it serves. Each disk's I/O threads have one core on the disk's
node. The compute thread has its own core on its GPU's node, and the stages that feed the GPU have other cores there.
Over nodes, one core is for the network. The threads that make batches get the cores that are left. On a machine with
one NUMA node, threads and memory are not bound.

Several processes of a run on one machine (Zhao et al. drive eight GPUs from one) share the cores of disks and network.
The other cores are distributed. A process's home is the NUMA node of its GPU or, without one, a node chosen by its
number of cores. The cores of a node go to the processes whose home it is or, if there are none, to those whose home is
nearest. Each process then places its threads on its part of the cores as a single process does on the whole machine.

Guarantees:
- The choice is a pure function of the topology and the processes, so that each process computes the same one.
- No core has threads of two processes while another core of their node has none, except the cores of disks and of the
  network, which are for nothing else.
- All CPUs of a seat are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marius_oac.runtime.machine.binding import Binding, Seat, unbound
from marius_oac.runtime.machine.devices import Gpu
from marius_oac.runtime.machine.numa_memory import MemoryPolicy
from marius_oac.runtime.machine.topology import Topology

Cores = list[tuple[int, ...]]
"""CPUs of each."""
_LARGE_SHARE = 0.5  # of a node's memory: tables that need more are spread, for buffers and the system live there too


@dataclass(frozen=True)
class Process:
    """A process of a run on this machine.

    Attributes:
        disks: names of the disks under its disk tier, each once; None if its tables are in memory alone.
        gpu: the GPU that it computes on; None for the CPU.
        threads: number of threads that compute on the CPU; 0 for one per CPU that `compute` gets.
        table_bytes: size of its tables in memory; 0 if unknown.
        trains: whether it computes.
        serves: over nodes, whether it has rows.
    """

    disks: Sequence[str] | None = None
    gpu: Gpu | None = None
    threads: int = 0
    table_bytes: int = 0
    trains: bool = True
    serves: bool = True


def choose(topology: Topology, processes: Sequence[Process] = (Process(),), over_nodes: bool = False) -> list[Binding]:
    """The cores for each role, and where tables go, of each process of a run on this machine; a pure function.

    Args:
        over_nodes: whether the run is over nodes, so that rows are served and sent by the network.
    """
    usable, trainers = topology.usable_nodes(), sum(each.trains for each in processes)
    if len(topology.nodes) == 1 or len(usable) < 2:
        here = f"all on node {usable[0]}" if usable else "none that the kernel knows of"
        what = "one NUMA node" if len(topology.nodes) == 1 else f"the CPUs that may be used are {here}"
        return [unbound(f"{what}: threads and memory are left alone", max(1, trainers))] * len(processes)
    floor = _Floor(topology, processes, over_nodes)
    return [floor.binding(number) for number in range(len(processes))]


class _Floor:
    """The cores of a machine, as they are distributed to the processes: `parts` has those of each, by node."""

    def __init__(self, topology: Topology, processes: Sequence[Process], over_nodes: bool):
        self.topology, self.processes, self.over_nodes = topology, processes, over_nodes
        self.usable = topology.usable_nodes()
        self.free = {node: topology.allowed_cores(node) for node in self.usable}
        self.disks = list(dict.fromkeys(name for each in processes for name in each.disks or ()))
        self.io = {name: self._take_disk(name) for name in self.disks}
        self.homes = self._homes()
        self.network = self._take_network() if over_nodes and any(each.gpu for each in processes) else None
        self.parts = self._parts()

    def binding(self, number: int) -> Binding:
        """The binding of one of the processes."""
        process = self.processes[number]
        seats = _Seats(self, process, self.parts[number])
        if process.disks:
            io = sorted({cpu for name in process.disks for cpu in self.io[name]})
            seats.seat("io", tuple(io))
        if self.network is not None:
            seats.seat("network", self.network)
        if process.trains:
            seats.seat_trainer(self.over_nodes)
        if self.over_nodes:
            seats.seat_rows()
        memory = self._memory(number, seats.found)
        note = f"{len(self.usable)} NUMA nodes: threads are bound next to the devices that they serve"
        if len(self.processes) > 1:
            note += f", those of {len(self.processes)} processes each to cores of its own"
        trainers = max(1, sum(each.trains for each in self.processes))
        return Binding(seats.found, memory, f"{note}; tables are {memory}" if memory else note, trainers)

    def near(self, node: int | None) -> int:
        """The usable node nearest to a device's; for an unknown one the node with the most cores."""
        if node is None:
            return max(self.usable, key=lambda one: (len(self.topology.allowed_cores(one)), -one))
        return self.topology.nearest(node, self.usable)

    def disk_nodes(self, process: Process) -> list[int]:
        """Usable nodes nearest to the disks of a process whose nodes are known."""
        return [self.near(node) for node in map(self._disk_node, process.disks or ()) if node is not None]

    def _disk_node(self, name: str) -> int | None:
        return next((disk.node for disk in self.topology.disks if disk.name == name), None)

    def _take_disk(self, name: str) -> tuple[int, ...]:
        """A core for one disk's I/O; disks share cores where their node would have none left for other threads."""
        node = self.near(self._disk_node(name))
        on_node = [other for other in self.disks if self.near(self._disk_node(other)) == node]
        cores = self.topology.allowed_cores(node)
        count = max(1, min(len(on_node), len(cores) - 1))
        cpus = cores[-1 - on_node.index(name) % count]
        self.free[node] = [core for core in self.free[node] if core != cpus]
        return cpus

    def _homes(self) -> list[int]:
        """The home of each process: its GPU's node, else the node with the most cores per process already there."""
        known = {
            n: self.near(each.gpu.node)
            for n, each in enumerate(self.processes)
            if each.gpu and each.gpu.node is not None
        }
        living = {node: list(known.values()).count(node) for node in self.usable}
        for number in range(len(self.processes)):
            if number not in known:
                room = {node: len(self.free[node]) / (living[node] + 1) for node in self.usable}
                known[number] = max(self.usable, key=lambda node: (room[node], -living[node], -node))
                living[known[number]] += 1
        return [known[number] for number in range(len(self.processes))]

    def _take_network(self) -> tuple[int, ...] | None:
        """A core next to the fastest card that is up, where its node can spare one; all processes share it."""
        cards = [nic for nic in self.topology.nics if nic.up and nic.node is not None]
        if not cards:
            return None
        card = max(cards, key=lambda nic: nic.megabits or 0)
        node = self.near(card.node)
        if len(self.free[node]) <= 2 * max(1, self.homes.count(node)):
            return None
        return self.free[node].pop()

    def _parts(self) -> list[dict[int, Cores]]:
        parts: list[dict[int, Cores]] = [{} for _ in self.processes]
        for node in self.usable:
            nearest = self.topology.nearest(node, set(self.homes))
            owners = [number for number, home in enumerate(self.homes) if home == nearest]
            cores = self.free[node] or (self.topology.allowed_cores(node) if nearest == node else [])
            for place, owner in enumerate(owners):
                mine = cores[place * len(cores) // len(owners) : (place + 1) * len(cores) // len(owners)]
                if len(cores) < len(owners) and nearest == node:
                    mine = [cores[place % len(cores)]]
                if mine:
                    parts[owner][node] = mine
        return parts

    def _memory(self, number: int, seats: dict[str, Seat]) -> MemoryPolicy | None:
        """Interleaved where their users sit on several nodes, local where all sit on one that has room for them."""
        allowed = self.topology.memory_nodes
        roles = ("io", "serve") if self.over_nodes else ("io", "fetch", "read", "write")
        users = {node for role in roles if role in seats for node in seats[role].nodes}
        if not allowed or not users or (self.over_nodes and not self.processes[number].serves):
            return None
        home = min(users)
        if len(users) == 1 and home in allowed:
            room = self.topology.node(home).num_bytes
            there = [each for each, node in zip(self.processes, self.homes, strict=True) if node == home]
            if room is None or sum(each.table_bytes for each in there) <= _LARGE_SHARE * room:
                return MemoryPolicy("local", (home,))
        own = {node for role, seat in seats.items() if role != "network" for node in seat.nodes}
        return MemoryPolicy("interleave", tuple(node for node in allowed if node in own) or allowed)


class _Seats:
    """Distributes one process's cores to its threads: first to those that get their own, then the rest is shared."""

    def __init__(self, floor: _Floor, process: Process, part: dict[int, Cores]):
        self.floor, self.process, self.part = floor, process, part
        self.free = {node: list(cores) for node, cores in part.items()}
        self.found: dict[str, Seat] = {}
        self.home: int | None = None  # the node of the compute thread; None: it is on all of them

    def seat_trainer(self, over_nodes: bool) -> None:
        """`compute` and the stages around it; without nodes those of the disk tier, if there is one."""
        if self.process.gpu is not None:
            self._take_compute(self.process.gpu)
        else:  # cores are what it computes with
            self._share_compute(self.process.threads)
        for role in ("read", "upload", "download", "write"):
            self.seat(role, self._feeding())
        near = set(self.floor.disk_nodes(self.process)) & set(self.part)
        fetching = tuple(sorted(cpu for node in near for cpu in self._pool(node)))
        free = set(self._everywhere())
        planning = ["plan"]
        if self.process.disks is not None and not over_nodes:
            self.seat("fetch", fetching or self._feeding())
            planning.append("settle")
        else:
            fetching = ()
        left = free - set(self._feeding()) - set(fetching) or free - set(self._feeding()) or free
        for role in planning:
            self.seat(role, tuple(sorted(left)))

    def seat_rows(self) -> None:
        """Over nodes: seats the threads that receive from other nodes and those that serve rows."""
        self.seat("receive", self._feeding())
        if self.process.serves:
            self.seat("serve", self._everywhere())

    def seat(self, role: str, cpus: tuple[int, ...]) -> None:
        on = tuple(node.number for node in self.floor.topology.nodes if set(cpus) & set(node.cpus))
        self.found[role] = Seat(cpus, on)

    def _take_compute(self, gpu: Gpu) -> None:
        """A core for compute alone on the GPU's node, if one is left beside those of the stages that feed the GPU."""
        if gpu.node is None:
            self.seat("compute", self._everywhere())
            return
        self.home = node = self.floor.near(gpu.node)
        cpus = self.free[node].pop() if len(self.free[node]) > 1 else self._pool(node)
        self.seat("compute", cpus)

    def _share_compute(self, threads: int) -> None:
        """As many cores of one node as there are threads; all that is free of all nodes where none has so many."""
        nodes = self.floor.disk_nodes(self.process)
        rooms = sorted(self.free, key=lambda node: (-nodes.count(node), -len(_flat(self.free[node])), node))
        for node in rooms if threads else ():
            taken: Cores = []
            while len(_flat(taken)) < threads and len(self.free[node]) - len(taken) > 1:
                taken.append(self.free[node][-1 - len(taken)])
            if len(_flat(taken)) >= threads:
                self.home = node
                del self.free[node][-len(taken) :]
                self.seat("compute", _flat(taken))
                return
        self.seat("compute", self._everywhere())

    def _feeding(self) -> tuple[int, ...]:
        """What is not taken next to compute."""
        return self._pool(self.home) if self.home is not None else self._everywhere()

    def _pool(self, node: int) -> tuple[int, ...]:
        """What is free on a node; all of the process's part where nothing is."""
        return _flat(self.free[node] or self.part[node])

    def _everywhere(self) -> tuple[int, ...]:
        return _flat([core for cores in self.free.values() for core in cores] or sum(self.part.values(), []))


def _flat(cores: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core))
