"""Training modes of several nodes: how many gradients make a global step, and how much each of them weighs.

| kind | gradients of a step | who waits | a late gradient | source |
|---|---|---|---|---|
| sync | M = G / B | everyone, until the step is applied | there is none | Su et al., section 3.1 |
| gba | M = G / B | nobody | decays by its token | Su et al., section 4.1, Algorithm 2 |
| async | 1 | nobody | counts | Su et al., section 3.1 |
| bsp | b2 | nobody | counts | Su et al., section 5.1 |
| hop-bs | 1 | workers more than b1 batches ahead | counts | Luo et al. 2019; Ho et al. 2013 |
| hop-bw | N - b3 | everyone, until the step is applied | is discarded | Luo et al. 2019 |

G is the global batch, B the local one, N the number of workers. Every mode runs on a `Dispatcher`, which decides who
computes which batch and when, and on one aggregator per vector or table on each shard. Neither has threads or a clock.

Su et al.: "GBA: A Tuning-free Approach to Switch between Synchronous and Asynchronous Training for Recommendation
Models", NeurIPS 2022. Its t_i = floor(i / K) is a misprint: a token's value is floor(i / M).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from marius_oac.errors import InputError

Kind = Literal["sync", "gba", "async", "bsp", "hop-bs", "hop-bw"]
Decay = Literal["threshold", "polynomial", "exponential"]
RowsOver = Literal["holders", "gradients"]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """The rules of one mode; made by `make_mode`.

    Attributes:
        kind: the mode's name.
        aggregate: M, the gradients that make a global step.
        decay: gba: the weight of a gradient that is s > 0 steps stale. "threshold" (Eq. 1): 1 up to `threshold`, then
            0; "polynomial": (1 + s) ** -power; "exponential": rate ** s.
        threshold: gba: iota, in global steps.
        power, rate: gba: of the decays.
        bound: hop-bs: b1, the batches that a worker may be ahead of the slowest one.
        rows_over: the divisor of the sum of a row's gradients: "holders", the gradients of the step that hold the row
            (Algorithm 2, line 23); "gradients", all of them, which makes a step the gradient of the mean loss over the
            global batch, as in lockstep.
    """

    kind: Kind
    aggregate: int
    decay: Decay = "threshold"
    threshold: int = 3
    power: float = 1.0
    rate: float = 0.5
    bound: int = 0
    rows_over: RowsOver = "holders"

    def weights(self, staleness: np.ndarray) -> np.ndarray:
        """Returns the weights of gradients, float32 [n], by their staleness in global steps, int64 [n]; 0 and less is
        fresh."""
        if self.kind != "gba":
            return np.ones(staleness.size, np.float32)
        if self.decay == "threshold":
            return (staleness <= self.threshold).astype(np.float32)
        late = np.maximum(staleness, 0).astype(np.float64)
        found: np.ndarray = (1 + late) ** -self.power if self.decay == "polynomial" else self.rate**late
        return found.astype(np.float32)

    def counts(self, token: int, step: int) -> bool:
        """Whether a gradient with this token counts towards global step `step`; if not, it is discarded."""
        return self.kind != "hop-bw" or token == step


@dataclass(frozen=True)
class Clock:
    """Converts between global steps and the timestamps of rows, in modes that dispatch batches.

    Timestamps count global batches, as in lockstep. In sync and gba a global step is one global batch.

    Attributes:
        mode: the rules.
        parts: batches of the data list that a global batch is cut into.
        first: the global batch that is dispatched first, and the global step that begins with it.
    """

    mode: Mode
    parts: int
    first: int

    def timestamp(self, step: int) -> int:
        """Returns the timestamp of the rows that a step changes."""
        return self.first + (step - self.first) * self.mode.aggregate // self.parts

    def steps(self, timestamps: np.ndarray) -> np.ndarray:
        """Returns the first step that gives each timestamp, int64 [n]; timestamps before `first` stay as they are."""
        since = -(-(timestamps - self.first) * self.parts // self.mode.aggregate)
        return np.where(timestamps >= self.first, self.first + since, timestamps)


def make_mode(
    kind: Kind,
    workers: int,
    global_batch: int,
    local_batch: int,
    *,
    b1: int = 2,
    b2: int = 20,
    b3: int = 1,
    **rules: Any,
) -> Mode:
    """Returns the mode of a run.

    Args:
        kind: the mode's name.
        workers: N, as many as are meant to train; only hop-bw uses it.
        global_batch: G, the examples of a global step of sync and gba.
        local_batch: B, the examples that a worker computes at a time; G is a multiple of it.
        b1: hop-bs: batches that a worker may be ahead of the slowest one, at least 0.
        b2: bsp: gradients of a step.
        b3: hop-bw: the slowest workers of a step that nobody waits for, fewer than `workers`.
        rules: `decay`, `threshold`, `power`, `rate`, `rows_over` of `Mode`.

    Raises:
        InputError: these numbers make no mode.
    """
    _check(kind, workers, global_batch, local_batch, b1, b2, b3)
    aggregate = {
        "sync": global_batch // local_batch,
        "gba": global_batch // local_batch,
        "bsp": b2,
        "hop-bw": workers - b3,
    }.get(kind, 1)
    mode = Mode(kind=kind, aggregate=aggregate, bound=b1, **rules)
    if mode.decay not in get_args(Decay) or mode.rows_over not in get_args(RowsOver):
        raise InputError(f"no such decay or division of rows: {mode.decay}, {mode.rows_over}")
    if mode.threshold < 0 or mode.power < 0 or not 0 < mode.rate <= 1:
        raise InputError(f"no decay has threshold {mode.threshold}, power {mode.power} and rate {mode.rate}")
    return mode


def _check(kind: Kind, workers: int, global_batch: int, local_batch: int, b1: int, b2: int, b3: int) -> None:
    if kind not in get_args(Kind):
        raise InputError(f"there is no mode {kind!r}; there are {', '.join(get_args(Kind))}")
    if workers < 1 or local_batch < 1 or global_batch < 1:
        sizes = f"{workers} workers, a local batch of {local_batch} and a global one of {global_batch}"
        raise InputError(f"{sizes} must all be at least 1")
    if kind in ("sync", "gba") and global_batch % local_batch:
        raise InputError(f"a global batch of {global_batch} is not a multiple of a local batch of {local_batch}")
    if kind == "hop-bs" and b1 < 0:
        raise InputError(f"hop-bs: a worker can't be {b1} batches ahead")
    if kind == "bsp" and b2 < 1:
        raise InputError(f"bsp: a step can't have {b2} gradients")
    if kind == "hop-bw" and not 0 <= b3 < workers:
        raise InputError(f"hop-bw: a step can't go without {b3} of {workers} workers")
