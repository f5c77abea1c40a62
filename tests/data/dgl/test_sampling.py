"""dgl's sampler behind our contract. It needs dgl."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from marius_oac.data.dgl.sampling import DglSampler
from tests.data.dgl.test_layers import dgl  # noqa: F401 - a fixture
from tests.data.sampler_conformance import Sampling, alike, flat

pytestmark = pytest.mark.usefixtures("dgl")


class TestDglSampler(Sampling):
    def make(self, folder, edges, num_nodes, relations, direction, fanouts, seed):
        return DglSampler(edges, num_nodes, relations, direction, fanouts, seed)


def digest() -> str:
    sampler = DglSampler(alike(20, 400), 400, 0, "both", [4, 5], 6)
    blocks = [sampler.sample(np.arange(0, 400, 3), 1, batch, np.arange(0, 8000, 7)) for batch in range(3)]
    return hashlib.sha256(str([flat(each) for each in blocks]).encode()).hexdigest()


def elsewhere(before: str, threads: int) -> str:
    """What another process says of its `digest`, the last line."""
    code = f"{before}\nfrom tests.data.dgl.test_sampling import digest\nprint(digest())"
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def test_another_process_draws_the_same_with_any_number_of_threads():
    """Nor does it matter who draws from dgl once this package has loaded it."""
    expected = digest()
    assert elsewhere("", 1) == expected
    drawing = "import marius_oac.dgl\ndgl = marius_oac.dgl.load()\ndgl.seed(4)\ndgl.rand_graph(9, 20)"
    assert elsewhere(drawing, 4) == expected


def test_a_process_where_dgl_has_drawn_before_is_refused():
    said = elsewhere("import dgl\ndgl.seed(0)", 2)
    assert said.startswith("marius_oac.errors.InputError: dgl: has drawn random numbers in this process before")


def test_edges_on_disk_and_seeds_that_are_read_only(tmp_path):
    np.save(tmp_path / "edges.npy", alike(20, 400).astype(np.int32))
    edges, seeds = np.load(tmp_path / "edges.npy", mmap_mode="r"), np.arange(100)[::-1]
    seeds.flags.writeable = False
    drawn = [DglSampler(each, 400, 0, "out", [4], 1).sample(seeds, 0, 0) for each in (edges, alike(20, 400))]
    assert flat(drawn[0]) == flat(drawn[1])


def test_what_was_excluded_of_one_batch_is_seen_by_the_next():
    sampler = DglSampler(alike(5, 9), 9, 0, "both", [-1], 0)
    whole = flat(sampler.sample(np.arange(9), 0, 0))
    assert not sampler.sample(np.arange(9), 0, 0, np.arange(45)).layers[0].edges.size
    with pytest.raises(IndexError):
        sampler.sample(np.arange(9), 0, 0, np.array([3, 45 * 2]))
    assert flat(sampler.sample(np.arange(9), 0, 0)) == whole
