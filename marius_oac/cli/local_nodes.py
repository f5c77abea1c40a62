"""What `--local-nodes` does before it starts processes, which need seconds to find out what is missing: it looks
whether the files and folders that the command names are there, and says what it then waits for. Loads neither torch nor
numba."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marius_oac.config.named_files import FILE, GRAPH, named
from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.resuming import check_new_run, started_with

if TYPE_CHECKING:
    from marius_oac.config.task import TaskConfig
    from marius_oac.nodes.launch.launch import Request


def before_training(request: Request, config: TaskConfig, out: Path | None) -> None:
    """Of `train`. Raises InputError if the run's folder exists, or the graph or a file is missing."""
    if not request.starts_here:
        return
    count = request.cluster().size
    with started_with(request.options):
        if out is not None:
            check_new_run(out)
    for _, text in named(config, GRAPH):
        if not Path(text).exists():
            from marius_oac.data.reading.registry import dataset_of

            dataset_of(text)
    _check_files(text for key, text in named(config, FILE) if not key.startswith("storage."))
    _say(count)


def before_resuming(request: Request, run: Path, data: Sequence[str], data_path: Path | None) -> None:
    """Of `resume`. Raises InputError if there is no run, or the data that is named is missing."""
    if not request.starts_here:
        return
    from marius_oac.runs.folder.about import About

    count = request.cluster().size
    About.read(run)
    _check_files([*data, *([str(data_path)] if data_path else [])])
    _say(count)


def _check_files(texts: Iterable[str]) -> None:
    for text in texts:
        if not (os.path.exists(text) or glob.glob(text, recursive=True)):
            raise InputError("no file has such a name" if glob.has_magic(text) else "no such file", text)


def _say(count: int) -> None:
    which = "1 process" if count == 1 else f"{count} processes"
    logger.info(f"starting {which} on this machine; training begins once all have loaded what they need")
