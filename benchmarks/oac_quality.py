"""Quality against time and against epochs for sync, async, async-delta and oac: the OAC paper's Figures 2 and 3.

    python -m benchmarks.oac_quality --data FOLDER-WITH-fb15k-237       # default: MARIUS_OAC_DATA

ComplEx with filtered validation MRR on FB15k-237. A batch and its negatives touch a sixth of all entities and 16
batches are in flight, so stale rows are the rule: `async` loses most of its updates. Moving a batch over the emulated
link takes 1.5 times its compute time, so `sync` waits most of the time. Writes a plot and prints tables.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

from benchmarks.runs import benchmark_graph, link_for, machine  # noqa: E402
from marius_oac.config import Config  # noqa: E402
from marius_oac.training import train  # noqa: E402

STYLES = {
    "sync": ("black", "o"),
    "async": ("tab:red", "v"),
    "async-delta": ("tab:orange", "s"),
    "oac": ("tab:blue", "x"),
}


def make_config(path: str, args: argparse.Namespace) -> Config:
    return Config.build(
        {
            "device": "cpu",
            "threads": args.threads,
            "data": {"path": path},
            "model": {"decoder": "complex", "dimension": 100},
            "training": {
                "epochs": args.epochs,
                "batch_size": 1000,
                "negatives": {"count": 500},
                "regularization": {"kind": "n3", "weight": 0.05},
            },
            "evaluation": {"every": 1, "max_edges": 2000},
            "checkpoint": {"keep": 1},
            "pipeline": {"in_flight": args.in_flight},
        }
    )


def quality(config: Config, out: Path) -> dict[str, Any]:
    """Trains; returns the validation curve (`seconds`, `mrr`) and the summary."""
    run = train(config, out)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    found = [line for line in lines if line["kind"] == "evaluation"]
    return {
        "seconds": [line["training.seconds"] for line in found],
        "mrr": [line["filtered.mrr"] for line in found],
        "summary": run.summary,
    }


def plot(curves: dict[str, dict], path: Path, title: str) -> None:
    figure, (by_time, by_epoch) = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for mode, curve in curves.items():
        color, marker = STYLES[mode]
        style = {"color": color, "marker": marker, "label": mode, "markersize": 6, "linewidth": 1.5}
        if mode == "oac":
            style |= {"linestyle": "--", "markersize": 9}
        by_time.plot([0, *curve["seconds"]], [0, *curve["mrr"]], **style)
        by_epoch.plot(range(len(curve["mrr"]) + 1), [0, *curve["mrr"]], **style)
    by_time.set_xlabel("seconds of training")
    by_epoch.set_xlabel("epochs")
    by_time.set_ylabel("validation MRR, filtered")
    for axes in (by_time, by_epoch):
        axes.grid(alpha=0.3)
        axes.set_ylim(bottom=0)
    by_epoch.legend(loc="lower right")
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def time_to(curve: dict, level: float) -> str:
    return next((f"{s:.0f} s" for s, mrr in zip(curve["seconds"], curve["mrr"], strict=True) if mrr >= level), "never")


def report(curves: dict[str, dict]) -> None:
    level = 0.95 * max(curves["sync"]["mrr"])
    epochs = range(1, len(curves["sync"]["mrr"]) + 1)
    print(
        "\n| mode | "
        + " | ".join(f"epoch {epoch}" for epoch in epochs)
        + f" | s/epoch | until {level:.3f} | lost updates |"
    )
    print(f"|{'---|' * (len(epochs) + 4)}")
    for mode, curve in curves.items():
        lost, seconds = curve["summary"]["training.lost_updates"], curve["seconds"][-1] / len(curve["mrr"])
        values = " | ".join(f"{mrr:.4f}" for mrr in curve["mrr"])
        print(f"| {mode} | {values} | {seconds:.1f} | {time_to(curve, level)} | {lost:,} |")
    same = curves["oac"]["summary"]["tables.entities.sha256"] == curves["sync"]["summary"]["tables.entities.sha256"]
    print(f"\noac and sync have {'the same' if same else 'DIFFERENT'} bits")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("MARIUS_OAC_DATA"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--factor", type=float, default=1.5, help="transfer time of a batch over its compute time")
    parser.add_argument("--threads", type=int, default=1, help="that compute")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/oac_quality.png"))
    args = parser.parse_args()
    print(machine(), flush=True)
    with benchmark_graph(args.data) as graph, tempfile.TemporaryDirectory() as runs:
        config = make_config(str(graph.path), args)
        compute, bandwidth = link_for(config, graph, args.factor)
        print(f"compute {1e3 * compute:.1f} ms a batch, link {bandwidth:.3f} GB/s")
        config = config.replace(f"pipeline.link={{bandwidth: {bandwidth}, latency: 10.0}}")
        curves = {mode: quality(config.replace(f"pipeline.mode={mode}"), Path(runs) / mode) for mode in STYLES}
    report(curves)
    data = "FB15k-237" if args.data else "a generated graph"
    plot(curves, args.out, f"ComplEx on {data}, {args.in_flight} batches in flight, link {args.factor} x compute")


if __name__ == "__main__":
    main()
