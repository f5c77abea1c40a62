import errno
import json
import os
import tracemalloc

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.neighbors import neighbors
from marius_oac.data.neighbors.neighbors import Neighbors, open_neighbors
from marius_oac.errors import InputError
from tests.data import naive_sampling as naive
from tests.data.test_batches import random_edges
from tests.run_folders import contents, flip_a_byte

DIRECTIONS = st.sampled_from(["in", "out", "both"])


def opened(folder, edges, num_nodes, relations, direction="in", fingerprint="a graph") -> Neighbors:
    return open_neighbors(folder, edges, num_nodes, relations, direction, fingerprint)


def entries_of(found: Neighbors) -> list[list[tuple]]:
    ends = found.offsets.tolist()
    return [[tuple(entry) for entry in found.entries[a:b].tolist()] for a, b in zip(ends[:-1], ends[1:], strict=True)]


@settings(deadline=None, max_examples=20 if numba.config.DISABLE_JIT else 80)
@given(st.data())
def test_every_node_has_its_edges_in_order(tmp_path_factory, data):
    num_nodes, relations = data.draw(st.integers(1, 30)), data.draw(st.sampled_from([0, 3]))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    direction = data.draw(DIRECTIONS)
    edges = random_edges(num_nodes, relations, data.draw(st.integers(1, 60)), dtype, data.draw(st.integers(0, 9)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "CHUNK_BYTES", data.draw(st.sampled_from([1, 100, 1000, 1 << 20])))
        patch.setattr(neighbors, "_NARROW", narrow := data.draw(st.sampled_from([0, 1 << 31])))
        found = opened(tmp_path_factory.mktemp("sorted") / "neighbors", edges, num_nodes, relations, direction)
    assert entries_of(found) == naive.entries(edges.tolist(), num_nodes, relations, direction)
    assert found.offsets.dtype == np.int64 and found.entries.dtype == (np.int32 if narrow else np.int64)
    assert found.num_nodes == num_nodes
    assert found.num_relations == relations * (2 if direction == "both" else 1)


def test_a_hub_is_larger_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbors, "CHUNK_BYTES", 200)
    edges = np.stack([np.arange(100), np.full(100, 7)], axis=1)
    found = opened(tmp_path / "neighbors", edges, 100, 0, "both")
    assert entries_of(found) == naive.entries(edges.tolist(), 100, 0, "both")


def test_numbers_that_would_not_fit_are_int64(tmp_path):
    edges = np.array([[0, 2**30, 1]], dtype=np.int32)
    assert opened(tmp_path / "in", edges, 2, 2**30 + 1, "in").entries.dtype == np.int32
    both = opened(tmp_path / "both", edges, 2, 2**30 + 1, "both")
    assert both.entries.dtype == np.int64
    assert entries_of(both) == [[(1, 2**31 + 1, 0)], [(0, 2**30, 0)]]


def test_no_edges_and_self_loops(tmp_path):
    nothing = opened(tmp_path / "nothing", np.empty((0, 2), np.int64), 3, 0)
    assert nothing.offsets.tolist() == [0, 0, 0, 0] and nothing.entries.shape == (0, 2)
    loops = np.array([[1, 1], [1, 1]])
    assert entries_of(opened(tmp_path / "in", loops, 2, 0)) == [[], [(1, 0), (1, 1)]]
    assert entries_of(opened(tmp_path / "both", loops, 2, 0, "both")) == [[], [(1, 0), (1, 0), (1, 1), (1, 1)]]


def test_they_are_used_again(tmp_path, capsys):
    edges, folder = random_edges(50, 2, 300), tmp_path / "run" / "neighbors"
    first = entries_of(opened(folder, edges, 50, 2))
    before, inode = contents(folder), (folder / "entries.npy").stat().st_ino
    assert sorted(before) == ["entries.npy", "neighbors.json", "offsets.npy"]
    again = opened(folder, edges, 50, 2)
    assert entries_of(again) == first and not again.entries.flags.writeable
    assert (folder / "entries.npy").stat().st_ino == inode and capsys.readouterr().err == ""


def cut(folder):
    os.truncate(folder / "entries.npy", 500)


def lose(folder):
    (folder / "offsets.npy").unlink()


def other_version(folder):
    manifest = json.loads((folder / "neighbors.json").read_text())
    (folder / "neighbors.json").write_text(json.dumps(manifest | {"version": 0}))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip_a_byte(folder / "entries.npy"),
        lambda folder: flip_a_byte(folder / "offsets.npy"),
        lambda folder: (folder / "neighbors.json").write_text("[]"),
        cut,
        lose,
        other_version,
    ],
)
def test_what_is_damaged_is_noticed_and_made_again(tmp_path, capsys, damage):
    edges, folder = random_edges(50, 2, 300), tmp_path / "neighbors"
    expected, whole = entries_of(opened(folder, edges, 50, 2)), contents(folder)
    damage(folder)
    assert entries_of(opened(folder, edges, 50, 2)) == expected and contents(folder) == whole
    assert "the neighbours are gathered again" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["neighbors"]


@pytest.mark.parametrize("other", [{"direction": "out"}, {"fingerprint": "another graph"}])
def test_those_of_another_graph_or_direction_are_not_used(tmp_path, capsys, other):
    edges, folder = random_edges(50, 2, 300), tmp_path / "neighbors"
    opened(folder, edges, 50, 2)
    found = entries_of(opened(folder, edges, 50, 2, **other))
    assert "belongs to another graph" in capsys.readouterr().err
    assert found == naive.entries(edges.tolist(), 50, 2, other.get("direction", "in"))


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match="neighbors: can't be written: No space left on device"):
        opened(tmp_path / "neighbors", random_edges(50, 2, 300), 50, 2)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ValueError, match="direction must be one of in, out, both, not 'up'"):
        opened(tmp_path / "neighbors", random_edges(5, 2, 3), 5, 2, "up")
    with pytest.raises(ValueError, match="edges have 3 columns, the graph 0 relations"):
        opened(tmp_path / "neighbors", random_edges(5, 2, 3), 5, 0)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="too many edges without the JIT")
@pytest.mark.parametrize("num_nodes", [1000, 500_000])
def test_memory_does_not_grow_with_the_graph(tmp_path, monkeypatch, num_nodes):
    path, chunk = tmp_path / "train.npy", 1 << 18
    np.save(path, random_edges(num_nodes, 3, 400_000, np.int32))  # 4.8 MB
    edges = np.load(path, mmap_mode="r")
    monkeypatch.setattr(neighbors, "CHUNK_BYTES", chunk)
    opened(tmp_path / "warm", edges[:100], num_nodes, 3, "both")
    tracemalloc.start()
    found = opened(tmp_path / "neighbors", edges, num_nodes, 3, "both")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.entries) == 800_000 and peak < 8 * chunk
