"""Functions of the user's own that a run calls while it trains; they see copies, so that they change no bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marius_oac.errors import CallbackError, MariusOacError
from marius_oac.pipeline.stages import BatchResult
from marius_oac.runtime.files.atomic import json_text


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Functions that `train` and `resume` call. An error in one of them stops the run, which can be resumed; it is a
    `CallbackError` that names the function, with the error itself as its cause.

    Attributes:
        on_batch: after each batch has been written, in the order of writing, from a thread of the pipeline, which waits
            for it; never twice at once.
        on_epoch, on_evaluation: with the line that is added to `metrics.jsonl`, as a dict.
        on_checkpoint: with the folder of a checkpoint that has been saved.
    """

    on_batch: Callable[[BatchResult], object] | None = None
    on_epoch: Callable[[dict[str, Any]], object] | None = None
    on_evaluation: Callable[[dict[str, Any]], object] | None = None
    on_checkpoint: Callable[[Path], object] | None = None

    def beside(self, report: Callable[[BatchResult], None]) -> Callable[[BatchResult], None]:
        """Returns `report` followed by `on_batch`."""
        if self.on_batch is None:
            return report

        def both(result: BatchResult) -> None:
            report(result)
            _call("on_batch", self.on_batch, result)

        return both

    def line(self, line: Mapping[str, Any]) -> None:
        """Calls what is to be called with a line of `metrics.jsonl`."""
        called = {"epoch": ("on_epoch", self.on_epoch), "evaluation": ("on_evaluation", self.on_evaluation)}
        name, function = called.get(str(line["kind"]), ("", None))
        if function is not None:
            _call(name, function, json.loads(json_text(line)))

    def checkpoint(self, path: Path) -> None:
        """Calls `on_checkpoint`."""
        _call("on_checkpoint", self.on_checkpoint, path)


NO_CALLBACKS = Callbacks()


def _call(name: str, function: Callable[[Any], object] | None, value: object) -> None:
    if function is None:
        return
    try:
        function(value)
    except MariusOacError:
        raise
    except Exception as error:
        raise CallbackError(name, error) from error
