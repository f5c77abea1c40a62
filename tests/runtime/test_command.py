"""What a command makes of errors that are neither the user's nor ours, but the machine's."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from marius_oac.runtime.command import run_command


def ended(error, capsys):
    """Exit code and standard error of a command that raises this."""

    def work():
        raise error

    code = run_command("prog", work)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ENOSPC, errno.EFBIG, errno.EMFILE, errno.ENOMEM, errno.EROFS, errno.EACCES]
)
def test_a_system_call_that_the_machine_refuses_is_told_in_one_line(capsys, number):
    reason = os.strerror(number)
    assert ended(OSError(number, reason, "/disk/file"), capsys) == (2, f"prog: /disk/file: {reason}\n")
    assert ended(OSError(number, reason), capsys) == (2, f"prog: {reason}\n")


def test_so_is_memory_that_there_is_not(capsys):
    assert ended(MemoryError(), capsys) == (2, "prog: there is not enough memory\n")
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 60, np.uint8)
    code, said = ended(caught.value, capsys)
    assert (
        code == 2 and said.startswith("prog: there is not enough memory: Unable to allocate") and said.count("\n") == 1
    )


def test_so_is_a_library_for_which_there_is_no_room(capsys):
    said = "libx.so: failed to map segment from shared object"
    expected = 2, f"prog: there is not enough memory, or address space (ulimit -v), for a library: {said}\n"
    assert ended(ImportError(said), capsys) == expected
    try:  # as llvmlite does, with ctypes
        try:
            raise OSError(said)
        except OSError:
            raise OSError("could not load libx.so")  # noqa: B904
    except OSError as error:
        assert ended(error, capsys) == expected


def test_so_are_threads_that_the_system_does_not_start(capsys):
    code, said = ended(RuntimeError("can't start new thread"), capsys)
    assert code == 2 and "no more threads" in said and said.count("\n") == 1


@pytest.mark.parametrize("error", [
    OSError(errno.ENOENT, "No such file or directory", "x"), OSError(errno.EBADF, "Bad file descriptor"),
    OSError("no number"), RuntimeError("a defect"), ValueError("a defect"),
])  # fmt: skip
def test_a_defect_keeps_its_traceback(error):
    def work():
        raise error

    with pytest.raises(type(error)) as caught:
        run_command("prog", work)
    assert caught.value is error


def test_another_system_is_named_in_a_line(command, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert command("train", "config.yaml") == (2, [], ["marius-oac: marius_oac runs on Linux, and this is darwin"])


def test_without_proc_nothing_is_begun(command, monkeypatch):
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/proc/self/status" and exists(path))
    code, _, said = command("train", "config.yaml")
    assert code == 2 and len(said) == 1 and said[0].startswith("marius-oac: /proc: is not mounted")


ENDING = """
import atexit, os, signal, sys, threading
from marius_oac.runtime.command import end_at_once

class Kept:
    def __del__(self):
        print("taken apart")

kept, more = Kept(), threading.Event()
kept.itself = kept  # for the collector of garbage alone
atexit.register(print, "done")
atexit.register(lambda: sys.argv[1] == "threads" or os.kill(os.getpid(), signal.SIGTERM))
thread = threading.Thread(target=more.wait)
if sys.argv[1] == "threads":
    thread.start()
code = end_at_once(3)
print("goes on")
more.set()
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("threads", "said"), [("alone", ["done"]), ("threads", ["goes on", "done", "taken apart"])]
)  # fmt: skip
def test_a_process_that_ends_at_once_does_what_was_left_for_its_end_and_no_more(threads, said):
    done = subprocess.run([sys.executable, "-c", ENDING, threads], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split("\n")[:-1], done.stderr) == (3, said, "")
