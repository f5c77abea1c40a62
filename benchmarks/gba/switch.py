"""Figure 6 and Tables 6.1 to 6.8 of the GBA paper: AUC per day after a switch from sync, and to sync."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from benchmarks.gba.clock import QUARTER_SLOW
from benchmarks.gba.model import Model
from benchmarks.gba.runs import MODES, Recipe, train
from marius_oac.nodes.gba.modes import Kind

Aucs = Sequence[float]  # of some days
Curves = dict[str, list[float]]  # AUC per day after the switch, by direction


def switching(job: tuple[Recipe, Kind]) -> Curves:
    """From sync to a mode, and from the mode to sync, with one seed."""
    recipe, kind = job
    days, base, end = recipe.days(), recipe.base, recipe.base + recipe.after

    def go_on(model: Model, kind: Kind, first: int, end: int, scored: bool = True) -> list[float]:
        found = []
        for day in range(first, end):
            train(model, days, day, recipe.setting(kind), QUARTER_SLOW, recipe.seed)
            if scored:
                found.append(model.auc(day + 1))
        return found

    found = {}
    for direction, before, then in (("from", "sync", kind), ("to", kind, "sync")):
        model = Model(days, recipe.seed, recipe.rates)
        go_on(model, "sync", 0, recipe.warm, scored=False)
        go_on(model, before, recipe.warm, base, scored=False)
        found[direction] = go_on(model, then, base, end)
        if kind == "sync":
            return {"from": found["from"], "to": found["from"]}
    return found


def switch_tables(recipe: Recipe, found: Sequence[dict[Kind, Curves]]) -> None:
    name = "Frappe" if recipe.folder else "generated"
    print(f"{name}: days of {recipe.size:,} examples, global batch {recipe.global_batch:,}, {len(found)} seeds")
    for direction, words in (("from", "sync, then each mode"), ("to", "each mode, then sync")):
        curves = {kind: [each[kind][direction] for each in found] for kind in MODES}
        warm = f"{recipe.warm} days of sync, " if recipe.warm else ""
        print(f"\n{warm}{recipe.base - recipe.warm} days of {words}: AUC of the next day, means\n")
        print(f"| trained to day | {' | '.join(MODES)} |\n|---|{'---|' * len(MODES)}")
        for day in range(recipe.after):
            means = (statistics.mean(run[day] for run in curves[kind]) for kind in MODES)
            print(f"| {recipe.base + day} | {' | '.join(f'{mean:.4f}' for mean in means)} |")
        print(f"\n| less sync's | {' | '.join(MODES[1:])} |\n|---|{'---|' * (len(MODES) - 1)}")
        for label, pick in (("first day", first), ("last day", last), ("average", statistics.mean)):
            cells = (difference(curves[kind], curves["sync"], pick) for kind in MODES[1:])
            print(f"| {label} | {' | '.join(cells)} |")


def first(run: Aucs) -> float:
    return run[0]


def last(run: Aucs) -> float:
    return run[-1]


def difference(runs: Sequence[Aucs], sync: Sequence[Aucs], pick: Callable[[Aucs], float]) -> str:
    """Mean over the seeds of the difference to sync on the same seed; the least and the most."""
    each = [pick(mine) - pick(other) for mine, other in zip(runs, sync, strict=True)]
    return f"{statistics.mean(each):+.4f} ({min(each):+.4f} to {max(each):+.4f})"
