"""Bytes that each process reads when a run over nodes goes on, on as many processes and on one more.

    python -m benchmarks.nodes.resuming
    python -m benchmarks.nodes.resuming --keys 2000000 --nodes 2 4 8

The processes of before are made one after another: each has a table of keys, by the placement of a run, and saves its
part of a checkpoint. Those that go on are threads of this process, with the group, the hand-over and the stores of a
run. Counted is each block that is read from the files of a checkpoint, dense parameters left out. "Own" are the bytes
of a process's rows and keys, on average. "Whole files" is what it took when checksums were of whole files: every
process hashed all files of its own part, or with another number of processes those of all parts, and then mapped its
own rows, which are read a second time where the memory has not kept them.
"""

import argparse
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from marius_oac.config.task import build_config
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.spread.contract import Part, SpreadRows
from marius_oac.nodes.spread.handover import Handover
from marius_oac.nodes.spread.key_move import shard_of_rows
from marius_oac.nodes.spread.spread import spread
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runtime.files import checked
from marius_oac.runtime.machine.binding import UNBOUND
from marius_oac.storage.placement import Placement
from marius_oac.tasks.ctr.task import CtrTask, start_ctr_task

READ: dict[str, int] = {}
"""Bytes by thread."""


def count_reads() -> None:
    """Lets `CheckedFile` count what it reads."""
    real = checked.CheckedFile._checked

    def counted(self: checked.CheckedFile, block: int, end: int) -> bytes:
        name = threading.current_thread().name
        READ[name] = READ.get(name, 0) + end - block * checked.BLOCK_BYTES
        return real(self, block, end)

    checked.CheckedFile._checked = counted  # type: ignore[method-assign]


def task_of(folder: Path, keys: int, dimension: int) -> CtrTask:
    """A task with one table of keys and that many rows at most."""
    spec = LogSpec(categorical=4, numeric=3, keys=3000, skew=1.05)
    write_day(folder / "day.parquet", 0, 1000, spec)
    tree = {"task": "ctr", "device": "cpu", "data": {"train": str(folder / "day.parquet")} | spec.schema(),
            "keys": {"capacity": keys},
            "model": {"network": "deepfm", "dimension": dimension, "hidden": [16]}}  # fmt: skip
    return start_ctr_task(build_config(tree))[0]


def save(task: CtrTask, placement: Placement, keys: np.ndarray, folder: Path) -> list[Checkpoints]:
    """Each process's part."""
    found = []
    for place in range(placement.num_nodes):
        with ExitStack() as stack:
            rows = spread(task.tables(), Part(placement, place))
            (table,) = rows.make_tables(stack, folder, UNBOUND)
            vocabularies = (keys % 4).astype(np.uint16)
            mine = placement.nodes[shard_of_rows(vocabularies, keys, placement.num_shards)] == place
            own = vocabularies[mine], keys[mine], np.zeros(mine.sum(), np.uint32)
            for index in rows._key_tables:
                index.admit(*own, index.find(*own), distinct=True)
            found.append(Checkpoints(folder / f"{placement.num_nodes}-{place}" / "checkpoints"))
            found[-1].save(10, [table.store], {}, {}, 1, rows.state_arrays())
    return found


def same(rows: SpreadRows, part: Checkpoints, stack: ExitStack, folder: Path) -> None:
    """What a process does that goes on as it was."""
    (table,) = rows.make_tables(stack, folder, UNBOUND)
    opened = part.open(as_read=True)
    rows.load_state_arrays(opened.arrays())
    opened.restore([table.store])


def go_on(task: CtrTask, parts: list[Checkpoints], before: Placement, after: Placement, folder: Path) -> float:
    """Seconds that it takes all processes."""

    def work(group: ThreadGroup) -> None:
        rows = spread(task.tables(), Part(after, group.rank))
        with ExitStack() as stack:
            if after.num_nodes == before.num_nodes:
                return same(rows, parts[group.rank], stack, folder)
            (table,) = rows.make_tables(stack, folder, UNBOUND)
            handover = Handover(group, range(group.size), ClusterPeers(group).agreed)
            rows.take([each.open(as_read=True) for each in parts], before, [table.store], handover)

    members = ThreadGroup.members(after.num_nodes, timeout=600)
    threads = [threading.Thread(target=work, args=(each,), name=str(each.rank)) for each in members]
    READ.clear()
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--dimension", type=int, default=16)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    options = parser.parse_args()
    count_reads()
    print(machine())
    keys = np.random.default_rng(1).integers(-(2**62), 2**62, options.keys)
    print(f"{'processes':>10} {'own MB':>8} {'whole files':>12} {'read at most':>13} {'of own':>7} {'seconds':>8}")
    for count in options.nodes:
        with tempfile.TemporaryDirectory() as name:
            folder, before = Path(name), Placement.by_number(count)
            task = task_of(folder, options.keys, options.dimension)
            parts = save(task, before, keys, folder)
            whole = sum(each.stat().st_size for part in parts for each in part.folder.rglob("*.npy")) / 1e6
            for after in (count, count + 1):
                seconds = go_on(task, parts, before, Placement.by_number(after), folder)
                own, most = whole / after, max(READ.values()) / 1e6
                hashed = whole if after > count else own
                print(f"{f'{count} -> {after}':>10} {own:8.1f} {f'{(hashed + own) / own:.1f} x':>12} {most:13.1f} "
                      f"{most / own:7.3f} {seconds:8.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
