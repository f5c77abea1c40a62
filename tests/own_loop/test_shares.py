"""Modules that share a table, against modules of torch's that share a weight."""

import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from tests.own_loop.resumed import equal
from tests.own_loop.test_modules import OPTIMIZERS, assert_near

KEYS = 40


def batches(count, seed=4):
    """Bags, single keys of the same table, and keys of both that come several times."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        bag = torch.randint(0, KEYS, (6, 4), generator=draw)
        one = torch.randint(0, KEYS, (6,), generator=draw)
        one[:3] = bag[:3, 0]
        yield {"bag": bag, "one": one, "y": torch.randn(6, generator=draw)}


class Tower(nn.Module):
    def __init__(self, bags, ones):
        super().__init__()
        self.bags, self.ones = bags, ones

    def forward(self, batch):
        return (self.bags(batch["bag"]) * self.ones(batch["one"])).sum(1)


def ours(rows=mt.Adagrad, in_flight=4, mode="oac"):
    bags = mt.EmbeddingBag(8, seed=3)
    model = Tower(bags, mt.Embedding(8, shares=bags))
    rows = rows(model, lr=0.01)
    engine = mt.Engine(model, keys={bags: "bag", "ones": "one"}, optimizers=[rows], in_flight=in_flight, mode=mode)
    return model, rows, engine


def train(model, batch, optimizer):
    (model(batch) - batch["y"]).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("rows, theirs", OPTIMIZERS)
def test_gradients_of_both_modules_train_the_rows(rows, theirs):
    model, optimizer, engine = ours(rows)
    sparse = theirs is torch.optim.SparseAdam
    plain = Tower(nn.EmbeddingBag(KEYS, 8, mode="sum", sparse=sparse), nn.Embedding(KEYS, 8, sparse=sparse))
    plain.ones.weight = plain.bags.weight
    every = torch.arange(KEYS)
    with engine:
        model.eval()
        plain.ones.weight.data.copy_(model.ones(every))
        model.train()
        other = theirs([plain.ones.weight], lr=0.01)
        for batch in engine.batches(batches(60)):
            train(model, batch, optimizer)
            train(plain, batch, other)
    model.eval()
    assert_near(model.ones(every), plain.ones.weight.data)
    assert torch.equal(model.bags(every[:, None]), model.ones(every)) and len(model.ones.table) == KEYS
    assert len(optimizer.param_groups[0]["params"]) == 0


def test_a_shared_table_has_the_bits_of_one_batch_at_a_time():
    found = []
    for given in ({"mode": "sync"}, {"in_flight": 1}, {"in_flight": 8}):
        model, optimizer, engine = ours(**given)
        with engine:
            for batch in engine.batches(batches(40)):
                train(model, batch, optimizer)
                assert model.ones.rows is model.bags.rows
        found.append([model.eval().ones(torch.arange(KEYS))])
    assert equal(found[0], found[1]) and equal(found[0], found[2])


def test_one_field_may_feed_both_modules_and_one_leaf_is_clipped_once():
    bags = mt.Embedding(4)
    model = nn.ModuleList([bags, mt.Embedding(4, shares=bags)])
    rows = mt.SGD([{"params": model[1]}], lr=1.0)  # the table is that of both
    keys = torch.tensor([5, 5, 6])
    with mt.Engine(model, keys={"0": 0, "1": 0}, optimizers=[rows]) as engine:
        for (both,) in engine.batches([[keys]]):
            before = bags(both).detach().clone()
            (bags(both) + 2 * model[1](both)).sum().backward()
            assert [len(each) for each in rows.param_groups[0]["params"]] == [2]
            rows.step()
            assert torch.equal(before - bags(both).detach(), (before - (before - torch.tensor([[6.0], [6], [3]]))))


def test_tables_are_saved_once(tmp_path):
    model, optimizer, engine = ours()
    with engine:
        for batch in engine.batches(batches(10)):
            train(model, batch, optimizer)
        engine.save(tmp_path)
        before = model.eval().ones(torch.arange(KEYS)).clone()
    other, _, engine = ours()
    with engine:
        assert engine.load(tmp_path)
        assert torch.equal(other.eval().bags(torch.arange(KEYS)[:, None]), before)


WRONG = {
    "shares takes a module of this package, not 'Linear'": {"shares": nn.Linear(2, 2)},
    "it can't share a table of dimension 5 with its 4": {"shares": mt.Embedding(5)},
    "std is that of the module whose table it shares": {"shares": mt.Embedding(4), "std": 1.0},
    "capacity is that of the module": {"shares": mt.Embedding(4), "capacity": 10},
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_share_is_told(line):
    with pytest.raises(InputError) as error:
        mt.Embedding(4, **WRONG[line])
    assert line in str(error.value)


def test_a_module_whose_table_another_engine_serves_is_refused():
    bags = mt.Embedding(4)
    mt.Engine(bags, {bags: 0}, [mt.SGD(bags)])
    other = mt.Embedding(4, shares=bags)
    with pytest.raises(InputError, match="is served by another engine"):
        mt.Engine(other, {other: 0}, [mt.SGD(other)])
