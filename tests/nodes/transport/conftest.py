import pytest

from marius_oac.nodes.transport import zmq_endpoint


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """An end that nobody waits at answers newcomers a hundred times a second, not ten: tests connect often."""
    monkeypatch.setattr(zmq_endpoint, "_KEEP", 0.01)
