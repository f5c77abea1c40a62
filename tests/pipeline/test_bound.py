"""What bound a run, against runs of known stages."""

import pytest

from marius_oac.pipeline.bound import bound, bound_by_evaluation
from marius_oac.pipeline.setting import Setting

COMPUTES = {"plan": 1.0, "read": 0.5, "validate": 2.0, "compute": 7.5, "write": 0.5}
STARVES = {"plan": 1.0, "read": 0.5, "compute": 4.0, "write": 0.5}


@pytest.mark.parametrize("spent, setting, by, times, helps", [
    (COMPUTES, Setting(1), "compute", 2.0, "(`threads`)"),
    (COMPUTES | {"write": 8.0}, Setting(4), "compute", 1.2, "(`device`)"),
    (STARVES | {"plan": 9.5}, Setting(4), "plan", 2.0, "workers.plan"),
    (STARVES | {"plan": 29.0, "compute": 8.0}, Setting(4, plan=3), "plan", 1.2, "workers.plan"),
    (STARVES | {"plan": 12.0}, Setting(4, plan=4), "batches in flight", 2.0, "more than 4 "),
    (STARVES | {"upload": 18.0, "compute": 6.9}, Setting(9, upload=2), "link", 1.4, "a faster link"),
    (STARVES | {"read": 9.0}, Setting(2), "read", 2.0, "workers.read"),
    (STARVES | {"write": 36.0}, Setting(8, write=4), "write", 2.0, "workers.write"),
    (STARVES | {"fetch": 9.9, "wait": 8.0}, Setting(8), "disk", 2.0, "storage.memory"),
])  # fmt: skip
def test_the_busiest_stage_is_named_with_what_helps(spent, setting, by, times, helps):
    found = bound(spent, 10.0, setting)
    assert found.by == by and found.times == pytest.approx(times, abs=0.06)
    assert found.line.startswith(f"bound by {by}: ") and helps in found.line and "\n" not in found.line


def test_who_waits_for_other_trainers_is_told_so():
    waits = STARVES | {"compute": 3.5, "validate": 6.0}
    found = bound(waits, 10.0, Setting(4), over_nodes=True)
    assert found.by == "other trainers" and found.times == 2.0 and "60% of the time" in found.line
    assert bound(waits, 10.0, Setting(4)).by == "compute"
    assert bound(waits | {"validate": 3.4, "compute": 6.0}, 10.0, Setting(4), over_nodes=True).by == "compute"
    assert bound(waits | {"compute": 1.0, "validate": 4.0}, 10.0, Setting(4), over_nodes=True).by == "batches in flight"


def test_small_batches_and_slow_evaluations_are_named():
    found = bound(COMPUTES, 10.0, Setting(4), batches=10_000)
    assert found.by == "compute" and "`training.batch_size`" in found.line and "for 0.8 ms" in found.line
    for batches in (0, 1000):
        assert "(`threads`)" in bound(COMPUTES, 10.0, Setting(4), batches=batches).line
    assert "workers.read" in bound(STARVES | {"read": 9.0}, 10.0, Setting(4), batches=100_000).line
    assert bound_by_evaluation(10.0, 10.0) is None
    found = bound_by_evaluation(10.0, 30.0)
    assert found.by == "evaluation" and found.times == pytest.approx(1.6) and "30.0 s beside 10.0 s" in found.line


def test_plans_that_read_files_are_data_and_nothing_is_said_of_nothing():
    assert bound(STARVES | {"plan": 9.5}, 10.0, Setting(4), from_files=True).by == "data"
    assert bound({}, 10.0, Setting(4)) is None and bound(COMPUTES, 0.0, Setting(4)) is None
