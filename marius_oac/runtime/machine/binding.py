"""Threads on the cores that were chosen for them (`seating`), by what they do.

Guarantees:
- No thread is ever bound to a CPU that this process was not allowed to use when the topology was read.
- Binding changes where work is done, never its result. A thread that can't be bound runs on, and one line on standard
  error says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from marius_oac.runtime.machine.numa_memory import MemoryPolicy, log_once
from marius_oac.runtime.machine.sysfs import format_list

ROLES = ("plan", "settle", "fetch", "read", "upload", "compute", "download", "write", "io", "network", "receive",
         "serve")  # fmt: skip
"""The pipeline's stages; `io`: the disk tier's threads; over nodes `network`: the transport's own threads, `receive`:
those that take what other nodes send, `serve`: those of this process's shard."""


@dataclass(frozen=True)
class Seat:
    """CPUs for the threads of a role, the nodes that these are on, and why they are there, in words."""

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Binding:
    """What was chosen for a process.

    Attributes:
        seats: role -> seat; empty where there is nothing to do.
        memory: where the tables' pages go; None: where the kernel puts them.
        note: the choice in one line.
        trainers: how many processes of the run compute on this machine's CPUs.
    """

    seats: Mapping[str, Seat]
    memory: MemoryPolicy | None
    note: str
    trainers: int = 1

    def cpus(self, role: str) -> tuple[int, ...] | None:
        """The CPUs for a role; None: it is left unbound.

        Raises:
            ValueError: there is no such role.
        """
        if role not in ROLES:
            raise ValueError(f"no role is named {role!r}")
        seat = self.seats.get(role)
        return seat.cpus if seat else None

    def threads(self) -> int:
        """How many threads should compute on the CPU: one for each CPU that `compute` has; where nothing is bound, for
        each of the process's part of those that it may use."""
        cpus = self.cpus("compute")
        return len(cpus) if cpus else max(1, len(os.sched_getaffinity(0)) // self.trainers)

    def bind_thread(self, role: str) -> bool:
        """Binds the calling thread, and the threads that it will start, to the CPUs of its role.

        Returns:
            Whether it is bound now.

        Raises:
            ValueError: there is no such role.
        """
        cpus = self.cpus(role)
        if cpus is None:
            if self.seats:
                log_once(f"binding: threads for {role} are left unbound")
            return False
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:  # the cpuset has changed since, or a sandbox forbids the call
            log_once(f"binding: threads for {role} are left unbound: CPUs {format_list(cpus)}: {error.strerror}")
            return False
        return True

    @contextmanager
    def bound(self, role: str) -> Iterator[None]:
        """Within the block the calling thread, and what it starts for good, is bound, if the role has a seat.

        Raises:
            ValueError: there is no such role.
        """
        before = os.sched_getaffinity(0)
        bound = self.cpus(role) is not None and self.bind_thread(role)
        try:
            yield
        finally:
            if bound:
                os.sched_setaffinity(0, before)


def unbound(note: str, trainers: int = 1) -> Binding:
    """Threads and memory are left alone."""
    return Binding({}, None, note, trainers)


UNBOUND = unbound("threads and memory are left alone")
