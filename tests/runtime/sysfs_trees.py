"""Trees of sysfs in one file each, `machines/NAME.json`: {"made": how, "files": path -> text, "links": path -> target}.

`build` writes such a tree into a folder; `record` makes the file from a real one:
`python -m tests.runtime.sysfs_trees NAME 'which machine this is'`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from marius_oac.runtime.machine.sysfs import parse_list, text

FOLDER = Path(__file__).parent / "machines"
MACHINES = ("two_sockets", "four_sockets", "desktop", "virtual_machine")

_READ = (
    "devices/system/cpu/*", "devices/system/cpu/cpu*/topology/*",
    "devices/system/node/*", "devices/system/node/node*/*",
    "bus/pci/devices/*", "block/*", "class/block/*", "class/net/*", "dev/block/*",
)  # fmt: skip
_OF_DEVICES = (
    "class", "vendor", "device", "numa_node", "local_cpulist", "dev", "hidden", "partition",
    "operstate", "speed", "slaves/*",
)  # fmt: skip
_LEFT_OUT = re.compile(r"memory\d+|uevent|numastat|vmstat|hugepages|.*_cpus|.*siblings|shared_cpu_map|cpu_capacity")


def load(name: str | Path) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def build(name: str | Path, root: Path) -> Path:
    """Writes the machine's tree into the new folder `root`; returns it."""
    tree = load(name)
    for path, content in tree["files"].items():
        for one in _each(path):
            (root / one).parent.mkdir(parents=True, exist_ok=True)
            (root / one).write_text(content + "\n", "utf-8")
    for path, target in tree["links"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return root


def _each(path: str) -> Iterator[str]:
    """cpu{0,64}/x -> cpu0/x, cpu64/x"""
    parts = re.split(r"\{([\d,-]+)\}", path)
    for numbers in itertools.product(*(parse_list(part) for part in parts[1::2])):
        yield "".join(itertools.chain.from_iterable(itertools.zip_longest(parts[::2], map(str, numbers), fillvalue="")))


def record(root: Path, made: str) -> dict:
    """What the reader looks at in a real tree, and a little more."""
    files: dict[str, str] = {}
    links: dict[str, str] = {}

    def take(path: Path) -> None:
        name = str(path.relative_to(root))
        if path.is_symlink():
            links[name] = os.readlink(path)
            for folder in _up(path.resolve(), root):
                for found in itertools.chain.from_iterable(folder.glob(pattern) for pattern in _OF_DEVICES):
                    keep(found)
        else:
            keep(path)

    def keep(path: Path) -> None:
        name = str(path.parent.resolve().relative_to(root) / path.name)
        if path.is_symlink():
            links[name] = os.readlink(path)
        elif path.is_file() and (content := text(path)) is not None:
            files[name] = content

    for pattern in _READ:
        for path in root.glob(pattern):
            if not _LEFT_OUT.fullmatch(path.name):
                take(path)
    return {"made": made, "links": dict(sorted(links.items())), "files": dict(sorted(files.items()))}


def _up(folder: Path, root: Path) -> Iterator[Path]:
    while folder not in (root, root / "devices") and folder.is_relative_to(root):
        yield folder
        folder = folder.parent


if __name__ == "__main__":
    recorded = record(Path("/sys"), sys.argv[2])
    (FOLDER / f"{sys.argv[1]}.json").write_text(json.dumps(recorded, indent=0) + "\n", "utf-8")
