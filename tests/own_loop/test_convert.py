"""Models with modules of torch's become models over tables, and compute what they computed."""

import copy

import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from tests.own_loop.test_modules import OPTIMIZERS, assert_near, bag_batches, step

KEYS, USERS, DIMENSION = 60, 20, 8


class Model(nn.Module):
    """Bags of items, single users and another look-up of items, whose weight may be the bags'."""

    def __init__(self, tied=False, mode="mean", padding=None):
        super().__init__()
        torch.manual_seed(5)
        self.parts = nn.ModuleDict({"bags": nn.EmbeddingBag(KEYS, DIMENSION, mode=mode, padding_idx=padding)})
        self.users = nn.Embedding(USERS, DIMENSION)
        self.again = nn.Embedding(KEYS, DIMENSION, padding_idx=padding)
        if tied:
            self.parts["bags"].weight = self.again.weight
        self.out = nn.Linear(3 * DIMENSION, 1)

    def forward(self, batch):
        bags = self.parts["bags"](batch["item"], batch["offsets"])
        again = self.again(batch["again"])
        return self.out(torch.cat([bags, self.users(batch["user"]), again], 1))[:, 0]


NAMES = {"parts.bags": "item", "users": "user", "again": "again"}


def batches(count):
    draw = torch.Generator().manual_seed(9)
    for batch in bag_batches(count):
        yield batch | {"again": torch.randint(0, KEYS, batch["user"].shape, generator=draw)}


def tables(model):
    return [model.parts["bags"], model.users, model.again]


@pytest.mark.parametrize("tied, padding", [(False, None), (True, None), (True, 7)])
@pytest.mark.parametrize("ours, theirs", OPTIMIZERS[:2])
def test_a_converted_model_computes_and_trains_as_before(tied, padding, ours, theirs):
    plain = Model(tied, padding=padding)
    model = mt.convert(copy.deepcopy(plain))
    assert model.parts["bags"].mode == "mean" and {*dict(model.named_parameters())} == {"out.weight", "out.bias"}
    rows, dense = ours(model, lr=0.1), torch.optim.SGD(model.parameters(), lr=0.01)
    weights = {each.weight for each in tables(plain)}
    others = [theirs(list(weights), lr=0.1), torch.optim.SGD(plain.out.parameters(), lr=0.01)]
    with mt.Engine(model, keys=NAMES, optimizers=[rows, dense]) as engine:
        for batch in batches(2):
            assert torch.equal(model.eval()(batch), plain(batch))
        for batch in engine.batches(map(dict, batches(40))):
            assert step(model.train(), batch, [rows, dense]) == pytest.approx(step(plain, batch, others), abs=1e-5)
    model.eval()
    assert_near(model.again(torch.arange(KEYS)), plain.again.weight.data)
    assert_near(model.users(torch.arange(USERS)), plain.users.weight.data)
    if not tied:
        bags = torch.arange(KEYS)[:, None]
        assert_near(model.parts["bags"](bags), plain.parts["bags"].weight.data)
    assert (model.again.table is model.parts["bags"].table) == tied


def test_rows_are_the_weights_bit_for_bit_and_other_keys_have_rows_of_their_own():
    plain = Model()
    model = mt.convert(copy.deepcopy(plain), select=["users"], std=0.0)
    assert isinstance(model.parts["bags"], nn.EmbeddingBag) and isinstance(model.users, mt.Embedding)
    with mt.Engine(model, {"users": "user"}, [mt.SGD(model)]):
        found = model.eval().users(torch.tensor([-1, *range(USERS), USERS]))
    assert torch.equal(found[1:-1], plain.users.weight) and not found[0].any() and not found[-1].any()
    model = mt.convert(copy.deepcopy(plain), select=lambda name, module: name.startswith("parts"))
    assert isinstance(model.parts["bags"], mt.EmbeddingBag) and isinstance(model.users, nn.Embedding)


@pytest.mark.parametrize("disk", [False, True])
def test_a_table_of_many_blocks_begins_with_its_rows(disk, tmp_path):
    plain = nn.Embedding(40_000, 2)
    items = mt.convert(plain, **({"memory": "512KiB", "path": str(tmp_path)} if disk else {}))
    with mt.Engine(items, {"": 0}, [mt.Adagrad(items, initial_accumulator_value=0.5)]) as engine:
        for (keys,) in engine.batches([[torch.tensor([39_999, 40_000])]]):
            assert torch.equal(items(keys)[0], plain.weight[39_999])
    assert torch.equal(items.eval()(torch.arange(40_000)), plain.weight)
    items.table.close()


def test_a_module_in_two_places_stays_one():
    inner = nn.Embedding(5, 2)
    model = mt.convert(nn.ModuleList([inner, nn.Sequential(inner)]).eval())
    assert model[0] is model[1][0] and isinstance(model[0], mt.Embedding) and not model[0].training


def linear_tied():
    model = nn.ModuleDict({"table": nn.Embedding(5, 3), "head": nn.Linear(3, 5)})
    model["head"].weight = model["table"].weight
    return model


def hooked():
    table = nn.Embedding(5, 3)
    table.register_forward_hook(lambda *given: None)
    return table


def padded():
    table = nn.Embedding(5, 3, padding_idx=2)
    nn.init.ones_(table.weight)
    return table


class Own(nn.Embedding):
    pass


WRONG = {
    "there is no nn.Embedding or nn.EmbeddingBag in the model": lambda: mt.convert(nn.Linear(2, 2)),
    "'1' is no nn.Embedding or nn.EmbeddingBag": lambda: mt.convert(nn.Sequential(nn.Embedding(3, 2)), ["1"]),
    "'table' shares its weight with 'head.weight', which needs it whole": lambda: mt.convert(linear_tied()),
    "it has hooks, which would be lost": lambda: mt.convert(hooked()),
    "the row of its padding_idx, 2, is not 0": lambda: mt.convert(padded()),
    "Own is a class of its own, whose code would be lost": lambda: mt.convert(nn.Sequential(Own(3, 2))),
    "max_norm is not supported: rows would change": lambda: mt.convert(nn.Embedding(3, 2, max_norm=1.0)),
    "scale_grad_by_freq is not": lambda: mt.convert(nn.EmbeddingBag(3, 2, scale_grad_by_freq=True)),
    "rows are float32 on the CPU, not torch.float64": lambda: mt.convert(nn.Embedding(3, 2, dtype=torch.float64)),
    "its weight is frozen": lambda: mt.convert(nn.Embedding.from_pretrained(torch.ones(3, 2))),
    "its weight holds NaN": lambda: mt.convert(nn.Embedding.from_pretrained(torch.ones(3, 2) / 0, freeze=False)),
    "there is no argument 'colour'": lambda: mt.convert(nn.Embedding(3, 2), colour=1),
    "all 2 rows are taken": lambda: mt.Engine(it := mt.convert(nn.Embedding(3, 2), capacity=2), {it: 0}, [mt.SGD(it)]),
    "'table' is named twice": lambda: mt.Engine(it := mt.Embedding(3), {it: 0, "": 0}, [mt.SGD(it)]),
    "'nothing' is not in the model": lambda: mt.Engine(it := mt.Embedding(3), {"nothing": 0}, [mt.SGD(it)]),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_can_not_be_converted_is_told(line):
    with pytest.raises(InputError) as error:
        WRONG[line]()
    assert line in str(error.value) and "\n" not in str(error.value)


def test_a_model_that_is_refused_stays_as_it_was():
    model = linear_tied()
    model["other"] = nn.Embedding(5, 3)
    with pytest.raises(InputError):
        mt.convert(model)
    assert type(model["other"]) is nn.Embedding
