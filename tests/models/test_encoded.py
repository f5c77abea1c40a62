"""The step of encoded nodes against autograd in float64 over the whole of it: encoder, score function, loss."""

import threading
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from marius_oac.batches import BlockData, EdgeBatch, EncodedBatch, NodeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.data.neighbors.neighborhoods import feature_means
from marius_oac.models.compute.dense_moments import RELATIONS
from marius_oac.models.compute.update import Update
from marius_oac.models.gnn.encoder import make_encoder
from marius_oac.models.gnn.step import EncodedStep, blocks_of
from marius_oac.models.heads.classes import ClassesHead, class_metrics
from marius_oac.models.link_prediction.autograd import AutogradGradient
from marius_oac.models.link_prediction.step import LinkPredictionStep, relation_width
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.types import map_arrays
from tests.models.naive_gnn import draw_blocks

CPU, RATE, EMBEDDED, FEATURES, WIDTH, NODES = torch.device("cpu"), 0.25, 5, 3, 6, 9
LAYERS = {
    "sage": "[{kind: sage}]",
    "gcn, two layers": "[{kind: sage, aggregator: gcn, dimension: 4}, {kind: sage}]",
    "gat": "[{kind: gat, heads: 2, merge: mean}]",
    "gat over sage": "[{kind: sage, dimension: 4}, {kind: gat, heads: 3, dimension: 2, merge: concat}]",
}
INPUTS = {"rows": (EMBEDDED, 0), "rows and features": (EMBEDDED, FEATURES), "features": (0, FEATURES)}


def configure(layers: str, inputs: tuple[int, int], *overrides: str) -> Config:
    tree = {
        "data": {"path": "none"},
        "model": {"decoder": "distmult", "dimension": WIDTH},
        "encoder": {"layers": [], "embeddings": inputs[0], "features": "some" if inputs[1] else None},
        "training": {"optimizer": {"kind": "sgd", "learning_rate": RATE}, "negatives": {"count": 4}},
    }
    optimizer = ["encoder.optimizer.kind=sgd", f"encoder.optimizer.learning_rate={RATE}"]
    return Config.build(tree, [f"encoder.layers={layers}", *optimizer, *overrides])


def draw(config: Config, seed: int = 0):
    """Rows and data of a batch whose nodes are all used."""
    encoder, generator = config.encoder.resolved(WIDTH), np.random.default_rng(seed)
    blocks = draw_blocks(seed, len(encoder.layers), NODES, 4, 5)
    count = blocks[0][2]
    inputs = generator.permutation(count)
    features = generator.normal(size=(count, FEATURES)).astype(np.float32) if encoder.features else None
    head = EdgeBatch(
        heads=np.arange(NODES),
        tails=generator.permutation(NODES),
        relations=np.arange(NODES) % 2,
        relation_rows=np.array([0, 2]),
        negatives=generator.integers(NODES, size=(2, 1, 4)),
        chunk_offsets=(0, NODES),
    )
    values = generator.normal(size=(count, encoder.embeddings)).astype(np.float32)
    given = tuple(BlockData(np.array(offsets), np.array(sources, dtype=np.int64)) for offsets, sources, _ in blocks)
    data = EncodedBatch(head=head, blocks=given, inputs=inputs, features=features)
    return [values] * (encoder.embeddings > 0), data


def make(config: Config, threads: int = 1, head=None) -> EncodedStep:
    encoder, training = config.encoder.resolved(WIDTH), config.training
    relations = np.random.default_rng(5).normal(size=(3, relation_width(config))).astype(np.float32)
    update = Update.here(training.optimizer)
    head = head or LinkPredictionStep(config, 3, CPU, threads, relations, update.below())
    layers = make_encoder(encoder, encoder.embeddings + FEATURES * bool(encoder.features), 1)
    return EncodedStep(layers, head, encoder.embeddings, encoder.optimizer, update, config.seed, CPU)


def expected(config: Config, step: EncodedStep, rows, data):
    """Loss, rows, encoder's parameters and relations after a step of plain gradient descent, in float64."""
    encoder = deepcopy(step.encoder).double()
    tensors = map_arrays(data, torch.tensor)
    values = [torch.from_numpy(each).double().requires_grad_() for each in rows]
    relations = step.dense_state()[RELATIONS].double().requires_grad_()
    inputs = [each[tensors.inputs] for each in values]
    inputs += [] if tensors.features is None else [tensors.features.double()]
    encoded = encoder(torch.cat(inputs, 1), blocks_of(tensors))
    loss = AutogradGradient(config).loss(encoded, relations[tensors.head.relation_rows], tensors.head)
    leaves = [*values, relations, *encoder.parameters()]
    after = [leaf - RATE * by for leaf, by in zip(leaves, torch.autograd.grad(loss, leaves), strict=True)]
    return loss.item(), after[: len(rows)], after[len(rows)], after[len(rows) + 1 :]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("layers", LAYERS)
def test_a_step_is_gradient_descent_on_the_whole_model(layers, inputs):
    config = configure(LAYERS[layers], INPUTS[inputs])
    rows, data = draw(config)
    step = make(config)
    loss, values, relations, parameters = expected(config, step, rows, data)
    assert step.compute(rows, data, 0) == pytest.approx(loss, rel=1e-5)
    for found, wanted in zip(rows, values, strict=True):
        np.testing.assert_allclose(found, wanted.detach().numpy(), atol=2e-6)
    np.testing.assert_allclose(step.dense_state()[RELATIONS], relations.detach().numpy(), atol=2e-6)
    for found, wanted in zip(step.encoder.parameters(), parameters, strict=True):
        np.testing.assert_allclose(found.detach(), wanted.detach().numpy(), atol=2e-6)
    step.close()


@pytest.mark.parametrize("layers", ["sage", "gcn, two layers"])
def test_a_batch_with_the_means_of_its_features_takes_the_same_step(layers):
    config = configure(LAYERS[layers], INPUTS["features"])
    _, data = draw(config)
    features, first = data.features, data.blocks[0]
    means = feature_means(features, np.arange(len(features)), first.offsets, first.sources, with_own="gcn" in layers)
    own = None if "gcn" in layers else features[: len(means)]
    given = replace(data, inputs=None, blocks=data.blocks[1:], means=means, features=own)
    first, second, third = make(config), make(config), make(config)
    loss = first.compute([], data, 0)
    assert second.compute([], given, 0) == loss
    tensors = map_arrays(given, torch.tensor)
    assert float(third.compute([], tensors, 0)) == pytest.approx(loss, rel=1e-5)
    for name, tensor in first.dense_state().items():
        assert torch.equal(second.dense_state()[name], tensor)
        torch.testing.assert_close(third.dense_state()[name], tensor, rtol=1e-5, atol=1e-5)
    for step in (third, second, first):
        step.close()


def test_a_step_works_on_its_lanes_and_in_the_same_memory(monkeypatch):
    real, runs = ThreadPool.run, []
    monkeypatch.setattr(ThreadPool, "run", lambda pool, tasks: runs.append(len(tasks)) or real(pool, tasks))
    config = configure(LAYERS["gcn, two layers"], INPUTS["rows"])
    step, (rows, data) = make(config), draw(config)
    step.head.compute([np.zeros((NODES, WIDTH), np.float32)], data.head, 0)
    of_head, held = len(runs), []
    for timestamp in range(3):
        runs.clear()
        step.compute(rows, data, timestamp)
        # Sums and products of two layers and the rectifier between them, forward and backward; the rows' update.
        assert len(runs) == 2 * (2 + 2 + 1) + 1 + of_head
        held.append(len(step._products._scratch._buffers))
    assert 0 < held[0] == held[1] == held[2]
    step.close()


@pytest.mark.parametrize("layers", LAYERS)
def test_tensors_take_the_same_step(layers):
    config = configure(LAYERS[layers], INPUTS["rows and features"], "training.optimizer.kind=adagrad")
    rows, data = draw(config)
    rows = [np.pad(rows[0], ((0, 0), (0, EMBEDDED)))]
    tensors = [torch.from_numpy(rows[0].copy())]
    first, second = make(config), make(config)
    loss = first.compute(rows, data, 3)
    found = second.compute(tensors, map_arrays(data, torch.tensor), 3)
    assert float(found) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(tensors[0], rows[0], atol=1e-5)
    for name, tensor in first.dense_state().items():
        np.testing.assert_allclose(second.dense_state()[name], tensor, atol=1e-5)
    second.close()
    first.close()


@pytest.mark.parametrize("layers", LAYERS)
def test_the_bits_are_the_same_for_any_number_of_threads(layers):
    found = []
    for threads in (1, 2, 3):
        config = configure(LAYERS[layers], INPUTS["rows and features"], "encoder.dropout=0.3")
        step = make(config, threads)
        rows, data = draw(config)
        losses = [step.compute(rows, data, timestamp) for timestamp in range(3)]
        found.append((losses, rows[0].tobytes(), [each.numpy().tobytes() for each in step.dense_state().values()]))
        step.close()
    assert found[0] == found[1] == found[2]


def test_masks_hang_on_seed_and_timestamp_and_nothing_else():
    def loss(timestamp: int, seed: int = 0) -> float:
        config = configure(LAYERS["sage"], INPUTS["rows"], "encoder.dropout=0.5", f"seed={seed}")
        step = make(config)
        before = torch.random.get_rng_state()
        found = step.compute(*draw(config), timestamp)
        assert torch.equal(torch.random.get_rng_state(), before)
        step.close()
        return found

    assert loss(1) == loss(1)
    assert len({loss(1), loss(2), loss(1, seed=7)}) == 3


def test_learning_rates_decay_by_epoch():
    decays = ["training.optimizer.decay=0.5", "encoder.optimizer.decay=0.25"]
    config, plain = configure(LAYERS["sage"], INPUTS["rows"], *decays), configure(LAYERS["sage"], INPUTS["rows"])
    moved = []
    for each, epoch in ((plain, 0), (config, 2)):
        rows, data = draw(each)
        before, step = rows[0].copy(), make(each)
        weights = step.encoder.layers[0].own.detach().clone()
        step.compute(rows, replace(data, epoch=epoch), 0)
        moved.append((rows[0] - before, (step.encoder.layers[0].own - weights).detach().numpy()))
        step.close()
    np.testing.assert_allclose(moved[1][0], 0.25 * moved[0][0], atol=1e-6)
    np.testing.assert_allclose(moved[1][1], 0.0625 * moved[0][1], atol=1e-6)


def test_what_a_checkpoint_keeps_is_taken_back_and_another_model_refused():
    config = configure(LAYERS["gat"], INPUTS["rows"], "encoder.optimizer.kind=adam")
    first, second = make(config), make(config)
    batches = [draw(config, seed) for seed in (1, 2)]
    first.compute(*batches[0], 0)
    second.load_dense_state(first.dense_state())
    again = [each.copy() for each in batches[1][0]]
    assert first.compute(*batches[1], 1) == second.compute(again, batches[1][1], 1)
    assert again[0].tobytes() == batches[1][0][0].tobytes()
    other = make(configure(LAYERS["sage"], INPUTS["rows"]))
    with pytest.raises(ValueError, match="dense state"):
        other.load_dense_state(first.dense_state())
    for step in (other, second, first):
        step.close()


def test_classes_are_told_by_cross_entropy():
    scores = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    labels = np.array([0, 1, 2, 3, 3, 1, 0])
    head, handed = ClassesHead(CPU, 2), scores.copy()
    loss = head.compute([handed], NodeBatch(labels=labels), 0)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert loss == pytest.approx(-np.log(shares[np.arange(7), labels]).mean(), rel=1e-6)
    np.testing.assert_allclose(handed, (shares - np.eye(4)[labels]) / 7, atol=1e-7)
    tensor = torch.from_numpy(scores.copy())
    assert float(head.compute([tensor], NodeBatch(labels=torch.from_numpy(labels)), 0)) == pytest.approx(loss)
    np.testing.assert_allclose(tensor, handed, atol=1e-7)
    head.close()


@pytest.mark.parametrize("device, thread_pool", [("cpu", 3), ("cuda", 1)])
def test_heads_have_lanes_on_a_cpu_alone(device, thread_pool):
    config, before = configure(LAYERS["sage"], INPUTS["rows"], "model.decoder=dot"), threading.active_count()
    mine = threading.get_ident()
    for head in (ClassesHead(torch.device(device), 3), LinkPredictionStep(config, 0, torch.device(device), 3)):
        begun, seen = threading.Event(), []

        def task(begun=begun, seen=seen):
            if threading.get_ident() == mine:  # all lanes have been started
                seen.append(threading.active_count() - before)
                begun.set()
            assert begun.wait(30)

        try:
            head.thread_pool.run([task] * 5)
        finally:
            head.close()
        assert set(seen) == {thread_pool - 1}


def test_metrics_of_classes():
    scores = np.array([[2, 1, 0], [0, 1, 0], [1, 1, 0], [0, 3, 1]], np.float32)
    found = class_metrics(scores, np.array([0, 1, 1, 0]))
    # Of equal scores the first counts: predicted 0, 1, 0, 1. F1 of both classes 1/2; the third has none.
    assert found["accuracy"] == 0.5 and found["macro_f1"] == pytest.approx(0.5)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert found["log_loss"] == pytest.approx(-np.log(shares[np.arange(4), [0, 1, 1, 0]]).mean())
