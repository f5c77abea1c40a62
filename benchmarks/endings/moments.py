"""How soon a run over nodes is over, or goes on, after a process of it was killed or stopped at a random moment.

    python -m benchmarks.endings.moments --moments 1 --parallel 2  # each case once: about half an hour on two cores
    python -m benchmarks.endings.moments --ways ssh --signals STOP --seed 7

Two nodes on this machine, `timeout: 10` (of `--local-nodes`: 60), a made-up graph, a checkpoint every 20 batches, an
evaluation every epoch, no last epoch. They are started in five ways: `--local-nodes`; `--nodes` with a stand-in for
ssh; an agent for each node by hand (`--node`); the user's own torchrun; `--on ray`, with an instance of Ray of the
run's own (where Ray is installed; `timeout: 10`). At a moment that a seed draws, while they start or train, a signal is
sent to

- the launcher (torchrun; the driver on Ray; of agents by hand there is none),
- the agent of the second node (which is the launcher under `--local-nodes` and torchrun, and an actor on Ray),
- the second node: all processes of it at once (on Ray: the raylet of its only node),
- the shard of the second node: its trainer, which has the shard's threads.

Seconds: until nothing of the run is left, or until it trains again after a restart. Of processes that are stopped and
have nobody above them, they are until nothing else is left; then SIGCONT must end them, within 2 x `timeout` + 5 s
again. A launcher goes on and trains instead if it had started nothing yet, and the user's torchrun if it may restart.
What Ray itself has started stays beside a driver that is stopped, and is not waited for before. Asked: at most
2 x `timeout` + 5 s, and nothing left. A request to stop (TERM to a launcher, an agent or a node) while it trains must
leave both nodes with the same newest checkpoint.
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil
import yaml

from benchmarks.endings.nodes import SSH, name_of
from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.machine import machine
from marius_oac.prepare.prepare import PrepareRequest, prepare
from tests.ports import free_ports

TIMEOUT = 10
TIMEOUTS = {"local": 60, "torchrun": 60, "ssh": TIMEOUT, "agents": TIMEOUT, "ray": TIMEOUT}
WAYS = {"local": (0,), "ssh": (0, 1), "agents": (0, 1), "torchrun": (0, 1), "ray": (0, 1)}
TARGETS = ("launcher", "agent", "node", "shard")
SIGNALS = ("KILL", "TERM", "STOP")
PATIENCE = 150.0


@dataclass(frozen=True)
class Case:
    """What is done to a run. `delay`: seconds, from the start or, if `training`, from its first batch on."""

    way: str
    restarts: int
    target: str
    signal: str
    training: bool
    delay: float


class Run:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, graph: Path, case: Case):
        self.folder, self.case, self.out = folder, case, folder / "run"
        tools = folder / "tools"
        tools.mkdir()
        (tools / "ssh").write_text(SSH)
        (tools / "ssh").chmod(0o755)
        config = {
            "data": {"path": str(graph)}, "model": {"dimension": 16}, "device": "cpu", "threads": 1,
            "training": {"batch_size": 1000, "epochs": 100_000, "negatives": {"count": 50, "chunks": 5}},
            "checkpoint": {"every_batches": 20}, "metrics": {"every_batches": 1}, "evaluation": {"every": 1},
        }  # fmt: skip
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        port, *ports = free_ports(3)
        nodes = [{"name": name, "address": "127.0.0.1", "port": each} for name, each in zip("ab", ports, strict=True)]
        cluster = {"port": port, "timeout": TIMEOUT, "restarts": case.restarts, "secret": "secret"}
        (folder / "nodes.yaml").write_text(yaml.safe_dump({**cluster, "nodes": nodes}))
        (folder / "secret").write_text("0123456789abcdef" * 4)
        (folder / "secret").chmod(0o600)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MARIUS_OAC_SEC"))}
        self._environment = clean | {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(folder)}
        self.tops = [self._start(words, number) for number, words in enumerate(self._commands())]

    def _commands(self) -> list[list[str]]:
        train = ["-m", "marius_oac", "train", str(self.folder / "config.yaml"), "--out", str(self.out)]
        over = ["--nodes", str(self.folder / "nodes.yaml")]
        if self.case.way == "local":
            return [[*train, "--local-nodes", "2"]]
        if self.case.way == "ray":
            self._environment.pop("RAY_ADDRESS", None)
            options = {"on": "ray", "trainers": 2, "restarts": self.case.restarts, "timeout": TIMEOUT}
            return [[*train, *(f"--{name}={value}" for name, value in options.items())]]
        if self.case.way == "ssh":
            return [[*train, *over]]
        if self.case.way == "agents":
            return [[*train, *over, "--node", name] for name in "ab"]
        self._environment |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "MARIUS_OAC_SECRET": "0123456789abcdef" * 4}
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [[*torchrun, "--max-restarts", str(self.case.restarts), *train, "--local-nodes", "2"]]

    def _start(self, words: Sequence[str], number: int) -> subprocess.Popen:
        with (self.folder / f"log{number}").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *words], env=self._environment, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        return "\n".join(log.read_text("utf-8", "replace") for log in sorted(self.folder.glob("log*")))

    def targets(self) -> list[psutil.Process]:
        """The processes that get the signal; none: they are not there yet."""
        below = [each for top in self.tops for each in psutil.Process(top.pid).children(recursive=True)]
        way, target = self.case.way, self.case.target
        if target == "launcher":
            return [psutil.Process(self.tops[0].pid)]
        if way == "ray":
            return self._on_ray(target, below)
        if way in ("local", "torchrun"):
            shard = [each for each in below if each.environ().get("LOCAL_RANK") == "1"]
            return shard if target in ("shard", "node") else [psutil.Process(self.tops[0].pid)]
        second = [each for each in below if each.cmdline()[-2:] == ["--node", "b"]]
        if way == "agents":
            second += [psutil.Process(self.tops[1].pid)]
        if target == "node":
            return second if len(second) >= (3 if way == "ssh" else 2) else []
        kind = {"agent": "agent b", "shard": "trainer b"}[target]
        return [each for each in second if name_of(each) == kind]

    @staticmethod
    def _on_ray(target: str, below: Sequence[psutil.Process]) -> list[psutil.Process]:
        if target == "node":
            return [each for each in below if each.name() == "raylet"]
        trainers = sorted((each for each in below if is_trainer(each)), key=lambda each: each.pid)
        second = trainers[1:2]
        return second if target == "shard" else [each.parent() for each in second]

    def batches(self) -> int:
        with contextlib.suppress(OSError):
            return (self.out / "metrics.jsonl").read_bytes().count(b'"batch"')
        return 0

    def there(self) -> list[psutil.Process]:
        """Processes of the run that are no zombies."""
        found = []
        for one in psutil.process_iter(["environ", "status"]):
            ours = (one.info["environ"] or {}).get("TMPDIR") == str(self.folder)
            if ours and one.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(one)
        return found

    def same_checkpoint(self) -> bool:
        names = []
        for parts in self.out.glob("nodes/*/*/checkpoints"):
            whole = (each.parent.name for each in parts.glob("*/manifest.json"))
            names.append(max((name for name in whole if name.isdecimal()), default=""))
        return len(names) == 2 and names[0] == names[1] != ""

    def close(self) -> None:
        for one in self.there():
            with contextlib.suppress(psutil.Error):
                one.kill()
        for top in self.tops:
            top.wait()


def is_trainer(process: psutil.Process) -> bool:
    """Whether it is the trainer of an actor on Ray."""
    with contextlib.suppress(psutil.Error):
        return "marius_oac.nodes.training.trainer" in process.cmdline()
    return False


def wait_until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def measure(case: Case, graph: Path) -> tuple[str, float, str]:
    """How it ended (over, recovered, hung, or not begun), after how many seconds, and what is wrong."""
    with tempfile.TemporaryDirectory(prefix="moments-") as name:
        run = Run(Path(name), graph, case)
        try:
            ended = lambda: any(top.poll() is not None for top in run.tops)  # noqa: E731
            if case.training and not (wait_until(lambda: run.batches() > 3 or ended(), PATIENCE) and not ended()):
                return "not begun", 0.0, run.said()[-600:]
            time.sleep(case.delay)
            found: list[psutil.Process] = []

            def come() -> bool:
                with contextlib.suppress(psutil.Error, IndexError):
                    found[:] = run.targets()
                return bool(found)

            if not wait_until(come, PATIENCE):
                return "not begun", 0.0, run.said()[-600:]
            return after(run, case, found)
        finally:
            run.close()


def after(run: Run, case: Case, found: Sequence[psutil.Process]) -> tuple[str, float, str]:
    """Sends the signal, and waits."""
    tops = {top.pid for top in run.tops}
    spared = {each.pid for each in found if case.signal == "STOP" and (each.pid in tops or case.way == "agents")}
    trained, began = run.batches() > 0, time.monotonic()
    for each in found:
        with contextlib.suppress(psutil.Error):
            each.send_signal(signal.Signals[f"SIG{case.signal}"])
    batches, old = run.batches(), {each.pid for each in run.there()}
    seconds = 0.0

    def over() -> bool:
        for top in run.tops:
            top.poll()
        rays = case.way == "ray" and spared
        return all(each.pid in spared or (rays and not is_trainer(each)) for each in run.there())

    def recovered() -> bool:
        again = {each.pid for each in run.there() if each.pid not in old}
        return bool(again) and "started again" in run.said() and run.batches() > batches + 3

    if not wait_until(lambda: over() or recovered(), PATIENCE):
        left = ", ".join(f"{name_of(each)} {each.status()}" for each in run.there())
        return "hung", PATIENCE, f"left: {left}; {run.said()[-600:]}"
    seconds, how = time.monotonic() - began, "over" if over() else "recovered"
    wrong = []
    if how == "over" and spared:
        for each in found:
            with contextlib.suppress(psutil.Error):
                each.send_signal(signal.SIGCONT)
        spared.clear()
        may_go_on = old <= tops or (case.way == "torchrun" and case.restarts)
        continued, batches = time.monotonic(), run.batches()
        goes_on = lambda: may_go_on and run.batches() > batches + 3  # noqa: E731
        if not wait_until(lambda: over() or goes_on(), 2 * TIMEOUTS[case.way] + 5):
            wrong.append("left after SIGCONT")
        what = "over" if over() else "goes on" if goes_on() else "still there"
        how += f", {what} {time.monotonic() - continued:.1f} s after SIGCONT"
    orderly = case.signal == "TERM" and case.target != "shard"
    if how.startswith("over") and orderly and trained and not run.same_checkpoint():
        wrong.append("no checkpoint of both")
    if seconds > 2 * TIMEOUTS[case.way] + 5:
        wrong.append("too late: " + run.said()[-600:])
    return how, seconds, "; ".join(wrong)


def cases_of(args: argparse.Namespace) -> list[Case]:
    draw, found = random.Random(args.seed), []
    for _ in range(args.moments):
        for way in args.ways:
            for restarts in WAYS[way]:
                for target in args.targets:
                    if target == ("agent" if way in ("local", "torchrun") else "launcher" if way == "agents" else ""):
                        continue  # the launcher is the agent; there is no launcher
                    for each in args.signals:
                        training = draw.random() < 0.7
                        found.append(Case(way, restarts, target, each, training, draw.uniform(0, 6 if training else 9)))
    draw.shuffle(found)
    return found


def table(found: Sequence[tuple[Case, tuple[str, float, str]]]) -> Iterator[str]:
    """A line for each launcher, process and signal."""
    yield "| launcher | restarts | process | signal | moments | over | recovered | seconds: median, most | wrong |"
    yield "|---|---|---|---|---|---|---|---|---|"
    key = lambda case: (case.way, case.restarts, case.target, case.signal)  # noqa: E731
    for each in sorted({key(case) for case, _ in found}):
        ends = [end for case, end in found if key(case) == each and end[0] != "not begun"]
        if ends:
            seconds = [end[1] for end in ends]
            ways = [sum(how.startswith(kind) for how, *_ in ends) for kind in ("over", "recovered")]
            shown = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
            wrong = sum(bool(end[2]) for end in ends)
            yield f"| {' | '.join(map(str, (*each, len(ends), *ways, shown, wrong)))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=1, help="of each case")
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, default=[way for way in WAYS if way != "ray" or find_spec("ray")]
    )
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=list(SIGNALS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which none is begun")
    args = parser.parse_args()
    print(machine(), flush=True)
    began, found = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="moments-") as folder, ThreadPoolExecutor(args.parallel) as pool:
        write_graph(GeneratedGraph(num_nodes=20_000, num_edges=24_000, num_relations=10), Path(folder) / "edges.npy")
        request = {"valid_fraction": 0.02, "test_fraction": 0.005}
        prepare(PrepareRequest(source=str(Path(folder) / "edges.npy"), out=Path(folder) / "graph", **request))

        def end(case: Case) -> tuple[Case, tuple[str, float, str]] | None:
            if time.monotonic() - began > args.seconds:
                return None
            try:
                return case, measure(case, Path(folder) / "graph")
            except (psutil.Error, OSError) as error:
                return case, ("not begun", 0.0, repr(error))

        for each in pool.map(end, cases_of(args)):
            if each is not None:
                found.append(each)
                print(*each, file=sys.stderr, flush=True)
    print("\n".join(table(found)))
    wrong = sum(bool(end[2]) for _, end in found if end[0] != "not begun")
    measured = sum(end[0] != "not begun" for _, end in found)
    print(f"\n{measured - wrong} of {measured} within 2 x `timeout` + 5 s, with nothing left.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
