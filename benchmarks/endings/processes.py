"""How do commands end? Each is started as a user would, stopped by each event at each moment, and looked at afterwards.

    python -m benchmarks.endings.processes                                               # the whole table
    python -m benchmarks.endings.processes --only "train, log" --events SIGTERM SIGKILL  # these rows alone

Every row is a process of its own, and a training run that was stopped is resumed: it holds if the exit code is the
documented one, nothing unfinished and no process is left, and the resumed run has the bits of one that was left alone.
`Started`, `unfinished_in` and `wait_until` are for others that end processes, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from marius_oac.prepare.prepare import PrepareRequest, prepare

PATIENCE = 180.0  # seconds until a process that has not done what it should is given up
START_SECONDS = 0.5
TWICE_SECONDS = 0.7  # between two signals: within half a second the same one counts once
COMMAND = (sys.executable, "-m", "marius_oac")
EVENTS: dict[str, Sequence[signal.Signals]] = {
    "SIGINT": (signal.SIGINT,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGHUP": (signal.SIGHUP,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
    "SIGKILL": (signal.SIGKILL,),
}
STREAMS = ("2>&1 | head -1", ">&- 2>&-", ">/dev/full 2>&1")
"""Ends of both standard streams: a pipe that nobody reads on, none at all, a full disk."""


def wait_until(happened: Callable[[], bool], process: subprocess.Popen, seconds: float = PATIENCE) -> bool:
    """Whether it happened before the process ended, and before the time was up."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if happened():
            return True
        if process.poll() is not None:
            return happened()
        time.sleep(0.001)
    return False


def unfinished_in(folder: Path) -> list[str]:
    """What is left below a folder of work that was not finished, by name."""
    return sorted(path.name for path in folder.rglob("*") if path.name.endswith((".unfinished", ".part")))


class Started:
    """A process and all that come of it, known by a mark in their environment; `close` leaves none of them.

    Args:
        argv: of the process.
        said: the file that gets both of its streams, if they have no redirection.
        redirection: of its streams, as the shell writes it.
    """

    def __init__(self, argv: Sequence[str], said: Path, redirection: str = ""):
        self.mark, self.said = f"ENDINGS={uuid.uuid4()}", said
        name, _, value = self.mark.partition("=")
        environment = {**os.environ, name: value, "PYTHONUNBUFFERED": "1"}
        script = f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}'
        command = ["bash", "-c", script, "bash", *argv] if redirection else list(argv)
        with open(said, "ab") as stream:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
            )

    def left(self) -> list[psutil.Process]:
        """Processes of it that there still are."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes()
                if self.mark.encode() in environment.split(b"\0") and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end(self, numbers: Sequence[int] = ()) -> tuple[int | None, float]:
        """Sends the signals one after the other; returns the exit code, None if it did not end, and the seconds until
        all was over."""
        begun = time.monotonic()
        for place, number in enumerate(numbers):
            if place:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(TWICE_SECONDS)
            if self.process.poll() is None:
                self.process.send_signal(number)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - begun
        while self.left() and time.monotonic() - begun < PATIENCE:
            time.sleep(0.01)
        return code, time.monotonic() - begun

    def close(self) -> None:
        until = time.monotonic() + PATIENCE
        while (left := self.left()) and time.monotonic() < until:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Row:
    """One line of the table. `wrong` says what does not hold; empty: nothing."""

    process: str
    moment: str
    event: str
    code: int | None
    seconds: float
    checkpoint: str
    resumed: str
    leftovers: str
    left: int
    wrong: str = ""

    HEAD = (
        "| process | moment | event | exit code | seconds | checkpoint | resumed | unfinished, then after the resume | "
        "processes left | |\n|---|---|---|---|---|---|---|---|---|---|"
    )

    def __str__(self) -> str:
        event = self.event.replace("|", "\\|")
        cells = (
            self.process, self.moment, event, self.code, f"{self.seconds:.2f}", self.checkpoint, self.resumed,
            self.leftovers, self.left, self.wrong and f"**{self.wrong}**",
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


def bits(run: Path) -> dict[str, str]:
    """The fingerprints of a finished run; empty where it has not ended."""
    path = run / "summary.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return {name: value for name, value in found.items() if name.endswith("sha256")}


class Training:
    """A run that is stopped at a moment.

    Its batches take long and no processor time (`slow_train`); a checkpoint is written every few.
    """

    BATCHES_PER_CHECKPOINT = 5

    def __init__(self, name: str, folder: Path, config: dict):
        self.name, self.folder = name, folder
        self.config = {
            "device": "cpu", "threads": 1, "binding": "off", **config,
            "checkpoint": {"every_batches": self.BATCHES_PER_CHECKPOINT},
            "metrics": {"every_batches": 1},
        }  # fmt: skip
        self.path = folder / "config.json"
        folder.mkdir(parents=True)
        self.path.write_text(json.dumps(self.config))
        self.whole: dict[str, str] = {}

    def argv(self, run: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks.endings.slow_train", "train", str(self.path), "--out", str(run)]

    def left_alone(self) -> None:
        """Trains it once as it should be."""
        run = self.folder / "whole"
        with Started(self.argv(run), self.folder / "whole.txt") as started:
            code, _ = started.end()
        if code:
            raise RuntimeError((self.folder / "whole.txt").read_text())
        self.whole = bits(run)

    def moments(self, run: Path, said: Path) -> dict[str, Callable[[], bool]]:
        """By name, whether the run has come there."""
        checkpoints = run / "checkpoints"

        def lines() -> int:
            with suppress(OSError):
                return (run / "metrics.jsonl").read_bytes().count(b"\n")
            return 0

        def saving() -> bool:
            with suppress(OSError):
                return lines() > 2 and any(name.endswith(".unfinished") for name in os.listdir(checkpoints))
            return False

        def evaluating() -> bool:
            """The line of the epoch is said, and its checkpoint has its name."""
            told = re.search(rb"epoch 1 of", said.read_bytes())
            metrics = (run / "metrics.jsonl").read_text().splitlines() if told else []
            ends = [json.loads(line)["batch"] + 1 for line in metrics if '"kind": "epoch"' in line]
            return bool(ends) and (checkpoints / f"{ends[0]:010d}").exists()

        return {
            "start-up": lambda: True,
            "training": lambda: lines() > 8,
            "saving": saving,
            "evaluating": evaluating,
        }

    def row(self, moment: str, event: str) -> Row:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            run, said = Path(folder) / "run", Path(folder) / "said.txt"
            with Started(self.argv(run), said) as started:
                if moment == "start-up":
                    with suppress(subprocess.TimeoutExpired):
                        started.process.wait(START_SECONDS)
                if not wait_until(self.moments(run, said)[moment], started.process):
                    return Row(self.name, moment, event, None, 0, "", "", "", 0, "the moment never came")
                code, seconds = started.end(EVENTS[event])
                left = len(started.left())
            checkpoints = [each.name for each in run.glob("checkpoints/*") if each.name.isdigit()]
            before = unfinished_in(run)
            resumed, after = self._resume(run, Path(folder) / "resumed.txt")
            wrong = []
            if code not in expected_codes(event, moment):
                wrong.append(f"exit code {code}: {_last_line(said)}")
            if resumed not in ("same bits", "no run yet"):
                wrong.append(f"resume: {resumed}")
            if left or after or (before and event not in ("SIGKILL", "SIGINT twice")):
                wrong.append("something is left")
            shown = ", ".join(before) or "none"
            newest = f"of batch {int(max(checkpoints)):,}" if checkpoints else "none"
            unfinished = f"{shown}; {', '.join(after) or 'none'}"
            return Row(self.name, moment, event, code, seconds, newest, resumed, unfinished, left, "; ".join(wrong))

    def _resume(self, run: Path, said: Path) -> tuple[str, list[str]]:
        if not (run / "run.json").exists():
            return ("no run yet" if not run.exists() else "a folder that is no run"), unfinished_in(run.parent)
        argv = [*COMMAND, "resume", str(run)]
        with Started(argv, said) as started:
            code, _ = started.end()
        if code:
            return _last_line(said), unfinished_in(run)
        return ("same bits" if bits(run) == self.whole else "other bits"), unfinished_in(run)

    def row_of_streams(self, redirection: str) -> Row:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            run = Path(folder) / "run"
            with Started(self.argv(run), Path(folder) / "said.txt", redirection) as started:
                code, seconds = started.end()
                left = len(started.left())
            same = "same bits" if bits(run) == self.whole else "other bits"
            wrong = "" if (code, same, left, unfinished_in(run)) == (0, "same bits", 0, []) else "not as if heard"
            return Row(self.name, "all", redirection, code, seconds, "", same, "none; none", left, wrong)


class Command:
    """A command that leaves nothing if it is stopped: `made` is what it would make, or nothing."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, made: str | None, answers: bool):
        self.name, self.argv, self.folder, self.made, self.answers = name, list(argv), folder, made, answers
        folder.mkdir(parents=True)

    def _argv(self, folder: Path) -> list[str]:
        return [*self.argv, *(["--out", str(folder / self.made)] if self.made else [])]

    def row(self, moment: str, event: str) -> Row:
        """At the start, or at work: there is something of what it makes, or most of its time is over."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            said = Path(folder) / "said.txt"
            with Started(self._argv(Path(folder)), said) as started:
                if moment == "working" and self.made:
                    wait_until(lambda: bool(unfinished_in(Path(folder))), started.process)
                else:
                    with suppress(subprocess.TimeoutExpired):
                        started.process.wait(START_SECONDS if moment == "start-up" else self.working_after)
                code, seconds = started.end(EVENTS[event])
                left = len(started.left())
            return self._row(moment, event, code, seconds, left, Path(folder), expected_codes(event, moment), said)

    def left_alone(self) -> None:
        """How long it takes."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            said = Path(folder) / "said.txt"
            with Started(self._argv(Path(folder)), said) as started:
                code, seconds = started.end()
            if code:
                raise RuntimeError(said.read_text())
            self.working_after = 0.8 * seconds

    def row_of_streams(self, redirection: str) -> Row:
        codes = (2,) if self.answers and "full" in redirection else (0,)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            said = Path(folder) / "said.txt"
            with Started(self._argv(Path(folder)), said, redirection) as started:
                code, seconds = started.end()
                left = len(started.left())
            return self._row("all", redirection, code, seconds, left, Path(folder), codes, said)

    def _row(self, moment, event, code, seconds, left, folder: Path, codes, said: Path) -> Row:
        unfinished = unfinished_in(folder)
        there = bool(self.made) and (folder / self.made).exists()
        made = "" if not self.made else "made" if there else "not made"
        wrong = []
        if code not in codes and code != 0:
            wrong.append(f"exit code {code}: {_last_line(said)}")
        if left or (unfinished and event not in ("SIGKILL", "SIGINT twice")) or (there and code):
            wrong.append("something is left")
        if code == 0 and self.made and not there:
            wrong.append("done, and nothing made")
        shown = ", ".join(unfinished) or "none"
        return Row(self.name, moment, event, code, seconds, made, "", shown, left, "; ".join(wrong))


def expected_codes(event: str, moment: str) -> tuple[int, ...]:
    """As the parent sees them. After a second signal the system may end the process itself, and so it does at the first
    one while Python starts or, where the work is done, ends: a shell calls both 128 + n."""
    first = EVENTS[event][0]
    if event == "SIGKILL":
        return (-first,)
    return (128 + first, -first) if event == "SIGINT twice" or moment in ("start-up", "working") else (128 + first,)


def _last_line(said: Path) -> str:
    lines = said.read_text(errors="replace").strip().splitlines()
    return lines[-1][:120] if lines else "nothing said"


@contextmanager
def _processes(folder: Path) -> Iterator[tuple[list[Training], list[Command]]]:
    """A graph, a log, the runs on them, and the commands."""
    write_graph(GeneratedGraph(num_nodes=20_000, num_edges=24_000, num_relations=10), folder / "edges.npy")
    request = {"valid_fraction": 0.02, "test_fraction": 0.005}
    prepare(PrepareRequest(source=str(folder / "edges.npy"), out=folder / "graph", **request))
    spec = LogSpec(categorical=4, numeric=3, keys=20_000)
    write_day(folder / "day.parquet", 0, 20_000, spec)
    write_day(folder / "next.parquet", 1, 40_000, spec)
    graph = {
        "data": {"path": str(folder / "graph")}, "model": {"dimension": 64},
        "training": {"batch_size": 2000, "epochs": 2, "negatives": {"count": 50, "chunks": 5}},
    }  # fmt: skip
    files = {"train": str(folder / "day.parquet"), "valid": str(folder / "next.parquet")}
    log = {
        "task": "ctr", "data": files | spec.schema(), "keys": {"capacity": 30_000},
        "model": {"network": "deepfm", "dimension": 16, "hidden": [64]},
        "training": {"batch_size": 2000, "epochs": 2},
    }  # fmt: skip
    runs = [
        Training("train, graph in memory", folder / "memory", graph),
        Training("train, graph on disk", folder / "disk", {**graph, "storage": {"memory": "8MiB"}}),
        Training("train, log", folder / "log", log),
    ]
    names = ["--head", "90", "--relation", "0"]
    commands = [
        Command("eval", [*COMMAND, "eval", str(folder / "memory/whole"), "--split", "valid"], folder / "e", None, True),
        Command("predict", [*COMMAND, "predict", str(folder / "memory/whole"), *names], folder / "p", None, True),
        Command("predict, log", [*COMMAND, "predict", str(folder / "log/whole"), "--data", files["valid"]],
                folder / "l", "predictions.parquet", False),
        Command("prepare", [*COMMAND, "prepare", str(folder / "edges.npy")], folder / "g", "graph", False),
    ]  # fmt: skip
    yield runs, commands


def _rows(runs: Sequence[Training], commands: Sequence[Command], only: str, events: Sequence[str]) -> Iterator[Row]:
    chosen = [command for command in commands if command.name.startswith(only)]
    for training in runs:
        asked_for = training.name.startswith(only)
        if asked_for or any(str(training.folder / "whole") in command.argv for command in chosen):
            training.left_alone()
        if not asked_for:
            continue
        for moment in ("start-up", "training", "saving", "evaluating"):
            for event in events:
                yield training.row(moment, event)
        for redirection in STREAMS:
            yield training.row_of_streams(redirection)
    for command in chosen:
        command.left_alone()
        for moment in ("start-up", "working"):
            for event in events:
                yield command.row(moment, event)
        for redirection in STREAMS:
            yield command.row_of_streams(redirection)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="rows whose process begins so")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=list(EVENTS), help="by default all")
    options = parser.parse_args()
    print(f"({machine()})\n\n{Row.HEAD}", flush=True)
    found = []
    with tempfile.TemporaryDirectory(prefix="endings-") as folder, _processes(Path(folder)) as (runs, commands):
        for row in _rows(runs, commands, options.only, options.events):
            print(row, flush=True)
            found.append(row)
    wrong = sum(bool(row.wrong) for row in found)
    print(f"\n{len(found) - wrong} of {len(found)} hold.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
