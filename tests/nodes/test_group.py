"""The contract of `Group`, on threads and on processes."""

import multiprocessing.connection
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.groups import torch_group
from marius_oac.nodes.groups.contract import ring_bytes
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.groups.torch_group import TorchGroup, await_all
from marius_oac.nodes.launch.agent import listen
from marius_oac.runtime.signals import handled
from tests.nodes import conformance
from tests.nodes.worlds import ProcessWorld, ThreadWorld, together

KINDS = {"threads": ThreadWorld, "processes": ProcessWorld}


@pytest.fixture(
    scope="module", params=[(kind, size) for kind in KINDS for size in (1, 2, 3)], ids=lambda p: f"{p[1]} {p[0]}"
)
def world(request):
    kind, size = request.param
    world = KINDS[kind](size)
    world.size = size
    yield world
    world.close()


def test_sums_have_the_same_bits_on_every_member_and_in_every_run(world):
    first, second = world.play("sums"), world.play("sums")
    assert first == [first[0]] * world.size == second


def test_sums_of_other_types(world):
    doubles, integers = world.play("types")[0]
    assert doubles == pytest.approx([0.1 * world.size * (world.size + 1) / 2] * 6, rel=1e-15)
    assert integers == [2**53 * world.size + world.size * (world.size - 1) // 2]


def test_a_broadcast_is_the_root_s_tensor(world):
    from tests.nodes.conformance import hexed, numbers

    assert world.play("broadcasts") == [[hexed(numbers(root, 5)) for root in range(world.size)]] * world.size


def test_everybody_gets_what_each_sends_it(world):
    expected = [conformance.hexed(conformance.numbers(rank, 2)) for rank in range(len(world.play("exchanges")))]
    assert all(found == expected for found in world.play("exchanges"))


def test_everybody_gathers_plain_values_by_rank(world):
    for rank, (values, ranks, empty, own) in enumerate(world.play("gathers")):
        assert values == [
            {"rank": each, "texts": ["ä" * each, None, True], "number": 0.1, "large": 2**60}
            for each in range(world.size)
        ]
        assert (ranks, empty, own) == (list(range(world.size)), [""] * world.size, rank)


def test_wrong_arguments_are_refused_before_anybody_waits(world):
    assert world.play("wrong_arguments") == [["ValueError", "ValueError", "TypeError"]] * world.size


def test_payload_is_what_ring_and_tree_send(world):
    found = world.play("payload")
    others = world.size - 1
    assert [each[1] for each in found] == [2 * others * 4000 // world.size] * world.size
    assert sum(each[2] for each in found) == 40 * others
    assert [each[3:] for each in found] == [[others * world.size, 0]] * world.size


def test_channels_do_not_wait_for_each_other(world):
    ring = 20 * ring_bytes(4000, world.size)
    steps = [float(world.size * step) for step in range(20)]
    assert (
        world.play("interleaved_channels")
        == [[steps, [world.size * (100.0 + step) for step in range(20)], ring]] * world.size
    )


def test_an_abort_ends_the_call_that_waits_and_the_others_find_it_lost(world):
    if world.size == 1:
        pytest.skip("nobody waits alone")
    first, *others = world.play("abort_of_a_channel")
    assert first == ["closed", "closed"]
    assert others == [["lost", "lost"]] * (world.size - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_of_the_group_ends_its_channels(kind):
    """A thread that waits there for members who wait for this one would else never end."""
    world = KINDS[kind](3, timeout=60.0)
    assert world.play("abort_of_the_group") == ["because", "lost", "lost"]
    world.close()


def test_dense_parameters_agree_in_lockstep(world):
    first, second = found = world.play("lockstep_agreement")[0]
    assert first == second
    assert world.play("lockstep_agreement") == [found] * world.size


def test_dense_parameters_agree_when_trainers_of_different_pace_end(world):
    found = world.play("background_agreement")
    assert found == [found[0]] * world.size


@pytest.mark.parametrize("kind, size", [("threads", 2), ("threads", 4), ("processes", 2), ("processes", 4)])
def test_a_member_that_dies_is_named_at_once(kind, size):
    world = KINDS[kind](size, timeout=60.0)
    begin = time.monotonic()
    *found, _ = world.play("death")
    assert time.monotonic() - begin < 30
    for outcomes in found:
        assert len(set(outcomes)) == 1, "the second call said something else"
        assert outcomes[0].startswith(f"lost rank {size - 1}: has ")
    world.close()


@pytest.mark.slow  # the next one's last member freezes, too
def test_a_member_that_freezes_is_named_when_it_has_been_silent():
    world = ProcessWorld(3, timeout=2.0)
    assert world.play("freezing", heard=2) == ["lost rank 2: has not been heard of for 2 s"] * 2
    world.members[2].kill()
    world.close()


def call_of_a_frozen_member():
    """What ended the call of one that was frozen until the other had sent what it waits for, and was gone."""
    world = ProcessWorld(2, timeout=60.0)
    world.say("coming_late", 0, 1)
    world.await_told(0, 1)
    assert world.silent(0.5)
    os.kill(world.members[0].pid, signal.SIGSTOP)
    world.say("come", 1)
    assert world.silent(0.5)
    world.members[1].kill()
    world.members[1].join()
    os.kill(world.members[0].pid, signal.SIGCONT)
    assert multiprocessing.connection.wait(world.lines[:1], 30), "it waits for ever"
    lost, again, why = world.hear(1)[0]
    assert lost == again == "lost rank 1: has ended: its connection is closed"
    world.close()
    return why


def test_a_call_that_gloo_forgets_is_given_up():
    """A frozen process has what it waits for in its socket, and the end of the connection behind it. gloo then begins
    to send, can't, and does not tell the call, whose receive is done. Rarely it sees the end first, and tells."""
    forgotten = "gloo has forgotten a call of a connection that is closed"
    assert any(call_of_a_frozen_member() == forgotten for _ in range(4)), "this was not the case that is forced here"


class Waiting:
    """A call that ends, or fails, after so many waits have timed out, just then; None: never."""

    def __init__(self, waits, error=None):
        self.left, self.error = waits, error

    def wait(self, timeout=None):
        if self.left is None or self.left > 0:
            self.left = self.left and self.left - 1
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise self.error

    def is_completed(self):
        return self.left == 0


@pytest.fixture
def finishing(monkeypatch):
    """`finishing(work, patience, ...)`: waits for a call while heartbeats say these; returns by how much the references
    to the process group have grown."""
    monkeypatch.setattr(torch_group, "_SLICE", timedelta(0))
    monkeypatch.setattr(torch_group, "_SEVERED", 0.0)

    def finish(work, *patience, aborted=False):
        group, said = TorchGroup.__new__(TorchGroup), iter(patience)
        group._process_group, group._aborted, group._closed, group._slot = object(), aborted, False, 0
        group._shared = SimpleNamespace(heartbeat=SimpleNamespace(patience=lambda slot: next(said)))
        before, how = sys.getrefcount(group._process_group), "done"
        try:
            group._finish(work if callable(work) else lambda group: work)
        except (RuntimeError, KeyboardInterrupt) as error:
            how = str(error.with_traceback(None))  # what is kept of it refers to the process group, too
            error.__context__ = None
        how = how or ("broken off" if group._aborted else "a group that seems usable")
        return how, sys.getrefcount(group._process_group) - before

    return finish


def test_a_call_is_waited_for_as_long_as_nobody_is_gone(finishing):
    assert finishing(Waiting(3), None, None, None) == ("done", 0)
    assert finishing(None) == ("done", 0), "NCCL's, which are waited for on the GPU"


def test_a_call_that_fails_says_so_at_once(finishing):
    assert finishing(Waiting(1, RuntimeError("closed")), None) == ("closed", 0)


def test_a_call_that_waits_in_vain_is_given_up_and_its_process_group_left(finishing):
    """To destroy the process group would be to wait for the call."""
    given_up = "gloo has forgotten a call of a connection that is closed"
    assert finishing(Waiting(None), None, 0.0, 0.0) == (given_up, 1)
    assert finishing(Waiting(None), aborted=True) == (given_up, 1)
    assert finishing(Waiting(4), None, 60.0, 60.0, 60.0) == ("done", 0), "what a member has sent that has left"


def test_a_call_that_can_not_begin_or_is_broken_off(finishing):
    """The second goes on, perhaps beside a later one: the group is of no use."""

    def refused(group):
        raise RuntimeError("no such operation")

    def interrupted(group):
        raise KeyboardInterrupt

    assert finishing(refused) == ("no such operation", 0)
    assert finishing(interrupted) == ("broken off", 1)


def test_a_member_that_is_asked_to_stop_in_a_call_leaves_without_the_others():
    world = ProcessWorld(2, timeout=60.0)
    world.say("coming_late", 0, 1)
    world.await_told(0, 1)
    assert world.silent(0.5)
    os.kill(world.members[0].pid, signal.SIGINT)
    world.members[0].join(30)
    assert world.members[0].exitcode == 1, "it waits for a call that has not ended"
    world.say("come", 1)
    dead, (lost, again, _) = world.hear()
    assert (dead, lost, again) == ("dead", *["lost rank 0: has left the group"] * 2)
    world.close()


def test_a_member_that_lives_is_waited_for_however_long_it_takes():
    """No number says how long: neither the seconds of silence, nor what gloo is told when it connects."""
    timeout = 1.0
    world = ProcessWorld(3, timeout)
    world.say("lateness", 0, 1, 2)
    world.await_told(0, 1, 2)
    for _ in range(2):  # at a channel, and in a call
        assert world.silent(1.25 * timeout)
        world.say("come", 2)
    assert world.silent(1.25 * timeout)
    os.kill(world.members[2].pid, signal.SIGSTOP)  # who is waited for so long is lost as soon as anybody
    stopped, lost = time.monotonic(), f"lost rank 2: has not been heard of for {timeout:g} s"
    assert world.hear(2) == [["done", "done", lost]] * 2
    assert time.monotonic() - stopped < 10 * timeout
    world.members[2].kill()
    world.close()


def test_a_member_that_dies_where_a_channel_is_made_is_named():
    world = ProcessWorld(3, timeout=1.0)
    begin = time.monotonic()
    *found, _ = world.play("death_at_a_channel")
    assert time.monotonic() - begin < 30
    assert found == [["lost rank 2: has ended: its connection is closed"] * 2] * 2
    world.close()


def test_members_meet_in_a_channel_whatever_groups_each_has_made():
    world = ProcessWorld(2, timeout=5.0)
    assert world.play("channel_where_torch_counts_otherwise") == [2.0, 2.0]
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_leaves_is_named(kind):
    world = KINDS[kind](2, timeout=60.0)
    assert world.play("leaving") == ["lost rank 1: has left the group", "closed"]
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_goes_on_when_others_leave_and_names_whom_it_loses(kind):
    from tests.nodes.conformance import hexed, numbers

    world = KINDS[kind](3, timeout=60.0)
    first, second, third = world.play("parting")
    found = [["rank 0", "rank 2"], [0, 1], [2.0] * 3, hexed(numbers(0, 4) + numbers(1, 4))]
    assert (first[:-1], second, third) == (found, "left", found)
    assert first[-1] == "lost rank 2: has left the group"
    world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_ends_the_calls_of_its_group_alone(kind):
    """Members of a part have made other groups than the last member has."""
    world = KINDS[kind](3, timeout=60.0)
    aborted = "lost rank 0: has aborted"
    assert world.play("aborting_beside_a_part") == [
        ["closed", "done", "done", "done"], [aborted, "done", "done", "done"], [aborted, "done", None, "done"]
    ]  # fmt: skip
    world.close()


def test_members_that_call_different_things_are_told():
    def work(group):
        with pytest.raises(ValueError, match="members called"):
            group.all_reduce(torch.zeros(3 + group.rank))

    together(ThreadGroup.members(2), work)


def test_a_member_that_does_not_come_is_named():
    first, _ = ThreadGroup.members(2, timeout=0.01, names=["anna", "bert"])
    with pytest.raises(NodeLost, match=r"node bert: has not come to exchange 1 within 0.01 s"):
        first.barrier()


@pytest.mark.parametrize("values, message", [({}, "RANK: not set"), ({"RANK": "x"}, "RANK: 'x' is not a number")])
def test_an_environment_without_torchrun_is_refused(monkeypatch, values, message):
    monkeypatch.delenv("RANK", raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        TorchGroup.from_environment(timeout=1.0)


def test_members_wait_for_each_other_and_no_longer_than_they_may():
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(await_all, store, 3, 60.0) for _ in range(2)]
        assert wait(first, 0.1).not_done == set(first)
        await_all(store, 3, 60.0)
        assert [each.result(60) for each in first] == [None, None]
    with pytest.raises(RuntimeError, match="not all have come within 0.1 s"):
        await_all(dist.HashStore(), 2, 0.1)


def test_a_signal_ends_the_wait_for_members():
    with handled([signal.SIGALRM], lambda *_: (_ for _ in ()).throw(InterruptedError)), pytest.raises(InterruptedError):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        await_all(dist.HashStore(), 2, 60.0)


def test_a_member_does_not_connect_before_all_have_come(monkeypatch):
    """The library's own waits can't be ended by a signal."""
    store = listen("127.0.0.1", 0, 60.0)
    there = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}
    for name, value in {**there, "TORCHELASTIC_USE_AGENT_STORE": True}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: pytest.fail("it connects"))
    with pytest.raises(NodeLost, match="^node rank 1: has not found the others at 127.0.0.1:.*: not all have come"):
        TorchGroup.from_environment(timeout=1.0)
