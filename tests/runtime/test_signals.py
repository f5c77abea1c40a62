"""A signal ends a wait, whichever thread it comes to."""

import signal
import subprocess
import sys

import pytest

WAITS = """if True:
    import selectors, signal, sys, threading, time
    from contextlib import nullcontext
    from marius_oac.runtime.signals import woken_by_signals

    heard, release = [], threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: heard.append("heard"))
    other = threading.Thread(target=release.wait)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in this thread: the other one gets it
    seconds = float(sys.argv[1])
    with selectors.DefaultSelector() as selector, woken_by_signals(selector) if seconds > 5 else nullcontext() as bell:
        print("waits", flush=True)
        ready = [key.fileobj for key, _ in selector.select(seconds)]
        assert ready == [bell] * (seconds > 5)
        assert not ready or bell.recv(99)
    assert signal.set_wakeup_fd(-1) == -1
    release.set()
    while not heard:  # the other thread may have been late
        time.sleep(0)
    other.join()
    print(*heard)
"""


@pytest.mark.parametrize("seconds", [60, 1])
def test_a_signal_that_another_thread_gets_ends_the_wait(seconds):
    """After one second nobody has been woken but by time: the trap is there where the bell is not."""
    command = [sys.executable, "-c", WAITS, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "heard\n")
