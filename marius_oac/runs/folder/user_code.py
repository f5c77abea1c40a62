"""The user's own code in a run: which of it may be executed (see `trust`), and which text of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from marius_oac.config.task import TaskConfig
from marius_oac.models.compute import trust
from marius_oac.models.compute.user_code import admit, with_own_files
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runtime.console import logger


def code_to_train(config: TaskConfig) -> list[bytes]:
    """Trusts the user's own code that a new run trains with, now and later: the user has named it. Returns its texts.
    Raises InputError if a file of it can't be read."""
    texts = admit(config, trust=True)
    trust.record(texts)
    return texts


def code_to_resume(config: TaskConfig, run: Path, trusted: bool | Collection[bytes]) -> TaskConfig:
    """The configuration of a run that goes on, its code admitted: the files as they are now, and where one has gone the
    text that the run has kept. What is trusted is known from now on.

    Raises InputError if code is neither known nor trusted; nothing was run.
    """

    def place(path: Path) -> Path:
        kept = run / path.name
        if path.exists() or not kept.exists():
            return path
        RunFolder.open(run).read_file(path.name)
        logger.warning(f"{path} has gone: the run goes on with the text that it has kept")
        return kept

    config = with_own_files(config, place)
    texts = admit(config, trusted)
    if trusted:
        trust.record(texts)
    return config


def kept_code(folder: RunFolder, trusted: bool) -> TaskConfig:
    """The configuration of a run with the texts that it has kept of the user's code, which are admitted.

    Raises InputError if they are neither known nor trusted, nothing was run; CheckpointError if one is damaged.
    """

    def place(path: Path) -> Path:
        folder.read_file(path.name)
        return folder.path / path.name

    config = with_own_files(folder.config, place)
    admit(config, trusted)
    return config
