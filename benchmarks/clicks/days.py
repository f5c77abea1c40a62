"""Continual training: ten generated days, one `resume` a day against one run over all of them; progressive AUC per day.

    python -m benchmarks.clicks.days

Each day is predicted before it is trained on. Keys come and go and the structure drifts from day to day. Both ways must
end in the same bits. Writes a plot and prints a table.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks import plots
from benchmarks.clicks.asynchrony import best_auc
from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.training.local import resume, train


def make_config(days: list[Path], spec: LogSpec) -> Config:
    tree = {
        "task": "ctr",
        "data": {"train": [str(day) for day in days], **spec.schema()},
        "model": {"network": "deepfm", "dimension": 8, "hidden": [64, 32]},
        "training": {"batch_size": 1024, "progressive": True, "optimizer": {"kind": "adagrad", "learning_rate": 0.05}},
    }
    return Config.build(tree)


def progressive(path: Path) -> list[dict]:
    return [line for line in RunFolder.open(path).metrics.lines() if line.get("split") == "progressive"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ten days, one resume a day, against all of them at once.")
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--rows", type=int, default=200_000, help="examples a day")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/ctr_days.png"))
    options = parser.parse_args()
    plots.check(parser)
    spec = LogSpec(categorical=10, numeric=4, keys=200_000, drift=0.01, new_keys=0.02)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        days = [folder / f"day_{day:02}.parquet" for day in range(options.days)]
        for day, path in enumerate(days):
            write_day(path, day, options.rows, spec)
        whole = train(make_config(days, spec), folder / "whole").summary
        daily = train(make_config(days[:1], spec), folder / "daily").summary
        for day in days[1:]:
            daily = resume(folder / "daily", data=[str(day)]).summary
        lines, again = progressive(folder / "whole"), progressive(folder / "daily")
    same = all(daily[key] == value for key, value in whole.items() if key.endswith("sha256"))
    same = same and [line["auc"] for line in lines] == [line["auc"] for line in again]
    best = [best_auc(day, options.rows, spec) for day in range(options.days)]
    print(f"{machine()}\n\n| day | progressive AUC | best possible | log loss | calibration | ids of unknown keys |")
    print("|---|---|---|---|---|---|")
    for day, line in enumerate(lines):
        print(
            f"| {day} | {line['auc']:.4f} | {best[day]:.4f} | {line['log_loss']:.4f} | {line['calibration']:.3f} | "
            f"{line['unknown_ids']:,} |"
        )
    print(f"\none resume a day has the bits and the metrics of one run over all days: {'yes' if same else 'NO'}")
    figure, axes = plots.subplots(figsize=(6, 4))
    axes.plot(best, color="black", linewidth=1, label="best possible")
    axes.plot([line["auc"] for line in lines], color="tab:blue", marker="o", label="one run over all days")
    axes.plot([line["auc"] for line in again], color="tab:orange", marker="x", linestyle="", label="one resume a day")
    axes.set_xlabel("day")
    axes.set_ylabel("AUC before the day is trained on")
    axes.grid(alpha=0.3)
    axes.legend()
    plots.save(figure, options.out)


if __name__ == "__main__":
    main()
