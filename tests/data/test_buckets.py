import errno
import json
import os
import tracemalloc

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.graphs import buckets, derived
from marius_oac.data.graphs.buckets import count_buckets, open_buckets, partition_starts
from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import unfinished
from tests.data import naive_orderings as naive
from tests.data.test_batches import random_edges
from tests.run_folders import contents, flip_a_byte


def sort(folder, edges, num_nodes, partitions, fingerprint="a graph"):
    counts = count_buckets(edges, num_nodes, partitions)
    relations = int(edges[:, 1].max()) + 1 if edges.shape[1] == 3 else 0
    return open_buckets(folder, edges, counts, num_nodes, relations, fingerprint)


@settings(deadline=None, max_examples=20 if numba.config.DISABLE_JIT else 60)
@given(st.data())
def test_edges_come_sorted_by_bucket_and_otherwise_as_they_were(tmp_path_factory, data):
    num_nodes, relations = data.draw(st.integers(3, 40)), data.draw(st.sampled_from([0, 3]))
    partitions = data.draw(st.integers(3, num_nodes))
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    edges = random_edges(num_nodes, relations, data.draw(st.integers(1, 60)), dtype, data.draw(st.integers(0, 9)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "CHUNK_BYTES", data.draw(st.sampled_from([1, 100, 1 << 20])))
        counts = count_buckets(edges, num_nodes, partitions)
        found = sort(tmp_path_factory.mktemp("sorted") / "buckets", edges, num_nodes, partitions)
    expected = sorted(edges.tolist(), key=lambda edge: naive.bucket_of(edge, num_nodes, partitions))
    assert found.dtype == dtype and found.tolist() == expected
    own = [naive.bucket_of(edge, num_nodes, partitions) for edge in expected]
    assert counts.tolist() == [[own.count((i, j)) for j in range(partitions)] for i in range(partitions)]


@given(st.integers(1, 2**40), st.data())
def test_partitions_differ_by_one_node_at_most(num_nodes, data):
    partitions = data.draw(st.integers(1, min(num_nodes, 1024)))
    starts = partition_starts(num_nodes, partitions)
    assert (starts[0], starts[-1], len(starts)) == (0, num_nodes, partitions + 1)
    assert np.diff(starts).min() >= 1 and np.ptp(np.diff(starts)) <= 1
    nodes = np.unique(np.concatenate([starts[:-1], starts[1:] - 1]))
    own = np.searchsorted(starts, nodes, side="right") - 1
    counts = count_buckets(np.stack([nodes, nodes], axis=1), num_nodes, partitions)
    assert np.array_equal(counts, np.diag(np.bincount(own, minlength=partitions)))


def test_sorted_edges_are_used_again(tmp_path, capsys):
    edges, folder = random_edges(50, 2, 300), tmp_path / "run" / "buckets"
    first = sort(folder, edges, 50, 7)
    before, inode = contents(folder), (folder / "edges.npy").stat().st_ino
    assert sorted(before) == ["buckets.json", "edges.npy"]
    assert np.array_equal(sort(folder, edges, 50, 7), first)
    assert (folder / "edges.npy").stat().st_ino == inode
    assert not first.flags.writeable and capsys.readouterr().err == ""


def flip(folder):
    flip_a_byte(folder / "edges.npy")


def cut(folder):
    os.truncate(folder / "edges.npy", 500)


def lose(folder):
    (folder / "edges.npy").unlink()


def empty_manifest(folder):
    (folder / "buckets.json").write_text("[]")


def other_version(folder):
    manifest = json.loads((folder / "buckets.json").read_text())
    (folder / "buckets.json").write_text(json.dumps(manifest | {"version": 0}))


@pytest.mark.parametrize("damage", [flip, cut, lose, empty_manifest, other_version])
def test_what_is_damaged_is_noticed_and_made_again(tmp_path, capsys, damage):
    edges, folder = random_edges(50, 2, 300), tmp_path / "buckets"
    expected, whole = sort(folder, edges, 50, 7).tolist(), contents(folder)
    damage(folder)
    assert sort(folder, edges, 50, 7).tolist() == expected and contents(folder) == whole
    assert "the edges are sorted again" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["buckets"]


@pytest.mark.parametrize("other", [{"partitions": 8}, {"fingerprint": "another graph"}])
def test_those_of_another_graph_are_not_used(tmp_path, capsys, other):
    edges, folder = random_edges(50, 2, 300), tmp_path / "buckets"
    sort(folder, edges, 50, 7)
    found = sort(folder, edges, 50, **{"partitions": 7, **other})
    assert "belongs to another graph" in capsys.readouterr().err
    assert np.array_equal(found, sort(tmp_path / "new", edges, 50, **{"partitions": 7, **other}))


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(buckets, "_scatter", full)
    with pytest.raises(InputError, match="buckets: can't be written: No space left on device"):
        sort(tmp_path / "buckets", random_edges(50, 2, 300), 50, 7)
    assert list(tmp_path.iterdir()) == []


def test_until_it_is_whole_the_folder_has_the_name_of_what_is_unfinished(tmp_path, monkeypatch):
    real, seen = derived._digest, []

    def watched(path):
        seen.extend(entry.name for entry in tmp_path.iterdir())
        return real(path)

    monkeypatch.setattr(derived, "_digest", watched)
    sort(tmp_path / "buckets", random_edges(50, 2, 300), 50, 7)
    assert seen == [unfinished(tmp_path / "buckets").name]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="too many edges without the JIT")
def test_memory_does_not_grow_with_the_edges(tmp_path, monkeypatch):
    path, chunk = tmp_path / "train.npy", 1 << 16
    np.save(path, random_edges(1000, 3, 200_000, np.int32))  # 2.4 MB
    edges = np.load(path, mmap_mode="r")
    monkeypatch.setattr(buckets, "CHUNK_BYTES", chunk)
    sort(tmp_path / "warm", edges[:100], 1000, 8)
    tracemalloc.start()
    found = sort(tmp_path / "buckets", edges, 1000, 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 200_000 and peak < 8 * chunk
