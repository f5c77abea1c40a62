"""The promise on real models: whatever the threads do, `oac` leaves the bits of `sync`.

Delays are injected in every stage, and two batches of the graph share half their rows, so a validation that fails to
replace one row shows.
"""

from functools import cache

import numpy as np
import pytest

from marius_oac.models.compute import multiply
from tests.graphs import jitter, real_graph, run_batches, tiny_config, tiny_graph, workers
from tests.models.asked import are_torchs, counted
from tests.run_folders import slow

BATCHES = 30
MODELS = {
    "distmult": ["model.decoder=distmult"],
    "complex": ["model.decoder=complex"],
    "transe-l1": ["model.decoder=transe", "model.norm=1"],
    "transe-l2": ["model.decoder=transe", "model.norm=2"],
    "rotate": ["model.decoder=rotate"],
    "dot": ["model.decoder=dot"],
}
OPTIMIZERS = {
    "sgd": ["training.optimizer.kind=sgd"],
    "adagrad": ["training.optimizer.kind=adagrad"],
    "rowwise_adagrad": ["training.optimizer.kind=rowwise_adagrad"],
    "adam": ["training.optimizer.kind=adam", "training.optimizer.learning_rate=0.01"],
}
THREADS = [(1, 1), (4, 2), (16, 4), (4, 3)]
"""Batches in flight and workers per stage."""

VARIANTS = {
    "bfloat16": ["storage.dtype=bfloat16"],
    "logistic": ["training.loss.kind=logistic"],
    "margin": ["training.loss.kind=margin", "model.decoder=transe"],
    "self-adversarial": ["training.loss.kind=self_adversarial", "model.decoder=rotate"],
    "all nodes": ["training.negatives.all=true"],
    "reciprocal": ["model.reciprocal=true"],
    "reciprocal, all nodes, N3": ["model.reciprocal=true", "training.negatives.all=true",
                                  "training.regularization.kind=n3", "training.regularization.weight=0.05"],
    "L2": ["training.regularization.kind=l2", "training.regularization.weight=0.05"],
    "by degree": ["training.negatives.degree_fraction=0.5"],
    "decay": ["training.optimizer.decay=0.5"],
    "relations' own rate": ["training.optimizer.relation_learning_rate=0.01"],
}  # fmt: skip


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return tiny_graph(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def synchronous(graph):
    """`synchronous(overrides)`: the outcome of `sync`, computed once."""

    @cache
    def run(overrides):
        return run_batches(tiny_config(graph, *overrides, "pipeline.mode=sync"), graph, BATCHES)

    return run


def in_mode(mode, graph, overrides, in_flight, count, *more):
    config = tiny_config(
        graph, *overrides, f"pipeline.mode={mode}", f"pipeline.in_flight={in_flight}", *workers(count), *more
    )
    return run_batches(config, graph, BATCHES, jitter(100 * in_flight + count))


def assert_same_bits(graph, overrides, expected):
    for in_flight, count in THREADS:
        found = in_mode("oac", graph, overrides, in_flight, count)
        assert found.bits == expected.bits, f"{in_flight} batches in flight, {count} workers per stage"
        assert np.array_equal(found.order, np.arange(BATCHES))
        assert [result.loss for result in found.results] == [result.loss for result in expected.results]
        assert found.lost == 0 and (found.replaced > 0) == (in_flight > 1)


def pairs():
    """Every model, and every optimizer with two of them; the other pairs are slow tests."""
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            quick = optimizer == "adagrad" or model in ("complex", "transe-l1")
            yield pytest.param(model, optimizer) if quick else slow(model, optimizer)


@pytest.mark.parametrize("model, optimizer", list(pairs()))
def test_oac_has_the_bits_of_sync_and_async_has_not(graph, synchronous, model, optimizer):
    overrides = (*MODELS[model], *OPTIMIZERS[optimizer])
    expected = synchronous(overrides)
    assert_same_bits(graph, overrides, expected)
    for mode in ("async", "async-delta"):
        stale = in_mode(mode, graph, overrides, 8, 2)
        assert stale.bits[0] != expected.bits[0]
        assert (stale.lost > 0) == (mode == "async") and stale.replaced == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_oac_has_the_bits_of_sync_in_every_variant(graph, synchronous, variant):
    overrides = tuple(VARIANTS[variant])
    expected = synchronous(overrides)
    assert expected.bits != synchronous(())
    assert_same_bits(graph, overrides, expected)


def test_a_graph_without_relations(tmp_path):
    graph = tiny_graph(tmp_path, relations=0)
    overrides = ("model.decoder=dot",)
    assert_same_bits(graph, overrides, run_batches(tiny_config(graph, *overrides), graph, BATCHES))


@pytest.mark.parametrize("least", [0, multiply._LEAST_WORK])
def test_oac_has_the_bits_of_sync_with_the_products_of_torch(graph, synchronous, monkeypatch, least):
    """Also with oneDNN for products as small as these."""
    asked = counted(monkeypatch, least)
    overrides = ("compute.products=torch",)
    expected = run_batches(tiny_config(graph, *overrides, "pipeline.mode=sync"), graph, BATCHES)
    assert are_torchs(asked, least)
    assert synchronous(("compute.products=numpy",)).bits == synchronous(()).bits
    for in_flight, threads in ((4, 1), (4, 3), (1, 2)):
        found = in_mode("oac", graph, overrides, in_flight, 2, f"threads={threads}")
        assert found.bits == expected.bits, f"{in_flight} batches in flight, {threads} threads"


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_compute_change_no_bits(graph, synchronous, threads):
    found = in_mode("oac", graph, (f"threads={threads}",), 4, 2)
    assert found.bits == synchronous(()).bits


@pytest.mark.parametrize("in_flight", [4, 16])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_arrival_has_the_bits_of_the_replay_of_its_order(graph, synchronous, tmp_path, optimizer, in_flight):
    overrides = tuple(OPTIMIZERS[optimizer])
    found = in_mode("oac", graph, overrides, in_flight, 4, "pipeline.order=arrival")
    assert sorted(found.order) == list(range(BATCHES)) and not np.array_equal(found.order, np.arange(BATCHES))
    assert found.bits != synchronous(overrides).bits
    recorded = tmp_path / "order.npy"
    np.save(recorded, found.order)
    for mode in ("sync", "oac"):
        replay = in_mode(mode, graph, overrides, in_flight, 3, f"pipeline.order={recorded}")
        assert replay.bits == found.bits, mode


def test_another_seed_has_other_bits(graph, synchronous):
    assert in_mode("oac", graph, ("seed=1",), 4, 1).bits[0] != synchronous(()).bits[0]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["complex", "transe-l1"])
def test_fb15k_237(tmp_path_factory, model):
    """Fifty batches of a real graph, at the sizes of a real run; skips aloud without the data."""
    graph = real_graph("fb15k-237", tmp_path_factory.mktemp("fb15k-237"))
    overrides = (*MODELS[model], "model.dimension=100", "training.batch_size=1000", "training.negatives.count=200",
                 "training.negatives.chunks=1", "threads=0")  # fmt: skip

    def run(*more, probe=None):
        return run_batches(tiny_config(graph, *overrides, *more), graph, 50, probe)

    expected = run("pipeline.mode=sync")
    for in_flight, count in ((1, 1), (4, 2), (16, 4)):
        found = run(f"pipeline.in_flight={in_flight}", *workers(count), probe=jitter(in_flight))
        assert found.bits == expected.bits
    stale = run("pipeline.mode=async", "pipeline.in_flight=16", *workers(2), probe=jitter(1))
    assert stale.bits[0] != expected.bits[0] and stale.lost > 0
