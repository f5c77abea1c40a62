"""Files of a checkpoint and an export, written block after block and by coroutines; texts read through aiofiles.

    python -m benchmarks.disk.file_writing --folder DIR-ON-THE-DISK  # a table of 1 GB, 7 turns

Contestants take turns, each after a `sync`; figures are medians over the turns, ratios medians of the ratios within a
turn. Processor seconds are those of the process, kernel included; writing that goes on in the kernel's own threads is
not in them.

checkpoint  A table's values, optimizer state and timestamps, checked for NaN, hashed, written, flushed to the disk.
    late        block after block, file after file: read, check, hash, write; the kernel decides when the disk begins
    ours        the same, and the disk begins as soon as there are some MiB (`NpyWriter`)
    aiofiles    `write_npy_files`: the next block is read while files are written; not hashed
    threads     late, with a thread for each file that hashes and writes it, and queues of one block
    copy        the limit: dd copies as many bytes from memory (the page cache) and flushes them
export      The values alone, from a mapped file.
    npy plain, npy ours         block after block, and `write_npy_files`
    parquet pyarrow             pyarrow writes its file itself
    parquet aiofiles            pyarrow encodes into memory while aiofiles writes the row group before
log         A TSV like Criteo's, to Arrow batches; "cold": the page cache is told to forget the file first.
    pyarrow     pyarrow's own reader of the file
    aiofiles    a coroutine reads ahead, pyarrow parses what it hands over
    in memory   the limit of any reader: pyarrow parses bytes that are in memory already
"""

import argparse
import asyncio
import io
import os
import queue
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import aiofiles
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from benchmarks.data.log_reading import Logs, texts_by_pyarrow
from benchmarks.machine import machine
from marius_oac.data.logs.formats import TEXT_BYTES
from marius_oac.runtime.files import npy
from marius_oac.runtime.files.npy import NpyWriter
from marius_oac.runtime.files.streaming import write_files, write_npy_files
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore

DIMENSION = 64
EXPORTED_ROWS = 1 << 16  # at once
HEADER = 128  # bytes of a .npy file
Ways = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Table:
    """A table in memory, and its parts as a checkpoint writes them."""

    store: MemoryStore

    @property
    def about(self) -> dict[str, tuple[tuple[int, ...], type]]:
        wide = ((self.store.num_rows, DIMENSION), np.float32)
        return {"values": wide, "state": wide, "timestamps": ((self.store.num_rows,), np.int64)}

    def blocks(self) -> Iterator[dict[str, np.ndarray]]:
        for block in self.store.blocks():
            assert np.isfinite(block.rows).all()
            values, state = block.rows[:, :DIMENSION], block.rows[:, DIMENSION:]
            yield {"values": values, "state": state, "timestamps": block.timestamps}


def written(table: Table, folder: Path, together: int) -> None:
    """As a checkpoint does, `together` bytes at a time."""
    before, npy._TOGETHER = npy._TOGETHER, together
    try:
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(NpyWriter(folder / f"{name}.npy", *about))
                for name, about in table.about.items()
            }
            for block in table.blocks():
                for name, rows in block.items():
                    writers[name].write(rows)
            for writer in writers.values():
                writer.finish()
    finally:
        npy._TOGETHER = before


def in_threads(table: Table, folder: Path) -> None:
    blocks: dict[str, queue.Queue] = {name: queue.Queue(1) for name in table.about}

    def write(name: str) -> None:
        digest = xxhash.xxh3_128()
        with open(folder / name, "wb") as file:
            while (content := blocks[name].get()) is not None:
                digest.update(content)
                file.write(content)
            file.flush()
            os.fsync(file.fileno())

    threads = [threading.Thread(target=write, args=(name,)) for name in blocks]
    for thread in threads:
        thread.start()
    for block in table.blocks():
        for name, rows in block.items():
            blocks[name].put(np.ascontiguousarray(rows))
    for name in blocks:
        blocks[name].put(None)
    for thread in threads:
        thread.join()


def copy(source: Path, folder: Path) -> None:
    subprocess.run(
        ["dd", f"if={source}", f"of={folder / 'copy'}", "bs=16M", "conv=fsync", "status=none"], check=True
    )  # fmt: skip


def checkpoint_ways(table: Table, source: Path, folder: Path) -> Ways:
    return {
        "late": lambda: written(table, folder, sys.maxsize),
        "ours": lambda: written(table, folder, npy._TOGETHER),
        "aiofiles": lambda: write_npy_files(folder, table.about, table.blocks()),
        "threads": lambda: in_threads(table, folder),
        "copy": lambda: copy(source, folder),
    }


class Encoded(io.RawIOBase):
    """Where pyarrow writes to; `take` gives what has come since the last time."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:
        self._parts.append(bytes(content))
        self._at += len(content)
        return len(content)

    def tell(self) -> int:
        return self._at

    def take(self) -> bytes:
        content, self._parts = b"".join(self._parts), []
        return content


def row_groups(values: np.ndarray) -> Iterator[pa.Table]:
    for first in range(0, len(values), EXPORTED_ROWS):
        block = np.ascontiguousarray(values[first : first + EXPORTED_ROWS])
        names = pa.array([f"node{i}" for i in range(first, first + len(block))], pa.string())
        rows = pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), DIMENSION)
        yield pa.table({"name": names, "embedding": rows})


def write_parquet(values: np.ndarray, to) -> Iterator[None]:
    """Writes it, and stops behind every row group."""
    schema = pa.schema({"name": pa.string(), "embedding": pa.list_(pa.float32(), DIMENSION)})
    with pq.ParquetWriter(to, schema) as writer:
        for group in row_groups(values):
            writer.write_table(group)
            yield
    yield


def export_ways(values: np.ndarray, folder: Path) -> Ways:
    def blocks() -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, len(values), EXPORTED_ROWS):
            yield {"npy": values[first : first + EXPORTED_ROWS]}

    def plain_npy() -> None:
        with open(folder / "npy", "wb") as file:
            for block in blocks():
                file.write(block["npy"])
            file.flush()
            os.fsync(file.fileno())

    def pyarrow() -> None:
        for _ in write_parquet(values, folder / "parquet"):
            pass
        with open(folder / "parquet", "rb") as file:
            os.fsync(file.fileno())

    def through_aiofiles() -> None:
        encoded = Encoded()
        path = folder / "parquet"
        write_files([path], ({path: encoded.take()} for _ in write_parquet(values, encoded)))

    return {
        "npy plain": plain_npy,
        "npy ours": lambda: write_npy_files(folder, {"npy": (values.shape, values.dtype)}, blocks()),
        "parquet pyarrow": pyarrow,
        "parquet aiofiles": through_aiofiles,
    }


class HandedOver(io.RawIOBase):
    """Bytes that a coroutine reads ahead, `TEXT_BYTES` at a time, in an event loop of its own."""

    def __init__(self, path: Path):
        self._parts: queue.Queue[bytes] = queue.Queue(4)
        self._rest = memoryview(b"")
        self._thread = threading.Thread(target=asyncio.run, args=(self._read(path),))
        self._thread.start()

    async def _read(self, path: Path) -> None:
        async with aiofiles.open(path, "rb") as file:
            while content := await file.read(TEXT_BYTES):
                await asyncio.to_thread(self._parts.put, content)
        await asyncio.to_thread(self._parts.put, b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = memoryview(self._parts.get())
            if not self._rest:
                self._thread.join()
        part, self._rest = self._rest[:size], self._rest[size:]
        return bytes(part)


def log_ways(path: Path, rows: int) -> Ways:
    content = pa.py_buffer(path.read_bytes())

    def reading(source: Callable[[], object], cold: bool) -> Callable[[], None]:
        def read() -> None:
            if cold:
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert texts_by_pyarrow(source()) == rows

        return read

    ways: Ways = {}
    for cold in (True, False):
        ways |= {
            f"pyarrow, {'cold' if cold else 'warm'}": reading(lambda: path, cold),
            f"aiofiles, {'cold' if cold else 'warm'}": reading(lambda: pa.PythonFile(HandedOver(path), "r"), cold),
        }
    return ways | {"in memory": reading(lambda: pa.BufferReader(content), False)}


def compare(title: str, ways: Ways, size: int, turns: int, folder: Path) -> None:
    """Runs the ways in turns and prints them; the first is what the others are held against."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            os.sync()
            cpu, begin = time.process_time(), time.perf_counter()
            way()
            if turn:
                seconds[name].append(time.perf_counter() - begin)
                processor[name].append(time.process_time() - cpu)
    first, last = next(iter(ways)), list(ways)[-1]
    print(f"\n{title}, {size / 1e9:.2f} GB, load {os.getloadavg()[0]:.1f}")
    print(f"{'':18} {'seconds':>8} {'fastest':>8} {'GB/s':>6} {'cpu s':>6} {'x ' + first:>14} {'of ' + last:>16}")
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        faster, limit = (
            statistics.median(a / b for a, b in zip(seconds[other], taken, strict=True)) for other in (first, last)
        )
        print(
            f"{name:18} {middle:8.2f} {min(taken):8.2f} {size / middle / 1e9:6.2f} "
            f"{statistics.median(processor[name]):6.2f} {faster:14.2f} {limit:16.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where files are written (a temporary folder)")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the table, 520 bytes each")
    parser.add_argument("--log-rows", type=int, default=300_000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=("checkpoint", "export", "log"))
    options = parser.parse_args()
    chosen = options.only or ("checkpoint", "export", "log")
    print(machine())
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        out = folder / "out"
        if set(chosen) & {"checkpoint", "export"}:
            layout, initial = RowLayout(DIMENSION, DIMENSION), RowInitial("normal", 1.0, 0, "rows")
            with MemoryStore("rows", options.rows, layout, initial) as store:
                table, source = Table(store), folder / "source"
                out.mkdir()
                written(table, out, sys.maxsize)
                with open(source, "wb") as file:
                    for part in table.about:
                        file.write((out / f"{part}.npy").read_bytes())
                size = source.stat().st_size
                if "checkpoint" in chosen:
                    compare("checkpoint", checkpoint_ways(table, source, out), size, options.turns, out)
                if "export" in chosen:
                    values = np.memmap(source, np.float32, "r", HEADER, (options.rows, DIMENSION))
                    compare("export", export_ways(values, out), values.nbytes, options.turns, out)
        if "log" in chosen:
            path = Logs(folder, options.log_rows).of("TSV, texts")[0]
            compare("log", log_ways(path, options.log_rows), path.stat().st_size, options.turns, out)


if __name__ == "__main__":
    main()
