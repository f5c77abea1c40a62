"""Relations that nodes agree on: the device updates those with a gradient as the host does, and waits for nothing."""

import numpy as np
import pytest
import torch

from marius_oac.batches import EdgeBatch
from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.update import Update
from marius_oac.models.link_prediction.relations import RelationTable, update_without_waiting
from tests.models.batches import OPTIMIZERS

RELATIONS, WIDTH, PICKS = 7, 5, torch.tensor([1, 2, 5])


class Alone:
    """A `DenseSync` of one node."""

    dispatched = False

    def optimizer(self, sections):
        return None

    def attach(self, parameters):
        pass

    def reduce(self, gradients, share):
        return True

    def updated(self, timestamp):
        self.at = timestamp


def start(kind, device="cpu"):
    """The optimizer's configuration, values [R, D] and gradients of PICKS."""
    config = OptimizerConfig(kind=kind, initial_accumulator=0.2, decay=0.5)
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(RELATIONS, WIDTH, generator=generator)
    return config, values.numpy(), torch.rand(len(PICKS), WIDTH, generator=generator).to(device)


def update(config, values, gradients, sync, device="cpu"):
    """The table after a batch of epoch 1."""
    relations, whole = RelationTable(values, config, torch.device(device), at_once=False), Update.elsewhere(sync)
    whole.own(relations)
    whole.ready()
    none = np.zeros(0, np.int64)
    data = EdgeBatch(
        heads=none,
        tails=none,
        negatives=None,
        chunk_offsets=(),
        relations=none,
        relation_rows=PICKS.to(device),
        epoch=1,
    )
    relations.take_gradients(relations.picked(data), gradients, data, 3)
    whole.dense(0.0, data, 3)
    return relations.state()["relations"]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_device_updates_what_the_host_updates(kind):
    config, values, gradients = start(kind)
    optimizer, every = RowOptimizer(config), torch.zeros(RELATIONS, WIDTH)
    host = update(config, values, gradients, Alone())
    table = torch.full((RELATIONS, WIDTH + optimizer.state_width(WIDTH)), optimizer.initial_state)
    table[:, :WIDTH] = torch.from_numpy(values)
    device = table.clone()
    every[PICKS] = gradients
    update_without_waiting(device, every, every.any(1), optimizer, 3, 0.5)
    torch.testing.assert_close(device, host, rtol=1e-5, atol=1e-6)
    others = [row for row in range(RELATIONS) if row not in PICKS]
    assert (device[others] == table[others]).all() and (device[PICKS] != table[PICKS]).any(1).all()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_nothing_waits_for_the_device(kind):
    """Tensors of the meta device have no values: whatever asks for one raises."""
    config, values, gradients = start(kind, "meta")
    sync = Alone()
    update(config, values, gradients, sync, "meta")
    assert sync.at == 3
