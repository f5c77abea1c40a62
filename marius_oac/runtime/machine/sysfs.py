"""Reads small files of Linux's sysfs. A value that is missing or invalid is None: containers and VMs hide many."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

SYSFS = Path("/sys")

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_CPUS = 1 << 16  # no kernel is built for more (CONFIG_NR_CPUS); a broken range must not fill the memory


def text(path: Path) -> str | None:
    """The file's text without blanks around it; None: missing, unreadable, or not text."""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):  # also EINVAL, as of the speed of a network card that is down
        return None


def number(path: Path) -> int | None:
    """The file's integer, decimal or 0x...; None where there is none."""
    try:
        return int(text(path) or "", 0)
    except ValueError:
        return None


def numbers(path: Path) -> tuple[int, ...] | None:
    """The file's list of CPUs or nodes."""
    found = text(path)
    if found is None:
        return None
    try:
        return parse_list(found)
    except ValueError:
        return None


def mask(path: Path) -> tuple[int, ...] | None:
    """The file's CPUs as a mask, such as `cpumap`: hexadecimal words of 32 bits, the highest first."""
    try:
        bits = int((text(path) or "").replace(",", ""), 16)
    except ValueError:
        return None
    return tuple(cpu for cpu in range(min(bits.bit_length(), _MOST_CPUS)) if bits >> cpu & 1)


def parse_list(listed: str) -> tuple[int, ...]:
    """The kernel's list format, as of `cpulist`: "0-2,8" is (0, 1, 2, 8), ascending; "" is ().

    Raises:
        ValueError: anything else.
    """
    found: set[int] = set()
    for part in listed.strip().split(",") if listed.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < _MOST_CPUS:
            raise ValueError(f"{listed!r} is no list of numbers such as 0-3,8")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def format_list(cpus: Iterable[int]) -> str:
    """(0, 1, 2, 8) is "0-2,8": the inverse of `parse_list`."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def entries(folder: Path) -> list[Path]:
    """What is in a folder, by name; nothing where it is missing."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def real(path: Path) -> Path | None:
    """Where a link of the tree leads; None: nowhere."""
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):  # a loop of links is a RuntimeError before Python 3.13
        return None


def device_node(device: Path, node_cpus: dict[int, tuple[int, ...]]) -> int | None:
    """The NUMA node that a device (a real folder) sits on; None: the kernel doesn't know.

    Firmware often leaves a device at -1 and names the node of a bridge above it, or gives it a node's CPUs only.
    """
    if len(node_cpus) == 1:
        return next(iter(node_cpus))
    above = [folder for folder in (device, *device.parents) if folder.name and folder.name != "devices"]
    for folder in above:
        node = number(folder / "numa_node")
        if node in node_cpus:
            return node
    for folder in above:
        near = set(numbers(folder / "local_cpulist") or ())
        on = [node for node, cpus in node_cpus.items() if near & set(cpus)]
        if len(on) == 1:
            return on[0]
    return None
