"""Binds threads to the cores that `seating` has chosen for their roles.

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
    """CPUs for the threads of a role, and the NUMA nodes of these CPUs."""

    cpus: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Binding:
    """The choice for a process.

    Attributes:
        seats: role -> seat; empty where nothing is bound.
        memory: policy for the tables' pages; None leaves them to the kernel.
        note: the choice in one line.
        trainers: number of processes of the run that compute on this machine's CPUs.
    """

    seats: Mapping[str, Seat]
    memory: MemoryPolicy | None
    note: str
    trainers: int = 1

    def cpus(self, role: str) -> tuple[int, ...] | None:
        """The CPUs for a role; None if it is not bound.

        Raises:
            ValueError: there is no such role.
        """
        if role not in ROLES:
            raise ValueError(f"no role is named {role!r}")
        seat = self.seats.get(role)
        return seat.cpus if seat else None

    def threads(self) -> int:
        """The number of threads that should compute on the CPU: one per CPU of `compute` or, where nothing is bound,
        one per CPU of the process's share of those that it may use."""
        cpus = self.cpus("compute")
        return len(cpus) if cpus else max(1, len(os.sched_getaffinity(0)) // self.trainers)

    def bind_thread(self, role: str) -> bool:
        """Binds the calling thread, and the threads that it will start, to the CPUs of its role.

        Returns:
            Whether it could be bound.

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
        """Within the block the calling thread is bound, if the role has a seat; threads started there stay bound.

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
    """A binding that binds neither threads nor memory."""
    return Binding({}, None, note, trainers)


UNBOUND = unbound("threads and memory are left alone")
