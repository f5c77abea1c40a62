"""The index of keys on one core: look-ups, growth beside a reader, memory.

    python -m benchmarks.clicks.key_index                                 # 33 million keys
    python -m benchmarks.clicks.key_index --keys 100000000 --only growth  # memory at 10^8 keys

Look-ups: batches of known keys in random order, in millions a second, medians over `--repeats` passes in which the
contestants take turns; ratios are medians of the ratios within a turn. "dict" is Python's, of keys alone, and of
2 million only (it takes over 100 bytes a key); "searchsorted" is NumPy's in the sorted keys, which no insert can
follow. "gather" is the limit: two independent reads a key, 4 bytes of a slot and 16 of a record, at
places that are known beforehand (`numpy.take`). Growth: one thread inserts all keys in batches, another looks up a
batch of 1,000 known keys again and again; its longest call is how long growing may hold a reader up, next to the
longest call when nothing is inserted.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.machine import machine
from marius_oac.storage.keys.index import KeyIndex

_BATCH = 1 << 18
_DICT_KEYS = 2_000_000
_READ = 1_000


def resident(field: str) -> int:
    """Bytes of memory that this process has (VmRSS) or had at most (VmHWM)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def keys_of(first: int, count: int) -> np.ndarray:
    """Different keys without an order, int64 [count]: an odd factor permutes the 64-bit integers."""
    return (np.arange(first, first + count, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)).view(np.int64)


def inserted(num_keys: int) -> KeyIndex:
    index, rows, zeros = KeyIndex("keys", num_keys), np.empty(_BATCH, np.int64), np.zeros(_BATCH, np.uint16)
    for first in range(0, num_keys, _BATCH):
        count = min(_BATCH, num_keys - first)
        index.insert(zeros[:count], keys_of(first, count), rows[:count])
    return index


def measure(contestants: dict[str, Callable[[], int]], repeats: int) -> dict[str, list[float]]:
    """Millions of keys a second of each contestant, which returns how many it looked up; the first turn is not kept."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            count = run()
            if turn:
                rates[name].append(count / (time.perf_counter() - start) / 1e6)
    return rates


def look_ups(num_keys: int, repeats: int) -> None:
    index, rng = inserted(num_keys), np.random.default_rng(0)
    queries = 8 * _BATCH
    places = rng.integers(0, num_keys, queries)
    keys, rows, zeros = keys_of(0, num_keys), np.empty(queries, np.int64), np.zeros(queries, np.uint16)
    known = keys[places]
    new = keys_of(num_keys, queries)
    by_key = np.sort(keys)
    slots, records = np.ones(num_keys * 6 // 4, np.uint32), np.ones((num_keys, 2), np.int64)
    slot_places = rng.integers(0, slots.size, queries)
    plain = dict(zip(keys[:_DICT_KEYS].tolist(), range(_DICT_KEYS), strict=False))
    asked = keys[rng.integers(0, min(_DICT_KEYS, num_keys), _BATCH)].tolist()

    def ours(wanted: np.ndarray, missing: int) -> int:
        for first in range(0, queries, _BATCH):
            part = slice(first, first + _BATCH)
            found = index.find(zeros[part], wanted[part], rows[part])
            assert found == (_BATCH if missing else 0)
        return queries

    def gather() -> int:
        slots.take(slot_places)
        records.take(places, axis=0)
        return queries

    def from_dict() -> int:
        np.array([plain[key] for key in asked], np.int64)
        return _BATCH

    rates = measure(
        {
            "ours, known keys": lambda: ours(known, 0),
            "ours, new keys": lambda: ours(new, 1),
            "gather (limit)": gather,
            "searchsorted": lambda: np.searchsorted(by_key, known[:_BATCH]).size,
            f"dict of {len(plain):,}": from_dict,
        },
        repeats,
    )
    print(f"\n{num_keys:,} keys, {index.nbytes / num_keys:.1f} bytes a key; millions of look-ups a second, one core")
    print(f"  {'':<22}{'median':>8}{'lowest':>8}{'highest':>9}{'ours is x':>11}")
    first = rates["ours, known keys"]
    for name, found in rates.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(first, found, strict=True))
        print(f"  {name:<22}{statistics.median(found):>8.2f}{min(found):>8.2f}{max(found):>9.2f}{ratio:>11.2f}")


def longest_reads(index: KeyIndex, stop: threading.Event, started: threading.Event, out: list[float]) -> None:
    """Looks up known keys until told to stop; `out` gets the seconds of each call."""
    rng, rows, zeros = np.random.default_rng(1), np.empty(_READ, np.int64), np.zeros(_READ, np.uint16)
    while not stop.is_set():
        places = rng.integers(0, len(index), _READ)
        keys = (places.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)).view(np.int64)
        start = time.perf_counter()
        missing = index.find(zeros, keys, rows)
        out.append(time.perf_counter() - start)
        assert missing == 0 and (rows == places).all()
        started.set()


def growth(num_keys: int) -> None:
    before = resident("VmRSS")
    index, rows, zeros = KeyIndex("keys", num_keys), np.empty(_BATCH, np.int64), np.zeros(_BATCH, np.uint16)
    index.insert(zeros, keys_of(0, _BATCH), rows)
    stop, started = threading.Event(), threading.Event()
    reads: list[float] = []
    reader = threading.Thread(target=longest_reads, args=(index, stop, started, reads))
    reader.start()
    started.wait()
    reads.clear()
    pauses = []
    try:
        start = time.perf_counter()
        for first in range(_BATCH, num_keys, _BATCH):
            count = min(_BATCH, num_keys - first)
            keys = keys_of(first, count)
            began = time.perf_counter()
            index.insert(zeros[:count], keys, rows[:count])
            pauses.append(time.perf_counter() - began)
        seconds = time.perf_counter() - start
        growing = len(reads)
        time.sleep(3.0)
    finally:
        stop.set()
        reader.join()
    beside, alone = np.array(reads[:growing]) * 1e3, np.array(reads[growing:]) * 1e3
    rate = num_keys / seconds / 1e6
    print(f"\n{num_keys:,} keys inserted in batches of {_BATCH:,} beside a reader: {rate:.2f} million/s")
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
    parser.add_argument("--keys", type=int, default=33_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["lookups", "growth"], help="one of the two parts")
    arguments = parser.parse_args()
    print(machine())
    if arguments.only != "lookups":
        growth(arguments.keys)
    if arguments.only != "growth":
        look_ups(arguments.keys, arguments.repeats)


if __name__ == "__main__":
    main()
