import threading

import pytest

from marius_oac.torch import loop
from tests.own_loop.loops import patience


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    with patience():
        yield
    assert threading.active_count() == before


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    """A loop has its threads from the first batch on, except in mode sync. `threads(sample, worth)` sets others."""

    def chosen(sample, worth=-1.0):
        monkeypatch.setattr(loop, "SAMPLE", sample)
        monkeypatch.setattr(loop, "WORTH", worth)

    chosen(0)
    return chosen
