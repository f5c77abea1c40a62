"""Restores dense parameters over nodes from a checkpoint, also of another algorithm (`nodes.dense`).

If the algorithm is the one that wrote the checkpoint, each trainer restores its own replica and the algorithm's state.
Else all start from the common parameters, or from the mean of the replicas, the optimizer's moments included. So do
other trainers than those that wrote it, with what these had in common if the algorithm is the same (`take_over_dense`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch

from marius_oac.errors import CheckpointError
from marius_oac.models.compute.dense_moments import is_kstep
from marius_oac.models.compute.update import Update
from marius_oac.nodes.dense.contract import DenseAgreement
from marius_oac.nodes.groups.contract import Group
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.checkpoints.parts import DENSE, ShardedCheckpoint
from marius_oac.runs.peers import Peers
from marius_oac.runtime.console import logger
from marius_oac.types import Step

State = Mapping[str, torch.Tensor]


def load_dense(
    config: Any, peers: Peers, dense: DenseAgreement, update: Update, step: Step, checkpoint: Checkpoint
) -> None:
    """Restores the dense parameters of a checkpoint. Collective.

    Raises:
        ValueError: they are those of another model, or lack moments that the algorithm needs.
    """
    state, own, begins = checkpoint.dense(), dense.state(), f"{DENSE}."
    kept = {key.removeprefix(begins): each for key, each in checkpoint.arrays_of(begins).items()}
    same = {key: each.numel() for key, each in own.items()} == {key: each.size for key, each in kept.items()}
    if step.dense_state():
        same = same and is_kstep(state) == by_kstep(config)
    if peers.any(not same):
        _begin_anew(config, peers, dense, update, step, checkpoint)
        return
    dense.load({key: torch.tensor(kept[key]).reshape(each.shape) for key, each in own.items()})
    step.load_dense_state(state)


def _begin_anew(
    config: Any, peers: Peers, dense: DenseAgreement, update: Update, step: Step, checkpoint: Checkpoint
) -> None:
    state = checkpoint.dense()
    step.load_dense_state(adapted(config, update, state, checkpoint.batch_index))
    replicas = is_kstep(state) or any(name.startswith(f"{DENSE}.") for name in checkpoint.files)
    if replicas:
        found = step.dense_state()
        dense.average([found[name] for name in sorted(found) if found[name].is_floating_point()])
        step.load_dense_state(found)
    dense.begin_anew()
    if peers.leads:
        _say(config, replicas)


def _say(config: Any, replicas: bool, adopted: bool = False) -> None:
    mean = ", from the mean of the trainers' replicas" if replicas else ""
    common = ", and with what they had in common" if adopted else ""
    logger.warning(f"dense parameters go on with '{config.nodes.dense.kind}'{mean}{common}")


@dataclass(frozen=True)
class DenseBefore:
    """The dense parameters of the trainers that wrote a checkpoint.

    Attributes:
        state: that of all, or the mean of their replicas: parameters, buffers and their optimizer's state.
        kept: what their algorithm kept, by name.
        replicas: whether each had its own.
    """

    state: State
    kept: State
    replicas: bool

    @classmethod
    def read(cls, before: ShardedCheckpoint) -> Self:
        """Reads them. Raises CheckpointError if they are damaged, or of several models."""
        state, kept, begins = before.dense(), dict[str, torch.Tensor](), f"{DENSE}."
        for trainer in before.trainers:
            arrays = trainer.arrays_of(begins)
            kept |= {name.removeprefix(begins): torch.tensor(array) for name, array in arrays.items()}
        replicas = bool(kept) or is_kstep(state)
        return cls(mean_of(before.trainers) if replicas else state, kept, replicas)


def mean_of(trainers: Sequence[Checkpoint]) -> dict[str, torch.Tensor]:
    """The mean of the trainers' replicas, element by element in float64, of parameters as of moments; whole numbers are
    those of the first. What is equal in all keeps its bits. Raises CheckpointError if they are of several models."""
    states = [trainer.dense() for trainer in trainers]
    first, *others = ({name: (each.shape, each.dtype) for name, each in state.items()} for state in states)
    for trainer, shapes in zip(trainers[1:], others, strict=True):
        if shapes != first:
            raise CheckpointError("is damaged: its dense parameters are of another model than the other parts'",
                                  trainer.path)  # fmt: skip
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(each.dtype)
        if each.is_floating_point()
        else each
        for name, each in states[0].items()
    }


def take_over_dense(
    config: Any, peers: Peers, dense: DenseAgreement, update: Update, step: Step, before: DenseBefore, batches: int
) -> None:
    """Goes on from the dense parameters of other trainers, after so many batches. Collective.

    Raises:
        ValueError: they are those of another model, or lack moments that the algorithm needs.
    """
    adopted = False
    if peers.trains:
        step.load_dense_state(adapted(config, update, before.state, batches))
        dense.begin_anew()  # the algorithm's own copy, such as w_ps, was made from the initial values
        adopted = dense.adopt(before.kept)
    changed = is_kstep(before.state) != by_kstep(config) or bool(before.kept) == config.nodes.dense.lockstep
    if peers.leads and before.state and (before.replicas or changed):
        _say(config, before.replicas, adopted)


def adapted(config: Any, update: Update, state: State, batches: int) -> State:
    """Returns dense state with the moments that the configured algorithm needs, after the given number of batches."""
    return update.adapted(state, by_kstep(config), config.nodes.dense.epsilon, batches)


def by_kstep(config: Any) -> bool:
    """Whether the configured algorithm is k-step."""
    return bool(config.nodes.dense.kind == "kstep")


def share_dense(peers: Peers, group: Group, step: Step) -> None:
    """Copies the first process's dense parameters and optimizer state to all. Collective."""
    mine = step.dense_state()
    (about, *_) = peers.gather({name: [list(each.shape), str(each.dtype)] for name, each in mine.items()})
    found = {}
    for name, (shape, dtype) in sorted(about.items()):
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        if peers.leads:
            found[name].copy_(mine[name])
        group.broadcast(found[name])
    if not peers.leads:
        step.load_dense_state(found)


@contextmanager
def lent_dense(peers: Peers, group: Group, step: Step) -> Iterator[None]:
    """Within the block all have the first process's dense parameters, as far as they differ: replicas of their own, or
    batch norm's running statistics. Collective."""
    mine = {name: each.detach().clone() for name, each in step.dense_state().items()}
    if len(set(peers.gather(_digest(mine) if peers.trains else None)) - {None}) == 1:
        yield
        return
    share_dense(peers, group, step)
    try:
        yield
    finally:
        if not peers.leads:
            step.load_dense_state(mine)


def _digest(state: State) -> str:
    digest = hashlib.sha256()
    for name, each in sorted(state.items()):
        digest.update(name.encode() + each.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
