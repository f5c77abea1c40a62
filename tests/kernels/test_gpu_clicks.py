"""Steps of clicks whose rows the GPU's kernels update: the formulas, and the same bits however places are sorted."""

import dataclasses

import numpy as np
import pytest
import torch

from marius_oac.models.compute.arranged import arranged
from marius_oac.models.ctr.step import CtrStep
from marius_oac.types import map_arrays
from tests.device import DEVICE
from tests.kernels.interpreted import by_kernels, moved, quiet  # noqa: F401 (a fixture)
from tests.models.ctr.step_batches import LAYOUTS, configure, draw
from tests.models.ctr.test_step import STEEP, check

pytestmark = [pytest.mark.device, quiet]


@pytest.mark.skipif(DEVICE.type != "cpu", reason="rows of the test are shared with NumPy")
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_follows_the_formulas(by_kernels, layout, first_order):  # noqa: F811
    if layout == "weights" and not first_order:
        pytest.skip("rows of no floats")
    config = configure(training__embedding_l2=0.3, **STEEP)
    check(config, [draw(layout, first_order, seed=seed) for seed in range(2)], tensors=True, batch_norm=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_with_its_order_has_the_bits_of_one_that_is_sorted_here(by_kernels, layout):  # noqa: F811
    config, batch, found = configure(), draw(layout, True), []
    rows = batch.rows(config)
    for data in (batch.data, arranged(batch.data, rows, DEVICE)):
        step, given = CtrStep(config, batch.layout, batch.network(), DEVICE, 1), [moved(each) for each in rows]
        assert (data is batch.data) == (data.tables[0].order is None)
        step.compute(given, map_arrays(data, moved), 0)
        step.close()
        found.append(given)
    for one, other, before in zip(*found, rows, strict=True):
        assert torch.equal(one, other) and not np.array_equal(one.cpu(), before)


def test_epoch_scales_the_rate_of_rows(by_kernels):  # noqa: F811
    config = configure(training__optimizer__kind="sgd", training__optimizer__decay=0.5)
    batch, changes = draw("equal", True), []
    for epoch in (0, 2):
        step, rows = CtrStep(config, batch.layout, batch.network(), DEVICE, 1), [*map(moved, batch.rows(config))]
        step.compute(rows, dataclasses.replace(map_arrays(batch.data, moved), epoch=epoch), 0)
        step.close()
        changes.append(rows[0].cpu().numpy() - batch.values[0])
    assert changes[0].any()
    np.testing.assert_allclose(changes[1], changes[0] / 4, rtol=1e-3, atol=1e-7)
