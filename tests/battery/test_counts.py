"""The battery is as large and as varied as it says."""

from collections import Counter

from tests.battery.tables import PROCESSES, QUICK

CASES, IN_PROCESSES, OF_A_CHECK = 400, 60, 30


def test_the_battery_has_its_size():
    cases = [*QUICK, *PROCESSES]
    assert len({case.name for case in cases}) == len(cases)
    assert len({(case.command, repr(sorted(case.files.items(), key=str))) for case in QUICK}) == len(QUICK)
    assert len(cases) >= CASES and len(PROCESSES) >= IN_PROCESSES, (len(QUICK), len(PROCESSES))


def test_no_check_has_more_than_its_share():
    checks = Counter(case.check for case in (*QUICK, *PROCESSES))
    assert checks.most_common(1)[0][1] <= OF_A_CHECK, checks.most_common(9)


def test_every_case_names_what_it_blames():
    for case in QUICK:
        assert case.code == 2 and len(case.what) >= 8, case.name
