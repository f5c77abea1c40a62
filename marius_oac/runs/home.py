"""Where the rows of a run are, and which processes train with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_oac.config.task import TaskConfig
from marius_oac.data.splits import Split
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.peers import Peers
from marius_oac.runs.task import Components, Task
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.storage.contract import ParameterStore


class Home:
    """All rows are in this process, which trains alone. The base of others.

    Args:
        task: what is trained.

    Attributes:
        peers: the processes of the run.
        memory_plan: what the run needs, once it has been checked.
    """

    def __init__(self, task: Task):
        self.task, self.peers = task, Peers()
        self.memory_plan: MemoryPlan | None = None

    @property
    def config(self) -> TaskConfig:
        """The task's."""
        return self.task.config

    def check(self) -> None:
        """Raises InputError if the task can't be trained so. Nothing has been written yet."""
        self.task.check()

    def check_new_data(self, first: int) -> None:
        """See `Task.check_new_data`. Collective."""
        self.task.check_new_data(first)

    def plan_memory(self, folder: Path) -> MemoryPlan:
        """The memory and disk that this process needs for a run which starts now and writes to `folder`."""
        return self.task.plan_memory(folder)

    def table_bytes(self) -> int:
        """Bytes that this process's tables take in memory; 0: unknown before training."""
        storage = self.config.storage
        return (storage.memory or 0) if storage.on_disk else self._row_bytes()

    def _row_bytes(self) -> int:
        """Bytes of all rows that this process holds; 0: unknown."""
        return self.task.row_bytes()

    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        """Builds planner, stores and step; whatever must be closed is entered into `stack`. Collective."""
        return self.task.build(stack, device, threads, binding)

    def evaluate(self, parts: Components, split: Split, whole: bool) -> dict[str, float]:
        """See `Task.evaluate`. All processes get the metrics. Collective."""
        return self.task.evaluate(parts, split, whole)

    def before_epoch(self, parts: Components, epoch: int) -> dict[str, float] | None:
        """See `Task.before_epoch`. Collective."""
        return self.task.before_epoch(parts, epoch)

    def predicted(self, parts: Components) -> dict[str, float]:
        """See `Task.predicted`. Collective."""
        return self.task.predicted(parts.step, self.peers)

    def state_arrays(self) -> Mapping[str, np.ndarray]:
        """Arrays that a checkpoint of this process holds besides rows and dense parameters, by name."""
        return self.task.state_arrays()

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores what `state_arrays` returned; called before the rows are loaded."""
        self.task.load_state_arrays(arrays)

    def load_dense(self, parts: Components, checkpoint: Checkpoint) -> None:
        """Restores the dense parameters and their optimizer's state. Collective.

        Raises:
            ValueError: they are those of another model.
        """
        parts.step.load_dense_state(checkpoint.dense())

    def take_over(self, whole: Checkpoint, parts: Components) -> None:
        """Loads what this process holds from a checkpoint that other processes have written. Collective."""
        raise TypeError("one process reads its own checkpoints")

    def fingerprints(self, stores: Sequence[ParameterStore]) -> dict[str, str]:
        """SHA-256 of each table, by name: equal for equal bits, wherever the rows are. Collective."""
        return self.task.fingerprints(stores)

    def finish(self, folder: Path) -> None:
        """See `Task.finish`."""
        self.task.finish(folder)

    def summary(self) -> dict[str, Any]:
        """What the task, and where its rows are, add to the summary of a run. Collective."""
        return self.task.summary()
