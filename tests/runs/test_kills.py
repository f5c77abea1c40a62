"""A run folder survives kill -9 at every single operation on its files, and then once more while it recovers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]


@pytest.fixture(scope="module", params=["memory", "disk"])
def where(request):
    """Where the rows lie."""
    return request.param


@pytest.fixture(scope="module")
def found(where, tmp_path_factory):
    """For every operation: what it was, and what was wrong after a kill there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.kill_driver", str(tmp_path_factory.mktemp("kills")), where],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TABLE_FILES = {
    "memory": ["entities.values.npy", "entities.state.npy"],
    "disk": ["entities.slots.npy", "entities.checksums.npy", ".pages", "pages.json", "pages: room", "pages: torn",
             "fdatasync"],
}  # fmt: skip


def test_every_kind_of_operation_was_tried(where, found):
    told = "\n".join(what for what, _ in found)
    names = ["run.json", "config.yaml", ".lock", "metrics.jsonl", "order.npy", "summary.json", "best.json",
             "manifest.json", "dense.safetensors", *TABLE_FILES[where]]  # fmt: skip
    for part in ["fsync", "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", *names]:
        assert part in told, part
    assert len(found) > 60


def test_nothing_is_lost_and_the_end_is_the_same(found):
    assert [(what, wrong) for what, wrong in found if wrong] == []
