"""Tables 5.2 and 5.3 and Figures 7 and 8 of the GBA paper: speed, drops and staleness, workers and local batches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gba.clock import QUARTER_SLOW, QUARTER_SLOWER, QUIET, LoadProfile, phases
from benchmarks.gba.figures import batch_figure, worker_figure
from benchmarks.gba.model import Model
from benchmarks.gba.runs import MODES, WORKERS, Outcome, Recipe, Setting, empty_run, train
from benchmarks.gba.switch import difference, first
from marius_oac.nodes.gba.modes import Kind

SPEED_LOADS = {"quarter 4 x slower": QUARTER_SLOW, "a day in phases": phases(0.4), "nobody slower": QUIET}
LOADS = {"quarter 8 x slower": QUARTER_SLOWER, "quarter 4 x slower": QUARTER_SLOW, "nobody slower": QUIET}
LOCAL = 128  # local batch of the table of speeds


def speed_table(batches: int, seeds: int) -> None:
    """All modes with the same workers and local batches; gradients are empty, they have no say in it."""
    print(f"{WORKERS} workers, local batches of {LOCAL}, {batches:,} batches, {seeds} seeds\n")
    print("| load | mode | examples/s | of sync | of async | not dropped, of async |\n|---|---|---|---|---|---|")
    for load, profile in SPEED_LOADS.items():
        rates, kept = {}, {}
        for kind in MODES:
            chosen = Setting.of(kind, WORKERS, LOCAL, WORKERS * LOCAL)
            runs = [empty_run(chosen, profile, batches, seed) for seed in range(seeds)]
            rates[kind] = [run.examples / run.seconds for run in runs]
            kept[kind] = statistics.mean(1 - run.dense["dropped"] / batches for run in runs)
        sync, free = (statistics.mean(rates[kind]) for kind in ("sync", "async"))
        for kind, rate in rates.items():
            mean = statistics.mean(rate)
            print(
                f"| {load} | {kind} | {mean:,.0f} (± {statistics.pstdev(rate):,.0f}) | {mean / sync:.2f} | "
                f"{mean / free:.3f} | {mean * kept[kind] / free:.3f} |",
                flush=True,
            )


Run = tuple[float, Outcome]  # mean AUC of the days that follow each day, and what came of them


class Continued:
    """A model that sync has trained for the days of the base, and what becomes of it."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._days = recipe, recipe.days()
        self._model = Model(self._days, recipe.seed, recipe.rates)
        for day in range(recipe.base):
            train(self._model, self._days, day, recipe.setting("sync"), QUARTER_SLOW, recipe.seed)

    def run(self, chosen: Setting, profile: LoadProfile) -> Run:
        """Goes on from a copy of the model."""
        twin, outcomes, aucs = self._model.copy(), [], []
        for day in range(self._recipe.base, self._recipe.base + self._recipe.after):
            outcomes.append(train(twin, self._days, day, chosen, profile, self._recipe.seed))
            aucs.append(twin.auc(day + 1))
        return statistics.mean(aucs), sum(outcomes[1:], outcomes[0])


def loading(recipe: Recipe) -> dict[tuple[str, Kind], Run]:
    """Each load and mode with one seed."""
    base = Continued(recipe)
    return {(load, kind): base.run(recipe.setting(kind), LOADS[load]) for load in LOADS for kind in MODES}


def load_table(recipe: Recipe, found: Sequence[dict[tuple[str, Kind], Run]]) -> None:
    print(f"{recipe.base} days of sync, then {recipe.after} in each mode at each load, {len(found)} seeds\n")
    print(
        "| load | mode | examples/s of a worker | AUC | less sync's | gradients | dropped | stale steps (most) | ",
        end="",
    )
    print("rows' gradients | dropped | stale steps (most) |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for load, kind in found[0]:
        aucs = [[each[load, kind][0]] for each in found]
        sync = [[each[load, "sync"][0]] for each in found]
        outcomes = [each[load, kind][1] for each in found]
        total = sum(outcomes[1:], outcomes[0])
        speed = total.examples / total.seconds / recipe.setting(kind).workers
        print(
            f"| {load} | {kind} | {speed:,.0f} | {statistics.mean(map(first, aucs)):.4f} | "
            f"{difference(aucs, sync, first)} | {_counts(total.dense)} | {_counts(total.rows)} |"
        )


def _counts(metrics: dict[str, int]) -> str:
    mean = metrics["staleness_sum"] / metrics["gradients"]
    return f"{metrics['gradients']:,} | {metrics['dropped']:,} | {mean:.2f} ({metrics['staleness_max']})"


def batching(recipe: Recipe) -> dict[str, dict[int, Run]]:
    """gba with several numbers of workers and local batches, and sync, with one seed."""
    base, total, rows = Continued(recipe), recipe.global_batch, recipe.rows_over
    least = total // WORKERS
    workers = {n: Setting.of("gba", n, total // n, total, rows) for n in (2, 4, 8, WORKERS)}
    locals_ = {
        n: Setting.of("gba", WORKERS, n, WORKERS * n, rows) for n in (least // 4, least // 2, 2 * least, 4 * least)
    }
    found = {
        "sync": {total: base.run(recipe.setting("sync"), QUARTER_SLOW)},
        "workers": {n: base.run(chosen, QUARTER_SLOW) for n, chosen in workers.items()},
        "local batch": {n: base.run(chosen, QUARTER_SLOW) for n, chosen in locals_.items()},
    }
    found["local batch"][least] = found["workers"][WORKERS]
    return found


def batch_tables(recipe: Recipe, found: Sequence[dict[str, dict[int, Run]]], folder: Path) -> None:
    sync = [[each["sync"][recipe.global_batch][0]] for each in found]
    print(f"{recipe.base} days of sync, then {recipe.after} of gba, {len(found)} seeds; AUC of the days that follow")
    print(f"sync, global batch {recipe.global_batch:,}: {statistics.mean(map(first, sync)):.4f}")
    titles = {
        "workers": f"workers, global batch {recipe.global_batch:,}",
        "local batch": f"local batch, {WORKERS} workers",
    }
    for varied, title in titles.items():
        runs = {n: [each[varied][n] for each in found] for n in sorted(found[0][varied])}
        print(f"\n| {title} | AUC | less sync's | examples/s |\n|---|---|---|---|")
        for n, mine in runs.items():
            aucs, rate = [[auc] for auc, _ in mine], statistics.mean(each.examples / each.seconds for _, each in mine)
            print(f"| {n} | {statistics.mean(map(first, aucs)):.4f} | {difference(aucs, sync, first)} | {rate:,.0f} |")
        draw = worker_figure if varied == "workers" else batch_figure
        draw(runs, sync, folder / f"gba_{varied.replace(' ', '_')}.png")
