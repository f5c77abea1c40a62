"""Which room of the package imports which: `python -m tests.layers [FOLDER ...]` prints floors, arrows and circles.

A room is a folder or a module of the package's root; with FOLDER, a module or folder in it. An arrow is an import, in
functions too. A room stands one floor above the highest that it imports; rooms that import each other, by whatever way,
are a circle and stand on one floor. `LAYERS` is the order that the root keeps; an arrow against it points upwards.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "marius_oac"

LAYERS = (
    ("errors", "types"),
    ("batches",),
    ("runtime",),
    ("kernels", "config"),
    ("storage", "models"),
    ("data", "pipeline"),
    ("evaluation",),
    ("runs",),
    ("tasks",),
    ("training",),
    ("nodes", "prepare"),
    ("insight", "torch"),
    ("cli", "dgl", "testing"),
    ("__init__", "__main__"),
)
"""Rooms of the root. Each imports those of the lines above its own alone; users import from the last two."""

WINGS = ("nodes", "torch", "insight", "prepare")
"""Rooms that the core below them does not import, nor they each other; `torch.processes` may use `nodes`."""

Arrows = Mapping[str, set[str]]


@functools.cache
def syntax(path: Path) -> ast.Module:
    """Of a file that does not change."""
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def imported(path: Path) -> Sequence[str]:
    """Modules of the package that a file imports, in functions too, as paths: `storage.contract`."""
    found = []
    for node in ast.walk(syntax(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top, _, inside = name.partition(".")
            if top == PACKAGE.name and inside:
                found.append(inside)
    return found


def arrows(folder: str = "") -> dict[str, set[str]]:
    """What each room of `folder` ("" is the root) imports of its other rooms."""
    prefix = f"{folder}." if folder else ""
    rooms = {path.stem for path in (PACKAGE / folder.replace(".", "/")).iterdir()
             if path.suffix == ".py" or (path / "__init__.py").exists()}  # fmt: skip
    found = defaultdict(set)
    for path in sorted((PACKAGE / folder.replace(".", "/")).rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        room = module.removeprefix(prefix).split(".")[0]
        if not module.startswith(prefix) or room not in rooms:
            continue
        targets = (name.removeprefix(prefix).split(".")[0] for name in imported(path) if name.startswith(prefix))
        found[room] |= {target for target in targets if target in rooms and target != room}
    return dict(found)


def reachable(room: str, given: Arrows) -> set[str]:
    seen, waiting = set(), [room]
    while waiting:
        for target in given[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def circles(given: Arrows) -> list[set[str]]:
    """Rooms that import each other."""
    below = {room: reachable(room, given) for room in given}
    found = {frozenset(other for other in below[room] if room in below[other]) for room in given if room in below[room]}
    return sorted(map(set, found), key=sorted)


def floors(given: Arrows) -> dict[str, int]:
    below = {room: reachable(room, given) for room in given}

    def floor(room: str) -> int:
        circle = {other for other in below[room] if room in below[other]} | {room}
        under = set().union(*(given[each] for each in circle)) - circle
        return max((floor(each) + 1 for each in under), default=0)

    floor = functools.cache(floor)
    return {room: floor(room) for room in given}


def upwards(given: Arrows) -> list[tuple[str, str]]:
    """The arrows of the root that point upwards, or along a line."""
    line = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    return sorted((room, other) for room, others in given.items() for other in others if line[other] >= line[room])


def folders() -> list[str]:
    """Every folder of the package, the root first."""
    inside = sorted(path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py"))
    return ["" if folder == Path() else ".".join(folder.parts) for folder in inside]


def told(folder: str) -> str:
    given = arrows(folder)
    level, loops = floors(given), circles(given)
    count = sum(map(len, given.values()))
    lines = [f"{folder or PACKAGE.name}: {len(given)} rooms on {max(level.values()) + 1} floors, {count} arrows"
             + (f", {len(upwards(given))} upwards" if not folder else "") + f", {len(loops)} circles"]  # fmt: skip
    lines += [f"  circle: {', '.join(sorted(loop))}" for loop in loops]
    for floor in range(max(level.values()), -1, -1):
        lines.append(f"  {floor:2}  {', '.join(sorted(room for room in given if level[room] == floor))}")
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n".join(told(folder) for folder in ["", *sys.argv[1:]]))
    print(f"all {len(folders())} folders: {sum(len(circles(arrows(folder))) for folder in folders())} circles")
