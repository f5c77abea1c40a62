import threading

import pytest


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """As beside, but without its patience: processes that hang end themselves."""
    before = threading.active_count()
    yield
    assert threading.active_count() == before
