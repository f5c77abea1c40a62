"""The simulation of a shard with many trainers: its rows do not depend on the network, and it finds where they do."""

import pytest

from benchmarks.nodes import simulated
from marius_oac.nodes.shards import shard as shards


@pytest.mark.parametrize("dies", [False, True])
def test_rows_do_not_depend_on_latencies(dies, monkeypatch):
    monkeypatch.setattr(simulated, "ROWS", 40)  # most rows of a pull have changed since
    one, other = (simulated.simulate(5, 6, 8, seed, dies) for seed in (0, 1))
    assert one.digest == other.digest and one.seconds != other.seconds
    assert (one.seconds > simulated.LOST_AFTER / 6) == dies

    def unchanged(table, rows, picks, seen):
        return real(table, rows, picks, [1 << 40] * len(seen))

    real = shards.patches
    monkeypatch.setattr(shards, "patches", unchanged)
    assert simulated.simulate(5, 6, 8, 0, dies).digest != one.digest


def test_the_benchmark_runs(capsys):
    simulated.main(["--trainers", "3", "--batches", "4", "--rows", "4"])
    assert capsys.readouterr().out.splitlines()[-1].endswith("| yes |")
