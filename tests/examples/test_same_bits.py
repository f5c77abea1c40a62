"""Each example has the bits of one batch at a time, whatever is in flight, and after a kill; and it learns."""

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.examples.running import EXAMPLES, REAL, digest, watched
from tests.house.test_house import ROOT

pytestmark = pytest.mark.usefixtures("forked_programs")
HOW = [{"mode": "sync"}, {"in_flight": 1}, {"in_flight": 4}, {"in_flight": 16}]


@pytest.mark.parametrize("name", ["ratings", "two_tower"])
def test_first_batches_have_the_bits_of_one_at_a_time(name, monkeypatch):
    found = []
    for how in ({"mode": "sync"}, {"in_flight": 8}):
        monkeypatch.setattr("marius_oac.torch.Engine", watched(most=3, **how))
        model, score = importlib.import_module(f"examples.own_loops.after.{name}").main(epochs=1)
        found.append((digest(name, model), score))
    assert found[0] == found[1]


@pytest.fixture(params=EXAMPLES)
def name(request):
    example = EXAMPLES[request.param]
    if example.needs and not importlib.util.find_spec(example.needs):
        pytest.skip(f"needs {example.needs}: make test-loops")
    if example.folder and not os.path.isdir(os.path.join(REAL or "", example.folder)):
        pytest.skip(f"set MARIUS_OAC_DATA to a folder with {example.folder}/ to run this")
    return request.param


def run(name, *settings, status=0):
    """What the runs printed, in a process that ends with `status`."""
    command = [sys.executable, "-m", "tests.examples.running", name, json.dumps(settings)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=500, check=False)
    assert done.returncode == status
    return [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_bits_do_not_depend_on_what_is_in_flight_nor_on_a_kill(name, tmp_path):
    """Dropout is in each model, and each loader shuffles."""
    example = EXAMPLES[name]
    short = {"most": example.batches}
    ways = [*HOW, {"in_flight": 4, "workers": 2}, {"most": 1}]
    first, *others, of_workers, shorter = run(name, *({**short, **how} for how in ways))
    assert all(each == first for each in others) and shorter != first
    if example.workers_draw_alike:
        assert of_workers == first
    else:
        assert run(name, {**short, "mode": "sync", "workers": 2}) == [of_workers] != [first]
    killed_at = example.batches * (example.passes - 1) + 10
    for workers, expected in ((0, first), (2, of_workers)):
        saved = {**short, "folder": str(tmp_path / str(workers)), "save_every": 4, "workers": workers}
        assert run(name, {**saved, "kill_at": killed_at, "in_flight": 4}, status=-signal.SIGKILL) == []
        assert run(name, {**saved, "in_flight": 16}) == [expected], "from the checkpoint on"


@pytest.mark.slow
def test_it_learns_what_the_plain_loop_learns(name):
    before, after, untrained = (each["score"] for each in run(name, {"side": "before"}, {}, {"most": 1}))
    assert (after - untrained) / (before - untrained) > 0.85
