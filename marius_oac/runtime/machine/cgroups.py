"""The memory that this process may still allocate within the limits of its control groups (as in containers)."""

from __future__ import annotations

from pathlib import Path

import psutil

_UNLIMITED = 1 << 60  # version 1 says "no limit" with a number near 2**63
_RECLAIMABLE = ("inactive_file", "active_file")  # cached files, which the kernel drops before it refuses


def free_memory() -> int:
    """Bytes that this process may still take: what the machine has available, within the limits of its groups."""
    left = [psutil.virtual_memory().available, headroom()]
    return min(one for one in left if one is not None)


def headroom(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that may still be allocated under the tightest limit of the process's groups and their parents; None
    without a limit.

    Reads version 2 (`memory.max`) and version 1 (`memory.limit_in_bytes`) of Linux control groups.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    left = []
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number == "0":
            left += _left(mount, group, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            left += _left(mount / "memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    return min(left, default=None)


def _left(root: Path, group: str, limit_file: str, usage_file: str, prefix: str) -> list[int]:
    """Bytes left by the group and each of its parents. In a container the group's own folder may not be visible."""
    folder = root / group.strip("/")
    found = []
    for place in (folder, *folder.parents):
        try:
            limit = (place / limit_file).read_text().strip()
            if limit != "max" and int(limit) < _UNLIMITED:
                stat = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
                cached = sum(int(stat.get(prefix + name, 0)) for name in _RECLAIMABLE)
                found.append(max(0, int(limit) - int((place / usage_file).read_text()) + cached))
        except (OSError, ValueError):
            pass  # no such group here, or one without this controller
        if place == root:
            break
    return found
