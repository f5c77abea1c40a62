"""Rows of results, one JSON object a line, appended as they are measured: a killed command loses none of them.

| kind | what |
|---|---|
| `run` | one part of one command: machine, versions, commit, date; every other line names it |
| `plan` | `measurements` that the part will make, each as `[name, where]` |
| `row` | `name` of the measurement, `where` (its settings), `found` (what was measured), `seconds` that it took |
| `missing` | a measurement that was not made, and why |
| `error` | a measurement that failed, with its error |
| `end` | the part came to its end after so many `seconds` |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = "results.jsonl"


class Results:
    """The file of results in a folder, and the lines that this run has added to it."""

    def __init__(self, folder: Path, run: dict[str, Any]):
        self.path, self.lines, self._run = folder / FILE, [], run["run"]
        folder.mkdir(parents=True, exist_ok=True)
        self._append({"kind": "run", **run})

    def add(self, kind: str, **fields: Any) -> None:
        self._append({"kind": kind, "run": self._run, **fields})

    def _append(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        append(self.path, line)


def append(path: Path, line: dict[str, Any]) -> None:
    """Adds a line, also behind one that a kill has cut."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All lines of a file of results; none where there is no file. A line that a kill has cut is left out."""
    lines = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"{path}: left out a line that is no JSON: {line[:60]!r}")
    return lines


def unaccounted(path: Path, run: str) -> list[tuple[str, dict[str, Any]]] | None:
    """What a run has planned and says nothing of, in its order; None where it has no plan yet."""
    lines = [line for line in read(path) if line["run"] == run]
    told = [(line["name"], line["where"]) for line in lines if line["kind"] in ("row", "missing", "error")]
    plans = [line["measurements"] for line in lines if line["kind"] == "plan"]
    return [(name, where) for name, where in plans[0] if (name, where) not in told] if plans else None
