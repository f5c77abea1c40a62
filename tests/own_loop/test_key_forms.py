"""Keys as nested and jagged tensors, lists, arrays and texts."""

import re
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from marius_oac.torch import key_forms
from marius_oac.torch.key_forms import joined, read_keys
from tests.own_loop.loops import Loop
from tests.own_loop.resumed import equal

WORDS = ["", "a", "b", "red", "été", "日本", "7", "a" * 70]
bags_of = st.lists(st.lists(st.integers(-3, 6), max_size=4), min_size=1, max_size=5)


def jagged(bags, dtype=torch.int64):
    return torch.nested.nested_tensor([torch.tensor(bag, dtype=dtype) for bag in bags], layout=torch.jagged)


def holes(bags):
    """The same bags with room between them."""
    wide = torch.zeros(len(bags), 6, dtype=torch.int64)
    for bag, row in zip(bags, wide, strict=True):
        row[1 : 1 + len(bag)] = torch.tensor(bag, dtype=torch.int64)
    lengths = torch.tensor([len(bag) for bag in bags])
    return torch.nested.narrow(wide, 1, torch.ones(len(bags), dtype=torch.int64), lengths, layout=torch.jagged)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@given(bags_of)
def test_every_form_has_the_keys_and_bags_of_lists(bags):
    flat = [key for bag in bags for key in bag]
    forms = [bags, [tuple(bag) for bag in bags], jagged(bags), jagged(bags, torch.int32), holes(bags)]
    forms.append(torch.nested.nested_tensor([torch.tensor(bag, dtype=torch.int64) for bag in bags]))
    for form in forms:
        keys = read_keys(form, "here")
        assert keys.array("here").keys.tolist() == flat and keys.count == len(flat) and keys.shape is None
        assert keys.offsets.tolist() == [0, *np.cumsum([*map(len, bags)])]
        assert keys.are(3).tolist() == [key == 3 for key in flat]
    for form in (flat, np.array(flat, np.int32), torch.tensor(flat, dtype=torch.int64)):
        keys = read_keys(form, "here")
        assert keys.array("here").keys.tolist() == flat and keys.shape == (len(flat),)


@settings(deadline=None)  # the first example may compile
@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=9)), st.lists(st.integers(-2, 2)))
def test_texts_have_keys_of_their_own(texts, numbers):
    texts, numbers = [*texts, ""], [*numbers, -(2**63)]  # which have one key, and no check
    found = joined([read_keys(each, "here").array("here") for each in (texts, numbers) if each])
    rows = list(zip(*(each.tolist() for each in found), strict=True))
    assert len({*rows}) == len({*texts}) + len({*numbers})
    assert [found.keys.dtype, found.vocabularies.dtype, found.checks.dtype] == [np.int64, np.uint16, np.uint32]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags, self.one = mt.EmbeddingBag(4, mode="mean", padding_idx="b"), mt.Embedding(4)

    def forward(self, batch):
        return self.bags(batch["bags"]) + self.one(batch["one"])


def word_batches(count):
    draw = np.random.default_rng(1)
    for _ in range(count):
        bags = [[WORDS[key] for key in draw.integers(0, 8, size)] for size in draw.integers(0, 4, 5)]
        yield {"bags": bags, "one": [WORDS[key] for key in draw.integers(0, 8, 5)]}


def trained(tmp_path, **options):
    model = Words()
    rows = mt.Adagrad(model, lr=0.1)
    with mt.Engine(model, {"bags": "bags", "one": "one"}, [rows], **options) as engine:
        for number, batch in enumerate(engine.batches(word_batches(30))):
            model(batch).pow(2).sum().backward()
            rows.step()
            rows.zero_grad()
            if number == 10:
                engine.save(tmp_path)
                break
    return model


def trained_on(tmp_path, **options):
    model = Words()
    rows = mt.Adagrad(model, lr=0.1)
    with mt.Engine(model, {"bags": "bags", "one": "one"}, [rows], **options) as engine:
        assert engine.load(tmp_path)
        for batch in engine.batches(word_batches(30)):
            model(batch).pow(2).sum().backward()
            rows.step()
            rows.zero_grad()
    return model


def table(model):
    model.eval()
    return [model.bags([[word] for word in WORDS]), model.one(WORDS)]


def test_rows_of_texts_have_the_bits_of_a_dictionary_and_are_saved(tmp_path):
    """Of one batch at a time, with in_flight of 1 and 8, and after a checkpoint."""
    trained(tmp_path / "a", mode="sync")
    trained(tmp_path / "b", in_flight=8)
    found = [table(trained_on(tmp_path / name, in_flight=count)) for name, count in (("a", 8), ("b", 1))]
    assert equal(*found) and len({*map(tuple, found[0][1].tolist())}) == len(WORDS)
    assert not found[0][0][WORDS.index("b")].any()


def test_rows_of_texts_are_those_of_numbers_in_their_place():
    """Against torch's, over the places of the words in a list."""
    model = Words()
    plain = nn.EmbeddingBag(len(WORDS), 4, mode="mean", padding_idx=2), nn.Embedding(len(WORDS), 4)
    rows = mt.SGD(model, lr=0.1)
    with mt.Engine(model, {"bags": "bags", "one": "one"}, [rows]) as engine:
        for theirs, own in zip(plain, table(model), strict=True):
            theirs.weight.data.copy_(own)
        model.train()
        other = torch.optim.SGD([each.weight for each in plain], lr=0.1)
        for batch in engine.batches(word_batches(30)):
            model(batch).pow(2).sum().backward()
            bags = [torch.tensor([WORDS.index(word) for word in bag], dtype=torch.int64) for bag in batch["bags"]]
            offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags])[:-1]])
            one = torch.tensor([WORDS.index(word) for word in batch["one"]])
            (plain[0](torch.cat(bags), offsets) + plain[1](one)).pow(2).sum().backward()
            for each in (rows, other):
                each.step()
                each.zero_grad()
    for theirs, own in zip(plain, table(model), strict=True):
        assert torch.allclose(theirs.weight.data, own, rtol=1e-6, atol=1e-6)


def test_two_texts_with_one_fingerprint_are_told_apart_or_refused(monkeypatch):
    def same(text, starts, ends):
        return np.zeros(len(starts), np.int64), (ends - starts).astype(np.uint32)

    monkeypatch.setattr(key_forms, "fingerprints", same)
    with (loop := Loop()).engine as engine, pytest.raises(InputError, match="two different texts .* fingerprint"):
        for batch in engine.batches([{"item": ["a"]}, {"item": ["bb"]}]):
            with pytest.raises(InputError, match="key 'bb' was not announced"):
                loop.items(["bb"])
            loop.items(batch["item"])


def test_a_jagged_tensor_has_jagged_rows_and_gradients():
    bags = jagged([[1, 2], [], [1]])
    with (loop := Loop(optimizer=mt.SGD, lr=1.0, std=0.0)).engine as engine:
        for batch in engine.batches([{"item": bags}]):
            for keys in (batch["item"], [[1, 2], [], [1]]):
                found = loop.items(keys)
                assert found.layout == torch.jagged and [len(each) for each in found.unbind()] == [2, 0, 1]
            loop.items(batch["item"]).values().sum().backward()
            loop.rows.step()
    assert loop.table(3)[:, 0].tolist() == [0, -2, -1]


def test_weights_of_bags_of_different_lengths():
    items = mt.EmbeddingBag(2, std=0.0)
    rows = mt.SGD(items, lr=1.0)
    bags, weights = jagged([[1, 2], [], [1]]), torch.tensor([2.0, 3, 4])
    with mt.Engine(items, {items: 0}, [rows]) as engine:
        for (keys,) in engine.batches([[bags]]):
            for given in (weights, torch.nested.nested_tensor_from_jagged(weights, bags.offsets())):
                items(keys, per_sample_weights=given).sum().backward()
            rows.step()
    assert items.eval()([[1], [2], [3]])[:, 0].tolist() == [-12, -6, 0]


def test_other_keys_of_a_batch_are_found_by_their_value():
    with (loop := Loop()).engine as engine:
        for batch in engine.batches([{"item": ["a", "b", ""]}, {"item": np.array(["b", "c"])}]):
            keys = batch["item"]
            assert torch.equal(loop.items(keys)[:1], loop.items(list(keys)[:1]))
            with pytest.raises(InputError, match=re.escape("key 'd' was not announced for batch")):
                loop.items(["d"])
            for key in (97, -(2**63)):  # the latter is the key of an empty text
                with pytest.raises(InputError, match="keys are integers, and those of the table so far are texts"):
                    loop.items([key])


@pytest.mark.parametrize("in_flight", [1, 8])
def test_of_a_tensor_that_is_in_many_batches_few_are_remembered(in_flight):
    keys, loop, drawn = torch.tensor([3, 1, 3]), Loop(in_flight=in_flight), 2 * in_flight + 2
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches([{"item": keys}] * 60)):
            loop.train(batch)
            known = loop.items.served.announced._known[keys]
            assert number in known and len(known) <= max(9, drawn + 1)


def test_keys_that_have_become_more_are_looked_for_by_value():
    items = mt.EmbeddingBag(2, std=0.0, include_last_offset=True)
    rows, many = mt.SGD(items, lr=1.0), 1_000_000
    with mt.Engine(items, {items: 0}, [rows]) as engine:
        for number, (keys,) in enumerate(engine.batches([[torch.tensor([1, 2, 1])]] * 2)):
            if number:
                assert items(keys[:2], torch.tensor([0, 2]))[0].tolist() == [-3, -3]
                keys.data = torch.ones(many, dtype=torch.int64)
                assert items(keys, torch.tensor([0, 3, many]))[:, 0].tolist() == [-6, -2 * (many - 3)]
            else:
                items(keys, torch.tensor([0, 3])).sum().backward()
                rows.step()
        with engine.peek([keys := torch.tensor([2, 1])]):
            keys.data = torch.ones(many, dtype=torch.int64)
            assert items(keys, torch.tensor([0, many]))[0, 0] == -2 * many


def test_bags_keep_their_offsets_for_the_backward_pass():
    items = mt.EmbeddingBag(2, std=0.0)
    rows = mt.SGD(items, lr=1.0)
    with mt.Engine(items, {items: 0}, [rows]) as engine:
        for (bags,) in engine.batches(
            [[torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 3]))]]
        ):
            found = items(bags)
            bags.offsets().numpy()[1] = 1_000_000_000
            found.sum().backward()
            rows.step()
    assert items.eval()([[0], [1], [2]])[:, 0].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("where", ["look up", "step"])
def test_a_parameter_of_another_shape_is_told(where):
    with (loop := Loop()).engine as engine:
        for batch in engine.batches([{"item": torch.arange(9)}]):
            loop.items(batch["item"]).sum().backward()
            (leaf,) = loop.rows.param_groups[0]["params"]
            gradient, leaf.grad = leaf.grad, None
            leaf.data = leaf.data[:1]
            with pytest.raises(InputError, match=re.escape("was [9, 4] and has become [1, 4]")):
                if where == "look up":
                    loop.items(batch["item"])
                else:
                    leaf.grad = gradient[:1].clone()
                    loop.rows.step()


def test_a_gradient_of_another_shape_is_told():
    with (loop := Loop()).engine as engine:
        for batch in engine.batches([{"item": torch.arange(9)}]):
            loop.items(batch["item"]).sum().backward()
            (leaf,) = loop.rows.param_groups[0]["params"]
            leaf.grad.data = leaf.grad[:1]
            with pytest.raises(InputError, match=re.escape("is [1, 4], and its parameter [9, 4]")):
                loop.rows.step()


def test_a_gradient_may_be_any_finite_number():
    with (loop := Loop(optimizer=mt.SGD, lr=1e-38)).engine as engine:
        for batch in engine.batches([{"item": torch.arange(9)}]):
            (loop.items(batch["item"]) * 3e38).sum().backward()
            loop.rows.step()


@dataclass
class Item:
    item: torch.Tensor


@pytest.mark.parametrize("kind", [Item, namedtuple("Item", ["item"]), lambda item: {"item": item}])
def test_a_name_is_that_of_a_field_in_any_kind_of_record(kind):
    keys = torch.tensor([3, 1])
    with (loop := Loop()).engine as engine:
        for _ in engine.batches([kind(keys)]):
            assert loop.items(keys).shape == (2, 4) and len(loop.items.table) == 2


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "keys, line",
    [
        ([1, "a"], "keys must be tensors or lists of integers or of texts, not 'a'"),
        (["a", 1], "keys must be tensors or lists of integers or of texts, not 1"),
        ([1.5], "not 1.5"),
        ([True], "not true"),
        ([[1], 2], "keys must be a list of keys or of bags, not both, as [[1], 2]"),
        ([1 << 64], "a key is beyond 64 bits"),
        (["\ud800"], "a text of the keys is no Unicode"),
        (np.array([1.0]), "keys must be int64 or smaller, not float64"),
        (np.array([1], np.uint64), "keys must be int64 or smaller, not uint64"),
        ({"a": 1}, "keys must be tensors or lists of integers or of texts"),
        (torch.nested.nested_tensor([torch.ones(1, 2).long()], layout=torch.jagged), "bags of keys, not of 3 dim"),
        (None, "not null"),
    ],
    ids=repr,
)
def test_other_forms_are_refused(keys, line):
    with pytest.raises(InputError) as error:
        read_keys(keys, "here").array("here")
    assert line in str(error.value) and "\n" not in str(error.value)


def test_bags_of_different_lengths_take_no_offsets_and_weights_of_their_own():
    items = mt.EmbeddingBag(2)
    with mt.Engine(items, {items: 0}, [mt.SGD(items)]) as engine:
        for (keys,) in engine.batches([[[[1], [2, 3]]]]):
            with pytest.raises(InputError, match="bags of different lengths come without offsets"):
                items(keys, torch.tensor([0]))
            with pytest.raises(InputError, match=re.escape("per_sample_weights are [2], and keys [3]")):
                items(keys, per_sample_weights=torch.ones(2))
