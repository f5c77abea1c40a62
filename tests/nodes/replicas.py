"""Replicas of a few numbers that the background synchronises, and the oracles of how it does."""

import threading
from types import SimpleNamespace

import numpy as np
import torch

from marius_oac.nodes.dense.shadow import Averaging, Bmuf, Easgd
from marius_oac.nodes.dense.sync_server import SyncServer
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.runtime.channel import Closed
from tests.nodes import naive
from tests.nodes.stepping import Gate
from tests.nodes.worlds import together

SHAPES = [(2, 3), (4,), ()]
TOTAL = 11
SERVERS = [1, 0, 1]  # of the three tensors
KINDS = {
    "easgd": {},
    "ma": {},
    "bmuf": {"eta": 0.7},
    "bmuf with momentum": {"eta": 0.7, "momentum": 0.6},
    "bmuf with nesterov": {"eta": 0.7, "momentum": 0.6, "nesterov": True},
}


def tensors_of(flat):
    flat = torch.tensor(flat, dtype=torch.float32)
    return [part.view(shape).clone() for part, shape in zip(flat.split([6, 4, 1]), SHAPES, strict=True)]


def flat_of(tensors):
    return np.concatenate([tensor.detach().reshape(-1).numpy() for tensor in tensors]).astype(np.float64)


def start_of(seed):
    return np.random.default_rng(seed).standard_normal(TOTAL).astype(np.float32)


def change_of(seed, rank, step):
    """What an iteration of training adds to a replica."""
    return np.random.default_rng([seed, rank, step]).standard_normal(TOTAL).astype(np.float32)


def make(kind, group, servers, sync_every=1, background=False, gate=None, alpha=0.3):
    if kind == "easgd":
        return Easgd(group, alpha, sync_every, background, gate, servers=servers, assign=lambda sizes: SERVERS)
    if kind == "ma":
        return Averaging(group, alpha, sync_every, background, gate)
    return Bmuf(group, alpha, sync_every, background, gate, **KINDS[kind])


def oracle_of(kind, start, alpha=0.3):
    if kind == "easgd":
        return naive.Easgd(start, alpha)
    return naive.Ma(start, alpha) if kind == "ma" else naive.Bmuf(start, alpha, **KINDS[kind])


class Trainer:
    """A replica that `train` changes."""

    def __init__(self, sync, seed, rank):
        self.sync, self.seed, self.rank, self.steps = sync, seed, rank, 0
        self.parameters = [each.requires_grad_() for each in tensors_of(start_of(seed))]
        sync.attach(self.parameters)

    def train(self):
        with torch.no_grad():
            for tensor, change in zip(
                self.parameters, tensors_of(change_of(self.seed, self.rank, self.steps)), strict=True
            ):
                tensor.add_(change)
        self.sync.updated(self.steps)
        self.steps += 1

    def values(self):
        return flat_of(self.parameters)


def trainers_of(kind, count, seed, **settings_):
    """Trainers in this thread; their gates."""
    servers = LocalSyncServers(2, 0.3)
    gates = [Gate() for _ in range(count)]
    groups = ThreadGroup.members(count)
    made = together(
        groups,
        lambda group: Trainer(
            make(kind, group, servers, background=True, gate=gates[group.rank], **settings_), seed, group.rank
        ),
    )
    return made, gates


def finished(trainers, gates):
    for gate in gates:
        gate.open()
    together(
        [SimpleNamespace(trainer=each, abort=each.sync.stop) for each in trainers],
        lambda one: one.trainer.sync.finish(),
    )
    metrics = [each.sync.metrics() for each in trainers]
    for each in trainers:
        each.sync.stop()
    return metrics


class LocalSyncServers:
    """`SyncServers` in this process: for its threads.

    Args:
        count: servers.
        alpha: the elastic parameter.
    """

    def __init__(self, count: int, alpha: float) -> None:
        self._servers = [(threading.Lock(), SyncServer(alpha)) for _ in range(count)]
        self._aborted = False

    def write(self, server: int, values: torch.Tensor) -> None:
        lock, machine = self._at(server)
        with lock:
            machine.write(values)

    def read(self, server: int) -> torch.Tensor:
        lock, machine = self._at(server)
        with lock:
            return machine.read()

    def exchange(self, server: int, values: torch.Tensor) -> torch.Tensor:
        lock, machine = self._at(server)
        with lock:
            return machine.exchange(values)

    def abort(self) -> None:
        self._aborted = True

    def _at(self, server: int) -> tuple[threading.Lock, SyncServer]:
        if self._aborted:
            raise Closed(f"sync server {server}")
        return self._servers[server]
