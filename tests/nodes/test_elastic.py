"""The agent decides whether processes are started again, and tells the other nodes' agents when it ends for good."""

from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from marius_oac.errors import NodeLost
from marius_oac.nodes.launch.agent import LOST, exit_code_of
from marius_oac.nodes.launch.elastic import Agent, Meeting


@pytest.fixture
def agents(tmp_path):
    """Of nodes a and b, which have met; each may start again twice."""
    store = dist.HashStore()
    made, spared = [], lambda pid, code: code == -9
    for index in range(2):
        meeting = Meeting(store, ["a", "b"], index, "127.0.0.1", 60.0)
        meeting.round = 0
        made.append(Agent(meeting, ["x"], 1, "127.0.0.1", 2, 1, str(tmp_path), exit_code_of, spared))
    return made


def ends(agent, monkeypatch, code):
    """What the agent makes of a process that has ended so."""
    result = RunResult(WorkerState.FAILED, failures={0: SimpleNamespace(exitcode=code)})
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda self, group: result)
    assert agent._monitor_workers(agent._worker_group) is result
    return agent._remaining_restarts


@pytest.mark.parametrize("code", [LOST, -9, -11])
def test_after_a_loss_it_starts_again(agents, monkeypatch, code):
    assert ends(agents[0], monkeypatch, code) == 2
    assert not agents[0].failures and not agents[1]._meeting.num_nodes_waiting()


@pytest.mark.parametrize("code", [1, 2, 130, 143, 129])
def test_after_any_other_end_it_and_the_others_end(agents, monkeypatch, code):
    assert ends(agents[0], monkeypatch, code) == 0 and agents[0].failures
    with pytest.raises(NodeLost, match=f"node a: it has ended with exit code {code}"):
        agents[1]._meeting.next_rendezvous()


def test_the_last_start_is_the_last(agents, monkeypatch):
    agents[0]._remaining_restarts = 0
    assert ends(agents[0], monkeypatch, LOST) == 0
    with pytest.raises(NodeLost, match="node a: it has ended with exit code 1"):
        agents[1]._meeting.next_rendezvous()


def test_restarts_are_counted_by_all_alike(agents, monkeypatch):
    monkeypatch.setattr(LocalElasticAgent, "_rendezvous", lambda self, group: None)
    agents[0]._meeting.round = 2
    agents[0]._rendezvous(agents[0]._worker_group)
    assert agents[0]._remaining_restarts == 0


def test_who_has_done_all_waits_for_nobody(agents):
    agents[0]._exit_barrier()
    assert not agents[1]._meeting.num_nodes_waiting(), "the other may still be at its own end"
    with pytest.raises(NodeLost, match="node a: it has ended with exit code 0"):
        agents[1]._meeting.next_rendezvous()


def test_what_may_be_lost_has_ended_well_and_who_lost_all_says_nothing(agents):
    agent, lost = agents[0], set()
    processes = [SimpleNamespace(pid=pid, poll=lambda code=code: code) for pid, code in enumerate([-9, None, -15, -9])]
    for each in processes:
        agent._spare(each, lost, 2)
    assert [each.poll() for each in processes[:3]] == [0, None, -15] and processes[0].poll() == 0
    agent._exit_barrier()
    assert agent._meeting._store.check(["ended"])
    assert processes[3].poll() == 0
    other = agents[1]
    other._all_spared, other._meeting.leave = True, pytest.fail
    other._exit_barrier()
    assert agent._all_spared and lost == {0, 3}
