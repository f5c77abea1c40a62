"""Reading click logs: files to blocks of labels, numbers and keys, against pyarrow's own readers alone.

    python -m benchmarks.data.log_reading              # 400,000 examples shaped like Criteo's: 13 numbers, 26 keys
    python -m benchmarks.data.log_reading --share 4 8  # also what one of 4 and of 8 trainers needs of every batch

The logs are written first: Parquet with integer keys, Parquet with keys as text of 8 hexadecimal digits, a TSV with
the same text and empty fields, and libsvm with the integer keys. "pyarrow" reads the same columns as the same types
batch by batch and throws them away; "counting" is the pass over a text by which its rows are known. MB are of the file,
of Parquet compressed bytes. With `--share N` a trainer passes over the same log and has 1/N of every batch of `--batch`
examples: block by block ("1/N"), of blocks whose examples are shuffled ("1/N shuffled"), and each batch by itself, as
where batches are dealt ("1/N dealt"). Rows are those of the log, whoever needs them: N trainers read N times as fast as
they train. `--checked` compares the digests of what is read, as a run does.
Where other programs run, `--cpu` counts the processor's seconds in the place of the clock's.
The contestants take turns; figures are medians over `--repeats`, ratios medians of the ratios within a turn. Threads
are Arrow's; conversion to keys is in the thread that asks for the block.
"""

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.machine import machine
from marius_oac.config.ctr import LogConfig
from marius_oac.data.batches.rank_slice import RankSlice
from marius_oac.data.logs.files import BlockReader, scan_files
from marius_oac.data.logs.formats import TEXT_BYTES
from marius_oac.data.logs.parquet import BATCH_ROWS
from marius_oac.data.logs.pieces import Pieces
from marius_oac.kernels.cpu.permutation import Permutation

NUMBERS = [f"i{i}" for i in range(13)]
KEYS = [f"c{i}" for i in range(26)]
BLOCK_ROWS = 1 << 16
NAMES = ("Parquet, integers", "Parquet, texts", "TSV, texts", "TSV, hex", "libsvm")


class Logs:
    """The logs of so many rows in a folder, each written when it is asked for."""

    def __init__(self, folder: Path, rows: int) -> None:
        random = np.random.default_rng(1)
        self._folder = folder
        self._columns = {"label": pa.array((random.random(rows) < 0.25).astype(np.int8))}
        for name in NUMBERS:
            self._columns[name] = pa.array(
                random.geometric(0.05, rows).astype(np.int32), mask=random.random(rows) < 0.1
            )
        self._keys = {name: (random.zipf(1.2, rows) * 0x9E3779B1) & 0xFFFFFFFF for name in KEYS}
        self._missing = {name: random.random(rows) < 0.05 for name in KEYS}

    def of(self, name: str) -> tuple[Path, LogConfig]:
        """The file and the schema of one of `NAMES`."""
        names, features = ("label", *NUMBERS, *KEYS), [{"name": name} for name in KEYS]
        if name == "libsvm":
            return self._written("log.libsvm", self._write_libsvm), LogConfig(train="x", categorical=features)
        file, write, columns, kind = {
            "Parquet, integers": ("integers.parquet", self._write_integers, (), "auto"),
            "Parquet, texts": ("texts.parquet", self._write_texts, (), "string"),
            "TSV, texts": ("log.tsv", self._write_tsv, names, "string"),
            "TSV, hex": ("log.tsv", self._write_tsv, names, "hex"),
        }[name]
        schema = {"columns": columns, "numeric": NUMBERS, "categorical": [each | {"kind": kind} for each in features]}
        return self._written(file, write), LogConfig.model_validate({"train": "x", "missing_numbers": 0} | schema)

    def _written(self, name: str, write: Callable[[Path], None]) -> Path:
        path = self._folder / name
        if not path.exists():
            write(path)
        return path

    def _texts(self) -> pa.Table:
        texts = {
            name: pa.array([f"{key:08x}" for key in self._keys[name].tolist()], pa.string(), mask=self._missing[name])
            for name in KEYS
        }
        return pa.table(self._columns | texts)

    def _write_integers(self, path: Path) -> None:
        keys = {name: pa.array(self._keys[name], mask=self._missing[name]) for name in KEYS}
        pq.write_table(pa.table(self._columns | keys), path, row_group_size=1 << 17)

    def _write_texts(self, path: Path) -> None:
        pq.write_table(self._texts(), path, row_group_size=1 << 17)

    def _write_libsvm(self, path: Path) -> None:
        keys = np.stack([self._keys[name] for name in KEYS], axis=1).tolist()
        with path.open("w") as file:
            for label, row in zip(self._columns["label"], keys, strict=True):
                file.write(f"{label} {' '.join(f'{key}:1' for key in row)}\n")

    def _write_tsv(self, path: Path) -> None:
        table = self._texts()
        form = pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
        with pa_csv.CSVWriter(path, table.schema, write_options=form) as writer:
            writer.write_table(table)


def parsed_by_pyarrow(path: Path, config: LogConfig, rows: int) -> None:
    """The same columns as the same types, batch by batch."""
    wanted, found = ["label", *NUMBERS, *KEYS], 0
    if path.suffix == ".parquet":
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            found = sum(batch.num_rows for batch in parquet.iter_batches(BATCH_ROWS, columns=wanted))
    else:
        found = texts_by_pyarrow(path)
    assert found == rows


def texts_by_pyarrow(source: Path | BinaryIO) -> int:
    """Rows of a TSV log, parsed block by block."""
    wanted = ["label", *NUMBERS, *KEYS]
    types = dict.fromkeys(wanted, pa.string()) | dict.fromkeys(NUMBERS, pa.float32()) | {"label": pa.float64()}
    with pa_csv.open_csv(
        source,
        pa_csv.ReadOptions(column_names=wanted, block_size=TEXT_BYTES),
        pa_csv.ParseOptions(delimiter="\t", quote_char=False),
        pa_csv.ConvertOptions(column_types=types, null_values=[""]),
    ) as reader:
        return sum(batch.num_rows for batch in reader)


def contestants(
    path: Path, config: LogConfig, rows: int, shares: list[int], batch: int, checked: bool
) -> dict[str, Callable]:
    """What is measured of one log; the first is the limit that the others are held against."""
    files = scan_files([str(path)], config)

    def read(wanted: Callable[[int], list[np.ndarray]]) -> int:
        """Examples of those that are wanted, some at a time, of a block of so many."""
        found = 0
        with BlockReader(files, config, pieces=[Pieces(path)] if checked else None) as reader:
            for number in range(-(-rows // BLOCK_ROWS)):
                block = reader.lazy_block(0, number, BLOCK_ROWS)
                found += sum(block.examples(some).size for some in wanted(block.size))
        return found

    def whole() -> None:
        assert read(lambda size: [np.arange(size)]) == rows

    def own(share: RankSlice) -> None:
        read(lambda size: [share.of_batches(size, batch)])

    def shuffled(share: RankSlice) -> None:
        read(lambda size: [np.sort(Permutation(size, 1, 1).permute(share.of_batches(size, batch)))])

    def dispatched(share: RankSlice) -> None:
        read(lambda size: [share.of_batches(min(batch, size - at), batch) + at for at in range(0, size, batch)])

    each: dict[str, Callable] = {"ours": whole}
    if path.suffix != ".libsvm":
        each = {"pyarrow": lambda: parsed_by_pyarrow(path, config, rows)} | each
    if path.suffix != ".parquet":
        each["counting"] = lambda: scan_files([str(path)], config) and None
    for count in shares:
        share = RankSlice(count // 2, count)
        each[f"1/{count}"] = partial(own, share)
        each[f"1/{count} shuffled"] = partial(shuffled, share)
        each[f"1/{count} dealt"] = partial(dispatched, share)
    return each


def measure(each: dict[str, Callable], repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of every contestant's turns, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in each}
    for turn in range(repeats + 1):
        for name, run in each.items():
            begin = clock()
            run()
            if turn:
                seconds[name].append(clock() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--share", type=int, nargs="*", default=[], help="trainers of whom one reads")
    parser.add_argument("--batch", type=int, default=4096, help="examples of a batch of all trainers")
    parser.add_argument("--checked", action="store_true", help="compare digests")
    parser.add_argument("--cpu", action="store_true", help="processor seconds")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    print(f"{machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        logs = Logs(Path(folder), options.rows)
        print(f"{'log':18} {'threads':>7} {'reader':>13} {'rows/s':>11} {'MB/s':>6} {'of pyarrow':>10} {'of ours':>8}")
        for name in NAMES:
            path, config = logs.of(name)
            for threads in options.threads:
                pa.set_cpu_count(threads)
                each = contestants(path, config, options.rows, options.share, options.batch, options.checked)
                seconds = measure(each, options.repeats, clock)
                for reader, taken in seconds.items():
                    middle = statistics.median(taken)
                    ratios = (ratio(seconds.get(limit), taken) for limit in ("pyarrow", "ours"))
                    megabytes, rate = path.stat().st_size / middle / 1e6, options.rows / middle
                    figures = "{:>10} {:>8}".format(*ratios)
                    print(f"{name:18} {threads:7} {reader:>13} {rate:11,.0f} {megabytes:6.0f} {figures}", flush=True)


def ratio(limit: list[float] | None, taken: list[float]) -> str:
    """How fast something is beside something else, the median of all turns."""
    return f"{statistics.median(a / b for a, b in zip(limit, taken, strict=True)):.2f}" if limit else "-"


if __name__ == "__main__":
    main()
