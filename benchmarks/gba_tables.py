"""Tables 5.2 and 5.3 and Figures 7 and 8 of the GBA paper: speed, drops and staleness, workers and local batches."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gba_clock import EIGHTH_SLOW, QUARTER_SLOW, QUIET, LoadProfile, phases
from benchmarks.gba_figures import batch_figure, worker_figure
from benchmarks.gba_model import Model
from benchmarks.gba_runs import MODES, WORKERS, Outcome, Setting, empty_run, setting, train
from benchmarks.gba_switch import Plan, difference, first

SPEED_LOADS = {"quarter 4 x slower": QUARTER_SLOW, "a day in phases": phases(40.0), "nobody slower": QUIET}
LOADS = {"quarter 4 x slower": QUARTER_SLOW, "eighth 4 x slower": EIGHTH_SLOW, "nobody slower": QUIET}
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


def trained(plan: Plan, model: Model, chosen: Setting, profile: LoadProfile) -> tuple[float, Outcome]:
    """Goes on from a copy of a model; the mean AUC of the days that follow each."""
    twin, outcomes, aucs = model.copy(), [], []
    for day in range(plan.base, plan.base + plan.after):
        outcomes.append(train(twin, plan.days, day, chosen, profile, plan.seed))
        aucs.append(twin.auc(day + 1))
    return statistics.mean(aucs), sum(outcomes[1:], outcomes[0])


def bases(plans: Sequence[Plan]) -> list[Model]:
    """Models that sync has trained."""
    for plan in plans:
        plan.go_on(plan.start, "sync", 0, plan.base, scored=False)
    return [plan.start for plan in plans]


def load_table(plans: Sequence[Plan]) -> None:
    models = bases(plans)
    print(f"{plans[0].base} days of sync, then {plans[0].after} in each mode at each load, {len(plans)} seeds\n")
    print(
        "| load | mode | examples/s of a worker | AUC | less sync's | gradients | dropped | stale steps (most) | ",
        end="",
    )
    print("rows' gradients dropped | rows' stale steps (most) |\n|---|---|---|---|---|---|---|---|---|---|")
    for load, profile in LOADS.items():
        sync: list[list[float]] = []
        for kind in MODES:
            chosen = setting(kind, plans[0].global_batch, plans[0].rows_over)
            runs = [trained(plan, model, chosen, profile) for plan, model in zip(plans, models, strict=True)]
            aucs, total = [[auc] for auc, _ in runs], sum((each for _, each in runs[1:]), runs[0][1])
            sync = sync or aucs
            print(
                f"| {load} | {kind} | {total.examples / total.seconds / chosen.workers:,.0f} | "
                f"{statistics.mean(map(first, aucs)):.4f} | {difference(aucs, sync, first)} | "
                f"{total.dense['gradients']:,} | {total.dense['dropped']:,} | {_staleness(total.dense)} | "
                f"{total.rows['dropped'] / (total.rows['gradients'] or 1):.2%} | {_staleness(total.rows)} |",
                flush=True,
            )


def _staleness(metrics: dict[str, int]) -> str:
    return f"{metrics['staleness_sum'] / metrics['gradients']:.2f} ({metrics['staleness_max']})"


def batch_tables(plans: Sequence[Plan], folder: Path) -> None:
    models, total, rows = bases(plans), plans[0].global_batch, plans[0].rows_over
    local = total // WORKERS
    counts = {count: Setting.of("gba", count, total // count, total, rows) for count in (2, 4, 8, 16)}
    batches = (local // 4, local // 2, local, 2 * local, 4 * local)
    locals_ = {batch: Setting.of("gba", WORKERS, batch, WORKERS * batch, rows) for batch in batches}

    def runs(chosen: Setting) -> list[tuple[float, Outcome]]:
        return [trained(plan, model, chosen, QUARTER_SLOW) for plan, model in zip(plans, models, strict=True)]

    sync = [[auc] for auc, _ in runs(setting("sync", total, rows))]
    by_workers = {count: runs(chosen) for count, chosen in counts.items()}
    by_batch = {batch: by_workers[16] if batch == local else runs(chosen) for batch, chosen in locals_.items()}
    print(
        f"{plans[0].base} days of sync, then {plans[0].after} of gba; {len(plans)} seeds; AUC of the days that follow"
    )
    print(f"sync has {statistics.mean(map(first, sync)):.4f}\n")
    _batch_table(f"workers, global batch {total:,}", by_workers, sync)
    _batch_table(f"local batch of {WORKERS} workers", by_batch, sync)
    worker_figure(by_workers, sync, folder / "gba_workers.png")
    batch_figure(by_batch, sync, folder / "gba_local_batch.png")


def _batch_table(title: str, found: dict[int, list[tuple[float, Outcome]]], sync: Sequence[Sequence[float]]) -> None:
    print(f"| {title} | AUC | less sync's | examples/s |\n|---|---|---|---|")
    for count, runs in found.items():
        aucs, rate = [[auc] for auc, _ in runs], statistics.mean(each.examples / each.seconds for _, each in runs)
        mean = statistics.mean(map(first, aucs))
        print(f"| {count} | {mean:.4f} | {difference(aucs, sync, first)} | {rate:,.0f} |")
    print(flush=True)
