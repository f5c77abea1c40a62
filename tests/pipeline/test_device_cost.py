"""What a step costs a device, without one: nothing waits, and launches and memory are those of device_costs.txt.

`python -m tests.pipeline.device_cases` writes that file again.
"""

import pytest
import torch

from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.link_prediction import autograd
from marius_oac.models.link_prediction.fused import FusedGradient
from marius_oac.tasks.link_prediction import memory as graph_memory
from tests.pipeline.device_cases import CASES, SIZES, TABLE, Data, cells, cost_of, make
from tests.pipeline.device_cost import META, Costs

BOUND = 0.15
UNORDERED = {
    *("index_add", "index_add_", "index_reduce", "index_reduce_", "index_copy", "index_copy_", "scatter_add"),
    *("scatter_add_", "scatter_reduce", "scatter_reduce_", "put", "put_", "cumsum", "cumprod", "bincount", "histc"),
    *("kthvalue", "median", "grid_sampler_2d", "_cdist_backward"),
}
"""Operations whose results CUDA adds up in any order, by the notes of `torch.use_deterministic_algorithms`."""
IN_ORDER = {
    "cumsum": {"clicks, DIEN"},  # of integers
    "index_add": {"clicks, DLRM"},  # the gradient of picking each pair once: nothing is added to anything
    "scatter_reduce": {each for each in CASES if "GAT" in each},  # a maximum, which has no order
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Data.make(tmp_path_factory.mktemp("data"))


def written():
    """The table: cells by the step's name."""
    lines = TABLE.read_text("utf-8").splitlines()[2:]
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {name: others for name, *others in rows}


def costs(data, case, size=SIZES[0]):
    made = make(data, case, size)
    try:
        return cost_of(made, case)
    finally:
        made.step.close()


def test_the_table_has_every_step():
    assert list(written()) == list(CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_plan_is_near_what_is_held(case):
    for cell in written()[case][-len(SIZES) :]:
        peak, planned = (float(each.replace(",", "")) for each in cell.split(" of "))
        assert abs(peak / planned - 1) < BOUND


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [SIZES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[1:])])
def test_a_step_costs_what_the_table_says(data, case, size):
    cost = costs(data, case, size)
    copies, *others = written()[case]
    place = SIZES.index(size)
    assert not {name for name in cost.ops if name in UNORDERED and case not in IN_ORDER.get(name, ())}
    assert (copies, *others[place :: len(SIZES)]) == cells(cost), f"launches: {cost.ops}; most is held at {cost.at}"


def meta(*shape, **options):
    return torch.empty(*shape, device=META, **options)


WAITS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool((x > 0).all()),
    "if": lambda x: 1 if x.sum() > 0 else 2,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "copy to the host": lambda x: torch.empty(4, 3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "repeat": lambda x: torch.repeat_interleave(x, meta(4, dtype=torch.int64), 0),
    "index of the host": lambda x: x[torch.tensor([0, 1])],
    "number of the host": lambda x: torch.where(x > 0, x, torch.tensor(1.0)),
    "equal": lambda x: torch.equal(x, x + 1),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_found(name):
    with pytest.raises((RuntimeError, TypeError, NotImplementedError, AssertionError)), Costs():
        WAITS[name](meta(4, 3))


def test_copies_are_no_launches():
    with Costs() as found:
        torch.ones(5).to(META)
        meta(5).copy_(torch.ones(5))
    assert (found.copies, found.launches) == (2, 0)


def test_launches_and_memory_are_what_torch_does():
    """256 x 256 floats are 256 KiB."""
    x, kib = meta(256, 256), 1 << 10
    with Costs() as found:
        x.view(-1)[3:].unsqueeze(0)
        torch.empty_like(x)
        assert found.launches == 0 and found.peak == 256 * kib  # it was let go of
        y = x * 2 + 1  # the product is held while the sum is made
        assert found.launches == 2 and found.peak == 512 * kib and found.live == 256 * kib
        y += x
        assert found.launches == 3 and found.live == 256 * kib
        torch.zeros(256, 256, device=META)
        assert found.launches == 4
        y.masked_fill(x > 0, 0.0)  # a comparison, a copy, a fill
        assert found.launches == 7 and found.peak == (256 + 64 + 256) * kib
        del y
        assert found.live == 0
        torch.logsumexp(x, 1)  # of many parts
    assert found.launches > 12 and found.peak > (256 + 256) * kib


def test_what_autograd_keeps_is_held():
    x = meta(1024, 256, requires_grad=True)
    with Costs() as found:
        total = torch.exp(x).sum()
        assert found.live == (1 << 20) + 512
        (gradient,) = torch.autograd.grad(total, x)
        assert found.peak == 2 * (1 << 20) + 3 * 512 or found.peak <= 3 * (1 << 20)
        del total, gradient
    assert found.live == 0


def item_of_a_gradient(monkeypatch):
    beside(monkeypatch, RowOptimizer, "_update_tensor", lambda args: args[2].sum().item())


def operation_on_a_gradient(monkeypatch):
    beside(monkeypatch, RowOptimizer, "_update_tensor", lambda args: args[2].abs())


def operation_on_parts(monkeypatch):
    beside(monkeypatch, RowOptimizer, "update_parts", lambda args: args[2].order.first.abs())


def queries_that_are_held_twice(monkeypatch):
    beside(monkeypatch, FusedGradient, "_scores", lambda args: KEPT.append(args[2].clone()))


def scores_that_are_kept(monkeypatch):
    beside(monkeypatch, autograd, "_left_out", lambda args: KEPT.append(args[0]))


def plan_that_is_too_small(monkeypatch):
    real = graph_memory.link_step_bytes
    monkeypatch.setattr(graph_memory, "link_step_bytes", lambda *args: int(0.8 * real(*args)))


KEPT = []


def beside(monkeypatch, target, name, extra):
    """The function does something more before."""
    real = getattr(target, name)

    def mistaken(*args, **named):
        extra(args)
        return real(*args, **named)

    monkeypatch.setattr(target, name, mistaken)


@pytest.mark.parametrize("size", [1_000, 10_000])
@pytest.mark.parametrize("case, mistake, wrong", [
    ("links, ComplEx, by torch", operation_on_a_gradient, {"launches"}),
    ("links, ComplEx, by torch", scores_that_are_kept, {"memory"}),
    ("links, ComplEx", operation_on_parts, {"launches"}),
    ("links, ComplEx", queries_that_are_held_twice, {"launches", "memory"}),
    ("links, ComplEx", plan_that_is_too_small, {"memory"}),
])  # fmt: skip
def test_a_planted_mistake_is_found(data, monkeypatch, size, case, mistake, wrong):
    mistake(monkeypatch)
    cost = costs(data, case, size)
    KEPT.clear()
    copies, *others = written()[case]
    expected = (copies, *others[SIZES.index(size) :: len(SIZES)])
    names = ("copies", "launches", "memory")
    assert {name for name, *pair in zip(names, cells(cost), expected, strict=True) if pair[0] != pair[1]} == wrong
    if wrong == {"memory"}:
        assert abs(cost.peak / cost.planned - 1) >= BOUND


def test_a_number_that_is_asked_for_is_found(data, monkeypatch):
    item_of_a_gradient(monkeypatch)
    with pytest.raises(RuntimeError, match="item"):
        costs(data, "links, ComplEx, by torch")
