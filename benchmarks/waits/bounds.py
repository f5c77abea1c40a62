"""What bound a run, as its report says, where the cause was planted; and whether the setting that it names helps.

    python -m benchmarks.waits.bounds                # every case, some 90 seconds on two cores
    python -m benchmarks.waits.bounds --only "small window"

Delays are planted in front of a stage's work, where they count as its time and burn no processor. "Said" is the line's
"up to N times as fast", which is 2 at most; "found" is how many times as fast a run with the named setting was.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from benchmarks.slow_link import SlowLink
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.config.task import TaskConfig
from marius_oac.insight.report.history import read_history
from marius_oac.training.local import train

WORKERS = ("plan", "read", "upload", "download", "write")
GRAPH = {
    "data": {"path": "codex-s"},
    "device": "cpu",
    "threads": 1,
    "model": {"decoder": "distmult", "dimension": 32},
    "training": {"epochs": 1, "batch_size": 200, "negatives": {"count": 50}},
    "evaluation": {"every": 0},
    "pipeline": {"in_flight": 4, "workers": dict.fromkeys(WORKERS, 1)},
}
ALL_BUT_COMPUTE = {stage: 0.006 for stage in ("read", "upload", "download", "write")}


@dataclass(frozen=True)
class Case:
    """A cause that is planted.

    Attributes:
        by: what must be named.
        helps: the setting that must be named.
        delays: seconds by stage, before each batch.
        link: seconds that a batch occupies each direction of a link; half as many where the advice is followed.
        planted: changes of the configuration that plant it.
        helped: changes that follow the advice.
        clicks: trains on a click log.
    """

    name: str
    by: str
    helps: str
    delays: Mapping[str, float] = field(default_factory=dict)
    planted: tuple[str, ...] = ()
    helped: tuple[str, ...] = ()
    clicks: bool = False
    link: float = 0.0


CASES = (
    Case("one planner", "plan", "workers.plan", {"plan": 0.01}, (), ("pipeline.workers.plan=2",)),
    Case("few readers", "read", "workers.read", {"read": 0.01}, (), ("pipeline.workers.read=2",)),
    Case("heavy writes", "write", "workers.write", {"write": 0.01}, (), ("pipeline.workers.write=2",)),
    Case("slow way up", "link", "workers.upload", {"upload": 0.01}, (), ("pipeline.workers.upload=2",)),
    Case("slow way down", "link", "workers.download", {"download": 0.01}, (), ("pipeline.workers.download=2",)),
    Case("slow link", "link", "a faster link", link=0.04),
    Case("small window", "batches in flight", "pipeline.in_flight", ALL_BUT_COMPUTE, ("pipeline.in_flight=2",),
         ("pipeline.in_flight=4",)),
    Case("small window, one batch", "batches in flight", "pipeline.in_flight", ALL_BUT_COMPUTE,
         ("pipeline.in_flight=1",), ("pipeline.in_flight=2",)),
    Case("much to compute", "compute", "threads",
         {}, ("model.dimension=256", "training.negatives.count=500", "training.batch_size=1000"), ("threads=2",)),
    Case("small batches", "compute", "training.batch_size", {}, ("training.batch_size=20",),
         ("training.batch_size=40",)),
    Case("small cache, slow disk", "disk", "storage.memory", {},
         ("model.dimension=256", "training.batch_size=100", "storage.memory=4MiB", "training.epochs=2"),
         ("storage.memory=null",)),
    Case("slow files of a log", "data", "workers.plan", {"plan": 0.02}, (), ("pipeline.workers.plan=2",), clicks=True),
    Case("slow evaluation", "evaluation", "evaluation.every", {},
         ("evaluation.every=1", "training.epochs=4", "training.batch_size=4000", "training.negatives.count=5",
          "model.dimension=256"), ("evaluation.every=2",)),
)  # fmt: skip


def main() -> None:
    """Prints a row of the table for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    args = parser.parse_args()
    print(machine(), "\n| planted | named | said | found |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.parquet"
        for number, case in enumerate(CASES):
            if args.only in (None, case.name):
                print(_row(case, Path(folder) / str(number), log), flush=True)


def _row(case: Case, out: Path, log: Path) -> str:
    planted, line, times = _run(case, case.planted, case.link, out / "planted", log)
    helped, _, _ = _run(case, (*case.planted, *case.helped), case.link / 2, out / "helped", log)
    right = f"by {case.by}" in line.lower() and case.helps in line
    return f"| {case.name} | {'' if right else 'WRONG: '}{line} | {times:.1f} | {planted / helped:.2f} |"


def _run(case: Case, changes: tuple[str, ...], seconds: float, out: Path, log: Path) -> tuple[float, str, float]:
    """Seconds, what is said to have bound the run, and how many times as fast it may be."""
    link = SlowLink(seconds)

    def probe(stage: str, batch_index: int) -> None:
        link(stage, batch_index)
        if stage in case.delays:
            time.sleep(case.delays[stage])

    train(_config(case, changes, log), out, probe=probe)
    history = read_history(out)
    found = history.bound_by_evaluation() or history.bound()
    assert found is not None
    evaluations = sum(each.values.get("seconds", 0.0) for each in history.evaluations)
    return history.seconds + evaluations, found.line, found.times


def _config(case: Case, changes: tuple[str, ...], log: Path) -> TaskConfig:
    if not case.clicks:
        return Config.build(GRAPH, changes)
    spec = LogSpec(categorical=4, numeric=3, keys=3000, skew=1.05)
    if not log.exists():
        write_day(log, 0, 20_000, spec)
    tree = {"task": "ctr", "threads": 1, "device": "cpu", "keys": {"capacity": 4000}, "pipeline": GRAPH["pipeline"]}
    model = {"network": "deepfm", "dimension": 4, "hidden": [16]}
    files = {"train": str(log)} | spec.schema()
    return CtrConfig.build(
        tree | {"model": model, "data": files, "training": {"epochs": 1, "batch_size": 200}}, changes
    )


if __name__ == "__main__":
    main()
