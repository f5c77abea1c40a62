"""Which parts of checkpoints lie in a folder: of one process in the folder itself, of several one folder for each.

    FOLDER/SEQUENCE                            a checkpoint of one process
    FOLDER/process-RANK-of-SIZE/SEQUENCE       the part of one of several

A loop of another number of processes than the one that has written a folder's checkpoints goes on with the newest of
all. It writes parts of its own, and removes those of others when there are enough of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.torch.sharing import Share

_PART = re.compile(r"process-(0|[1-9][0-9]{0,5})-of-([1-9][0-9]{0,5})")

Layouts = Mapping[int, Mapping[int, list[str]]]
"""Names of checkpoints, oldest first, by the number of processes and by rank; of the parts whose folders are there."""


def part_at(folder: Path, rank: int = 0, size: int = 1) -> Checkpoints:
    """A process's part of checkpoints."""
    where = part_of(folder, rank, size)
    return Checkpoints(where, "to go on from {}, remove its folder", part=where.name if size > 1 else "")


def part_of(folder: Path, rank: int, size: int) -> Path:
    """The folder with a process's part of checkpoints."""
    return folder / f"process-{rank}-of-{size}" if size > 1 else folder


def layouts(folder: Path) -> Layouts:
    """What is there. A part may have none that is complete."""
    found: dict[int, dict[int, list[str]]] = {}
    if names := Checkpoints(folder).names():
        found[1] = {0: names}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        part = _PART.fullmatch(path.name)
        if part and int(part[1]) < int(part[2]) > 1 and path.is_dir():
            with suppress(FileNotFoundError):  # another process removes it
                found.setdefault(int(part[2]), {})[int(part[1])] = Checkpoints(path).names()
    return found


def newest(there: Layouts) -> int:
    """The number of the newest checkpoint of all, complete or not; -1: there is none."""
    return max((int(name) for parts in there.values() for names in parts.values() for name in names), default=-1)


def others(folder: Path, share: Share) -> list[Path]:
    """Folders with parts of other numbers of processes."""
    return [
        part_of(folder, rank, size)
        for size, parts in layouts(folder).items()
        if size != share.size
        for rank in parts
    ]  # fmt: skip


def drop_others(folder: Path, share: Share, keep: int) -> None:
    """Removes parts of other numbers of processes, if this process has `keep` of its own. Each process removes some of
    them, also where they share no folder."""
    there = layouts(folder)
    if len(there.get(share.size, {}).get(share.rank, [])) < keep:
        return
    for size, parts in there.items():
        for rank in parts if size != share.size else ():
            if rank % share.size == share.rank:
                path = part_of(folder, rank, size)
                Checkpoints(path).remove_all()
                if size > 1:
                    with suppress(OSError):  # something else is in it, or it is being read
                        path.rmdir()
