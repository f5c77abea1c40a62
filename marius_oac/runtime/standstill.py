"""Which work stands still, and for how long.

Who works enters an `Activity`: a stage with its batch, an evaluation, a checkpoint, a download, a compilation. Within
`watched` a thread looks whether any of them gets on. If none does for `after` seconds, it says which hold what since
when, and shows the stacks of all threads.

Guarantees:
- What is said comes from memory and goes straight to the number of standard error: no disk is read or written, and no
  lock of a stream is taken, which those who stand still may hold. Other threads go on while it is written.
- It is said once for a standstill, and again after twice the time, and so on; of one that ended by itself, as of tiles
  that take long, the next is said if it takes twice as long (10 times `after` at most). It ends nothing.
- Time in which this process did not run at all (SIGSTOP, a machine without processors) is not counted: not more than
  two of the thread's own waits for each of them.
- A command shows its stacks also where a thread holds the interpreter's lock, by `faulthandler`, which needs no lock.
  It can't tell that from a process that was stopped for as long; a line says so afterwards.
- A command that is asked to stop says what it waits for, also where the main thread hears no signal.
- The thread ends with the block. To enter and leave an activity takes no lock and no system call.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from marius_oac.runtime.console import is_terminal, line_of
from marius_oac.runtime.signals import STOPPING, in_command
from marius_oac.runtime.workers import join

AFTER = 60.0
STOPPING_SECONDS = 2.0  # from which on it is said what a request to stop waits for
_LOOK_SECONDS, _LOOKS = 1.0, 10  # between looks, or a tenth of `after`
_LINES = 8  # that are named at most
_MOST = 10  # times `after`, before something is said again

_held: dict[Activity, None] = {}
"""All activities, in the order in which they were entered."""
_moves = 0
_watching = False


class Activity:
    """Work of the thread that enters it, from when it is made. `what` is a sentence without its end: "for 3 s"."""

    __slots__ = ("what", "since", "thread")

    def __init__(self, what: str = ""):
        self.what, self.since = what, time.perf_counter()

    def __enter__(self) -> Self:
        global _moves
        self.thread = threading.get_ident()
        _held[self] = None
        _moves += 1
        return self

    def moved(self) -> None:
        """Says that it gets on."""
        global _moves
        self.since = time.perf_counter()
        _moves += 1  # of two threads at once one may be lost: it has changed all the same

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        global _moves
        _held.pop(self, None)
        _moves += 1

    def told(self) -> str:
        """What is being done; see above."""
        return self.what

    def seconds(self) -> float:
        """Since it was made, or has moved."""
        return time.perf_counter() - self.since

    def __str__(self) -> str:
        return f"{self.told()} for {self.seconds():.0f} s"


class Waiting(Activity):
    """Waits for other threads, and is named only where none of them has an activity."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.told()


def waits_for(seconds: float = 0.0) -> str:
    """What is being done since so many seconds: of each thread the innermost activity. First those that are within
    others, such as a compilation, then those that began first; empty if there is none."""
    held = list(_held)
    depths = Counter(each.thread for each in held if not isinstance(each, Waiting))
    found = {each.thread: each for each in held}.values()
    working = [each for each in found if not isinstance(each, Waiting)] or found
    long = sorted((-depths[each.thread], each.since, str(each)) for each in working if each.seconds() >= seconds)
    return "; ".join(text for *_, text in long[:_LINES])


def tell(text: str) -> None:
    """Writes a line, whoever else writes."""
    with suppress(OSError):
        os.write(2, ("\n" * is_terminal() + line_of(text) + "\n").encode())  # a bar may be on the line


def stacks() -> str:
    """Those of all threads, by their names."""
    with suppress(OSError), open(os.memfd_create("stacks"), "rb") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        text = file.read().decode()
        for each in threading.enumerate():
            # From Python 3.14 on, as much of the name as the system knows is there already, in brackets.
            text = re.sub(rf"hread 0x{each.ident or 0:016x} (\[.*\] )?(?=\()", f"hread {each.name} ", text)
        return text.rstrip("\n")
    return "they can't be shown"


class Watch:
    """What the thread knows. It ends when the other end of `bell` is closed, by which also signals come."""

    def __init__(self, after: float, bell: socket.socket, whole: bool):
        self._after, self._bell, self._whole = after, bell, whole
        self._look_seconds = max(0.01, min(_LOOK_SECONDS, after / _LOOKS))
        self._seen, self._quiet = _moves, 0.0
        self._first_due = self._due = after
        self._asked, self._answer_due = 0.0, STOPPING_SECONDS

    def run(self) -> None:
        """Looks until the other end of the bell is closed, then closes the bell: a signal may interrupt whoever waits
        for this thread, and nobody else knows when it needs the bell no more."""
        with self._bell:
            self._look_on()

    def _look_on(self) -> None:
        self._bell.settimeout(self._look_seconds)
        came: bytes | None = None
        while came != b"":
            if self._whole:
                faulthandler.dump_traceback_later(self._after, file=2)
            before = time.perf_counter()
            try:
                came = self._bell.recv(64)
            except TimeoutError:
                came = None
            self.look(time.perf_counter() - before)
            self.answer(came or b"")
        if self._whole:
            faulthandler.cancel_dump_traceback_later()

    def look(self, passed: float) -> None:
        """Looks for progress, `passed` seconds after the last time."""
        if self._whole and passed >= self._after:
            tell(
                f"for {passed:.0f} s this process was stopped, or a thread held the interpreter's lock; if so, the "
                "stacks above show which"
            )
        if _moves != self._seen or not _held:
            if self._due > self._first_due:
                tell(f"there is progress again, after {self._quiet:.0f} s")
                self._first_due = self._due = min(self._due, _MOST * self._after)
            self._seen, self._quiet = _moves, 0.0
            return
        self._quiet += min(passed, 2 * self._look_seconds)
        if self._quiet >= self._due:
            first, self._due = self._due == self._first_due, 2 * self._due
            tell(f"no progress for {self._quiet:.0f} s: {waits_for()}")
            if first:
                tell(f"what all threads do, the innermost call first:\n{stacks()}")

    def answer(self, came: bytes) -> None:
        """Says what a request to stop waits for."""
        if not self._asked:
            if not (set(came).intersection(STOPPING) or (self._whole and self._quiet and is_pending())):
                return
            self._asked = time.perf_counter()
        waited = time.perf_counter() - self._asked
        if waited >= self._answer_due and _held:
            self._answer_due = 2 * waited
            tell(f"stopping: {waits_for()}")


def is_pending() -> bool:
    """Whether a request to stop is for a thread that hears none: one in a call that waits for a disk."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("ShdPnd:"):
                pending = int(line.split()[1], 16)
                return any(pending >> number - 1 & 1 for number in STOPPING)
    return False


@contextmanager
def watched(after: float = AFTER) -> Iterator[None]:
    """Within the block a thread says what stands still for `after` seconds; 0: none does. A nested block changes
    nothing."""
    global _watching
    if _watching or not after:
        yield
        return
    bell, rope = socket.socketpair()
    whole = in_command() and threading.current_thread() is threading.main_thread()
    thread = threading.Thread(target=Watch(after, bell, whole).run, name="standstill")
    before = -1
    try:
        with rope:
            try:
                thread.start()
            except RuntimeError:  # the system starts no more threads
                bell.close()
            _watching = True
            rope.setblocking(False)
            try:
                if whole:
                    before = signal.set_wakeup_fd(rope.fileno(), warn_on_full_buffer=False)
                yield
            finally:
                try:
                    if whole:
                        signal.set_wakeup_fd(before)
                finally:
                    rope.shutdown(socket.SHUT_RDWR)  # a forked process may hold it, too
    finally:
        _watching = False
        join(thread)
