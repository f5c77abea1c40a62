"""What bound a run's speed, in one line, by the seconds of its stages: which setting would help, and roughly how much.

A stage whose threads were busy nearly all the time is what the others waited for. If there is none, batches waited
for the window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marius_oac.pipeline.setting import Setting

_SATURATED = 0.7  # of the time; less is no bottleneck, more is never measured where stages take turns
_SMALL = 1e-3  # seconds; a batch that computes for less is mostly what each batch costs, however small
_LOOSENED = 2.0  # times as much of what is short: what a setting may bring at most


@dataclass(frozen=True)
class Bound:
    """What bound a run, and `times`: as fast as this it might be with the help that `line` names."""

    by: str
    times: float
    line: str


_HELP = {
    "compute": ("compute", "more cores (`threads`), or a GPU (`device`)"),
    "plan": ("plan", "`pipeline.workers.plan`"),
    "settle": ("plan", "larger batches (`training.batch_size`)"),
    "fetch": ("disk", "`storage.memory`, or more folders in `storage.path`"),
    "wait": ("disk", "`storage.memory`, or more folders in `storage.path`"),
    "read": ("read", "`pipeline.workers.read`"),
    "upload": ("link", "a faster link, `pipeline.workers.upload` or smaller rows (`model.dimension`)"),
    "download": ("link", "a faster link, `pipeline.workers.download` or smaller rows (`model.dimension`)"),
    "write": ("write", "`pipeline.workers.write`"),
}
"""Of each stage, what it stands for, and what helps."""


def bound(
    stage_seconds: Mapping[str, float],
    seconds: float,
    setting: Setting,
    from_files: bool = False,
    batches: int = 0,
    over_nodes: bool = False,
) -> Bound | None:
    """What bound a run of so many seconds.

    Args:
        stage_seconds: of each stage, over all its threads.
        setting: the threads of each stage.
        batches: how many were trained; 0: unknown.
        over_nodes: other processes train as well; validation waits for their updates.
        from_files: plans read the examples from the user's files; then they are `data`.

    Returns:
        None if nothing was trained.
    """
    shares = _shares(stage_seconds, seconds, setting) if seconds else {}
    if not any(shares.values()):
        return None
    stage = max(shares, key=lambda name: shares[name])
    by, helps = _HELP[stage]
    if stage == "plan" and from_files:
        by, helps = "data", "`pipeline.workers.plan`, or files that are faster to read, such as Parquet"
    each = stage_seconds.get("compute", 0.0) / max(batches, 1)
    if stage == "compute" and batches and each < _SMALL:
        helps = f"larger batches (`training.batch_size`), as one computes for {1e3 * each:.1f} ms"
    waited = stage_seconds.get("validate", 0.0) / seconds
    if over_nodes and stage == "compute" and shares[stage] >= _SATURATED and waited * 2 > shares[stage]:
        return _by_others(waited)
    others = max((share for name, share in shares.items() if _HELP[name][0] != _HELP[stage][0]), default=0.0)
    if shares[stage] < _SATURATED:
        by, helps = "batches in flight", f"more than {setting.window} of them (`pipeline.in_flight`)"
        times = min(_LOOSENED, 1 / shares[stage])
    else:
        times = min(_LOOSENED, max(1.0, 1 / max(others, 1 / _LOOSENED)))
    busy = f"{stage} was busy {min(1.0, shares[stage]):.0%} of the time"
    return Bound(by, times, f"bound by {by}: {busy}; up to {times:.1f} times as fast with {helps}")


def _by_others(waited: float) -> Bound:
    """What is said where a trainer waited for others most of the time, which `waited` is the part of."""
    times = min(_LOOSENED, 1 / max(1 - waited, 1 / _LOOSENED))
    line = f"bound by other trainers: validate waited for them {min(1.0, waited):.0%} of the time"
    return Bound(
        "other trainers", times, f"{line}; up to {times:.1f} times as fast with `nodes.mode: gba`, or faster nodes"
    )


def bound_by_evaluation(seconds: float, evaluation: float) -> Bound | None:
    """What is said of a run whose evaluations between epochs took longer than its training, in seconds; None: they did
    not."""
    if evaluation <= seconds:
        return None
    times = (seconds + evaluation) / (seconds + evaluation / _LOOSENED)
    took = f"it took {evaluation:,.1f} s beside {seconds:,.1f} s of training"
    line = f"bound by evaluation: {took}; up to {times:.1f} times as fast with `evaluation.every` twice as large"
    return Bound("evaluation", times, line)


def _shares(stage_seconds: Mapping[str, float], seconds: float, setting: Setting) -> dict[str, float]:
    """The part of the time for which each stage's threads were busy."""
    spent = {name: stage_seconds.get(name, 0.0) for name in _HELP}
    spent["compute"] += stage_seconds.get("validate", 0.0)
    threads = {"plan": setting.plan, "wait": setting.read, "read": setting.read, "upload": setting.upload,
               "download": setting.download, "write": setting.write}  # fmt: skip
    return {name: each / (seconds * threads.get(name, 1)) for name, each in spent.items()}
