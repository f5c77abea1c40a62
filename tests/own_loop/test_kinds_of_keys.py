"""Keys of a table are all integers or all texts: the first ones decide, and a checkpoint keeps it."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from marius_oac.torch.processes.shard import LoopTable
from marius_oac.torch.tables import Table
from tests.own_loop.loops import Loop

NUMBERS, TEXTS = torch.tensor([3, 7]), ["3", "7"]
FORMS = {False: (NUMBERS, [3, 7], NUMBERS.numpy()), True: (TEXTS, np.array(TEXTS), [["3"], ["7"]])}


def refused(texts):
    kinds = ("texts", "integers") if not texts else ("integers", "texts")
    line = "keys are {}, and those of the table so far are {}: 7 and '7' are two keys, so give all in one form"
    return pytest.raises(InputError, match=re.escape(line.format(*kinds)))


def train(loop, *every):
    for batch in loop.engine.batches([{"item": keys} for keys in every]):
        loop.items(batch["item"]).sum().backward()
        loop.rows.step()
        loop.rows.zero_grad()


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("form", [0, 1, 2])
def test_the_first_keys_decide(texts, form):
    own, other = FORMS[texts][form], FORMS[not texts][form]
    with (loop := Loop()).engine as engine:
        train(loop, [], own)
        before = len(loop.items)
        with refused(texts):
            train(loop, own, other)
        with refused(texts):
            loop.items.eval()(other)
        with refused(texts), engine.peek({"item": other}):
            pass
        with refused(texts):
            loop.items.train()
            train(loop, other)
        train(loop, [], own)
    assert len(loop.items) == before == 2


@pytest.mark.parametrize("texts", [False, True])
def test_a_checkpoint_keeps_it(tmp_path, texts):
    with (loop := Loop()).engine as engine:
        engine.save(tmp_path / "empty")
        train(loop, FORMS[texts][0])
        engine.save(tmp_path / "full")
        engine.load(tmp_path / "empty")
        train(loop, FORMS[not texts][0])
    with (loop := Loop()).engine as engine:
        engine.load(tmp_path / "full")
        with refused(texts):
            train(loop, FORMS[not texts][0])
        train(loop, FORMS[texts][0])


def test_all_modules_of_a_table_have_one_kind():
    items = mt.Embedding(4)
    model = nn.ModuleDict({"one": items, "more": mt.Embedding(4, shares=items)})
    with mt.Engine(model, {"one": 0, "more": 1}, [mt.SGD(model)]) as engine, refused(False):
        next(engine.batches([(NUMBERS, TEXTS)]))


def test_converted_rows_are_of_integers():
    model = mt.convert(nn.Sequential(nn.Embedding(9, 4)))
    with mt.Engine(model, {"0": "item"}, [mt.SGD(model)]) as engine, refused(False):
        next(engine.batches([{"item": TEXTS}]))


def test_a_table_without_modules_has_one_kind():
    with mt.Table(4, mt.SGD) as table:
        table.apply(NUMBERS, torch.ones(2, 4))
        with refused(False):
            table.apply(TEXTS, torch.ones(2, 4))
        with refused(False):
            table.read(TEXTS)
        assert len(table) == 2 and table.read(NUMBERS).shape == (2, 4)


@pytest.mark.parametrize("padding, keys", [("", NUMBERS), (0, TEXTS)])
@pytest.mark.parametrize("train", [True, False])
def test_the_padding_key_is_of_their_kind(padding, keys, train):
    items = mt.Embedding(4, padding_idx=padding)
    with mt.Engine(items, {items: 0}, [mt.SGD(items)]) as engine:
        batches = engine.batches([[keys]])
        next(batches)
        with pytest.raises(InputError, match="padding_idx is .*, and keys are (texts|integers)"):
            items.train(train)(keys)


def test_a_process_refuses_keys_of_the_other_kind_of_another_one():
    by = mt.SGD(mt.Embedding(2))
    shard = LoopTable(Table("items", 2, 1.0, 0, by.config, 10), by)
    keys, checks = np.array([3, 7]), np.zeros(2, np.uint32)
    assert shard.rows_of((np.zeros(2, np.uint16), keys, checks)).tolist() == [0, 1]
    with refused(False):
        shard.rows_of((np.ones(2, np.uint16), keys, checks))
    with refused(False):
        shard.rows_of((np.array([0, 1], np.uint16), keys, checks))


def test_rows_that_are_looked_at_decide_nothing():
    with (loop := Loop()).engine as engine:
        loop.items.eval()(TEXTS)
        with engine.peek({"item": TEXTS}):
            loop.items(TEXTS)
        loop.items.train()
        train(loop, NUMBERS)
