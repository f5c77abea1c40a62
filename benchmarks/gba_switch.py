"""Figure 6 and Tables 6.1 to 6.8 of the GBA paper: AUC per day after a switch from sync, and to sync."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.gba_clock import QUARTER_SLOW
from benchmarks.gba_data import Days
from benchmarks.gba_model import Model
from benchmarks.gba_runs import MODES, setting, train
from marius_oac.nodes.modes import RowsOver

Aucs = Sequence[float]  # of some days


@dataclass(frozen=True)
class Plan:
    """A seed's data and model; days of the base model and days after the switch."""

    days: Days
    start: Model
    base: int
    after: int
    global_batch: int
    rows_over: RowsOver
    seed: int

    def go_on(self, model: Model, kind: str, first: int, days: int, scored: bool = True) -> list[float]:
        """Trains in a mode for some days; the AUC of each on the day that follows."""
        found = []
        for day in range(first, first + days):
            chosen = setting(kind, self.global_batch, self.rows_over)
            train(model, self.days, day, chosen, QUARTER_SLOW, self.seed)
            if scored:
                found.append(model.auc(day + 1))
        return found


def switching(plan: Plan) -> dict[str, dict[str, list[float]]]:
    """AUC per day after the switch, by direction and mode."""
    bases = {kind: plan.start.copy() for kind in MODES}
    for kind, model in bases.items():
        plan.go_on(model, kind, 0, plan.base, scored=False)
    first = {kind: plan.go_on(bases["sync"].copy(), kind, plan.base, plan.after) for kind in MODES}
    then = {kind: plan.go_on(bases[kind], "sync", plan.base, plan.after) for kind in MODES if kind != "sync"}
    return {"from": first, "to": {"sync": first["sync"], **then}}


def switch_tables(plans: Sequence[Plan]) -> None:
    found = [switching(plan) for plan in plans]
    days, base, after = plans[0].days, plans[0].base, plans[0].after
    print(f"{days.name}: days of {days.size:,} examples, global batch {plans[0].global_batch:,}, {len(plans)} seeds")
    for direction, words in (("from", "sync, then each mode"), ("to", "each mode, then sync")):
        curves = {kind: [each[direction][kind] for each in found] for kind in MODES}
        print(f"\n{base} days of {words}: AUC of the next day, means\n")
        print(f"| trained to day | {' | '.join(MODES)} |\n|---|{'---|' * len(MODES)}")
        for day in range(after):
            means = (statistics.mean(run[day] for run in curves[kind]) for kind in MODES)
            print(f"| {base + day} | {' | '.join(f'{mean:.4f}' for mean in means)} |")
        print(f"\n| less sync's | {' | '.join(MODES[1:])} |\n|---|{'---|' * (len(MODES) - 1)}")
        for label, pick in (("first day", first), ("last day", last), ("average", statistics.mean)):
            cells = (difference(curves[kind], curves["sync"], pick) for kind in MODES[1:])
            print(f"| {label} | {' | '.join(cells)} |", flush=True)


def first(run: Aucs) -> float:
    return run[0]


def last(run: Aucs) -> float:
    return run[-1]


def difference(runs: Sequence[Aucs], sync: Sequence[Aucs], pick: Callable[[Aucs], float]) -> str:
    """Mean over the seeds of the difference to sync on the same seed; the least and the most."""
    each = [pick(mine) - pick(other) for mine, other in zip(runs, sync, strict=True)]
    return f"{statistics.mean(each):+.4f} ({min(each):+.4f} to {max(each):+.4f})"
