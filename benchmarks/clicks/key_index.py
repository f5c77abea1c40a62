"""The index of keys: whole batches resolved by 1 and more threads, growth beside a reader, memory.

    python -m benchmarks.clicks.key_index --only batches --sizes 33000000       # 33 million keys
    python -m benchmarks.clicks.key_index --only growth --sizes 100000000       # memory at 10^8 keys

Batches: of 409,600 ids (100 ids of 4,096 examples), in millions of ids a second, as training resolves them: the
different ones are told apart and looked up once, and those without a row get one. "known": all keys have rows, drawn
uniformly; "zipf": drawn by a power law; "new": no key has a row, and the index grows from nothing to its size; every
second of these batches is handed to `insert` at once, which tells its keys apart: "inserted". "mixed": half of each
batch is new, and the index grows by a tenth. Medians over batches; all of "new" and "inserted".

Beside "known", in turns of the same batches: "gather" is the limit, two independent reads a key, a line of slots and
a record, at places that are known and fetched ahead, by as many threads; "searchsorted" is `numpy.unique` of the batch
and NumPy's search in the sorted keys, which no insertion can follow; "dict" is `torch.unique` and a Python dict, of 2
million keys only (it takes over 100 bytes a key). Growth: one thread inserts all keys in batches, another looks up a
batch of 1,000 known keys again and again; its longest call is how long growing may hold a reader up, next to the
longest call when nothing is inserted.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import machine
from marius_oac.kernels.cpu import atomics
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.storage.keys.index import KeyIndex
from marius_oac.storage.reserved import reserve

BATCH = 409_600
_BATCHES = 6
_DICT_KEYS = 2_000_000
_READ = 1_000
ZEROS, _NO_CHECKS = np.zeros(BATCH, np.uint16), np.zeros(BATCH, np.uint32)
_AHEAD = 32
_SLOT_BYTES = 6  # of a key, in the middle


def resident(field: str) -> int:
    """Bytes of memory that this process has (VmRSS) or had at most (VmHWM)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def keys_of(numbers: np.ndarray) -> np.ndarray:
    """Different keys without an order, int64 [n], of different numbers: an odd factor permutes the 64-bit integers."""
    return (numbers.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)).view(np.int64)


def resolve(index: KeyIndex, keys: np.ndarray, pool: ThreadPool) -> tuple[np.ndarray, np.ndarray]:
    """The row of each different key, and each id's number among them."""
    distinct = DistinctKeys.of("keys", ZEROS[: keys.size], keys, _NO_CHECKS[: keys.size], pool)
    rows = np.empty(distinct.keys.size, np.int64)
    if index.find(*distinct.asked[:2], rows, checks=distinct.checks):
        index.insert(*distinct.asked[:2], rows, checks=distinct.checks, distinct=True)
    return rows, distinct.numbers


def powers(rng: np.random.Generator, num_keys: int, skew: float = 1.05) -> np.ndarray:
    """Numbers of keys by a power law, taken as continuous, int64 [BATCH]."""
    power = 1 - skew
    ranks = (1 + rng.random(BATCH) * ((num_keys + 1.0) ** power - 1)) ** (1 / power)
    return np.minimum(ranks.astype(np.int64), num_keys) - 1


@compiled
def read_ahead(slots, slot_places, records, record_places):
    """The sum of a word of each line of slots and of each record, at given places."""
    total = 0
    for i in range(slot_places.size):
        if i + _AHEAD < slot_places.size:
            atomics.prefetch(slots + 64 * slot_places[i + _AHEAD], 0)
            atomics.prefetch(records + 16 * record_places[i + _AHEAD], 0)
        total += atomics.load(slots + 64 * slot_places[i]) + atomics.load(records + 16 * record_places[i])
    return total


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def rivals(num_keys: int, places: Sequence[np.ndarray], pool: ThreadPool) -> dict[str, Callable[[int], object]]:
    """What to set beside look-ups of known keys: each takes the number of a batch."""
    num_lines = num_keys * _SLOT_BYTES // 64 + 1
    memory = [reserve(64 * num_lines), reserve(16 * num_keys)]
    slots, records = (np.frombuffer(each, np.int64) for each in memory)
    slots[:], records[:] = 1, 1
    lines_of = [np.random.default_rng(0).integers(0, num_lines, BATCH) for _ in places]
    by_key = np.sort(keys_of(np.arange(num_keys)))
    few = min(num_keys, _DICT_KEYS)
    plain = dict(zip(keys_of(np.arange(few)).tolist(), range(few), strict=True))

    def gather(number: int) -> None:
        def part(first: int, end: int) -> None:
            some = slice(first, end)
            at = slots.ctypes.data, lines_of[number][some], records.ctypes.data, places[number][some]
            assert read_ahead(*at) == 2 * (end - first)

        pool.over(BATCH, 1, part)

    def searched(number: int) -> None:
        np.searchsorted(by_key, np.unique(keys_of(places[number]), return_inverse=True)[0])

    def from_dict(number: int) -> None:
        different, _ = torch.unique(torch.from_numpy(keys_of(places[number] % few)), return_inverse=True)
        np.array([plain[key] for key in different.tolist()], np.int64)

    return {"gather (limit)": gather, "searchsorted": searched, f"dict of {few:,}": from_dict}


def batches(num_keys: int, threads: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    with closing(ThreadPool(threads)) as pool:
        resolve(KeyIndex("warm", 1 << 20, pool=pool), keys_of(np.arange(BATCH)), pool)
        index, longest = KeyIndex("keys", num_keys + num_keys // 5 + BATCH, pool=pool), 0.0
        rows = np.empty(BATCH, np.int64)
        ways = {
            "inserted": lambda keys: index.insert(ZEROS[: keys.size], keys, rows[: keys.size]),
            "new": lambda keys: resolve(index, keys, pool),
        }
        spent = {name: [0, 0.0] for name in ways}
        for first in range(0, num_keys, BATCH):
            keys = keys_of(np.arange(first, min(first + BATCH, num_keys)))
            name = list(ways)[first // BATCH % 2]
            took = seconds(partial(ways[name], keys))
            spent[name][0] += keys.size
            spent[name][1] += took
            longest = max(longest, took)
        rates = {name: [count / took / 1e6] for name, (count, took) in spent.items() if count}
        key_bytes = index.nbytes / num_keys
        places = [rng.integers(0, num_keys, BATCH) for _ in range(_BATCHES)]
        skewed = [powers(rng, num_keys) for _ in range(_BATCHES)]
        own = {"known": places, "zipf": skewed}
        others = rivals(num_keys, places, pool)
        for turn in range(repeats + 1):
            for name, numbers in own.items():
                keys = [keys_of(each) for each in numbers]
                took = seconds(lambda keys=keys: [resolve(index, each, pool) for each in keys])
                rates.setdefault(name, []).append(_BATCHES * BATCH / took / 1e6)
            for name, run in others.items():
                many = range(_BATCHES if name.startswith("gather") else 1)
                took = seconds(lambda run=run, many=many: [run(number) for number in many])
                rates.setdefault(name, []).append(len(many) * BATCH / took / 1e6)
            if not turn:
                rates = {name: found if name in ways else [] for name, found in rates.items()}
        for first in range(num_keys, num_keys + num_keys // 10, BATCH // 2):
            half = np.arange(first, first + BATCH // 2), rng.integers(0, num_keys, BATCH // 2)
            keys = keys_of(rng.permutation(np.concatenate(half)))
            rates.setdefault("mixed", []).append(BATCH / seconds(lambda keys=keys: resolve(index, keys, pool)) / 1e6)
    different = statistics.mean(np.unique(each).size for each in skewed) / BATCH
    print(
        f"\n{num_keys:,} keys, {threads} threads, {key_bytes:.1f} bytes a key; millions of ids a second; "
        f"{different:.0%} of zipf's ids are different; longest batch of new keys {longest * 1e3:.0f} ms"
    )
    for name, found in rates.items():
        print(f"  {name:<22}{statistics.median(found):>8.2f}  ({min(found):.2f} to {max(found):.2f})")


def longest_reads(index: KeyIndex, stop: threading.Event, started: threading.Event, out: list[float]) -> None:
    """Looks up known keys until told to stop; `out` gets the seconds of each call."""
    rng, rows, zeros = np.random.default_rng(1), np.empty(_READ, np.int64), np.zeros(_READ, np.uint16)
    while not stop.is_set():
        places = rng.integers(0, len(index), _READ)
        keys = keys_of(places)
        start = time.perf_counter()
        missing = index.find(zeros, keys, rows)
        out.append(time.perf_counter() - start)
        assert missing == 0 and (rows == places).all()
        started.set()


def growth(num_keys: int) -> None:
    before = resident("VmRSS")
    index, rows = KeyIndex("keys", num_keys), np.empty(BATCH, np.int64)
    index.insert(ZEROS, keys_of(np.arange(BATCH)), rows)
    stop, started = threading.Event(), threading.Event()
    reads: list[float] = []
    reader = threading.Thread(target=longest_reads, args=(index, stop, started, reads))
    reader.start()
    started.wait()
    reads.clear()
    pauses = []
    try:
        start = time.perf_counter()
        for first in range(BATCH, num_keys, BATCH):
            count = min(BATCH, num_keys - first)
            keys = keys_of(np.arange(first, first + count))
            began = time.perf_counter()
            index.insert(ZEROS[:count], keys, rows[:count])
            pauses.append(time.perf_counter() - began)
        seconds = time.perf_counter() - start
        growing = len(reads)
        time.sleep(3.0)
    finally:
        stop.set()
        reader.join()
    beside, alone = np.array(reads[:growing]) * 1e3, np.array(reads[growing:]) * 1e3
    rate = num_keys / seconds / 1e6
    print(f"\n{num_keys:,} keys inserted in batches of {BATCH:,} beside a reader: {rate:.2f} million/s")
    print(f"  longest insert of a batch {max(pauses) * 1e3:.1f} ms, median {statistics.median(pauses) * 1e3:.1f} ms")
    for name, times in (("while growing", beside), ("afterwards", alone)):
        print(
            f"  reader's calls of {_READ:,} keys {name}: {times.size:,}, median {np.median(times):.3f} ms, "
            f"99.9 % {np.quantile(times, 0.999):.2f} ms, longest {times.max():.2f} ms"
        )
    print(
        f"  {index.nbytes / num_keys:.1f} bytes a key; resident {(resident('VmRSS') - before) / 2**30:.2f} GiB more "
        f"than before, peak of the process {resident('VmHWM') / 2**30:.2f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000, 33_000_000])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["batches", "growth"], help="one of the two parts")
    arguments = parser.parse_args()
    print(machine())
    if arguments.only != "batches":
        growth(max(arguments.sizes))
    if arguments.only != "growth":
        for size in arguments.sizes:
            for threads in arguments.threads:
                batches(size, threads, arguments.repeats)


if __name__ == "__main__":
    main()
