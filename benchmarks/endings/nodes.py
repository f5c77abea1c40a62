"""How a run over nodes ends: every process of it, ended by every signal, at several moments of the run.

    python -m benchmarks.endings.nodes  # everything: about half an hour on two cores
    python -m benchmarks.endings.nodes --moments training --signals KILL

Two nodes on this machine, with `restarts: 1` and `timeout: 10`, started as `--nodes` starts them, by a stand-in for ssh
that runs the command here. They train ComplEx on CoDEx-S. For each row a run is started; at the moment a process of it
is sent the signal. Then: the launcher's exit code, how often trainers were started again, seconds until no process of
the run is left, whether both nodes have the same newest checkpoint, and processes that were still there after
`--patience` seconds, which must be none.
"""

import argparse
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.machine import machine
from tests.ports import free_ports

NODES = ("a", "b")
SIGNALS = ("INT", "TERM", "HUP", "KILL")
PROCESSES = ("launcher", "guard a", "guard b", "agent a", "agent b", "trainer a", "trainer b")
MOMENTS = {
    "meeting": (),
    "training": ("checkpoint.every_epochs=100000",),
    "saving": ("checkpoint.every_batches=1",),
    "evaluating": ("evaluation.every=1", "evaluation.memory=1"),
}
COMMON = (
    "device=cpu", "threads=1", "training.batch_size=6000", "training.negatives.count=50", "metrics.every_batches=1",
    "training.epochs={epochs}",
)  # fmt: skip
SSH = """#!/bin/sh
case "$*" in *"--node late") exec head -n 2 > /dev/null;; esac
while [ "$1" = -o ]; do shift 2; done
shift
exec sh -c "$*"
"""
FEW = 5  # epochs of a run that ends by itself


@dataclass(frozen=True)
class Row:
    """What is done to a run; `what`: a signal's name, or one of those in `SPECIAL`."""

    who: str
    what: str
    moment: str
    restarts: int = 1
    epochs: int = 100_000


SPECIAL = (
    Row("nobody", "a third node does not come", "meeting"),
    Row("trainer b", "KILL", "training", restarts=0),
    Row("launcher", "nobody reads its output on", "training", epochs=FEW),
    Row("a and b", "the disk is full", "saving", restarts=3),
)


class Run:
    """A launcher that runs, in a folder of its own."""

    def __init__(self, folder: Path, row: Row, patience: float) -> None:
        self.row, self.folder, self.patience = row, folder, patience
        self.out = folder / "run"
        tools = folder / "tools"
        tools.mkdir()
        (tools / "ssh").write_text(SSH)
        (tools / "ssh").chmod(0o755)
        names = [*NODES, *(["late"] if row.moment == "meeting" else [])]
        self.port, *ports = free_ports(1 + len(names))
        nodes = [
            f"- {{name: {name}, address: 127.0.0.1, port: {port}}}" for name, port in zip(names, ports, strict=True)
        ]
        about = [f"port: {self.port}", "timeout: 10", f"restarts: {row.restarts}", "nodes:", *nodes]
        (folder / "nodes.yaml").write_text("\n".join(about) + "\n")
        (folder / "config.yaml").write_text(
            "data: {path: codex-s}\nmodel: {decoder: complex, dimension: 1000}\nevaluation: {every: 0}\n"
        )
        sets = [each.format(epochs=row.epochs) for each in (*COMMON, *MOMENTS[row.moment])]
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MARIUS_OAC_SECRET"))
        }
        self.log = folder / "log"
        options = [word for each in sets for word in ("--set", each)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "marius_oac", "train", str(folder / "config.yaml"), "--nodes",
                 str(folder / "nodes.yaml"), "--out", str(self.out), *options],
                env=clean | {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(folder)}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if row.who == "launcher" else log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        if self.process.stdout is not None:
            self.reader = threading.Thread(target=self._read)
            self.reads = True
            self.reader.start()

    def _read(self) -> None:
        with self.log.open("wb") as log:
            while self.reads and (found := os.read(self.process.stdout.fileno(), 1 << 16)):
                log.write(found)
                log.flush()

    def family(self) -> dict[str, psutil.Process]:
        """Its processes by what they are; what is none of `PROCESSES` by its number."""
        found = {"launcher": psutil.Process(self.process.pid)}
        for one in found["launcher"].children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                found[name_of(one)] = one
        return found

    def left_over(self) -> list[int]:
        """Processes with the run's folder in their command line."""
        there = []
        for one in psutil.process_iter(["cmdline", "status"]):
            words = " ".join(one.info["cmdline"] or ())
            if str(self.folder) in words and one.info["status"] != psutil.STATUS_ZOMBIE:
                there.append(one.pid)
        return there

    def checkpoints(self, node: str) -> list[str]:
        """The names of a node's whole checkpoints."""
        found = self.out.glob(f"nodes/*/{node}/checkpoints/*/manifest.json")
        return sorted(each.parent.name for each in found if each.parent.name.isdecimal())

    def saving(self) -> bool:
        """Whether a node writes a checkpoint now, and not its first, whose end says that all is set up."""
        return bool(self.checkpoints("a")) and any(self.out.glob("nodes/*/*/checkpoints/.*.unfinished"))

    def batches(self) -> int:
        """Batches that the run has told of."""
        with suppress(FileNotFoundError):
            return (self.out / "metrics.jsonl").read_text().count('"batch"')
        return 0

    def meeting(self) -> bool:
        """Whether the agents of both nodes are there, and the second one talks to the first."""
        family = self.family()
        if not {"agent a", "agent b"} <= set(family):
            return False
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            lines = family["agent b"].net_connections("inet")
            return any(line.raddr and line.raddr.port == self.port for line in lines)
        return False

    def at_its_moment(self) -> None:
        """Returns when it is."""
        moments = {"meeting": self.meeting, "training": lambda: self.batches() > 3, "saving": self.saving,
                   "evaluating": lambda: bool(self.checkpoints("a"))}  # fmt: skip
        wait_until(moments[self.row.moment], self.patience, self.process)
        if self.row.moment == "evaluating":  # it follows the checkpoint, and takes a second
            time.sleep(0.2)

    def act(self) -> None:
        """What the row says."""
        if self.row.what in SIGNALS:
            number = signal.Signals[f"SIG{self.row.what}"]
            self.family()[self.row.who].send_signal(number)
        elif self.row.what.startswith("nobody reads"):
            self.reads = False
            self.reader.join()
            self.process.stdout.close()
        elif self.row.what == "the disk is full":
            with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))

    def close(self) -> None:
        """Ends what is left."""
        for pid in self.left_over():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.reader.join()
            self.process.stdout.close()


def name_of(process: psutil.Process) -> str:
    """Which of `PROCESSES` it is."""
    words = process.cmdline()
    if words[1:2] != ["-m"] or words[-2:-1] != ["--node"]:
        return str(process.pid)
    if words[2] == "marius_oac.nodes.launch.guard":
        return f"guard {words[-1]}"
    return f"{'trainer' if 'LOCAL_RANK' in process.environ() else 'agent'} {words[-1]}"


def wait_until(condition: Callable[[], bool], patience: float, process: subprocess.Popen) -> None:
    """Looks every few milliseconds. Raises RuntimeError if the process ends before, or it takes too long."""
    deadline = time.monotonic() + patience
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the moment did not come")
        time.sleep(0.002)


def over(descriptors: Sequence[int], deadline: float) -> None:
    """Waits until these processes have ended, or the deadline has passed."""
    for descriptor in descriptors:
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            selector.select(max(0.0, deadline - time.monotonic()))
        os.close(descriptor)


@contextmanager
def folder_of(row: Row) -> Iterator[Path]:
    """A folder for a run; on a small disk of its own, where the row wants that to fill up."""
    with tempfile.TemporaryDirectory(prefix="endings-") as name:
        full = row.what == "the disk is full"
        if full:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "none", name], check=True)
        try:
            yield Path(name)
        finally:
            if full:
                subprocess.run(["umount", "-l", name], check=True)


def measure(row: Row, patience: float) -> list[str]:
    """The cells of a row."""
    with folder_of(row) as folder:
        run = Run(folder, row, patience)
        try:
            run.at_its_moment()
            descriptors = [os.pidfd_open(one.pid) for one in run.family().values()]
            run.act()
            began = time.monotonic()
            over(descriptors, began + patience)
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(max(0.0, began + patience - time.monotonic()))
            seconds = time.monotonic() - began
            left = run.left_over()
            first, second = (run.checkpoints(node)[-1:] for node in NODES)
            saved = "-" if row.moment == "meeting" else "yes" if first and first == second else "no"
            said = run.log.read_text("utf-8", "replace") if run.log.exists() else ""
            again = str(len(set(re.findall(r"started again \(\d+\)", said))))
            code = run.process.poll()
            ended = "none" if code is None else signal.Signals(-code).name if code < 0 else str(code)
            where = f"restarts {row.restarts}"
            return [row.who, row.what, row.moment, where, ended, again, f"{seconds:.1f}", saved, str(len(left))]
        except (RuntimeError, KeyError) as error:
            said = run.log.read_text("utf-8", "replace")[-800:] if run.log.exists() else ""
            print(f"{row}: {error!r}\n{said}", file=sys.stderr, flush=True)
            return [row.who, row.what, row.moment, f"restarts {row.restarts}", "not measured", "", "", "", ""]
        finally:
            run.close()


def rows_of(args: argparse.Namespace) -> list[Row]:
    """What is measured."""
    rows = []
    for moment in args.moments:
        for who in args.processes:
            for what in args.signals:
                again = who.startswith("trainer") and what == "KILL"  # the run goes on, and is waited for
                few = {"epochs": FEW} if moment == "training" else {"restarts": 0}
                if moment != "meeting" or not who.startswith("trainer"):
                    rows.append(Row(who, what, moment, **few if again else {}))
    return rows + [row for row in SPECIAL if row not in rows and not args.no_special]


def table(found: Sequence[Sequence[str]]) -> list[str]:
    """All cells, a line for each process and what happens to it, a column for each moment."""
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for who, what, moment, where, code, again, seconds, saved, left in found:
        cell = f"{code}, {seconds} s, {saved}" + (f", {again} restart" if again != "0" else "")
        about = (who, what) if where == "restarts 1" else (who, f"{what}, `{where.replace(' ', ': ')}`")
        lines.setdefault(about, {})[moment] = cell + (f", **{left} left**" if left != "0" else "")
    return [
        f"| process | what happens | {' | '.join(MOMENTS)} |",
        f"|---|---|{'---|' * len(MOMENTS)}",
        *(f"| {' | '.join(about)} | {' | '.join(cells.get(moment, '') for moment in MOMENTS)} |"
          for about, cells in lines.items()),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", nargs="+", choices=MOMENTS, default=list(MOMENTS))
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=list(SIGNALS))
    parser.add_argument("--processes", nargs="+", choices=PROCESSES, default=list(PROCESSES))
    parser.add_argument("--no-special", action="store_true", help="without the rows that are no signal")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for a run to begin, and to end")
    args = parser.parse_args()
    print(machine())
    found = []
    with ThreadPoolExecutor(args.parallel) as pool:
        for cells in pool.map(lambda row: measure(row, args.patience), rows_of(args)):
            print(f"| {' | '.join(cells)} |", file=sys.stderr, flush=True)
            found.append(cells)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
