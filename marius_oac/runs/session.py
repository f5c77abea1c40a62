"""Builds everything that trains from a task, and closes it in the reverse order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from marius_oac.config.task import TaskConfig
from marius_oac.data.splits import Split
from marius_oac.errors import ConfigError, InputError, shown
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.pipeline.rows import LocalSource
from marius_oac.pipeline.runner import Pipeline
from marius_oac.pipeline.stages import BatchResult, Probe
from marius_oac.runs.checkpoints.checkpoint import DENSE, Checkpoint
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.home import Home
from marius_oac.runs.reporting import memory_of, setting_of
from marius_oac.runs.task import Task
from marius_oac.runtime.closing import Closable
from marius_oac.runtime.console import logger
from marius_oac.runtime.machine.binding import UNBOUND, Binding, unbound
from marius_oac.runtime.machine.disks import disks_under
from marius_oac.runtime.machine.processes import LocalProcess, run_binding
from marius_oac.runtime.machine.sysfs import format_list
from marius_oac.runtime.machine.topology import running_kernel
from marius_oac.runtime.standstill import Activity
from marius_oac.runtime.telemetry import Telemetry

TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"
"""A variable of NVIDIA's libraries: 0 turns TF32 off, anything else turns it on, against what a program asks for."""


def pick_device(name: str) -> torch.device:
    """The torch device of a config: `auto` is the first GPU, or the CPU.

    Raises:
        ConfigError: there is none.
        InputError: a variable makes a GPU compute in TF32 what must be float32.
    """
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ConfigError(f"there is no {name}: torch finds {count} GPUs here", "device")
    if (override := os.environ.get(TF32_OVERRIDE, "0")) not in ("", "0"):
        said = (
            "cuBLAS computes float32 in TF32, whatever a program asks for; unset it (`compute.precision` asks for TF32)"
        )
        raise InputError(said, f"{TF32_OVERRIDE}={override}")
    return torch.device("cuda", device.index or 0)


def reading_device(name: str) -> torch.device:
    """The device for using a finished run: its configuration's, or the default with a warning, if that is a GPU which
    is not here."""
    try:
        return pick_device(name)
    except ConfigError:
        found = pick_device("auto")
        logger.warning(
            f"the run was trained on {name}, which is not here: computing on {found}, where last bits may differ"
        )
        return found


def name_of_device(device: torch.device) -> str:
    """`cpu`, or the name of the GPU: two GPUs of one name compute the same bits."""
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def gpu_address(device: torch.device) -> str | None:
    """PCI address of a GPU, such as 0000:41:00.0; None: the CPU computes."""
    if device.type != "cuda":
        return None
    card: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks the addresses
    return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"


def num_threads(config: TaskConfig, binding: Binding = UNBOUND) -> int:
    """Threads that compute on the CPU."""
    return config.threads or binding.threads()


def bind(home: Home, device: torch.device) -> Binding:
    """The binding of this process's threads and tables to its machine, beside the run's other processes there.

    Collective: the processes exchange what each of them is and may use. The first one logs the binding.
    """
    task, config, peers, gpu = home.task, home.config, home.peers, gpu_address(device)
    paths = config.storage.path or ([task.folder] if task.folder and config.storage.on_disk else [])
    disks = list(dict.fromkeys(name for path in paths for name in disks_under(path))) if paths else None
    mine = LocalProcess(
        running_kernel(), format_list(os.sched_getaffinity(0)), disks, gpu,
        config.threads, home.table_bytes(), peers.trains, peers.serves,
    )  # fmt: skip
    every = [LocalProcess(**told) for told in peers.gather(asdict(mine))]
    if config.binding == "off":
        beside = sum(each.trains for each in every if each.beside(mine))
        return unbound("binding is off: threads and memory are left alone", max(1, beside))
    binding = run_binding(every, peers.rank, peers.over_nodes)
    if binding.seats and not sum(each.beside(mine) for each in every[: peers.rank]):
        logger.info(binding.note)
    return binding


class Session(Closable):
    """Planner, tables, step and pipeline of one run of a task, whose rows are in `home`; None: in this process."""

    def __init__(self, task: Task, trace: Path | None = None, probe: Probe | None = None, home: Home | None = None):
        self.task, self.config, self.home = task, task.config, home or Home(task)
        self.device = pick_device(self.config.device)
        self.binding = bind(self.home, self.device)
        self.threads = num_threads(self.config, self.binding)
        self._report: Callable[[BatchResult], None] = lambda result: None
        with ExitStack() as stack:
            self.telemetry = stack.enter_context(Telemetry(trace))
            self.parts = self.home.build(stack, self.device, self.threads, self.binding)
            self.planner, self.stores, self.step = self.parts.planner, self.parts.stores, self.parts.step
            self.source = self.parts.source or LocalSource(self.stores, self.config.pipeline.mode)
            self.pipeline = Pipeline(
                self.planner, self.source, self.step, self.config.pipeline, self.device,
                self.telemetry, lambda result: self._report(result), probe,
                self.binding.bind_thread,
            )  # fmt: skip
            self._stack = stack.pop_all()

    def report_to(self, report: Callable[[BatchResult], None]) -> None:
        """Passes the results of the batches that follow to `report`."""
        self._report = report

    def evaluate(self, split: Split, whole: bool = True) -> dict[str, float]:
        """Metrics of the present parameters on a split; see `Task.evaluate`."""
        with self._beside_compute(), torch_threads(self.threads), Activity(f"{split} is being evaluated"):
            return self.home.evaluate(self.parts, split, whole)

    def of_process(self) -> dict[str, int]:
        """Memory, batches in flight and threads of this process, by name."""
        return memory_of(self.home.memory_plan) | setting_of(self.pipeline.setting)

    def before_epoch(self, epoch: int) -> dict[str, float] | None:
        """See `Task.before_epoch`."""
        with self._beside_compute(), torch_threads(self.threads):
            return self.home.before_epoch(self.parts, epoch)

    def predicted(self, first: int) -> dict[str, float]:
        """See `Task.predicted`; of the batches from `first` on, which the metrics name."""
        metrics = self.home.predicted(self.parts)
        return {"first": first, **metrics} if metrics else {}

    def check_device(self, before: str) -> str:
        """The name of the device on which a run continues that was trained on `before` (empty: unknown).

        Raises:
            ConfigError: the run would change between CPU and GPU, and so its bits, without being asked to.
        """
        here = name_of_device(self.device)
        if before and before != here:
            if self.config.device == "auto" and "cpu" in (before, here):
                raise ConfigError(
                    f"the run was trained on {shown(before)} and would go on on {here}, which changes its last bits; "
                    f"to do so: --set device={self.device.type}",
                    "device",
                )
            logger.warning(f"the run was trained on {shown(before)} and goes on on {here}: its last bits may differ")
        return here

    def _beside_compute(self) -> AbstractContextManager[None]:
        """On the CPU the calling thread, and those that it starts, belong where `compute` does."""
        return self.binding.bound("compute") if self.device.type == "cpu" else nullcontext()

    def load_rows(self, checkpoint: Checkpoint, checkpoints: Checkpoints) -> None:
        """Loads the tables of a checkpoint, one of `checkpoints`. Raises CheckpointError if it is damaged, also where
        it has the dense parameters: processes load these together, and none may fail then."""
        with checkpoints.offering_before(checkpoint.name):
            self.home.load_state_arrays(checkpoint.arrays())
            checkpoint.restore(self.stores)
            if checkpoint.checked:
                checkpoint.verify(DENSE)

    def initialize(self) -> None:
        """Gives the rows that were not loaded their initial values, before any batch needs them."""
        for store in self.stores:
            store.initialize()

    def dense_fingerprint(self) -> str:
        """SHA-256 of the dense parameters and their optimizer state, by name."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.step.dense_state().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def dense_is_alike(self) -> bool:
        """Whether the dense parameters and their optimizer state have the same bits on all trainers. Collective."""
        peers = self.home.peers
        return len({*peers.gather(self.dense_fingerprint() if peers.trains else None)} - {None}) == 1

    def close(self) -> None:
        self._stack.close()
