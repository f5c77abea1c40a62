"""Kernels compiled beside a run: once, only where it helps, and by processes that end with it."""

import fcntl
import os
import select
import subprocess
import sys
from contextlib import suppress

import pytest

from marius_oac.kernels import ahead

RECORD = """# A record
some kernels.cpu.random.mix(uint64)
some kernels.cpu.random.gone(uint64)
some kernels.cpu.bfloat16.rounded_bits(uint32)
other kernels.cpu.random.below(uint64, int64)
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and a short record."""
    (tmp_path / "record.txt").write_text(RECORD)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(ahead, "RECORD", tmp_path / "record.txt")
    monkeypatch.setattr(ahead, "MOST_PROCESSES", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda number: {0, 1})
    ahead.record.cache_clear()
    yield tmp_path / "cache"
    ahead.record.cache_clear()


def is_over(process):
    """Whether a process and all that it has forked have closed their standard output."""
    pipe = process.stdout
    return not pipe.closed and bool(select.select([pipe], [], [], 20)[0]) and pipe.read(1) == b""


def test_a_group_is_compiled_once(cache, capsys):
    with ahead.compiling(["some"]):
        running = ahead._running
        with ahead.compiling(["other"]):  # does nothing more, and ends nothing
            assert ahead._running is running
        ahead.wait()
        assert not ahead.goes_on() and is_over(running._process)
    assert ahead._running is None and running._process.returncode is not None
    assert capsys.readouterr().err == "compiling 3 kernels, once for this machine\n"
    kept = {path.name.split("-")[0] for path in cache.rglob("*.nbi")}
    assert kept == {"random.mix", "bfloat16.rounded_bits"}
    assert ahead._missing(["some"]) is None and ahead._missing(["other"]) and ahead._missing(["some", "other"])
    ahead.RECORD.write_text(RECORD + "some kernels.cpu.random.mix(int64)\n")
    ahead.record.cache_clear()
    assert ahead._missing(["some"])


def test_the_processes_end_with_the_block(cache):
    with pytest.raises(KeyboardInterrupt), ahead.compiling(["some"]):
        running = ahead._running
        raise KeyboardInterrupt
    assert running._process.returncode == -9 and not ahead.goes_on()


def test_the_processes_end_with_a_run_that_is_killed(cache):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom marius_oac.kernels import ahead\n"
        "ahead.RECORD, ahead.MOST_PROCESSES = Path(sys.argv[1]), 2\nos.sched_getaffinity = lambda number: {0, 1}\n"
        "with ahead.compiling(['some']):\n"
        "    os.write(1, b'%d ' % ahead._running._process.pid)\n    os.kill(os.getpid(), 9)"
    )
    cache.mkdir()
    with open(ahead._missing(["some"]).with_suffix(".lock"), "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # for which they would wait
        with subprocess.Popen([sys.executable, "-c", code, ahead.RECORD], stdout=subprocess.PIPE) as run:
            number = int(run.stdout.read())
        with suppress(ProcessLookupError):  # it is gone already
            process = os.pidfd_open(number)
            assert select.select([process], [], [], 20)[0]
            os.close(process)


@pytest.mark.parametrize("change", ["no groups", "no compiler", "one core", "no record", "no place"])
def test_nothing_is_started_where_it_would_not_help(cache, monkeypatch, change):
    assert ahead._missing(["some"]) is not None
    if change == "no compiler":
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    elif change == "one core":
        monkeypatch.setattr(os, "sched_getaffinity", lambda number: {0})
    elif change == "no place":
        monkeypatch.delenv("NUMBA_CACHE_DIR")
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    elif change == "no record":
        ahead.RECORD.write_text("")
        ahead.record.cache_clear()
    with ahead.compiling([] if change == "no groups" else ["some"]):
        assert ahead._running is None and not ahead.goes_on()
        ahead.wait()


def test_what_a_run_compiles_itself_is_said_once_and_its_seconds_are_counted(monkeypatch, capsys):
    clock = iter(range(100))
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: next(clock))
    before = ahead.seconds_here()
    with ahead.compiling_here():
        assert capsys.readouterr().err == ""  # as no run is going on
    with ahead.compiling([]):
        for _ in range(2):
            with pytest.raises(KeyError), ahead.compiling_here(), ahead.compiling_here():
                raise KeyError
        assert capsys.readouterr().err == "compiling kernels, once for this machine\n"
    assert ahead.seconds_here() - before == 3


def test_a_process_that_cannot_be_started_is_no_error(cache, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with ahead.compiling(["some"]):
        assert ahead._running is None


def test_settings_of_the_compiler_belong_to_what_was_compiled(cache, monkeypatch):
    before = ahead._missing(["some"])
    monkeypatch.setenv("HOME_OF_NOTHING", "1")
    assert ahead._missing(["some"]) == before
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert ahead._missing(["some"]) not in (before, None)
