"""Quality of sync, async, async-delta and oac, epoch by epoch, under an emulated link: runs, tables, plots."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plots
from benchmarks.graphs.runs import compute_seconds
from benchmarks.slow_link import SlowLink
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.pipeline.stages import Probe
from marius_oac.runs.session import Session
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.training.local import train

STYLES = {
    "sync": ("black", "o"),
    "async": ("tab:red", "v"),
    "async-delta": ("tab:orange", "s"),
    "oac": ("tab:blue", "x"),
}


@dataclass(frozen=True)
class Curve:
    """Validation after each epoch of one run, and the run's summary."""

    seconds: list[float]  # of training, since its begin
    mrr: list[float]  # filtered
    unfiltered: list[float]
    summary: dict[str, Any]
    load: float  # of the machine over the run's last minute

    @classmethod
    def of(cls, config: Config, out: Path, probe: Probe | None = None) -> Curve:
        """Trains."""
        run = train(config, out, probe=probe)
        lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
        found = [line for line in lines if line["kind"] == "evaluation"]
        keys = ("training.seconds", "filtered.mrr", "unfiltered.mrr")
        return cls(*([line[key] for line in found] for key in keys), run.summary, os.getloadavg()[0])

    @property
    def bits(self) -> dict[str, Any]:
        """Hashes of all that was trained."""
        return {key: value for key, value in self.summary.items() if key.endswith("sha256")}

    def time_to(self, level: float) -> str:
        """When `level` was reached."""
        reached = (s for s, mrr in zip(self.seconds, self.mrr, strict=True) if mrr >= level)
        return next((f"{seconds:.0f} s" for seconds in reached), "never")


def arguments(description: str, in_flight: int, out: str) -> argparse.ArgumentParser:
    """Options that these benchmarks have in common."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MARIUS_OAC_DATA"))
    parser.add_argument("--in-flight", type=int, default=in_flight)
    parser.add_argument("--factor", type=float, default=1.5, help="transfer time of a batch over its compute time")
    parser.add_argument("--threads", type=int, default=1, help="that compute")
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def compare(config: Config, graph: Graph, factor: float, kept: Path | None = None) -> dict[str, Curve]:
    """A run of each mode, with a link that moves a batch in `factor` times its compute time; curves go to `kept`."""
    compute = compute_seconds(config, graph)
    print(f"compute {1e3 * compute:.1f} ms a batch; {overlap(config, graph)}", flush=True)
    curves = {}
    with tempfile.TemporaryDirectory() as runs:
        for mode in STYLES:
            link = SlowLink(factor * compute)
            curves[mode] = Curve.of(config.replace(f"pipeline.mode={mode}"), Path(runs) / mode, link)
            if kept:
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"{mode}.json").write_text(json.dumps(asdict(curves[mode])))
    return curves


def kept_curves(kept: Path | None) -> dict[str, Curve] | None:
    """The curves that `compare` left there, if all are."""
    paths = {mode: kept / f"{mode}.json" for mode in STYLES} if kept else {}
    if not paths or not all(path.exists() for path in paths.values()):
        return None
    return {mode: Curve(**json.loads(path.read_text())) for mode, path in paths.items()}


def overlap(config: Config, graph: Graph, batches: int = 20) -> str:
    """How many rows a batch has, and which shares of them the next batch has, too, and any of those in flight."""
    several = config.pipeline.room
    with Session(GraphTask(config, graph)) as session:
        rows = [session.planner.plan(number).rows[0] for number in range(batches + several - 1)]
    near = np.mean([np.isin(rows[i], rows[i + 1]).mean() for i in range(batches)])
    any_of = np.mean([np.isin(rows[i], np.concatenate(rows[i + 1 : i + several])).mean() for i in range(batches)])
    count = np.mean([len(each) for each in rows])
    return (
        f"{count:,.0f} of {graph.num_nodes:,} rows a batch, {near:.0%} of them in the next one, too, "
        f"{any_of:.0%} in one of the {several} in flight"
    )


def report(curves: dict[str, Curve]) -> None:
    level = 0.95 * max(curves["sync"].mrr)
    epochs = [f"epoch {epoch}" for epoch in range(1, len(curves["sync"].mrr) + 1)]
    columns = ["mode", *epochs, "unfiltered", "s/epoch", f"until {level:.3f}", "load", "lost updates"]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for mode, curve in curves.items():
        lost, seconds = curve.summary["training.lost_updates"], curve.seconds[-1] / len(curve.mrr)
        values = " | ".join(f"{mrr:.4f}" for mrr in [*curve.mrr, curve.unfiltered[-1]])
        print(f"| {mode} | {values} | {seconds:.1f} | {curve.time_to(level)} | {curve.load:.1f} | {lost:,} |")
    same = curves["oac"].bits == curves["sync"].bits
    print(
        f"\noac and sync have {'the same' if same else 'DIFFERENT'} bits: {', '.join(curves['sync'].bits)}", flush=True
    )


def plot(graphs: dict[str, dict[str, Curve]], path: Path, title: str) -> None:
    """A row of two plots for each graph: by time, and by epochs."""
    figure, rows = plots.subplots(len(graphs), 2, figsize=(10, 0.5 + 3.5 * len(graphs)), sharey="row", squeeze=False)
    for (name, curves), (by_time, by_epoch) in zip(graphs.items(), rows, strict=True):
        for mode, curve in curves.items():
            color, marker = STYLES[mode]
            style = {"color": color, "marker": marker, "label": mode, "markersize": 6, "linewidth": 1.5}
            if mode == "oac":
                style |= {"linestyle": "--", "markersize": 9}
            by_time.plot([0, *curve.seconds], [0, *curve.mrr], **style)
            by_epoch.plot(range(len(curve.mrr) + 1), [0, *curve.mrr], **style)
        by_time.set_xlabel("seconds of training")
        by_epoch.set_xlabel("epochs")
        by_time.set_ylabel("validation MRR, filtered")
        for axes in (by_time, by_epoch):
            axes.grid(alpha=0.3)
            axes.set_ylim(bottom=0)
            axes.set_title(name, fontsize=10)
        by_epoch.legend(loc="lower right")
    figure.suptitle(title)
    plots.save(figure, path)
