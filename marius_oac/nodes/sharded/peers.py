"""The processes of a run over nodes, which exchange values to take the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marius_oac.errors import InputError
from marius_oac.nodes.groups.contract import Group
from marius_oac.runs.checkpoints.parts import NODES
from marius_oac.runs.checkpoints.retention import START, Checkpoints, read_saved
from marius_oac.runs.peers import Peers


class ClusterPeers(Peers):
    """The processes of a group.

    Args:
        group: has all of them.
        trains, serves: see `Peers`.
    """

    over_nodes = True

    def __init__(self, group: Group, trains: bool = True, serves: bool = True):
        self._group = group
        self.leads, self.rank = group.rank == 0, group.rank
        self.trains, self.serves = trains, serves

    def any(self, flag: bool) -> bool:
        """See `Peers.any`."""
        return any(self._group.gather(flag))

    def common(self, names: Sequence[str]) -> list[str]:
        """See `Peers.common`."""
        every = [set(each) for each in self._group.gather(list(names))]
        return sorted(set.intersection(*every))

    def wait(self) -> None:
        """See `Peers.wait`."""
        self._group.barrier()

    def each(self, value: Any) -> list[tuple[str, Any]]:
        """The value of each process, with its name. Collective."""
        return list(zip(self._group.names, self._group.gather(value), strict=True))

    def gather(self, value: Any) -> list[Any]:
        """See `Peers.gather`."""
        return self._group.gather(value)

    def agreed(self, make: Callable[[], Any]) -> Any:
        """See `Peers.agreed`."""
        problem, made = None, None
        try:
            made = make()
        except InputError as error:
            problem = str(error)
        for name, said in self.each(problem):
            if said is not None:
                raise InputError(said, f"node {name}")
        return made


def check_saved(peers: ClusterPeers, run: Path, part: Path, chosen: str) -> None:
    """Raises InputError, the same on all processes, if some lack a checkpoint that all had saved, and the run would
    go on from an older one, `chosen`, or if that is "" from the beginning. No crash while saving leaves such a state.

    Args:
        run: its folder, where the first process noted it as well.
        part: this process's, of the layout that the run goes on with.
    """
    every = peers.each(([read_saved(run), read_saved(part)], Checkpoints(part / "checkpoints").names()))
    known = [saved for _, (noted, _) in every for saved in noted if saved is not None]
    # Where no record is left of which checkpoints were complete, and none is common now, any may have been.
    needed = (
        max(known) if known else "" if chosen else max((name for _, (_, names) in every for name in names), default="")
    )
    if needed <= chosen:
        return
    lacking = [node for node, (_, names) in every if needed not in names]
    raise InputError(
        f"lacks checkpoint {needed}, which was saved on all nodes: bring it back to {NODES}/{part.parent.name} in the "
        f"run's folder there, or say what to go on from: --checkpoint {chosen or START}",
        f"node {', '.join(lacking)}",
    )
