"""Habits of loops in plain torch: the results are torch's, or one line says why not. docs/own_loop.md lists them."""

import re
import warnings

import pytest
import torch

from marius_oac.errors import InputError
from tests.house.test_house import ROOT
from tests.own_loop import habits
from tests.own_loop.habits import AS_IN_TORCH, Ours, Plain, batches, loss_of, train
from tests.own_loop.told import TOLD

NEVER = 1 << 60


def assert_as_in_torch(habit, optimizer="Adagrad", decay=0.0, **given):
    ours = Ours(optimizer, decay, **given)
    plain = Plain(ours, optimizer, decay)
    before = ours.tables()
    with ours.engine:
        found, expected = habit(ours), habit(plain)
        for table, other in zip(ours.tables(), plain.tables(), strict=True):
            assert torch.allclose(table, other, rtol=1e-5, atol=1e-6)
    exact = not expected or isinstance(expected, list) and isinstance(expected[0], str)
    assert found == (expected if exact else pytest.approx(expected, rel=1e-4, abs=1e-5))
    assert torch.allclose(ours.model.out.weight, plain.model.out.weight, rtol=1e-5, atol=1e-6)
    return before, ours.tables()


@pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("habit", AS_IN_TORCH.values(), ids=[each.__name__ for each in AS_IN_TORCH.values()])
def test_a_habit_is_as_in_torch(habit):
    assert_as_in_torch(habit)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
@pytest.mark.parametrize(
    "habit", [habits.accumulate_nothing, habits.accumulate_beyond_the_end, habits.zero_grad_in_place]
)
def test_gradients_of_several_batches_are_added_up_by_every_optimizer(threads, optimizer, habit):
    results = []
    for sample in (0, NEVER, 2):
        threads(sample)
        results.append(assert_as_in_torch(habit, optimizer)[1])
    assert all(torch.equal(*pair) for each in results[1:] for pair in zip(each, results[0], strict=True))


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 150), marks=pytest.mark.slow)])
def test_any_order_of_habits_is_as_in_torch(threads, seeds):
    for seed in seeds:
        threads([0, NEVER, 2][seed % 3])
        assert_as_in_torch(habits.at_random(seed), ["SGD", "Adagrad"][seed % 2])


@pytest.mark.parametrize("title", TOLD)
def test_a_habit_is_told(title, tmp_path, monkeypatch):
    habit, line = TOLD[title]
    monkeypatch.chdir(tmp_path)
    ours, told = Ours(), None
    with warnings.catch_warnings(), ours.engine:
        warnings.filterwarnings("ignore", ".*torch.jit.script")
        try:
            for number, batch in enumerate(ours.batches(batches())):
                if number < 2:
                    train(ours, batch)
                    continue
                loss_of(ours, batch).backward()
                if number == 2:
                    habit(ours, batch)
        except (InputError, RuntimeError, UserWarning) as error:
            told = error
    assert line in str(told) and ("\n" not in str(told) or type(told) is RuntimeError)


def test_the_page_lists_all_habits():
    text = (ROOT / "docs" / "own_loop.md").read_text("utf-8").split("\n## Habits of loops in torch\n")[1]
    assert re.findall(r"^- (.+)$", text, re.M) == [*AS_IN_TORCH, *TOLD]
