"""Disks, GPUs and network cards, and the NUMA node of each, from a tree of the layout of /sys."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from marius_oac.runtime.machine import sysfs

_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}  # others' display adapters are the board's own
_GPU_CLASSES = (0x03, 0x12)  # PCI base classes: display controller, processing accelerator
_SECTOR = 512  # bytes; sysfs counts in these whatever the disk's own sectors are


@dataclass(frozen=True)
class Disk:
    """A block device that is hardware, or the virtual machine's: no loop, RAM, LVM or RAID device.

    Attributes:
        name: as under /dev, such as nvme0n1.
        kind: nvme, virtio, SATA, SCSI, USB, MMC or another.
        spins: whether it is a rotating disk, as far as the kernel knows.
        address: PCI address of its device; None if it has none.
        node: its NUMA node; None if unknown.
    """

    name: str
    kind: str
    model: str
    num_bytes: int
    spins: bool
    address: str | None
    node: int | None


@dataclass(frozen=True)
class Gpu:
    """A GPU by its PCI address; `name` is the vendor and the device's number where nothing better is known."""

    address: str
    vendor: str
    name: str
    node: int | None

    @property
    def computes(self) -> bool:
        """Whether a run can train on it, unlike on the processor's own display adapter."""
        return self.vendor in ("NVIDIA", "AMD")


@dataclass(frozen=True)
class Nic:
    """A network card's port; `megabits` per second, None where it is down or unknown; `rdma`: its verbs device."""

    name: str
    up: bool
    megabits: int | None
    rdma: str
    address: str | None
    node: int | None


def read_disks(root: Path, node_cpus: dict[int, tuple[int, ...]]) -> tuple[Disk, ...]:
    """All disks, by name in natural order."""
    disks = [
        disk_at(folder, node_cpus)
        for folder in (sysfs.real(entry) for entry in sysfs.entries(root / "block"))
        if folder is not None and is_hardware(folder)
    ]
    return tuple(sorted((disk for disk in disks if disk.num_bytes), key=lambda disk: natural(disk.name)))


def natural(name: str) -> tuple[object, ...]:
    """Sorts nvme10n1 behind nvme2n1."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def disk_at(folder: Path, node_cpus: dict[int, tuple[int, ...]]) -> Disk:
    """The disk whose real folder in the tree this is."""
    controller = _controller(folder)
    return Disk(
        name=folder.name,
        kind=_kind(folder.name, controller),
        model=" ".join((sysfs.text(folder / "device/model") or "").split()),
        num_bytes=(sysfs.number(folder / "size") or 0) * _SECTOR,
        spins=sysfs.number(folder / "queue/rotational") == 1 and not folder.name.startswith("vd"),  # virtio can't tell
        address=sysfs.pci_address(controller),
        node=sysfs.device_node(controller, node_cpus),
    )


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


def _kind(name: str, controller: Path) -> str:
    parts = controller.parts
    if name.startswith("nvme"):
        return "NVMe"
    if name.startswith("vd"):
        return "virtio"
    for prefix, kind in (("usb", "USB"), ("ata", "SATA"), ("virtio", "virtio"), ("mmc", "MMC"), ("host", "SCSI")):
        if any(re.fullmatch(prefix + r"[\d:]+", part) for part in parts):
            return kind
    return "disk"


def read_gpus(root: Path, node_cpus: dict[int, tuple[int, ...]], names: Mapping[str, str]) -> tuple[Gpu, ...]:
    """All GPUs of NVIDIA, AMD and Intel, in PCI order."""
    gpus = []
    for entry in sysfs.entries(root / "bus/pci/devices"):
        number, vendor = sysfs.number(entry / "class"), _VENDORS.get(sysfs.number(entry / "vendor") or 0)
        folder = sysfs.real(entry)
        if number is None or number >> 16 not in _GPU_CLASSES or vendor is None or folder is None:
            continue
        model = (sysfs.text(entry / "device") or "").removeprefix("0x")
        name = names.get(entry.name) or f"{vendor} {model}".strip()
        gpus.append(Gpu(entry.name, vendor, name, sysfs.device_node(folder, node_cpus)))
    return tuple(gpus)


def gpu_names() -> dict[str, str]:
    """PCI address -> name of each GPU that nvidia-smi knows; nothing where there is no such command."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    query = [command, "--query-gpu=pci.bus_id,name", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = (line.split(", ", 1) for line in said.splitlines() if ", " in line)
    return {_short(address): name.strip() for address, name in rows}


def _short(address: str) -> str:
    """nvidia-smi writes eight digits of the PCI domain, sysfs as many as it takes, but at least four."""
    domain, _, rest = address.strip().lower().partition(":")
    return f"{domain[:-4].lstrip('0')}{domain[-4:]}:{rest}"


def read_nics(root: Path, node_cpus: dict[int, tuple[int, ...]]) -> tuple[Nic, ...]:
    """All network ports that are hardware, or the virtual machine's, by name in natural order."""
    nics = []
    for entry in sorted(sysfs.entries(root / "class/net"), key=lambda entry: natural(entry.name)):
        folder = sysfs.real(entry)
        if folder is None or _is_virtual(folder):
            continue
        speed = sysfs.number(folder / "speed")
        verbs = sysfs.entries(folder / "device/infiniband")
        nics.append(
            Nic(
                name=folder.name,
                up=sysfs.text(folder / "operstate") == "up",
                megabits=speed if speed is not None and speed > 0 else None,
                rdma=verbs[0].name if verbs else "",
                address=sysfs.pci_address(folder),
                node=sysfs.device_node(folder, node_cpus),
            )
        )
    return tuple(nics)
