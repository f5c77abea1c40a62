"""`run.json`: what a run is, sealed by a checksum of its own.

format, version   of the run's folder; `package`, the version of this program that made it
id                random, the same on all nodes: its checkpoints are known by it
data              the fingerprint of what is trained on, see `data.identity`
arithmetic        what the run began with of all that decides last bits; null before it has: see `runs.arithmetic`
path              where the folder lay when its config.yaml was written
base              the folder that relative paths in config.yaml and log.json start from; see `folder.places`
config            the configuration's keys that decide the run's bits, with their values
files             SHA-256 of the task's own files in the folder, such as the user's code: of the present text, and
                  of the one before, which is there until the new one has been written
over_nodes        whether the run began over nodes: rows and checkpoints lie in `nodes/`, or with the nodes
result            SHA-256 of summary.json, and length and SHA-256 of metrics.jsonl, of a run that has ended
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from marius_oac import __version__
from marius_oac.config.errors import where
from marius_oac.config.named_files import FILE, GRAPH, MODULE, with_named
from marius_oac.config.parts import own_file
from marius_oac.config.task import TaskConfig
from marius_oac.errors import CheckpointError, ConfigError, shown
from marius_oac.runs.arithmetic import Arithmetic
from marius_oac.runs.checkpoints.origin import Token
from marius_oac.runs.folder.metrics import Prefix
from marius_oac.runtime.files.atomic import sealed
from marius_oac.runtime.files.untrusted import Described, Sha256, parse_json, parse_sealed, read_bounded

FORMAT: Literal["marius-oac run"] = "marius-oac run"
VERSION = 3
ABOUT = "run.json"

MAY_CHANGE = ("device", "threads", "binding", "training.epochs", "training.early_stopping", "evaluation", "checkpoint",
              "metrics", "trackers", "stall_after", "pipeline.in_flight", "pipeline.most_in_flight", "pipeline.workers",
              "data.path", "data.train", "compute.products",
              "data.valid", "data.test", "data.labels", "encoder.features", "training.progressive",
              "training.progressive_by", "keys.capacity", "keys.names",
              "storage.memory", "storage.path", "storage.io", "storage.depth", "storage.look_ahead", "nodes.packing",
              "nodes.mode", "nodes.switch", "nodes.mode_options", "nodes.auto",
              "nodes.dense")  # fmt: skip
"""Keys, and sections, that a run may go on with other values of. What lies in the files that some of them name has
fingerprints of its own; of `nodes.dense` see `config.dense.check_change`."""


class _Kind(Described):
    format: str
    version: int = 0


class Result(Described):
    """The digests of a run that has ended: SHA-256 of its summary, and the prefix of its metrics."""

    summary: Sha256
    metrics: Prefix


class About(Described):
    """The content of `run.json`; see above."""

    format: Literal["marius-oac run"] = FORMAT
    version: int = VERSION
    package: str = __version__
    id: Token
    data: str
    arithmetic: Arithmetic | None = None
    path: str
    base: str
    config: dict[str, Any]
    files: dict[str, list[Sha256]] = {}
    over_nodes: bool = False
    result: Result | None = None

    def dump(self) -> bytes:
        """The text of `run.json`, with its checksum."""
        return sealed(self.model_dump(mode="json"))

    @classmethod
    def read(cls, folder: Path) -> About:
        """Reads `run.json`. Raises CheckpointError if there is no run, a damaged one, or one of another program or
        version."""
        path = folder / ABOUT
        try:
            content = read_bounded(path, error=CheckpointError)
        except (FileNotFoundError, NotADirectoryError):
            reason = "is no run: it has no run.json" if folder.exists() else "there is no such run"
            raise CheckpointError(reason, folder) from None
        except OSError as error:
            raise CheckpointError(f"can't be read: {error.strerror}", path) from None
        kind = parse_json(content, path, _Kind, CheckpointError)
        if kind.format != FORMAT:
            raise CheckpointError("belongs to something else than a run", path)
        if kind.version != VERSION:
            raise CheckpointError(f"is of format version {kind.version}, this program reads {VERSION}", path)
        return parse_sealed(content, path, cls, CheckpointError)

    def with_files(self, texts: Mapping[str, str]) -> About:
        """Adds the checksums of these files to those of earlier texts."""
        files = dict(self.files)
        for name, text in texts.items():
            digest = hashlib.sha256(text.encode()).hexdigest()
            files[name] = [digest, *(other for other in files.get(name, [])[:1] if other != digest)]
        return self.model_copy(update={"files": files})

    def check_config(self, config: TaskConfig, source: str, lines: Mapping[tuple[Any, ...], int]) -> None:
        """Raises ConfigError, naming the line, if a key that decides bits is not as the run was trained with."""
        for key, old, new in differences(self.config, decisive(config)):
            raise ConfigError(
                f"is {shown(new)}, but the run was trained with {shown(old)}: write that back",
                where(tuple(key.split(".")), source, lines, set()),
            )


def decisive(config: TaskConfig) -> dict[str, Any]:
    """The part of a configuration that decides a run's bits, as plain values. Of files that it names only their names:
    where they lie does not matter, and what is in them has checksums of its own."""
    changes = dict.fromkeys((FILE, GRAPH), lambda path: Path(path).name) | {MODULE: _own_name}
    return _pruned(with_named(config, changes).model_dump(mode="json"))


def _own_name(name: str) -> str:
    found = own_file(name)
    return f"{found[0].name}:{found[1]}" if found else name


def _pruned(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    kept = {key: value for key, value in tree.items() if f"{path}{key}" not in MAY_CHANGE}
    return {
        key: _pruned(value, f"{path}{key}.") if isinstance(value, Mapping) else value for key, value in kept.items()
    }


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The keys, with both values, that two trees of plain values differ in; `a.0` is the first item of the list `a`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif _are_sections(old) and _are_sections(new) and len(old) == len(new):
        for number, items in enumerate(zip(old, new, strict=True)):
            yield from differences(*items, f"{path}.{number}")
    elif old != new:
        yield path, old, new


def _are_sections(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)
