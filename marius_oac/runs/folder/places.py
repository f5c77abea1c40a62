"""Finds the files that a run's configuration names, from any folder and after the run was moved with them.

A path that is not absolute means the folder that the run was trained in, which `run.json` has (`base`), and not that in
which a later command is called. A file that is not at its place is looked for at its old place relative to the run's
folder, if that was moved, or below a folder that the user names. Whether it is the file that was trained on is checked
by its fingerprint when it is opened.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from marius_oac.config.named_files import FILE, GRAPH, named, with_named
from marius_oac.config.task import TaskConfig
from marius_oac.data.logs.run_log import RunLog
from marius_oac.data.reading.registry import is_known
from marius_oac.errors import InputError
from marius_oac.models.compute.user_code import with_own_files
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runtime.console import logger


class RunPlaces:
    """Finds the files of a run for a command.

    Args:
        folder: of the run.
        data: `--data-path`: the graph's folder, or one that holds the files of the log; None: not given.

    Raises:
        InputError: `data` is no folder.
    """

    def __init__(self, folder: RunFolder, data: str | Path | None = None):
        self._config, self._here = folder.config, os.path.abspath(folder.path)
        self._before, self._base = folder.about.path, folder.about.base
        self._below = None if data is None else self.absolute(str(data))
        graph = any(named(folder.config, GRAPH))
        if self._below and not os.path.isdir(self._below) and not (graph and is_known(str(data))):
            raise InputError("is no folder", f"--data-path {data}")

    def config(self) -> TaskConfig:
        """The run's configuration with the present paths of its files; warns about files that were moved."""

        def place(path: str) -> str:
            found = self.find(path)
            if not self._below and found not in (path, self._full(path)):
                logger.warning(f"{self._full(path)} is not there; the run was moved, and beside it is {found}")
            return found

        def graph(path: str) -> str:
            named = is_known(path) and not os.path.isdir(self._full(path))
            return self._below or (path if named else place(path))

        return with_paths(self._config, place, graph)

    def log(self, log: RunLog) -> RunLog:
        """The run's log with the present paths of its files."""
        return replace(log, files=tuple(replace(file, path=Path(self.find(str(file.path)))) for file in log.files))

    def changed(self, config: TaskConfig) -> TaskConfig:
        """`config`, which the command line may have changed, with absolute paths if the command was called from another
        folder than the run was trained in."""
        return config if self._at_home else with_paths(config, self.absolute, self.absolute)

    def given(self, paths: Sequence[str]) -> Sequence[str]:
        """Paths from the command line, made absolute in the same case."""
        return paths if self._at_home else [*map(self.absolute, paths)]

    def find(self, path: str) -> str:
        """The present path of a file, folder or pattern of files."""
        below = self._tail_below(path)
        if below:
            return below
        full = self._full(path)
        if not _is_there(full):
            moved = os.path.normpath(os.path.join(self._here, os.path.relpath(full, self._before)))
            if _is_there(moved):
                return moved
        return path if self._at_home else full

    def absolute(self, path: str) -> str:
        """An absolute path, or the name of a data set as it is."""
        return path if is_known(path) and not os.path.isdir(path) else os.path.abspath(path)

    @property
    def _at_home(self) -> bool:
        """Whether the command is called where the run was trained."""
        return self._base == os.getcwd()

    def _full(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._base, path))

    def _tail_below(self, path: str) -> str | None:
        """The longest end of a path that is there below the folder that the user has named."""
        if not self._below:
            return None
        parts = Path(self._full(path)).parts[1:]
        ends = (os.path.join(self._below, *parts[first:]) for first in range(len(parts)))
        return next(filter(_is_there, ends), None)


def with_paths(config: TaskConfig, place: Callable[[str], str], graph: Callable[[str], str]) -> TaskConfig:
    """A configuration whose files lie elsewhere: at `place(path)`, and its graph at `graph(path)`. Folders of rows on
    disk are not looked for: page files know whose they are."""
    config = with_own_files(config, lambda path: Path(place(str(path))))
    return with_named(config, {FILE: place, GRAPH: graph})


def _is_there(path: str) -> bool:
    """Whether a path exists, or any file of a pattern."""
    return os.path.exists(path) or (glob.has_magic(path) and next(glob.iglob(path, recursive=True), None) is not None)
