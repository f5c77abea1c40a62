"""What a user asks a search for, and a search a trial's process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TuneRequest:
    """What a user asks for.

    Attributes:
        config: path of the YAML file that all trials share.
        space: path of the file of `SpaceConfig`.
        overrides: `key=value` for all trials.
        trials: how many there will be in all, those that are there included.
        jobs: how many run at once.
        out: folder of the search; default: `tune/` and the config's name.
        keep: whether all runs are kept, not only the best.
    """

    config: Path
    space: Path
    overrides: tuple[str, ...] = ()
    trials: int = 50
    jobs: int = 1
    out: Path | None = None
    keep: bool = False


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        config: path of the YAML file.
        overrides: `key=value`, the trial's values among them.
        out: folder of the run; if it is there, the run goes on.
        cpus: on which it computes.
    """

    config: str
    overrides: tuple[str, ...]
    out: str
    cpus: frozenset[int]
