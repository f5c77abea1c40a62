"""Signals as they usually are when a program starts, also where whoever started the tests has had them ignored.

`nohup` ignores SIGHUP, and a shell without job control ignores SIGINT and SIGQUIT in its background jobs. Programs
inherit that: Python then installs no handler for Ctrl-C, and tests that send one would wait for ever.
"""

import os
import signal

KEPT = "TESTS_IGNORE_SIGHUP"
"""A variable for workers of pytest-xdist, which can't see any more that SIGHUP was ignored."""


def as_usual() -> None:
    """Undoes it for this process and for those that it starts. This process itself is not ended by a SIGHUP where that
    was ignored: tests go on when the terminal closes."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or KEPT in os.environ:
        os.environ[KEPT] = "1"
        signal.signal(signal.SIGHUP, lambda number, frame: None)  # a program that is started has the default then
