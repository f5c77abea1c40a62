"""Where the agents of a run meet, each time before they start their processes.

Guarantees:
- A meeting ends within `patience` seconds: all have come, or one line says who has not.
- Who has ended for good (`leave`) is not waited for: the others end, too, with its exit code if that says why.
- An agent that was killed can't come back; a second one of the same name is refused.
- What agents tell each other is text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from torch.distributed import DistError, DistStoreError, PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from marius_oac.errors import InputError, NodeLost

_LOOK = 0.2  # seconds between two looks: signals are handled meanwhile
_ENDED = "ended"
_PASSED_ON = ("2", "129", "130", "143")  # exit codes that say why the run ends, on every node alike
_DEFECTS = (1, 2)  # exit codes of what the others can't go on without; the others have been asked to stop, or are done


class Meeting(RendezvousHandler):
    """torch's rendezvous of nodes that are known by name.

    Args:
        store: that all agents have, each at some port of its machine's loopback. Their processes find each other by it,
            too.
        nodes: all nodes' names, in the order of nodes.yaml.
        index: which of them this one is.
        patience: seconds that a meeting may take.
        began: when the first one began (`time.monotonic`); None: it begins with its call.
        grace: seconds that this agent's processes have to end by themselves when others begin another meeting.
    """

    def __init__(
        self,
        store: TCPStore,
        nodes: Sequence[str],
        index: int,
        patience: float,
        began: float | None = None,
        grace: float = 0.0,
    ) -> None:
        self._store, self._nodes, self._index = store, nodes, index
        self._patience, self._began, self._grace = patience, began, grace
        self._seen: tuple[int, float] | None = None
        self.round = -1
        """Meetings before the last one."""

    def next_rendezvous(self) -> RendezvousInfo:
        """Waits for all.

        Raises:
            InputError: another agent has this one's name.
            NodeLost: somebody has not come, or has ended.
        """
        self.round += 1
        if self._store.add(f"{self.round}/{self._index}", 1) > 1:
            raise InputError("is there already: two were started of the same name", f"node {self._nodes[self._index]}")
        self._store.set(f"{self.round}", "begun")
        self._wait()
        start = PrefixStore(f"start {self.round}", self._store)
        return RendezvousInfo(
            start, self._index, len(self._nodes), RendezvousStoreInfo(self._store.host, self._store.port)
        )

    @property
    def use_agent_store(self) -> bool:
        """Processes make no store of their own."""
        return True

    def _wait(self) -> None:
        began, self._began = self._began or time.monotonic(), None
        while True:
            self._check_ended()
            lacking = [k for k in range(len(self._nodes)) if not self._store.check([f"{self.round}/{k}"])]
            if not lacking:
                return
            if time.monotonic() > began + self._patience:
                self.leave(1)
                who = ", ".join(self._nodes[k] for k in lacking)
                raise NodeLost(
                    who, f"has not come to {'start again' if self.round else 'start'} in {self._patience:g} s"
                )
            with suppress(DistStoreError):
                self._store.wait([f"{self.round}/{lacking[0]}"], timedelta(seconds=_LOOK))

    def _check_ended(self) -> None:
        if not self._store.check([_ENDED]):
            return
        who, _, code = self._store.get(_ENDED).decode("ascii", "replace").partition(" ")
        name = self._nodes[int(who)] if who.isdecimal() and int(who) < len(self._nodes) else "?"
        error = NodeLost(name, f"it has ended with exit code {code}: the others can't go on")
        error.exit_code = int(code) if code in _PASSED_ON else 1
        raise error

    def leave(self, code: int) -> None:
        """This agent ends with that exit code, and comes to no further meeting. Never raises: nobody may be there."""
        with suppress(DistError):
            self._store.compare_set(_ENDED, "", f"{self._index} {code}")
            if code in _DEFECTS:
                self._store.set(f"{self.round + 1}", "begun")  # so that those who train look who it is

    def num_nodes_waiting(self) -> int:
        """Whether the next meeting has begun: then this agent stops its processes and comes, too.

        Not at once: those that have lost another node end by themselves, and what one of them ends with may be why the
        others have lost it, and no reason to start again.
        """
        with suppress(DistError):  # the first node's agent may end before this one
            if not self._store.check([f"{self.round + 1}"]):
                return 0
            if self._store.check([_ENDED]):
                return 1
            if self._seen is None or self._seen[0] != self.round:
                self._seen = self.round, time.monotonic()
            return int(time.monotonic() >= self._seen[1] + self._grace)
        return 0

    def get_backend(self) -> str:
        """torch's name for it."""
        return "marius-oac"

    def get_run_id(self) -> str:
        """The same for all."""
        return "marius-oac"

    def is_closed(self) -> bool:
        """Never: see `leave`."""
        return False

    def set_closed(self) -> None:
        """See `leave`."""

    def shutdown(self) -> bool:
        """There is nothing to be let go of."""
        return True
