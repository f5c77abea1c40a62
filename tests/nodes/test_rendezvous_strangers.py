"""A stranger writes where agents meet, a pickle that runs a command among it: nobody reads it, and the agents meet."""

import base64
import os
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest
from torch.distributed import DistError, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from marius_oac.errors import NodeLost
from marius_oac.nodes.launch.agent import listen
from marius_oac.nodes.launch.elastic import Meeting
from marius_oac.nodes.launch.tunnel import LOOPBACK, StoreGate, StoreProxy
from marius_oac.nodes.transport.contract import Security
from tests.nodes.transport.strangers import Recorder, place, throw
from tests.threads import PATIENCE

SECURE = Security(secret=bytes(range(32)), run="rendezvous")
NODES = ["a", "b"]


class Evil:
    """Once unpickled, a folder is there."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def attack(port, target):
    """What the stranger says with a client of torch's store: a state of its rendezvous, and that a node has ended."""
    client = TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=PATIENCE))
    client.set("torch.rendezvous.marius-oac", base64.b64encode(pickle.dumps(Evil(target))).decode())
    client.set("ended", "0 2")
    assert client.get("ended") == b"0 2"


def test_what_a_stranger_could_do_at_a_store_without_a_secret(tmp_path, monkeypatch):
    """So the attack is worth it."""
    target = tmp_path / "done by a stranger"
    store = listen(LOOPBACK, 0, PATIENCE)
    attack(store.port, target)
    with pytest.raises(NodeLost, match="exit code 2"):
        Meeting(store, ["a"], 0, PATIENCE).next_rendezvous()
    assert not target.exists(), "ours reads no pickles"
    about = RendezvousParameters("c10d", f"{LOOPBACK}:{store.port}", "marius-oac", 1, 1, LOOPBACK, is_host="false")
    with pytest.raises(AttributeError):
        get_rendezvous_handler(about).next_rendezvous()
    assert target.exists(), "torch's own does"


def said_to_a_store(target):
    """The bytes of `attack`."""
    store = listen(LOOPBACK, 0, PATIENCE)
    recorder = Recorder(f"{LOOPBACK}:{store.port}")
    attack(place(recorder.address)[1], target)
    recorder.close()
    said = b"".join(said for said, _ in recorder.turns)
    assert b"torch.rendezvous.marius-oac" in said
    return said


def meet(index, store):
    meeting = Meeting(store, NODES, index, PATIENCE)
    found = meeting.next_rendezvous()
    assert not meeting.num_nodes_waiting()
    return found.rank


def test_strangers_at_the_gate_are_counted_and_the_agents_meet(tmp_path):
    target, lines = tmp_path / "done by a stranger", []
    said = said_to_a_store(target)
    with ExitStack() as stack:
        store = listen(LOOPBACK, 0, PATIENCE)
        gate = stack.enter_context(StoreGate(f"{LOOPBACK}:0", store.port, NODES, SECURE, PATIENCE, lines.append))
        host, port = place(gate.address)
        throw(gate.address, said)
        with pytest.raises(DistError):
            TCPStore(host, port, is_master=False, timeout=timedelta(seconds=1))
        silent = stack.enter_context(socket.create_connection((host, port)))
        line = stack.enter_context(StoreProxy(gate.address, "a", 1, SECURE, PATIENCE, PATIENCE))
        afar = TCPStore(LOOPBACK, line.port, is_master=False, timeout=timedelta(seconds=PATIENCE))
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(meet, range(2), [store, afar])) == [0, 1]
        throw(gate.address, said)
        assert silent.fileno() >= 0 and gate.error is None and line.error is None
        assert not store.check(["ended"]) and not target.exists()
    refused = [
        text for text in lines if text.startswith(f"strangers at the rendezvous, {gate.address}, were refused: ")
    ]
    assert len(refused) == 1 and "no handshake of ours, or another key: " in refused[0]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tunnel")]
