"""Background synchronisation of dense parameters: EASGD, model averaging, BMUF (ShadowSync, Zheng et al., section 3.3).

Each trainer trains its own replica w_i. A synchronisation copies it, exchanges the copy for w, and then moves the
replica, as it is by then, towards w: w_i = (1 - alpha) w_i + alpha w. A plain copy would undo the updates made
meanwhile.

| algorithm | w, with c_i the copies |
|---|---|
| EASGD (Algorithm 2) | w_ps = (1 - alpha) w_ps + alpha c_i, at the sync servers, each trainer by itself |
| MA (Algorithm 3) | mean of c_i |
| BMUF (Algorithm 4) | d = mean of c_i - w_global; w_global = w_global + eta d |

BMUF's momentum: u = momentum u + d replaces d; with Nesterov d + momentum u does, which makes it the outer step of
DiLoCo. In the background a thread synchronises repeatedly, at most once per `sync_every` iterations of its trainer. In
the foreground the training thread does so after every `sync_every` iterations.

Guarantees:
- With background synchronisation training never waits: it only takes a lock to count an iteration.
- The thread writes into the live parameters while training reads and writes them, without locks. An element may lose an
  update of either side; nothing else is lost.
- Algorithms that need all trainers end together. Every exchange carries how many trainers want to end. The one in which
  all do is the last for all of them, and changes nothing. So no trainer is left waiting, whatever its speed.
- The first error of the thread is raised by the next `updated` and by `pause`. The others' threads end with `NodeLost`
  once this trainer stops.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch

from marius_oac.nodes.dense.contract import DenseAgreement, Flat
from marius_oac.nodes.dense.sync_server import SyncServers, parts_of
from marius_oac.nodes.groups.contract import Group
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.workers import Workers
from marius_oac.types import present

Gate = Callable[[str], object]
"""Called by the thread that synchronises with "copied", once the replica has been copied, "received", before it is
moved, and "drawn", after a synchronisation; a test may block there."""

Assign = Callable[[Sequence[int]], Sequence[int]]
"""Returns the sync server of each parameter, from their sizes in bytes; the same on all trainers."""


class Shadow(DenseAgreement):
    """The base of the algorithms: when to synchronise, and how it ends.

    Args:
        group: of the trainers.
        alpha: how far a replica moves towards w, 0 to 1.
        sync_every: iterations of this trainer between synchronisations; in the background the fewest.
        background: whether a thread synchronises.
        gate: see `Gate`.
    """

    def __init__(self, group: Group, alpha: float, sync_every: int, background: bool, gate: Gate | None = None) -> None:
        super().__init__(group)
        self._alpha, self._sync_every, self._background = alpha, sync_every, background
        self._gate = gate or (lambda point: None)
        self._changed = threading.Condition()
        self._since = torch.zeros(1, dtype=torch.int64)  # iterations; a tensor, since checkpoints keep it
        self._ending = False
        self._workers: Workers | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """See `DenseAgreement.start`."""
        self._ending = False
        if self._background and self._channel is not None:
            self._quiet = False
            self._workers = Workers(lambda: None)
            self._workers.start("dense", 1, self._work, lambda: None)

    def updated(self, batch_index: int) -> None:
        """See `DenseAgreement.updated`."""
        super().updated(batch_index)
        with self._changed:
            self._since += 1
            self._changed.notify_all()
        if self._error is not None:
            raise self._error
        if not self._background and self._since >= self._sync_every:
            self._since.zero_()
            self._synchronise()

    def pause(self) -> None:
        """See `DenseAgreement.pause`."""
        self._ask_to_end()
        if self._workers is not None:
            workers, self._workers = self._workers, None
            workers.join()
        elif not self._background and self._channel is not None:
            self._end_together()
        super().pause()

    def stop(self) -> None:
        """See `DenseAgreement.stop`."""
        self._ask_to_end()
        super().stop()
        if self._workers is not None:
            try:
                self._workers.join()
            except BaseException as error:
                if error is not self._error:  # such as Ctrl-C
                    raise

    def _ask_to_end(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while self._due():
                self._synchronise()
            self._end_together()
        except Closed:  # `stop`
            raise
        except BaseException as error:  # noqa: BLE001 - training raises it at its next update
            self._error = error
            raise

    def _due(self) -> bool:
        """Waits until a synchronisation is due; returns False when the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ending or self._since >= self._sync_every)
            self._since.zero_()
            return not self._ending

    def _draw(self, tensors: Sequence[torch.Tensor], towards: Sequence[torch.Tensor]) -> None:
        self._gate("received")
        for tensor, target in zip(tensors, towards, strict=True):
            tensor.lerp_(target, self._alpha)

    @abstractmethod
    def _synchronise(self) -> None:
        """Makes one synchronisation."""

    def _end_together(self) -> None:
        """Returns when no trainer needs this one any more."""

    def _kept(self) -> dict[str, torch.Tensor]:
        return {"since": self._since}


class Averaging(Shadow):
    """MA: replicas move towards their mean. At the end each becomes the mean."""

    _flat: Flat

    def _prepare(self, together: Flat) -> None:
        self._flat = Flat(self._live, extra=1)

    def _synchronise(self) -> None:
        self._exchange(ending=False)

    def _end_together(self) -> None:
        while not self._exchange(ending=True):
            pass

    def _exchange(self, ending: bool) -> bool:
        """Synchronises; returns whether all trainers wanted to end, in which case nothing has changed."""
        begun = self._begin()
        if self._reduce(ending):
            return True
        self._draw(self._live, self._flat.views(self._target()))
        self._count(begun)
        self._gate("drawn")
        return False

    def _reduce(self, ending: bool) -> bool:
        """Writes the copies' mean into the buffer; returns whether all trainers want to end."""
        self._flat.fill(self._live)
        self._flat.buffer[-1] = float(ending)
        self._gate("copied")
        present(self._channel).all_reduce(self._flat.buffer)
        everybody = self._flat.buffer[-1].item() == self._group.size
        self._flat.buffer.div_(self._group.size)
        return everybody

    def _target(self) -> torch.Tensor:
        """Returns what replicas move towards, from the mean in the buffer."""
        return self._flat.buffer

    def _agree(self) -> None:
        self._reduce(ending=True)
        for tensor, target in zip(self._live, self._flat.views(self._target()), strict=True):
            tensor.copy_(target)


class Bmuf(Averaging):
    """BMUF: replicas move towards w_global, which takes a step towards their mean. At the end each becomes w_global.

    Args:
        group, alpha, sync_every, background, gate: see `Shadow`.
        eta: the step's size.
        momentum: of the steps; 0: none.
        nesterov: whether it is Nesterov's momentum.
    """

    _COMMON = ("global", "velocity")

    def __init__(
        self, group: Group, alpha: float, sync_every: int, background: bool, gate: Gate | None = None,
        *, eta: float = 1.0, momentum: float = 0.0, nesterov: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(group, alpha, sync_every, background, gate)
        self._eta, self._momentum, self._nesterov = eta, momentum, nesterov

    def _prepare(self, together: Flat) -> None:
        super()._prepare(together)
        self._global = together.buffer
        self._velocity = torch.zeros_like(self._global)

    def _target(self) -> torch.Tensor:
        direction = self._flat.buffer[:-1] - self._global
        self._velocity.mul_(self._momentum).add_(direction)
        step = direction.add_(self._velocity, alpha=self._momentum) if self._nesterov else self._velocity
        return self._global.add_(step, alpha=self._eta)

    def _kept(self) -> dict[str, torch.Tensor]:
        return super()._kept() | {"global": self._global, "velocity": self._velocity}

    def _take_common(self, values: Mapping[str, torch.Tensor]) -> None:
        self._global.copy_(values["global"])
        self._velocity.copy_(values["velocity"])


class Easgd(Shadow):
    """EASGD: each replica and w_ps at the sync servers move towards each other, independently of other trainers.

    At the end each trainer exchanges once more and then takes w_ps, whose last bits depend on the order of these
    exchanges. Payload is what this trainer sends; the answers are as long.

    Args:
        group, alpha, sync_every, background, gate: see `Shadow`; the servers have an alpha of their own.
        servers: hold w_ps.
        assign: see `Assign`; parameters are in the order of `attach`.
    """

    _COMMON = ("central",)

    def __init__(
        self, group: Group, alpha: float, sync_every: int, background: bool, gate: Gate | None = None,
        *, servers: SyncServers, assign: Assign,
    ) -> None:  # fmt: skip
        super().__init__(group, alpha, sync_every, background, gate)
        self._servers, self._assign = servers, assign
        self._uploaded = 0

    def _prepare(self, together: Flat) -> None:
        assignment = self._assign([tensor.nbytes for tensor in self._live])
        if len(assignment) != len(self._live):
            raise ValueError(f"{len(assignment)} parameters are assigned to sync servers, not {len(self._live)}")
        self._numbers = parts_of(assignment)
        self._parts = {server: [self._live[each] for each in numbers] for server, numbers in self._numbers.items()}
        self._flats = {server: Flat(tensors) for server, tensors in self._parts.items()}
        self._take_common({"central": together.buffer})

    def stop(self) -> None:
        """See `DenseAgreement.stop`."""
        self._servers.abort()
        super().stop()

    def _copied(self, server: int) -> torch.Tensor:
        self._flats[server].fill(self._parts[server])
        return self._flats[server].buffer

    def _synchronise(self) -> None:
        begun = self._begin()
        for server, tensors in self._parts.items():
            self._draw(tensors, self._flats[server].views(self._exchange(server)))
        self._count(begun)
        self._gate("drawn")

    def _exchange(self, server: int) -> torch.Tensor:
        copy = self._copied(server)
        self._gate("copied")
        answer = self._servers.exchange(server, copy)
        self._uploaded += copy.nbytes
        return answer

    def _agree(self) -> None:
        for server in self._parts:
            self._exchange(server)
        present(self._channel).barrier()
        for server, tensors in self._parts.items():
            for tensor, target in zip(tensors, self._flats[server].views(self._servers.read(server)), strict=True):
                tensor.copy_(target)
        # `finish` now gathers their counts, so no trainer exchanges again before all have read.

    def _sent(self) -> int:
        return self._uploaded

    def _kept(self) -> dict[str, torch.Tensor]:
        return super()._kept() | ({} if self._group.rank else {"central": self._central()})

    def _central(self) -> torch.Tensor:
        """w_ps, in the order of `attach`: it does not depend on the servers."""
        whole = Flat(self._live)
        for server, numbers in self._numbers.items():
            for number, values in zip(numbers, self._flats[server].views(self._servers.read(server)), strict=True):
                whole.parts[number].copy_(values)
        return whole.buffer

    def _take(self, state: Mapping[str, torch.Tensor]) -> None:
        self._since.copy_(state["since"])
        self._take_common(state)

    def _take_common(self, values: Mapping[str, torch.Tensor]) -> None:
        if not self._group.rank:
            whole = Flat(self._live)
            whole.buffer.copy_(values["central"])
            for server, numbers in self._numbers.items():
                self._flats[server].fill([whole.parts[each] for each in numbers])
                self._servers.write(server, self._flats[server].buffer)
        present(self._channel).barrier()
