"""What follows from a batch's gradients: a step computes them, and the update that it is given says what they change.

    one machine       rows have their optimizer's state and are updated in place; so are dense parameters
    several nodes     rows' values are replaced by gradients, since the nodes that carry them run the row optimizer;
                      dense parameters are synchronised by a `DenseSync`
    below a head      encoded nodes are replaced by gradients, for the encoder; the dense parameters of head and encoder
                      are updated together

Guarantees:
- One thread, that of the step, calls everything. The dense parameters are attached once, when the step is made.
- All dense parameters of a batch are reduced in one call and counted as one update.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.dense_moments import is_kstep
from marius_oac.models.compute.row_optimizers import GradientPassThrough, RowOptimizer
from marius_oac.types import BatchData, DenseSlice, DenseSync

State = Mapping[str, torch.Tensor]
Loss = TypeVar("Loss", float, torch.Tensor)


class DenseGroup(Protocol):
    """Dense parameters with one optimizer.

    Attributes:
        norms: batch norms, which have running statistics beside the parameters.
        parameters: the tensors that are trained, updated in place and never replaced; there may be none.
        size: their floats.
        rate, weight_decay, decay: of the optimizer; the learning rate of an epoch is `rate * decay**epoch`.
    """

    norms: Sequence[nn.Module]
    parameters: Sequence[torch.Tensor]
    size: int
    rate: float
    weight_decay: float
    decay: float

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Leaves the updates, and the state that checkpoints keep, to an optimizer of the algorithm's own."""

    def gradients(self) -> list[torch.Tensor]:
        """The batch's gradients, one for each parameter, which are also the parameters' `grad`."""

    def sound_gradients(self) -> list[torch.Tensor]:
        """Whether the gradients are finite: 0-d tensors, all of which must be true."""

    def sound_values(self) -> list[torch.Tensor]:
        """Whether the updated parameters are sound (see `soundness`), as `sound_gradients`."""

    def apply(self, timestamp: int, epoch: int) -> None:
        """Updates the parameters from their gradients."""

    def clear(self) -> None:
        """Forgets the gradients."""

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and optimizer state, by name: the tensors themselves, not copies."""

    def to_kstep(self, state: State, epsilon: float, batches: int) -> State:
        """A dense state in which this group's moments are k-step Adam's (see `dense_moments`)."""

    def from_kstep(self, state: State, batches: int) -> State:
        """The inverse of `to_kstep`."""

    def cut(self, position: int) -> int:
        """The last place at or before `position`, 0 to `size`, where a slice may begin or end."""

    def slice(self, first: int, end: int) -> DenseSlice:
        """See `ServedDense.slice`; the range is not empty."""

    def slice_floats(self, first: int, end: int) -> int:
        """The length of the state of that slice."""

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """See `ServedDense.take`; no range is empty."""


class Update:
    """The update of a step's rows and dense parameters. It is also the `types.ServedDense` of the latter.

    A step hands over its groups of dense parameters with `own`, and calls `ready` once it is made.

    Args:
        rows: updates rows, or replaces them by gradients.
        decay: of the rows' learning rate, which is multiplied by `decay**epoch`.
        penalty: the factor of a row's value in its gradient, where rows are updated here.
        sync: how dense parameters agree with those of other trainers; None: there is one trainer.
        rank: of this trainer, which determines its random numbers.
    """

    def __init__(
        self,
        rows: RowOptimizer,
        decay: float = 1.0,
        penalty: float = 0.0,
        sync: DenseSync | None = None,
        rank: int = 0,
    ) -> None:
        self.rows, self.penalty, self.sync, self.rank = rows, penalty, sync, rank
        self._decay, self._groups = decay, list[DenseGroup]()
        self._by_sync: torch.optim.Optimizer | None = None

    @classmethod
    def here(cls, optimizer: OptimizerConfig, penalty: float = 0.0) -> Update:
        """The update of one machine, with this row optimizer."""
        return cls(RowOptimizer(optimizer), optimizer.decay, penalty)

    @classmethod
    def elsewhere(cls, sync: DenseSync, rank: int = 0) -> Update:
        """The update of a trainer among several: rows are updated on the nodes that carry them."""
        return cls(GradientPassThrough(), sync=sync, rank=rank)

    def below(self) -> Update:
        """The update of a head, whose only rows are encoded nodes."""
        return _HeadUpdate(self)

    def factor(self, data: BatchData) -> float:
        """What the rows' learning rate is multiplied by."""
        return self._decay**data.epoch

    def seed(self, seed: int, data: BatchData, timestamp: int) -> list[int]:
        """The source of a batch's random numbers: the batch and the part of it, or the timestamp and the rank."""
        return [seed, *((timestamp, self.rank) if data.part is None else data.part)]

    def own(self, group: DenseGroup) -> None:
        """Takes over dense parameters."""
        self._groups.append(group)

    def ready(self) -> None:
        """Attaches the dense parameters; with a `sync` all trainers take over those of rank 0. Collective."""
        parameters = [each for group in self._groups for each in group.parameters]
        if self.sync is None or not parameters:
            return
        self._by_sync = self.sync.optimizer(
            [
                {"params": list(each.parameters), "lr": each.rate, "weight_decay": each.weight_decay}
                for each in self._trained
            ]
        )
        if self._by_sync:
            for group in self._trained:
                group.adopt(self._by_sync)
        self.sync.attach(parameters)

    @property
    def norms(self) -> list[nn.Module]:
        """The batch norms of all groups."""
        return [each for group in self._groups for each in group.norms]

    @property
    def _trained(self) -> list[DenseGroup]:
        return [each for each in self._groups if each.parameters]

    def dense(self, loss: Loss, data: BatchData, timestamp: int) -> Loss:
        """Updates the dense parameters from their gradients, and then clears these.

        Args:
            loss: of the batch, a float or a 0-d tensor on the parameters' device.
            data, timestamp: of the batch.

        Returns:
            The loss; or NaN if a gradient or an updated parameter is not sound, which shows which batch was at fault.
            Nothing waits for a device.
        """
        groups = self._trained
        if not groups:
            return loss
        sound = [each for group in groups for each in group.sound_gradients()]
        self._apply(groups, data, timestamp)
        for group in groups:
            group.clear()
            sound += group.sound_values()
        if not sound:
            return loss
        fault = torch.where(reduce(torch.logical_and, sound), 0.0, math.nan)
        return loss + (fault if isinstance(loss, torch.Tensor) else float(fault))

    def _apply(self, groups: Sequence[DenseGroup], data: BatchData, timestamp: int) -> None:
        sync = self.sync
        if sync is None:
            for group in groups:
                group.apply(timestamp, data.epoch)
            return
        gradients = [each for group in groups for each in group.gradients()]
        if sync.dispatched:
            sync.hand_over(gradients, data.epoch)
            return
        moves = sync.reduce(gradients, data.share)
        if self._by_sync:
            for group, section in zip(groups, self._by_sync.param_groups, strict=True):
                section["lr"] = group.rate * group.decay**data.epoch
            self._by_sync.step()
        elif moves:
            for group in groups:
                group.apply(timestamp, data.epoch)
        sync.updated(timestamp)

    def state(self) -> dict[str, torch.Tensor]:
        """The dense parameters and their optimizers' state, by name: the tensors themselves, not copies."""
        return {name: each for group in self._groups for name, each in group.state().items()}

    def copy(self) -> dict[str, torch.Tensor]:
        """Copies of `state`."""
        return {name: each.detach().clone() for name, each in self.state().items()}

    def load(self, state: State) -> None:
        """Copies the tensors of a `state` into this one's.

        Raises:
            ValueError: the state is that of another model or optimizer.
        """
        mine = self.state()
        for name in sorted({*mine, *state}):
            here, there = (
                (tuple(each[name].shape), each[name].dtype) if name in each else "nothing" for each in (mine, state)
            )
            if here != there:
                raise ValueError(f"dense state '{name}': {there}, but this model has {here}")
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(state[name])

    def adapted(self, state: State, kstep: bool, epsilon: float, batches: int) -> State:
        """A dense state with k-step Adam's moments, or with those of the configured optimizers.

        Args:
            kstep: which of them.
            epsilon: of k-step Adam.
            batches: how many have been trained.
        """
        if not state or is_kstep(state) == kstep:
            return state
        for group in self._groups:
            state = group.to_kstep(state, epsilon, batches) if kstep else group.from_kstep(state, batches)
        return state

    @property
    def size(self) -> int:
        """See `ServedDense.size`."""
        return sum(each.size for each in self._trained)

    def cut(self, position: int) -> int:
        """See `ServedDense.cut`."""
        first = 0
        for group in self._trained:
            if position <= first + group.size:
                return first + group.cut(position - first)
            first += group.size
        return first

    def slice(self, first: int, end: int) -> DenseSlice:
        """See `ServedDense.slice`."""
        return _Slices([group.slice(*part) for group, part in self._parts(first, end)])

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """See `ServedDense.take`."""
        found: dict[int, tuple[list[np.ndarray], list[int]]] = {}
        for state, first, end in zip(states, bounds[:-1], bounds[1:], strict=True):
            at = 0
            for group, part in self._parts(first, end):
                floats = group.slice_floats(*part)
                of_group, edges = found.setdefault(self._groups.index(group), ([], [0]))
                of_group.append(state[at : at + floats])
                edges.append(part[1])
                at += floats
        for number, (of_group, edges) in found.items():
            self._groups[number].take(of_group, edges)

    def _parts(self, first: int, end: int) -> list[tuple[DenseGroup, tuple[int, int]]]:
        """The groups that have some of the parameters [first, end), and their own range of it."""
        found, at = [], 0
        for group in self._trained:
            part = max(first - at, 0), min(end - at, group.size)
            if part[0] < part[1]:
                found.append((group, part))
            at += group.size
        return found


class Updated:
    """A step whose dense parameters belong to its `Update`."""

    _update: Update

    def dense_state(self) -> Mapping[str, torch.Tensor]:
        """A copy of the dense parameters and buffers and of their optimizers' state, by name; empty without any, and in
        a head."""
        return self._update.copy()

    def load_dense_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies the tensors of a `dense_state` into this step's.

        Raises:
            ValueError: the state is that of another model.
        """
        self._update.load(state)


class _HeadUpdate(Update):
    """Hands the head's groups to the update of the encoder's step, which updates them with its own."""

    def __init__(self, whole: Update) -> None:
        super().__init__(GradientPassThrough(), sync=whole.sync, rank=whole.rank)
        self._whole = whole

    def own(self, group: DenseGroup) -> None:
        self._whole.own(group)

    def ready(self) -> None:
        return

    def dense(self, loss: Loss, data: BatchData, timestamp: int) -> Loss:
        return loss


class _Slices:
    """A `types.DenseSlice` of the slices of several groups."""

    def __init__(self, parts: Sequence[DenseSlice]) -> None:
        self._parts = parts

    def values(self) -> np.ndarray:
        return _joined([each.values() for each in self._parts])

    def apply(self, gradient: np.ndarray, timestamp: int, epoch: int) -> None:
        first = 0
        for part in self._parts:
            end = first + part.values().size
            part.apply(gradient[first:end], timestamp, epoch)
            first = end

    def state(self) -> np.ndarray:
        return _joined([each.state() for each in self._parts])


def _joined(arrays: Sequence[Any]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0, np.float32)
