"""Whether a process outlives the one that has started it."""

import os
import selectors
import signal

STOPS = "import os, signal; print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
"""A program that is stopped before it has run a line of this package."""

ASKS = "import ctypes; asked = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(asked)); print(asked.value)"
"""A program that says which signal the kernel sends it when its parent ends (PR_GET_PDEATHSIG)."""


def ends_with(above, said=b""):
    """Kills a process that has started another one, which writes its number; returns whether that ends, too."""
    with above:
        above.stdin.write(said)
        above.stdin.flush()
        number = int(above.stdout.readline())
        below = os.pidfd_open(number)
        above.kill()
        with selectors.DefaultSelector() as selector:
            selector.register(below, selectors.EVENT_READ)
            ended = selector.select(60)
        if not ended:
            os.kill(number, signal.SIGKILL)
        os.close(below)
        return bool(ended)
