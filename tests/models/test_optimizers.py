"""Row optimizers: kernel and torch twin against the formulas and torch.optim."""

import numpy as np
import pytest
import torch

from marius_oac.config.sections import OptimizerConfig
from marius_oac.models.compute.row_optimizers import RowOptimizer
from tests.models import naive
from tests.models.batches import OPTIMIZERS

COUNT, DIMENSION = 5, 19  # not a multiple of a vector


def config_of(kind, **others):
    return OptimizerConfig(kind=kind, learning_rate=0.07, epsilon=1e-6, beta1=0.8, beta2=0.95, **others)


def start(optimizer, seed=0):
    generator = np.random.default_rng(seed)
    rows = np.full((COUNT, DIMENSION + optimizer.state_width(DIMENSION)), optimizer.initial_state, np.float32)
    rows[:, :DIMENSION] = generator.normal(size=(COUNT, DIMENSION))
    return rows, lambda: generator.normal(size=(COUNT, DIMENSION)).astype(np.float32)


@pytest.mark.parametrize("library", ["kernel", "torch"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_five_updates_follow_the_formulas(kind, library):
    config = config_of(kind, initial_accumulator=0.2)
    optimizer = RowOptimizer(config)
    rows, draw = start(optimizer)
    expected = rows.copy()
    for timestamp in range(5):
        gradients = draw()
        expected = naive.optimize(config, expected, gradients.astype(np.float64), timestamp + 1)
        if library == "torch":
            optimizer.update(torch.from_numpy(rows), torch.from_numpy(gradients), timestamp)
        else:
            optimizer.update(rows, gradients, timestamp)
    np.testing.assert_allclose(rows, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_same_as_torch_optim(kind):
    """Every row in every batch: there the lazy variants are the plain ones."""
    config = config_of(kind, initial_accumulator=0.2)
    optimizer = RowOptimizer(config)
    rows, draw = start(optimizer)
    parameter = torch.nn.Parameter(torch.from_numpy(rows[:, :DIMENSION].copy()))
    theirs = {
        "sgd": lambda: torch.optim.SGD([parameter], lr=0.07),
        "adagrad": lambda: torch.optim.Adagrad([parameter], lr=0.07, eps=1e-6, initial_accumulator_value=0.2),
        "adam": lambda: torch.optim.Adam([parameter], lr=0.07, eps=1e-6, betas=(0.8, 0.95)),
    }[kind]()
    for timestamp in range(6):
        gradients = draw()
        optimizer.update(rows, gradients, timestamp)
        parameter.grad = torch.from_numpy(gradients)
        theirs.step()
    np.testing.assert_allclose(rows[:, :DIMENSION], parameter.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_adam_as_sparse_adam_on_rows_that_come_and_go():
    """SparseAdam adds epsilon before the bias is corrected, so epsilon is next to nothing here."""
    config = OptimizerConfig(kind="adam", learning_rate=0.07, epsilon=1e-12)
    optimizer = RowOptimizer(config)
    rows, draw = start(optimizer)
    table = torch.nn.Parameter(torch.from_numpy(rows[:, :DIMENSION].copy()))
    theirs = torch.optim.SparseAdam([table], lr=0.07, eps=1e-12)
    for timestamp, touched in enumerate(([0, 2], [1, 2, 4], [0, 4], [3])):
        gradients = draw()[touched]
        picked = rows[touched]
        optimizer.update(picked, gradients, timestamp)
        rows[touched] = picked
        indices = torch.tensor([touched])
        shape = (COUNT, DIMENSION)
        table.grad = torch.sparse_coo_tensor(indices, torch.from_numpy(gradients), shape, check_invariants=True)
        theirs.step()
    np.testing.assert_allclose(rows[:, :DIMENSION], table.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("library", ["kernel", "torch"])
def test_factor_scales_the_rate(library):
    optimizer = RowOptimizer(OptimizerConfig(kind="sgd", learning_rate=1.0), learning_rate=0.5)
    rows, gradients = np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)
    if library == "torch":
        optimizer.update(torch.from_numpy(rows), torch.from_numpy(gradients), 0, 0.25)
    else:
        optimizer.update(rows, gradients, 0, 0.25)
    assert (rows == -0.125).all()


def test_zero_gradient_moves_nothing():
    for kind in OPTIMIZERS:
        optimizer = RowOptimizer(OptimizerConfig(kind=kind))
        rows, _ = start(optimizer)
        before = rows.copy()
        optimizer.update(rows, np.zeros((COUNT, DIMENSION), np.float32), 0)
        assert (rows == before).all(), kind


def test_shapes_that_do_not_belong_together():
    with pytest.raises(ValueError, match="belong together"):
        RowOptimizer(OptimizerConfig()).update(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32), 0)
