"""Keys and commands that were renamed: the old names work for one version, and each is reported once.

Imports neither torch nor numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from marius_oac.errors import ConfigError
from marius_oac.runtime.console import logger

Path = tuple[str, ...]

CONFIG_KEYS: Mapping[Path, Path] = {
    ("nodes", "modes"): ("nodes", "mode_options"),
    ("nodes", "dense", "gap"): ("nodes", "dense", "sync_every"),
}
CLUSTER_KEYS: Mapping[Path, Path] = {("guests",): ("elastic_workers",)}
COMMANDS = {"join": "attach"}
"""Old names and new ones, of version 0.1 and 0.2."""

_told: set[str] = set()


def tell(old: str, new: str, where: str = "") -> None:
    """Says once that `old` is called `new` now."""
    line = f"{where}{': ' if where else ''}'{old}' is now called '{new}'; the next version knows that name alone"
    if line not in _told:
        _told.add(line)
        logger.warning(line)


def with_new_names(
    tree: Mapping[str, Any], names: Mapping[Path, Path], where: Callable[[Path], str] | None = None
) -> dict[str, Any]:
    """A copy of plain values in which every key has its new name.

    Args:
        names: old and new paths of keys; both have the same parents.
        where: gives the place of a key, for the note about it; None writes no notes.

    Raises:
        ConfigError: a key is given by both of its names.
    """
    tree = dict(tree)
    for old, new in names.items():
        *parents, last = old
        path: list[Any] = []
        here: Any = tree
        for part in parents:
            path.append(here)
            here = here.get(part) if isinstance(here, Mapping) else None
        if not isinstance(here, Mapping) or last not in here:
            continue
        if new[-1] in here:
            message = f"'{last}' is the old name of '{new[-1]}', and both are given; leave the old one out"
            raise ConfigError(message, where(old) if where else "")
        if where:
            tell(".".join(old), ".".join(new), where(old))
        changed = {new[-1] if key == last else key: value for key, value in here.items()}
        for above, part in zip(reversed(path), reversed(parents), strict=True):
            changed = {**above, part: changed}
        tree = changed
    return tree


def lines_by_new_names(lines: Mapping[tuple[Any, ...], int], names: Mapping[Path, Path]) -> dict[tuple[Any, ...], int]:
    """The lines of keys, by paths with new names."""

    def renamed(path: tuple[Any, ...]) -> tuple[Any, ...]:
        found = [(old, new) for old, new in names.items() if path[: len(old)] == old]
        return found[0][1] + path[len(found[0][0]) :] if found else path

    return {renamed(path): line for path, line in lines.items()}
