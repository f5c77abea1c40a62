"""A call that is to fail fails, and no call that fails makes a command lose anything."""

import os
import subprocess
import sys

import pytest

from tests.chaos.children import ROOT, run_cases
from tests.chaos.syscall_faults import KINDS, SCENARIOS, compiler, environment

QUICK = 240
WITHOUT = "there is no C compiler (cc) on this machine: system calls can't be made to fail"

pytestmark = pytest.mark.skipif(compiler() is None, reason=WITHOUT)


@pytest.mark.slow
def test_no_system_call_that_fails_loses_anything(tmp_path):
    tally = run_cases("syscall_faults", 0, tmp_path, count=QUICK, environment=environment(tmp_path))
    assert not tally.faults, "\n\n".join(map(str, tally.faults))
    assert tally.cases == QUICK and tally.by_specimen.keys() == SCENARIOS.keys()
    assert 10 < tally.refused < QUICK


SCRIPT = """
import mmap, os, sys
from pathlib import Path
from tests.chaos.syscall_faults import HALF, KINDS, _Calls

folder = Path(sys.argv[1])
calls, path = _Calls(folder), folder / "file"
path.write_bytes(bytes(8192))
(folder / "old").mkdir()
descriptor = os.open(path, os.O_RDWR)
does = {
    "open": lambda: os.close(os.open(path, os.O_RDONLY)), "read": lambda: os.pread(descriptor, 8, 0),
    "write": lambda: os.pwritev(descriptor, [bytes(1024)], 0), "flush": lambda: os.fsync(descriptor),
    "rename": lambda: os.rename(path, path), "remove": lambda: os.rmdir(folder / "old"),
    "mkdir": lambda: os.mkdir("new", dir_fd=above), "reserve": lambda: os.posix_fallocate(descriptor, 0, 8192),
    "resize": lambda: os.ftruncate(descriptor, 8192), "map": lambda: mmap.mmap(descriptor, 8192).close(),
}
above = os.open(folder, os.O_RDONLY)
for number, kind in enumerate(KINDS):
    calls.begin(number, 1, 28)
    try:
        does[kind]()
        print(kind, "did not fail")
    except OSError as error:
        assert error.errno == 28, error
    does[kind]()
    assert calls.end()[number] == 2, kind
calls.begin(KINDS.index("write"), 2, 5, True)
assert os.pwrite(descriptor, b"12", 0) == 2
for _ in range(2):
    try:
        os.pwrite(descriptor, b"12", 0)
        print("did not fail")
    except OSError:
        pass
calls.end()
calls.begin(KINDS.index("write"), 1, HALF)
assert os.write(descriptor, b"1234") == 2
calls.begin(KINDS.index("open"), 1, 28)
open("/etc/hosts").close()
calls.end()
"""


@pytest.mark.slow
def test_the_call_that_is_chosen_fails_and_no_other_one(tmp_path):
    given = {**os.environ, **environment(tmp_path)}
    (tmp_path / "watched").mkdir()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "watched")]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and len(KINDS) == 10
