"""How the dense parameters of several trainers are synchronised: the contract, and what implementations share.

Guarantees:
- Parameters are read and written through views that autograd does not track. Their versions do not change, so a
  background thread may write between a forward and its backward pass.
- Trainers communicate through a channel of its own, separate from all other calls of the group.
- After a call has raised only `stop` may follow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from marius_oac.nodes.groups.contract import Group
from marius_oac.types import present


class Flat:
    """A flat buffer for tensors of given shapes.

    Args:
        tensors: give the shapes, and one dtype and device; they are not kept.
        extra: elements after them in the buffer, for other purposes.

    Attributes:
        buffer: [elements of all tensors + extra], zeros at first.
        shapes: of the tensors.
        parts: views of the buffer in these shapes.

    Raises:
        ValueError: dtypes or devices differ, or there is no tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], extra: int = 0) -> None:
        kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
        if len(kinds) != 1:
            raise ValueError(f"dense parameters must have one type and device, not {sorted(map(str, kinds))}")
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
        self._sizes = [tensor.numel() for tensor in tensors]
        self.buffer = torch.zeros(sum(self._sizes) + extra, dtype=tensors[0].dtype, device=tensors[0].device)
        self.parts = self.views(self.buffer)

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """Returns views in the tensors' shapes of a buffer as long as this one; it may lack the extra elements."""
        parts = buffer[: sum(self._sizes)].split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors into the buffer.

        Raises:
            ValueError: they have other shapes.
        """
        for part, tensor in self._pairs(tensors):
            part.copy_(tensor)

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the buffer into the tensors.

        Raises:
            ValueError: they have other shapes.
        """
        for part, tensor in self._pairs(tensors):
            tensor.copy_(part)

    def _pairs(self, tensors: Sequence[torch.Tensor]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if shapes != self.shapes:
            raise ValueError(f"tensors have the shapes {shapes}, not {self.shapes}")
        return zip(self.parts, tensors, strict=True)


class DenseAgreement:
    """The base of all algorithms: `marius_oac.types.DenseSync`, which a step calls, and the calls of the run.

    A run calls `start`. Where training pauses it calls `pause` (replicas may differ) or `finish` (they must not), then
    `start` again. At last it calls `stop`, also after an error. All trainers make these calls together, except `stop`.
    Where a model has no dense parameters, nothing is attached and the calls do nothing.

    Args:
        group: of the trainers.
    """

    dispatched = False
    _COMMON: tuple[str, ...] = ()
    """Names in `state` of what is the same for all trainers."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._channel: Group | None = None
        self._live: list[torch.Tensor] = []
        self._iterations = self._syncs = self._bytes = 0
        self._seconds = 0.0
        self._quiet = True
        self._total: dict[str, float] | None = None
        self._waiting = threading.local()

    def optimizer(self, sections: Sequence[Mapping[str, Any]]) -> torch.optim.Optimizer | None:
        """See `DenseSync.optimizer`."""
        return None

    def attach(self, parameters: Sequence[torch.Tensor]) -> None:
        """See `DenseSync.attach`; collective. All trainers take over the values of rank 0.

        Raises:
            ValueError: parameters are attached already, or have several types or devices.
        """
        if self._channel is not None:
            raise ValueError("dense parameters are attached already")
        self._live = [parameter.data for parameter in parameters]
        self._channel = self._group.channel("dense")
        self.begin_anew()

    def begin_anew(self) -> None:
        """See `DenseSync.begin_anew`; collective."""
        if self._channel is None:
            return
        together = Flat(self._live)
        together.fill(self._live)
        self._channel.broadcast(together.buffer)
        together.give(self._live)
        self._prepare(together)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces tensors, in place, by their mean over the trainers; collective, while nothing is started."""
        if self._channel is not None:
            for tensor in tensors:
                self._channel.all_reduce(tensor)
                tensor.div_(self._group.size)

    def start(self) -> None:
        """Begins work in the background, if there is any."""

    def reduce(self, gradients: Sequence[torch.Tensor], share: float) -> bool:
        """See `DenseSync.reduce`."""
        return share > 0

    def hand_over(self, gradients: Sequence[torch.Tensor], epoch: int) -> None:
        """See `DenseSync.hand_over`.

        Raises:
            TypeError: this algorithm can't be `dispatched`.
        """
        raise TypeError(f"{type(self).__name__} hands no gradients over")

    def updated(self, batch_index: int) -> None:
        """See `DenseSync.updated`; raises the error that ended the background thread."""
        self._iterations += 1
        self._quiet, self._total = False, None

    def pause(self) -> None:
        """Ends work in the background; the trainers agree on which exchange is the last one."""
        self._quiet = True

    def finish(self) -> None:
        """Pauses, then makes the parameters of all trainers the same and sums their metrics; collective."""
        self.pause()
        if self._channel is None:
            return
        self._agree()
        each = self._channel.gather(self._counts())
        self._total = {name: sum(one[name] for one in each) for name in each[0]}

    def stop(self) -> None:
        """Ends everything at once, whatever the others do. Those that wait for this trainer find it lost.

        It does not raise errors of the background thread: a run that does not `finish` has an error of its own.
        """
        if self._channel is not None:
            if not self._quiet:  # otherwise the others may still be in the last call that this trainer made
                self._channel.abort()
            self._channel.close()

    def waited(self) -> float:
        """Returns the seconds that the calling thread has spent in synchronisations, mostly waiting for others."""
        return getattr(self._waiting, "seconds", 0.0)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics that `DenseSync.metrics` lists.

        They are this trainer's; from `finish` to the next iteration those of all trainers, summed.
        """
        counts = self._total or self._counts()
        syncs = counts["syncs"]
        return {
            "iterations": counts["iterations"],
            "syncs": syncs,
            "average_sync_gap": counts["iterations"] / syncs if syncs else 0.0,
            "bytes": counts["bytes"],
            "bytes_per_sync": counts["bytes"] / syncs if syncs else 0.0,
            "seconds_per_sync": counts["seconds"] / syncs if syncs else 0.0,
        }

    def state(self) -> dict[str, torch.Tensor]:
        """Returns copies of the tensors that a checkpoint keeps beside parameters and optimizer state, by name."""
        return {name: tensor.clone() for name, tensor in self._kept().items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies a state that `state` returned; after `attach`, while nothing is started. Collective.

        Raises:
            ValueError: the state is of another algorithm or model.
        """
        mine, theirs = (
            {name: (tuple(each.shape), each.dtype) for name, each in kept.items()} for kept in (self._kept(), state)
        )
        if mine != theirs:
            raise ValueError(f"the state has the tensors {theirs}, but this dense agreement has {mine}")
        self._take(state)

    def adopt(self, kept: Mapping[str, torch.Tensor]) -> bool:
        """Takes over what all trainers of an agreement have in common, such as w_ps, after `begin_anew`; they may have
        been of another number. Collective.

        Args:
            kept: what the `state` of its trainers had, together.

        Returns:
            Whether there was anything; of another algorithm nothing is taken.

        Raises:
            ValueError: it is of another model.
        """
        if not self._COMMON or not set(self._COMMON) <= kept.keys():
            return False
        size = sum(tensor.numel() for tensor in self._live)
        for name in self._COMMON:
            if kept[name].numel() != size:
                raise ValueError(f"dense state '{name}': {kept[name].numel()} numbers, but this model has {size}")
        self._take_common({name: kept[name].reshape(-1).to(self._live[0].device) for name in self._COMMON})
        return True

    def _take_common(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copies the values of `_COMMON`, [elements of all parameters] in the order of `attach`; collective."""

    def _prepare(self, together: Flat) -> None:
        """Called once the parameters are attached, with a buffer that holds them."""

    def _agree(self) -> None:
        """Makes parameters the same on all trainers, if they are not."""

    def _kept(self) -> dict[str, torch.Tensor]:
        """Returns the tensors that a checkpoint keeps, by name."""
        return {}

    def _take(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies a state that fits `_kept`."""
        for name, tensor in self._kept().items():
            tensor.copy_(state[name])

    def _begin(self) -> tuple[float, int]:
        """Begins a synchronisation; the result is the argument of `_count` when it is done."""
        return time.perf_counter(), self._sent()

    def _count(self, begun: tuple[float, int]) -> None:
        seconds = time.perf_counter() - begun[0]
        self._seconds += seconds
        self._waiting.seconds = self.waited() + seconds
        self._bytes += self._sent() - begun[1]
        self._syncs += 1

    def _sent(self) -> int:
        """Returns the payload bytes that this trainer has sent so far."""
        return present(self._channel).bytes_sent

    def _counts(self) -> dict[str, float]:
        return {"iterations": self._iterations, "syncs": self._syncs, "bytes": self._bytes, "seconds": self._seconds}
