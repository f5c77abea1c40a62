"""Splits a click log of one file into three by a seeded draw, streaming. Rows keep their bytes and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from marius_oac.data.folders import new_folder
from marius_oac.data.logs.lines import BYTE_ORDER_MARK, COMPRESSIONS, blocks_of_lines, count_rows, create_text
from marius_oac.data.splits import SPLITS, DrawnSplits
from marius_oac.errors import InputError
from marius_oac.runtime.progress import Progress

_ROWS = 1 << 16
_SEED = 0


@dataclass(frozen=True)
class SplitPlan:
    """A file to split.

    Attributes:
        path: of the file.
        folder: to write the splits to.
        parquet: whether the file is Parquet.
        header: the number of header lines.
        draw: the split of each row.
    """

    path: Path
    folder: Path
    parquet: bool
    header: int
    draw: DrawnSplits

    @property
    def parts(self) -> dict[str, Path]:
        """The file of each split."""
        zipped = self.path.suffix.lower() in COMPRESSIONS
        suffixes = "".join(self.path.suffixes[-2:] if zipped else self.path.suffixes[-1:])
        return {split: self.folder / f"{split}{suffixes}" for split in SPLITS}


def check_split(
    path: Path, format: str, header: bool, folder: Path | None, fractions: tuple[float, float]
) -> SplitPlan | None:
    """Counts the file's rows and makes the plan for `split_log`; None without a folder.

    Raises:
        InputError: the folder exists; fractions are outside [0, 1), or leave a split empty.
    """
    if folder is None:
        return None
    if folder.is_symlink() or folder.exists():
        raise InputError("exists already; choose another folder or remove it", folder)
    parquet = format == "parquet"
    lines = int(header and format == "csv")
    rows = pq.ParquetFile(path).metadata.num_rows if parquet else count_rows(path) - lines
    draw = DrawnSplits(rows, *fractions, _SEED)
    counts = [round(fraction * rows) for fraction in fractions]
    if min(counts) < 1 or sum(counts) >= rows:
        raise InputError(f"{rows:,} rows are too few for parts of {fractions[0]:g} and {fractions[1]:g}", path)
    return SplitPlan(path, folder, parquet, lines, draw)


def split_log(plan: SplitPlan) -> dict[str, Path]:
    """Writes the splits' files into a new folder, which is complete or doesn't exist. Returns the files by split.

    Raises:
        InputError: the file can't be read or has changed, or the disk is full.
    """
    with new_folder(plan.folder) as folder, Progress(f"splitting {plan.path.name}", "examples") as progress:
        parts = {split: folder / path.name for split, path in plan.parts.items()}
        done = 0
        with (_parquet if plan.parquet else _texts)(plan, parts) as (write, blocks):
            for size, take in blocks:
                drawn = plan.draw.of(np.arange(done, done + size))
                for number, split in enumerate(SPLITS):
                    rows = np.flatnonzero(drawn == number)
                    if rows.size:
                        write[split](take(rows))
                done += size
                progress.add(size)
        if done != plan.draw.edges:
            raise InputError(f"{plan.draw.edges:,} rows were counted, {done:,} are found: it has changed", plan.path)
    return plan.parts


Streams = tuple[Mapping[str, Callable[[Any], object]], Iterable[tuple[int, Callable[[np.ndarray], Any]]]]
"""What writes rows to each split; and for each block the number of rows, and what takes some of them, int64 [k]."""


@contextmanager
def _texts(plan: SplitPlan, parts: dict[str, Path]) -> Iterator[Streams]:
    with ExitStack() as stack:
        write = {split: stack.enter_context(create_text(path)).write for split, path in parts.items()}
        if plan.header:
            line = next(blocks_of_lines(plan.path, 0, 1)).pick(np.arange(1))
            for each in write.values():
                each(line.tobytes().removeprefix(BYTE_ORDER_MARK))
        yield write, ((len(lines), lines.pick) for lines in blocks_of_lines(plan.path, plan.header, _ROWS))


@contextmanager
def _parquet(plan: SplitPlan, parts: dict[str, Path]) -> Iterator[Streams]:
    with ExitStack() as stack:
        source = stack.enter_context(pq.ParquetFile(plan.path, pre_buffer=False))
        new = {split: pq.ParquetWriter(path, source.schema_arrow) for split, path in parts.items()}
        write = {split: stack.enter_context(writer).write_batch for split, writer in new.items()}
        yield write, ((len(batch), batch.take) for batch in source.iter_batches(_ROWS))
