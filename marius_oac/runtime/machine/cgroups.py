"""The memory that this process may still allocate within the limits of its control groups (as in containers)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

MEMBERSHIP, MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # version 1 says "no limit" with a number near 2**63
_RECLAIMABLE = ("inactive_file", "active_file")  # cached files, which the kernel drops before it refuses


def free_memory() -> int:
    """Bytes that this process may still take: what the machine has available, within the limits of its groups."""
    left = [psutil.virtual_memory().available, headroom()]
    return min(one for one in left if one is not None)


def headroom(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> int | None:
    """Bytes that may still be allocated under the tightest limit of the process's groups and their parents; None
    without a limit.

    Reads version 2 (`memory.max`) and version 1 (`memory.limit_in_bytes`) of Linux control groups.
    """
    left = []
    for group, second in _groups(membership, mount):
        names = ("max", "current") if second else ("limit_in_bytes", "usage_in_bytes")
        with suppress(OSError, ValueError):  # no such group here, or one without this controller
            limit, usage = ((group / f"memory.{name}").read_text().strip() for name in names)
            if limit != "max" and int(limit) < _UNLIMITED:
                stat, prefix = _numbers(group / "memory.stat"), "" if second else "total_"
                cached = sum(stat.get(prefix + name, 0) for name in _RECLAIMABLE)
                left.append(max(0, int(limit) - int(usage) + cached))
    return min(left, default=None)


def memory_kills(membership: Path = MEMBERSHIP, mount: Path = MOUNT) -> int:
    """How many processes of its groups the kernel has killed so far because their memory was used up; 0 where that is
    not told."""
    found = [0]
    for group, second in _groups(membership, mount):
        with suppress(OSError, ValueError):
            found.append(_numbers(group / ("memory.events" if second else "memory.oom_control")).get("oom_kill", 0))
    return max(found)


def _numbers(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number in lines}


def _groups(membership: Path, mount: Path) -> Iterator[tuple[Path, bool]]:
    """The folders of the process's groups and of their parents, and whether they are of version 2. In a container a
    group's own folder may not be visible."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, group = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        root = mount if number == "0" else mount / "memory"
        folder = root / group.strip("/")
        for place in (folder, *folder.parents):
            yield place, number == "0"
            if place == root:
                break
