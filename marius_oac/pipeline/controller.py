"""Chooses batches in flight and threads by what it is told of the last batches: no clock, no threads, no chance.

Guarantees:
- Every setting that it returns is within its limits.
- The same observations give the same settings.
- It leaves a setting only for one that was faster in a trial, or as fast and smaller. A trial takes turns with what it
  is compared to, so a machine that slows down meanwhile slows both. What failed is tried again after twice as long each
  time: the cost of trials goes to zero while nothing changes.

Proposals come from a model: a batch takes as long as its slowest stage, divided by that stage's threads, and as what it
spends in flight divided by the window. The model knows neither caches nor who competes for cores. So it only proposes:
what is kept is decided by the batches per second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from marius_oac.pipeline.setting import INSIDE, STAGES, Limits, Setting

_BLOCK_SECONDS = 0.06  # of an observation: longer than a few slices of the scheduler
_LEAST_BATCHES = 8
_SHORTEST = 1e-7  # seconds of a batch
_CLEAR = 0.08  # decided by one pair of blocks
_WORSE = 0.02  # this, too, for what should be faster
_PAIRS = 4  # at most, in a trial
_GAIN = 0.01  # a larger setting must be faster by so much,
_LOSS = 0.002  # and a smaller one may be slower by so much
_PATIENCE, _MOST_PATIENCE = 128, 1 << 16  # batches until what failed is tried again, the least and the most
_COST = 0.003  # of the time may be lost by trials of one kind
_CHANGED = 1.3  # a block that takes so many times as long, or as short, is another load
_WORTH = 0.98  # of the present time that a larger setting must promise
_BUSY = 0.85  # of the cores: then much waiting is for a core, and would be less if fewer batches were in flight
_HARM = 1.25  # the model's period of one batch in flight, of the present one, at which it is still worth a trial


@dataclass(frozen=True)
class Observation:
    """What some consecutive batches took.

    Attributes:
        batches: how many.
        seconds: from the end of the batch before them to the end of the last one.
        busy: seconds of each stage, over all its threads (`compute` includes validation).
        cpu_seconds: of the process's threads.
    """

    batches: int
    seconds: float
    busy: Mapping[str, float]
    cpu_seconds: float = 0.0

    @property
    def period(self) -> float:
        """Seconds a batch."""
        return self.seconds / self.batches


@dataclass(frozen=True)
class Costs:
    """Seconds of a batch in each stage, by an observation, and the part of the cores' time that it took."""

    stages: Mapping[str, float]
    alone: float
    used: float = 0.0

    @classmethod
    def of(cls, seen: Observation, cores: int) -> Costs:
        """Per batch."""
        each = {stage: seconds / seen.batches for stage, seconds in seen.busy.items()}
        compute = each.get("compute", 0.0) + each.get("validate", 0.0)
        before = each.get("settle", 0.0) + each.get("wait", 0.0)
        stages = {stage: each.get(stage, 0.0) for stage in STAGES} | {"compute": compute, "before read": before}
        alone = max(compute, each.get("settle", 0.0))  # `fetch` waits for room, so its seconds bound nothing
        return cls(stages, alone, seen.cpu_seconds / (seen.seconds * cores))

    @property
    def in_flight(self) -> float:
        """Seconds that a batch spends between the beginning of its reading and the end of its writing, if it never
        waits for a thread."""
        return self.stages["compute"] + sum(self.stages[stage] for stage in INSIDE)

    def of_stage(self, stage: str) -> float:
        """Seconds for which a batch takes a thread of this stage."""
        return self.stages[stage] + (self.stages["before read"] if stage == "read" else 0.0)

    def period(self, setting: Setting) -> float:
        """The model's seconds a batch."""
        stages = (self.of_stage(stage) / setting.threads(stage) for stage in STAGES)
        return max(self.alone, *stages, self.in_flight / setting.window)

    def threads(self, target: float) -> dict[str, int]:
        """How many threads keep each stage within `target` seconds a batch."""
        return {stage: max(1, math.ceil(self.of_stage(stage) / target)) for stage in STAGES}


@dataclass
class _Trial:
    kind: str
    candidate: Setting
    grows: bool
    before: float
    """Seconds a batch of the setting that is kept, just before."""
    ratios: list[float] = field(default_factory=list)
    """Of each pair of blocks, how much faster the candidate was, as a part of the mean time."""


class Controller:
    """See above. `observe` is called after each `batches` batches that follow `skip` others.

    Args:
        limits: of the settings.
        start: the first one.
        cores: that the process may use.
    """

    def __init__(self, limits: Limits, start: Setting, cores: int):
        self._limits, self._cores = limits, cores
        self.kept = self.setting = limits.clipped(start)
        self._trial: _Trial | None = None
        self._costs: Costs | None = None
        self._reference = 0.0  # seconds a batch when the last trial ended
        self._strange = 0
        self._seen = 0
        self._not_before: dict[str, int] = {}
        self._patience: dict[str, int] = {}
        self._failed: dict[Setting, int] = {}
        self.batches = _LEAST_BATCHES
        self.skip = 2 * self.setting.window + 2
        self.settings = 1
        """How many settings have been in use."""

    @property
    def costs(self) -> Costs | None:
        """Of a batch with the setting that is kept; None before the first observation."""
        return self._costs

    def observe(self, seen: Observation) -> Setting:
        """Returns the setting for the batches that follow."""
        self._seen += seen.batches + self.skip
        self.batches = min(1 << 12, max(_LEAST_BATCHES, math.ceil(_BLOCK_SECONDS / max(seen.period, _SHORTEST))))
        chosen = self._in_trial(self._trial, seen) if self._trial else self._at_rest(seen)
        self.skip = max(self.setting.window, chosen.window) + 2 if chosen != self.setting else 0
        self.settings += chosen != self.setting
        self.setting = chosen
        return chosen

    def _at_rest(self, seen: Observation) -> Setting:
        self._costs = Costs.of(seen, self._cores)
        if self._reference:
            self._notice(seen.period)
        else:
            self._reference = seen.period
        for kind, candidate in self._proposals(self._costs, seen.period):
            waits = max(self._not_before.get(kind, 0), self._failed.get(candidate, 0))
            if candidate != self.kept and self._seen >= waits:
                self._trial = _Trial(kind, candidate, not kind.startswith("less"), seen.period)
                return candidate
        return self.kept

    def _notice(self, period: float) -> None:
        """Forgets what has failed where the load has become another one."""
        stays = self._reference / _CHANGED < period < self._reference * _CHANGED
        self._strange = 0 if stays else self._strange + 1
        if self._strange >= 2:
            self._forget()
            self._reference, self._strange = period, 0

    def _forget(self) -> None:
        for waits in (self._not_before, self._patience, self._failed):
            waits.clear()

    def _proposals(self, costs: Costs, period: float) -> Iterator[tuple[str, Setting]]:
        """What may be faster, or as fast and smaller; the most promising first."""
        kept, clipped = self.kept, self._limits.clipped
        reachable = max(costs.alone, costs.period(self._limits.most), _SHORTEST)
        needed = costs.threads(0.9 * reachable)
        more = {stage: max(count, kept.threads(stage)) for stage, count in needed.items()}
        window = max(kept.window, math.ceil(1.5 * costs.in_flight / reachable))
        jump = clipped(kept.with_threads(more) if window == kept.window else Setting(window, **more))
        for kind, larger in (
            ("more", jump),
            ("more threads", clipped(kept.with_threads(more))),
            ("more in flight", clipped(replace(kept, window=window))),
            ("one more in flight", clipped(replace(kept, window=kept.window + 1))),
        ):
            if costs.period(larger) < _WORTH * period:
                yield kind, larger
        slowest = max(STAGES, key=lambda stage: costs.of_stage(stage) / kept.threads(stage))
        if costs.of_stage(slowest) / kept.threads(slowest) > _WORTH * max(costs.alone, 0.9 * period):
            yield "more of one", clipped(kept.with_threads({slowest: kept.threads(slowest) + 1}))
        few = {stage: min(count, kept.threads(stage)) for stage, count in costs.threads(0.8 * period).items()}
        for kind, window, harm in (
            ("less: one", 1, _HARM),
            ("less: half", max(1, kept.window // 2), math.inf if costs.used > _BUSY else 1.01),
            ("less: a quarter less", kept.window - kept.window // 4, 1.01),
            ("less: threads", kept.window, 1.01),
        ):
            smaller = clipped(Setting(window, **few))
            if costs.period(smaller) <= harm * period:
                yield kind, smaller

    def _in_trial(self, trial: _Trial, seen: Observation) -> Setting:
        if self.setting == self.kept:
            self._costs, trial.before = Costs.of(seen, self._cores), seen.period
            return trial.candidate
        trial.ratios.append(2 * (trial.before - seen.period) / (trial.before + seen.period))
        count, mean = len(trial.ratios), sum(trial.ratios) / len(trial.ratios)
        decided = abs(mean) > _CLEAR / count or (trial.grows and mean < -_WORSE)
        if not decided and count < _PAIRS:
            return self.kept
        better = mean > (_GAIN if trial.grows else -_LOSS)
        return self._accepted(trial, mean) if better else self._rejected(trial)

    def _accepted(self, trial: _Trial, gain: float) -> Setting:
        """Keeps the candidate. The way back may not be tried for a while; all else may, after a clear gain."""
        back = {kind: self._patience.get(kind, _PATIENCE) for kind in _KINDS if kind.startswith("less") == trial.grows}
        if gain > _CLEAR / 2:
            self._forget()
        self._not_before |= {kind: self._seen + patience for kind, patience in back.items()}
        self._patience |= {kind: 2 * patience for kind, patience in back.items()}
        self.kept, self._trial, self._reference = trial.candidate, None, 0.0
        return self.kept

    def _rejected(self, trial: _Trial) -> Setting:
        lost = -sum(trial.ratios) * (self.batches + trial.candidate.window)
        patience = min(max(self._patience.get(trial.kind, _PATIENCE), math.ceil(lost / _COST)), _MOST_PATIENCE)
        self._not_before[trial.kind] = self._failed[trial.candidate] = self._seen + patience
        self._patience[trial.kind] = 2 * patience
        self._trial = None
        return self.kept


_KINDS = ("more", "more threads", "more in flight", "one more in flight", "more of one", "less: one", "less: half",
          "less: a quarter less", "less: threads")  # fmt: skip
