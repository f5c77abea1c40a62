"""The configuration makes what it names, with its numbers."""

import pytest
import torch

from marius_oac.config.dense import DenseConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.kinds import make_dense_sync
from marius_oac.nodes.dense.kstep import KStep
from marius_oac.nodes.dense.shadow import Averaging, Bmuf, Easgd
from marius_oac.nodes.groups.thread_group import ThreadGroup
from tests.nodes.replicas import LocalSyncServers


def make(lockstep=True, **values):
    (group,) = ThreadGroup.members(1)
    servers = LocalSyncServers(1, 0.5)
    return make_dense_sync(DenseConfig(**values), group, lockstep, servers, lambda sizes: [0] * len(sizes))


@pytest.mark.parametrize(
    "kind, made", [("allreduce", AllReduce), ("kstep", KStep), ("easgd", Easgd), ("ma", Averaging), ("bmuf", Bmuf)]
)
def test_a_kind_is_what_it_names(kind, made):
    assert type(make(kind=kind)) is made


def test_k_step_has_its_numbers():
    """One trainer, k = 2, beta1 = 0: the first step divides by the root of epsilon, the second by that of v."""
    parameter = torch.zeros(1)
    sync = make(kind="kstep", k=2, warm_up=0, epsilon=4.0, beta2=0.5)
    optimizer = sync.optimizer([{"params": [parameter], "lr": 0.25, "weight_decay": 0.0}])
    sync.attach([parameter])
    parameter.grad = torch.tensor([8.0])
    optimizer.step()
    assert parameter.item() == pytest.approx(-0.25 * 8 / 2)
    optimizer.step()
    v = 0.5 * (0.5 * 4 + 0.5 * 64) + 0.5 * 64
    assert parameter.item() == pytest.approx(-1 - 0.25 * 8 / v**0.5)


def test_bmuf_has_its_numbers():
    """One trainer in the foreground moves from 0 by 1 before each synchronisation."""
    parameter = torch.zeros(1)
    sync = make(kind="bmuf", alpha=1.0, sync_every=1, background=False, eta=0.5, momentum=0.5, nesterov=True)
    sync.attach([parameter])
    sync.start()
    parameter += 1
    sync.updated(0)
    assert parameter.item() == 0.5 * (1 + 0.5 * 1)
    parameter += 1
    sync.updated(1)
    assert parameter.item() == 0.75 + 0.5 * (1 + 0.5 * 1.5)


@pytest.mark.parametrize("kind", ["allreduce", "kstep"])
def test_kinds_that_need_lockstep_say_so(kind):
    with pytest.raises(ConfigError, match=f"dense.kind: '{kind}' needs trainers in lockstep; use easgd, ma or bmuf"):
        make(lockstep=False, kind=kind)


def test_easgd_needs_servers():
    (group,) = ThreadGroup.members(1)
    with pytest.raises(ValueError, match="needs sync servers"):
        make_dense_sync(DenseConfig(kind="easgd"), group, False)
