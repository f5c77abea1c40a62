"""The page of figures, made of all results. What no GPU has measured stays "not measured yet"."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.gpu.part import Table, shown

EMPTY = "not measured yet"


def page(text: str, tables: Mapping[str, Iterable[Table]], lines: list[dict[str, Any]]) -> str:
    """The page: `text`, the tables under their headings, and the runs that their rows come from.

    Of rows with the same settings on the same kind of device the newest counts. Rows of a rehearsal, or of a run that
    had no GPU, are no figures: they are left out.
    """
    runs = {
        line["run"]: line for line in lines if line["kind"] == "run" and line["device"] != "cpu" and not line["small"]
    }
    names = {run: _letters(number) for number, run in enumerate(runs)}
    parts = [text.rstrip()]
    for heading, under in tables.items():
        parts.append(f"## {heading}")
        for table in under:
            mine = [line for line in lines if line.get("name") == table.name and line["run"] in runs]
            parts += [f"### {table.title}", table.about, _rows(table, mine, runs, names)]
    parts += ["## The runs", _runs(runs, names)]
    return "\n\n".join(parts) + "\n"


def _rows(table: Table, lines: list[dict[str, Any]], runs: Mapping[str, Any], names: Mapping[str, str]) -> str:
    newest: dict[str, dict[str, Any]] = {}
    for line in lines:
        key = json.dumps([runs[line["run"]]["device"], line["where"]], sort_keys=True)
        if line["kind"] == "row" or newest.get(key, line)["kind"] != "row":  # what was once measured stays
            newest[key] = line
    head = f"| {' | '.join([*table.columns.values(), 'run'])} |\n|{'---|' * (len(table.columns) + 1)}"
    rows = [[*_cells(table, line), names[line["run"]]] for line in newest.values()]
    rows = rows or [[EMPTY, *[""] * len(table.columns)]]
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])


def _cells(table: Table, line: dict[str, Any]) -> list[str]:
    told = {**line["where"], **line.get("found", {})}
    cells = [shown(told.get(key)) for key in table.columns]
    if line["kind"] != "row":
        why = line["why"] if line["kind"] == "missing" else f"failed: {line['error']}"
        cells[len(line["where"]) :] = [f"{EMPTY}: {why}"[:200].replace("|", "/").replace("\n", " ")]
        cells += [""] * (len(table.columns) - len(cells))
    return [cell.replace("|", "/") for cell in cells]


def _runs(runs: Mapping[str, dict[str, Any]], names: Mapping[str, str]) -> str:
    if not runs:
        return f"None: {EMPTY}."
    keys = ("device", "driver", "torch", "cuda", "triton", "numba", "numpy", "python", "cpu", "cores", "commit", "date")
    rows = [[names[run], line["part"], *(str(line.get(key) or "") for key in keys)] for run, line in runs.items()]
    head = f"| {' | '.join(['run', 'part', *keys])} |\n|{'---|' * (len(keys) + 2)}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])


def _letters(number: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    name, alphabet = "", string.ascii_uppercase
    while number >= 0:
        name = alphabet[number % 26] + name
        number = number // 26 - 1
    return name
