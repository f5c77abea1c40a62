"""Known click logs: their files, columns, licences, and what others reach on them; see `known.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from marius_oac.data.reading.registry import describe
from marius_oac.errors import InputError

WHOLE = "all"
"""The split of a log that has none."""


@dataclass(frozen=True, kw_only=True)
class KnownLog:
    """One click log of the registry, `known.yaml`, which documents the fields."""

    name: str
    about: str
    licence: str
    address: str
    files: Mapping[str, tuple[str, ...]]
    published: str
    config: Mapping[str, Mapping[str, Any]]
    aliases: tuple[str, ...] = ()

    def locate(self, folder: Path) -> dict[str, list[Path]]:
        """The log's files in a folder, by split.

        Raises:
            InputError: the folder or a file is missing.
        """
        if not folder.is_dir():
            what = "is no folder" if folder.exists() else "no such folder"
            raise InputError(f"{what}; {self._wanted()}", folder)
        found: dict[str, list[Path]] = {}
        for split, names in self.files.items():
            found[split] = [path for name in names if (path := _first(folder, name))]
            missing = [name for name in names if not _first(folder, name)]
            if missing:
                raise InputError(f"{missing[0]} is missing, or {missing[0]}.gz; {self._wanted()}", folder)
        return found

    def _wanted(self) -> str:
        names = [name for names in self.files.values() for name in names]
        listed = ", ".join(names if len(names) < 5 else [*names[:2], "...", names[-1]])
        return f"{self.name} is {listed} from {self.address}"


def _first(folder: Path, name: str) -> Path | None:
    return next((folder / each for each in (name, f"{name}.gz") if (folder / each).is_file()), None)


KNOWN_LOGS = TypeAdapter(tuple[KnownLog, ...]).validate_python(
    yaml.safe_load((Path(__file__).parent / "known.yaml").read_text("utf-8"))
)


def find_log(name: str) -> KnownLog | None:
    """The click log of this name or alias, ignoring case; None: there is none."""
    return next((one for one in KNOWN_LOGS if name.lower() in (one.name, *one.aliases)), None)


def describe_datasets() -> str:
    """All data sets that are known by name: a table of graphs, and a paragraph for each click log with its names, what
    it is, its licence, its address and published results."""
    logs = [
        f"{' '.join((one.name, *(f'({alias})' for alias in one.aliases)))}\n  {one.about}\n  licence: {one.licence}\n"
        f"  {one.address}\n  published AUC: {one.published}"
        for one in KNOWN_LOGS
    ]
    graphs = f"Graphs: marius-oac prepare NAME\n\n{describe()}"
    return "\n".join([graphs, "", "Click logs: marius-oac init NAME FOLDER", "", *logs])
