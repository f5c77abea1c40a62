"""A click log of one file as three: drawn by a seed, streamed, the rows as they stand and in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.data.logs.lines import BYTE_ORDER_MARK, blocks_of_lines, count_rows
from marius_oac.data.prepare.prepare import new_folder
from marius_oac.data.prepare.splits import SPLITS, DrawnSplits
from marius_oac.errors import InputError
from marius_oac.runtime.progress import Progress

_ROWS = 1 << 16
_SEED = 0


@dataclass(frozen=True)
class SplitPlan:
    """A file that is to be split: which it is, whether it is Parquet, the lines of its header, its rows' parts."""

    path: Path
    folder: Path
    parquet: bool
    header: int
    draw: DrawnSplits

    @property
    def parts(self) -> dict[str, Path]:
        """Where each split will lie."""
        suffixes = "".join(self.path.suffixes[-2:] if self.path.suffix.lower() == ".gz" else self.path.suffixes[-1:])
        return {split: self.folder / f"{split}{suffixes}" for split in SPLITS}


def check_split(
    path: Path, format: str, header: bool, folder: Path | None, fractions: tuple[float, float]
) -> SplitPlan | None:
    """The plan of `split_log`, for which the file's rows are counted; None without a folder.

    Raises:
        InputError: the folder is there; fractions are none, or leave a split empty.
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
    """Writes the splits' files into a new folder, which is there whole or not at all; returns where they lie."""
    with new_folder(plan.folder) as folder, Progress(f"splitting {plan.path.name}", "examples") as progress:
        parts = {split: folder / path.name for split, path in plan.parts.items()}
        done = 0
        with (_parquet if plan.parquet else _texts)(plan, parts) as blocks:
            for size, write in blocks:
                drawn = plan.draw.of(np.arange(done, done + size))
                for number, split in enumerate(SPLITS):
                    rows = np.flatnonzero(drawn == number)
                    if rows.size:
                        write(split, rows)
                done += size
                progress.add(size)
        if done != plan.draw.edges:
            raise InputError(f"{plan.draw.edges:,} rows were counted, {done:,} are found: it has changed", plan.path)
    return plan.parts


Blocks = Iterator[tuple[int, Callable[[str, np.ndarray], None]]]
"""How many rows a block has, and what writes some of them to a split."""


@contextmanager
def _texts(plan: SplitPlan, parts: dict[str, Path]) -> Iterator[Blocks]:
    compression = "gzip" if plan.path.suffix.lower() == ".gz" else None
    with ExitStack() as stack:
        files = {
            split: stack.enter_context(pa.output_stream(str(path), compression=compression))
            for split, path in parts.items()
        }
        if plan.header:
            line = next(blocks_of_lines(plan.path, 0, 1))
            for file in files.values():
                file.write(line.pick(np.arange(1)).tobytes().removeprefix(BYTE_ORDER_MARK))

        def blocks() -> Blocks:
            for lines in blocks_of_lines(plan.path, plan.header, _ROWS):
                yield len(lines), lambda split, rows, lines=lines: files[split].write(lines.pick(rows))

        yield blocks()


@contextmanager
def _parquet(plan: SplitPlan, parts: dict[str, Path]) -> Iterator[Blocks]:
    with ExitStack() as stack:
        source = stack.enter_context(pq.ParquetFile(plan.path, pre_buffer=False))
        schema = source.schema_arrow
        files = {split: stack.enter_context(pq.ParquetWriter(path, schema)) for split, path in parts.items()}

        def blocks() -> Blocks:
            for batch in source.iter_batches(_ROWS):
                yield len(batch), lambda split, rows, batch=batch: files[split].write_batch(batch.take(pa.array(rows)))

        yield blocks()
