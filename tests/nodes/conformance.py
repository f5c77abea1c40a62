"""What every `Group` must do: scenarios that each member plays, in a thread or a process; they return plain values."""

import os
import signal
import threading

import numpy as np
import torch
from torch.distributed import distributed_c10d

from marius_oac.errors import NodeLost
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.kstep import KStep
from marius_oac.nodes.dense.shadow import Averaging, Bmuf
from marius_oac.runtime.channel import Closed

SIZES = (1, 2, 7, 1000, 100_003)


def numbers(rank, size, seed=0):
    return torch.from_numpy(np.random.default_rng([seed, rank, size]).standard_normal(size).astype(np.float32))


def hexed(tensor):
    return tensor.numpy().tobytes().hex()


def sums(group):
    """The same bits everywhere, twice; near the exact sum."""
    found = []
    for size in SIZES:
        tensor, again = numbers(group.rank, size), numbers(group.rank, size)
        group.all_reduce(tensor)
        group.all_reduce(again)
        assert torch.equal(tensor, again)
        exact = sum(numbers(rank, size).double() for rank in range(group.size))
        torch.testing.assert_close(tensor.double(), exact, rtol=0, atol=1e-6 * group.size)
        if group.size == 1:
            assert torch.equal(tensor, numbers(0, size))
        found.append(hexed(tensor[:1000]))
    return found


def types(group):
    doubles = torch.full((2, 3), 0.1 * (group.rank + 1), dtype=torch.float64)
    integers = torch.tensor([2**53 + group.rank], dtype=torch.int64)
    for tensor in (doubles, integers):
        group.all_reduce(tensor)
    return [doubles.flatten().tolist(), integers.tolist()]


def broadcasts(group):
    found = []
    for root in range(group.size):
        tensor = numbers(group.rank, 5)
        group.broadcast(tensor, root)
        found.append(hexed(tensor))
    return found


def exchanges(group):
    """Member r sends member s as many floats as r + 1, and tells all others two."""
    sent = [numbers(group.rank, group.rank + 1, seed=other) for other in range(group.size)]
    received = [torch.empty(rank + 1) for rank in range(group.size)]
    before = group.bytes_sent
    group.all_to_all(sent, received)
    assert group.bytes_sent - before == 4 * (group.rank + 1) * (group.size - 1)
    for rank, tensor in enumerate(received):
        assert torch.equal(tensor, numbers(rank, rank + 1, seed=group.rank))
    every = [torch.empty(2) for _ in range(group.size)]
    group.all_gather(numbers(group.rank, 2), every)
    assert group.bytes_sent - before == 4 * (group.rank + 3) * (group.size - 1)
    return [hexed(each) for each in every]


def gathers(group):
    value = {"rank": group.rank, "texts": ["ä" * group.rank, None, True], "number": 0.1, "large": 2**60}
    return [group.gather(value), group.gather(group.rank), group.gather(""), group.rank]


def wrong_arguments(group):
    found = []
    for call in (
        lambda: group.all_reduce(torch.zeros(4, 4).T[1:]),
        lambda: group.broadcast(torch.zeros(1), group.size),
        lambda: group.gather(object()),
    ):
        try:
            call()
        except (ValueError, TypeError) as error:
            found.append(type(error).__name__)
    group.barrier()  # nobody has waited for the others in vain
    return found


def payload(group):
    """bytes_sent after an all-reduce of 1000 floats, a broadcast of 10, a gather of 1, 10, 100 ..., and a barrier."""
    counts = [group.bytes_sent]
    for call in (
        lambda: group.all_reduce(torch.zeros(1000)),
        lambda: group.broadcast(torch.zeros(10)),
        lambda: group.gather(10**group.rank),
        group.barrier,
    ):
        before = group.bytes_sent
        call()
        counts.append(group.bytes_sent - before)
    return counts


def interleaved_channels(group):
    """A background thread and this one call at once, in an order that differs between members."""
    channel = group.channel("background")
    sums = []

    def background():
        for step in range(20):
            tensor = torch.full((1000,), float(step))
            channel.all_reduce(tensor)
            sums.append(tensor[0].item())

    thread = threading.Thread(target=background)
    if group.rank % 2:
        thread.start()
    mine = []
    for step in range(20):
        tensor = torch.full((1000,), 100.0 + step)
        group.all_reduce(tensor)
        mine.append(tensor[0].item())
        if step == 10 and not group.rank % 2:
            thread.start()
    thread.join()
    group.barrier()
    sent = channel.bytes_sent
    channel.close()
    return [sums, mine, sent]


def channel_where_torch_counts_otherwise(group):
    """torch names a group by a count of those that this process has made: since 2.14 also parts, in which others are
    not."""
    distributed_c10d._world.group_count += 5 * group.rank
    channel, tensor = group.channel("counted"), torch.ones(1)
    channel.all_reduce(tensor)
    channel.close()
    return tensor.item()


def abort_of_a_channel(group):
    """Member 0 aborts while its other thread waits in the channel for the last member, who then finds it lost.

    The group itself goes on.
    """
    channel = group.channel("doomed")
    group.barrier()
    last = group.size - 1
    if group.rank == last:
        group.barrier()  # not before the abort
    waiting = threading.Timer(0.05, channel.abort) if group.rank == 0 else None  # before or in the call: both must do
    if waiting is not None:
        waiting.start()
    outcome = ended(lambda: channel.all_reduce(torch.zeros(10)), names=False)
    again = ended(channel.barrier, names=False)
    if group.rank == 0:
        waiting.join()
    if group.rank != last:
        group.barrier()
    return [outcome, again]


def abort_of_the_group(group):
    """Member 0 aborts the group while its other thread waits in a channel for the last member, who waits elsewhere."""
    channel = group.channel("also doomed")
    group.barrier()
    waiting = threading.Timer(0.05, group.abort, [ArithmeticError("because")]) if group.rank == 0 else None
    if waiting is not None:
        waiting.start()
    last = group.rank == group.size - 1
    call = group.barrier if last else lambda: channel.all_reduce(torch.zeros(10))
    try:
        outcome = ended(call, names=False)
    except ArithmeticError as error:
        outcome = str(error)
    if waiting is not None:
        waiting.join()
    channel.close()
    return outcome


def ended(call, names=True):
    try:
        call()
    except NodeLost as error:
        return f"lost {error.node}: {error.why}" if names else "lost"
    except Closed:
        return "closed"
    return "done"


def lateness(group):
    """The last member comes to a channel, and to a call in it, when it is told to; not to the next call."""
    last, made = group.rank == group.size - 1, []
    group.tell()
    if last:
        group.hear()
    outcomes = [ended(lambda: made.append(group.channel("late")))]
    if last:
        group.hear()
    outcomes.append(ended(lambda: made[0].all_reduce(torch.zeros(10))))
    if last:
        group.hear()
    outcomes.append(ended(group.barrier))
    return outcomes


def death_at_a_channel(group):
    """The last member dies when all have come to make a channel."""
    group.barrier()
    if group.rank == group.size - 1:
        group.barrier()  # as in `channel`
        os.kill(os.getpid(), signal.SIGKILL)
    found = ended(lambda: group.channel("never"))
    return [found, ended(group.barrier)]


def death(group):
    """The last member dies while the others wait for it: in a process by kill -9, in a thread by abort."""
    group.barrier()
    if group.rank == group.size - 1:
        if group.name_of_kind == "process":
            os.kill(os.getpid(), signal.SIGKILL)
        group.abort()
        return []
    return [ended(lambda: group.all_reduce(torch.zeros(100))), ended(group.barrier), ended(lambda: group.gather(1))]


def coming_late(group):
    """The last member comes to the call when it is told to; the others are in it by then."""
    group.barrier()
    group.tell()
    if group.rank == group.size - 1:
        group.hear()
    return [ended(lambda: group.gather("x" * 100)), ended(group.barrier), str(group._failure).partition("\n")[0]]


def freezing(group):
    """The last member's process stops in its tracks; the others wait for it."""
    group.barrier()
    if group.rank == group.size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return ended(lambda: group.all_reduce(torch.zeros(100)))


def parting(group):
    """The first and the last go on when the one between them has left; then the last one leaves as well."""
    part = group.part([0, 2])
    if part is None:
        group.close()
        return "left"
    values, tensor = part.gather(part.rank), torch.full((3,), float(group.rank))
    part.broadcast(tensor, 1)
    channel = part.channel("c")
    total = numbers(part.rank, 4)
    channel.all_reduce(total)
    found = [list(part.names), values, tensor.tolist(), hexed(total)]
    if part.rank:
        group.close()
        return found
    try:
        part.barrier()
    except NodeLost as error:
        return [*found, f"lost {error.node}: {error.why}"]


def aborting_beside_a_part(group):
    """The last member is not in the part, and does not know of its channel. The first aborts a channel of all."""
    part = group.part([0, 1])
    if part is not None:
        part.channel("of the part")
    first, second = group.channel("first"), group.channel("second")
    if group.rank == 0:
        first.abort()
    found = [ended(first.barrier), ended(second.barrier)]
    return [*found, None if part is None else ended(part.barrier), ended(group.barrier)]


def leaving(group):
    """The last member closes regularly, the others call once more."""
    group.barrier()
    if group.rank == group.size - 1:
        group.close()
        return ended(group.barrier)
    return ended(group.barrier)


def _train(group, sync, steps):
    """A parameter that training moves; returns it."""
    parameter = torch.zeros(1000)
    optimizer = sync.optimizer([{"params": [parameter], "lr": 0.01, "weight_decay": 0.0}])
    sync.attach([parameter])
    for _ in range(2):
        sync.start()
        for step in range(steps):
            parameter.grad = numbers(group.rank, 1000, step)
            sync.reduce([parameter.grad], 1 / group.size)
            if optimizer is None:
                parameter -= 0.1 * parameter.grad
            else:
                optimizer.step()
            sync.updated(step)
        sync.finish()
    sync.stop()
    return hexed(parameter)


def lockstep_agreement(group):
    """Twice each, so that one that has ended may be made again."""
    return [[_train(group, AllReduce(group), 10), _train(group, KStep(group, 4, 3, epsilon=1.0), 10)] for _ in range(2)]


def background_agreement(group):
    """Trainers of different pace end together; the results differ from run to run, but not between trainers."""
    return [
        _train(group, sync, 5 + 100 * group.rank)
        for sync in (
            Averaging(group, 0.5, 1, True),
            Bmuf(group, 0.5, 2, True, momentum=0.5, nesterov=True),
            Averaging(group, 0.5, 5, False),
        )
    ]
