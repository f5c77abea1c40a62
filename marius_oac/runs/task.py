"""What a run trains: the contract between the training loop and a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_oac.config.task import TaskConfig
from marius_oac.data.batches.rank_slice import WHOLE, RankSlice
from marius_oac.data.splits import Split
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.models.compute.update import Update
from marius_oac.pipeline.rows import RowSource
from marius_oac.runs.arithmetic import Sample
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.peers import Peers
from marius_oac.runs.rows import KeyedTables, NumberedTables
from marius_oac.runs.segments import Segments
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.storage.contract import ParameterStore
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


@dataclass
class Components:
    """What the pipeline moves batches through."""

    planner: Planner
    stores: Sequence[ParameterStore]
    step: Step
    device: torch.device
    readers: Sequence[Any]
    """Read the rows of each table for an evaluation, wherever they lie: an `EntityReader` of numbered rows, a
    `KeyTable` or the like of keys."""
    segments: Segments
    source: RowSource | None = None
    """Where the rows of batches come from, where that is not the stores of this process."""


class Task(ABC):
    """A configuration with its data. Nothing is trained yet: `build` makes what the pipeline needs."""

    config: TaskConfig
    folder: Path | None = None
    """The run's folder, if there is a run."""
    notes: Sequence[str] = ()
    """Remarks for the user, printed before training."""

    @property
    @abstractmethod
    def validates_on_a_sample(self) -> bool:
        """Whether evaluations between epochs use only a part of `valid`."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies the data; a run can only continue with the same data."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The batches of the run."""

    @abstractmethod
    def check(self) -> None:
        """Raises InputError, with the key, if configuration and data don't fit together. Nothing has been written
        yet."""

    @abstractmethod
    def plan_memory(self, folder: Path, held: int | None = None) -> MemoryPlan:
        """The memory and disk that a run needs which starts now and writes to `folder`; `held`: how many numbered rows
        of each table this process carries; None: all."""

    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of all rows; 0: unknown before training."""

    def use_folder(self, folder: Path) -> None:
        """Called before `build` if there is a run, with its folder, where the task may keep files of its own."""
        self.folder = folder

    @abstractmethod
    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        """Builds planner, stores and step; whatever must be closed is entered into `stack`."""

    @abstractmethod
    def make_step(self, device: torch.device, threads: int, update: Update) -> Step:
        """Makes the step, with the initial values of its dense parameters; `update` says what follows from its
        gradients."""

    @abstractmethod
    def sample(self, device: torch.device, threads: int) -> Sample:
        """A small batch by which installations are compared; see `runs.arithmetic`."""

    @abstractmethod
    def tables(self) -> NumberedTables | KeyedTables:
        """Describes the task's rows, for whoever stores them elsewhere than `build` does."""

    @abstractmethod
    def has(self, split: Split) -> bool:
        """Whether the split has something to evaluate."""

    @abstractmethod
    def evaluate(
        self, parts: Components, split: Split, whole: bool = True, among: Sharing = UNSHARED
    ) -> dict[str, float]:
        """Evaluates the present parameters on a split, `valid` or `test`.

        Args:
            whole: use all of the split; else what evaluations between epochs use.
            among: the processes that evaluate together; only the leading one gets the metrics. Collective.
        """

    @abstractmethod
    def before_epoch(self, parts: Components, epoch: int, among: Sharing = UNSHARED) -> dict[str, float] | None:
        """Metrics that must be measured before an epoch is trained; None: there are none. `among`: see `evaluate`."""

    @abstractmethod
    def predicted(self, step: Step, among: Peers) -> dict[str, float]:
        """Metrics of the batches since the last call, each of which `step` predicted before it trained on it; empty: it
        doesn't predict. Collective."""

    @abstractmethod
    def check_data_from(self, batch_index: int) -> None:
        """Raises CheckpointError if data that batches from `batch_index` on need are missing, or have changed."""

    def check_unchanged(self) -> None:
        """Raises InputError if data that are being trained on have changed; called before each checkpoint."""
        return

    @abstractmethod
    def check_new_data(self, first: int, share: RankSlice = WHOLE) -> None:
        """Raises InputError if the run can't train on all of its files from number `first` on, which it was given to
        continue with; `share`: the part of them that is read here. Collective."""

    @abstractmethod
    def run_files(self) -> Mapping[str, str]:
        """The task's own files in the run's folder: texts by name."""

    @abstractmethod
    def learned_files(self) -> Mapping[str, str]:
        """Those of `run_files` that may have changed since the run began."""

    @abstractmethod
    def state_arrays(self) -> Mapping[str, np.ndarray]:
        """Arrays that a checkpoint holds besides rows and dense parameters, by name."""

    @abstractmethod
    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores what `state_arrays` returned; called before the rows are loaded."""

    def fingerprints(self, stores: Sequence[ParameterStore]) -> dict[str, str]:
        """SHA-256 of each table, by name: equal for equal bits."""
        return {store.name: store.fingerprint() for store in stores}

    def finish(self, folder: Path) -> None:
        """Adds to a run's folder what is made once it is trained; what is lost of it is made again."""
        return

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """What the task adds to the summary of a run."""
