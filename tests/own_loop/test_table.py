"""A table without modules, against a dictionary of rows that torch's optimizers train."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import marius_oac.torch as mt
from marius_oac.errors import CheckpointError, DivergedError, InputError
from tests.threads import in_thread, joined

adagrad = partial(mt.Adagrad, lr=0.1)
calls = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5)
KINDS = {
    "Adagrad": (adagrad, partial(torch.optim.Adagrad, lr=0.1)),
    "SGD": (partial(mt.SGD, lr=0.1), partial(torch.optim.SGD, lr=0.1)),
    "Adam": (partial(mt.Adam, lr=0.1), partial(torch.optim.SparseAdam, lr=0.1)),
}


def gradients(keys, seed):
    return np.random.default_rng(seed).normal(size=(*np.shape(keys), 3)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_torchs_optimizers(kind):
    ours, theirs = KINDS[kind]

    @given(calls)
    @settings(max_examples=10, deadline=None)
    def check(every):
        with mt.Table(3, ours, seed=4) as table:
            weight = torch.nn.Parameter(torch.from_numpy(table.read(range_of(10))))
            other = theirs([weight])
            for number, keys in enumerate(every):
                given = gradients(keys, number)
                table.apply(keys, given)
                indices = torch.tensor([keys], dtype=torch.int64)
                sparse = torch.sparse_coo_tensor(indices, torch.from_numpy(given), weight.shape)
                weight.grad = sparse if kind == "Adam" else sparse.to_dense()
                other.step()
                np.testing.assert_allclose(table.read(range_of(10)), weight.detach().numpy(), rtol=1e-5, atol=1e-6)
            assert len(table) == len({key for keys in every for key in keys})

    check()


def range_of(count):
    return np.arange(count)


def trained(table, count=12):
    for number in range(count):
        keys = np.random.default_rng(number).integers(-5, 5, (2, 4))
        table.apply(keys, gradients(keys, number))
    return table


def test_bits_do_not_depend_on_the_calls_in_flight():
    found = []
    for count in (1, 8):
        with trained(mt.Table(3, adagrad, in_flight=count)) as table:
            found.append(table.read(np.arange(-6, 6)))
    assert np.array_equal(*found)
    table.close()
    for use in (lambda: table.read([1]), lambda: table.apply([1], np.ones((1, 3))), lambda: next(table.items()),
                lambda: table.save("none"), lambda: table.load("none"), lambda: len(table)):  # fmt: skip
        with pytest.raises(InputError, match="the table is closed: make a new one"):
            use()


def test_arrays_come_and_go_in_every_form():
    class Foreign:
        """What has nothing but DLPack."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **given):
            return self.array.__dlpack__(**given)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    keys, grads = np.array([[1, 2], [2, 3]], np.int32), np.ones((2, 2, 3))
    frozen = grads.copy()
    frozen.flags.writeable = False
    forms = [(keys, grads), (torch.from_numpy(keys), torch.ones(2, 2, 3)), (Foreign(keys), Foreign(grads)),
             (keys, frozen), (keys, grads.astype(np.float16)), ([1, 2, 2, 3], torch.ones(4, 3, requires_grad=True)),
             ([[1, 2, 2], [3]], np.ones((4, 3)))]  # fmt: skip
    found = []
    for form in forms:
        with mt.Table(3, partial(mt.SGD, lr=1.0), std=0.0) as table:
            table.apply(*form)
            found.append(table.read([1, 2, 3, 4]))
            assert table.read(keys).shape == (2, 2, 3)
    assert all(each[:, 0].tolist() == [-1, -2, -1, 0] and each.dtype == np.float32 for each in found)
    assert torch.from_dlpack(found[0]).shape == (4, 3)


def test_texts_are_keys():
    with mt.Table(2, partial(mt.SGD, lr=1.0), std=0.0) as table:
        table.apply(["red", "blue", "red"], np.ones((3, 2)))
        assert table.read(["blue", "red", "green"])[:, 0].tolist() == [-1, -2, 0] and len(table) == 2
        with pytest.raises(InputError, match="texts are not kept, only their fingerprints"):
            next(table.items())


@pytest.mark.parametrize("disk", [False, True])
def test_items_are_all_rows(disk, monkeypatch, tmp_path):
    monkeypatch.setattr("marius_oac.torch.direct.ROWS_PER_BLOCK", 3)
    place = {"memory": "1MiB", "path": tmp_path} if disk else {}
    with trained(mt.Table(3, adagrad, **place)) as table:
        blocks = list(table.items())
        assert [len(keys) for keys, _ in blocks] == [3, 3, 3, 1]
        keys, rows = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        assert {*keys} == {*range(-5, 5)} and keys.dtype == np.int64 and np.array_equal(table.read(keys), rows)


def test_a_table_goes_on_from_a_checkpoint(tmp_path):
    with trained(mt.Table(3, partial(mt.Adam, lr=0.2))) as table:
        table.save(tmp_path)
        expected = trained(table).read(range_of(5))
    with mt.Table(3, partial(mt.Adam, lr=0.1)) as table:
        random.seed(3)
        state = random.getstate()
        assert table.load(tmp_path) and random.getstate() == state and not table.load(tmp_path / "none")
        assert table.optimizer.param_groups[0]["lr"] == 0.2
        assert np.array_equal(trained(table).read(range_of(5)), expected)
        table.save(tmp_path, keep=1)
        assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(CheckpointError), mt.Table(4, mt.Adam) as table:
        table.load(tmp_path)


def test_a_learning_rate_may_change():
    with mt.Table(1, partial(mt.SGD, lr=1.0), std=0.0) as table:
        table.apply([1], np.ones((1, 1)))
        table.optimizer.param_groups[0]["lr"] = 0.5
        table.apply([1], np.ones((1, 1)))
        assert table.read([1]).tolist() == [[-1.5]]


def test_several_threads_may_call():
    with mt.Table(2, partial(mt.SGD, lr=1.0), std=0.0) as table:

        def work():
            for _ in range(20):
                table.apply([1, 2], np.ones((2, 2)))
                table.read([1])

        for started in [in_thread(work) for _ in range(3)]:
            joined(*started)
        assert table.read([1, 2])[:, 0].tolist() == [-60, -60]


def test_what_is_wrong_changes_nothing():
    with mt.Table(2, adagrad, std=0.0, capacity=3) as table:
        table.apply([1], np.ones((1, 2)))
        before = table.read([1, 2])
        for keys, given, error, line in (
            ([1, 2], np.ones((2, 3)), InputError, "gradients are [2, 3], and of these keys [2, 2]"),
            ([[1], [2, 3]], np.ones((2, 2)), InputError, "gradients are [2, 2], and of these keys [3, 2]"),
            ([1], np.ones((1, 2), int), InputError, "gradients must be floats on the CPU"),
            ([1], "text", InputError, "gradients must be floats on the CPU, not 'text'"),
            ([1.5], np.ones((1, 2)), InputError, "keys must be tensors or lists of integers or of texts"),
            ([1, 2], np.full((2, 2), np.nan), DivergedError, "the gradient of table 'table' is not finite"),
        ):
            with pytest.raises(error) as told:
                table.apply(keys, given)
            assert line in str(told.value) and "\n" not in str(told.value)
        assert np.array_equal(table.read([1, 2]), before)
        with pytest.raises(InputError, match="rows of bags of different lengths are no array"):
            table.read([[1], [2, 3]])
    with pytest.raises(InputError, match="optimizer must make one of this package, such as mt.Adagrad, and not 3"):
        mt.Table(2, 3)


@pytest.mark.parametrize("ends", ["a later call", "the with block"])
def test_an_error_of_the_pipeline_is_told(ends):
    with pytest.raises(InputError, match="all 2 rows are taken"), mt.Table(2, adagrad, capacity=2) as table:
        table.apply([1, 2], np.ones((2, 2)))
        if ends == "a later call":
            table.apply([3], np.ones((1, 2)))
        else:
            with pytest.raises(InputError):
                table.apply([3], np.ones((1, 2)))
            table.read([1])


def test_rows_that_grow_too_large_are_told_at_the_end():
    with pytest.raises(DivergedError, match="rows of table 'table' hold"), mt.Table(2, partial(mt.SGD, lr=1)) as table:
        table.apply([1], np.full((1, 2), 1e30))


def test_a_loop_over_a_loader_and_single_batches_are_not_mixed():
    items = mt.Embedding(2)
    with mt.Engine(items, {items: 0}, [mt.SGD(items)]) as engine:
        for _ in engine.batches([[[1]], [[2]]]):
            with pytest.raises(InputError, match="a loop over a loader is under way"), engine.at_hand([[3]]):
                pass
        with engine.at_hand([[3]]) as (rows,):
            assert rows.leaf.shape == (1, 2)
        assert [len(batch) for batch in engine.batches([[[1]], [[2]]])] == [1, 1]
