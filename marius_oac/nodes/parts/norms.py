"""Running statistics of batch norms over virtual parts, folded in the order of the parts on every trainer.

While a batch is computed every part sees the statistics from before it. Then R = (1 - m) R + m s_p for one part after
the other, with momentum m and the part's own mean and variance s_p. All trainers do so, so their statistics are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from marius_oac.errors import ConfigError

Exchange = Callable[[Mapping[int, np.ndarray], int], Mapping[int, np.ndarray]]
"""Returns arrays, float32 [n], of all parts by number, from those of this trainer's parts and n. Collective."""


class RunningStatistics:
    """The statistics of some batch norms of torch's.

    Args:
        norms: of a step, in the same order on all trainers.
        exchange: see `Exchange`.

    Raises:
        ConfigError: a norm keeps a cumulative average (`momentum=None`), or takes its statistics over all trainers.
    """

    def __init__(self, norms: Sequence[nn.Module], exchange: Exchange):
        self._norms: list[Any] = [each for each in norms if getattr(each, "running_mean", None) is not None]
        if any(isinstance(each, nn.SyncBatchNorm) for each in self._norms):
            what = "a SyncBatchNorm needs the activations of all parts at once, and a trainer computes its parts one "
            raise ConfigError(what + "after the other; use BatchNorm1d, whose statistics are the part's", "nodes.parts")
        if any(each.momentum is None for each in self._norms):
            raise ConfigError("a batch norm with momentum=None has no statistics by part; give it one", "nodes.parts")
        self._exchange = exchange
        self._tensors: list[torch.Tensor] = [
            tensor for each in self._norms for tensor in (each.running_mean, each.running_var)
        ]
        self._before: list[torch.Tensor] = []
        self._tracked: list[int] = []
        self._found: dict[int, np.ndarray] = {}

    def begin(self) -> None:
        """Called before the parts of a batch."""
        self._before = [each.clone() for each in self._tensors]
        self._tracked = [int(each.num_batches_tracked) for each in self._norms]
        self._found = {}

    def computed(self, part: int, counts: bool) -> None:
        """Called after each part: notes its statistics, and restores those before the batch.

        Args:
            part: its number.
            counts: whether its examples are its own.
        """
        if not self._norms:
            return
        # A part of one example leaves the statistics alone.
        moved = [int(each.num_batches_tracked) != old for each, old in zip(self._norms, self._tracked, strict=True)]
        if counts:
            flat = torch.cat([torch.tensor(moved, dtype=torch.float32), *(each.flatten() for each in self._tensors)])
            self._found[part] = flat.numpy()
        for each, old in zip(self._tensors, self._before, strict=True):
            each.copy_(old)
        for norm, count in zip(self._norms, self._tracked, strict=True):
            norm.num_batches_tracked.fill_(count)

    def fold(self) -> None:
        """Called after all parts of a batch. Collective."""
        if not self._norms:
            return
        sizes = [each.numel() for each in self._tensors]
        every = self._exchange(self._found, len(self._norms) + sum(sizes))
        for part in sorted(every):
            moved, found = every[part][: len(self._norms)], torch.from_numpy(every[part][len(self._norms) :])
            for place, after in enumerate(found.split(sizes)):
                norm, now, before = self._norms[place // 2], self._tensors[place], self._before[place]
                if moved[place // 2]:
                    kept = 1 - norm.momentum
                    now.mul_(kept).add_(after.view_as(now) - kept * before)
            for norm, count in zip(self._norms, moved, strict=True):
                norm.num_batches_tracked += int(count)
