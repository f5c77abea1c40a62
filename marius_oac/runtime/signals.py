"""Signals: what Ctrl-C does, and waits that any signal ends.

The first Ctrl-C stops after the batches in flight, the second at once; so does the first while there are none.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def stop_on_interrupt(
    request_stop: Callable[[], None], nothing_to_lose: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Within the block SIGINT and SIGTERM call `request_stop`; a second one raises KeyboardInterrupt, and so does the
    first while there is `nothing_to_lose`.

    Outside the main thread signals can't be caught, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def handle(number: int, frame: object) -> None:
        nonlocal asked
        if asked or nothing_to_lose():
            raise KeyboardInterrupt
        asked = True
        request_stop()
        os.write(2, b"\nstopping after the batches in flight; again to stop at once\n")  # sys.stderr may be in use

    with handled((signal.SIGINT, signal.SIGTERM), handle):
        yield


@contextmanager
def handled(signals: Sequence[int], handle: Callable[[int, object], None]) -> Iterator[None]:
    """Within the block these signals call `handle`; in the main thread only."""
    before = [signal.signal(number, handle) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def woken_by_signals(selector: selectors.BaseSelector) -> Iterator[socket.socket]:
    """Within the block a signal that has a handler ends `selector.select`: the socket that this gives can be read then.

    Without it a signal that comes just before the wait, or to another thread, is handled when the wait ends; perhaps
    never.
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
