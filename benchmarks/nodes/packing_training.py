"""The heaviest node of a training run: virtual shards as training packs them, against the hash alone.

    python -m benchmarks.nodes.packing_training  # codex-s and a generated log; about a minute on one core

Trainers measure the first batches of a run as they do before it begins (`nodes/sharded/placement.py`); what counts
are other batches, later in the run. A load is the heaviest node's of the mean, in bytes of the values that are looked
up; with bags that the nodes add up (`pool_at: shard`) a row counts for every bag that it is in. Seconds are CPU time
of the slowest trainer's pass.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.machine import machine
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import open_graph
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.sharded.placement import measure
from marius_oac.nodes.shards.packing import even, heaviest, pack
from marius_oac.storage.placement import NUM_SHARDS
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask

NODES = (2, 4, 8)
Make = Callable[[ThreadGroup, list[float]], NodesHome]


def graphs() -> Iterator[tuple[str, Make]]:
    """codex-s with many and few negatives, which are even by themselves."""
    graph = open_graph("codex-s")
    for count in (500, 50):
        negatives = {"count": count}
        config = Config.build(
            {"data": {"path": "codex-s"}, "training": {"batch_size": 1000, "epochs": 10, "negatives": negatives}}
        )
        yield (
            f"codex-s, batches of 1,000, {count} negatives a side",
            lambda group, weights, config=config: NodesHome(GraphTask(config, graph), group, weights, None, None),
        )


def logs(folder: Path) -> Iterator[tuple[str, Make]]:
    """A generated log with bags and histories."""
    spec = LogSpec(keys=1_000_000, skew=1.05, lists=True)
    write_day(folder / "day.parquet", 0, 400 * 1024, spec)
    for size in (1024, 4096):
        for place in ("trainer", "shard"):
            data = {"train": str(folder / "day.parquet"), **spec.schema()}
            data["multi_valued"] = [{"name": "tags", "pooling": "mean", "pool_at": place}]
            model = {"network": "dien", "target": "c0", "dimension": 16}
            tree = {"task": "ctr", "data": data, "model": model, "training": {"batch_size": size}}
            config = Config.build(tree)
            yield (
                f"generated log, batches of {size:,}, bags pooled by the {place}",
                lambda group, weights, config=config: NodesHome(start_ctr_task(config)[0], group, weights, None, None),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=int, default=50, help="batches of the pass that measures")
    arguments = parser.parse_args()
    print(f"one thread; {machine()}")
    print(
        "\n| run | nodes | hash alone | packed | of the measured batches | seconds a batch |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (*graphs(), *logs(Path(folder))):
            for size in NODES:
                measured, later, seconds = np.zeros(NUM_SHARDS), np.zeros(NUM_SHARDS), []
                weights = [1.0] * size
                for group in ThreadGroup.members(size):
                    home = make(group, weights)
                    last = home.task.schedule.last
                    half = last // 2
                    measure(home, range(1))  # loads the kernels
                    begin = time.process_time()
                    measured += measure(home, range(min(arguments.measure, half)))
                    seconds.append(time.process_time() - begin)
                    later += measure(home, range(half, min(last, half + 200)))
                nodes = pack(measured, np.ones(NUM_SHARDS, np.int64), [NUM_SHARDS] * size, weights)
                loads = (heaviest(later, even(weights, NUM_SHARDS).nodes, weights), heaviest(later, nodes, weights))
                own, each = heaviest(measured, nodes, weights), max(seconds) / min(arguments.measure, half)
                print(f"| {name} | {size} | {loads[0]:.3f} | **{loads[1]:.3f}** | {own:.3f} | {each:.4f} |", flush=True)


if __name__ == "__main__":
    main()
