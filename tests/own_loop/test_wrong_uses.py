"""What can't work in a loop of the user's own is told in one line."""

import copy
import pickle
from collections import namedtuple

import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import DivergedError, InputError
from marius_oac.storage.keys.table import LAST_SHARED, NO_KEY
from marius_oac.torch.key_forms import read_keys
from tests.own_loop.loops import Loop, key_batches


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
    "keys must be integers on the CPU, not torch.float32": lambda loop, batch, number: loop.items(torch.ones(2)),
    f"key {NO_KEY} is reserved": lambda loop, batch, number: loop.items(torch.tensor([NO_KEY])),
    "there is no tensor of all rows": lambda loop, batch, number: loop.items.weight,
    "a folder is needed, not 3": lambda loop, batch, number: loop.engine.save(3),
    "test_wrong_uses.py: is no folder": lambda loop, batch, number: loop.engine.save(__file__),
    "keep must be a number of at least 1": lambda loop, batch, number: loop.engine.save("none", keep=True),
    "this loop was ended by another one": lambda loop, batch, number: [*loop.engine.batches([])],
    "or because the engine was closed": lambda loop, batch, number: loop.engine.close(),
    "diverged: the gradient of table '0' is not finite at batch 0: no row was changed": lambda loop, batch, number: (
        (loop.items(batch["item"]) * float("nan")).sum().backward(),
        loop.rows.step(),
    ),
}


@pytest.mark.parametrize("line", USES)
def test_a_wrong_use_in_the_loop_is_told(line):
    with pytest.raises((InputError, DivergedError)) as error:
        run(Loop(), USES[line])
    assert line in str(error.value) and "\n" not in str(error.value)


def bag(shape, weights=None, offsets=None, **given):
    items = mt.EmbeddingBag(4, **given)
    with mt.Engine(items, {items: 0}, [mt.SGD(items)]) as engine:
        for (keys,) in engine.batches([[torch.ones(shape, dtype=torch.int64)]]):
            items(keys, offsets, torch.ones(weights) if isinstance(weights, tuple) else weights)


@pytest.mark.parametrize(
    "given, line",
    [
        ({"shape": (2, 3, 1)}, "keys [b, n] come without offsets and keys [n] with them, not [2, 3, 1] without"),
        ({"shape": (3,)}, "keys [b, n] come without offsets and keys [n] with them, not [3] without"),
        ({"shape": (2, 3), "weights": (2, 1)}, "per_sample_weights are [2, 1], and keys [2, 3]"),
        ({"shape": (2, 3), "weights": (2, 3), "mode": "mean"}, "per_sample_weights need mode 'sum'"),
        ({"shape": (2, 3), "weights": [1.0]}, "per_sample_weights must be a tensor of float32, not list"),
        ({"shape": (1,), "offsets": torch.tensor([0]), "weights": torch.ones(1).int()}, "float32, not torch.int32"),
        ({"shape": (3,), "offsets": [0, 1]}, "offsets must be a tensor of whole numbers, [b], not [0, 1]"),
        ({"shape": (3,), "offsets": torch.tensor([0.5])}, "offsets must be a tensor of whole numbers, [b], not"),
        ({"shape": (3,), "offsets": torch.tensor([[0]])}, "offsets must be a tensor of whole numbers, [b], not"),
        ({"shape": (3,), "offsets": torch.tensor([0, 4])}, "offsets must ascend from 0 to at most 3, the number of"),
        ({"shape": (3,), "offsets": torch.tensor([1, 2])}, "offsets must ascend from 0 to at most 3"),
        ({"shape": (3,), "offsets": torch.tensor([0, 2, 1])}, "offsets must ascend from 0 to at most 3"),
        ({"shape": (0,), "offsets": torch.zeros(0).long(), "include_last_offset": True}, "needs the last one"),
    ],
)
def test_a_wrong_use_of_bags_is_told(given, line):
    with pytest.raises(InputError) as error:
        bag(**given)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("offsets", "lengths"),
    [([0, 7], None), ([0, 7, 6], None), ([0, 4, 2, 6], None), ([1, 6], None), ([0, 5], None), ([-1, 6], None),
     ([0, 3, 6], [3, 4]), ([0, 3, 6], [3, -1]), ([-2, 3, 6], [1, 1])],
)  # fmt: skip
def test_bags_beyond_a_nested_tensor_s_memory_are_told(offsets, lengths):
    """Torch does not look at them, and would read and write there."""
    values, lengths = torch.arange(6), lengths and torch.tensor(lengths)
    keys = torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets), lengths)
    with pytest.raises(InputError, match="the offsets of nested keys must ascend from 0 to 6, the number of keys"):
        read_keys(keys, "here")


def test_nested_keys_may_have_holes_between_bags():
    keys = torch.nested.nested_tensor_from_jagged(torch.arange(6), torch.tensor([0, 3, 6]), torch.tensor([2, 0]))
    found = read_keys(keys, "here")
    assert found.flat.tolist() == [0, 1] and found.offsets.tolist() == [0, 2, 2]


@pytest.mark.parametrize(
    "batch, line",
    [
        ({"other": 1}, "batch 0, table '0': the batch has no field 'item', but fields other"),
        ([1, 2], "the batch has no field 'item', but list"),
        (namedtuple("Pair", "other it")(1, 2), "the batch has no field 'item', but fields other, it"),
        ({"item": [1, 2.5]}, "keys must be tensors or lists of integers or of texts, not 2.5"),
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


def converted_late():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 1))
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    mt.convert(model)
    mt.Engine(model, {"0": 0}, [mt.SGD(model), dense])


WRONG = {
    "Engine: the model must be a module of torch's, not 'int'": lambda: mt.Engine(3, {}, []),
    "keys must map modules to fields, not be 'str'": lambda: engine(keys="item"),
    "optimizers must be a list, not 'SGD'": lambda: engine(optimizers=mt.SGD(mt.Embedding(3))),
    "Engine: optimizers: 3 has no state_dict and load_state_dict": lambda: engine(optimizers=[3]),
    "stateful must be a list, not 'int'": lambda: engine(stateful=3),
    "a loader is needed, not 3": lambda: engine().batches(3),
    "Engine.load: a folder is needed, not null": lambda: engine().load(None),
    "test_wrong_uses.py: is no folder": lambda: engine().load(__file__),
    "one has the weight that '0' had: make it after mt.convert": converted_late,
    "seed must be a number, not 'a'": lambda: mt.Embedding(4, seed="a"),
    "lr must be a number of at least 0, not 'a'": lambda: mt.SGD(mt.Embedding(3), lr="a"),
    "lr must be a number of at least 0, not null": lambda: mt.SGD(mt.Embedding(3), lr=None),
    "Adagrad: eps must be above 0, not 0": lambda: mt.Adagrad(mt.Embedding(3), eps=0),
    "Adam: eps must be above 0, not 'a'": lambda: mt.Adam(mt.Embedding(3), eps="a"),
    "initial_accumulator_value must be a number of at least 0, not -1": lambda: mt.Adagrad(
        mt.Embedding(3), initial_accumulator_value=-1
    ),
    "betas must be two numbers, not": lambda: mt.Adam(mt.Embedding(3), betas=(0.9,)),
    "betas must be at least 0 and less than 1, not 'a'": lambda: mt.Adam(mt.Embedding(3), betas=("a", 0.9)),
    "betas must be a list, not 'float'": lambda: mt.Adam(mt.Embedding(3), betas=0.9),
    "modules must be a list, not 'int'": lambda: mt.SGD(3),
    "SGD: there is no argument 'momentum'": lambda: mt.SGD(mt.Embedding(3), momentum=0.9),
    "Adagrad: there is no argument 'lr_decay'": lambda: mt.Adagrad(mt.Embedding(3), lr_decay=0.1),
    "Adam: there is no argument 'amsgrad'": lambda: mt.Adam(mt.Embedding(3), amsgrad=True),
    "weight_decay must be a number of at least 0, not -1": lambda: mt.Adam(mt.Embedding(3), weight_decay=-1),
    "Embedding: there is no argument 'dim'": lambda: mt.Embedding(embedding_dim=3, dim=3),
    "a row optimizer takes modules, not 'dict'": lambda: mt.SGD([{"lr": 1}]),
    "a table is in two groups": lambda: mt.SGD([{"params": it} for it in [mt.Embedding(3)] * 2]),
    "the model must be a module of torch's, not 'list'": lambda: mt.convert([]),
    "select must be a list, not 'int'": lambda: mt.convert(nn.Embedding(3, 2), select=3),
    "3 is no configuration of a table: it has no name": lambda: mt.EmbeddingBagCollection([3]),
    "tables must be a list, not 'int'": lambda: mt.EmbeddingBagCollection(3),
    "max_norm is not supported": lambda: mt.Embedding(4, max_norm=1.0),
    "sparse is not supported": lambda: mt.EmbeddingBag(4, sparse=True),
    "there is no argument 'colour'": lambda: mt.Embedding(4, colour=1),
    "the dimension must be a number of at least 1": lambda: mt.Embedding(0),
    "mode must be sum, mean or max, not 'min'": lambda: mt.EmbeddingBag(4, mode="min"),
    "give the dimension alone": lambda: mt.Embedding(1000, 4),
    "capacity must be a number of at least 1, not 0": lambda: mt.Embedding(4, capacity=0),
    "padding_idx must be a key, not 1.5": lambda: mt.Embedding(4, padding_idx=1.5),
    "betas must be at least 0 and less than 1, not 1": lambda: mt.Adam(mt.Embedding(4), betas=(0.9, 1)),
    "std must be a number of at least 0, not -1": lambda: mt.Embedding(4, std=-1),
    "there is no fixed number of rows": lambda: mt.Embedding(4).num_embeddings,
    "it can't be copied or pickled": lambda: pickle.dumps(mt.Embedding(4)),
    "groups can't be added": lambda: Loop().rows.add_param_group({"params": []}),
    "it has 1 groups and the saved one 2": lambda: Loop().rows.load_state_dict({"param_groups": [{}, {}]}),
    "no engine serves this module yet": lambda: mt.Embedding(4)(torch.tensor([1])),
    "there is no batch at hand: use the module": no_batch,
    "there is no batch at hand: call step": lambda: Loop().rows.step(),
    "there is no Embedding or EmbeddingBag": lambda: mt.SGD(nn.Linear(2, 2)),
    "a row optimizer takes modules, not 'Parameter'": lambda: mt.SGD(nn.Linear(2, 2).parameters()),
    "lr must be a number of at least 0, not -1": lambda: mt.SGD(mt.Embedding(4), lr=-1.0),
    "mode must be one of oac, sync, async, not 'fast'": lambda: engine(mode="fast"),
    "in_flight must be a number from 1 to 1024, not 0": lambda: engine(in_flight=0),
    "no keys are named for '0'": lambda: engine(keys={}),
    "is not in the model, or no module of this package, which are '0'": lambda: engine(keys={mt.Embedding(4): "item"}),
    "a field's name or place, or a function of the batch, not 3.5": lambda: engine(
        items=(it := mt.Embedding(4)), keys={it: 3.5}
    ),
    "'0' is in no row optimizer": lambda: engine(optimizers=[]),
    "is served by another engine": two_engines,
    "the engine is closed": closed,
    "have the state of another optimizer": other_state,
    "table 0": full,
    "make a new one, so that each has a table of its own": lambda: copy.deepcopy(mt.Embedding(4)),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_use_is_told(line):
    with pytest.raises(InputError) as error:
        WRONG[line]()
    assert line in str(error.value) and "\n" not in str(error.value)
