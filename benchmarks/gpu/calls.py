"""The two calls: which parts, which of their measurements, and how many seconds each of them has at most.

Each part runs in a process that is killed when its time is up (`bounded`). What a part leaves of its time the next ones
may use, except what is promised to those behind them: a call ends in its time, whatever hangs. Planned measurements of
which a part that was killed says nothing are `missing` lines.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu import (
    bandwidths,
    big_table,
    bits,
    device_tests,
    facts,
    kernels,
    networks,
    quality,
    ranks,
    soak,
    steps,
)
from benchmarks.gpu.bounded import bounded
from benchmarks.gpu.part import Part, run_part
from benchmarks.gpu.place import Place
from benchmarks.gpu.results import FILE, Results, append, unaccounted

PARTS = {
    "facts": facts, "tests": device_tests, "bits": bits, "kernels": kernels, "bandwidths": bandwidths,
    "steps": steps, "big_table": big_table, "quality": quality, "networks": networks, "ranks": ranks, "soak": soak,
}  # fmt: skip
MARGIN = 5.0
"""Seconds before a part's end from which on it begins no measurement."""


@dataclass(frozen=True)
class Step:
    """A part with the seconds that it has, or those of its measurements in whose text one of `only` is."""

    part: str
    seconds: float
    only: Sequence[str] = ()


@dataclass(frozen=True)
class Call:
    """What one command measures, within so many seconds from its start."""

    seconds: float
    steps: Sequence[Step]


CALLS = {
    1: Call(150, (
        Step("facts", 15),
        Step("tests", 15, ("validation",)),
        Step("tests", 50, ("kernels",)),
        Step("tests", 50, ("ComplEx and DCNv2",)),
    )),
    2: Call(300, (
        Step("bits", 75),
        Step("kernels", 45),
        Step("bandwidths", 25, ("link", "rows")),
        Step("steps", 60, ("pipeline",)),
        Step("big_table", 85),
    )),
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """What all parts of a command have in common."""

    place: Place
    out: Path
    commit: str
    data: Path | None = None


def run_call(command: Command, call: Call, began: float) -> int:
    """Runs a call that began at `began` (`time.monotonic`). Returns 1 if a measurement failed or a part was killed."""
    command.out.mkdir(parents=True, exist_ok=True)
    codes = []
    for number, step in enumerate(call.steps):
        left = began + call.seconds - time.monotonic()
        later = sum(each.seconds for each in call.steps[number + 1 :])
        share = left * step.seconds / (step.seconds + later)  # the least, where imports have taken long
        codes.append(run_step(command, step, max(share, left - later)))
    print(f"{time.monotonic() - began:.0f} of {call.seconds:.0f} s", flush=True)
    return 1 if any(codes) else 0


def run_step(command: Command, step: Step, seconds: float) -> int:
    """Runs a part for so many seconds at most; returns 0 if it came to its end and nothing failed."""
    now, began = datetime.datetime.now(datetime.UTC), time.monotonic()
    run = f"{now:%Y%m%d-%H%M%S.%f}-{step.part}-{os.getpid()}"
    print(f"== {step.part}{''.join(f', {each}' for each in step.only)}: {seconds:.0f} s", flush=True)
    code = bounded(lambda: _measure(command, step, run, f"{now:%Y-%m-%d %H:%M} UTC", seconds - MARGIN), seconds)
    took = time.monotonic() - began
    if code not in (0, 1):
        why = f"killed after {took:.0f} s" if code is None else f"the process ended with {code}"
        _account(command.out / FILE, run, step.part, why)
        return 1
    print(f"   {took:.1f} s", flush=True)
    return code


def _measure(command: Command, step: Step, run: str, date: str, seconds: float) -> int:
    place, module = command.place, PARTS[step.part]
    about = {"run": run, "part": step.part, "small": place.small, "commit": command.commit, "date": date}
    results = Results(command.out, {**about, **place.facts()})
    part = Part(place, results, command.out, seconds, command.data, step.only)
    run_part(module, part, results)
    print(f"   {part.rows} rows, {part.failed} failed", flush=True)
    return 1 if part.failed or not part.rows else 0


def _account(path: Path, run: str, part: str, why: str) -> None:
    """Says what a part that was killed has not measured; the first of it is what it was at."""
    left = unaccounted(path, run)
    for number, (name, where) in enumerate([(part, {})] if left is None else left):
        append(path, {"kind": "missing", "run": run, "name": name, "where": where,
                      "why": why + (", before it" if number else ", at this")})  # fmt: skip
    print(f"   {part}: {why}; NOT MEASURED: {'all of it' if left is None else len(left)}", flush=True)
