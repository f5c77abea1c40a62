"""`metrics.jsonl`: the lines that a run writes while it trains, each with `kind` and `batch`.

Lines are only added, but where a run is rewound to a checkpoint. A checkpoint knows how the file began when it was
written, and the disk has had that part since.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from marius_oac.errors import CheckpointError, InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import disk_errors, json_text, open_own, sync, write_atomically
from marius_oac.runtime.files.untrusted import Count, Described, Sha256, open_regular, parse_json

METRICS = "metrics.jsonl"


class _Line(Described):
    kind: str
    batch: int


class _Predicted(Described):
    """A progressive evaluation."""

    epoch: int
    batch: int
    examples: Count
    auc: float | None
    log_loss: float | None

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> _Predicted | None:
        """The evaluation of a line of the file, which somebody may have changed; None: it is none."""
        try:
            return cls.model_validate(line)
        except ValidationError:
            return None


class Prefix(Described):
    """The beginning of a file to which lines are added: its length and its SHA-256."""

    bytes: Count
    sha256: Sha256

    @classmethod
    def of(cls, lines: Iterable[builtins.bytes]) -> Prefix:
        """The prefix that consists of these lines."""
        content = b"".join(lines)
        return cls(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


class MetricsFile:
    """The file `metrics.jsonl` of a run; it exists once it has a line.

    Attributes:
        listeners: called with each line that is added.
    """

    def __init__(self, folder: Path):
        self.path = folder / METRICS
        self.listeners: list[Callable[[Mapping[str, Any]], None]] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """Appends a line, and passes it to the listeners. Raises InputError if the disk is full, or can't be
        written."""
        with disk_errors(self.path), open(self.path, "a", encoding="utf-8", opener=open_own) as file:
            file.write(json_text(line) + "\n")
        for listener in self.listeners:
            listener(line)

    def lines(self) -> list[dict[str, Any]]:
        """The parsed lines. A damaged line is skipped with a warning, an incomplete last line silently. Raises
        CheckpointError if the file can't be read."""
        return [line for _, line in self._sound()]

    def flushed(self, batch_index: int | None = None) -> Prefix:
        """Flushes the file to the disk, and returns the prefix that a run rewound to batch `batch_index` keeps; by
        default all of it."""
        texts = self._texts()
        if texts:
            with disk_errors(self.path):
                sync(self.path)
                sync(self.path.parent)
        while texts and batch_index is not None and not _is_kept(parsed(texts[-1]), batch_index):
            texts.pop()
        return Prefix.of(texts)

    def check(self, known: Prefix | None) -> None:
        """Raises CheckpointError if the file does not begin with `known`, or a complete line is damaged."""
        texts = self._texts()
        content = b"".join(texts)
        if known is not None and Prefix.of([content[: known.bytes]]) != known:
            raise CheckpointError("is damaged: it is not what was written", self.path)
        for number, text in enumerate(texts, 1):
            if parsed(text) is None:
                raise CheckpointError("is damaged", f"{self.path}:{number}")

    def rewind(self, batch_index: int) -> Prefix:
        """Drops lines after batch `batch_index - 1`, also its evaluation, which is made again, and damaged lines, with
        a warning. Returns the prefix that is left."""
        kept = [text for text, line in self._sound() if _is_kept(line, batch_index)]
        write_atomically(self.path, b"".join(kept))
        return Prefix.of(kept)

    def _sound(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The sound lines, as bytes and parsed."""
        for number, text in enumerate(self._texts(), 1):
            line = parsed(text)
            if line is None:
                logger.warning(f"{self.path}:{number}: is damaged; this line is left out")
            else:
                yield text, line

    def _texts(self) -> list[bytes]:
        """The complete lines, with their ends."""
        try:
            with open_regular(self.path, CheckpointError) as file:
                return [line + b"\n" for line in file.read().split(b"\n")[:-1]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"can't be read: {error.strerror}", self.path) from None


def parsed(text: bytes) -> dict[str, Any] | None:
    """A line of the file, parsed; None if it is damaged."""
    try:
        parse_json(text, METRICS, _Line, nan=True)
        return json.loads(text)
    except InputError:
        return None


def progressive_means(lines: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """The metrics of the progressive evaluations among a run's lines: of each the mean over all examples that were
    predicted before they were trained on. Empty without any.

    An evaluation weighs as much as it has examples. The AUC is that of each evaluation by itself, in which examples are
    ranked by one model; evaluations without an AUC, whose examples are of one class, are left out of it.
    """
    said = [_Predicted.read(line) for line in lines if line.get("split") == "progressive"]
    found = {(each.epoch, each.batch): each for each in said if each}.values()  # a resumed run may have one twice
    if not found:
        return {}
    means = {f"progressive.{name}": _mean(found, name) for name in ("auc", "log_loss")}
    return means | {"progressive.examples": sum(each.examples for each in found)}


def _mean(evaluations: Collection[_Predicted], name: str) -> float | None:
    counted = [(value, each.examples) for each in evaluations if (value := getattr(each, name)) is not None]
    examples = sum(count for _, count in counted)
    return math.fsum(value * count for value, count in counted) / examples if examples else None


def _is_kept(line: Mapping[str, Any] | None, batch_index: int) -> bool:
    """Whether a run that continues with batch `batch_index` keeps this line."""
    made_again = line is not None and line["kind"] == "evaluation" and "first" not in line  # of batches, as they came
    return line is None or line["batch"] < batch_index - made_again
