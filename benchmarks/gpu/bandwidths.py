"""How fast rows could move at best: over the link, out of the table and into it, and kernels to the device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.part import Part, Table, once
from benchmarks.gpu.place import Place, free_memory
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore

SECONDS = 120
TABLES = [
    Table("link", "Between host and device",
          "GB/s of copies from and to page-locked memory, on streams like the pipeline's. `both`: the sum of both "
          "directions at the same time.",
          {"direction": "direction", "mebibytes": "MiB a copy", "gigabytes_per_second": "GB/s"}),
    Table("rows", "Rows of the table in host memory",
          "The storage kernels read and commit random, sorted rows. GB/s counts rows with their timestamps, of all "
          "threads together.",
          {"what": "what", "row_bytes": "bytes a row", "threads": "threads", "gigabytes_per_second": "GB/s",
           "million_rows_per_second": "million rows/s"}),
    Table("launches", "Kernels",
          "One thread launches an addition to a tiny tensor again and again.",
          {"what": "what", "microseconds": "microseconds each", "per_second": "a second"}),
]  # fmt: skip
DIRECTIONS = ("to the device", "to the host", "both")
BATCH_ROWS = 100_000


def run(part: Part) -> None:
    place = part.place
    for mebibytes in place.pick((64, 16, 1, 256), (1,)):
        for direction in DIRECTIONS:
            where = {"direction": direction, "mebibytes": mebibytes}
            part.measure("link", where, lambda w=where: _link(place, w["direction"], w["mebibytes"] << 20))
    for state in (1, 100):
        _rows(part, RowLayout(100, state))
    part.measure("launches", {"what": "one by one"}, lambda: _launches(place))
    if place.on_gpu:
        part.measure("launches", {"what": "in a graph of 1,000"}, lambda: _graph(place))


def _link(place: Place, direction: str, num_bytes: int) -> dict[str, float]:
    streams = place.streams()
    shape = (num_bytes // 4,)
    host, device = [streams.staging(shape, torch.float32).fill_(1) for _ in range(2)], []
    device = [streams.empty(shape, torch.float32).fill_(2) for _ in range(2)]
    streams.begin()

    def up() -> None:
        with streams.on("up"):
            device[0].copy_(host[0], non_blocking=True)

    def down() -> None:
        with streams.on("down"):
            host[1].copy_(device[1], non_blocking=True)

    copies = {"to the device": [up], "to the host": [down], "both": [up, down]}[direction]
    found = place.times(lambda: [copy() for copy in copies], least=0.2)
    return {"gigabytes_per_second": len(copies) * num_bytes / found["median"] / 1e9}


def _rows(part: Part, layout: RowLayout) -> None:
    place = part.place

    def filled() -> closing:
        rows = min(place.pick(8_000_000, 200_000), int(0.4 * free_memory()) // layout.row_bytes)
        return closing(MemoryStore("rows", rows, layout, RowInitial("uniform", 1e-3, 0, "rows")))

    with once(filled) as store:
        for threads in place.pick((1, 16, 4, 8), (1, 2)):
            for what in ("read", "commit"):
                where = {"what": what, "row_bytes": layout.row_bytes, "threads": threads}
                part.measure("rows", where, lambda w=where: _moved(place, store(), w["what"], w["threads"]))


def _moved(place: Place, store: MemoryStore, what: str, threads: int) -> dict[str, float]:
    """Every thread has rows and buffers of its own, and moves them at once with the others, again and again."""
    count, width = place.pick(BATCH_ROWS, 2_000), store.layout.width
    timestamp, lock = [0], threading.Lock()

    def contestant(seed: int) -> Callable[[], None]:
        rows = np.unique(np.random.default_rng(seed).integers(store.num_rows, size=count))
        values, timestamps = np.zeros((rows.size, width), np.float32), np.zeros(rows.size, np.int64)

        def move() -> None:
            if what == "read":
                store.read(rows, values, timestamps)
                return
            with lock:
                timestamp[0] += 1
                mine = timestamp[0]
            store.commit(rows, values, mine)

        return move

    moves, times = [contestant(seed) for seed in range(threads)], place.pick(20, 3)
    with ThreadPoolExecutor(threads) as pool:

        def all_at_once() -> list[Any]:
            return list(pool.map(lambda move: [move() for _ in range(times)], moves))

        seconds = place.times(all_at_once, rounds=3)["median"]
    per_second = threads * times * count / seconds
    return {
        "gigabytes_per_second": per_second * store.layout.row_bytes / 1e9,
        "million_rows_per_second": per_second / 1e6,
    }


def _launches(place: Place) -> dict[str, float]:
    tensor = torch.zeros(32, device=place.device)

    def launch() -> None:
        for _ in range(1000):
            tensor.add_(1)

    return _each(place.times(launch)["median"] / 1000)


def _graph(place: Place) -> dict[str, float]:
    tensor, graph = torch.zeros(32, device=place.device), torch.cuda.CUDAGraph()
    tensor.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(1000):
            tensor.add_(1)
    return _each(place.times(graph.replay)["median"] / 1000)


def _each(seconds: float) -> dict[str, float]:
    return {"microseconds": 1e6 * seconds, "per_second": 1 / seconds}
