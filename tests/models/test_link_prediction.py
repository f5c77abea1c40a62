"""The step as a whole: the same bits whatever the threads, tensors as arrays, epochs, state, errors."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController, threadpool_info

from marius_oac.errors import ConfigError
from marius_oac.kernels.cpu import lanes
from marius_oac.models.compute.dense_moments import RELATIONS
from marius_oac.models.link_prediction.step import LinkPredictionStep, entity_width, relation_width
from marius_oac.types import map_arrays
from tests.device import DEVICE
from tests.models.batches import CPU, DECODERS, OPTIMIZERS, Shape, configure, draw

LARGE = Shape(entities=700, relations=90, edges=1201, chunks=3, negatives=300, dimension=20)


def misaligned(array):
    """A copy in C order that begins where no vector may."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64 + 4
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    assert copy.ctypes.data % 64 == 4
    return copy


def trained(config, batches, threads, place=np.copy):
    """Losses and digest of everything after the batches, each on the rows the last one left."""
    rows, digest, losses = place(batches[0].rows(config)), hashlib.sha256(), []
    step = batches[0].step(config, threads)
    try:
        for timestamp, batch in enumerate(batches):
            losses.append(step.compute([rows], map_arrays(batch.data, place), timestamp))
        digest.update(rows.tobytes())
        for tensor in step.dense_state().values():
            digest.update(tensor.numpy().tobytes())
    finally:
        step.close()
    return losses, digest.hexdigest()


@pytest.mark.parametrize("everything", [False, True], ids=["sampled", "all"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_same_bits_for_any_threads_and_places(decoder, everything):
    config = configure(
        decoder, everything=everything, shape=LARGE,
        training__regularization__kind="n3", training__regularization__weight=0.1,
    )  # fmt: skip
    batches = [draw(config, LARGE, seed) for seed in range(2)]
    first = trained(config, batches, 1)
    assert np.isfinite(first[0]).all() and first[0][0] != first[0][1]
    for threads, place in ((1, np.copy), (1, misaligned), (2, np.copy), (4, misaligned)):
        assert trained(config, batches, threads, place) == first


def test_products_run_on_one_thread_each(monkeypatch):
    seen = []

    def look(*arguments):
        seen.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return run(*arguments)

    run = lanes.run
    monkeypatch.setattr(lanes, "run", look)
    config = configure("dot")
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        trained(config, [draw(config, Shape())], 1)
    assert seen and set(seen) == {1}


def test_a_limit_of_another_thread_is_no_silent_loss():
    config, entered, leave = configure("dot"), threading.Event(), threading.Event()

    def hold():
        with ThreadpoolController().limit(limits=2, user_api="blas"):
            entered.set()
            leave.wait()

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        entered.wait()
        try:
            with pytest.raises(RuntimeError, match="another thread has set how many threads BLAS uses"):
                trained(config, [draw(config, Shape())], 1)
        finally:
            leave.set()
        held.result()
    trained(config, [draw(config, Shape())], 1)


def test_a_small_difference_is_seen():
    config = configure("distmult", shape=LARGE)
    batch, other = draw(config, LARGE), draw(config, LARGE)
    other.values[0] *= np.float32(1.0001)
    assert trained(config, [batch], 1)[1] != trained(config, [other], 1)[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_tensors_as_arrays(decoder, optimizer):
    """Rows in tensors take autograd and torch's optimizer, as on CUDA."""
    shape = Shape()
    config = configure(
        decoder, shape=shape, training__optimizer__kind=optimizer, training__optimizer__learning_rate=0.05,
        training__optimizer__relation_learning_rate=0.02, training__optimizer__decay=0.5,
        training__optimizer__epsilon=1e-4, training__regularization__kind="l2", training__regularization__weight=0.1,
    )  # fmt: skip
    batches = [draw(config, shape, seed) for seed in range(4)]
    rows = batches[0].rows(config)
    tensor = torch.from_numpy(rows.copy())
    ours, theirs = batches[0].step(config), batches[0].step(config)
    for timestamp, batch in enumerate(batches):
        batch.data = replace(batch.data, epoch=timestamp // 2)
        loss = ours.compute([rows], batch.data, timestamp)
        assert loss == pytest.approx(theirs.compute([tensor], batch.tensors(), timestamp).item(), rel=1e-4)
    np.testing.assert_allclose(rows, tensor.numpy(), rtol=2e-3, atol=2e-5)
    for name, mine in ours.dense_state().items():
        np.testing.assert_allclose(mine, theirs.dense_state()[name], rtol=2e-3, atol=2e-5)
    for step in (ours, theirs):
        step.close()


@pytest.mark.device
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_device_repeats_its_bits_and_follows_the_kernels(decoder):
    config = configure(decoder, shape=LARGE)
    batch = draw(config, LARGE)
    rows = batch.rows(config)
    on_cpu = batch.step(config)
    loss = on_cpu.compute([rows], batch.data, 0)
    on_cpu.close()
    moved = map_arrays(batch.data, lambda array: torch.from_numpy(array).to(DEVICE))
    results = []
    for _ in range(2):
        relations = 0 if batch.relations is None else len(batch.relations)
        step = LinkPredictionStep(config, relations, DEVICE, 1, batch.relations)
        tensor = torch.from_numpy(batch.rows(config)).to(DEVICE)
        assert step.compute([tensor], moved, 0).item() == pytest.approx(loss, rel=1e-4)
        results.append((tensor.cpu(), *(each.cpu() for each in step.dense_state().values())))
        step.close()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_epoch_scales_the_rate():
    shape = Shape()
    config = configure("dot", shape=shape, training__optimizer__kind="sgd", training__optimizer__decay=0.5)
    batch = draw(config, shape)
    changes = []
    for epoch in (0, 2):
        rows, step = batch.rows(config), batch.step(config)
        step.compute([rows], replace(batch.data, epoch=epoch), 0)
        changes.append(rows - batch.values)
        step.close()
    np.testing.assert_allclose(changes[1], changes[0] / 4, rtol=1e-4, atol=1e-7)


def test_dense_state_carries_on_to_the_same_bits():
    shape = Shape()
    config = configure("complex", shape=shape, training__optimizer__kind="adam")
    batch = draw(config, shape)
    step, other = batch.step(config), batch.step(config)
    rows = batch.rows(config)
    step.compute([rows], batch.data, 0)
    saved = step.dense_state()
    kept = saved[RELATIONS].clone()
    other.load_dense_state(saved)
    again = rows.copy()
    losses = [each.compute([values], batch.data, 1) for each, values in ((step, rows), (other, again))]
    assert losses[0] == losses[1] and (rows == again).all()
    assert torch.equal(step.dense_state()[RELATIONS], other.dense_state()[RELATIONS])
    assert torch.equal(saved[RELATIONS], kept), "what was saved must not change with the step"
    for each in (step, other):
        each.close()


def test_state_of_another_model_is_refused():
    shape = Shape()
    batch = draw(configure("complex", shape=shape), shape)
    step = batch.step(configure("complex", shape=shape))
    for state in ({}, {RELATIONS: torch.zeros(2, 2)}):
        with pytest.raises(ValueError, match="relations"):
            step.load_dense_state(state)
    step.close()


@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_relations_start_with_the_initial_accumulator(optimizer):
    shape = Shape()
    config = configure(
        "rotate", shape=shape, training__optimizer__kind=optimizer, training__optimizer__initial_accumulator=0.25
    )
    batch = draw(config, shape)
    step = batch.step(config)
    table, width = step.dense_state()[RELATIONS], relation_width(config)
    assert width == shape.dimension // 2 and (table[:, :width].numpy() == batch.relations).all()
    assert table.shape[1] > width and (table[:, width:] == 0.25).all()
    step.close()


@pytest.mark.parametrize("loss", ["softmax", "logistic", "margin", "self_adversarial"])
def test_a_diverged_batch_has_a_loss_that_is_not_finite(loss):
    shape = Shape(negatives=40)
    config = configure("distmult", loss, shape=shape)
    batch = draw(config, shape)
    for bad in (np.nan, np.inf):
        rows = batch.rows(config)
        rows[:, 0] = bad
        step = batch.step(config)
        assert not np.isfinite(step.compute([rows], batch.data, 0))
        step.close()


def test_decoder_without_relations_in_the_graph():
    with pytest.raises(ConfigError, match="model.decoder: complex needs relations"):
        LinkPredictionStep(configure("complex"), 0, CPU, 1)


def test_wrong_arguments():
    config = configure("complex")
    for relations in (None, np.zeros((3, 5), np.float32), np.zeros((3, 6))):
        with pytest.raises(ValueError, match="relations must be"):
            LinkPredictionStep(config, 3, CPU, 1, relations)
    batch = draw(config, Shape())
    step = batch.step(config)
    width = sum(entity_width(config))
    for rows in (np.zeros((12, 6), np.float32), np.zeros((12, width)), np.zeros((width, 12), np.float32).T):
        with pytest.raises(ValueError, match="rows"):
            step.compute([rows], batch.data, 0)
    step.close()


def test_close_leaves_no_thread():
    before = threading.active_count()
    shape = Shape()
    config = configure("dot", shape=shape)
    batch = draw(config, shape)
    step = batch.step(config, threads=4)
    step.compute([batch.rows(config)], batch.data, 0)
    step.close()
    assert threading.active_count() == before
