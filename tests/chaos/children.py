"""Cases that run in a child process, one after the other: the end of a process is seen, a hang ends it, and the next
case goes on in another one.

The child prints two lines for each case, of JSON: before it (`done` is false) and after it.
"""

import argparse
import contextlib
import faulthandler
import importlib
import io
import json
import os
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
"""For a command, which takes less than a second where the machine has nothing else to do."""
HUNG = "Timeout ("
"""What `faulthandler` says before it ends a process that hangs."""
BEFORE = "before the first case"


@dataclass(frozen=True)
class Outcome:
    """Of one case. `fault` is what was wrong with what a command did; None: nothing."""

    specimen: str
    number: int
    change: str
    commands: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    fault: str | None = None

    def __str__(self) -> str:
        where = f"--only '{self.specimen}' --first {self.number} --count 1"
        return f"{where}: {self.change}\n  {' ; '.join(self.commands)} -> {list(self.codes)}\n  {self.fault}"


def outcomes_of(
    command: Sequence[str], specimen: str, begin: int, folder: Path, deadline: float | None, **environment: str
) -> Iterator[Outcome]:
    """Outcomes of the cases of a child until one ends the process.

    Args:
        command: for Python; its cases are of this specimen, from number `begin` on.
        folder: for its standard error and its caches.
        deadline: of `time.monotonic`; the child is ended then.

    Raises RuntimeError where it ends before its first case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = _environment(folder) | environment
    with open(folder / "stderr", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, env=given
        )
        now = Outcome(specimen, begin, BEFORE)
        try:
            for line in process.stdout:
                told = json.loads(line)
                now = Outcome(
                    **{key: tuple(value) if isinstance(value, list) else value for key, value in told["of"].items()}
                )
                if told["done"]:
                    yield now
                    now = Outcome(specimen, now.number + 1, "between cases")
                if deadline and time.monotonic() > deadline:
                    process.kill()
                    return
        finally:
            if process.poll() is None and sys.exc_info()[0]:
                process.kill()
            process.stdout.close()
            code = process.wait()
    if code:
        tail = (folder / "stderr").read_text("utf-8", "replace")[-3000:]
        if now.change == BEFORE:
            raise RuntimeError(f"{specimen} can't be made, or read as it was made: {tail}")
        fault = f"the process has ended with code {code}: {tail}"
        yield Outcome(specimen, now.number, now.change, now.commands, now.codes, fault)


def _environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "OPENBLAS_CORETYPE"}
    # A write that fails half-way would leave half a module's bytecode for everybody.
    return kept | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Said:
    """What became of a command: its exit code, its lines, and what it raised, which a user would see as a traceback."""

    argv: tuple[str, ...]
    code: int
    out: tuple[str, ...]
    err: tuple[str, ...]
    raised: str | None = None

    @property
    def fault(self) -> str | None:
        """What no command may do, whatever lies on the disk: more or less than one line of an error, a traceback, a
        thread that outlives it."""
        told = f"{' '.join(self.argv[:2])} -> {self.code}: {list(self.err[-3:])}"
        if self.raised or any("Traceback" in line for line in (*self.out, *self.err)):
            return f"traceback: {told} {self.raised}"
        own = [line for line in self.err if line.startswith("marius-oac: ")]
        answered = self.argv[0] == "verify" and not own  # exit code 2 is its answer then
        if self.code not in (0, 2) or len(own) != (self.code == 2 and not answered):
            return f"wrong: {told}"
        if threading.active_count() > 1:
            return f"wrong: {told}; threads: {threading.enumerate()}"
        return None


def call(*argv: object) -> Said:
    """Runs a command in this process, which ends where the command takes too long."""
    from marius_oac.cli.commands import main

    words = tuple(map(str, argv))
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace")]
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    code, raised = -1, None
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = main(words)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        raised = traceback.format_exc(limit=-6)
    finally:
        faulthandler.cancel_dump_traceback_later()
    for stream in streams:
        stream.flush()
    out, err = (tuple(stream.buffer.getvalue().decode().splitlines()) for stream in streams)
    return Said(words, code, out, err, raised)


@dataclass
class Case:
    """`run` returns the commands with their exit codes, and what was wrong."""

    specimen: str
    change: str
    run: Callable[[], tuple[Sequence[Said], str | None]]


@dataclass
class Tally:
    """Numbers of many cases, and what was wrong in some."""

    of: str
    cases: int = 0
    refused: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("lost", "hung", "traceback", "wrong"), 0))
    faults: list[Outcome] = field(default_factory=list)
    by_specimen: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.cases += 1
        self.refused += any(outcome.codes)
        self.by_specimen[outcome.specimen] = self.by_specimen.get(outcome.specimen, 0) + 1
        if outcome.fault:
            kind = outcome.fault.split(":")[0]
            kind = "hung" if HUNG in outcome.fault else kind if kind in self.counts else "wrong"
            self.counts[kind] += 1
            self.faults.append(outcome)

    def row(self) -> str:
        return f"| {self.of} | {self.cases} | {self.refused} | {' | '.join(map(str, self.counts.values()))} | " + (
            f"{self.seconds:.0f} |"
        )


HEAD = "| cases | number | refused in a line | lost | hung | tracebacks | other wrong ends | s |\n" + "|---" * 8 + "|"


def run_cases(
    name: str, seed: int, folder: Path, first: int = 0, count: int = 1 << 30, seconds: float | None = None,
    told: Callable[[Outcome], None] = lambda outcome: None, environment: Mapping[str, str] = MappingProxyType({}),
) -> Tally:  # fmt: skip
    """Cases of the module `tests.chaos.NAME`, in the order that the seed gives; none begins after so many seconds."""
    tally, began = Tally(name), time.monotonic()
    deadline = began + seconds if seconds else None
    begin, end = first, first + count
    while begin < end and not (deadline and time.monotonic() > deadline):
        before = tally.cases
        command = ["-m", "tests.chaos.children", name, str(folder / name), str(seed), str(begin), str(end)]
        for outcome in outcomes_of(command, name, begin, folder / name, deadline, **environment):
            begin = outcome.number + 1
            tally.add(outcome)
            told(outcome)
        if tally.cases == before or not tally.faults or tally.faults[-1].number != begin - 1:
            break  # there are no more: the last one has not ended the process
    tally.seconds = time.monotonic() - began
    return tally


def _child(args: argparse.Namespace) -> None:
    """Cases are told of by their place in the order of the seed: from there on, another child has the same ones."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")

    def tell(outcome: Outcome, done: bool) -> None:
        print(json.dumps({"of": asdict(outcome), "done": done}), file=output, flush=True)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    import torch

    from marius_oac.runtime import standstill

    standstill.in_command = lambda: False  # the one timer of faulthandler is that of `call`
    torch.set_num_threads(1)
    made = importlib.import_module(f"tests.chaos.{args.module}").cases(args.folder, args.seed)
    for number in range(args.begin, min(args.end, len(made))):
        case = made[number]
        outcome = Outcome(case.specimen, number, case.change)
        tell(outcome, False)
        said, fault = case.run()
        commands, codes = tuple(" ".join(each.argv[:2]) for each in said), tuple(each.code for each in said)
        tell(Outcome(**{**asdict(outcome), "commands": commands, "codes": codes, "fault": fault}), True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("folder", type=Path)
    for name in ("seed", "begin", "end"):
        parser.add_argument(name, type=int)
    _child(parser.parse_args())
