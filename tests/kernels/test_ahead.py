"""Kernels compiled beside a run: once, only where it helps, and by processes that end with it."""

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from marius_oac.kernels import ahead
from marius_oac.kernels.once import check
from tests.storage.conformance import JIT

RECORD = """# A record
some kernels.cpu.random.mix(uint64)
some kernels.cpu.random.gone(uint64)
some kernels.cpu.bfloat16.rounded_bits(uint32)
other kernels.cpu.random.below(uint64, int64)
"""
SAID = "compiling kernels, once for this machine\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a short record."""
    (tmp_path / "record.txt").write_text(RECORD)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ahead, "RECORD", tmp_path / "record.txt")
    monkeypatch.setattr(ahead, "MOST_PROCESSES", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda number: {0, 1, 2})
    return tmp_path / "cache"


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_the_groups_of_the_outer_block_are_compiled(cache):
    with ahead.compiling(["some"]):
        running = [*ahead._Run.processes]
        with ahead.compiling(["other"]):  # does nothing more, and ends nothing
            assert ahead._Run.processes == running
        assert [process.wait() for process in running] == [0, 0]
    assert {path.name.split("-")[0] for path in cache.rglob("*.nbi")} == {"random.mix", "bfloat16.rounded_bits"}


def test_a_run_that_finds_all_starts_nothing_and_one_that_lacks_a_kernel_says_so_once(cache, capsys):
    check(cache)  # some run was here
    ahead.begun()
    with ahead.compiling(["some"]):
        assert not ahead._Run.processes and not capsys.readouterr().err
        ahead.begun()
        running = [*ahead._Run.processes]
        ahead.begun()
        assert len(running) == 2 and ahead._Run.processes == running
    assert all(process.returncode is not None for process in running) and capsys.readouterr().err == SAID
    ahead.begun()
    assert not capsys.readouterr().err


def test_the_processes_end_with_the_block(cache):
    with pytest.raises(KeyboardInterrupt), ahead.compiling(["some"]):
        running = [*ahead._Run.processes]
        raise KeyboardInterrupt
    assert [process.returncode for process in running] == [-9, -9]


def test_the_processes_end_with_a_run_that_is_killed(cache):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom marius_oac.kernels import ahead\n"
        "ahead.RECORD, ahead.MOST_PROCESSES = Path(sys.argv[1]), 2\nos.sched_getaffinity = lambda number: {0, 1}\n"
        "with ahead.compiling(['some']):\n"
        "    os.write(1, b'%d ' % ahead._Run.processes[0].pid)\n    os.kill(os.getpid(), 9)"
    )
    os.mkfifo(record := ahead.RECORD.with_name("pipe"))  # for which they wait
    with subprocess.Popen([sys.executable, "-c", code, record], stdout=subprocess.PIPE) as run:
        number = int(run.stdout.read())
    with suppress(ProcessLookupError):  # it is gone already
        process = os.pidfd_open(number)
        assert select.select([process], [], [], 20)[0]
        os.close(process)


@pytest.mark.parametrize("change", ["no compiler", "one core", "no place"])
def test_nothing_is_started_where_it_would_not_help(cache, monkeypatch, change):
    if change == "no compiler":
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    elif change == "one core":
        monkeypatch.setattr(os, "sched_getaffinity", lambda number: {0})
    elif change == "no place":
        monkeypatch.delenv("NUMBA_CACHE_DIR")
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    with ahead.compiling(["some"]):
        ahead.begun()
        assert not ahead._Run.processes


def test_seconds_are_counted_once(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: next(clock))
    before = ahead.seconds_here()
    for _ in range(2):
        with pytest.raises(KeyError), ahead.compiling_here(), ahead.compiling_here():
            raise KeyError
    assert ahead.seconds_here() - before == 4


def test_a_process_that_cannot_be_started_is_no_error(cache, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with ahead.compiling(["some"]):
        assert not ahead._Run.processes


def test_kernels_are_kept_where_the_environment_says(cache, monkeypatch):
    assert ahead.cache_folder() == cache
    monkeypatch.setenv("NUMBA_CACHE_DIR", "relative")
    assert ahead.cache_folder() is None
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    assert ahead.cache_folder() == Path(ahead.__file__).parent / "cpu" / "__pycache__"
