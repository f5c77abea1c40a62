"""Prometheus: the newest values in `RUN/metrics.prom`, for the textfile collector of node_exporter, such as with
`--collector.textfile.directory='runs/*'`.

Needs no package: the text format is one line for each value (prometheus.io, Exposition formats). A scrape sees the file
as it was before or after a line of metrics, and never a part.
"""

from __future__ import annotations

import os
import re

from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.tracking.contract import Tracker, Values
from marius_oac.runtime.files.atomic import check_no_link, open_own, remove_file, unfinished_here

FILE = "metrics.prom"


class Prometheus(Tracker):
    """Writes the file anew for each line."""

    def __init__(self, folder: RunFolder, first: int):
        self._path, self._run = folder.path / FILE, folder.path.resolve().name
        self._newest: dict[str, Values] = {}

    def log(self, values: Values) -> None:
        """See `Tracker.log`."""
        self._newest[values.kind] = values
        check_no_link(self._path)
        unfinished = unfinished_here(self._path)
        remove_file(unfinished)
        # Not flushed to the disk, as checkpoints are: after a crash nobody scrapes it.
        with open(unfinished, "w", encoding="utf-8", opener=open_own) as file:
            file.write(self._text())
        os.replace(unfinished, self._path)

    def close(self) -> None:
        """See `Tracker.close`."""

    def _text(self) -> str:
        families: dict[str, list[str]] = {}
        for kind, values in self._newest.items():
            for name, number in {**values.numbers, "batch": values.batch}.items():
                family = re.sub(r"\W", "_", f"marius_oac_{kind}_{name}", flags=re.ASCII)
                labels = f'run="{_escaped(self._run)}",name="{_escaped(name)}"'
                families.setdefault(family, []).append(f"{family}{{{labels}}} {number!r}")
        lines = [line for family, found in families.items() for line in (f"# TYPE {family} gauge", *found)]
        return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
