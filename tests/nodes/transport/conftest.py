import pytest

from marius_oac.nodes.transport import keeper
from marius_oac.nodes.transport.zmq_client import ZmqClient
from tests.nodes.transport.conformance import SERVER
from tests.nodes.transport.guarded import LIMITS, Guarded
from tests.nodes.transport.strangers import Recorder


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """An end that nobody waits at answers newcomers a hundred times a second, not ten: tests connect often."""
    monkeypatch.setattr(keeper, "KEEP", 0.01)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def guarded(request):
    guarded = Guarded(request.param)
    yield guarded
    guarded.close()


@pytest.fixture
def plain():
    guarded = Guarded()
    yield guarded
    guarded.close()


@pytest.fixture
def recorded(guarded):
    """What a client of rank 1 said from its connection to its farewell."""
    recorder = Recorder(guarded.address)
    client = ZmqClient(recorder.address, SERVER, 1, guarded.security, LIMITS)
    client.send([b"delete everything"])
    assert guarded.server.receive().peer == 1
    client.close()
    recorder.close()
    assert guarded.security.encrypted or any(b"delete everything" in said for said, _ in recorder.turns)
    return recorder.turns
