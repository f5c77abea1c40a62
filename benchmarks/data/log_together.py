"""What reading Parquet costs the trainers of a run together, beside one trainer that reads for itself alone.

    python -m benchmarks.data.log_together --rows 1048576 --trainers 2 4 8

The logs are those of `log_reading`: 13 numbers and 26 keys, integers or texts, in row groups of 131,072. "each" is what
is paid where each trainer decodes all row groups and takes its part of every batch; "together" where each decodes its
own and sends the others their examples. Both are the processor's seconds, and the bytes read from files, of all
trainers over those of a single one that reads the whole log: what a trainer pays for an example of its own, relative to
one that is alone. 1 is ideal. With digests, as a run reads. The trainers are threads of this process, with real
connections over the loopback device, so the seconds are also those of sending and receiving. Who is alone is a thread,
too, as planners are: what threads free is given back to the system sooner. Contestants take turns; figures are medians
over `--repeats`.
"""

import argparse
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from benchmarks.data.log_reading import BLOCK_ROWS, write_logs
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

SECURITY, TIMEOUT = Security(secret=bytes(32), run="benchmark"), 30.0


class Trainers:
    """So many trainers of this process, connected to each other."""

    def __init__(self, stack: ExitStack, count: int):
        names, inside, about = {rank: f"node{rank}" for rank in range(count)}, Network(), (SECURITY, Limits(), TIMEOUT)
        doors = [ZmqServer("127.0.0.1:0", name, names, *about, print) for name in names.values()]
        self.sources: list[RemoteSource] = []
        self.servers: list[ShardServer] = []
        shard = cast(Any, SimpleNamespace(dispatch_server=None))  # no rows are asked for
        for rank, door in enumerate(doors):
            own = inside.server(names[rank], {rank: names[rank]})
            others = [other for other in names if other != rank]
            self.servers.append(stack.enter_context(ShardServer(shard, [(own, [rank]), (door, others)], self._fail)))
        for rank, name in names.items():
            lines: list[Client] = [ZmqClient(door.address, names[other], rank, *about) if other != rank
                                   else inside.client(name, rank) for other, door in enumerate(doors)]  # fmt: skip
            source = RemoteSource(lines, [], True, 1, lambda *batches: None, lambda: None)
            self.sources.append(stack.enter_context(source))

    def _fail(self, error: BaseException) -> None:
        for source in self.sources:
            source.fail(error)

    def read(self, config: CtrConfig, files: list[LogFile], stack: ExitStack, pool: ThreadPoolExecutor) -> int:
        """Reads the log together, each trainer its part of every batch; returns the examples."""
        count, path = len(self.sources), files[0].path
        shares = [[RankSlice(rank, count)] for rank in range(count)]
        logs = []
        for rank, (source, server) in enumerate(zip(self.sources, self.servers, strict=True)):
            reading = LogReading(config, files, [(0, 0)], BLOCK_ROWS, [Pieces(path)], shares)
            own = OwnSpans(reading, rank)
            stack.enter_context(SpanServer(server, own, count, 4, lambda role: None))
            logs.append(SharedLog(reading, rank, SpanClient(source, range(count))))
        blocks = range(-(-files[0].rows // BLOCK_ROWS))
        return sum(pool.map(lambda log: sum(log.read(0, number)[1].size for number in blocks), logs))


def alone(files: list[LogFile], config: LogConfig, share: RankSlice, batch: int) -> int:
    """Reads a trainer's part of every batch from the whole log; returns the examples."""
    found = 0
    with BlockReader(files, config, pieces=[Pieces(files[0].path)]) as reader:
        for number in range(-(-files[0].rows // BLOCK_ROWS)):
            block = reader.lazy_block(0, number, BLOCK_ROWS)
            found += block.examples(share.of_batches(block.size, batch)).size
    return found


def in_thread(pool: ThreadPoolExecutor, work: Callable[[], int]) -> int:
    """What `work` returns in a thread of the pool."""
    return pool.submit(work).result()


def cost(work: Callable[[], int]) -> tuple[int, float, int]:
    """Examples that were read, the processor's seconds, and the bytes read."""
    bytes_before, begin = bytes_read(), time.process_time()
    found = work()
    return found, time.process_time() - begin, bytes_read() - bytes_before


def bytes_read() -> int:
    """Bytes that this process has read of files so far; what came over connections is not among them."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def measure(path: Path, config: LogConfig, counts: list[int], batch: int, repeats: int) -> None:
    """Prints a line for each number of trainers."""
    files = list(scan_files([str(path)], config))
    tree = {"task": "ctr", "data": config.model_dump(), "model": {"network": "lr"}, "training": {"batch_size": batch}}
    whole, click = partial(alone, files, config, RankSlice(), batch), CtrConfig.model_validate(tree)
    for count in counts:
        with ExitStack() as stack:
            pool = stack.enter_context(ThreadPoolExecutor(count))
            trainers = Trainers(stack, count)

            def together(trainers: Trainers = trainers, pool: ThreadPoolExecutor = pool) -> int:
                with ExitStack() as reading:
                    return trainers.read(click, files, reading, pool)

            one = partial(alone, files, config, RankSlice(count // 2, count), batch)
            ratios: list[tuple[float, ...]] = []
            for turn in range(repeats + 1):
                rows, seconds, read = cost(partial(in_thread, pool, whole))
                own, seconds_each, read_each = cost(partial(in_thread, pool, one))
                found, seconds_together, read_together = cost(together)
                assert found == rows
                each = rows / own
                if turn:
                    ratios.append((1e6 * seconds / rows, each * seconds_each / seconds, each * read_each / read,
                                   seconds_together / seconds, read_together / read))  # fmt: skip
            figures = [statistics.median(column) for column in zip(*ratios, strict=True)]
            print(f"{path.name:20} {count:8} {figures[0]:8.2f}" + "".join(f" {each:9.2f}" for each in figures[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1 << 19)
    parser.add_argument("--trainers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--batch", type=int, default=4096, help="examples of a batch of all trainers")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    pa.set_cpu_count(1)
    print(f"{machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}, numpy {np.__version__}")
    print(f"{'log':20} {'trainers':>8} {'us alone':>8} {'each':>9} {'bytes':>9} {'together':>9} {'bytes':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for path, config in write_logs(Path(folder), options.rows).values():
            if path.suffix == ".parquet":
                measure(path, config, options.trainers, options.batch, options.repeats)


if __name__ == "__main__":
    main()
