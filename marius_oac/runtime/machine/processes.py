"""The processes of a run on one machine: what each tells the others, and the binding that it gets beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marius_oac.runtime.machine.binding import Binding
from marius_oac.runtime.machine.devices import Gpu
from marius_oac.runtime.machine.seating import Process, choose
from marius_oac.runtime.machine.topology import Topology, read


@dataclass(frozen=True)
class LocalProcess:
    """What a process of a run sends to the others on the same machine, in plain values: see `seating.Process`.

    Attributes:
        kernel: identifier of the machine's kernel; processes with the same one share its CPUs.
        allowed: CPUs that it may use, as a list. Processes with different CPUs are assumed to be separated already.
        gpu: PCI address of its GPU, such as 0000:41:00.0; None if the CPU computes.
    """

    kernel: str = ""
    allowed: str = ""
    disks: Sequence[str] | None = None
    gpu: str | None = None
    threads: int = 0
    table_bytes: int = 0
    trains: bool = True
    serves: bool = True

    def beside(self, other: LocalProcess) -> bool:
        """Whether both may use the same CPUs of one machine."""
        return (self.kernel, self.allowed) == (other.kernel, other.allowed)


def run_binding(every: Sequence[LocalProcess], number: int = 0, over_nodes: bool = False) -> Binding:
    """The binding of process `number` of a run; processes on other machines are left out."""
    here = [each for each, process in enumerate(every) if process.beside(every[number])]
    topology = read()
    processes = [_seated(topology, every[each]) for each in here]
    return choose(topology, processes, over_nodes)[here.index(number)]


def _seated(topology: Topology, told: LocalProcess) -> Process:
    card = None if told.gpu is None else topology.gpu(told.gpu) or Gpu(told.gpu, None)
    return Process(told.disks, card, told.threads, told.table_bytes, told.trains, told.serves)
