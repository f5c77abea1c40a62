"""What the processes of a group do in tests: `python -m tests.own_loop.processes.ranks FOLDER SCENARIO...`,
with RANK and WORLD_SIZE set. Each scenario's result is put into FOLDER/SCENARIO.RANK.pt."""

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

import marius_oac.torch as mt
from marius_oac.errors import MariusOacError
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.torch.processes import shard
from marius_oac.torch.processes.exchange import SharedSource
from marius_oac.torch.processes.home import Processes

COUNT, KEYS, SIZE = 12, 60, 6  # batches, keys, and keys of a batch and process
TIMEOUT = 20
RESHARDED = (2, 3, 1, 2)
"""How many processes go on with a checkpoint of how many."""


def batches(size, count=COUNT, seed=0):
    """Global batches, in the parts of `size` processes: [count][size]."""
    draw = torch.Generator().manual_seed(seed)
    return [[torch.randint(0, KEYS, (SIZE,), generator=draw) for _ in range(size)] for _ in range(count)]


class Training:
    """A model of one table and a dense part, of one process alone or of those of a group."""

    def __init__(
        self, group=None, optimizer=mt.Adagrad, lr=0.1, in_flight=4, mode="oac", texts=False, pieces=False, **given
    ):
        torch.manual_seed(3)
        self.items, self.texts, self.pieces = mt.Embedding(4, **given), texts, pieces
        self.head = nn.Linear(4, 1)
        self.model = nn.Sequential(self.items, self.head)
        self.rows = optimizer(self.items, lr=lr)
        self.dense = torch.optim.SGD(self.head.parameters(), lr=0.05)
        if pieces:  # of parameters and of what the optimizer keeps of them, one for each process
            fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(group),)))
            self.dense = torch.optim.SGD(self.head.parameters(), lr=0.05)
        alone = pieces or group is None or dist.get_world_size(group) == 1
        self.called = self.head if alone else nn.parallel.DistributedDataParallel(self.head, process_group=group)
        self.engine = mt.Engine(
            self.model,
            keys={self.items: 0},
            optimizers=[self.rows, self.dense],
            in_flight=in_flight,
            mode=mode,
            group=group,
        )

    def keys(self, keys):
        return [f"key {key}" for key in keys.tolist()] if self.texts else keys

    def loss(self, batch):
        wanted = batch[1][:, None].float() % 7
        found = self.model(batch[0]) if self.pieces else self.called(self.items(batch[0]))
        return (found - wanted).pow(2).mean()

    def train(self, batch, step=True):
        self.loss(batch).backward()
        self.stepped(step)

    def stepped(self, step=True):
        if step:
            self.rows.step()
            self.dense.step()
        self.rows.zero_grad()
        self.dense.zero_grad()

    def fed(self, parts):
        return [(self.keys(part), part) for part in parts]

    def table(self):
        self.model.eval()
        found = self.items(self.keys(torch.arange(KEYS))).clone()
        self.model.train()
        return found

    def result(self):
        return [self.table(), self.head.weight.detach().clone()]


class Numbered:
    """A loader that knows where it is."""

    def __init__(self, batches):
        self._batches, self._next = batches, 0

    def __iter__(self):
        while self._next < len(self._batches):
            self._next += 1
            yield self._batches[self._next - 1]
        self._next = 0

    def state_dict(self):
        return {"next": self._next}

    def load_state_dict(self, state):
        self._next = state["next"]


def concatenated(size, count=COUNT, **given):
    """Table and weights that one process has after the batches of all."""
    training = Training(**given)
    with training.engine as engine:
        for batch in engine.batches(training.fed(torch.cat(each) for each in batches(size, count))):
            training.train(batch)
    return training.result()


def mine(training, group, count=COUNT, seed=0):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return training.fed(parts[rank] for parts in batches(size, count, seed))


def trained(group, count=COUNT, **given):
    training = Training(group, **given)
    with training.engine as engine:
        for batch in engine.batches(mine(training, group, count)):
            training.train(batch)
        return training.result()


@contextlib.contextmanager
def told(lines):
    """Notes the line of an error."""
    try:
        yield
    except MariusOacError as error:
        lines.append(f"{type(error).__name__}: {error}")


def wrap(patch, kind, name, before=lambda: None, after=lambda: None):
    """Calls these before and after each call of a method."""
    method = getattr(kind, name)

    def wrapped(self, *given, **named):
        before()
        try:
            return method(self, *given, **named)
        finally:
            after()

    patch.setattr(kind, name, wrapped)


def kill_at_rename(when):
    """Kills this process where a checkpoint gets its name, `before` or `after` that, or where one loses it."""
    rename = os.rename

    def renamed(old, new):
        gets, loses = (re.fullmatch("[0-9]{10}", os.path.basename(each)) for each in (new, old))
        if (gets and when == "before") or (loses and when == "removing"):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(old, new)
        if gets and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    os.rename = renamed


class Scenarios:
    """Each method is one, called in every process."""

    def __init__(self, folder):
        self.folder, self.group = folder, dist.group.WORLD
        self.rank = dist.get_rank()

    def adagrad(self):
        return trained(self.group)

    def sgd(self):
        return trained(self.group, optimizer=mt.SGD)

    def adam(self):
        return trained(self.group, optimizer=mt.Adam, lr=0.02)

    def texts(self):
        return trained(self.group, texts=True)

    def ways(self):
        """The same bits for all of these."""
        return [trained(self.group, in_flight=flight, mode=mode)
                for mode, flight in (("sync", 1), ("oac", 1), ("oac", 4), ("oac", 16))]  # fmt: skip

    def disk(self):
        place = os.path.join(self.folder, f"rows {self.rank}")
        os.makedirs(place)
        return trained(self.group, memory=9 * 4173, path=place)

    def alone(self):
        """A group of each process alone."""
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        training = Training(groups[self.rank])
        with training.engine as engine:
            for batch in engine.batches(training.fed(parts[0] for parts in batches(2))):
                training.train(batch)
        return training.result()

    def resumed(self):
        """Saved within the loop, which is left; then gone on with by another engine, twice."""
        folder, training = os.path.join(self.folder, "saved"), Training(self.group)
        with training.engine as engine:
            found = [engine.load(folder)]
            for number, batch in enumerate(engine.batches(mine(training, self.group))):
                training.train(batch)
                if number in (3, 6):
                    engine.save(folder)
                if number == 8:
                    break
        training = Training(self.group)
        with training.engine as engine:
            found.append(engine.load(folder))
            for number, batch in enumerate(engine.batches(mine(training, self.group))):
                training.train(batch)
                if number == 1:
                    break
            engine.save(folder)
        training = Training(self.group)
        with training.engine as engine:
            found.append(engine.load(folder))
            for batch in engine.batches(mine(training, self.group)):
                training.train(batch)
            return [found, training.result(), sorted(os.listdir(folder)), len(training.items.table)]

    def _killed(self, when):
        """Saved twice, and rank 1 is killed within the second time."""
        training = Training(self.group)
        with training.engine as engine:
            for number, batch in enumerate(engine.batches(mine(training, self.group))):
                training.train(batch)
                if number in (3, 7):
                    if number == 7 and self.rank == 1:
                        kill_at_rename(when)
                    engine.save(os.path.join(self.folder, "killed"), keep=1)

    def killed_before(self):
        self._killed("before")

    def killed_after(self):
        self._killed("after")

    def killed_removing(self):
        self._killed("removing")

    def after_the_kill(self):
        training, trained = Training(self.group), 0
        with training.engine as engine:
            assert engine.load(os.path.join(self.folder, "killed"))
            for batch in engine.batches(mine(training, self.group)):
                training.train(batch)
                trained += 1
            return [trained, *training.result()]

    def resharded(self):
        """Saved by some processes, and gone on with by others; at last one checkpoint of all that are there."""
        groups = {1: dist.new_group([0]), 2: dist.new_group([0, 1]), 3: self.group}
        folder, found = os.path.join(self.folder, "resharded"), []
        for seed, size in enumerate(RESHARDED):
            if self.rank < size:
                training = Training(groups[size], optimizer=mt.Adam, lr=0.02)
                with training.engine as engine:
                    found.append([engine.load(folder), *training.result()])
                    for number, batch in enumerate(engine.batches(mine(training, groups[size], 4, seed))):
                        training.train(batch)
                        if number in (1, 3):
                            engine.save(folder)
                    found[-1] += [*training.result(), len(training.items.table)]
                found[-1] += [sorted(os.listdir(folder))]
            dist.barrier()
        return found

    def fsdp(self):
        """The dense part in pieces, the table as ever."""
        lines, training = [], Training(self.group, pieces=True)
        with training.engine as engine:
            for batch in engine.batches(mine(training, self.group)):
                training.train(batch)
            with told(lines):
                engine.save(os.path.join(self.folder, "fsdp"))
            table = training.table()
        return [lines, table, training.head.weight.full_tensor().detach().clone()]

    def workers(self):
        """Two passes, of a list and of loaders with workers that stay; forked beside the engine's threads, too."""
        found = []
        for context in (None, "fork", "spawn"):
            training = Training(self.group)
            loader = data = mine(training, self.group)
            if context is not None:
                loader = DataLoader(data, None, num_workers=1, persistent_workers=True, multiprocessing_context=context)
            with training.engine as engine:
                for _ in range(2):
                    for batch in engine.batches(loader):
                        training.train(batch)
                found.append(training.result())
        return found

    def damaged(self):
        """A byte of rank 1's part is another one, then its file is shorter; then it is as it was."""
        lines, folder = [], os.path.join(self.folder, "damaged")
        with (training := Training(self.group)).engine as engine:
            for batch in engine.batches(mine(training, self.group, 3)):
                training.train(batch)
            engine.save(folder)
            expected = training.result()
        path = os.path.join(folder, "process-1-of-2", "0000000003", "0.values.npy")
        with open(path, "rb") as file:
            content = file.read()
        dist.barrier()
        for other in (content[:-9] + bytes([content[-9] ^ 1]) + content[-8:], content[:-4], content):
            if self.rank == 1:
                with open(path, "wb") as file:
                    file.write(other)
            dist.barrier()
            with told(lines), (training := Training(self.group)).engine as engine:
                assert engine.load(folder)
                found = training.result()
            dist.barrier()
        return [lines, expected, found]

    def looks(self):
        """Rows are read by one process alone, within the loop and after it."""
        training, seen, asked = Training(self.group), [], torch.arange(KEYS)
        with training.engine as engine:
            for number, batch in enumerate(engine.batches(mine(training, self.group))):
                if self.rank == number % 2:
                    seen.append(training.table())
                    with engine.peek((asked, asked)):
                        seen.append(training.items(asked))
                training.train(batch)
                if number == 6:
                    break
            if self.rank:
                seen.append(training.table())
        return seen

    def skipped(self):
        training = Training(self.group)
        with training.engine as engine:
            before = training.table()
            for batch in engine.batches(mine(training, self.group, 4)):
                training.train(batch, step=False)
            return [before, training.table()]

    def accumulated(self):
        training = Training(self.group)
        with training.engine as engine:
            for number, batch in enumerate(engine.batches(mine(training, self.group, 5), accumulate=2)):
                (training.loss(batch) / 2).backward()
                if number % 2 or number == 4:
                    training.rows.step()
                    training.rows.zero_grad()
                    training.dense.zero_grad()
            return [training.table()]

    def uneven(self):
        """One process has fewer batches; the engine goes on with another loop."""
        lines, training, trained = [], Training(self.group), 0
        with training.engine as engine:
            with told(lines):
                for batch in engine.batches(mine(training, self.group, 7 - 2 * self.rank)):
                    training.train(batch)
                    trained += 1
            for batch in engine.batches(mine(training, self.group, 2)):
                training.train(batch)
                trained += 1
            return [lines, trained, training.table()]

    def _padded(self, loader=list, left=None, accumulate=1, fewer=5, in_flight=4):
        """Weights of all batches, and the result, where rank 0 has 7 and rank 1 has `fewer`. The loop is left after the
        batch number `left`, a checkpoint of it loaded, and gone on with."""
        folder, weights = os.path.join(self.folder, f"padded {loader.__name__} {left} {fewer}"), []
        for last in (left, None) if left is not None else (None,):
            training = Training(self.group, optimizer=mt.Adam, lr=0.02, in_flight=in_flight)
            given = loader(mine(training, self.group, (7, fewer)[self.rank]))
            with training.engine as engine:
                engine.load(folder)
                for number, batch in enumerate(engine.batches(given, accumulate, uneven="pad")):
                    (training.loss(batch) * engine.weight / accumulate).backward()
                    weights.append(engine.weight)
                    if number % accumulate == accumulate - 1 or len(weights) == 7:
                        training.stepped()
                    if number == last:
                        engine.save(folder)
                        break
                result = training.result()
        return [weights, *result]

    def padded(self):
        return [self._padded(), self._padded(left=5)]

    def padded_ways(self):
        lines, training = [], Training(self.group)
        with told(lines), training.engine as engine:
            for _ in engine.batches(mine(training, self.group, 3 * self.rank), uneven="pad"):
                lines.append("no batch is wanted")
        with told(lines), (training := Training(self.group)).engine as engine:
            next(engine.batches(mine(training, self.group), uneven=("error", "pad")[self.rank]))
        ends = self._padded(Numbered, left=5, fewer=6, in_flight=1)  # its end is found in a draw that gives nothing
        return [lines, self._padded(Numbered, left=5), ends, self._padded(accumulate=2)]

    def uneven_units(self):
        """The last batches of `accumulate` are fewer in one process."""
        lines, training, trained = [], Training(self.group, mode="sync"), 0
        with training.engine as engine, told(lines):
            for _ in engine.batches(mine(training, self.group, 8 - self.rank), accumulate=3):
                trained += 1
        return [lines, trained]

    def failed_loader(self):
        def loader(training):
            for number, batch in enumerate(mine(training, self.group)):
                if number == 5 and self.rank == 1:
                    raise ValueError("a bad file")
                yield batch

        lines, trained = [], 0
        for uneven in ("error", "pad"):
            with (training := Training(self.group)).engine as engine:
                try:
                    for batch in engine.batches(loader(training), uneven=uneven):
                        training.train(batch)
                        trained += 1
                except (ValueError, MariusOacError) as error:
                    lines.append(str(error))
        return [lines, trained]

    def wrong_keys(self):
        lines, training, trained = [], Training(self.group), 0
        given = mine(training, self.group)
        if self.rank == 0:
            given[5] = (torch.rand(3), given[5][1])
        with training.engine as engine, told(lines):
            for batch in engine.batches(given):
                training.train(batch)
                trained += 1
        return [lines, trained]

    def _fails(self, train, caught=False, **given):
        """The line with which a loop ends, in an engine that is closed after; `caught`: which does not see the
        error."""
        lines = []
        with told(lines):
            training = Training(self.group, **given)
            with training.engine as engine, told(lines) if caught else contextlib.nullcontext():
                for number, batch in enumerate(engine.batches(mine(training, self.group))):
                    train(training, number, batch)
        dist.barrier()
        return [lines]

    def rates(self, caught=False):
        def train(training, number, batch):
            if number == 4:
                training.rows.param_groups[0]["lr"] = 0.1 * (1 + self.rank)
            training.train(batch)

        return self._fails(train, caught)

    def told_late(self):
        """Rank 0 alone sees that rates differ. Its connections end before all its servers are told to fail, and rank 1
        sees that end before it hears the reason. They are lost, then closed."""
        return [*self._told_late(False), *self._told_late(True)]

    def _told_late(self, caught):
        ended, noticed = threading.Event(), threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            if self.rank == 0:
                wrap(patch, SharedSource, "__exit__", after=ended.set)
                wrap(patch, ShardServer, "fail", before=ended.wait)
            else:
                patch.setattr(shard, "_check_alike", lambda *about: None)
                wrap(patch, Processes, "_server_failed", after=noticed.set)
                wrap(patch, SharedSource, "wait_until_over", before=noticed.set)  # it waits for the reason
                wrap(patch, ZmqClient, "_server_failed", before=noticed.wait)
            return self.rates(caught)

    def half_stepped(self):
        return self._fails(lambda training, number, batch: training.train(batch, step=number < 3 or self.rank == 0))

    def twice(self):
        def train(training, number, batch):
            training.loss(batch).backward()
            training.rows.step()
            training.rows.step()

        return self._fails(train)

    def infinite(self):
        """Rows of one process become too large."""
        return self._fails(lambda training, number, batch: training.train(batch), lr=1e9, optimizer=mt.SGD)

    def raised(self):
        """The loop's body raises in one process, which goes on living."""
        lines, training = [], Training(self.group)
        with contextlib.suppress(ZeroDivisionError), told(lines), training.engine as engine:
            for number, batch in enumerate(engine.batches(mine(training, self.group))):
                if number == 5 and self.rank == 1:
                    raise ZeroDivisionError
                # No collective of its own, which would wait for the group's timeout.
                training.items(batch[0]).sum().backward()
                training.rows.step()
                training.rows.zero_grad()
        dist.barrier()
        return [lines]

    def apart(self):
        """One process saves where the other asks for batches."""
        lines, training = [], Training(self.group)
        with told(lines), training.engine as engine:
            for number, batch in enumerate(engine.batches(mine(training, self.group))):
                training.items(batch[0]).sum().backward()
                training.rows.step()
                training.rows.zero_grad()
                if number == 2 and self.rank == 1:
                    engine.save(os.path.join(self.folder, "apart"))
        dist.barrier()
        return [lines, os.path.exists(os.path.join(self.folder, "apart"))]

    def other_tables(self):
        lines = []
        for given in (
            {"std": 1 + self.rank},
            {"optimizer": (mt.SGD, mt.Adagrad)[self.rank]},
            {"in_flight": 2 + self.rank},
        ):
            with told(lines):
                Training(self.group, **given)
            dist.barrier()
        with told(lines):
            Training()
        with told(lines):
            mt.Engine(nn.Sequential(mt.Embedding(2)), keys={}, optimizers=[], group="all")
        return [lines]

    def other_folders(self):
        """Checkpoints of other numbers of processes, and parts that are not there."""
        lines, training = [], Training(self.group)
        with training.engine as engine:
            for name in ("process-0-of-3/0000000004", "0000000004"):
                folder = os.path.join(self.folder, f"layout {len(name)}")
                os.makedirs(os.path.join(folder, name), exist_ok=True)
                open(os.path.join(folder, name, "manifest.json"), "w").close()
                dist.barrier()
                for use in (engine.load, engine.save):
                    with told(lines):
                        use(folder)
            folder = os.path.join(self.folder, "part")
            engine.save(folder)
            if self.rank == 1:
                os.rename(os.path.join(folder, "process-1-of-2"), os.path.join(self.folder, "away"))
            dist.barrier()
            with told(lines):
                engine.load(folder)
            with told(lines):
                engine.save(
                    os.path.join(self.folder, "file", "within") if self.rank else os.path.join(self.folder, "f")
                )
        with told(lines):
            training.table()
        return [lines]

    def endless(self):
        """Trains until it is killed."""
        training = Training(self.group)
        with training.engine as engine:
            for number, batch in enumerate(engine.batches(mine(training, self.group, 100_000))):
                training.train(batch)
                if number == 5:
                    print("training", flush=True)
        return []

    def converted(self):
        torch.manual_seed(5)
        model = mt.convert(nn.Sequential(nn.Embedding(KEYS, 4)))
        rows = mt.SGD(model, lr=0.1)
        with mt.Engine(model, keys={"0": 0}, optimizers=[rows], group=self.group) as engine:
            model.eval()
            return [model[0](torch.arange(KEYS)), len(engine.tables[0])]


def main(folder, *scenarios):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]), timeout=timedelta(seconds=TIMEOUT))  # fmt: skip
    every = Scenarios(folder)
    open(os.path.join(folder, "file"), "w").close()
    for name in scenarios:
        faulthandler.dump_traceback_later(3 * TIMEOUT, exit=True)  # what hangs ends, with every thread's stack
        torch.save(getattr(every, name)(), os.path.join(folder, f"{name}.{every.rank}.pt"))
        dist.barrier()
    faulthandler.cancel_dump_traceback_later()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
