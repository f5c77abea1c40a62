"""Processes that end with their parent, also where that has ended before they say so."""

import os
import subprocess
import sys

import pytest

SAYS = "import sys; from marius_oac.runtime.closing import end_with; end_with(int(sys.argv[1])); print('goes on')"


@pytest.mark.parametrize("ended", [False, True])
def test_one_whose_parent_has_ended_already_does_not_go_on(ended):
    parent = 1 if ended else os.getpid()
    done = subprocess.run([sys.executable, "-c", SAYS, str(parent)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "" if ended else "goes on\n", "")
