"""The emulated link of the benchmarks: exact on a clock of the test's own, waited for in a pipeline."""

import pytest

from benchmarks.slow_link import SlowLink
from tests.pipeline.toy import run_toy


def test_batches_queue_up_in_each_direction_and_the_latency_does_not_occupy_it():
    now, waits = [100.0], []
    link = SlowLink(1.0, 0.25, waits.append, lambda: now[0])
    for stage in ("upload", "upload", "compute", "download"):
        link(stage, 0)
    now[0] += 0.5  # both are under way still
    link("upload", 0)
    now[0] += 100  # the link has long been free
    link("upload", 0)
    assert waits == pytest.approx([1.25, 2.25, 1.25, 2.75, 1.25])


def test_it_changes_no_bits_and_is_waited_for():
    *expected, _, _ = run_toy(mode="sync")
    *tables, _, pipeline = run_toy(mode="oac", in_flight=4, probe=SlowLink(0.0005))
    assert tables == expected and pipeline.telemetry.total()["upload"] >= 60 * 0.0005
