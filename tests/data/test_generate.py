"""Generated graphs: seeded, skewed, with structure, and the same whatever the file they go to."""

import dataclasses

import numpy as np
import pytest

from benchmarks.generate import graph as generate
from benchmarks.generate.graph import GeneratedGraph, write_graph
from marius_oac.errors import InputError

SPEC = GeneratedGraph(num_nodes=1000, num_edges=20_000, num_relations=8, seed=4)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generate, "CHUNK_EDGES", 4096)


def test_sizes_and_seeds():
    edges = SPEC.edges()
    assert edges.shape == (20_000, 3) and edges.dtype == np.int64
    assert [len(chunk) for chunk in SPEC.chunks()] == [4096] * 4 + [20_000 - 4 * 4096]
    assert edges[:, [0, 2]].min() >= 0 and edges[:, [0, 2]].max() < 1000 and set(edges[:, 1]) == set(range(8))
    assert np.array_equal(edges, SPEC.edges())
    assert np.array_equal(edges[:5000], dataclasses.replace(SPEC, num_edges=5000).edges())
    assert not np.array_equal(edges, dataclasses.replace(SPEC, seed=5).edges())
    assert dataclasses.replace(SPEC, num_relations=0).edges().shape == (20_000, 2)


def test_degrees_follow_the_law():
    spec = GeneratedGraph(num_nodes=10_000, num_edges=200_000, exponent=1.0, num_clusters=1, seed=1)
    degrees = np.sort(np.bincount(spec.edges()[:, 0], minlength=10_000))[::-1]
    ranks = np.array([1, 10, 100])
    expected = 200_000 * np.log((ranks + 1) / ranks) / np.log(10_001)  # the law's mass of [k, k + 1)
    assert degrees[ranks - 1] == pytest.approx(expected, rel=0.2)


def clusters(spec):
    """The cluster of each node id, by undoing the scattering with the law's own numbers."""
    law = generate._Law(spec)
    ranks = np.arange(spec.num_nodes)
    cluster = np.empty(spec.num_nodes, np.int64)
    cluster[law._scatter(ranks)] = ranks % spec.num_clusters
    return cluster


@pytest.mark.parametrize("relations", [0, 8])
def test_the_planted_structure_is_there(relations):
    spec = dataclasses.replace(SPEC, num_relations=relations, num_nodes=1024, noise=0.25)
    edges, cluster = spec.edges(), clusters(spec)
    heads, tails = cluster[edges[:, 0]], cluster[edges[:, -1]]
    relation = edges[:, 1] if relations else np.zeros(len(edges), np.int64)
    key = relation * spec.num_clusters + heads
    table = np.zeros((max(1, relations) * spec.num_clusters, spec.num_clusters))
    np.add.at(table, (key, tails), 1)
    share = table.max(axis=1).sum() / len(edges)  # how often the best guess of the tail's cluster is right
    assert share == pytest.approx(0.75 + 0.25 / 32, abs=0.03)
    best = table.argmax(axis=1).reshape(-1, 32)
    if relations:
        for number, target in enumerate(best):
            applied_twice = target[target]
            assert np.array_equal(applied_twice, np.arange(32)) or number % 2 == 1  # even relations are symmetric
    else:
        assert np.array_equal(best[0], np.arange(32))


@pytest.mark.parametrize("nodes", [1, 2, 7, 1 << 31, (1 << 40) + 1])
def test_scattering_is_a_bijection_into_the_range(nodes):
    law = generate._Law(GeneratedGraph(num_nodes=nodes, num_edges=1, num_clusters=1))
    ids = law._scatter(np.unique(np.linspace(0, nodes - 1, 1000).astype(np.int64)))
    assert len(set(ids)) == len(ids) and ids.min() >= 0 and ids.max() < nodes


def test_npy_and_text_hold_the_same(tmp_path):
    write_graph(SPEC, tmp_path / "g.npy")
    assert np.array_equal(np.load(tmp_path / "g.npy"), SPEC.edges())
    write_graph(SPEC, tmp_path / "g.tsv")
    first = (tmp_path / "g.tsv").read_text().splitlines()[0]
    head, relation, tail = SPEC.edges()[0]
    assert first == f"/m/{head:07}\t/r/{relation}\t/m/{tail:07}"


def test_unknown_suffix(tmp_path):
    with pytest.raises(InputError, match="a graph is written as .tsv"):
        write_graph(SPEC, tmp_path / "g.xls")
