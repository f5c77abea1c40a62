"""Encoding all nodes layer by layer against the papers' formulas on the whole graph at once, and against `Encoder`."""

import errno
import gc
import os
import tracemalloc
import weakref

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.neighbors.neighbors import open_neighbors
from marius_oac.data.neighbors.sampling import NeighborSampler
from marius_oac.errors import InputError
from marius_oac.evaluation import inference
from marius_oac.evaluation.inference import encode_nodes, encoding_bytes
from marius_oac.models.gnn.block import Block
from marius_oac.runtime import progress
from marius_oac.runtime.thread_pool import ThreadPool
from tests.data import naive_sampling
from tests.data.test_batches import random_edges
from tests.models.gnn.test_layers import INPUTS, LAYERS, expected, make

CPU = torch.device("cpu")
STACK = (LAYERS[0], LAYERS[3])


@pytest.fixture(scope="module")
def alone():
    thread_pool = ThreadPool(1)
    yield thread_pool
    thread_pool.close()


def values_of(nodes, seed=0):
    return np.random.default_rng(seed).normal(size=(nodes, INPUTS)).astype(np.float32)


def reading(values):
    """Gives rows as it is promised that they are asked for."""

    def read(nodes):
        assert nodes.dtype == np.int64 and (nodes[1:] > nodes[:-1]).all()
        return values[nodes]

    return read


def neighbors_in(folder, edges, nodes, relations=0, direction="in"):
    return open_neighbors(folder / "neighbors", edges, nodes, relations, direction, "a graph")


def forward(encoder, values, neighbors):
    """`Encoder.forward` of all nodes, shuffled, on blocks of all their neighbours."""
    nodes = np.random.default_rng(1).permutation(len(values))
    found = NeighborSampler(neighbors, [-1] * len(encoder.layers), 0).sample(nodes, 0, 0)
    sizes = [len(layer.offsets) - 1 for layer in found.layers[1:]]
    inputs = [len(found.inputs), *sizes]
    blocks = [
        Block(torch.from_numpy(layer.offsets), torch.from_numpy(layer.sources), count)
        for layer, count in zip(found.layers, inputs, strict=True)
    ]
    with torch.no_grad():
        result = encoder(torch.from_numpy(values[found.rows][found.inputs]), blocks)
    back = np.empty(result.shape, np.float32)
    back[nodes] = result
    return back


@settings(deadline=None, max_examples=15 if numba.config.DISABLE_JIT else 60)
@given(data=st.data())
def test_all_nodes_are_what_the_formulas_say(tmp_path_factory, alone, data):
    folder = tmp_path_factory.mktemp("encoded")
    nodes, relations, seed = (
        data.draw(st.integers(1, 12)),
        data.draw(st.sampled_from([0, 3])),
        data.draw(st.integers(0, 99)),
    )
    direction = data.draw(st.sampled_from(["in", "out", "both"]))
    edges = random_edges(nodes, relations, data.draw(st.integers(1, 40)), np.int64, seed)
    edges[edges[:, 0] % 5 == 1, -1] = 0  # a hub; some have no neighbours
    stack = data.draw(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=3))
    memory = data.draw(st.sampled_from([1, 2000, 6000, inference.MEMORY]))
    encoder, values = make(*stack, seed=seed), values_of(nodes, seed)
    every = naive_sampling.entries(edges.tolist(), nodes, relations, direction)
    sources = [entry[0] for own in every for entry in own]
    whole = np.cumsum([0, *map(len, every)]).tolist(), sources, nodes
    wanted = expected(encoder, torch.from_numpy(values), [whole] * len(stack))

    neighbors, encoder = neighbors_in(folder, edges, nodes, relations, direction), encoder.float()
    found = encode_nodes(encoder, reading(values), INPUTS, neighbors, folder / "out.npy", alone, CPU, memory)
    assert found.shape == (nodes, encoder.width) and found.dtype == np.float32 and not found.flags.writeable
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found, forward(encoder, values, neighbors), rtol=1e-5, atol=1e-5)
    assert sorted(path.name for path in folder.iterdir()) == ["neighbors", "out.npy"]
    assert np.array_equal(np.load(folder / "out.npy"), found)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Nodes of many degrees; several tasks a layer."""
    nodes, generator = 3000, np.random.default_rng(0)
    edges = np.stack(
        [generator.integers(0, nodes, 60_000), (nodes * generator.random(60_000) ** 3).astype(np.int64)], 1
    )
    return neighbors_in(tmp_path_factory.mktemp("large"), edges, nodes)


@pytest.mark.parametrize("stack", [(LAYERS[0], LAYERS[1]), (LAYERS[3], LAYERS[4])], ids=["sage", "gat"])
def test_same_bits_for_any_number_of_lanes(tmp_path, large, stack):
    encoder, values = make(*stack).float(), values_of(large.num_nodes)
    for memory in (1 << 19, inference.MEMORY):
        seen = []
        for count in (1, 2, 3):
            thread_pool = ThreadPool(count)
            try:
                seen.append(
                    encode_nodes(
                        encoder, reading(values), INPUTS, large, tmp_path / f"{count}", thread_pool, CPU, memory
                    )
                )
            finally:
                thread_pool.close()
        assert all(np.array_equal(seen[0], other) for other in seen[1:])


class Watched(Block):
    """Notes how large blocks are."""

    sizes: list = []  # noqa: RUF012

    def __post_init__(self):
        super().__post_init__()
        self.sizes.append((self.num_outputs, self.num_edges))


@pytest.fixture
def sizes(monkeypatch):
    monkeypatch.setattr(inference, "Block", Watched)
    monkeypatch.setattr(Watched, "sizes", [])
    return Watched.sizes


def test_chunks_fit_the_memory_or_are_one_node(tmp_path, alone, large, sizes):
    encoder, values, memory = make(LAYERS[0]).float(), values_of(large.num_nodes), 1 << 19
    encode_nodes(encoder, reading(values), INPUTS, large, tmp_path / "out", alone, CPU, memory)
    assert sum(nodes for nodes, _ in sizes) == large.num_nodes and sum(edges for _, edges in sizes) == 60_000
    most = int(np.diff(large.offsets).max())
    cost = inference._Cost.of(encoder.layers[0], INPUTS, large.num_nodes)
    bounds = [encoding_bytes(encoder, INPUTS, large.num_nodes, 60_000, degree, memory) for degree in (0, most)]
    files = 4 * large.num_nodes * (INPUTS + encoder.width)
    whole = encoding_bytes(encoder, INPUTS, large.num_nodes, 60_000, most, 1 << 40)
    few = 4 * inference._PART_BYTES
    assert bounds[0] == memory + few and bounds[1] == memory // 2 + cost.bytes(1, most) + few > bounds[0]
    assert whole == cost.bytes(large.num_nodes, 60_000) + files + few
    larger = [(nodes, edges) for nodes, edges in sizes if cost.bytes(nodes, edges) > memory // 2]
    assert larger and all(nodes == 1 for nodes, _ in larger)
    assert 10 < len(sizes) < 100
    sizes.clear()
    encode_nodes(encoder, reading(values), INPUTS, large, tmp_path / "out", alone, CPU)
    assert sizes == [(large.num_nodes, 60_000)]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="too many edges without the JIT")
@pytest.mark.parametrize("nodes", [4_000, 400_000])
def test_memory_does_not_grow_with_the_graph(tmp_path, monkeypatch, alone, nodes):
    monkeypatch.setattr(inference, "_PART_BYTES", 1 << 16)
    encoder, memory = make(*STACK).float(), 1 << 22
    neighbors = neighbors_in(tmp_path, random_edges(nodes, 0, 400_000, np.int32), nodes)
    most = int(np.diff(neighbors.offsets).max())

    def read(rows):
        return np.repeat(np.sin(rows, dtype=np.float32)[:, None], INPUTS, axis=1)

    def encode():
        encode_nodes(encoder, read, INPUTS, neighbors, tmp_path / "out", alone, CPU, memory)

    encode()
    tracemalloc.start()
    encode()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory / 8 < peak < encoding_bytes(encoder, INPUTS, nodes, 400_000, most, memory)


def test_pages_of_files_are_let_go(tmp_path, monkeypatch, alone, large):
    """Of offsets, entries and what is written chunk by chunk; of the layer before whenever a window has been read."""
    memory, dropped, read = 1 << 15, [], []
    window = memory // 8 // (4 * 3)

    class Watching(inference.Resident):
        def __init__(self, array, most_bytes):
            super().__init__(array, most_bytes)
            self.about = array.shape

        def drop(self):
            assert self._map is not None
            dropped.append(self.about)
            if read and self.about == (large.num_nodes, 3):
                assert max(map(max, read)) - min(map(min, read)) < window
                read.clear()
            super().drop()

    def copy(filler, nodes, into, begin, end):
        read.append(nodes[begin:end].tolist())
        inference.np.take(filler._values, nodes[begin:end], axis=0, out=into[begin:end])

    monkeypatch.setattr(inference, "Resident", Watching)
    monkeypatch.setattr(inference._Filler, "_copy", copy)
    values, encoder = reading(values_of(large.num_nodes)), make(*STACK).float()
    encode_nodes(encoder, values, INPUTS, large, tmp_path / "out", alone, CPU, memory)
    assert not read
    shapes = [large.offsets.shape, large.entries.shape, (large.num_nodes, 3), (large.num_nodes, encoder.width)]
    assert all(dropped.count(shape) > 20 for shape in shapes)


def failing_at(call, error):
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == call:
            raise error

    return fail


@pytest.mark.parametrize("layer", [1, 2])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, alone, large, layer):
    out, encoder = tmp_path / "out.npy", make(*STACK).float()
    out.write_text("as it was")
    monkeypatch.setattr(os, "posix_fallocate", failing_at(layer, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(InputError, match="out.npy: can't be written: No space left on device"):
        encode_nodes(encoder, reading(values_of(large.num_nodes)), INPUTS, large, out, alone, CPU)
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"] and out.read_text() == "as it was"


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("layer", [0, 1])
def test_an_error_leaves_nothing_behind(tmp_path, monkeypatch, alone, large, error, layer):
    encoder, threads = make(*STACK).float().train(), torch.get_num_threads()
    encoder.layers[0].eval()
    forward = encoder.layers[layer].forward
    fail = failing_at(3, error)

    def failing(*given):
        fail()
        assert not encoder.training and not encoder.layers[1].training and torch.get_num_threads() == 1
        assert not torch.is_grad_enabled()
        return forward(*given)

    monkeypatch.setattr(encoder.layers[layer], "forward", failing)
    with pytest.raises(type(error)):
        encode_nodes(encoder, reading(values_of(large.num_nodes)), INPUTS, large, tmp_path / "out", alone, CPU, 1 << 19)
    assert list(tmp_path.iterdir()) == []
    assert encoder.training and not encoder.layers[0].training and encoder.layers[1].training
    assert torch.get_num_threads() == threads and torch.is_grad_enabled()


def test_no_more_than_two_files_at_once(tmp_path, alone, large):
    encoder, seen = make(*STACK, LAYERS[4]).float(), []
    for layer in encoder.layers:
        layer.register_forward_hook(lambda *_: seen.append(sorted(path.name for path in tmp_path.iterdir())))
    encode_nodes(encoder, reading(values_of(large.num_nodes)), INPUTS, large, tmp_path / "out", alone, CPU)
    first, second, last = (f".out{end}.unfinished" for end in (".1", ".2", ""))
    assert seen == [[first], [first, second], [second, last]]


def test_nothing_is_dropped_and_the_mode_stays(tmp_path, alone, large):
    encoder, values = make(*STACK, dropout=0.5).float().train(), reading(values_of(large.num_nodes))
    before = torch.random.get_rng_state()
    found = encode_nodes(encoder, values, INPUTS, large, tmp_path / "trained", alone, CPU)
    assert encoder.training and torch.equal(torch.random.get_rng_state(), before)
    same = encode_nodes(make(*STACK).float().eval(), values, INPUTS, large, tmp_path / "other", alone, CPU)
    assert np.array_equal(found, same)


def test_who_reads_an_older_file_keeps_it(tmp_path, alone, large):
    values, out = reading(values_of(large.num_nodes)), tmp_path / "out"
    older = encode_nodes(make(*STACK, seed=0).float(), values, INPUTS, large, out, alone, CPU)
    kept = older.copy()
    newer = encode_nodes(make(*STACK, seed=1).float(), values, INPUTS, large, out, alone, CPU)
    assert np.array_equal(older, kept) and not np.array_equal(older, newer)


def test_memory_is_given_back_at_once(tmp_path, monkeypatch, alone, large):
    made = []

    class Kept(inference.Scratch):
        def __init__(self):
            super().__init__()
            made.append(weakref.ref(self))

    monkeypatch.setattr(inference, "Scratch", Kept)
    gc.disable()
    try:
        encode_nodes(
            make(*STACK).float(), reading(values_of(large.num_nodes)), INPUTS, large, tmp_path / "o", alone, CPU
        )
        assert made and all(each() is None for each in made)
    finally:
        gc.enable()


def test_progress_is_told(tmp_path, monkeypatch, capsys, alone, large):
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    values = reading(values_of(large.num_nodes))
    encode_nodes(make(*STACK).float(), values, INPUTS, large, tmp_path / "out", alone, CPU, 1 << 19)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith(" of 6,000 nodes") and lines[-1] == "encoding: 6,000 of 6,000 nodes, done"
