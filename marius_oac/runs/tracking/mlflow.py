"""MLflow: metrics and parameters of a run, in `RUN/mlflow.db`, or where `MLFLOW_TRACKING_URI` says.

A run that is resumed is another run there, which has the metrics from the beginning: MLflow forgets no value, and those
of batches that are trained again would be there twice.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.tracking.contract import Tracker, Values
from marius_oac.runtime.files.atomic import check_no_link

EXPERIMENT = "marius_oac"
_AT_ONCE = 100
"""Parameters or metrics of a request; MLflow takes no more parameters."""
_MOST_TEXT = 500


class MLflow(Tracker):
    """Logs by MLflow's client; nothing global is changed, such as its active run."""

    def __init__(self, folder: RunFolder, first: int):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        check_no_link(folder.path / "mlflow.db")
        own = f"sqlite:///{folder.path.resolve() / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or own)
        self._metric, self._ended = Metric, False
        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        name = folder.path.resolve().name + (f" (from batch {first:,})" if first else "")
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        params = [Param(key, value) for key, value in _flat(folder.config.model_dump(mode="json"), "")]
        for begin in range(0, len(params), _AT_ONCE):
            self._client.log_batch(self._run, params=params[begin : begin + _AT_ONCE])

    def log(self, values: Values) -> None:
        """See `Tracker.log`."""
        self._ended = values.kind == "summary"
        now = int(time.time() * 1000)
        metrics = [
            self._metric(metric_name(f"{values.kind}/{name}"), float(number), now, values.batch)
            for name, number in values.numbers.items()
        ]
        for begin in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[begin : begin + _AT_ONCE])

    def close(self) -> None:
        """See `Tracker.close`."""
        self._client.set_terminated(self._run, "FINISHED" if self._ended else "KILLED")


def metric_name(name: str) -> str:
    """A name that MLflow takes: `hits@10` is `hits_at_10` there."""
    return re.sub(r"[^\w\-. /:]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def _flat(tree: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", str(value)[:_MOST_TEXT]
