"""What asynchrony costs a model of clicks: AUC and lost updates as the number of batches in flight grows.

    python -m benchmarks.clicks.asynchrony

A generated log, skewed keys, small batches and large steps, so that stale rows hurt. `sync` is the reference, `oac` has
its bits whatever is in flight, `async` writes over what others wrote. Writes a plot and prints a table.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks import plots
from benchmarks.generate.log import LogSpec, true_probabilities, write_day
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.evaluation.binary_metrics import ClickMetrics
from marius_oac.training.local import train

STYLES = {
    "sync": ("black", "o"),
    "oac": ("tab:blue", "x"),
    "async": ("tab:red", "v"),
    "async-delta": ("tab:orange", "s"),
}


def make_config(train_path: Path, test_path: Path, spec: LogSpec, batch_size: int) -> Config:
    tree = {
        "task": "ctr",
        "data": {"train": str(train_path), "test": str(test_path), **spec.schema()},
        "model": {"network": "fm", "dimension": 8},
        "training": {"batch_size": batch_size, "optimizer": {"kind": "adagrad", "learning_rate": 0.1}},
    }
    return Config.build(tree)


def best_auc(day: int, rows: int, spec: LogSpec) -> float:
    with ClickMetrics() as metrics:
        metrics.add(*true_probabilities(day, rows, spec))
        return metrics.result()["auc"]


def plot(curves: dict[str, dict[int, dict]], best: float, path: Path) -> None:
    figure, (auc, lost) = plots.subplots(1, 2, figsize=(10, 4))
    for mode, by_count in curves.items():
        color, marker = STYLES[mode]
        style = {"color": color, "marker": marker, "label": mode, "linestyle": "--" if mode == "oac" else "-"}
        if mode == "sync":
            auc.axhline(by_count[1]["test.auc"], color=color, linewidth=1, label=mode)
            continue
        auc.plot(list(by_count), [each["test.auc"] for each in by_count.values()], **style)
        lost.plot(list(by_count), [each["training.lost_updates"] for each in by_count.values()], **style)
    auc.set_ylabel(f"test AUC (best possible: {best:.4f})")
    lost.set_ylabel("lost updates")
    for axes in (auc, lost):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("batches in flight")
        axes.grid(alpha=0.3)
        axes.legend()
    plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="AUC and lost updates of async against sync and oac.")
    parser.add_argument("--rows", type=int, default=400_000, help="examples trained on")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--out", type=Path, default=Path("docs/figures/ctr_async.png"))
    options = parser.parse_args()
    plots.check(parser)
    spec = LogSpec(categorical=8, numeric=2, keys=20_000, skew=1.2, drift=0.0, new_keys=0.0)
    curves: dict[str, dict[int, dict]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_day(folder / "train.parquet", 0, options.rows, spec)
        write_day(folder / "test.parquet", 1, 100_000, spec)
        config = make_config(folder / "train.parquet", folder / "test.parquet", spec, options.batch_size)
        print(f"{machine()}\nbest possible AUC {(best := best_auc(1, 100_000, spec)):.4f}\n")
        print("| mode | in flight | test AUC | log loss | lost updates | examples/s | bits of sync |")
        print("|---|---|---|---|---|---|---|")
        for mode in ("sync", "oac", "async", "async-delta"):
            for count in [1] if mode == "sync" else options.in_flight:
                changed = config.replace(f"pipeline.mode={mode}", f"pipeline.in_flight={count}")
                summary = train(changed, folder / f"{mode}-{count}").summary
                curves.setdefault(mode, {})[count] = summary
                same = all(summary[key] == value for key, value in curves["sync"][1].items() if key.endswith("sha256"))
                print(
                    f"| {mode} | {count} | {summary['test.auc']:.4f} | {summary['test.log_loss']:.4f} | "
                    f"{summary['training.lost_updates']:,} | {summary['training.examples_per_second']:,.0f} | "
                    f"{'yes' if same else 'no'} |",
                    flush=True,
                )
        plot(curves, best, options.out)


if __name__ == "__main__":
    main()
