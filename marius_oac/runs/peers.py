"""The processes of a run, which take the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.checkpoints.origin import check_together
from marius_oac.runs.checkpoints.retention import Checkpoints


class Peers:
    """Those of a run of one process. The base of others."""

    leads = True
    """Whether this process decides, and reports to the user."""
    rank = 0
    """This process's number among them."""
    trains = True
    """Whether this process computes batches."""
    serves = True
    """Whether this process holds rows."""
    over_nodes = False
    """Whether rows are served to processes of several nodes."""

    def any(self, flag: bool) -> bool:
        """Returns whether the flag is set on any process. Collective."""
        return flag

    def gather(self, value: Any) -> list[Any]:
        """Returns the value of each process, by rank; values are plain. Collective."""
        return [value]

    def common(self, names: Sequence[str]) -> list[str]:
        """Returns the names that every process has, sorted. Collective."""
        return sorted(names)

    def wait(self) -> None:
        """Returns when every process has called it."""

    def agreed(self, make: Callable[[], Any]) -> Any:
        """Returns what `make` returns. Raises InputError on all processes if it does on one. Collective."""
        return make()

    def share(self, checkpoints: Checkpoints) -> int:
        """Has what the processes save from now on be parts of one moment; returns how many they are. Collective."""
        sessions = self.gather(checkpoints.origin.session)
        checkpoints.saved_as(sessions[0], self.rank, len(sessions))
        return len(sessions)

    def opened(self, checkpoints: Checkpoints, name: str) -> Checkpoint:
        """This process's part of a checkpoint, to be checked as it is read. Raises InputError on all processes if one
        is damaged, another's, or of another moment than the others. Collective."""
        found: Checkpoint = self.agreed(lambda: checkpoints.open(name, as_read=True))
        check_together(self.gather([str(found.path), found.facts()]))
        return found
