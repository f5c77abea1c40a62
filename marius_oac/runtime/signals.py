"""Signals: SIGINT (Ctrl-C), SIGTERM and SIGHUP ask a process to stop; waits that any signal ends.

Guarantees, in the main thread of a command (`stopped_by_signals`):
- The first request raises `StopSignal`, so that what is half done is cleaned up. Within `stop_on_interrupt` it asks
  politely, but for a block that is `stopped_at_once`. Where a library has caught it, it is raised again.
- The second raises it there, too. From then on the system ends the process at the next signal, or after
  `FORCED_SECONDS`, whatever it is doing.
- The same signal within `SAME_SECONDS` is the same request: `timeout`, a closing terminal and cluster managers send it
  to the process and to its group.
- A SIGHUP that was ignored stays so: `nohup`.

Elsewhere, as in a notebook, `stop_on_interrupt` is alike, but no process is ended.

`uninterrupted` puts Ctrl-C off until what must not be left half done is done.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the functions of `signal` without enumerations, which take 20 times as long
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SECONDS = 0.5
FORCED_SECONDS = 1.0
REMIND_SECONDS = 0.3
LOOK_SECONDS = 0.5
_SIGINT = int(signal.SIGINT)


class StopSignal(KeyboardInterrupt):
    """A signal has asked the process to stop. `number` says which."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def signal_behind(error: BaseException) -> int | None:
    """The signal that caused an error, if one did.

    Once a StopSignal was raised in this command, every error counts as caused by it: libraries turn it into other
    errors (DuckDB into a RuntimeError, "Query interrupted"; NumPy into whatever it was about to raise).
    """
    if isinstance(error, StopSignal):
        return error.number
    if _process and _process.raised:
        return _process.first
    return signal.SIGINT if isinstance(error, KeyboardInterrupt) else None


def signal_heard(error: BaseException) -> int | None:
    """As `signal_behind`, for a caller that ends the process itself: the signal is not raised again."""
    number = signal_behind(error)
    if number is not None and _process:
        _process.settle()
    return number


class Requests:
    """What signals have asked for. `first` is the signal of the first request, SIGINT as long as there is none;
    `raised` says whether a StopSignal was raised. While `at_once` is set the first request is not polite.

    With `forced`, as for a whole process, the system handles the second request, and the first one is raised again
    where it was lost.
    """

    def __init__(self, forced: bool = False):
        self.first: int = signal.SIGINT
        self.raised = self.at_once = False
        self._forced, self._count, self._last = forced, 0, (0, 0.0)
        self._reminds, self._timers = False, list[threading.Timer]()
        self._stopping = False

    @property
    def asked(self) -> bool:
        """Whether there has been a request."""
        return self._count > 0

    def add(self, number: int) -> int:
        """Counts a signal; returns how many requests there have been, or 0 if it repeats the last one.

        Raises StopSignal where it is a reminder and the first signal had no effect.
        """
        if self._reminds:
            self._reminds = False
            self._raise(number, unless_on_its_way=True)
            return 0
        now, (last, when) = time.monotonic(), self._last
        if number == last and now - when < SAME_SECONDS:
            return 0
        self._count, self._last = self._count + 1, (number, now)
        if self._count == 1:
            self.first = number
        return self._count

    def stopping(self, number: int) -> None:
        """Says that this process ends for a signal that another one had. Its own may come later, and interrupts nothing
        then: not even what is still to be closed."""
        if not self._count:
            self.first, self._stopping = number, True

    def stop(self, number: int) -> None:
        """Raises StopSignal. A second request does not interrupt the clean-up of an error already raised."""
        if self._stopping and self._count == 1:
            return
        again = self._forced and self._count > 1
        if again:
            self._end_soon(number)
        self._raise(number, unless_on_its_way=again)

    def _raise(self, number: int, unless_on_its_way: bool) -> None:
        self.raised = True
        if self._forced and self._count == 1:
            self._remind(number)
        if not unless_on_its_way or sys.exception() is None:
            raise StopSignal(number)

    def _remind(self, number: int) -> None:
        """Sends the signal once more, in case what it raises now is lost: in a destructor, or within compiled code."""

        def remind() -> None:
            self._reminds = True
            os.kill(os.getpid(), number)

        self._start(threading.Timer(REMIND_SECONDS, remind))

    def _end_soon(self, number: int) -> None:
        """Makes sure that the process ends soon, whatever it is doing."""
        for each in STOPPING:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, signal.SIG_DFL)
        if not self._start(threading.Timer(FORCED_SECONDS, os.kill, (os.getpid(), number))):
            signal.raise_signal(number)

    def _start(self, timer: threading.Timer) -> bool:
        """Starts a timer in place of the one before; False where no thread can be started.

        It waits for no thread: it runs in signal handlers, also in one that has interrupted `settle` as that waits.
        """
        for each in self._timers:
            each.cancel()
        try:
            timer.start()
        except RuntimeError:
            return False
        self._timers.append(timer)
        return True

    def settle(self) -> None:
        """Cancels reminders and timers: the process is about to end."""
        while self._timers:  # a handler may start another one meanwhile
            timer = self._timers.pop()
            timer.cancel()
            timer.join()
        self._reminds = False


_process: Requests | None = None
"""Of this process, where it is a command."""
_polite: Requests | None = None
"""Of the `stop_on_interrupt` that the main thread is in."""


def in_command() -> bool:
    """Whether this process is a command, which may do with signals as it likes."""
    return _process is not None


@contextmanager
def stopped_by_signals() -> Iterator[Requests]:
    """Within the block, which is all that a command does, signals stop it as the head of this module says. Yields the
    requests made so far.

    Outside the main thread signals can't be caught, and nothing is changed.
    """
    global _process
    if threading.current_thread() is not threading.main_thread() or _process:
        yield _process or Requests()
        return
    requests = _process = Requests(forced=True)
    before, handlers = sys.unraisablehook, [signal.getsignal(number) for number in STOPPING]

    def handle(number: int, frame: object) -> None:
        if requests.add(number):
            requests.stop(number)

    def unraisable(error: sys.UnraisableHookArgs) -> None:
        if not isinstance(error.exc_value, StopSignal):
            before(error)

    try:
        with handled(STOPPING, handle):
            sys.unraisablehook = unraisable
            yield requests
    finally:
        requests.settle()
        for number, handler in zip(STOPPING, handlers, strict=True):
            signal.signal(number, handler)
        sys.unraisablehook, _process = before, None


@contextmanager
def stop_on_interrupt(
    request_stop: Callable[[], None], waits_for: Callable[[], str] = lambda: ""
) -> Iterator[Requests]:
    """Within the block the first request calls `request_stop`; a second one raises StopSignal, and so does the first
    in an inner block that is `stopped_at_once`. Yields the requests made so far. `waits_for` says which work it
    is that the first one waits for.

    Outside the main thread signals can't be caught, and nothing is changed.
    """
    global _polite
    requests = _process or Requests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return

    def handle(number: int, frame: object) -> None:
        count = requests.add(number)
        if count > 1 or (count and requests.at_once):
            requests.stop(number)
        elif count:
            request_stop()
            held = f" ({what})" if (what := waits_for()) else ""
            with suppress(OSError):  # sys.stderr may be in use
                os.write(2, f"\nstopping after the batches in flight{held}; again to stop at once\n".encode())

    before, _polite = _polite, requests
    try:
        with handled(STOPPING, handle):
            yield requests
    finally:
        _polite = before


@contextmanager
def stopped_at_once() -> Iterator[None]:
    """Within the block, itself within `stop_on_interrupt`, the first request raises StopSignal, too, and so does one
    that came before the block. For work that can be lost without harm. Outside `stop_on_interrupt` nothing is changed.
    """
    requests = _polite
    if requests is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, requests.at_once = requests.at_once, True
    try:
        if requests.asked:
            raise StopSignal(requests.first)
        yield
    finally:
        requests.at_once = before


@contextmanager
def put_off() -> Iterator[None]:
    """Within the block, itself within one that is `stopped_at_once`, the first request waits; StopSignal is raised when
    the block is left. For short work that must not be left half done. Elsewhere nothing is changed."""
    requests = _polite
    if requests is None or not requests.at_once or threading.current_thread() is not threading.main_thread():
        yield
        return
    requests.at_once = False
    try:
        yield
    finally:
        requests.at_once = True
    if requests.asked:
        raise StopSignal(requests.first)


def stop_asked() -> int | None:
    """The signal of the first request since the main thread entered `stop_on_interrupt`; None: there is none."""
    here = threading.current_thread() is threading.main_thread()
    return _polite.first if here and _polite and _polite.asked else None


@contextmanager
def handled(signals: Sequence[int], handle: Callable[[int, object], None]) -> Iterator[None]:
    """Within the block these signals call `handle`, except a SIGHUP that is ignored; in the main thread only.

    A handler that was set meanwhile by other code stays.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    ours = [number for number in signals if not (ignored and number == signal.SIGHUP)]
    before = [signal.signal(number, handle) for number in ours]
    try:
        yield
    finally:
        for number, handler in zip(ours, before, strict=True):
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


class uninterrupted:  # noqa: N801 - a context manager, in a class because it is entered for every batch
    """Within the block SIGINT (Ctrl-C) waits; its handler is called when the block is left. For short work.

    Only the main thread has interrupts; elsewhere, and where no handler of Python's is set, nothing is changed.
    """

    __slots__ = ("_before", "_came")

    def __enter__(self) -> None:
        self._came, self._before = False, None
        if threading.get_ident() == threading.main_thread().ident:
            self._before = _signal.getsignal(_SIGINT)
            if self._before is not None:
                _signal.signal(_SIGINT, self._note)

    def _note(self, number: int, frame: object) -> None:
        self._came = True

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            _signal.signal(_SIGINT, self._before)
            if self._came:
                signal.raise_signal(signal.SIGINT)


def wait_for(changed: threading.Condition, ready: Callable[[], object], seconds: float | None = None) -> bool:
    """As `changed.wait_for(ready, seconds)`; without a limit the main thread looks for signals every `LOOK_SECONDS`.

    A signal that comes while the process is stopped (SIGSTOP) is given to any thread when it goes on. Handlers run in
    the main thread, which would sleep on in its lock.
    """
    if seconds is not None or threading.current_thread() is not threading.main_thread():
        return bool(changed.wait_for(ready, seconds))
    while not changed.wait_for(ready, LOOK_SECONDS):
        pass
    return True


@contextmanager
def woken_by_signals(selector: selectors.BaseSelector) -> Iterator[socket.socket]:
    """Within the block a signal that has a handler ends `selector.select`: the socket yielded here becomes readable.

    Without it, a signal that arrives just before the wait or in another thread is handled only when the wait ends,
    perhaps never.
    """
    bell, rope = socket.socketpair()
    with bell, rope:
        bell.setblocking(False)
        rope.setblocking(False)
        selector.register(bell, selectors.EVENT_READ)
        before = signal.set_wakeup_fd(rope.fileno(), warn_on_full_buffer=False)
        try:
            yield bell
        finally:
            signal.set_wakeup_fd(before)
            selector.unregister(bell)
