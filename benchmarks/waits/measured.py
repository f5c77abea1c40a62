"""What a wait is measured by: our way, a plain one, and the physical limit, in turns."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

AT_ONCE = 4 << 20
Way = Callable[[Path], object]
"""Gets a path that does not exist, for what it writes."""


@dataclass(frozen=True)
class Wait:
    """One row of the table.

    Attributes:
        name: what a user waits for.
        ours, plain, limit: the ways; `plain` None: there is no other one.
        limited_by: what the limit does.
        size: how much is done, in `unit`, for the column of our speed.
    """

    name: str
    ours: Way
    limit: Way
    limited_by: str
    size: float
    unit: str
    plain: Way | None = None
    plain_way: str = "none"


def measure(waits: Sequence[Wait], rounds: int, scratch: Path) -> list[str]:
    """Runs all ways in turns, one round that does not count first; returns a line of the table for each wait."""
    lines = []
    for wait in waits:
        ways = {"ours": wait.ours, "limit": wait.limit} | ({"plain": wait.plain} if wait.plain else {})
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name, way in ways.items():
                taken = _timed(way, scratch / name)
                if number or rounds == 1:
                    seconds[name].append(taken)
        middle = {name: statistics.median(taken) for name, taken in seconds.items()}
        plain = f"{middle['plain']:.2f} s, {wait.plain_way}" if wait.plain else "none"
        faster = f"{middle['plain'] / middle['ours']:.2f}" if wait.plain else ""
        lines.append(
            f"| {wait.name} | {middle['ours']:.2f} s | {wait.size / middle['ours']:,.2f} {wait.unit}/s | {plain} | "
            f"{faster} | {middle['limit']:.2f} s, {wait.limited_by} | {middle['limit'] / middle['ours']:.2f} |"
        )
        print(lines[-1], flush=True)
    return lines


def _timed(way: Way, path: Path) -> float:
    os.sync()
    begin = time.perf_counter()
    way(path)
    taken = time.perf_counter() - begin
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return taken


def write_bytes(size: int) -> Way:
    """Writes so many bytes that lie in memory one after the other, and flushes them to the disk."""
    content = np.random.default_rng(0).integers(0, 256, AT_ONCE, np.uint8)

    def write(path: Path) -> None:
        with open(path, "wb") as file:
            for first in range(0, size, AT_ONCE):
                file.write(content[: min(AT_ONCE, size - first)])
            file.flush()
            os.fsync(file.fileno())

    return write


def read_files(paths: Sequence[Path]) -> Way:
    """Reads files, which the page cache holds, into one block of memory."""
    into = bytearray(AT_ONCE)

    def read(_: Path) -> None:
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(into):
                    pass

    return read


def files_in(folder: Path) -> list[Path]:
    """All files in a folder and below."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(paths: Sequence[Path]) -> int:
    """Their bytes."""
    return sum(path.stat().st_size for path in paths)
