"""Ways to exchange the rows of batches between trainers; a process of this module is one of them (`all_to_all`)."""

from __future__ import annotations

import argparse
import os
import queue
import resource
import tempfile
import threading
import time
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.distributed as dist

from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.channel import Closed

ROWS, DIMENSION, DRAWS, BATCHES = 1_000_000, 64, 4_000, 16
PULL, PUSH = b"pull", b"push"
_SECURITY = Security(secret=bytes(32), run="benchmark")


class Wanted(NamedTuple):
    """Rows of a batch: their ids at their shards, int64 [n], shard by shard, and how many each shard has."""

    local: np.ndarray
    counts: np.ndarray

    @property
    def starts(self) -> list[int]:
        return [0, *np.cumsum(self.counts).tolist()]


def wanted(ids: np.ndarray, shards: int) -> tuple[Wanted, np.ndarray]:
    """`ids`, int64 [n], each once, as their shards know them, and the places of these in `ids`, int64 [n]."""
    order = np.argsort(ids % shards, kind="stable")
    return Wanted(ids[order] // shards, np.bincount(ids % shards, minlength=shards)), order


def draw(trainer: int, batch: int) -> np.ndarray:
    """A batch's rows, each once: int64 [n]; row k is drawn about as often as 1 / k."""
    random = np.random.default_rng((trainer, batch))
    return np.unique((ROWS ** random.random(DRAWS)).astype(np.int64) - 1)


class Exchange(Protocol):
    """Between a trainer and all shards. One thread asks and takes what it asked for, in this order; another gives."""

    def ask(self, rows: Wanted) -> None:
        """Asks for rows."""

    def answer(self, rows: Wanted) -> np.ndarray:
        """The values of the rows that were asked for first, float32 [n, D]."""

    def give(self, rows: Wanted, gradients: np.ndarray) -> None:
        """Sends gradients, float32 [n, D], of the rows whose values were taken first."""

    def finish(self) -> None:
        """Returns when all gradients are in the rows."""


class Shard:
    """Rows of one process. Gradients are added to them."""

    def __init__(self, shards: int) -> None:
        self.values = torch.zeros(-(-ROWS // shards), DIMENSION)
        self._lock = threading.Lock()

    def read(self, ids: np.ndarray) -> torch.Tensor:
        with self._lock:
            return self.values.index_select(0, torch.from_numpy(ids))

    def add(self, ids: np.ndarray, gradients: torch.Tensor) -> None:
        with self._lock:
            self.values.index_add_(0, torch.from_numpy(ids), gradients)


class Sockets:
    """Our transport: a request to each shard, and its answer. The process's own shard is called."""

    def __init__(self, number: int, shards: int, store: dist.Store, shard: Shard) -> None:
        self._number, self._shard, self._clients = number, shard, dict[int, ZmqClient]()
        names = {peer: f"trainer {peer}" for peer in range(shards)}
        self._server = ZmqServer(f"{os.environ['HOST']}:0", names[number], names, _SECURITY)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        store.set(f"shard {number}", self._server.address)
        for other in range(shards):
            if other != number:
                address = store.get(f"shard {other}").decode()
                self._clients[other] = ZmqClient(address, names[other], number, _SECURITY)

    def _serve(self) -> None:
        try:
            while True:
                peer, frames = (request := self._server.receive()).peer, request.frames or []
                ids = np.frombuffer(frames[1], np.int64)
                if frames[0] == PULL:
                    self._server.send(peer, [self._shard.read(ids).numpy()])
                else:
                    gradients = np.frombuffer(frames[2], np.float32).reshape(-1, DIMENSION)
                    self._shard.add(ids, torch.from_numpy(gradients))
        except Closed:
            pass

    def ask(self, rows: Wanted) -> None:
        for other, client in self._clients.items():
            client.send([PULL, rows.local[rows.starts[other] : rows.starts[other + 1]]])

    def answer(self, rows: Wanted) -> np.ndarray:
        values = np.empty((rows.local.size, DIMENSION), np.float32)
        starts = rows.starts
        mine = slice(starts[self._number], starts[self._number + 1])
        values[mine] = self._shard.read(rows.local[mine]).numpy()
        for other, client in self._clients.items():
            found = np.frombuffer(client.receive()[0], np.float32).reshape(-1, DIMENSION)
            values[starts[other] : starts[other + 1]] = found
        return values

    def give(self, rows: Wanted, gradients: np.ndarray) -> None:
        starts = rows.starts
        for other, client in self._clients.items():
            part = slice(starts[other], starts[other + 1])
            client.send([PUSH, rows.local[part], gradients[part]])
        mine = slice(starts[self._number], starts[self._number + 1])
        self._shard.add(rows.local[mine], torch.from_numpy(gradients[mine]))

    def finish(self) -> None:
        for client in self._clients.values():  # an answer comes after what was sent before it
            client.send([PULL, np.zeros(0, np.int64)])
        for client in self._clients.values():
            client.receive()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._server.abort()
        self._thread.join()
        self._server.close()


class AllToAll:
    """`torch.distributed`, gloo: counts, ids, values and gradients are a collective call each."""

    def __init__(self, shard: Shard, pulls: dist.ProcessGroup, pushes: dist.ProcessGroup) -> None:
        self._shard, self._pulls, self._pushes = shard, pulls, pushes
        self._asked, self._answered = deque[Wanted](), deque[Wanted]()

    def ask(self, rows: Wanted) -> None:
        counts = torch.from_numpy(rows.counts)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self._pulls)
        ids = torch.empty(int(theirs.sum()), dtype=torch.int64)
        dist.all_to_all_single(ids, torch.from_numpy(rows.local), theirs.tolist(), counts.tolist(), self._pulls)
        self._asked.append(Wanted(ids.numpy(), theirs.numpy()))

    def answer(self, rows: Wanted) -> np.ndarray:
        asked = self._asked.popleft()
        values = torch.empty(rows.local.size, DIMENSION)
        ours, theirs = rows.counts.tolist(), asked.counts.tolist()
        dist.all_to_all_single(values, self._shard.read(asked.local), ours, theirs, self._pulls)
        self._answered.append(asked)
        return values.numpy()

    def give(self, rows: Wanted, gradients: np.ndarray) -> None:
        asked = self._answered.popleft()
        found = torch.empty(asked.local.size, DIMENSION)
        ours, theirs = rows.counts.tolist(), asked.counts.tolist()
        dist.all_to_all_single(found, torch.from_numpy(gradients), theirs, ours, self._pushes)
        for first, last in zip(asked.starts[:-1], asked.starts[1:], strict=True):  # ids repeat between trainers
            self._shard.add(asked.local[first:last], found[first:last])

    def finish(self) -> None:
        """Every gradient has been added by the thread that gave."""

    def close(self) -> None:
        """Nothing is open."""


class Merged(NamedTuple):
    """A batch of a box: rows of all its trainers, and the places of each trainer's among them, int64 [n]."""

    rows: Wanted
    places: list[np.ndarray]


class Box:
    """The trainers of one host: their rows are merged in shared memory, and the first of them exchanges them.

    Zhao et al. (k-step merging), section 3.2: first within a node, then between nodes.
    """

    def __init__(
        self,
        member: int,
        members: int,
        inner: Sockets | AllToAll | None,
        shards: int,
        groups: tuple[dist.ProcessGroup, dist.ProcessGroup],
        slots: int,
    ) -> None:
        self._member, self._inner, self._shards, self._slots = member, inner, shards, slots
        self._pulls, self._pushes = groups
        folder = Path(tempfile.gettempdir(), "box")  # of this host alone, in memory: see `all_to_all`
        shape = (slots, members, DRAWS, DIMENSION)
        self._ids = self._shared(folder / "ids", (slots, members, DRAWS + 1), np.int64)
        self._values = self._shared(folder / "values", shape, np.float32)
        self._gradients = self._shared(folder / "gradients", shape, np.float32)
        self._asked, self._taken, self._given = 0, 0, 0
        self._merged = deque[Merged]()
        self._to_give = queue.SimpleQueue[Merged]()

    @staticmethod
    def _shared(path: Path, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.truncate(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        return np.memmap(path, dtype, "r+", shape=shape)

    def ask(self, rows: Wanted) -> None:
        """`rows` are those of one shard, that is, ids."""
        ids = self._ids[self._asked % self._slots]
        self._asked += 1
        ids[self._member, 0], ids[self._member, 1 : 1 + rows.local.size] = rows.local.size, rows.local
        dist.barrier(self._pulls)
        if self._inner is not None:
            each = [ids[member, 1 : 1 + ids[member, 0]] for member in range(ids.shape[0])]
            every, inverse = np.unique(np.concatenate(each), return_inverse=True)
            whole, order = wanted(every, self._shards)
            places = np.empty_like(order)
            places[order] = np.arange(order.size)
            cuts = np.cumsum([part.size for part in each])[:-1]
            self._merged.append(Merged(whole, np.split(places[inverse], cuts)))
            self._inner.ask(whole)

    def answer(self, rows: Wanted) -> np.ndarray:
        values = self._values[self._taken % self._slots]
        self._taken += 1
        if self._inner is not None:
            merged = self._merged.popleft()
            found = self._inner.answer(merged.rows)
            for member, places in enumerate(merged.places):
                np.take(found, places, axis=0, out=values[member, : places.size])
            self._to_give.put(merged)
        dist.barrier(self._pulls)
        return np.array(values[self._member, : rows.local.size])

    def give(self, rows: Wanted, gradients: np.ndarray) -> None:
        shared = self._gradients[self._given % self._slots]
        self._given += 1
        shared[self._member, : rows.local.size] = gradients
        dist.barrier(self._pushes)
        if self._inner is not None:
            merged = self._to_give.get()
            total = np.zeros((merged.rows.local.size, DIMENSION), np.float32)
            for member, places in enumerate(merged.places):
                total[places] += shared[member, : places.size]
            self._inner.give(merged.rows, total)

    def finish(self) -> None:
        if self._inner is not None:
            self._inner.finish()

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def exchange(way: str, phases: int, ahead: int, shard: Shard | None) -> Sockets | AllToAll | Box:
    """This trainer's exchange; collective."""
    rank, world, members = dist.get_rank(), dist.get_world_size(), int(os.environ["MEMBERS"])
    serving = list(range(0, world, members if phases == 2 else 1))
    between = [dist.new_group(serving) for _ in range(2)]
    boxes = [
        [dist.new_group(list(range(first, first + members))) for _ in range(2)] for first in range(0, world, members)
    ]
    inner: Sockets | AllToAll | None = None
    if shard is not None:
        if way == "sockets":
            store = dist.distributed_c10d._get_default_store()
            inner = Sockets(serving.index(rank), len(serving), store, shard)
        else:
            inner = AllToAll(shard, *between)
    if phases == 1:
        assert inner is not None
        return inner
    pulls, pushes = boxes[rank // members]
    return Box(rank % members, members, inner, len(serving), (pulls, pushes), ahead + 3)


def train(between: Exchange, plans: list[Wanted], batches: int, ahead: int) -> int:
    """Exchanges the rows of so many batches, the pulls so many batches ahead; returns how many rows there were."""
    ready: queue.Queue[tuple[Wanted, np.ndarray]] = queue.Queue(1)

    def pull() -> None:
        for number in range(batches + ahead):
            if number < batches:
                between.ask(plans[number % len(plans)])
            if number >= ahead:
                plan = plans[(number - ahead) % len(plans)]
                ready.put((plan, between.answer(plan)))

    thread = threading.Thread(target=pull)
    thread.start()
    rows = 0
    for _ in range(batches):
        plan, values = ready.get()
        rows += len(values)
        between.give(plan, np.ones_like(values))
    thread.join()
    between.finish()
    dist.barrier()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=("sockets", "all-to-all"))
    parser.add_argument("--phases", type=int, choices=(1, 2), default=1)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--ahead", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="env://")
    rank, members = dist.get_rank(), int(os.environ["MEMBERS"])
    step = members if options.phases == 2 else 1
    shards = dist.get_world_size() // step
    shard = Shard(shards) if rank % step == 0 else None
    # In two phases the first of a box divides rows among shards, not each trainer.
    plans = [wanted(draw(rank, batch), 1 if options.phases == 2 else shards)[0] for batch in range(BATCHES)]
    with closing(exchange(options.way, options.phases, options.ahead, shard)) as between:
        pushed = train(between, plans, BATCHES, options.ahead)
        before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        pushed += train(between, plans, options.batches, options.ahead)
        seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        sums = torch.tensor([0.0 if shard is None else float(shard.values.double().sum()), pushed * DIMENSION, cpu],
                            dtype=torch.float64)  # fmt: skip
        dist.all_reduce(sums)
        if sums[0] != sums[1]:
            raise RuntimeError(f"gradients were lost: {sums[0]} of {sums[1]}")
    dist.destroy_process_group()
    if rank == 0:
        print(seconds / options.batches, float(sums[2]) / options.batches, options.batches + BATCHES)


if __name__ == "__main__":
    main()
