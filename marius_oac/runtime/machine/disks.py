"""Which disks lie under a folder: from its file system's device through partitions, LVM, RAID and btrfs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from marius_oac.runtime.machine import sysfs
from marius_oac.runtime.machine.devices import is_hardware, natural
from marius_oac.runtime.machine.sysfs import SYSFS

_MOUNTS = Path("/proc/self/mountinfo")


def disks_under(path: str | Path, root: Path = SYSFS, mounts: Path = _MOUNTS) -> tuple[str, ...]:
    """Names of the disks under `path`, or under the folder in which it would be made, in natural order; none where that
    is unknown or there are none.

    Args:
        root: a tree of the layout of /sys.
        mounts: the mounted file systems, in the format of /proc/self/mountinfo.
    """
    number = _device(Path(path).absolute())
    folders = [sysfs.real(root / f"dev/block/{os.major(number)}:{os.minor(number)}")]
    source = _source(mounts, number)
    if folders == [None] and source.startswith("/dev/"):  # btrfs and some others number their file systems themselves
        folders = _of_btrfs(root, sysfs.real(root / "class/block" / _device_name(Path(source))))
    return _disks(folders)


def _device(path: Path) -> int:
    try:  # not `path.exists()`, which is False for any error from Python 3.14 on
        return path.stat().st_dev
    except (FileNotFoundError, NotADirectoryError):
        return _device(path.parent)


def _device_name(path: Path) -> str:
    """/dev/mapper/x is a link to /dev/dm-0."""
    return path.resolve().name if path.is_block_device() else path.name


def _source(mounts: Path, number: int) -> str:
    """The source of the file system with this device number; "" if it is unknown."""
    wanted = f"{os.major(number)}:{os.minor(number)}"
    for line in (sysfs.text(mounts) or "").splitlines():
        mounted, _, source = line.partition(" - ")
        if mounted.split()[2:3] == [wanted]:
            _, device, *_ = [*source.split(" "), "", ""]
            return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), device)
    return ""


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
