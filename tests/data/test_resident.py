"""What of a mapped file counts as this process's memory."""

import os

import numpy as np
import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.data.graphs import edge_ids
from marius_oac.data.graphs.resident import Resident

MIB = 1 << 20


def resident_bytes(path):
    """Of the mappings of a file in this process, from the system."""
    found, inside = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if "-" in line.split(" ")[0]:
                inside = line.rstrip().endswith(str(path))
            elif inside and line.startswith("Rss:"):
                found += int(line.split()[1]) * 1024
    return found


@pytest.fixture
def edges(tmp_path):
    """48 MiB of them."""
    path = tmp_path / "edges.npy"
    nodes = np.arange(2 << 20, dtype=np.int64) % 1000
    np.save(path, np.stack((nodes, nodes * 0, nodes[::-1]), axis=1))
    return np.load(path, mmap_mode="r")


def planner(edges, most):
    training = {"batch_size": 500, "negatives": {"count": 50, "degree_fraction": 0.5}}
    return EdgePlanner(edges, 1000, 1, Config.build({"data": {"path": "x"}, "training": training}), most)


def test_batches_of_a_large_file_take_little_memory_and_are_the_same(edges):
    free = planner(edges, None)
    expected = [free.plan(batch_index) for batch_index in range(20)]
    assert resident_bytes(edges.filename) > 40 * MIB
    bound = planner(edges, 8 * MIB)
    for plan in expected:
        found = bound.plan(plan.batch_index)
        np.testing.assert_array_equal(found.rows[0], plan.rows[0])
        np.testing.assert_array_equal(found.data.negatives, plan.data.negatives)
        assert resident_bytes(edges.filename) <= 16 * MIB


def test_a_pass_over_all_edges_lets_go_of_them(edges, monkeypatch):
    monkeypatch.setattr(edge_ids, "_RESIDENT_BYTES", 8 * MIB)
    most, real = [], edge_ids.first_bad_edge
    monkeypatch.setattr(
        edge_ids, "first_bad_edge", lambda *given: most.append(resident_bytes(edges.filename)) or real(*given)
    )
    edge_ids.check_ids(edges, 1000, 1, edges.filename)
    assert resident_bytes(edges.filename) == 0 and len(most) == 2 and max(most) < 40 * MIB
    edges.sum()
    assert resident_bytes(edges.filename) > 40 * MIB


def test_what_is_small_or_in_memory_is_left_alone(edges):
    assert edges[:, 0].sum() > 0
    before = resident_bytes(edges.filename)
    Resident(edges, edges.nbytes).drop()
    Resident(np.array(edges), 1).drop()
    Resident(edges).touched(1 << 40)
    assert resident_bytes(edges.filename) == before > 0
    assert os.path.exists(edges.filename)
