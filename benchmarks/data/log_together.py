"""What reading Parquet costs the trainers of a run together, beside one trainer that reads for itself alone.

    python -m benchmarks.data.log_together --rows 1048576 --trainers 2 4 8
    python -m benchmarks.data.log_together --rows 2097152 --logs integers

The logs are those of `log_reading`: 13 numbers and 26 keys, integers or texts, in row groups of 131,072. "each" is what
is paid where each trainer decodes all row groups and takes its part of every batch; "together" where each decodes its
own and sends the others their examples. Both are the processor's seconds, and the bytes read from files, of all
trainers over those of a single one that reads the whole log: what a trainer pays for an example of its own, relative to
one that is alone. 1 is ideal. With digests, as a run reads. "faults" are those of pages, for a thousand rows, alone and
together. Each trainer is a process, with real connections over the loopback device, so the seconds are also those of
sending and receiving. All of them are counted, the system's as well. Who reads is a thread, as planners are.
Contestants take turns; figures are medians over `--repeats`.
"""

import argparse
import multiprocessing
import platform
import re
import resource
import statistics
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from benchmarks.data.log_reading import BLOCK_ROWS, Logs
from benchmarks.machine import machine
from marius_oac.config.ctr import CtrConfig, LogConfig
from marius_oac.data.batches.rank_slice import RankSlice
from marius_oac.data.logs.files import BlockReader, LogFile, scan_files
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.together import LogReading, OwnSpans, SharedLog
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.spans import SpanClient, SpanServer
from marius_oac.nodes.transport.contract import Client, Limits, Security
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer

SECURITY, TIMEOUT = Security(secret=bytes(32), run="benchmark"), 60.0


class Trainer:
    """One trainer of several, in a process of its own, connected to the others."""

    def __init__(self, stack: ExitStack, rank: int, count: int, config: CtrConfig, files: list[LogFile]):
        self._stack, self._rank, self._count, self._config, self._files = stack, rank, count, config, files
        self._pool, self._reading = stack.enter_context(ThreadPoolExecutor(1)), ExitStack()
        self._names, self._about = {each: f"node{each}" for each in range(count)}, (SECURITY, Limits(), TIMEOUT)
        self._inside, self._name = Network(), self._names[rank]
        self._door = ZmqServer("127.0.0.1:0", self._name, self._names, *self._about, print)
        own = self._inside.server(self._name, {rank: self._name})
        others = [each for each in self._names if each != rank]
        shard = cast(Any, SimpleNamespace(dispatch_server=None))  # no rows are asked for
        endpoints = [(own, [rank]), (self._door, others)]
        self._server = stack.enter_context(ShardServer(shard, endpoints, lambda error: self._source.fail(error)))
        self._source: RemoteSource
        self._log: SharedLog

    def address(self) -> str:
        """Where it listens."""
        return self._door.address

    def connect(self, addresses: list[str]) -> None:
        """Connects to all trainers."""
        lines: list[Client] = [ZmqClient(address, self._names[other], self._rank, *self._about) if other != self._rank
                               else self._inside.client(self._name, other)
                               for other, address in enumerate(addresses)]  # fmt: skip
        source = RemoteSource(lines, [], True, 1, lambda *batches: None, lambda: None)
        self._source = self._stack.enter_context(source)

    def alone(self, rank: int, count: int) -> int:
        """Reads a trainer's part of every batch, one of `count`, from the whole log; returns the examples."""
        return self._pool.submit(self._alone, RankSlice(rank, count)).result()

    def _alone(self, share: RankSlice) -> int:
        found, (file,), config = 0, self._files, self._config
        with BlockReader(self._files, config.data, pieces=[Pieces(file.path)]) as reader:
            for number in range(-(-file.rows // BLOCK_ROWS)):
                block = reader.lazy_block(0, number, BLOCK_ROWS)
                found += block.examples(share.of_batches(block.size, config.training.batch_size)).size
        return found

    def open(self) -> None:
        """Begins to answer the other trainers."""
        shares = [[RankSlice(rank, self._count)] for rank in range(self._count)]
        pieces = [Pieces(self._files[0].path)]
        reading = LogReading(self._config, self._files, [(0, 0)], BLOCK_ROWS, pieces, shares)
        own = OwnSpans(reading, self._rank)
        self._reading.enter_context(SpanServer(self._server, own, self._count, 4, lambda role: None))
        self._log = SharedLog(reading, self._rank, SpanClient(self._source, range(self._count)))

    def together(self) -> int:
        """Reads its part of every batch with the others; returns the examples."""
        blocks = range(-(-self._files[0].rows // BLOCK_ROWS))
        return self._pool.submit(lambda: sum(self._log.read(0, each)[1].size for each in blocks)).result()

    def close(self) -> None:
        """Answers no more."""
        self._reading.close()

    def used(self) -> np.ndarray:
        """The processor's seconds, the bytes of files and the faults of pages so far. Bytes that came over connections
        are not among them."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        read = int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])
        return np.array([usage.ru_utime + usage.ru_stime, read, usage.ru_minflt])


def serve(pipe: Connection, *about: Any) -> None:
    """Does what it is told, in a process: methods of a trainer, until there is None."""
    pa.set_cpu_count(1)
    with ExitStack() as stack:
        trainer = Trainer(stack, *about)
        while asked := pipe.recv():
            pipe.send(getattr(trainer, asked[0])(*asked[1:]))


class Trainers:
    """All trainers."""

    def __init__(self, stack: ExitStack, count: int, config: CtrConfig, files: list[LogFile]):
        spawning = multiprocessing.get_context("spawn")
        self._pipes = []
        for rank in range(count):
            pipe, other = spawning.Pipe()
            process = spawning.Process(target=serve, args=(other, rank, count, config, files))
            process.start()
            stack.callback(process.join)
            stack.callback(pipe.send, None)
            other.close()
            self._pipes.append(pipe)
        self.ask("connect", self.ask("address"))

    def ask(self, *what: Any, first: bool = False) -> list[Any]:
        """What all trainers, or the first one alone, answer. They work at the same time."""
        pipes = self._pipes[:1] if first else self._pipes
        for pipe in pipes:
            pipe.send(what)
        return [pipe.recv() for pipe in pipes]

    def cost(self, work: Callable[[], list[int]]) -> tuple[int, np.ndarray]:
        """Examples that were read, and what all trainers used: `Trainer.used`."""
        before = sum(self.ask("used"))
        found = sum(work())
        return found, sum(self.ask("used")) - before

    def turn(self, count: int) -> list[float]:
        """The figures of a turn."""
        rows, whole = self.cost(lambda: self.ask("alone", 0, 1, first=True))
        own, one = self.cost(lambda: self.ask("alone", count // 2, count, first=True))

        def together() -> list[int]:
            self.ask("open")
            found = self.ask("together")
            self.ask("close")
            return found

        found, all_of_them = self.cost(together)
        assert found == rows
        each, shared = one / whole * rows / own, all_of_them / whole
        faults = [1000 * used[2] / rows for used in (whole, all_of_them)]
        return [1e6 * whole[0] / rows, each[0], each[1], shared[0], shared[1], *faults]


def measure(path: Path, config: LogConfig, counts: list[int], batch: int, repeats: int) -> None:
    """Prints a line for each number of trainers."""
    files = list(scan_files([str(path)], config))
    tree = {"task": "ctr", "data": config.model_dump(), "model": {"network": "lr"}, "training": {"batch_size": batch}}
    for count in counts:
        with ExitStack() as stack:
            trainers = Trainers(stack, count, CtrConfig.model_validate(tree), files)
            turns = [trainers.turn(count) for _ in range(repeats + 1)]
        figures = [statistics.median(column) for column in zip(*turns[1:], strict=True)]
        print(f"{path.name:20} {count:8} {figures[0]:8.2f}" + "".join(f" {each:9.2f}" for each in figures[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1 << 19)
    parser.add_argument("--trainers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--logs", nargs="+", default=["integers", "texts"], choices=["integers", "texts"])
    parser.add_argument("--batch", type=int, default=4096, help="examples of a batch of all trainers")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}, numpy {np.__version__}")
    names = ("each", "bytes", "together", "bytes", "faults", "together")
    print(f"{'log':20} {'trainers':>8} {'us alone':>8}" + "".join(f" {name:>9}" for name in names))
    with tempfile.TemporaryDirectory() as folder:
        logs = Logs(Path(folder), options.rows)
        for name in options.logs:
            measure(*logs.of(f"Parquet, {name}"), options.trainers, options.batch, options.repeats)


if __name__ == "__main__":
    main()
