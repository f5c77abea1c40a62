"""Modules and optimizers of a user's own loop against torch's, and what they refuse."""

import runpy

import pytest
import torch
from torch import nn
from torch.nn import functional

import marius_oac.torch as mt
from marius_oac.errors import InputError
from marius_oac.storage.keys.table import LAST_SHARED, NO_KEY
from tests.house.test_house import ROOT
from tests.training.loops import Loop, key_batches, patience

KEYS, DIMENSION = 60, 8


@pytest.fixture(autouse=True)
def in_time():
    with patience():
        yield


def bag_batches(count, form, seed=3):
    """Batches with `item`, as [b, n] or with offsets and empty bags, `user` [b], weights and targets."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        bags, size = 6, 5
        batch = {"user": torch.randint(0, 20, (bags,), generator=draw), "y": torch.randn(bags, generator=draw)}
        if form == "2-D":
            batch |= {"item": torch.randint(0, KEYS, (bags, size), generator=draw), "offsets": None}
        else:
            sizes = torch.randint(0, 2 * size, (bags,), generator=draw)
            batch["item"] = torch.randint(0, KEYS, (int(sizes.sum()),), generator=draw)
            batch["offsets"] = sizes.cumsum(0) - sizes
        batch["weights"] = torch.rand(batch["item"].shape, generator=draw)
        yield batch


class Model(nn.Module):
    """A network over bags of items and one user each."""

    def __init__(self, items, users, weighted=False, dropout=0.0):
        super().__init__()
        self.items, self.users, self.weighted = items, users, weighted
        torch.manual_seed(5)
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(2 * DIMENSION, 1)

    def forward(self, batch):
        bags = self.items(batch["item"], batch["offsets"], batch["weights"] if self.weighted else None)
        return self.out(self.dropout(torch.cat([bags, self.users(batch["user"])], 1)))[:, 0]


def step(model, batch, optimizers):
    loss = functional.mse_loss(model(batch), batch["y"])
    loss.backward()
    for each in optimizers:
        each.step()
        each.zero_grad()
    return loss.item()


def ours(mode="sum", weighted=False, rows=mt.Adagrad, dropout=0.0, lr=0.1, in_flight=4, engine_mode="oac"):
    model = Model(mt.EmbeddingBag(DIMENSION, mode=mode), mt.Embedding(DIMENSION, seed=2), weighted, dropout)
    optimizers = [rows(model, lr=lr), torch.optim.Adam(model.parameters(), lr=0.01)]
    keys = {model.items: "item", model.users: lambda batch: batch["user"]}
    return model, optimizers, mt.Engine(model, keys=keys, optimizers=optimizers, in_flight=in_flight, mode=engine_mode)


def assert_near(found, expected):
    """To 1e-6, of the value where that is above 1: there a float32's own steps are up to 2.4e-7."""
    assert bool(((found - expected).abs() <= 1e-6 * expected.abs().clamp(min=1)).all())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("form", ["2-D", "offsets"])
@pytest.mark.parametrize("mode, weighted", [("sum", False), ("mean", False), ("sum", True)])
@pytest.mark.parametrize("ours_of, theirs_of", [(mt.Adagrad, torch.optim.Adagrad), (mt.SGD, torch.optim.SGD)])
def test_the_rows_are_those_of_torch(form, mode, weighted, ours_of, theirs_of):
    model, optimizers, engine = ours(mode, weighted, ours_of)
    sparse = not weighted  # torch has no sparse gradients of weighted bags with their weights' own
    plain = Model(nn.EmbeddingBag(KEYS, DIMENSION, mode=mode, sparse=sparse), nn.Embedding(20, DIMENSION), weighted)
    every, users = torch.arange(KEYS), torch.arange(20)
    model.eval()
    plain.items.weight.data.copy_(model.items(every[:, None]))
    plain.users.weight.data.copy_(model.users(users))
    model.train()
    tables = [plain.items.weight, plain.users.weight]
    theirs = [theirs_of(tables, lr=0.1), torch.optim.Adam(plain.out.parameters(), lr=0.01)]
    with engine:
        for batch in engine.batches(bag_batches(200, form)):
            assert step(model, batch, optimizers) == pytest.approx(step(plain, batch, theirs), abs=1e-5)
    model.eval()
    assert_near(model.items(every[:, None]), plain.items.weight.data)
    assert_near(model.users(users), plain.users.weight.data)


def bits(mode, in_flight):
    model, optimizers, engine = ours(dropout=0.3, in_flight=in_flight, engine_mode=mode)
    with engine:
        losses = [step(model, batch, optimizers) for batch in engine.batches(bag_batches(80, "offsets"))]
    model.eval()
    return losses, model.items(torch.arange(KEYS)[:, None]), model.users(torch.arange(20)), model.out.weight.detach()


def test_bits_are_those_of_one_batch_at_a_time_with_dropout_and_any_number_in_flight():
    expected = bits("sync", 1)
    for in_flight in (1, 4, 16):
        found = bits("oac", in_flight)
        assert found[0] == expected[0]
        assert all(torch.equal(*pair) for pair in zip(found[1:], expected[1:], strict=True))


def test_a_loader_with_workers_gives_the_same_bits():
    data = key_batches(24)

    def rows(workers):
        torch.manual_seed(7)
        loader = torch.utils.data.DataLoader(
            data,
            batch_size=None,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )
        loop = Loop(in_flight=4)
        with loop.engine as engine:
            for batch in engine.batches(loader):
                loop.train(batch)
        return loop.table()

    assert torch.equal(rows(0), rows(2))


def test_several_backward_passes_add_up():
    once, twice = Loop(), Loop()
    for loop, parts in ((once, 1), (twice, 2)):
        with loop.engine as engine:
            for batch in engine.batches(key_batches(5)):
                for _ in range(parts):
                    (loop.items(batch["item"]).sum() * (2 / parts)).backward()
                loop.rows.step()
    assert torch.equal(once.table(), twice.table())


def test_keys_are_found_by_value_where_the_tensor_is_another():
    loop = Loop()
    with loop.engine as engine:
        for batch in engine.batches(key_batches(3)):
            keys = batch["item"]
            assert torch.equal(loop.items(keys), loop.items(keys.clone().flip(0)).flip(0))
            changed = keys.clone()
            keys.copy_(keys.flip(0))
            assert torch.equal(loop.items(keys), loop.items(changed.flip(0)))


def test_gradients_can_be_scaled_and_clipped_as_of_any_parameter():
    loop = Loop(optimizer=mt.SGD, lr=1.0)
    with loop.engine as engine:
        batch = next(batches := engine.batches([{"item": torch.tensor([3, 5])}]))
        before = loop.items(batch["item"]).detach().clone()
        loop.items(batch["item"]).sum().backward()
        leaves = loop.rows.param_groups[0]["params"]
        nn.utils.clip_grad_norm_(leaves, 1e-3)
        loop.rows.step()
        assert 0 < float((loop.items(batch["item"]) - before).detach().norm()) <= 1.01e-3
        assert next(batches, None) is None


def run(loop, use, batches=3):
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(batches))):
            use(loop, batch, number)


class Kept:
    """Uses what an earlier batch left."""

    def __init__(self, keep, use):
        self.keep, self.use, self.kept = keep, use, None

    def __call__(self, loop, batch, number):
        if number:
            self.use(loop, self.kept)
        self.kept = self.keep(loop, batch)


USES = {
    "was handed back when the loop asked for the next one; the batch at hand is 1": Kept(
        lambda loop, batch: batch, lambda loop, batch: loop.items(batch["item"])
    ),
    "backward reached rows of batch 0 of table '0'": Kept(
        lambda loop, batch: loop.items(batch["item"]).sum(), lambda loop, loss: loss.backward()
    ),
    "key 7000 was not announced for batch 0": lambda loop, batch, number: loop.items(torch.tensor([7000])),
    "keys must be a tensor of integers, not torch.float32": lambda loop, batch, number: loop.items(torch.ones(2)),
    f"key {NO_KEY} is reserved": lambda loop, batch, number: loop.items(torch.tensor([NO_KEY])),
    "there is no tensor of all rows": lambda loop, batch, number: loop.items.weight,
}


@pytest.mark.parametrize("line", USES)
def test_a_wrong_use_in_the_loop_is_told(line):
    with pytest.raises(InputError) as error:
        run(Loop(), USES[line])
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "batch, line",
    [
        ({"other": 1}, "batch 0, table '0': the batch has no field 'item', but fields other"),
        ([1, 2], "the batch has no field 'item', but list"),
        ({"item": [1, 2]}, "keys must be a tensor or a list of tensors, not 1"),
        ({"item": torch.ones(2)}, "keys must be integers on the CPU, not torch.float32 on cpu"),
        ({"item": torch.tensor([True])}, "keys must be integers on the CPU, not torch.bool on cpu"),
        ({"item": torch.tensor([1, LAST_SHARED])}, f"key {LAST_SHARED} is reserved, as all from {NO_KEY} to"),
    ],
)
def test_a_batch_with_wrong_keys_is_told(batch, line):
    with pytest.raises(InputError) as error, (loop := Loop()).engine as engine:
        next(engine.batches([batch]))
    assert line in str(error.value) and "\n" not in str(error.value) and loop


def test_keys_beside_the_reserved_ones_have_rows():
    with (loop := Loop()).engine as engine:
        next(engine.batches([{"item": torch.tensor([NO_KEY - 1, LAST_SHARED + 1])}]))
        assert len(loop.items.table) == 2


def engine(**given):
    items = given.pop("items", None) or mt.Embedding(4)
    model = nn.Sequential(items)
    whole = {"keys": {items: "item"}, "optimizers": [mt.SGD(model)]} | given
    return mt.Engine(model, **whole)


def two_engines():
    loop = Loop()
    mt.Engine(loop.model, keys={loop.items: "item"}, optimizers=[loop.rows])


def no_batch():
    (loop := Loop()).items(torch.tensor([1]))
    return loop


def closed():
    with (loop := Loop()).engine:
        pass
    loop.engine.batches([])


def other_state():
    with (loop := Loop()).engine:
        pass
    mt.Engine(loop.model, keys={loop.items: "item"}, optimizers=[mt.SGD(loop.model)])


def full():
    run(Loop(capacity=3), lambda loop, batch, number: None)


WRONG = {
    "max_norm is not supported": lambda: mt.Embedding(4, max_norm=1.0),
    "sparse is not supported": lambda: mt.EmbeddingBag(4, sparse=True),
    "there is no argument 'colour'": lambda: mt.Embedding(4, colour=1),
    "the dimension must be a number of at least 1": lambda: mt.Embedding(0),
    "mode must be sum or mean, not 'max'": lambda: mt.EmbeddingBag(4, mode="max"),
    "no engine serves this module yet": lambda: mt.Embedding(4)(torch.tensor([1])),
    "there is no batch at hand: use the module": no_batch,
    "there is no batch at hand: call step": lambda: Loop().rows.step(),
    "there is no Embedding or EmbeddingBag": lambda: mt.SGD(nn.Linear(2, 2)),
    "a row optimizer takes modules, not 'Parameter'": lambda: mt.SGD(nn.Linear(2, 2).parameters()),
    "lr must be at least 0": lambda: mt.SGD(mt.Embedding(4), lr=-1.0),
    "mode must be one of oac, sync, not 'fast'": lambda: engine(mode="fast"),
    "in_flight must be a number from 1 to 1024, not 0": lambda: engine(in_flight=0),
    "no keys are named for '0'": lambda: engine(keys={}),
    "is not in the model": lambda: engine(keys={mt.Embedding(4): "item"}),
    "a field's name or a function of the batch, not 3": lambda: engine(items=(it := mt.Embedding(4)), keys={it: 3}),
    "'0' is in no row optimizer": lambda: engine(optimizers=[]),
    "is served by another engine": two_engines,
    "the engine is closed": closed,
    "have the state of another optimizer": other_state,
    "table 0": full,
    "make a new one, so that each has a table of its own": lambda: __import__("copy").deepcopy(mt.Embedding(4)),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_use_is_told(line):
    with pytest.raises(InputError) as error:
        WRONG[line]()
    assert line in str(error.value) and "\n" not in str(error.value)


def test_the_example_learns():
    losses, right = runpy.run_path(str(ROOT / "examples" / "own_loop.py"))["main"](200)
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20]) and right > 0.7
