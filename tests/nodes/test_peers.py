"""Processes that decide alike."""

import signal

import pytest

from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.runs.sharded.peers import ClusterPeers
from marius_oac.runtime.signals import StopSignal
from tests.nodes.worlds import together


def test_what_one_makes_all_have():
    crews = [ClusterPeers(group) for group in ThreadGroup.members(3)]
    assert together(crews, lambda peers: peers.from_lead(lambda: {"made": peers.rank})) == [{"made": 0}] * 3


def test_a_signal_to_the_one_that_makes_it_stops_all():
    crews = [ClusterPeers(group) for group in ThreadGroup.members(3)]

    def stopped():
        raise StopSignal(signal.SIGTERM)

    def heard(peers):
        with pytest.raises(StopSignal) as caught:
            peers.from_lead(stopped)
        peers.wait()  # they are still together
        return caught.value.number

    assert together(crews, heard) == [signal.SIGTERM] * 3


def test_an_error_is_the_makers_alone():
    (peers,) = [ClusterPeers(group) for group in ThreadGroup.members(1)]
    with pytest.raises(ZeroDivisionError):
        peers.from_lead(lambda: 1 / 0)
