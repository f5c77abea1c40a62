"""The trackers of a run: opened as it begins, given every line of `metrics.jsonl`, closed as it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from marius_oac.errors import ConfigError, how_to_install
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.tracking.contract import Tracker, Values
from marius_oac.runs.tracking.mlflow import MLflow
from marius_oac.runs.tracking.prometheus import Prometheus
from marius_oac.runs.tracking.tensorboard import TensorBoard
from marius_oac.runtime.console import logger

KINDS: Mapping[str, tuple[Callable[[RunFolder, int], Tracker], str | None]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (MLflow, "mlflow"),
    "prometheus": (Prometheus, None),
}
"""Of each name its tracker, made of a run's folder and its next batch, and the package that it needs."""


def check_trackers(names: Sequence[str]) -> None:
    """Raises ConfigError, with what to install, if a package is missing."""
    for name in names:
        package = KINDS[name][1]
        if package is not None and find_spec(package) is None:
            raise ConfigError(f"{name} needs a package: {how_to_install(name)}", "trackers")


class Trackers:
    """Several trackers as one. One that fails is told of in a line and left out: the run has its numbers anyway."""

    def __init__(self) -> None:
        self._open: dict[str, Tracker] = {}

    def open(self, names: Sequence[str], folder: RunFolder, first: int) -> None:
        """Opens them, and passes on the lines that the run has already."""
        for name in names:
            tracker = self._trying(name, lambda name=name: KINDS[name][0](folder, first))  # type: ignore[misc]
            if tracker is not None:
                self._open[name] = tracker
        for line in folder.metrics.lines() if self._open else ():
            self.add(line)

    def add(self, line: Mapping[str, Any]) -> None:
        """Passes on a line of `metrics.jsonl`."""
        values = Values.of(line)
        for name, tracker in list(self._open.items()):
            self._trying(name, lambda tracker=tracker: tracker.log(values))  # type: ignore[misc]

    def close(self) -> None:
        """Closes them."""
        for name, tracker in list(self._open.items()):
            self._trying(name, tracker.close)

    def _trying(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            self._open.pop(name, None)
            said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            logger.warning(f"trackers: {name} has failed, and gets no more values of this run: {said}")
            return None


@contextmanager
def tracking(names: Sequence[str], folder: RunFolder, first: int) -> Iterator[None]:
    """Within the block trackers get each line that is added to the run's metrics, and at its end the summary.

    Args:
        first: the run's next batch.
    """
    trackers = Trackers()
    try:
        trackers.open(names, folder, first)
        folder.metrics.listeners.append(trackers.add)
        yield
        if names and (summary := folder.summary()):
            trackers.add({"kind": "summary", "batch": summary["training.batches"], **summary})
    finally:
        trackers.close()
