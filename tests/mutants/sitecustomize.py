"""Child processes of tests record what they reach: see `reach`."""

import os

if "MUTANTS_REACH" in os.environ and "PYTEST_CURRENT_TEST" in os.environ:
    from tests.mutants.reach import record

    record(os.environ["MUTANTS_REACH"])
