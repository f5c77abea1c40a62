"""The machine as a run sees it: the binding of a run's threads and tables, and the text of `marius-oac topology`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marius_oac.errors import InputError
from marius_oac.runtime.machine.binding import Binding
from marius_oac.runtime.machine.devices import Disk, Gpu, Nic
from marius_oac.runtime.machine.disks import Place, place
from marius_oac.runtime.machine.seating import Process, choose
from marius_oac.runtime.machine.sysfs import SYSFS, format_list
from marius_oac.runtime.machine.topology import Node, Topology, read


@dataclass(frozen=True)
class LocalProcess:
    """What a process of a run sends to the others on the same machine, in plain values: see `seating.Process`.

    Attributes:
        kernel: identifier of the machine's kernel; processes with the same one share its CPUs.
        allowed: CPUs that it may use, as a list. Processes with different CPUs are assumed to be separated already.
        places: the `Place`s of its disk tier; none where tables are in memory alone.
        gpu: PCI address of its GPU, such as 0000:41:00.0; None if the CPU computes.
    """

    kernel: str = ""
    allowed: str = ""
    places: Sequence[Mapping[str, Any]] = ()
    gpu: str | None = None
    threads: int = 0
    table_bytes: int = 0
    trains: bool = True
    serves: bool = True

    def beside(self, other: LocalProcess) -> bool:
        """Whether both may use the same CPUs of one machine."""
        return (self.kernel, self.allowed) == (other.kernel, other.allowed)


def run_binding(every: Sequence[LocalProcess], number: int = 0, over_nodes: bool = False) -> Binding:
    """The binding of process `number` of a run; processes on other machines are left out."""
    here = [each for each, process in enumerate(every) if process.beside(every[number])]
    topology = read()
    processes = [_seated(topology, every[each]) for each in here]
    return choose(topology, processes, over_nodes)[here.index(number)]


def _seated(topology: Topology, told: LocalProcess) -> Process:
    card = None if told.gpu is None else topology.gpu(told.gpu) or Gpu(told.gpu, "", "the GPU", None)
    places = tuple(Place(**{**each, "disks": tuple(each["disks"])}) for each in told.places)
    return Process(places, card, told.threads, told.table_bytes, told.trains, told.serves)


def report(
    paths: Sequence[str | Path] = (),
    device: str = "auto",
    root: Path = SYSFS,
    as_json: bool = False,
    trainers: int | None = None,
) -> str:
    """The text of `marius-oac topology`: the machine, and the binding that a run would get.

    Args:
        paths: folders of a disk tier, or block devices as /dev/NAME (the only kind on another machine's tree).
        device: as in a config: auto, cpu, cuda or cuda:N.
        root: a tree of the layout of /sys.
        trainers: for a run over nodes, the number of its trainers on this machine, each with its own GPU if any;
            None for a run on this machine alone.

    Raises:
        InputError: no such tree, device or path, or fewer GPUs than trainers.
    """
    if not (root / "devices/system/cpu").is_dir():
        raise InputError("no tree of the layout of /sys: devices/system/cpu is missing in it", root)
    if trainers is not None and trainers < 1:
        raise InputError(f"must be at least 1, not {trainers}", "--trainers")
    topology = read(root)
    places = tuple(_place(path, root) for path in paths)
    cards = _gpus(topology, device, trainers or 1)
    bindings = choose(topology, [Process(places, card) for card in cards], trainers is not None)
    if as_json:
        return json.dumps(_tree(topology, places, cards, bindings, trainers), indent=2)
    lines = _machine(topology)
    for number, (binding, card) in enumerate(zip(bindings, cards, strict=True)):
        computes = f"computes on {card.name} at {card.address}" if card else "computes on the CPU"
        who = f"A run that {computes}" if trainers is None else f"Trainer {number} of {trainers}, which {computes}"
        lines += ["", *_run(who, binding, places)]
    return "\n".join(lines)


def _tree(
    topology: Topology,
    places: Sequence[Place],
    cards: Sequence[Gpu | None],
    bindings: Sequence[Binding],
    trainers: int | None,
) -> dict[str, Any]:
    """Everything, for programs: the binding of the run, or of each of its trainers here."""
    pairs = zip(bindings, cards, strict=True)
    each = [asdict(binding) | {"device": card.address if card else "cpu"} for binding, card in pairs]
    found = {"binding": each[0]} if trainers is None else {"bindings": each}
    return asdict(topology) | {"places": [asdict(one) for one in places]} | found


def _place(path: str | Path, root: Path) -> Place:
    if root != SYSFS and not Path(path).is_relative_to("/dev"):
        raise InputError("on another machine's tree only block devices can be looked at, such as /dev/nvme0n1", path)
    try:
        found = place(path, root)
    except OSError as error:
        raise InputError(error.strerror or str(error), path) from None
    if Path(path).is_relative_to("/dev") and not found.device:
        raise InputError("no such block device", path)
    return found


def _gpus(topology: Topology, device: str, count: int) -> list[Gpu | None]:
    """The GPUs of so many trainers, from the device's on; None: they compute on the CPU."""
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", device)
    if match is None:
        raise InputError(f"{device!r} is not auto, cpu, cuda or cuda:N", "--device")
    if device == "cpu" or (device == "auto" and topology.gpu(0) is None):
        return [None] * count
    first, there = int(match[1] or 0), sum(gpu.computes for gpu in topology.gpus)
    if topology.gpu(first) is None:
        raise InputError(f"there is no {device}: {_count(there, 'GPU')} of NVIDIA's or AMD's here", "--device")
    if first + count > there:
        raise InputError(f"{count} need a GPU each, from cuda:{first} on, but there are {there}", "--trainers")
    return [topology.gpu(first + number) for number in range(count)]


def _machine(topology: Topology) -> list[str]:
    cores, cpus = len(topology.cores), sum(len(core.cpus) for core in topology.cores)
    sockets = len({core.socket for core in topology.cores})
    memory = [node.num_bytes for node in topology.nodes if node.num_bytes is not None]
    kinds = [core.kind for core in topology.cores if core.kind]
    hybrid = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    parts = [
        _count(sockets, "socket"),
        _count(len(topology.nodes), "NUMA node"),
        _count(cores, "core") + (f" ({hybrid})" if hybrid else "") + (f" with {cpus} CPUs" if cpus != cores else ""),
        f"{_binary(sum(memory))} of memory" if memory else "memory unknown",
    ]
    lines = [", ".join(parts)]
    if topology.offline:
        lines.append(f"offline: CPUs {format_list(topology.offline)}")
    if len(topology.allowed) < cpus:
        lines.append(f"this process may use CPUs {format_list(topology.allowed)}")
    for node in topology.nodes:
        lines += ["", *_node(topology, node)]
    astray = list(_devices(topology, None))
    return lines + (["", "of unknown node", *astray] if astray else [])


def _node(topology: Topology, node: Node) -> list[str]:
    far: dict[int, list[int]] = {}
    for other, cost in node.distances.items():
        if other != node.number:
            far.setdefault(cost, []).append(other)
    others = [f"{cost} to {_nodes(far[cost])}" for cost in sorted(far)]
    parts = [
        f"CPUs {format_list(node.cpus)}" if node.cpus else "no CPUs",
        f"memory {_binary(node.num_bytes) if node.num_bytes is not None else 'unknown'}",
        *([f"distance {', '.join(others)}"] if others else []),
    ]
    levels: dict[int, list[str]] = {}
    for cache in topology.caches:
        here = sum(set(group) <= set(node.cpus) for group in cache.groups)
        if here:
            size = _binary(cache.num_bytes) if cache.num_bytes is not None else "unknown size"
            levels.setdefault(cache.level, []).append(f"{f'{here} x ' if here > 1 else ''}{size}")
    caches = ", ".join(f"L{level} {' and '.join(sizes)}" for level, sizes in levels.items())
    lines = [f"node {node.number}   {'   '.join(parts)}"]
    return lines + ([f"  caches   {caches}"] if caches else []) + list(_devices(topology, node.number))


def _nodes(numbers: Sequence[int]) -> str:
    return f"node{'s' if len(numbers) > 1 else ''} {format_list(numbers)}"


def _devices(topology: Topology, node: int | None) -> Iterable[str]:
    """A line for each device of a node, in columns that are the same for all nodes."""
    numbers = {gpu: number for number, gpu in enumerate(gpu for gpu in topology.gpus if gpu.computes)}
    kinds = (("disk", topology.disks), ("GPU", topology.gpus), ("network", topology.nics))
    rows = [(device.node, (kind, *_cells(device, numbers))) for kind, devices in kinds for device in devices]
    widths = [max(map(len, column)) for column in zip(*(row for _, row in rows), strict=True)]
    for at, row in rows:
        if at == node:
            yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()


def _cells(device: Disk | Gpu | Nic, numbers: dict[Gpu, int]) -> tuple[str, str, str]:
    """Name, what it is, PCI address."""
    address = device.address or ""
    if isinstance(device, Disk):
        words = (_decimal(device.num_bytes), device.kind, device.model, "spinning" if device.spins else "")
        return device.name, " ".join(filter(None, words)), address
    if isinstance(device, Gpu):
        return f"cuda:{numbers[device]}" if device in numbers else "display", device.name, address
    speed = f"{device.megabits / 1000:g} Gb/s" if device.megabits else "speed unknown"
    states = (speed if device.up else "down", f"RDMA as {device.rdma}" if device.rdma else "")
    return device.name, ", ".join(filter(None, states)), address


def _run(who: str, binding: Binding, places: Sequence[Place]) -> list[str]:
    lines = [f"{who}{'' if places else ', with its tables in memory'}"]
    for one in places:
        on = " on ".join(filter(None, (one.file_system, one.device if one.disks != (one.device,) else "")))
        disks = ", ".join(one.disks) or "no disk is known under it"
        lines.append(f"  with a disk tier in {one.path}: {disks}{f' ({on})' if on else ''}")
    if not binding.seats:
        return [*lines, f"  {binding.note}"]
    together: dict[tuple[str, str], list[str]] = {}
    for role, seat in binding.seats.items():
        together.setdefault((f"CPUs {format_list(seat.cpus)}, {_nodes(seat.nodes)}", seat.why), []).append(role)
    if places and "io" not in binding.seats:
        together["any CPU that may be used", "no disk is known under it"] = ["io"]
    names = [", ".join(roles) for roles in together.values()]
    width = max(map(len, names))
    middle = max(len(where) for where, _ in together)
    for name, (where, why) in zip(names, together, strict=True):
        lines.append(f"  {name.ljust(width)}  {where.ljust(middle)}  {why}")
    return [*lines, f"  {'tables'.ljust(width)}  {binding.memory or 'where the kernel puts them'}"]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _binary(num_bytes: int) -> str:
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if num_bytes >= 1 << shift:
            return (
                f"{num_bytes / (1 << shift):.3g} {unit}"
                if num_bytes >> shift < 1000
                else f"{num_bytes >> shift} {unit}"
            )
    return f"{num_bytes} bytes"


def _decimal(num_bytes: int) -> str:
    """As disks are sold: in powers of ten."""
    return f"{num_bytes / 1e12:.3g} TB" if num_bytes >= 1e12 else f"{num_bytes / 1e9:.3g} GB"
