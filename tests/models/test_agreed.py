"""Relations that nodes agree on: the device updates those with a gradient as the host does, and waits for nothing."""

import numpy as np
import pytest
import torch

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.link_prediction.replicated_relations import ReplicatedRelations, update_without_waiting
from tests.models.batches import OPTIMIZERS

RELATIONS, WIDTH, PICKS = 7, 5, torch.tensor([1, 2, 5])


class Alone:
    """A `DenseSync` of one node."""

    dispatched = False

    def optimizer(self, parameters):
        return None

    def attach(self, parameters):
        pass

    def reduce(self, gradients, share):
        return True

    def updated(self, timestamp):
        self.at = timestamp


def start(kind, device="cpu"):
    optimizer = RowOptimizer(OptimizerConfig(kind=kind, initial_accumulator=0.2))
    generator = torch.Generator().manual_seed(1)
    table = torch.rand(RELATIONS, WIDTH + optimizer.state_width(WIDTH), generator=generator)
    return optimizer, table.to(device), torch.rand(len(PICKS), WIDTH, generator=generator).to(device)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_device_updates_what_the_host_updates(kind):
    optimizer, table, gradients = start(kind)
    host, device, every = table.clone(), table.clone(), torch.zeros(RELATIONS, WIDTH)
    ReplicatedRelations(host, WIDTH, optimizer, Alone()).update_tensor(gradients, PICKS, np.float32(1), 3, 0.5)
    every[PICKS] = gradients
    update_without_waiting(device, every, every.any(1), optimizer, 3, 0.5)
    torch.testing.assert_close(device, host, rtol=1e-5, atol=1e-6)
    others = [row for row in range(RELATIONS) if row not in PICKS]
    assert (device[others] == table[others]).all() and (device[PICKS] != table[PICKS]).any(1).all()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_nothing_waits_for_the_device(kind):
    """Tensors of the meta device have no values: whatever asks for one raises."""
    optimizer, table, gradients = start(kind, "meta")
    dense = Alone()
    ReplicatedRelations(table, WIDTH, optimizer, dense).update_tensor(
        gradients, PICKS.to("meta"), np.float32(1), 3, 0.5
    )
    assert dense.at == 3
