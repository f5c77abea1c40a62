"""A task that wraps another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from marius_oac.data.prepare.splits import Split
from marius_oac.runs.task import Schedule, Task


class WrappedTask(Task):
    """Has the data, schedule and metrics of the task that it wraps.

    Args:
        task: what is trained.
    """

    def __init__(self, task: Task):
        self.task, self.config, self.notes = task, task.config, task.notes

    @property
    def decisive_metric(self) -> str:
        """See `Task.decisive_metric`."""
        return self.task.decisive_metric

    @property
    def fingerprint(self) -> str:
        """See `Task.fingerprint`."""
        return self.task.fingerprint

    @property
    def schedule(self) -> Schedule:
        """See `Task.schedule`."""
        return self.task.schedule

    @property
    def validates_on_a_sample(self) -> bool:
        """See `Task.validates_on_a_sample`."""
        return self.task.validates_on_a_sample

    def use_folder(self, folder: Path) -> None:
        """See `Task.use_folder`."""
        super().use_folder(folder)
        self.task.use_folder(folder)

    def has(self, split: Split) -> bool:
        """See `Task.has`."""
        return self.task.has(split)

    def check_data_from(self, batch_index: int) -> None:
        """See `Task.check_data_from`."""
        self.task.check_data_from(batch_index)

    def run_files(self) -> Mapping[str, str]:
        """See `Task.run_files`."""
        return self.task.run_files()

    def learned_files(self) -> Mapping[str, str]:
        """See `Task.learned_files`."""
        return self.task.learned_files()
