"""Generated click logs of any size: seeded, skewed, drifting, with structure that a model can learn and a known best
AUC.

    python -m benchmarks.generate.log --out logs --days 10 --rows 1000000 --keys 100000000

The columns are those of Criteo's logs: `label`, numbers n0, n1 ..., and 64-bit integer keys c0, c1 ... from
vocabularies whose sizes fall geometrically. Keys are drawn from a bounded Zipf distribution. Every key has four latent
factors. The logit of a click is the sum of one factor of each key (for LR), the inner products of all pairs of keys
(for FM and models built on it) and effects of the numbers. With `lists` an example also has `history`, past keys of
c0's vocabulary, newest last, weighted by their similarity to c0 and their recency; and `tags`, a bag whose mean effect
is added.

From day to day the factors rotate, each key's at its own speed, and a fraction of the ranks gets new keys. Example i of
a day depends only on the seed, the day and i. No table is kept, and the block size and the number of examples don't
matter.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.generate import log_kernels as kernels
from marius_oac.data.logs.columns import Bag, LogBlock
from marius_oac.errors import InputError
from marius_oac.kernels.cpu.random import stream_key, wrapping
from marius_oac.runtime.command import Parser, run_command
from marius_oac.runtime.files.atomic import disk_errors, unfinished_here
from marius_oac.runtime.progress import Progress
from marius_oac.types import present

_PROGRAM = "python -m benchmarks.generate.log"
BLOCK_ROWS = 1 << 16  # examples of a block, and of a row group
MAX_DAY = 1 << 20
TAGS, MOST_TAGS = 1000, 5
HISTORY, RECENCY = 20, 0.7  # most past keys; the weight of each relative to the next newer one
_SPREAD = {"linear": 1.0, "pairs": 0.7, "numbers": 0.5, "history": 1.0, "tags": 0.5}
"""Standard deviations of the parts of the logit if keys were drawn uniformly."""
_WAVE = 1 / 3  # variance of a factor
_SAMPLE = 4096  # examples that the bias is fitted to


@dataclass(frozen=True, kw_only=True)
class LogSpec:
    """A log to generate; see the module's docstring for its distribution.

    Attributes:
        seed: any integer.
        categorical: number of columns of keys.
        numeric: number of columns of numbers, approximately standard normal.
        keys: distinct keys of a day in all columns together. The first of 26 columns has more than a third of them.
        skew: P(rank k) ~ k ** -skew.
        drift: rotations per day of the fastest factors.
        new_keys: fraction of the keys that is replaced by new ones from one day to the next.
        click_rate: approximate click rate of day 0.
        lists: whether there are columns `history` and `tags`; the latter have another 1000 keys.

    Raises:
        InputError: a value is out of range.
    """

    seed: int = 0
    categorical: int = 26
    numeric: int = 13
    keys: int = 1_000_000
    skew: float = 1.1
    drift: float = 0.02
    new_keys: float = 0.01
    click_rate: float = 0.25
    lists: bool = False

    def __post_init__(self) -> None:
        def check(name: str, fine: bool, must: str) -> None:
            if not fine:
                raise InputError(f"{name} must be {must}, not {getattr(self, name)}")

        check("categorical", 1 <= self.categorical <= 10_000, "1 to 10000")
        check("numeric", 0 <= self.numeric <= 10_000, "0 to 10000")
        least = 2 * self.categorical
        check("keys", least <= self.keys <= 1 << 39, f"{least} (two a column) to 2**39")
        check("skew", 0 <= self.skew <= 10, "0 to 10")
        check("drift", 0 <= self.drift <= 1, "0 to 1")
        check("new_keys", 0 <= self.new_keys <= 1, "0 to 1")
        check("click_rate", 0 < self.click_rate < 1, "between 0 and 1")

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The number of keys of each column on a day. It falls by a factor of 10**5 from the first to the last."""
        weights = 10.0 ** (-5 * np.arange(self.categorical) / max(1, self.categorical - 1))
        free = self.keys - 2 * self.categorical
        sizes = [2 + int(share) for share in free * (weights / weights.sum())]
        sizes[0] += self.keys - sum(sizes)
        return tuple(sizes)

    def schema(self) -> dict[str, Any]:
        """The columns, as in the section `data` of a config."""
        columns: dict[str, Any] = {
            "label": "label",
            "numeric": [f"n{j}" for j in range(self.numeric)],
            "categorical": [f"c{c}" for c in range(self.categorical)],
        }
        if self.lists:
            columns["multi_valued"] = [{"name": "tags", "pooling": "mean"}]
            columns["sequences"] = [{"name": "history", "vocabulary": "c0", "max_values": HISTORY}]
        return columns


class GeneratedBlock(NamedTuple):
    """Consecutive examples, and the true probabilities of their clicks, float32 [n]."""

    examples: LogBlock
    probabilities: np.ndarray


def day_batches(day: int, rows: int, spec: LogSpec, block_rows: int = BLOCK_ROWS) -> Iterator[GeneratedBlock]:
    """Yields the first `rows` examples of a day (from 0) in blocks of `block_rows`; the last may be shorter.

    Raises:
        InputError: the day or the number of examples is out of range.
    """
    _check_day(day, rows)
    if block_rows < 1:
        raise InputError(f"block_rows must be at least 1, not {block_rows}")
    law, bias = _Law(spec), _bias(spec)
    for start in range(0, rows, block_rows):
        yield law.block(day, start, min(block_rows, rows - start), bias)


def true_probabilities(day: int, rows: int, spec: LogSpec) -> tuple[np.ndarray, np.ndarray]:
    """Labels and true probabilities of the first `rows` examples of a day, float32 [rows] each.

    The expected AUC and log loss of a model on them can't be better than those of these probabilities.

    Raises:
        InputError: as `day_batches`.
    """
    blocks = list(day_batches(day, rows, spec))
    labels = np.concatenate([present(block.examples.labels) for block in blocks])
    return labels, np.concatenate([block.probabilities for block in blocks])


def write_day(path: Path, day: int, rows: int, spec: LogSpec) -> None:
    """Writes the first `rows` examples of a day (from 0) to a new Parquet file, which is complete or doesn't exist.

    Columns: label int8, n0 ... float32, c0 ... int64 and, with `lists`, tags and history list<int64>. Row groups have
    BLOCK_ROWS examples; memory holds a few of them.

    Raises:
        InputError: the file exists or can't be written; the day or the number of examples is out of range.
    """
    path = Path(path)
    _check_day(day, rows)
    if os.path.lexists(path):
        raise InputError("exists already", path)
    temporary = unfinished_here(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                pq.ParquetWriter(temporary, _arrow_schema(spec), compression="zstd") as writer,
                Progress(f"writing {path.name}", "examples", rows) as progress,
            ):
                for block in day_batches(day, rows, spec):
                    writer.write_table(_table(block.examples, spec), row_group_size=BLOCK_ROWS)
                    progress.add(block.examples.size)
            os.rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


class _Law:
    """The distribution of a `LogSpec`, without the bias that sets its click rate."""

    @wrapping
    def __init__(self, spec: LogSpec) -> None:
        self.spec, self.sizes = spec, spec.vocabulary_sizes
        columns, pairs = spec.categorical, max(1, spec.categorical * (spec.categorical - 1) // 2)
        linear = _SPREAD["linear"] / math.sqrt(columns * _WAVE)
        pair = (_SPREAD["pairs"] ** 2 / (pairs * 4 * _WAVE**2)) ** 0.25
        self.law = np.array([self._column(size, linear, pair) for size in self.sizes])
        self.tag_law = self._column(TAGS, 0.0, 0.0)
        self.streams = np.array([self._streams(f"c{c}") for c in range(columns)])
        self.tag_streams = self._streams("tags")
        self.salt = stream_key(spec.seed, "log factors")
        share = _SPREAD["numbers"] / math.sqrt(spec.numeric + 1)
        signs = 1 - 2 * (np.arange(spec.numeric) % 2)
        self.effects, self.product = share * signs.astype(np.float64), share
        recent = math.sqrt(4 * _WAVE**2 / (1 - RECENCY**2))
        self.history = _SPREAD["history"] / recent
        self.tags = _SPREAD["tags"] / math.sqrt(_WAVE * 2 / (1 + MOST_TAGS))

    def _column(self, size: int, linear: float, pair: float) -> np.ndarray:
        power = 1.0 - self.spec.skew
        if abs(power) < 1e-9:
            return np.array([size, 0.0, 0.0, math.log(size + 1.0), linear, pair])
        return np.array([size, power, 1.0 / power, (size + 1.0) ** power - 1.0, linear, pair])

    def _streams(self, column: str) -> np.ndarray:
        return np.array([stream_key(self.spec.seed, f"log {what} {column}") for what in ("keys", "ages")])

    @wrapping
    def logits(self, day: int, start: int, size: int) -> tuple[np.ndarray, np.ndarray, dict[str, Bag], np.ndarray]:
        """Returns keys uint64 [columns, size], numbers float32 [size, N], lists, and logits without the bias, float64
        [size]."""
        spec = self.spec
        time = np.array([day * spec.new_keys, day * spec.drift])
        keys, logits = np.empty((spec.categorical, size), np.uint64), np.empty(size)
        kernels.fill_keys(start, self._draws("keys", day), self.salt, time, self.law, self.streams, keys, logits)
        numbers = np.empty((size, spec.numeric), np.float32)
        kernels.fill_numbers(start, self._draws("numbers", day), self.effects, self.product, numbers, logits)
        if not spec.lists:
            return keys, numbers, {}, logits
        tags = self._list("tags", day, start, size, MOST_TAGS, self.tag_law, self.tag_streams)
        kernels.add_bag(self.salt, time[1], self.tags, *tags, logits)
        seen = self._list("history", day, start, size, HISTORY, self.law[0], self.streams[0])
        kernels.add_history(keys[0], self.salt, time[1], self.history, RECENCY, *seen, logits)
        bags = {"tags": tags, "history": seen}
        return keys, numbers, {k: Bag(v.view(np.int64), None, offsets) for k, (offsets, v) in bags.items()}, logits

    @wrapping
    def block(self, day: int, start: int, size: int, bias: float) -> GeneratedBlock:
        """The examples [start, start + size) of a day."""
        keys, numbers, bags, logits = self.logits(day, start, size)
        probabilities, labels = np.empty(size, np.float32), np.empty(size, np.float32)
        kernels.draw_labels(start, self._draws("labels", day), bias, logits, probabilities, labels)
        named = {f"c{c}": column.view(np.int64) for c, column in enumerate(keys)}
        return GeneratedBlock(LogBlock(labels, numbers, named, dict.fromkeys(named), bags), probabilities)

    def _list(
        self, name: str, day: int, start: int, size: int, longest: int, law: np.ndarray, streams: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Offsets int64 [size + 1] and values uint64 [v] of a column of lists."""
        offsets = np.empty(size + 1, np.int64)
        kernels.lengths_of(start, self._draws(f"{name} lengths", day), longest, offsets)
        values = np.empty(offsets[-1], np.uint64)
        age = day * self.spec.new_keys
        kernels.fill_list(start, self._draws(name, day), age, law, streams, longest, offsets, values)
        return offsets, values

    def _draws(self, what: str, day: int) -> np.uint64:
        return stream_key(self.spec.seed, f"log {what}", day)


@lru_cache(maxsize=64)
def _bias(spec: LogSpec) -> float:
    """The bias for which the mean probability of the first examples of day 0 is the click rate, by bisection."""
    logits = _Law(spec).logits(0, 0, _SAMPLE)[-1]
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = math.fsum((1 / (1 + np.exp(-(logits + middle)))).tolist()) / _SAMPLE
        low, high = (middle, high) if mean < spec.click_rate else (low, middle)
    return low


def _check_day(day: int, rows: int) -> None:
    if not 0 <= day < MAX_DAY:
        raise InputError(f"a day must be 0 to {MAX_DAY - 1}, not {day}")
    if not 1 <= rows < 1 << 40:
        raise InputError(f"a day must have 1 to 2**40 - 1 examples, not {rows}")


def _arrow_schema(spec: LogSpec) -> pa.Schema:
    numbers = [(f"n{j}", pa.float32()) for j in range(spec.numeric)]
    keys = [(f"c{c}", pa.int64()) for c in range(spec.categorical)]
    lists = [(name, pa.list_(pa.int64())) for name in ("tags", "history")] if spec.lists else []
    return pa.schema([("label", pa.int8()), *numbers, *keys, *lists])


def _table(block: LogBlock, spec: LogSpec) -> pa.Table:
    numbers = [np.ascontiguousarray(column) for column in block.numbers.T]
    lists = [
        pa.ListArray.from_arrays(pa.array(bag.offsets.astype(np.int32)), pa.array(bag.keys))
        for bag in block.bags.values()
    ]
    columns = [present(block.labels).astype(np.int8), *numbers, *block.keys.values()]
    return pa.Table.from_arrays([*map(pa.array, columns), *lists], schema=_arrow_schema(spec))


def _parser() -> Parser:
    parser = Parser(prog=_PROGRAM, description="Generate a click log, a file a day.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for day_00.parquet ...")
    parser.add_argument("--days", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--first-day", type=int, default=0, help="number of the first one (default: 0)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="examples of a day (default: 1000000)")
    helps = {
        "seed": "any integer",
        "categorical": "columns of keys",
        "numeric": "columns of numbers",
        "keys": "distinct keys of a day, all columns together",
        "skew": "exponent of the Zipf law of the keys",
        "drift": "turns of the fastest factors in a day",
        "new_keys": "share of the keys that is replaced from a day to the next",
        "click_rate": "of day 0, about",
    }
    for field in fields(LogSpec):
        if field.name in helps:
            option = f"--{field.name.replace('_', '-')}"
            text = f"{helps[field.name]} (default: {field.default})"
            parser.add_argument(option, type=type(field.default), default=field.default, help=text)
    parser.add_argument("--lists", action="store_true", help="also columns history and tags, lists of keys")
    return parser


def _generate(args: argparse.Namespace) -> None:
    spec = LogSpec(**{field.name: getattr(args, field.name) for field in fields(LogSpec)})
    if args.days < 1:
        raise InputError(f"--days must be at least 1, not {args.days}")
    days = range(args.first_day, args.first_day + args.days)
    width = max(2, len(str(days[-1])))
    paths = [args.out / f"day_{day:0{width}}.parquet" for day in days]
    for day, path in zip(days, paths, strict=True):  # all of it is checked before anything is written
        _check_day(day, args.rows)
        if os.path.lexists(path):
            raise InputError("exists already", path)
    for day, path in zip(days, paths, strict=True):
        write_day(path, day, args.rows, spec)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes a file a day; returns the exit code."""
    return run_command(_PROGRAM, lambda: _generate(_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
