"""Disks, GPUs and network cards, and the NUMA node of each, from a tree of the layout of /sys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from marius_oac.runtime.machine import sysfs

_VENDORS = (0x10DE, 0x1002)  # NVIDIA, AMD: others' display adapters are the processor's or the board's own
_GPU_CLASSES = (0x03, 0x12)  # PCI base classes: display controller, processing accelerator


@dataclass(frozen=True)
class Disk:
    """A block device that is hardware, or the virtual machine's: no loop, RAM, LVM or RAID device.

    Attributes:
        name: as under /dev, such as nvme0n1.
        node: its NUMA node; None if unknown.
    """

    name: str
    node: int | None


@dataclass(frozen=True)
class Gpu:
    """A GPU on which a run can train, by its PCI address, and its NUMA node; None if that is unknown."""

    address: str
    node: int | None


@dataclass(frozen=True)
class Nic:
    """A network card's port; `megabits` per second, None where it is down or unknown."""

    name: str
    up: bool
    megabits: int | None
    node: int | None


def read_disks(root: Path, node_cpus: dict[int, tuple[int, ...]]) -> tuple[Disk, ...]:
    """All disks, by name in natural order."""
    folders = (sysfs.real(entry) for entry in sysfs.entries(root / "block"))
    disks = [
        Disk(folder.name, sysfs.device_node(_controller(folder), node_cpus))
        for folder in folders
        if folder is not None and is_hardware(folder)
    ]
    return tuple(sorted(disks, key=lambda disk: natural(disk.name)))


def natural(name: str) -> tuple[object, ...]:
    """Sorts nvme10n1 behind nvme2n1."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def is_hardware(folder: Path) -> bool:
    """Whether a block device, by its real folder, is hardware and not made by software."""
    if sysfs.number(folder / "hidden") == 1 or folder.name.startswith(("sr", "fd")):  # one path of several; no disk
        return False
    return not _is_virtual(folder) or _is_multipath(folder)


def _is_virtual(folder: Path) -> bool:
    return "/devices/virtual/" in str(folder)


def _is_multipath(folder: Path) -> bool:
    """An NVMe disk that says it can have several controllers hangs under its subsystem, not under its PCI device."""
    return folder.parent.name.startswith("nvme-subsys")


def _controller(folder: Path) -> Path:
    if _is_multipath(folder):
        links = [entry for entry in sysfs.entries(folder.parent) if re.fullmatch(r"nvme\d+", entry.name)]
        return next(filter(None, map(sysfs.real, links)), folder)
    return folder


def read_gpus(root: Path, node_cpus: dict[int, tuple[int, ...]]) -> tuple[Gpu, ...]:
    """All GPUs of NVIDIA and AMD, in PCI order."""
    gpus = []
    for entry in sysfs.entries(root / "bus/pci/devices"):
        number, folder = sysfs.number(entry / "class"), sysfs.real(entry)
        if number is None or number >> 16 not in _GPU_CLASSES or folder is None:
            continue
        if sysfs.number(entry / "vendor") in _VENDORS:
            gpus.append(Gpu(entry.name, sysfs.device_node(folder, node_cpus)))
    return tuple(gpus)


def read_nics(root: Path, node_cpus: dict[int, tuple[int, ...]]) -> tuple[Nic, ...]:
    """All network ports that are hardware, or the virtual machine's, by name in natural order."""
    nics = []
    for entry in sorted(sysfs.entries(root / "class/net"), key=lambda entry: natural(entry.name)):
        folder = sysfs.real(entry)
        if folder is None or _is_virtual(folder):
            continue
        speed = sysfs.number(folder / "speed")
        megabits = speed if speed is not None and speed > 0 else None
        up = sysfs.text(folder / "operstate") == "up"
        nics.append(Nic(folder.name, up, megabits, sysfs.device_node(folder, node_cpus)))
    return tuple(nics)
