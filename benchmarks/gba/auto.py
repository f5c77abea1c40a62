"""Mode auto over an emulated day: the package's policy between sync and gba, on the virtual clock of `gba_clock`.

Every trainer has the same local batch in both modes, as in a run. A stretch ends as in a run, too: no batch is dealt
any more, and the next one begins when the slowest worker is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.gba.clock import QUIET, RATE, Crew, phases
from benchmarks.gba.model import Model
from benchmarks.gba.runs import WORKERS, EmptyServer, ParameterServer, Recipe, Setting, train
from marius_oac.config.modes import AutoConfig
from marius_oac.nodes.gba.dispatcher import Dispatcher
from marius_oac.nodes.gba.policy import Measured, Policy

LOCAL = 64
QUALITY_PHASE, QUALITY_EVERY = 0.8, 5  # virtual seconds, global batches: short, since these days have real gradients
PHASES = ("nobody slower", "quarter 4 x slower", "half 2 x slower", "nobody slower, again")


@dataclass
class Day:
    """What came of a day: seconds and global batches by phase, and in which phase each switch was made."""

    seconds: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    batches: list[float] = field(default_factory=lambda: [0.0] * len(PHASES))
    switches: list[int] = field(default_factory=lambda: [0] * len(PHASES))

    def rates(self) -> list[float]:
        pairs = zip(self.batches, self.seconds, strict=True)
        return [batches * WORKERS * LOCAL / seconds for batches, seconds in pairs]


@dataclass(frozen=True)
class TimedPeers(Crew):
    """Keeps how long each worker's batches took, in seconds per example."""

    times: list[list[float]] = field(default_factory=list)

    def seconds(self, worker: int, batch: int, now: float) -> float:
        found = super().seconds(worker, batch, now)
        self.times[worker].append(found / self.local_batch)
        return found


def day(mode: str, phase: float, every: int, seed: int) -> Day:
    """A day of four phases of so many virtual seconds, after one in which nobody is slower, where auto's trial is."""
    profile, policy, found = phases(4 * phase), Policy(AutoConfig().margin, AutoConfig().patience), Day()
    settings = {kind: Setting.of(kind, WORKERS, LOCAL, WORKERS * LOCAL) for kind in ("sync", "gba")}
    now, first, length = -phase, 0, every
    while now < 4 * phase:
        kind = policy.mode if mode == "auto" else mode
        peers = TimedPeers(WORKERS, LOCAL, profile, seed, [[] for _ in range(WORKERS)])
        chosen = settings[kind]
        dispatcher = Dispatcher(chosen.mode, first * WORKERS, (first + length) * WORKERS, 0)
        end = peers.run(dispatcher, EmptyServer(chosen.mode), now)
        _count(found, now, end, length, phase)
        rate = length * WORKERS * LOCAL / (end - now)
        now, first = end, first + length
        if mode == "auto":
            decision = policy.decide(Measured(rate, [np.array(each) for each in peers.times]))
            length = policy.interval(every, WORKERS * LOCAL, LOCAL) if not decision.hurry else max(1, every // 4)
            if decision.switches and not decision.trial and 0 <= now < 4 * phase:
                found.switches[int(now // phase)] += 1
    return found


def _count(found: Day, begin: float, end: float, batches: int, phase: float) -> None:
    for number in range(len(PHASES)):
        inside = max(0.0, min(end, (number + 1) * phase) - max(begin, number * phase))
        found.seconds[number] += inside
        found.batches[number] += batches * inside / (end - begin)


def quality(job: tuple[Recipe, str]) -> float:
    """AUC of the next day, after the base model's and those that a mode trains while days of load pass."""
    recipe, mode = job
    days, total = recipe.days(), WORKERS * LOCAL
    model, profile = Model(days, recipe.seed, recipe.rates), phases(4 * QUALITY_PHASE)
    for number in range(recipe.base):
        train(model, days, number, recipe.setting("sync"), QUIET, recipe.seed)
    policy, now, first = Policy(AutoConfig().margin, AutoConfig().patience), 0.0, recipe.base * days.size // total
    last, length = (recipe.base + recipe.after) * days.size // total, QUALITY_EVERY
    while first < last:
        end = min(first + length, last)
        chosen = Setting.of(policy.mode if mode == "auto" else mode, WORKERS, LOCAL, total, recipe.rows_over)
        peers = TimedPeers(WORKERS, LOCAL, profile, recipe.seed, [[] for _ in range(WORKERS)])
        server = ParameterServer(model, chosen, 0)
        then = peers.run(Dispatcher(chosen.mode, first * WORKERS, end * WORKERS, model.step), server, now)
        server.flush()
        if mode == "auto":
            rate = (end - first) * total / (then - now)
            policy.decide(Measured(rate, [np.array(each) for each in peers.times]))
            length = policy.interval(QUALITY_EVERY, total, LOCAL)
        now, first = then, end
    return model.auc(recipe.base + recipe.after)


def quality_table(recipes: Sequence[Recipe], aucs: dict[tuple[Recipe, str], float]) -> None:
    base, after, load = recipes[0].base, recipes[0].after, 4 * QUALITY_PHASE
    print(f"\nAUC after {base} days of sync and {after} of each mode, while days of load pass, of {load:g} virtual s\n")
    print("| seed | sync | gba | auto | auto less sync |\n|---|---|---|---|---|")
    for recipe in recipes:
        found = [aucs[recipe, mode] for mode in ("sync", "gba", "auto")]
        print(f"| {recipe.seed} | {' | '.join(f'{auc:.4f}' for auc in found)} | {found[2] - found[0]:+.4f} |")


def auto_table(every: int, length: int, seeds: int) -> None:
    """Sync, gba and auto, phase by phase; a phase is as long as `length` stretches of sync at the slowest pace."""
    phase = length * every * 4 * LOCAL / RATE
    print(f"{WORKERS} workers, local batches of {LOCAL}, decisions every {every} global batches of sync, {seeds} seeds")
    print(f"phases of {phase:,.0f} virtual s: {length} stretches of sync at the slowest pace\n")
    print(f"| mode | {' | '.join(PHASES)} |\n|---|{'---|' * len(PHASES)}")
    rates, switches = {}, []
    for mode in ("sync", "gba", "auto"):
        days = [day(mode, phase, every, seed) for seed in range(seeds)]
        rates[mode] = [statistics.mean(each) for each in zip(*(one.rates() for one in days), strict=True)]
        switches = [max(each) for each in zip(*(one.switches for one in days), strict=True)]
        print(f"| {mode} | {' | '.join(f'{each:,.0f}' for each in rates[mode])} |", flush=True)
    parts = [auto / max(sync, gba) for sync, gba, auto in zip(*rates.values(), strict=True)]
    print(f"| auto of the better one | {' | '.join(f'{each:.3f}' for each in parts)} |")
    print(f"| switches of a day, at most | {' | '.join(map(str, switches))} |")
