"""Collections of bags by feature, against torch's bags, over a stand-in for TorchRec's classes.

`test_torchrec` uses TorchRec itself, where it is installed.
"""

import sys
import types
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from marius_oac.torch.bag_collections import KeyedTensor

KEYS = 25


class Jagged:
    """TorchRec's KeyedJaggedTensor, as far as it is used."""

    def __init__(self, keys, values, lengths, weights=None):
        self._keys, self._values, self._lengths, self._weights = keys, values, lengths, weights

    def keys(self):
        return self._keys

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths

    def offsets(self):
        return torch.cat([torch.zeros(1, dtype=self._lengths.dtype), self._lengths.cumsum(0)])

    def weights_or_none(self):
        return self._weights


def table(name, features, dimension=4, pooling="sum", **more):
    return SimpleNamespace(name=name, embedding_dim=dimension, feature_names=features, pooling=pooling, **more)


TABLES = [table("t1", ["a", "b"]), table("t2", ["c", "a"], 3, "mean")]
ORDER = ["b", "unused", "a", "c"]


def batches(count, bags=5):
    draw = torch.Generator().manual_seed(8)
    for _ in range(count):
        lengths = torch.randint(0, 4, (len(ORDER) * bags,), generator=draw)
        values = torch.randint(0, KEYS, (int(lengths.sum()),), generator=draw)
        weights = torch.rand(len(values), generator=draw)
        yield {"sparse": Jagged(ORDER, values, lengths, weights)}


class Plain(nn.Module):
    """The same by torch's modules."""

    def __init__(self, modes=("sum", "mean")):
        super().__init__()
        sizes = zip((4, 3), modes, strict=True)
        self.bags = nn.ModuleList([nn.EmbeddingBag(KEYS, size, mode=mode) for size, mode in sizes])

    def forward(self, jagged, weighted):
        parts = {}
        bags = len(jagged.lengths()) // len(ORDER)
        for place, name in enumerate(ORDER):
            each, before = jagged.lengths()[place * bags :][:bags], int(jagged.lengths()[: place * bags].sum())
            at = slice(before, before + int(each.sum()))
            weights = jagged.weights_or_none()[at] if weighted else None
            parts[name] = jagged.values()[at], each.cumsum(0) - each, weights
        chosen = [(0, "a"), (0, "b"), (1, "c"), (1, "a")]
        return [self.bags[number](*parts[name]) for number, name in chosen]


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_and_rows_are_those_of_torch(weighted):
    tables = [*TABLES[:1], table("t2", ["c", "a"], 3, "sum")] if weighted else TABLES
    collection = mt.EmbeddingBagCollection(tables, is_weighted=weighted)
    plain, rows = Plain(("sum", "sum") if weighted else ("sum", "mean")), mt.Adagrad(collection, lr=0.1)
    other = torch.optim.Adagrad(plain.parameters(), lr=0.1)
    with mt.Engine(nn.ModuleDict({"sparse": collection}), {"sparse": "sparse"}, [rows]) as engine:
        collection.eval()
        for theirs, own in zip(plain.bags, collection.embedding_bags.values(), strict=True):
            theirs.weight.data.copy_(own([[key] for key in range(KEYS)]))
        collection.train()
        for batch in engine.batches(batches(40)):
            found = collection(batch["sparse"])
            expected = plain(batch["sparse"], weighted)
            assert found.keys() == ["a@t1", "b", "c", "a@t2"] and found.length_per_key() == [4, 4, 3, 3]
            assert torch.allclose(found.values(), torch.cat(expected, 1), atol=1e-5)
            assert torch.equal(found["c"], found.to_dict()["c"]) and torch.allclose(found["c"], expected[2], atol=1e-5)
            for value in (found.values(), torch.cat(expected, 1)):
                value.pow(2).sum().backward()
            for each in (rows, other):
                each.step()
                each.zero_grad()
    collection.eval()
    for theirs, own in zip(plain.bags, collection.embedding_bags.values(), strict=True):
        assert torch.allclose(theirs.weight.data, own([[key] for key in range(KEYS)]), rtol=1e-6, atol=1e-6)


def test_tables_are_frozen_and_lose_gradients_together():
    collection = mt.EmbeddingBagCollection(TABLES)
    rows = mt.SGD(collection)
    with mt.Engine(collection, {collection: "sparse"}, [rows]) as engine:
        for number, batch in enumerate(engine.batches(batches(2))):
            collection.requires_grad_(number == 1)
            assert collection(batch["sparse"]).values().requires_grad == (number == 1)
        for batch in engine.batches(batches(1)):
            collection(batch["sparse"]).values().sum().backward()
            assert all(each.grad is not None for each in rows.param_groups[0]["params"])
            collection.zero_grad()
            assert all(each.grad is None for each in rows.param_groups[0]["params"])


def test_keys_are_known_again_without_a_look_at_them(monkeypatch):
    collection = mt.EmbeddingBagCollection(TABLES)
    with mt.Engine(collection, {collection: "sparse"}, [mt.SGD(collection)]) as engine:
        for batch in engine.batches(batches(3)):
            for each in collection.embedding_bags.values():
                monkeypatch.setattr(each.rows, "places", None)
            collection(batch["sparse"])


def test_the_same_values_may_be_split_in_another_way():
    values, ones = torch.arange(4), torch.ones(4, dtype=torch.int64)
    collection = mt.EmbeddingBagCollection([table("t", ["a", "b"], 2)])
    ways = [Jagged(["a", "b"], values, ones), Jagged(["b", "a"], values, ones),
            Jagged(["a", "b"], values, torch.tensor([1, 0, 3, 0]))]  # fmt: skip
    with mt.Engine(collection, {collection: 0}, [mt.SGD(collection)]) as engine:
        for (first,) in engine.batches([[ways[0]]]):
            one, other, third = (collection(each) for each in (first, *ways[1:]))
            assert torch.equal(one["a"], other["b"]) and torch.equal(one["b"], other["a"])
            assert not third["a"][1].any() and torch.equal(third["b"][0], one.values()[1, :2] + one["b"].sum(0))


def test_values_that_changed_since_they_were_read_are_looked_for_again():
    values, ones = torch.arange(4), torch.ones(4, dtype=torch.int64)
    collection, jagged = mt.EmbeddingBagCollection([table("t", ["a", "b"], 2)]), Jagged(["a", "b"], values, ones)
    with mt.Engine(collection, {collection: 0}, [mt.SGD(collection)]) as engine:
        for (first,) in engine.batches([[jagged]]):
            before = collection(first)
            values.copy_(values.flip(0))
            after = collection(first)
            assert torch.equal(after["a"], before["b"].flip(0)) and torch.equal(after["b"], before["a"].flip(0))


def test_rows_begin_as_wide_as_those_of_torchrec():
    collection = mt.EmbeddingBagCollection([table("t", ["a"], num_embeddings=3), table("u", ["b"])])
    assert [each.served.std for each in collection.embedding_bags.values()] == [1 / 3, 1.0]
    assert (
        mt.EmbeddingBagCollection([table("t", ["a"], num_embeddings=3)], std=0.5).embedding_bags["t"].served.std == 0.5
    )
    assert collection.embedding_bag_configs()[1].name == "u" and not collection.is_weighted()


def test_vectors_are_torchrecs_where_keys_are(monkeypatch):
    module = types.ModuleType("torchrec.sparse.jagged_tensor")
    module.Jagged = type("Jagged", (Jagged,), {"__module__": module.__name__})
    module.KeyedTensor = type("TheirTensor", (KeyedTensor,), {})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    collection = mt.EmbeddingBagCollection([table("t", ["a"], 2)])
    with mt.Engine(collection, {collection: 0}, [mt.SGD(collection)]):
        found = collection.eval()(module.Jagged(["a"], torch.arange(2), torch.ones(2, dtype=torch.int64)))
    assert type(found) is module.KeyedTensor and found["a"].shape == (2, 2)


def uneven(**more):
    jagged = Jagged(["a", "b"], torch.arange(3), torch.tensor([1, 1, 1]))
    for name, value in more.items():
        setattr(jagged, name, value)
    return jagged


@pytest.mark.parametrize(
    "given, line",
    [
        ("text", "a KeyedJaggedTensor is needed, not 'str'"),
        (Jagged(["b"], torch.arange(1), torch.ones(1, dtype=torch.int64)), "there are no keys of the feature 'a', but"),
        (uneven(), "features have different numbers of bags"),
        (uneven(_lengths=torch.tensor([1, 2]), variable_stride_per_key=lambda: True), "different numbers of bags"),
    ],
)
def test_other_keys_are_refused(given, line):
    collection = mt.EmbeddingBagCollection([table("t", ["a"])])
    with pytest.raises(InputError) as error, mt.Engine(collection, {collection: 0}, [mt.SGD(collection)]) as engine:
        next(iter(engine.batches([[given]])))
    assert line in str(error.value)


def test_other_tables_are_refused():
    for tables, line in (
        ([table("t", ["a"]), table("t", ["b"])], "there are two tables 't'"),
        ([table("t", ["a"], pooling="max")], "pooling must be sum or mean, not 'max'"),
    ):
        with pytest.raises(InputError) as error:
            mt.EmbeddingBagCollection(tables)
        assert line in str(error.value)
    collection = mt.EmbeddingBagCollection([table("t", ["a"])])
    keys = {collection.embedding_bags["t"]: 0, collection: 0}
    with pytest.raises(InputError, match="'embedding_bags.t' is named twice"):
        mt.Engine(collection, keys, [mt.SGD(collection)])
    unweighted = Jagged(["a"], torch.arange(1), torch.ones(1, dtype=torch.int64))
    weighted = mt.EmbeddingBagCollection([table("t", ["a"])], is_weighted=True)
    with pytest.raises(InputError, match="the keys have no weights"):
        weighted(unweighted)


def test_torchrec():
    torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed")
    config = torchrec.EmbeddingBagConfig(
        name="t", embedding_dim=4, num_embeddings=KEYS, feature_names=["a", "b"], pooling=torchrec.PoolingType.MEAN
    )
    jagged = torchrec.KeyedJaggedTensor.from_lengths_sync(
        ["a", "b"], torch.tensor([1, 2, 3]), torch.tensor([1, 0, 0, 2])
    )
    collection = mt.EmbeddingBagCollection([config])
    theirs = torchrec.EmbeddingBagCollection([config])
    with mt.Engine(collection, {collection: 0}, [mt.SGD(collection)]) as engine:
        rows = collection.eval().embedding_bags["t"]([[key] for key in range(KEYS)])
        theirs.embedding_bags["t"].weight.data.copy_(rows)
        collection.train()
        for (batch,) in engine.batches([[jagged]]):
            found, expected = collection(batch), theirs(batch)
            assert type(found) is type(expected) and found.keys() == expected.keys()
            assert torch.allclose(found.values(), expected.values())
