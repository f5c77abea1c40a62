import threading

import pytest

from tests.training.own_loop.loops import patience


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    with patience():
        yield
    assert threading.active_count() == before
