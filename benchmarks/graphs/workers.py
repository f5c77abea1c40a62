"""`auto` against numbers set by hand: batches in flight and threads by measurement.

    python -m benchmarks.graphs.workers nothing --cores 1 --setting graph  # nothing can be hidden: against `sync`
    python -m benchmarks.graphs.workers planted --load link  # something can: from the worst start, against a grid

`nothing` trains on a graph (ComplEx, batches of 1,000, 500 negatives a side) or on clicks (DLRM): all rows in memory,
no link. Contestants have a process each, on the same cores, and take turns; in the first turns `auto` looks for its
numbers.

`planted` trains on a graph's edges over something that waits: `link`, which moves a batch in the time of computing it
and has 20 ms of latency; `disk`, `fetch`, `plans` or `writes`: a probe holds a stage for a multiple of the time of
computing: with rows on disk those that wait for them, or the one thread that fetches them. Memory has room for the
pages of several batches there (`--memory`). `auto` begins with the worst setting of the grid. All take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.clicks import speed as clicks
from benchmarks.clicks.step import BATCH
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.graphs import step_speed as graphs
from benchmarks.graphs.runs import TimedSession, benchmark_graph, complex_config, compute_seconds
from benchmarks.machine import machine
from benchmarks.slow_link import SlowLink
from benchmarks.turns import Times, take_turns
from marius_oac.config.link_prediction import Config
from marius_oac.pipeline.setting import STAGES, Setting
from marius_oac.pipeline.tuner import Tuner

GRID = tuple(
    Setting(window, plan, *([inside] * 4))
    for window, plan, inside in ((1, 1, 1), (2, 1, 1), (4, 1, 1), (4, 4, 2), (8, 1, 1), (8, 4, 4), (16, 4, 4))
)
HELD = {"disk": ("wait", 3.0), "fetch": ("fetch", 0.9), "plans": ("plan", 3.0), "writes": ("write", 3.0)}
"""The stage that a probe holds, and for how many times the seconds of computing; one thread fetches."""
LATENCY = 0.02  # seconds
FIRST = 3  # rounds in which `auto` looks for its numbers


class AutoGraph(graphs.OurPipeline):
    """Says what `auto` has come to, too."""

    def report(self) -> str:
        return f"{self._pipeline.tuner and self._pipeline.tuner.kept}; {super().report()}"


class AutoClicks(clicks.OurPipeline):
    """Says what `auto` has come to, too."""

    def report(self) -> str:
        return f"{self._pipeline.tuner and self._pipeline.tuner.kept}; {super().report()}"


def nothing(options: argparse.Namespace) -> None:
    """Prints a table of `sync`, `oac` with 4 in flight, and `auto`."""
    with tempfile.TemporaryDirectory() as folder:
        if options.setting == "graph":
            size, batches, make = 1_000, 50, AutoGraph
            races = [graphs.Race("complex", "a", options.cores, number) for number in (4, "auto")]
        else:
            size, batches, make, path = BATCH, 10, AutoClicks, Path(folder) / "day.parquet"
            features, numbers, _ = clicks.SETTINGS["dlrm"]
            spec = LogSpec(categorical=features, numeric=numbers, keys=1_000_000, skew=1.05)
            write_day(path, 0, 200_000, spec)
            races = [clicks.Race("dlrm", str(path), spec, options.cores, number) for number in (4, "auto")]
        by_hand, auto = races
        factories = {
            "sync": partial(make, by_hand, "sync"),
            "oac": partial(make, by_hand, "oac"),
            "auto": partial(make, auto, "oac"),
        }
        times = take_turns(factories, options.cores, batches, options.rounds)
    print(f"\n| {options.setting}, {options.cores} cores | examples/s | / sync |\n|---|---|---|")
    for name, part in (
        ("sync", slice(None)),
        ("oac", slice(None)),
        ("auto", slice(FIRST)),
        ("auto", slice(FIRST, None)),
    ):
        mine, sync = (Times(times[each].seconds[part]) for each in (name, "sync"))
        told = f"{name}, first {FIRST} turns" if part == slice(FIRST) else name
        print(f"| {told} | {size / mine.middle:,.0f} | {mine.times_faster(sync):.3f} |")
    for name, mine in times.items():
        print(f"{name}: {mine.report}")


def by_hand(setting: Setting) -> list[str]:
    """The overrides for these numbers."""
    return [
        f"pipeline.in_flight={setting.window}",
        *(f"pipeline.workers.{stage}={setting.threads(stage)}" for stage in STAGES),
    ]


def planted(options: argparse.Namespace) -> None:
    """Prints a table of the grid, and of `auto` from the grid's worst."""
    with benchmark_graph(options.data) as graph, ExitStack() as stack:
        config = complex_config(graph, 1000).replace("threads=1")
        compute = compute_seconds(config, graph)

        def session(config: Config) -> TimedSession:
            probe: Callable[[str, int], None] = SlowLink(compute, LATENCY)
            if options.load != "link":
                stage, times = HELD[options.load]
                probe = partial(hold, threading.Event(), stage, times * compute)
            if options.load in ("disk", "fetch"):
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                config = config.replace(f"storage.memory={options.memory}", f"storage.path={folder}")
            timed = TimedSession(config, graph, probe=probe)
            stack.enter_context(timed.session)
            return timed

        grid = {setting: session(config.replace(*by_hand(setting))) for setting in GRID}
        rates = {setting: [timed.run(options.batches)[0]] for setting, timed in grid.items()}
        worst, auto = min(rates, key=rates.__getitem__), session(config)
        pipeline = auto.session.pipeline
        pipeline.tuner = Tuner(pipeline.limits, worst, len(os.sched_getaffinity(0)), auto.session.telemetry)
        autos = []
        for _ in range(options.rounds):
            for setting, timed in grid.items():
                rates[setting].append(timed.run(options.batches)[0])
            autos.append(auto.run(options.batches)[0])
    middle = {setting: statistics.median(several) for setting, several in rates.items()}
    best = max(middle.values())
    print(f"\n{options.load}: a batch computes in {1e3 * compute:.1f} ms; turns of {options.batches} batches")
    print("| setting | examples/s | of the best |\n|---|---|---|")
    then = {f"auto from {worst}, turn {k + 1}": autos[k] for k in range(FIRST)}
    then[f"auto, then: {pipeline.tuner.kept}"] = statistics.median(autos[FIRST:])
    for setting, rate in (middle | then).items():
        print(f"| {setting} | {rate:,.0f} | {rate / best:.3f} |")


def hold(never: threading.Event, held: str, seconds: float, stage: str, _: int) -> None:
    """A probe that holds a stage."""
    if stage == held:
        never.wait(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    first = kinds.add_parser("nothing")
    first.add_argument("--cores", type=int, default=1)
    first.add_argument("--setting", choices=("graph", "clicks"), default="graph")
    first.add_argument("--rounds", type=int, default=25)
    first.set_defaults(run=nothing)
    second = kinds.add_parser("planted")
    second.add_argument("--load", choices=("link", *HELD), default="link")
    second.add_argument("--data", default=os.environ.get("MARIUS_OAC_DATA"))
    second.add_argument("--memory", default="16MiB", help="of disk and fetch; with 8MiB one batch's pages fill it")
    second.add_argument("--rounds", type=int, default=7)
    second.add_argument("--batches", type=int, default=100)
    second.set_defaults(run=planted)
    options = parser.parse_args()
    print(machine())
    options.run(options)


if __name__ == "__main__":
    main()
