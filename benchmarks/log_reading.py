"""Reading click logs: files to blocks of labels, numbers and keys, against pyarrow's own readers alone.

    python benchmarks/log_reading.py                  # 400,000 examples shaped like Criteo's: 13 numbers, 26 keys

The logs are written first: Parquet with integer keys, Parquet with keys as text of 8 hexadecimal digits, and a TSV with
the same text and empty fields. "pyarrow" reads the same columns as the same types batch by batch and throws them away;
"counting" is the pass over a text by which its rows are known. MB are of the file: of Parquet, compressed bytes.
The contestants take turns; figures are medians over `--repeats`, ratios medians of the ratios within a turn. Threads
are Arrow's; conversion to keys is in the thread that asks for the block.
"""

import argparse
import datetime
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from marius_oac.config_ctr import LogConfig
from marius_oac.data.log_files import BlockReader, LogFiles
from marius_oac.data.log_formats import BATCH_ROWS, TEXT_BYTES

NUMBERS = [f"i{i}" for i in range(13)]
KEYS = [f"c{i}" for i in range(26)]
BLOCK_ROWS = 1 << 16


def write_logs(folder: Path, rows: int) -> dict[str, tuple[Path, LogConfig]]:
    """Writes the logs; by name, their files and schemas."""
    random = np.random.default_rng(1)
    columns: dict[str, pa.Array] = {"label": pa.array((random.random(rows) < 0.25).astype(np.int8))}
    for name in NUMBERS:
        columns[name] = pa.array(random.geometric(0.05, rows).astype(np.int32), mask=random.random(rows) < 0.1)
    ids = {name: (random.zipf(1.2, rows) * 0x9E3779B1) & 0xFFFFFFFF for name in KEYS}
    holes = {name: random.random(rows) < 0.05 for name in KEYS}
    texts = {
        name: pa.array([f"{value:08x}" for value in ids[name].tolist()], pa.string(), mask=holes[name]) for name in KEYS
    }
    integers = pa.table(columns | {name: pa.array(ids[name], mask=holes[name]) for name in KEYS})
    pq.write_table(integers, folder / "integers.parquet", row_group_size=1 << 17)
    table = pa.table(columns | texts)
    pq.write_table(table, folder / "texts.parquet", row_group_size=1 << 17)
    with pa_csv.CSVWriter(
        folder / "log.tsv",
        table.schema,
        write_options=pa_csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none"),
    ) as writer:
        writer.write_table(table)

    def config(kind: str, columns: tuple[str, ...] = ()) -> LogConfig:
        features = [{"name": name, "kind": kind} for name in KEYS]
        return LogConfig(train="x", columns=columns, numeric=NUMBERS, categorical=features, missing_numbers=0)

    names = ("label", *NUMBERS, *KEYS)
    return {
        "Parquet, integers": (folder / "integers.parquet", config("auto")),
        "Parquet, texts": (folder / "texts.parquet", config("string")),
        "TSV, texts": (folder / "log.tsv", config("string", names)),
        "TSV, hex": (folder / "log.tsv", config("hex", names)),
    }


def parsed_by_pyarrow(path: Path, config: LogConfig, rows: int) -> None:
    """The same columns as the same types, batch by batch."""
    wanted, found = ["label", *NUMBERS, *KEYS], 0
    if path.suffix == ".parquet":
        with pq.ParquetFile(path, pre_buffer=False) as parquet:
            found = sum(batch.num_rows for batch in parquet.iter_batches(BATCH_ROWS, columns=wanted))
    else:
        types = dict.fromkeys(wanted, pa.string()) | dict.fromkeys(NUMBERS, pa.float32()) | {"label": pa.float64()}
        with pa_csv.open_csv(
            path,
            pa_csv.ReadOptions(column_names=wanted, block_size=TEXT_BYTES),
            pa_csv.ParseOptions(delimiter="\t", quote_char=False),
            pa_csv.ConvertOptions(column_types=types, null_values=[""]),
        ) as reader:
            found = sum(batch.num_rows for batch in reader)
    assert found == rows


def contestants(path: Path, config: LogConfig, rows: int) -> dict[str, Callable[[], None]]:
    """What is measured of one log; the first is the limit that the others are held against."""
    files = LogFiles.scan([str(path)], config).files

    def blocks() -> None:
        with BlockReader(files, config) as reader:
            found = sum(reader.block(0, number, BLOCK_ROWS).size for number in range(-(-rows // BLOCK_ROWS)))
        assert found == rows

    each: dict[str, Callable[[], None]] = {
        "pyarrow": lambda: parsed_by_pyarrow(path, config, rows),
        "ours": blocks,
    }
    if path.suffix != ".parquet":
        each["counting"] = lambda: LogFiles.scan([str(path)], config) and None
    return each


def measure(each: dict[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Seconds of every contestant's turns, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in each}
    for turn in range(repeats + 1):
        for name, run in each.items():
            begin = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    print(
        f"{datetime.date.today()}, {platform.machine()}, Python {platform.python_version()}, pyarrow {pa.__version__}"
    )
    with tempfile.TemporaryDirectory() as folder:
        logs = write_logs(Path(folder), options.rows)
        print(f"{'log':18} {'threads':>7} {'reader':>9} {'rows/s':>11} {'MB/s':>6} {'of pyarrow':>10}")
        for name, (path, config) in logs.items():
            for threads in options.threads:
                pa.set_cpu_count(threads)
                seconds = measure(contestants(path, config, options.rows), options.repeats)
                for reader, taken in seconds.items():
                    middle = statistics.median(taken)
                    ratio = statistics.median(a / b for a, b in zip(seconds["pyarrow"], taken, strict=True))
                    megabytes = path.stat().st_size / middle / 1e6
                    rate = options.rows / middle
                    print(f"{name:18} {threads:7} {reader:>9} {rate:11,.0f} {megabytes:6.0f} {ratio:10.2f}")


if __name__ == "__main__":
    main()
