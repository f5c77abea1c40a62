"""What a run trains: the contract between the training loop and its tasks, graphs and click logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_oac.config.task import TaskConfig
from marius_oac.data.prepare.splits import Split
from marius_oac.pipeline.rows import RowSource
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.storage.contract import ParameterStore
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.types import Planner, Step


@dataclass(frozen=True)
class Schedule:
    """The batches of a run: its epochs end after `ends[0]`, `ends[1]`, ... batches, ascending."""

    ends: Sequence[int]

    @property
    def last(self) -> int:
        """Batches in all."""
        return self.ends[-1] if self.ends else 0

    def epochs_done(self, batch_index: int) -> int:
        """Epochs that have ended when `batch_index` batches are done."""
        return bisect_right(self.ends, batch_index)

    def is_end(self, batch_index: int) -> bool:
        """Whether an epoch begins or ends here."""
        done = self.epochs_done(batch_index)
        return batch_index == (self.ends[done - 1] if done else 0)

    def begin(self, epoch: int) -> int:
        """The first batch of an epoch."""
        return self.ends[epoch - 1] if epoch else 0


class Peers:
    """The processes that train together and decide alike: here this one alone."""

    leads = True
    """Whether it is the one that evaluates and tells the user."""
    rank = 0
    """This process's number among them."""

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any of them."""
        return flag

    def from_lead(self, make: Callable[[], Any]) -> Any:
        """What `make` gives on the one that leads, a plain value."""
        return make()

    def gather(self, value: Any) -> list[Any]:
        """What each of them has, a plain value, in their order."""
        return [value]

    def common(self, names: Sequence[str]) -> list[str]:
        """Those that each of them has, sorted."""
        return sorted(names)

    def wait(self) -> None:
        """Returns when each of them has come here."""

    def agreed(self, make: Callable[[], Any]) -> Any:
        """What `make` gives; raises InputError, the same on all, where it does so on one of them."""
        return make()


@dataclass
class Components:
    """What the pipeline moves batches through."""

    planner: Planner
    stores: Sequence[ParameterStore]
    step: Step
    device: torch.device
    tier: DiskTier | None = None
    """What holds the stores' rows, where they lie on disk."""
    source: RowSource | None = None
    """Where the rows of batches come from, where that is not the stores of this process."""


class Task(ABC):
    """A configuration with its data. Nothing is trained yet: `build` makes what the pipeline needs."""

    config: TaskConfig
    folder: Path | None = None
    """The run's folder, if there is a run."""
    notes: Sequence[str] = ()
    """Remarks for the user, printed before training."""
    peers: Peers = Peers()
    over_nodes = False
    """Whether rows are served to processes of several nodes."""

    @property
    @abstractmethod
    def decisive_metric(self) -> str:
        """The metric that decides which checkpoint is best."""

    @property
    def validates_on_a_sample(self) -> bool:
        """Whether evaluations between epochs use only a part of `valid`."""
        return False

    @property
    def stop_requested(self) -> bool:
        """Whether a user has asked a process outside the group to stop the run."""
        return False

    @property
    def trains(self) -> bool:
        """Whether this process computes batches."""
        return True

    @property
    def serves(self) -> bool:
        """Whether this process holds rows."""
        return True

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the data: a run goes on with the same."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The batches of the run."""

    @abstractmethod
    def check(self) -> None:
        """Raises InputError where config and data don't fit together, with the key; before anything is written."""

    @abstractmethod
    def plan_memory(self, folder: Path) -> MemoryPlan:
        """What a run needs that starts now and writes to `folder`."""

    def table_bytes(self) -> int:
        """Bytes that this process's tables take in memory; 0: nobody knows before they are trained."""
        return (self.config.storage.memory or 0) if self.config.storage.on_disk else self._all_row_bytes()

    def _all_row_bytes(self) -> int:
        """Bytes of all rows that this process holds; 0: nobody knows."""
        return 0

    def use_folder(self, folder: Path) -> None:
        """Said before `build`, if there is a run: its folder exists, and the task may keep files of its own there."""
        self.folder = folder

    @abstractmethod
    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        """Planner, stores and step; what must be closed is entered into `stack`."""

    @abstractmethod
    def has(self, split: Split) -> bool:
        """Whether there is something to evaluate."""

    @abstractmethod
    def evaluate(self, parts: Components, split: Split, whole: bool = True) -> dict[str, float]:
        """Metrics of the present parameters on a split, `valid` or `test`; unless on the `whole` of it, on what is
        looked at between epochs."""

    def next_pause(self, batch: int) -> int | None:
        """The first batch behind this one before which the pipeline must come to rest, if there is one."""
        return None

    def before_batches(self, first: int) -> None:
        """Said before the pipeline runs batches from `first` on."""
        return

    def after_batches(self, ended: bool) -> None:
        """Said when the pipeline has run them; `ended`: they were the run's last."""
        return

    def reached(self, planned: int) -> int:
        """Where the pipeline has come to, by where this process's own has; collective."""
        return planned

    def trained_outside(self) -> tuple[int, float]:
        """Examples that processes outside of the crew have trained since the last call, and the sum of their losses."""
        return 0, 0.0

    def mode_changes(self, reached: int) -> Sequence[Mapping[str, Any]]:
        """What is decided while the pipeline rests before batch `reached`: lines of metrics, without kind and batch."""
        return ()

    def before_epoch(self, parts: Components, epoch: int) -> dict[str, float] | None:
        """Metrics that must be known before an epoch is trained, if any."""
        return None

    def check_data_from(self, batch_index: int) -> None:
        """Raises where data that batches from `batch_index` on need have changed since the run began, or are gone."""
        return

    def check_new_data(self, first: int) -> None:
        """Raises InputError where a run could not train on all of what it is given to go on with: on its files from
        number `first` on. Collective."""
        return

    def run_files(self) -> Mapping[str, str]:
        """Texts of files that the run's folder holds, by name."""
        return {}

    def learned_files(self) -> Mapping[str, str]:
        """Those of `run_files` that may know more now than when the run began."""
        return {}

    def state_arrays(self) -> Mapping[str, np.ndarray]:
        """Arrays by name that a checkpoint holds beside rows and dense parameters."""
        return {}

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes them back, before the rows are loaded."""
        return

    def load_dense(self, parts: Components, checkpoint: Checkpoint) -> None:
        """Takes back the dense parameters, with their optimizer's state.

        Raises:
            ValueError: they are of another model.
        """
        parts.step.load_dense_state(checkpoint.dense())

    def take_over(self, whole: Checkpoint, parts: Components) -> None:
        """Loads what this process holds from a checkpoint of all parts of other nodes; only over nodes."""
        raise TypeError(f"{type(self).__name__} is trained on one machine")

    def fingerprints(self, stores: Sequence[ParameterStore]) -> dict[str, str]:
        """SHA-256 of each table, by name: equal for equal bits."""
        return {store.name: store.fingerprint() for store in stores}

    def summary(self) -> dict[str, Any]:
        """What the task adds to a run's summary."""
        return {}
