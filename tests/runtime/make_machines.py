"""Writes the described machines of `machines/`: `python -m tests.runtime.make_machines`.

They are described, not recorded, for nobody keeps such machines: each file has the layout, the names and the number
formats of the real sysfs of Linux 5.15 to 6.8. {0-3,8} in a path stands for one path each. `sysfs_trees.record`
makes the same kind of file from a real /sys.
"""

from __future__ import annotations

import json
from pathlib import Path

from marius_oac.runtime.machine.sysfs import format_list, parse_list

FOLDER = Path(__file__).parent / "machines"
CPU, NODE = "devices/system/cpu", "devices/system/node"


class Machine:
    """A tree of sysfs as it is put together."""

    def __init__(self, made: str):
        self.made, self.files, self.links = made, {}, {}

    def write(self, name: str) -> None:
        tree = {"made": self.made, "links": self.links, "files": self.files}
        (FOLDER / name).write_text(json.dumps(tree, indent=0) + "\n", "utf-8")

    def cpus(self, present: str, offline: str = "") -> None:
        online = set(parse_list(present)) - set(parse_list(offline))
        self.files[f"{CPU}/online"] = format_list(online)

    def cores(self, owns: list[str]) -> None:
        """Cores by their CPUs."""
        for own in owns:
            self.files[f"{CPU}/cpu{{{own}}}/topology/thread_siblings_list"] = own

    def node(self, number: int, cpus: str, gib: int, distance: str) -> None:
        total = gib * (1 << 20) - 412 * 1024  # what the firmware keeps is missing
        self.files |= {
            f"{NODE}/node{number}/cpulist": cpus,
            f"{NODE}/node{number}/distance": distance,
            f"{NODE}/node{number}/meminfo": f"\nNode {number} MemTotal:       {total} kB\n"
            f"Node {number} MemFree:        {total // 2} kB\nNode {number} Active:         {total // 3} kB",
        }

    def pci(self, path: str, ids: tuple[str, str, str], node: int, cpus: str) -> str:
        """A function at the end of a path of bridges, such as pci0000:16/0000:16:02.0/0000:17:00.0."""
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            address, folder = parts[end - 1], f"devices/{'/'.join(parts[:end])}"
            last = end == len(parts)
            self.links[f"bus/pci/devices/{address}"] = f"../../../{folder}"
            self.files |= {
                f"{folder}/class": ids[0] if last else "0x060400",
                f"{folder}/vendor": ids[1] if last else "0x8086",
                f"{folder}/device": ids[2] if last else "0x347a",
                f"{folder}/numa_node": f"{node}",
                f"{folder}/local_cpulist": cpus,
            }
        return f"devices/{path}"

    def block(self, folder: str, number: str) -> None:
        """A whole disk."""
        name = folder.rsplit("/", 1)[1]
        self.links |= {f"block/{name}": f"../{folder}", f"class/block/{name}": f"../../{folder}"}
        self.links |= {f"dev/block/{number}": f"../../{folder}"}
        self.files |= {f"{folder}/dev": number, f"{folder}/hidden": "0"}

    def partition(self, disk: str, suffix: str, number: str) -> str:
        folder = f"{disk}/{disk.rsplit('/', 1)[1]}{suffix}"
        self.links |= {f"class/block/{folder.rsplit('/', 1)[1]}": f"../../{folder}"}
        self.links |= {f"dev/block/{number}": f"../../{folder}"}
        self.files |= {f"{folder}/dev": number, f"{folder}/partition": suffix.strip("p")}
        return folder

    def over(self, name: str, number: str, slaves: list[str]) -> None:
        """An md or dm device over partitions or disks, given by their folders."""
        folder = f"devices/virtual/block/{name}"
        self.block(folder, number)
        for slave in slaves:
            self.links[f"{folder}/slaves/{slave.rsplit('/', 1)[1]}"] = f"../../../../../{slave}"

    def nvme(self, controller: int, path: str, number: str, node: int, cpus: str) -> str:
        folder = self.pci(path, ("0x010802", "0x144d", "0xa80a"), node, cpus) + f"/nvme/nvme{controller}"
        self.files[f"{folder}/numa_node"] = f"{node}"
        disk = f"{folder}/nvme{controller}n1"
        self.block(disk, number)
        return disk

    def multipath_nvme(self, controller: int, path: str, number: str, node: int, cpus: str) -> str:
        """A disk that may have several controllers: its head hangs under the subsystem, its one path is hidden."""
        folder = self.pci(path, ("0x010802", "0x144d", "0xa80a"), node, cpus) + f"/nvme/nvme{controller}"
        subsystem = f"devices/virtual/nvme-subsystem/nvme-subsys{controller}"
        self.files |= {f"{folder}/numa_node": f"{node}"}
        self.links |= {f"{subsystem}/nvme{controller}": f"../../../{folder.removeprefix('devices/')}"}
        hidden = f"{folder}/nvme{controller}c{controller}n1"
        self.links[f"block/{hidden.rsplit('/', 1)[1]}"] = f"../{hidden}"
        self.files[f"{hidden}/hidden"] = "1"
        disk = f"{subsystem}/nvme{controller}n1"
        self.block(disk, number)
        return disk

    def nic(self, name: str, path: str, node: int, cpus: str, speed: str, state: str = "up") -> None:
        folder = self.pci(path, ("0x020700" if name.startswith("ib") else "0x020000", "0x15b3", "0x101d"), node, cpus)
        self.links |= {f"class/net/{name}": f"../../{folder}/net/{name}"}
        self.files |= {f"{folder}/net/{name}/operstate": state}
        if speed:
            self.files[f"{folder}/net/{name}/speed"] = speed

    def loopback(self) -> None:
        self.links["class/net/lo"] = "../../devices/virtual/net/lo"
        self.files["devices/virtual/net/lo/operstate"] = "unknown"
        self.block("devices/virtual/block/loop0", "7:0")


def two_sockets() -> Machine:
    made = (
        "Described by tests/runtime/make_machines.py after a server with two Xeon Platinum 8358 (Ice Lake, 32 cores, "
        "SMT): 8 A100 (4 a socket), an NVMe disk a socket (the second with native multipath), RAID 0 over parts of "
        "both, 2 network cards, a boot disk, a board management display; core 63 (CPUs 63 and 127) is offline."
    )
    machine = Machine(made)
    machine.cpus("0-127", "63,127")
    nodes = {0: "0-31,64-95", 1: "32-62,96-126"}
    machine.files |= {f"{NODE}/online": "0-1", f"{NODE}/possible": "0-1", f"{NODE}/has_cpu": "0-1"}
    for number, cpus in nodes.items():
        machine.node(number, cpus, 512, "10 20" if number == 0 else "20 10")
    machine.cores([f"{core},{core + 64}" for core in range(63)])
    for number, bus in enumerate(("17", "31", "3e", "58", "98", "b1", "ca", "e3")):
        socket = number // 4
        path = f"pci0000:{int(bus, 16) - 1:02x}/0000:{int(bus, 16) - 1:02x}:02.0/0000:{bus}:00.0"
        machine.pci(path, ("0x030200", "0x10de", "0x20b2"), socket, nodes[socket])
    machine.pci("pci0000:00/0000:00:1c.5/0000:02:00.0/0000:03:00.0", ("0x030000", "0x1a03", "0x2000"), 0, nodes[0])
    first = machine.nvme(0, "pci0000:64/0000:64:02.0/0000:65:00.0", "259:0", 0, nodes[0])
    second = machine.multipath_nvme(1, "pci0000:e2/0000:e2:04.0/0000:e5:00.0", "259:1", 1, nodes[1])
    machine.over("md0", "9:0", [machine.partition(first, "p1", "259:2"), machine.partition(second, "p1", "259:3")])
    ahci = machine.pci("pci0000:00/0000:00:17.0", ("0x010601", "0x8086", "0xa182"), 0, nodes[0])
    boot = f"{ahci}/ata1/host0/target0:0:0/0:0:0:0/block/sda"
    machine.block(boot, "8:0")
    machine.partition(boot, "2", "8:2")
    machine.nic("ens1f0np0", "pci0000:4a/0000:4a:02.0/0000:4b:00.0", 0, nodes[0], "25000")
    machine.nic("ens9f0np0", "pci0000:b0/0000:b0:04.0/0000:b3:00.0", 1, nodes[1], "100000")
    machine.loopback()
    return machine


def four_sockets() -> Machine:
    made = (
        "Described by tests/runtime/make_machines.py after Figure 1 and section 5 of Zhao et al. (k-step): 4 CPUs in 4 "
        "sockets, 48 cores and 96 threads; GPU 0-3 and network cards 0 and 1 on CPU 0, GPU 4-7 and card 2 on CPU 1, 4 "
        "NVMe disks each on CPU 2 and CPU 3, RAID 0 over all eight (the text says 'CPU 3 and 4' once, 'CPU 2 and 3' "
        "twice). The figure's links between CPUs are taken for a ring: 0-1-3-2-0."
    )
    machine = Machine(made)
    machine.cpus("0-95")
    machine.files |= {f"{NODE}/online": "0-3", f"{NODE}/possible": "0-3", f"{NODE}/has_cpu": "0-3"}
    nodes = {node: f"{12 * node}-{12 * node + 11},{48 + 12 * node}-{48 + 12 * node + 11}" for node in range(4)}
    distances = ("10 21 21 31", "21 10 31 21", "21 31 10 21", "31 21 21 10")
    for number, cpus in nodes.items():
        machine.node(number, cpus, 256, distances[number])
    machine.cores([f"{core},{core + 48}" for core in range(48)])
    for number in range(8):  # four GPUs behind one switch
        socket, bus = number // 4, (0x1A, 0x5E)[number // 4] + number % 4
        top = ("16", "5a")[socket]
        path = f"pci0000:{top}/0000:{top}:00.0/0000:{int(top, 16) + 1:02x}:00.0/0000:{bus:02x}:00.0"
        machine.pci(path, ("0x030200", "0x10de", "0x1db5"), socket, nodes[socket])
    disks = []
    for number in range(8):
        socket, slot = 2 + number // 4, number % 4
        top = ("85", "d7")[number // 4]
        path = f"pci0000:{top}/0000:{top}:0{slot}.0/0000:{int(top, 16) + 1 + slot:02x}:00.0"
        disks.append(machine.nvme(number, path, f"259:{number}", socket, nodes[socket]))
    machine.over("md127", "9:127", disks)
    machine.nic("eth0", "pci0000:16/0000:16:02.0/0000:21:00.0", 0, nodes[0], "100000")
    machine.nic("ib0", "pci0000:16/0000:16:03.0/0000:22:00.0", 0, nodes[0], "100000")
    machine.nic("ib1", "pci0000:5a/0000:5a:03.0/0000:66:00.0", 1, nodes[1], "100000")
    machine.loopback()
    return machine


def desktop() -> Machine:
    made = (
        "Described by tests/runtime/make_machines.py after a desktop with a Core i9-14900K: 8 performance cores with "
        "SMT, 16 efficiency cores, an NVMe disk with an encrypted root, an RTX 4090, the processor's own display, a "
        "wireless card and a 2.5 Gb/s port. One node; the firmware leaves every device at node -1."
    )
    machine = Machine(made)
    machine.cpus("0-31")
    machine.files |= {f"{NODE}/online": "0", f"{NODE}/possible": "0", f"{NODE}/has_cpu": "0"}
    machine.node(0, "0-31", 64, "10")
    machine.cores([f"{cpu}-{cpu + 1}" for cpu in range(0, 16, 2)] + [f"{cpu}" for cpu in range(16, 32)])
    machine.pci("pci0000:00/0000:00:02.0", ("0x030000", "0x8086", "0xa780"), -1, "0-31")
    machine.pci("pci0000:00/0000:00:01.0/0000:01:00.0", ("0x030000", "0x10de", "0x2684"), -1, "0-31")
    disk = machine.nvme(0, "pci0000:00/0000:00:06.0/0000:02:00.0", "259:0", -1, "0-31")
    machine.partition(disk, "p1", "259:1")
    machine.over("dm-0", "252:0", [machine.partition(disk, "p2", "259:2")])
    machine.nic("enp5s0", "pci0000:00/0000:00:1c.0/0000:05:00.0", -1, "0-31", "2500")
    machine.nic("wlp6s0", "pci0000:00/0000:00:1c.2/0000:06:00.0", -1, "0-31", "", state="down")
    machine.loopback()
    return machine


if __name__ == "__main__":
    for describe in (two_sockets, four_sockets, desktop):
        describe().write(f"{describe.__name__}.json")
