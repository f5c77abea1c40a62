"""The frame of every command: signals, standard streams and the exit code.

| exit code | what happened |
|---|---|
| 0 | it is done, even if its results were not read or standard output was closed |
| 1 | the answer is no (`compare`, `nodes check`), another node was lost, or there is a defect, with its traceback |
| 2 | a mistake of the user, a damaged file, a full disk, no more memory or threads, a number that diverged |
| 128 + n | signal n (SIGINT, SIGTERM or SIGHUP: 130, 143, 129) has stopped it |
"""

from __future__ import annotations

import argparse
import atexit
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, cast

from marius_oac.errors import InputError, Interrupted, MariusOacError
from marius_oac.runtime import console
from marius_oac.runtime.signals import Requests, signal_behind, stopped_by_signals

_OF_THE_MACHINE = frozenset((
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOLCK, errno.ESTALE, errno.ENAMETOOLONG, errno.ELOOP,
))  # fmt: skip
"""Errors of system calls that are due to the disk, its limits, permissions or the given paths, not to this program."""
_NO_THREAD = "can't start new thread"  # CPython's
_NO_ROOM = ("failed to map segment", "cannot allocate memory")  # the dynamic linker's


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line and exit code 2, also if help can't be written to standard output."""

    def _print_message(self, message: str, file: object = None) -> None:
        console.answer(message.removesuffix("\n"))

    def error(self, message: str) -> NoReturn:
        """Raises InputError with the message, at the command of `marius-oac`; `run_command` names the program."""
        raise InputError(f"{message} (see --help)", self.prog.partition("marius-oac ")[2] or None)


def run_command(program: str, work: Callable[[], int | None]) -> int:
    """Runs a command and returns its exit code; errors that are no mistake of the user keep their traceback."""
    console.open_standard_streams()
    with console.standard_error(), stopped_by_signals() as stops:
        try:
            return _run(program, work, stops)
        except BaseException as error:
            stops.settle()
            number = signal_behind(error)
            if number is None:
                raise
            console.say(f"{program}: stopped")
            return 128 + number
        finally:
            console.let_go()


def end_at_once(code: int) -> int:
    """Ends this process with an exit code: to take apart what was imported takes Python half a second. What is to be
    done at the end is done, and output is written; a SIGTERM, as an agent sends it to all, is too late to change the
    code, and Ctrl-C still ends what hangs. Where other threads go on, it returns the code instead."""
    if threading.active_count() > 1:
        return code
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit._run_exitfuncs()
    console.let_go()
    os._exit(code)


def check_system() -> None:
    """Raises InputError on other systems than Linux, which lack its direct I/O, memory policies and thread binding, and
    without /proc."""
    if sys.platform != "linux":
        raise InputError(f"marius_oac runs on Linux, and this is {sys.platform}")
    if not os.path.exists("/proc/self/status"):
        raise InputError("is not mounted; what the machine has, and what this process takes, is read there", "/proc")


def check_present_folder() -> None:
    """Raises InputError where the working folder was removed: paths can't be resolved, and some libraries can't be
    loaded."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise InputError("the folder that the command was called in is gone", os.curdir) from None


def _run(program: str, work: Callable[[], int | None], stops: Requests) -> int:
    try:
        try:
            code = work()
        except SystemExit as ended:  # argparse's, after `--help`: a number
            code = cast(int | None, ended.code)
        console.finish()
        return code or 0
    except MariusOacError as error:
        if signal_behind(error) is not None and not isinstance(error, Interrupted):
            raise
        stops.settle()
        for line in error.lines:
            console.say(console.Painted(f"{program}:", console.RED), f" {line}")
        return error.exit_code
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        reason = failure_of_machine(error)
        if reason is None:
            raise
        console.say(console.Painted(f"{program}:", console.RED), f" {reason}")
        return 2


def failure_of_machine(error: BaseException) -> str | None:
    """One line on what the machine could not do, for errors that say so; None for every other error.

    Most such errors have become an InputError by then, which says more. This is for errors that any system call may
    raise.
    """
    if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return " ".join(f"there is not enough memory: {error}".split()).removesuffix(":")
    if isinstance(error, (ImportError, OSError)):
        # Where ctypes loads a library, the linker's words may be those of the error behind this one.
        for each in (error, error.__context__):
            if each is not None and any(what in str(each) for what in _NO_ROOM):
                return f"there is not enough memory, or address space (ulimit -v), for a library: {each}"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return "the system starts no more threads: its limit is reached (ulimit -u or -v, or the container's)"
    return None
