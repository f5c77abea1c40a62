"""Pages between disk and memory: our I/O threads against fio, and against other ways to do it from Python.

    python -m benchmarks.disk.page_io --folder DIR-ON-THE-DISK  # pages of 4 KiB, all ways
    python -m benchmarks.disk.page_io --folder DIR --page 16KiB --ways ours fio

All take turns on the same file, for some seconds each; ratios are medians of the ratios within a round.

ours     `PageFiles` as the disk tier uses it: claims of `--claim` pages, cut into jobs, in `--depth` threads
fio      the limit: io_uring, direct, the same page size, depth and pattern (where fio is installed)
liburing the binding of io_uring on PyPI, one thread that keeps `--depth` requests on their way (where it is installed)
pool     a ThreadPoolExecutor of `--depth` threads that calls os.preadv for each page
aiofiles asyncio with `--depth` coroutines, each with a file of its own, direct ("aiofiles") and through the page cache,
         which is emptied first ("aiofiles, buffered"; where aiofiles is installed)

Patterns: `random` pages; `runs` of 16 neighbours at random places; `writes` of 128 neighbours, which is how pages that
leave memory are written. Processor seconds are those of the process, kernel included, for 100,000 pages.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import ByteSize, TypeAdapter

from benchmarks.machine import machine
from marius_oac.kernels.cpu.pages import MOST_PAGES_AT_ONCE
from marius_oac.storage.disk.files import HEADER_BYTES, MOST_PAGES_A_JOB, Listing, PageFiles

RUNS = {"random": 1, "runs": 16, "writes": MOST_PAGES_A_JOB}
"""Pages that lie one behind the other."""
CLAIMS_AT_ONCE = 4  # batches are fetched ahead of those that wait
FIO_REPORT = "json"


@dataclass(frozen=True)
class Field:
    """A file full of pages, and memory to move them to."""

    files: PageFiles
    pages: int
    memory: mmap.mmap
    depth: int
    claim: int

    @property
    def path(self) -> Path:
        return self.files.path_of(0)

    @property
    def page_bytes(self) -> int:
        return self.files.page_bytes

    @property
    def addresses(self) -> np.ndarray:
        first = np.frombuffer(self.memory, np.uint8).ctypes.data
        return first + np.arange(CLAIMS_AT_ONCE * self.claim) * self.page_bytes

    def claims(self, run: int) -> Iterator[np.ndarray]:
        """Slots in ascending order, runs of neighbours at random places, none twice in a claim."""
        random = np.random.default_rng(0)
        while True:
            starts = np.sort(random.choice(self.pages // run, max(1, self.claim // run), replace=False))
            yield (starts[:, None] * run + np.arange(run)).reshape(-1)


@dataclass
class Turns:
    """Of a way, one entry a round: pages a second, processor seconds a page, steps a second of `Counter`."""

    speeds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


class Counter:
    """A thread that counts in Python, as a trainer's own threads need the interpreter while pages come and go."""

    def __enter__(self) -> Counter:
        self.count, self._over, self._began = 0, False, time.perf_counter()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._thread.join()
        self.speed = self.count / (time.perf_counter() - self._began)

    def _run(self) -> None:
        while not self._over:
            for _ in range(1000):
                self.count += 1


Way = Callable[[Field, str, float], tuple[float, float]]
"""(field, pattern, seconds) -> pages a second, processor seconds a page."""


def timed(work: Callable[[Callable[[], bool]], int], seconds: float) -> tuple[float, float]:
    """`work(over)` returns the pages that it has moved until `over()`."""
    cpu, began = time.process_time(), time.perf_counter()
    pages = work(lambda: time.perf_counter() - began > seconds)
    return pages / (time.perf_counter() - began), (time.process_time() - cpu) / pages


def claims_in_flight(
    place: Field, claims: Iterator[np.ndarray], submit: Callable[[np.ndarray, int], list[Future]]
) -> Callable[[Callable[[], bool]], int]:
    """`work` for `timed`: keeps `CLAIMS_AT_ONCE` claims in flight, of which `submit(slots, first frame)` starts one."""

    def work(over: Callable[[], bool]) -> int:
        moved, waiting, turn = 0, deque(), 0
        while not over() or waiting:
            if len(waiting) == CLAIMS_AT_ONCE or over():
                wait(waiting.popleft())
                continue
            slots = next(claims)
            waiting.append(submit(slots, turn * place.claim))
            turn = (turn + 1) % CLAIMS_AT_ONCE
            moved += slots.size
        return moved

    return work


def ours(place: Field, pattern: str, seconds: float) -> tuple[float, float]:
    files, addresses, claims = place.files, place.addresses, place.claims(RUNS[pattern])
    move = files.write if pattern == "writes" else files.read

    def submit(slots: np.ndarray, first: int) -> list[Future]:
        at = addresses[first : first + slots.size]
        if pattern == "writes":
            parts = [slice(i, i + MOST_PAGES_A_JOB) for i in range(0, slots.size, MOST_PAGES_A_JOB)]
        else:
            parts = files.jobs(slots.size)
        return [files.submit(move, slots[part], at[part]) for part in parts]

    return timed(claims_in_flight(place, claims, submit), seconds)


def fio(place: Field, pattern: str, seconds: float) -> tuple[float, float]:
    run = min(RUNS[pattern], MOST_PAGES_AT_ONCE)
    command = {
        "name": "pages", "filename": place.path, "offset": HEADER_BYTES, "size": place.pages * place.page_bytes,
        "rw": "randwrite" if pattern == "writes" else "randread", "bs": run * place.page_bytes, "direct": 1,
        "ioengine": "io_uring", "iodepth": place.depth, "time_based": 1, "runtime": f"{seconds * 1e3:.0f}ms",
        "output-format": FIO_REPORT, "randrepeat": 0, "norandommap": 1,
    }  # fmt: skip
    done = subprocess.run(
        ["fio", *(f"--{key}={value}" for key, value in command.items())], capture_output=True, text=True, check=True
    )
    job = json.loads(done.stdout)["jobs"][0]
    pages_a_second = job["write" if pattern == "writes" else "read"]["iops"] * run
    return pages_a_second, (job["usr_cpu"] + job["sys_cpu"]) / 100 / pages_a_second


def pool(place: Field, pattern: str, seconds: float) -> tuple[float, float]:
    descriptor, size, claims = os.open(place.path, os.O_RDONLY | os.O_DIRECT), place.page_bytes, place.claims(1)
    views = page_views(place)

    def submit(slots: np.ndarray, first: int) -> list[Future]:
        return [
            threads.submit(os.preadv, descriptor, [views[first + i]], HEADER_BYTES + slot * size)
            for i, slot in enumerate(slots.tolist())
        ]

    with ThreadPoolExecutor(place.depth) as threads:
        found = timed(claims_in_flight(place, claims, submit), seconds)
    os.close(descriptor)
    return found


def liburing(place: Field, pattern: str, seconds: float) -> tuple[float, float]:
    import liburing as uring

    descriptor, size, claims = os.open(place.path, os.O_RDONLY | os.O_DIRECT), place.page_bytes, place.claims(1)
    vectors = [uring.Iovec([view]) for view in page_views(place)[: place.depth]]
    ring, completed = uring.Ring(), uring.Cqe()
    uring.io_uring_queue_init(2 * place.depth, ring)

    def work(over: Callable[[], bool]) -> int:
        free, moved, slots = list(range(place.depth)), 0, iter(())
        while not over() or len(free) < place.depth:
            while free and not over():
                slot = next(slots, None)
                if slot is None:
                    slots = iter(next(claims).tolist())
                    continue
                entry, room = uring.io_uring_get_sqe(ring), free.pop()
                uring.io_uring_prep_readv(entry, descriptor, vectors[room], HEADER_BYTES + slot * size)
                entry.user_data = room
            uring.io_uring_submit_and_wait(ring, 1)
            count = 0
            for _ in uring.CqeIter(ring, completed):
                if completed[0].res != size:
                    raise OSError(f"{completed[0].res} bytes were read, not {size}")
                free.append(completed[0].user_data)
                count += 1
            uring.io_uring_cq_advance(ring, count)
            moved += count
        return moved

    found = timed(work, seconds)
    uring.io_uring_queue_exit(ring)
    os.close(descriptor)
    return found


def with_aiofiles(flags: int) -> Way:
    def way(place: Field, pattern: str, seconds: float) -> tuple[float, float]:
        import aiofiles

        descriptor = os.open(place.path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        views, slots = page_views(place), (slot for claim in place.claims(1) for slot in claim.tolist())

        async def reader(view: memoryview, threads: ThreadPoolExecutor, over: Callable[[], bool]) -> int:
            moved = 0
            opened = aiofiles.open(
                place.path, "rb", buffering=0, executor=threads, opener=lambda path, mode: os.open(path, mode | flags)
            )
            async with opened as file:
                while not over():
                    await file.seek(HEADER_BYTES + next(slots) * place.page_bytes)
                    moved += await file.readinto(view) // place.page_bytes
            return moved

        async def all_readers(over: Callable[[], bool]) -> int:
            with ThreadPoolExecutor(place.depth) as threads:
                return sum(await asyncio.gather(*(reader(views[i], threads, over) for i in range(place.depth))))

        return timed(lambda over: asyncio.run(all_readers(over)), seconds)

    return way


def page_views(place: Field) -> list[memoryview]:
    size, whole = place.page_bytes, memoryview(place.memory)
    return [whole[i : i + size] for i in range(0, len(whole), size)]


def filled(files: PageFiles, pages: int, depth: int, claim: int) -> Field:
    """Writes every page once, so that none is a hole."""
    files.grow(pages)
    place = Field(files, pages, mmap.mmap(-1, CLAIMS_AT_ONCE * claim * files.page_bytes), depth, claim)
    np.frombuffer(place.memory, np.uint64)[:] = np.arange(len(place.memory) // 8, dtype=np.uint64)
    wait(
        [
            files.submit(files.write, np.arange(i, min(i + claim, pages)), place.addresses[: min(claim, pages - i)])
            for i in range(0, pages, claim)
        ]
    )
    files.sync()
    return place


def ways_here(chosen: list[str]) -> dict[str, Way]:
    ways: dict[str, Way] = {"ours": ours}
    if "fio" in chosen:
        if shutil.which("fio"):
            ways["fio"] = fio
        else:
            print("fio is not installed: no limit to compare with")
    for name, way in (("liburing", liburing), ("aiofiles", with_aiofiles(os.O_DIRECT))):
        if name in chosen and importlib.util.find_spec(name):
            ways[name] = way
        elif name in chosen:
            print(f"{name} is not installed: left out")
    if "aiofiles" in ways:
        ways["aiofiles, buffered"] = with_aiofiles(0)
    if "pool" in chosen:
        ways["pool"] = pool
    return ways


def race(
    place: Field, pattern: str, ways: dict[str, Way], seconds: float, rounds: int, beside: bool
) -> dict[str, Turns]:
    turns = {name: Turns() for name in ways if pattern == "random" or name in ("ours", "fio")}
    for number in range(rounds):
        order = list(turns) if number % 2 == 0 else list(turns)[::-1]
        for name in order:
            with Counter() if beside else nullcontext() as counter:
                speed, cpu = ways[name](place, pattern, seconds)
            turns[name].speeds.append(speed)
            turns[name].cpu.append(cpu)
            turns[name].beside.append(counter.speed if beside else 0)
    return turns


def report(pattern: str, page_bytes: int, turns: dict[str, Turns], beside: bool) -> None:
    limit = turns.get("fio")
    for name, own in turns.items():
        speed = statistics.median(own.speeds)
        ratios = [a / b for a, b in zip(own.speeds, limit.speeds, strict=True)] if limit else []
        told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if limit else ""
        last = f"{statistics.median(own.beside) / 1e6:.1f}" if beside else f"{statistics.median(own.cpu) * 1e5:.2f}"
        print(
            f"| {pattern} | {page_bytes >> 10} KiB | {name} | {speed:,.0f} | {speed * page_bytes / 1e6:,.0f} | {told} "
            f"| {last} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = TypeAdapter(ByteSize).validate_python
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--size", type=size, default=size("4GiB"), help="of the file (default: 4GiB)")
    parser.add_argument("--page", type=size, default=size("4KiB"), help="bytes of a page (default: 4KiB)")
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--claim", type=int, default=4096, help="pages that are asked for at once")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--patterns", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument(
        "--beside", action="store_true", help="a thread counts in Python meanwhile: its million steps/s"
    )
    parser.add_argument("--ways", nargs="+", default=["fio", "liburing", "aiofiles", "pool"], help="beside ours")
    args = parser.parse_args()
    pages = args.size // args.page
    claim = min(args.claim, pages // 2 // MOST_PAGES_A_JOB * MOST_PAGES_A_JOB)
    if claim < MOST_PAGES_A_JOB:
        parser.error(f"--size must hold {2 * MOST_PAGES_A_JOB} pages at least")
    print(f"{machine()}\nLinux {platform.release()}, depth {args.depth}, file of {args.size >> 20:,} MiB")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        listing = Listing.new(args.page)
        with PageFiles(Path(folder), listing, "direct", args.depth, create=True, warn=print) as files:
            place = filled(files, pages, args.depth, claim)
            ways = ways_here(args.ways)
            last = "Python beside, M steps/s" if args.beside else "processor s per 100,000"
            print(f"\n| pattern | page | way | pages/s | MB/s | of fio | {last} |\n|---|---|---|---|---|---|---|")
            for pattern in args.patterns:
                ours(place, pattern, 0.2)  # compiled, threads started
                turns = race(place, pattern, ways, args.seconds, args.rounds, args.beside)
                report(pattern, args.page, turns, args.beside)
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
