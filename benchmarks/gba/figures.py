"""The plots of `benchmarks.gba.study`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import plots
from benchmarks.gba.runs import WORKERS, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ALLOWED = 0.001  # what AUC may differ from sync's
Runs = dict[int, list[tuple[float, Outcome]]]  # AUC and outcome of each seed, by what is varied


def worker_figure(runs: Runs, sync: Sequence[Sequence[float]], path: Path) -> None:
    """Figure 7: AUC and examples per virtual second over the number of workers, the global batch fixed."""
    figure, (left, right) = plots.subplots(1, 2, figsize=(9, 3.6))
    _auc(left, runs, sync, "workers, global batch fixed")
    rates = [statistics.mean(each.examples / each.seconds for _, each in found) for found in runs.values()]
    right.plot(list(runs), [rate / 1e3 for rate in rates], color="C1", marker="s")
    right.set_xscale("log", base=2)
    right.set_xlabel("workers, global batch fixed")
    right.set_ylabel("thousand examples per virtual second")
    right.set_ylim(bottom=0)
    right.grid(alpha=0.3)
    plots.save(figure, path)


def batch_figure(runs: Runs, sync: Sequence[Sequence[float]], path: Path) -> None:
    """Figure 8: AUC over the local batch, the number of workers fixed."""
    figure, axes = plots.subplots(figsize=(5.5, 3.6))
    _auc(axes, runs, sync, f"local batch of {WORKERS} workers")
    plots.save(figure, path)


def _auc(axes: Axes, runs: Runs, sync: Sequence[Sequence[float]], label: str) -> None:
    """Differences to sync on the same seed: mean, least and most."""
    each = {n: [auc - other[0] for (auc, _), other in zip(found, sync, strict=True)] for n, found in runs.items()}
    means = [statistics.mean(found) for found in each.values()]
    below = [mean - min(found) for mean, found in zip(means, each.values(), strict=True)]
    above = [max(found) - mean for mean, found in zip(means, each.values(), strict=True)]
    axes.axhspan(-ALLOWED, ALLOWED, color="0.9", label=f"within {ALLOWED} of sync")
    axes.errorbar(list(each), means, yerr=[below, above], color="C0", marker="o", capsize=3, label="gba")
    axes.set_xscale("log", base=2)
    axes.set_xlabel(label)
    axes.set_ylabel("AUC less sync's (range of seeds)")
    axes.grid(alpha=0.3)
    axes.legend()
