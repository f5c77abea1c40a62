"""The agent decides whether processes are started again, and tells the other nodes' agents when it ends for good."""

import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from marius_oac.errors import NodeLost
from marius_oac.nodes.launch.agent import LOST, exit_code_of, listen
from marius_oac.nodes.launch.agent_signals import AgentSignals
from marius_oac.nodes.launch.elastic import Agent, Meeting


@pytest.fixture
def agents(tmp_path):
    """Of nodes a and b, which have met; each may start again twice."""
    store = dist.HashStore()
    made, spared = [], lambda pid, code: code == -9
    for index in range(2):
        meeting = Meeting(store, ["a", "b"], index, 60.0, count=2 + index)
        meeting.round = 0
        about = AgentSignals(), ["x"], "127.0.0.1", 2, 600, 8.0, str(tmp_path)
        made.append(Agent(meeting, *about, exit_code_of, spared))
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


def test_processes_are_numbered_without_asking_the_store(agents):
    """torch's own way waits there for agents that have ended since, for as long as for each other to start."""
    store = listen("127.0.0.1", 0, 60.0)
    for agent in agents:
        agent._meeting._store = store
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda agent: agent._meeting.next_rendezvous(), agents))
    for agent, ranks in zip(agents, ([0, 1], [2, 3, 4]), strict=True):
        workers = agent._assign_worker_ranks(None, agent._meeting._index, 2, agent._worker_group.spec)
        assert [each.global_rank for each in workers] == [each.role_rank for each in workers] == ranks
        assert [each.local_rank for each in workers] == list(range(len(ranks)))
        assert {each.world_size for each in workers} == {each.role_world_size for each in workers} == {5}


def test_processes_that_another_one_takes_along_have_less_time_than_those_that_save(agents):
    calls, agent = [], agents[0]
    agent._pcontext = SimpleNamespace(close=lambda *given: agent._close(lambda *each: calls.append(each), *given))
    agent._pcontext.close()  # as torch does where one has failed
    agent._stop_workers(agent._worker_group)
    agent._shutdown(signal.SIGINT, 600)
    assert calls == [(None, 4.0), (signal.SIGTERM, 4.0), (signal.SIGINT, 600)]


def test_a_request_that_comes_while_processes_are_stopped_to_start_again_ends_the_run(agents):
    agent = agents[0]
    heard = agent._signals
    agent._pcontext = SimpleNamespace(
        close=lambda *given: agent._close(lambda *each: signal.raise_signal(signal.SIGTERM), *given)
    )
    heard.started(list)
    with heard.handled(), pytest.raises(SignalException) as raised:
        agent._restart_workers(agent._worker_group)
    assert raised.traceback[-2].name == "raise_late"
