"""Rows can be looked at between batches without being trained."""

import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from tests.own_loop.loops import Loop, after, key_batches, trained
from tests.own_loop.test_shares import batches as pairs
from tests.own_loop.test_shares import ours, train


@pytest.mark.parametrize("in_flight", [1, 8])
def test_rows_are_as_of_all_batches_handed_back_and_stay_as_they_are(in_flight):
    loop, every = Loop(in_flight=in_flight), {"item": torch.arange(200)}
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(20))):
            if number % 7 == 3:
                loop.items(batch["item"]).sum().backward()
                loop.rows.zero_grad()
                with engine.peek(every):
                    found = loop.items(every["item"])
                    assert torch.equal(found, after(number)) and not found.requires_grad
                    assert torch.equal(loop.items(torch.tensor([5, 3])), found[[5, 3]]), "keys that are not the batch's"
                    with engine.peek({"item": [10**9]}):
                        assert torch.equal(loop.items(every["item"]), found)
                    assert torch.equal(loop.items.eval()(every["item"]), loop.items.train()(every["item"]))
            loop.train(batch)
        with engine.peek(every):
            assert torch.equal(loop.items(every["item"]), after(20))
        with pytest.raises(InputError, match="there is no batch at hand"):
            loop.items(every["item"])
    assert torch.equal(loop.table(), trained(key_batches(20), mode="sync"))


def test_one_read_serves_all_modules_of_a_table(monkeypatch):
    model, optimizer, engine = ours()
    with engine:
        for batch in engine.batches(pairs(3)):
            train(model, batch, optimizer)
        (batch,) = pairs(1)
        expected = model.eval()(batch)
        with engine.peek(batch):
            monkeypatch.setattr(type(model.bags.table), "look_up", None)
            assert torch.equal(model.train()(batch), expected)


def test_keys_that_are_changed_afterwards_are_read_anew():
    with (loop := Loop(std=1.0)).engine as engine:
        keys = torch.tensor([1, 2])
        with engine.peek({"item": keys}):
            both = loop.items(keys).clone()
            keys.copy_(keys.flip(0))
            assert torch.equal(loop.items(keys), both.flip(0))


def test_an_error_within_leaves_the_batch_at_hand():
    loop = Loop()
    with loop.engine as engine:
        for batch in engine.batches(key_batches(3)):
            with pytest.raises(ZeroDivisionError), engine.peek(batch):
                raise ZeroDivisionError
            loop.train(batch)
    assert torch.equal(loop.table(), after(3))


def test_a_wrong_peek_is_told():
    items = mt.Embedding(4)
    engine = mt.Engine(nn.Sequential(items), {"0": "item"}, [mt.SGD(items)])
    line = "the batch to peek at, table '0': the batch has no field 'item'"
    with pytest.raises(InputError, match=line), engine.peek({"user": 1}):
        pass
    engine.close()
    with pytest.raises(InputError, match="the engine is closed"), engine.peek({"item": [1]}):
        pass
