"""What every tracker does: it is given the values of each line of `metrics.jsonl`, and of the summary."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from marius_oac.runtime.closing import Closable


class Values(NamedTuple):
    """The numbers of a line.

    Attributes:
        kind: `interval`, `epoch`, `mode`, `summary`, or of an evaluation its split.
        batch: the last one that they are about.
        numbers: by name; an item of a mapping has the mapping's name and its own, such as `stage_seconds.compute`.
    """

    kind: str
    batch: int
    numbers: Mapping[str, float]

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Values:
        """The numbers of a line of `metrics.jsonl`; what is none is left out, and so are NaN and infinite ones."""
        kind = str(line["split"] if line["kind"] == "evaluation" else line["kind"])
        return cls(kind, int(line["batch"]), dict(_numbers(line, "")))


def _numbers(tree: Mapping[str, Any], before: str) -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}.")
        elif type(value) in (int, float) and abs(value) < float("inf") and before + name != "batch":
            yield before + name, value


class Tracker(Closable):
    """Passes numbers on. `log` is called by one thread at a time. An error in it ends this tracker, not the run."""

    @abstractmethod
    def log(self, values: Values) -> None:
        """Passes on the numbers of a line; what was passed on before for the same kind, batch and name is replaced."""

    @abstractmethod
    def close(self) -> None:
        """Waits until everything has been passed on."""
