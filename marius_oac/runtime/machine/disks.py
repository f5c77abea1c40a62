"""Which disks lie under a folder: from its file system's device through partitions, LVM, RAID and btrfs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from marius_oac.runtime.machine import sysfs
from marius_oac.runtime.machine.devices import is_hardware, natural
from marius_oac.runtime.machine.sysfs import SYSFS

_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Place:
    """A folder, or a block device by its /dev name, and the disks under it.

    Attributes:
        path: the path as given.
        device: block device that the file system is on, such as nvme0n1p1 or md0; "" if there is none.
        file_system: type of the file system, such as ext4, overlay, nfs; "" if unknown.
        disks: names of the disks under it, in natural order; none where that is unknown or there are none.
    """

    path: str
    device: str
    file_system: str
    disks: tuple[str, ...]


def place(path: str | Path, root: Path = SYSFS, mounts: Path = _MOUNTS) -> Place:
    """The disks under `path`, or under the folder in which it would be made.

    Args:
        path: a file or folder; or /dev/NAME, which is looked up by its name in the tree, also of another machine.
        root: a tree of the layout of /sys.
        mounts: the mounted file systems, in the format of /proc/self/mountinfo.
    """
    path = Path(path)
    if path.is_relative_to("/dev") and (root != SYSFS or path.is_block_device()):
        folder = sysfs.real(root / "class/block" / _device_name(path))
        return Place(str(path), folder.name if folder else "", "", _disks([folder]))
    number = _device(path.absolute())
    file_system, source = _mount(mounts, number)
    folders = [sysfs.real(root / f"dev/block/{os.major(number)}:{os.minor(number)}")]
    if folders == [None] and source.startswith("/dev/"):  # btrfs and some others number their file systems themselves
        folders = _of_btrfs(root, sysfs.real(root / "class/block" / _device_name(Path(source))))
    name = folders[0].name if folders[0] is not None else ""
    return Place(str(path), name, file_system, _disks(folders))


def _device(path: Path) -> int:
    try:  # not `path.exists()`, which is False for any error from Python 3.14 on
        return path.stat().st_dev
    except (FileNotFoundError, NotADirectoryError):
        return _device(path.parent)


def _device_name(path: Path) -> str:
    """/dev/mapper/x is a link to /dev/dm-0; of another machine's there is only the name to go by."""
    return path.resolve().name if path.is_block_device() else path.name


def _mount(mounts: Path, number: int) -> tuple[str, str]:
    """Type and source of the file system with this device number."""
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in (sysfs.text(mounts) or "").splitlines():
        mounted, _, source = line.partition(" - ")
        if mounted.split()[2:3] == [wanted]:
            kind, device, *_ = [*source.split(" "), "", ""]
            return kind, re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), device)
    return "", ""


def _of_btrfs(root: Path, source: Path | None) -> list[Path | None]:
    """All devices of the btrfs file system that this one belongs to."""
    for file_system in sysfs.entries(root / "fs/btrfs"):
        devices = [sysfs.real(entry) for entry in sysfs.entries(file_system / "devices")]
        if source is not None and source in devices:
            return devices
    return [source]


def _disks(folders: Iterable[Path | None]) -> tuple[str, ...]:
    found: set[str] = set()
    waiting = [folder for folder in folders if folder is not None]
    while waiting:
        folder = waiting.pop()
        if (folder / "partition").exists():
            folder = folder.parent
        below = [sysfs.real(entry) for entry in sysfs.entries(folder / "slaves")]
        if below:
            waiting += [one for one in below if one is not None]
        elif is_hardware(folder):
            found.add(folder.name)
    return tuple(sorted(found, key=natural))
