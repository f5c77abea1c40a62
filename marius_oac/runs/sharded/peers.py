"""The processes of a run over nodes, which exchange values to take the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marius_oac.errors import InputError
from marius_oac.nodes.groups.contract import Group
from marius_oac.runs.task import Peers


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
