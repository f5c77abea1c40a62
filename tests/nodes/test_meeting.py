"""Agents meet, or end: who is missing is named in time, and who has ended for good is waited for by nobody."""

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as dist

from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.launch import agent
from marius_oac.nodes.launch.agent import LocalProcesses, listen, store_of
from marius_oac.nodes.launch.elastic import Meeting, note_lost
from marius_oac.nodes.launch.frozen import age
from marius_oac.nodes.launch.parent import TOLD

NODES = ["a", "b", "c"]


@pytest.fixture
def meetings():
    store = listen("127.0.0.1", 0, 60.0)
    return [Meeting(store, NODES, index, 60.0) for index in range(3)]


def together(meetings):
    with ThreadPoolExecutor(len(meetings)) as pool:
        return [one.result() for one in [pool.submit(each.next_rendezvous) for each in meetings]]


def test_all_come_every_time_and_have_their_places_of_the_file(meetings):
    ports = []
    for number in range(2):
        found = together(meetings)
        assert [(each.rank, each.world_size) for each in found] == [(0, 3), (1, 3), (2, 3)]
        where = {(each.bootstrap_store_info.master_addr, each.bootstrap_store_info.master_port) for each in found}
        assert where == {("127.0.0.1", meetings[0]._store.port)} and meetings[0].use_agent_store
        ports.append(found[0].store)
        assert [each.round for each in meetings] == [number] * 3
        assert not any(each.num_nodes_waiting() for each in meetings)
    ports[0].set("left over", "x")
    assert not ports[1].check(["left over"]), "what a start left leads the next one astray"


def test_who_is_missing_is_named_in_time():
    meeting = Meeting(listen("127.0.0.1", 0, 60.0), NODES, 1, 0.3)
    began = time.monotonic()
    with pytest.raises(NodeLost, match=r"^node a, c: has not come to start in 0.3 s$") as lost:
        meeting.next_rendezvous()
    assert lost.value.exit_code == 1 and time.monotonic() - began < 30


def test_the_time_to_reach_the_first_node_is_part_of_the_meeting():
    store = listen("127.0.0.1", 0, 60.0)
    late = Meeting(store, NODES, 1, 3600.0, began=time.monotonic() - 4000.0)
    with pytest.raises(NodeLost, match="^node a, c: has not come to start in"):
        late.next_rendezvous()
    with pytest.raises(NodeLost, match="^node b: it has ended with exit code 1"):  # and does not come any more
        Meeting(store, NODES, 0, 3600.0).next_rendezvous()


def test_to_start_again_there_is_more_time():
    meeting = Meeting(listen("127.0.0.1", 0, 60.0), NODES, 1, 0.1, grace=0.2)
    meeting.round = 0
    with pytest.raises(NodeLost, match="^node a, c: has not come to start again in 0.3 s$"):
        meeting.next_rendezvous()


class Found(Exception):
    """What was looked for."""


@pytest.mark.parametrize(("seconds", "counts"), [(5.0, 5.0), (1000.0, 30.0)])
def test_the_time_since_an_agent_was_started_counts_but_for_the_last_of_it(monkeypatch, seconds, counts):
    """Its own, as it is slow or was stopped: the others have not waited for longer, and the rendezvous may be over."""
    found = []

    def store_of(processes, began):
        found.append(time.monotonic() - began)
        raise Found

    monkeypatch.setattr(agent, "store_of", store_of)
    monkeypatch.setattr(agent, "age", lambda: seconds)
    with pytest.raises(Found):
        agent.run(LocalProcesses(["x"], ["b"], "secret", timeout=60.0, patience=90.0))
    assert counts <= found[0] < counts + 20


def test_who_has_waited_for_the_first_node_for_long_enough_does_not_begin():
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    about = LocalProcesses(["x"], ["b"], "secret", nodes=["a", "b"], index=1, endpoint=where, patience=90.0)
    began = time.monotonic()
    with pytest.raises(NodeLost, match="^node a: it didn't answer at .* within 90 s$"), store_of(about, began - 100.0):
        pass
    assert time.monotonic() - began < 30


def test_the_age_of_a_process():
    assert abs(age() - (time.time() - psutil.Process().create_time())) < 2


def test_an_agent_knows_whether_its_processes_have_met(monkeypatch):
    class Stub:
        def __init__(self, meeting, *about):
            self._met = meeting._met

        def running(self):
            return [6, 7]

        def run(self):
            found = [self._met()]
            for name in ("8.met", "7.spare", "7.met"):
                (Path(os.environ[TOLD]) / name).touch()
                found.append(self._met())
            raise Found(found)

    monkeypatch.setattr("marius_oac.nodes.launch.elastic.Agent", Stub)
    with pytest.raises(Found) as found:
        agent.run(LocalProcesses(["x"], ["b"], "secret"))
    assert found.value.args == ([False, False, False, True],)


@pytest.mark.parametrize("code", [0, 2, 130, "lost"])
def test_who_has_not_met_all_waits_for_none_of_them_when_an_agent_is_gone(meetings, code):
    together(meetings)
    meetings[0]._met = lambda: False
    assert not meetings[0].num_nodes_waiting()
    if code == "lost":
        note_lost(meetings[0]._store, 1)
    else:
        meetings[1].leave(code)
    assert meetings[0].num_nodes_waiting() == 1 and meetings[2].num_nodes_waiting() == int(code == 2)


@pytest.mark.parametrize(("code", "ends_with"), [(2, 2), (1, 1), (130, 130), (0, 1)])
def test_who_has_ended_is_not_waited_for(meetings, code, ends_with):
    together(meetings)
    meetings[1].leave(code)
    assert [each.num_nodes_waiting() for each in meetings] == [int(code in (1, 2))] * 3, "those who save are let be"
    with pytest.raises(NodeLost, match=f"^node b: it has ended with exit code {code}: ") as lost:
        meetings[0].next_rendezvous()
    assert lost.value.exit_code == ends_with


def test_who_is_lost_is_not_waited_for_and_those_who_train_go_on(meetings):
    together(meetings)
    note_lost(meetings[0]._store, 1)
    assert not any(each.num_nodes_waiting() for each in meetings)
    with pytest.raises(NodeLost, match="^node b: its agent is lost: ") as lost:
        meetings[2].next_rendezvous()
    assert lost.value.exit_code == 1
    meetings[0].leave(2)  # the first word stands
    with pytest.raises(NodeLost, match="^node b: its agent is lost: "):
        meetings[0].next_rendezvous()


def test_those_who_train_are_told_that_others_start_again(meetings):
    together(meetings)
    with ThreadPoolExecutor(3) as pool:
        again = [pool.submit(meetings[0].next_rendezvous)]
        while not meetings[1].num_nodes_waiting():
            time.sleep(0)
        again += [pool.submit(each.next_rendezvous) for each in meetings[1:]]
        assert [each.result().rank for each in again] == [0, 1, 2]


def test_processes_may_end_by_themselves_before_they_are_started_again(monkeypatch):
    """What they end with may be why the others have lost this node: a full disk, say."""
    now = [100.0]
    monkeypatch.setattr("marius_oac.nodes.launch.elastic.time.monotonic", lambda: now[0])
    store = listen("127.0.0.1", 0, 60.0)
    mine = Meeting(store, NODES[:2], 1, 60.0, grace=5.0)
    for number in range(2):
        mine.round = number
        store.set(f"{number + 1}", "begun")
        found = []
        for seconds in (0.0, 4.9, 0.2):
            now[0] += seconds
            found.append(mine.num_nodes_waiting())
        assert found == [0, 0, 1]
    mine.round = 2
    mine.leave(2)  # or another: who has ended for good is no reason to wait
    assert mine.num_nodes_waiting() == 1


def test_processes_that_have_not_met_the_others_have_nothing_to_say_about_their_loss(meetings):
    store = meetings[0]._store
    for meeting in meetings:
        meeting.round = 0
    mine = Meeting(store, NODES, 1, 60.0, grace=3600.0, met=lambda: False)
    mine.round = 0
    assert mine.num_nodes_waiting() == 0
    store.set("1", "begun")
    assert mine.num_nodes_waiting() == 1


def test_two_of_one_name_are_refused(meetings):
    together(meetings)
    with pytest.raises(InputError, match="node b: two agents of this name were started"):
        Meeting(meetings[0]._store, NODES, 1, 60.0).next_rendezvous()


def test_the_first_nodes_agent_may_be_gone(meetings):
    class Gone:
        def check(self, keys):
            raise dist.DistNetworkError("Broken pipe")

        def compare_set(self, *args):
            raise dist.DistNetworkError("Broken pipe")

    for met in (True, False):
        meeting = Meeting(Gone(), NODES, 1, 60.0, met=lambda met=met: met)
        assert meeting.num_nodes_waiting() == int(not met)
        meeting.leave(0)


def test_the_first_node_may_end_between_its_port_and_its_store(monkeypatch):
    def gone(*given, **options):
        raise dist.DistNetworkError("closed\nby it")

    monkeypatch.setattr(agent, "_store_proxy", lambda *given: nullcontext(SimpleNamespace(port=1)))
    monkeypatch.setattr(dist, "TCPStore", gone)
    about = LocalProcesses(["x"], ["b"], "secret", nodes=["a", "b"], index=1)
    why = "node a: its agent, which serves the rendezvous, has ended: closed$"
    with pytest.raises(NodeLost, match=why), store_of(about):
        pass
