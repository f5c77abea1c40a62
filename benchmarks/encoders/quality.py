"""Quality of graph neural networks against time and against epochs for sync, async, async-delta and oac: the OAC
paper's Figures 2a and 3a.

    python -m benchmarks.encoders.quality --data FOLDER-WITH-fb15k-237-AND-web-NotreDame  # default: MARIUS_OAC_DATA
    python -m benchmarks.encoders.quality --graphs web-NotreDame --kept curves            # one graph, then the other

GraphSAGE with ten neighbours over DistMult on FB15k-237 and over Dot on web-NotreDame, dimension 50, as in the paper's
setup 1. Neighbours make a batch's rows many times those of its edges: most are in some other batch in flight, too.
Moving a batch over the emulated link takes 1.5 times its compute time. Writes a plot and prints tables.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.graphs.curves import Curve, arguments, compare, kept_curves, plot, report
from benchmarks.graphs.runs import benchmark_graph
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config

SETTINGS: dict[str, dict[str, Any]] = {
    "fb15k-237": {
        "model": {"decoder": "distmult", "dimension": 50, "init_scale": 0.1},
        "encoder": {"layers": [{"kind": "sage"}], "optimizer": {"learning_rate": 0.01}},
        "training": {"epochs": 8, "batch_size": 1000, "negatives": {"count": 500}},
        "evaluation": {"max_edges": 2000},
    },
    "web-NotreDame": {
        "model": {"decoder": "dot", "dimension": 50, "init_scale": 0.05},
        "encoder": {"layers": [{"kind": "sage"}], "optimizer": {"learning_rate": 0.005}},
        "training": {"epochs": 4, "batch_size": 10_000, "negatives": {"count": 200}},
        "evaluation": {"max_edges": 2000, "candidates": 10_000},
    },
}
NAMES = {"fb15k-237": "GraphSAGE + DistMult, FB15k-237", "web-NotreDame": "GraphSAGE + Dot, web-NotreDame"}


def make_config(name: str, path: str, args: argparse.Namespace) -> Config:
    config = Config.build(
        {
            **SETTINGS[name],
            "device": "cpu",
            "threads": args.threads,
            "data": {"path": path},
            "checkpoint": {"keep": 1},
            "pipeline": {"in_flight": args.in_flight},
        }
    )
    return config.replace(f"training.epochs={args.epochs}") if args.epochs else config


def compare_on(name: str, args: argparse.Namespace) -> dict[str, Curve]:
    """Prints and returns a graph's curves."""
    title = NAMES[name] if args.data else f"{NAMES[name]}'s size, generated"
    print(f"\n{title}: {machine()}", flush=True)
    kept = args.kept / name if args.kept else None
    if curves := kept_curves(kept):
        report(curves)
        return {title: curves}
    with benchmark_graph(args.data, name) as graph, tempfile.TemporaryDirectory() as folder:
        config = make_config(name, str(graph.path), args)
        curves = compare(config, graph, args.factor, kept)
        report(curves)
        plain = Curve.of(config.replace("encoder=null", "pipeline.mode=sync"), Path(folder) / "plain")
    print(f"sync without encoder: {' '.join(f'{mrr:.4f}' for mrr in plain.mrr)}, unfiltered {plain.unfiltered[-1]:.4f}")
    return {title: curves}


def main() -> None:
    parser = arguments(__doc__, in_flight=16, out="docs/figures/gnn_quality.png")
    parser.add_argument("--graphs", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--epochs", type=int, help="default: 8 on FB15k-237, 4 on web-NotreDame")
    parser.add_argument("--kept", type=Path, help="folder for curves; a graph whose curves are there is not run again")
    args = parser.parse_args()
    plots.check(parser)
    curves: dict[str, dict[str, Curve]] = {}
    for name in args.graphs:
        curves |= compare_on(name, args)
    plot(curves, args.out, f"{args.in_flight} batches in flight, link {args.factor} x compute")


if __name__ == "__main__":
    main()
