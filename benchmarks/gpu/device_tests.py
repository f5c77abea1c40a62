"""The tests on the device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.gpu import triton_cache
from benchmarks.gpu.part import Part, Table
from marius_oac.nodes.launch.parent import bound

SECONDS = 400
TABLES = [
    Table("tests", "The tests on the device",
          "`pytest -m device` with `MARIUS_OAC_TEST_DEVICE=cuda`, in some processes. `compiled`: kernels that Triton "
          "has compiled for them, as its cache did not have them.",
          {"tests": "tests", "processes": "processes", "passed": "passed", "failed": "failed", "skipped": "skipped",
           "compiled": "compiled", "which": "which failed"}),
]  # fmt: skip
ROOT = Path(__file__).parents[2]


class Group(NamedTuple):
    """Tests that run together; `small`, where the rehearsal takes others: what `-k` says."""

    processes: int
    files: tuple[str, ...]
    named: str = ""
    small: str = ""


_PATH = ("tests/devices/test_path.py",)
GROUPS = {
    "validation": Group(2, ("tests/pipeline/test_validation.py",)),
    "kernels": Group(12, ("tests/kernels/test_gpu_links.py", "tests/kernels/test_gpu_sums.py",
                          "tests/kernels/test_gpu_clicks.py"), small="test_penalties or test_updates"),
    "path of ComplEx and DCNv2": Group(6, _PATH, "complex or dcnv2", small="adagrad or dcnv2"),
    "path of the others": Group(12, _PATH, "not (complex or dcnv2)", small="test_classes_of_nodes"),
    "steps and evaluation": Group(12, (
        "tests/models/test_link_prediction.py", "tests/models/ctr/test_step.py",
        "tests/models/ctr/test_networks.py", "tests/models/gnn/test_layers.py", "tests/evaluation/test_evaluate.py",
    )),
}  # fmt: skip


def run(part: Part) -> None:
    for name, group in GROUPS.items():
        processes = part.place.pick(group.processes, 1)
        where = {"tests": name, "processes": processes}
        part.measure("tests", where, lambda group=group, count=processes: _tested(part, group, count))


def command(group: Group, processes: int, small: bool) -> list[str]:
    """Of a group's tests; the slow ones are among them, but for a rehearsal."""
    ask = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n",
        str(processes),
        "-m",
        "device and not slow" if small else "device",
    ]
    named = [word for word in (group.named, small and group.small) if word]
    ask += ["-k", " and ".join(f"({word})" for word in named)] if named else []
    # What another version of torch warns of is no fault of the device.
    return [*ask, "-p", "no:cacheprovider", "-o", "filterwarnings=default", *group.files]


def _tested(part: Part, group: Group, processes: int) -> dict[str, Any]:
    """Runs tests; their output goes to a log beside the results, as it comes. Where they are stopped because time is
    up, those that were through count."""
    environment = {**os.environ, "MARIUS_OAC_TEST_DEVICE": str(part.place.device), "PYTHONUNBUFFERED": "1"}
    before, path = triton_cache.kernels(), part.out / "tests.log"
    with path.open("a", encoding="utf-8") as log:
        print(f"== {', '.join(group.files)} {group.named}", file=log, flush=True)
        begin = log.tell()
        tests = subprocess.Popen(
            bound(command(group, processes, part.place.small)), cwd=ROOT, env=environment, stdout=log,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        stopped = None
        try:
            tests.wait(max(1.0, part.left()))
        except subprocess.TimeoutExpired:
            stopped = "stopped as time was up"
            _kill(tests)
    said = path.read_bytes()[begin:].decode(errors="replace")
    if not stopped and tests.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {tests.returncode}: {said[-2000:]}")
    return counted(said, stopped) | {"compiled": triton_cache.kernels() - before}


def _kill(tests: subprocess.Popen) -> None:
    """With its workers, which might hang in the driver."""
    for each in [*psutil.Process(tests.pid).children(recursive=True), tests]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    with suppress(subprocess.TimeoutExpired):
        tests.wait(2)


def counted(said: str, stopped: str | None) -> dict[str, Any]:
    """How many tests passed, by what `pytest -v` said; `stopped`: why it did not come to its end, if so."""
    line = r"^\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) tests/\S+?::(.+?) *$"
    found = re.findall(line, said, re.MULTILINE)
    count, failed = Counter(how for how, _ in found), [name for how, name in found if how in ("FAILED", "ERROR")]
    crashed = re.findall(r"worker '(gw\d+)' crashed while running '\S+?::(.+?)'", said)
    return {
        "passed": count["PASSED"], "failed": len(failed), "skipped": count["SKIPPED"],
        "which": "; ".join([*([stopped] if stopped else []), *failed[:20], *(f"crash: {name}" for _, name in crashed)]),
        "right": not (failed or stopped or crashed) and bool(found),
    }  # fmt: skip
