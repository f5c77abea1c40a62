"""The CTR step: against its formulas, tensors as arrays, the same bits whatever the threads, state, errors."""

import dataclasses
import hashlib
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.batches import Jagged
from marius_oac.errors import InputError
from marius_oac.models.ctr.rows import TableColumns
from marius_oac.models.ctr.step import CtrStep
from marius_oac.types import map_arrays
from tests.device import DEVICE
from tests.models import naive
from tests.models.batches import OPTIMIZERS
from tests.models.ctr.step_batches import CPU, LAYOUTS, NaiveStep, SmallNetwork, configure, draw, naive_inputs

LARGE = {"examples": 701, "keys": 3000}
STEEP = {"training__optimizer__epsilon": 1e-4, "training__dense_optimizer__epsilon": 1e-4}  # tiny gradients divide well


def check(config, batches, tensors=False, threads=2, **options):
    """A step over the batches, each on the rows the last one left, follows the formulas."""
    ours, theirs = batches[0].step(config, threads, **options), NaiveStep(config, batches[0], **options)
    rows = batches[0].rows(config)
    given_rows = [torch.from_numpy(each) for each in rows] if tensors else rows
    for timestamp, batch in enumerate(batches):
        expected_loss, expected = theirs.compute([each.copy() for each in rows], batch, timestamp)
        loss = ours.compute(given_rows, batch.tensors() if tensors else batch.data, timestamp)
        assert float(loss) == pytest.approx(expected_loss, rel=1e-5)
        for mine, wanted in zip(rows, expected, strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=2e-3, atol=2e-5)
    state = ours.dense_state()
    for name, tensor in theirs.network.state_dict().items():
        np.testing.assert_allclose(state[f"network.{name}"], tensor, rtol=2e-3, atol=2e-5, err_msg=name)
    ours.close()


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_follows_the_formulas(layout, first_order, tensors):
    if layout == "weights" and not first_order:
        pytest.skip("rows of no floats")
    config = configure(training__embedding_l2=0.3, **STEEP)
    check(config, [draw(layout, first_order, seed=seed) for seed in range(2)], tensors, batch_norm=True)


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_row_optimizers(kind, tensors):
    config = configure(
        training__optimizer__kind=kind,
        training__optimizer__initial_accumulator=0.1,
        training__embedding_l2=0.05,
        **STEEP,
    )
    check(config, [draw("mixed", seed=seed) for seed in range(3)], tensors)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_dense_optimizers(kind):
    config = configure(
        training__dense_optimizer__kind=kind, training__dense_optimizer__weight_decay=0.01,
        training__dense_optimizer__learning_rate=0.05, **STEEP,
    )  # fmt: skip
    check(config, [draw("equal", seed=seed) for seed in range(3)])


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["equal", "mixed", "history"]), st.booleans(), st.integers(1, 40), st.integers(2, 30),
    st.integers(0, 1000), st.booleans(),
)  # fmt: skip
def test_any_batch(layout, first_order, examples, keys, seed, tensors):
    config = configure(training__embedding_l2=0.1, training__optimizer__epsilon=1e-2)
    check(config, [draw(layout, first_order, examples, keys, seed)], tensors)


def misaligned(array):
    """A copy in C order that begins where no vector may."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64 + 4
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def trained(config, batches, threads, place=np.copy, **options):
    """Losses, predictions and digest of everything after the batches."""
    step, digest, losses = batches[0].step(config, threads, **options), hashlib.sha256(), []
    rows = [place(each) for each in batches[0].rows(config)]
    for timestamp, batch in enumerate(batches):
        data = map_arrays(batch.data, place)
        losses.append(step.compute(rows, data, timestamp))
    digest.update(step.predict(rows, data).tobytes())
    for each in (*rows, *(tensor.numpy() for tensor in step.dense_state().values())):
        digest.update(each.tobytes())
    step.close()
    return losses, digest.hexdigest()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_bits_for_any_threads_and_places(layout):
    config = configure(training__embedding_l2=0.01)
    batches = [draw(layout, seed=seed, **LARGE) for seed in range(2)]
    options = {"batch_norm": True, "dropout": 0.3}
    first = trained(config, batches, 1, **options)
    assert np.isfinite(first[0]).all() and first[0][0] != first[0][1]
    before = torch.get_num_threads()
    try:
        for threads, place in ((1, np.copy), (1, misaligned), (2, np.copy), (4, misaligned)):
            torch.set_num_threads(threads)
            assert trained(config, batches, threads, place, **options) == first
            assert torch.get_num_threads() == threads, "the process's own setting"
    finally:
        torch.set_num_threads(before)


def test_a_small_difference_is_seen():
    config = configure()
    batch, other = draw("mixed", **LARGE), draw("mixed", **LARGE)
    other.values[1][0, -1] *= np.float32(1.0001)
    assert trained(config, [batch], 1)[1] != trained(config, [other], 1)[1]


def test_what_ran_before_leaves_nothing():
    config = configure(training__dense_optimizer__kind="sgd")
    small, large = draw("mixed"), draw("mixed", **LARGE)
    results = []
    for warm in (False, True):
        step = small.step(config, batch_norm=True, dropout=0.3)
        before = step.dense_state()
        if warm:
            step.compute(large.rows(config), large.data, 0)
            step.predict(large.rows(config), large.data)
            step.load_dense_state(before)
        rows = small.rows(config)
        results.append((step.compute(rows, small.data, 0), [each.tobytes() for each in rows]))
        step.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_dropout_comes_from_seed_and_timestamp_alone(tensors):
    batch, losses = draw("equal", **LARGE), []
    for timestamp, seed in ((0, 0), (0, 0), (1, 0), (0, 1)):
        step, rows = batch.step(configure(seed=seed), dropout=0.5), batch.rows(configure())
        torch.rand(7)
        state = torch.get_rng_state()
        if tensors:
            losses.append(float(step.compute([torch.from_numpy(one) for one in rows], batch.tensors(), timestamp)))
        else:
            losses.append(step.compute(rows, batch.data, timestamp))
        assert torch.equal(torch.get_rng_state(), state), "the process's own random numbers"
        step.close()
    assert losses[0] == losses[1] and len({*losses}) == 3


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_predict(layout, tensors):
    config = configure()
    batch = draw(layout, examples=300)
    step, theirs = batch.step(config, 2, batch_norm=True, dropout=0.5), NaiveStep(config, batch, batch_norm=True)
    before = step.dense_state()
    for with_state in (True, False):
        rows = batch.rows(config) if with_state else [each.copy() for each in batch.values]
        kept = [each.copy() for each in rows]
        data = dataclasses.replace(batch.data, labels=None)
        if tensors:
            data = map_arrays(data, torch.from_numpy)
            found = step.predict([torch.from_numpy(each) for each in rows], data).numpy()
        else:
            found = step.predict(rows, data)
        assert found.dtype == np.float32 and found.shape == (300,)
        np.testing.assert_allclose(found, theirs.predict(batch), rtol=1e-4)
        for mine, old in zip(rows, kept, strict=True):
            assert (mine == old).all()
    for name, tensor in step.dense_state().items():
        assert torch.equal(tensor, before[name])
    step.close()


def test_a_prediction_is_not_overwritten_by_the_next():
    config, batch, other = configure(), draw("mixed"), draw("mixed", seed=1)
    step = batch.step(config)
    first = step.predict(batch.rows(config), batch.data)
    kept = first.copy()
    step.predict(other.rows(config), other.data)
    assert (first == kept).all()
    step.close()


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_dense_state_carries_on_to_the_same_bits(kind):
    config = configure(training__dense_optimizer__kind=kind)
    batch = draw("equal")
    step, other = batch.step(config, batch_norm=True), batch.step(config, batch_norm=True)
    assert {*step.dense_state()} >= {"network.norm.running_mean", "network.norm.num_batches_tracked"}
    names = {*step.dense_state()}
    rows = batch.rows(config)
    step.compute(rows, batch.data, 0)
    saved = step.dense_state()
    assert {*saved} == names
    kept = {name: tensor.clone() for name, tensor in saved.items()}
    other.load_dense_state(saved)
    again = [each.copy() for each in rows]
    losses = [each.compute(values, batch.data, 1) for each, values in ((step, rows), (other, again))]
    assert losses[0] == losses[1] and all((a == b).all() for a, b in zip(rows, again, strict=True))
    for name, tensor in step.dense_state().items():
        assert torch.equal(tensor, other.dense_state()[name])
        assert torch.equal(saved[name], kept[name]), "what was saved must not change with the step"
    for each in (step, other):
        each.close()


def test_state_of_another_model_is_refused():
    config, batch = configure(), draw("equal")
    step = batch.step(config)
    saved = step.dense_state()
    for state, name in (
        ({}, "network.hidden.bias"),
        ({**saved, "network.more": torch.zeros(1)}, "network.more"),
        ({**saved, "network.out.bias": torch.zeros(2)}, "network.out.bias"),
    ):
        with pytest.raises(ValueError, match=name) as error:
            step.load_dense_state(state)
        assert "\n" not in str(error.value)
    step.close()


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_epoch_scales_the_rate(tensors):
    config = configure(training__optimizer__kind="sgd", training__optimizer__decay=0.5)
    batch, changes = draw("equal"), []
    for epoch in (0, 2):
        rows, step = batch.rows(config), batch.step(config)
        batch.data = dataclasses.replace(batch.data, epoch=epoch)
        if tensors:
            step.compute([torch.from_numpy(each) for each in rows], batch.tensors(), 0)
        else:
            step.compute(rows, batch.data, 0)
        changes.append(rows[0] - batch.values[0])
        step.close()
    np.testing.assert_allclose(changes[1], changes[0] / 4, rtol=1e-3, atol=1e-7)


def test_epoch_scales_the_rate_of_the_network():
    config = configure(training__dense_optimizer__kind="sgd", training__dense_optimizer__decay=0.5)
    batch, changes = draw("equal"), []
    for epoch in (0, 2):
        step = batch.step(config)
        before = step.dense_state()
        batch.data = dataclasses.replace(batch.data, epoch=epoch)
        step.compute(batch.rows(config), batch.data, 0)
        after = step.dense_state()
        changes.append({name: (after[name] - before[name]).double() for name in before})
        step.close()
    assert any(change.any() for change in changes[0].values())
    for name, change in changes[0].items():
        torch.testing.assert_close(changes[1][name], change / 4, rtol=1e-2, atol=1e-7)


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_weights_multiply_the_losses_of_examples(tensors):
    """The mean is over all examples, also those of weight 0."""
    batches = [draw("mixed", seed=seed) for seed in range(2)]
    for seed, batch in enumerate(batches):
        weights = np.random.default_rng(seed).choice(np.float32([0, 0.25, 1, 3, 40]), len(batch.data.labels))
        batch.data = dataclasses.replace(batch.data, weights=weights)
    check(configure(training__embedding_l2=0.3, **STEEP), batches, tensors)


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_a_networks_auxiliary_loss_is_added(tensors, monkeypatch):
    """Once: that of a batch is not there any more when the next one sets none."""
    batch, real, config = draw("equal"), SmallNetwork.forward, configure(**STEEP)

    def forward(self, inputs):
        if self.training and inputs.numbers[0, 0] == batch.data.numbers[0, 0]:
            self.auxiliary_loss = 30 * inputs.stacked.square().mean() + self.out.bias.square().sum()
        return real(self, inputs)

    monkeypatch.setattr(SmallNetwork, "forward", forward)
    step, rows = batch.step(config), batch.rows(config)
    given_rows = [torch.from_numpy(each) for each in rows] if tensors else rows
    values = [torch.tensor(each[:, :6], dtype=torch.float64, requires_grad=True) for each in rows]
    inputs, network = naive_inputs(batch, values), NaiveStep(config, batch).network
    auxiliary = 30 * inputs.stacked.square().mean() + network.out.bias.square().sum()
    logits, labels = real(network, inputs), torch.from_numpy(batch.data.labels).double()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels) + auxiliary
    loss.backward()
    wanted = naive.optimize(config.training.optimizer, rows[0], values[0].grad.numpy(), 1)
    found = step.compute(given_rows, batch.tensors() if tensors else batch.data, 0)
    assert float(found) == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(rows[0], wanted, rtol=2e-3, atol=2e-5)
    other = draw("equal", seed=1)
    alone = float(step.compute(given_rows, other.tensors() if tensors else other.data, 1))
    assert alone < 2 < loss.item(), "no auxiliary loss of the batch before"
    step.close()


@pytest.mark.parametrize("what, said", [(torch.zeros(2), r"torch.float32 \[2\]"), (0.5, "float"),
                                        (torch.zeros((), dtype=torch.int64), r"torch.int64 \[\]")])  # fmt: skip
def test_an_auxiliary_loss_of_another_kind_is_refused(what, said, monkeypatch):
    batch, real = draw("equal"), SmallNetwork.forward
    monkeypatch.setattr(
        SmallNetwork, "forward", lambda self, inputs: setattr(self, "auxiliary_loss", what) or real(self, inputs)
    )
    step = batch.step(config := configure())
    with pytest.raises(InputError, match=rf"^model.network: forward sets auxiliary_loss to {said}; a float of no dim"):
        step.compute(batch.rows(config), batch.data, 0)
    step.close()


def test_a_diverged_batch_has_a_loss_that_is_not_finite():
    config, batch = configure(), draw("equal")
    for bad in (np.nan, np.inf):
        rows, step = batch.rows(config), batch.step(config)
        rows[0][0] = bad
        assert not np.isfinite(step.compute(rows, batch.data, 0))
        step.close()


def test_wrong_arguments():
    config, batch = configure(), draw("equal")
    step = batch.step(config)
    (rows,) = batch.rows(config)
    for wrong in ([], [rows, rows], [rows[:, 1:]], [rows.astype(np.float64)], [np.asfortranarray(rows)]):
        with pytest.raises(ValueError, match="rows"):
            step.compute(wrong, batch.data, 0)
    step.close()
    for fields in ((0, 2), (0, 0)):
        with pytest.raises(ValueError, match="fields"):
            CtrStep(config, [TableColumns("embeddings_5", 5, fields)], batch.network(), CPU, 1)


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
def test_batch_norm_of_one_example(tensors):
    """A file may end in such a batch."""
    config, batch, large = configure(), draw("equal", examples=1), draw("equal")
    step, theirs = batch.step(config, batch_norm=True), NaiveStep(config, batch, batch_norm=True)
    theirs.network.eval()
    (rows,) = batch.rows(config)
    expected_loss, (expected,) = theirs.compute([rows.copy()], batch, 0)
    before = step.dense_state()
    given_rows, data = ([torch.from_numpy(rows)], batch.tensors()) if tensors else ([rows], batch.data)
    assert float(step.compute(given_rows, data, 0)) == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(rows, expected, rtol=1e-3, atol=1e-5)
    assert torch.equal(step.dense_state()["network.norm.running_var"], before["network.norm.running_var"])
    step.compute(large.rows(config), large.data, 1)
    assert not torch.equal(step.dense_state()["network.norm.running_var"], before["network.norm.running_var"])
    step.close()


def test_a_sequence_that_is_too_long_is_no_write_beyond_the_end():
    config, batch = configure(), draw("history")
    step = batch.step(config)
    (table,) = batch.data.tables
    offsets = table.sequences[0].offsets + 9
    offsets[0] = 0
    longer = dataclasses.replace(table, sequences=(Jagged(np.zeros(offsets[-1], np.int64), offsets),))
    batch.data = dataclasses.replace(batch.data, tables=(longer,))
    with pytest.raises(ValueError, match="values of seen: more than 5"):
        step.compute(batch.rows(config), batch.data, 0)
    step.close()


def test_close_leaves_no_thread():
    before = threading.active_count()
    config, batch = configure(), draw("mixed", examples=600)
    step = batch.step(config, threads=4)
    step.compute(batch.rows(config), batch.data, 0)
    step.close()
    assert threading.active_count() == before


@pytest.mark.device
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_device_repeats_its_bits_and_follows_the_kernels(layout):
    config, batch = configure(), draw(layout, **LARGE)
    on_cpu = batch.step(config)
    loss = on_cpu.compute(batch.rows(config), batch.data, 0)
    on_cpu.close()
    moved = map_arrays(batch.data, lambda array: torch.from_numpy(array).to(DEVICE))
    results = []
    for _ in range(2):
        step = CtrStep(config, batch.layout, batch.network(), DEVICE, 1)
        rows = [torch.from_numpy(each).to(DEVICE) for each in batch.rows(config)]
        assert step.compute(rows, moved, 0).item() == pytest.approx(loss, rel=1e-4)
        results.append([each.cpu() for each in (*rows, *step.dense_state().values())])
        step.close()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def with_partial_sums(batch):
    """The same batch, whose bags have some sums of their rows in the place of these; and the rows of each sum."""
    values, sums = list(batch.values), []

    def pooled(table, bag):
        offsets, picks, local, ends = bag.offsets, bag.values, [], [0]
        for first, last in zip(offsets[:-1], offsets[1:], strict=True):
            for part in (picks[first:last:2], picks[first + 1 : last : 2]):
                if part.size:
                    local.append(len(values[table]))
                    sums.append((table, local[-1], part))
                    values[table] = np.concatenate((values[table], batch.values[table][part].sum(0, keepdims=True)))
            ends.append(len(local))
        return Jagged(np.array(local), np.array(ends), np.diff(offsets))

    tables = tuple(
        dataclasses.replace(indices, bags=tuple(pooled(number, bag) for bag in indices.bags))
        for number, indices in enumerate(batch.data.tables)
    )
    return dataclasses.replace(batch, values=values, data=dataclasses.replace(batch.data, tables=tables)), sums


@pytest.mark.parametrize("tensors", [False, True], ids=["arrays", "tensors"])
@pytest.mark.parametrize("layout", ["equal", "mixed", "weights"])
def test_bags_of_partial_sums_are_those_of_their_rows(layout, tensors):
    config = configure(training__optimizer__kind="sgd", training__optimizer__learning_rate=1.0)
    whole = draw(layout, examples=40, keys=30)
    pooled, sums = with_partial_sums(whole)
    losses, gradients = [], []
    for batch in (whole, pooled):
        step, rows = batch.step(config), batch.rows(config)
        given_rows = [torch.from_numpy(each) for each in rows] if tensors else rows
        losses.append(float(step.compute(given_rows, batch.tensors() if tensors else batch.data, 0)))
        gradients.append([before - after for before, after in zip(batch.values, rows, strict=True)])
        step.close()
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for table, row, of_rows in sums:
        np.add.at(gradients[1][table], of_rows, gradients[1][table][row])
    for expected, found in zip(*gradients, strict=True):
        np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-6)
