"""kill -9 and Ctrl-C of runs on disk, at forced moments: in every stage, and around each operation of a checkpoint."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marius_oac import open_run, train
from tests.disk import bits, budget, clicks_config, days, graph_config

pytestmark = pytest.mark.usefixtures("forked_programs")
ROOT = Path(__file__).parents[2]
EVERY = ("checkpoint.every_batches=7", "checkpoint.keep=2", budget(20))
STAGES = ("plan", "settle", "read", "compute", "write")
LAST = {"graph": 200, "clicks": 60}


def moments(task, count):
    """One in each stage, and then at random, at operations on files too; a life is short, so that many follow."""
    chosen = random.Random(task)
    found = [(stage, 5 + 3 * number) for number, stage in enumerate(STAGES)]
    while len(found) < count:
        what = chosen.choice((*STAGES, "fsync", "rename", "replace", "rmtree"))
        found.append((what, chosen.randrange(1, 12 if what not in STAGES else LAST[task])))
    return found


@pytest.mark.parametrize("task, count", [
    ("graph", 4),
    *(pytest.param(*each, marks=pytest.mark.slow)
      for each in (("graph", 8), ("clicks", 7), ("graph", 80), ("clicks", 80))),
])  # fmt: skip
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_life_of_kills_ends_in_the_same_bits(graph, tmp_path, task, count, number):
    config = graph_config(graph, *EVERY) if task == "graph" else clicks_config(days(tmp_path / "log"), *EVERY)
    expected = bits(train(config, tmp_path / "whole").summary)
    source, folder = tmp_path / "c.yaml", tmp_path / "run"
    source.write_text(config.dump())
    begin, again = ["train", str(source), "--out", str(folder)], ["resume", str(folder)]
    starts = [{"argv": again, "signal": int(number), "at": at} for at in moments(task, count)]
    starts[0]["argv"] = begin
    script = {"folder": str(folder), "starts": [*starts, {"argv": again}]}
    warm = ["train", str(source), "--out", str(tmp_path / "warm")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.fault_driver"],
        input=json.dumps({"warm_up": warm, "scripts": [script]}), capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads(done.stdout)
    codes = [end["code"] for end in outcome["ended"]]
    stopped = -signal.SIGKILL if number == signal.SIGKILL else 130
    assert set(codes) <= {stopped, 0} and codes[-1] == 0, outcome["ended"]
    assert codes.count(stopped) >= (3 if number == signal.SIGKILL else 1)  # Ctrl-C finishes what is planned
    assert not any("Traceback" in end["said"] for end in outcome["ended"])
    assert bits(open_run(folder).summary) == expected
