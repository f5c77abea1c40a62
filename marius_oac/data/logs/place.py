"""Where a row of a click log stands, for what is said of it: of a text its line, too."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.lines import line_of_row
from marius_oac.errors import InputError

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".libsvm": "libsvm",
    ".svm": "libsvm",
    ".libfm": "libsvm",
}


def format_of(path: Path, format: str = "auto") -> tuple[str, str]:
    """What a file is, "csv", "parquet" or "libsvm", and the usual delimiter of such a text.

    Raises:
        InputError: `format` is auto and the suffix says nothing.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = suffixes[-1:] == [".gz"]
    suffix = "".join(suffixes[-2:-1] if zipped else suffixes[-1:])
    kind = _SUFFIXES.get(suffix) if format == "auto" else format
    if kind is None:
        known = ", ".join((*_SUFFIXES, ".gz of the texts"))
        raise InputError(f"unknown kind of file ({known} are known); data.format says what it is", path)
    return kind, "\t" if suffix in (".tsv", ".txt") else ","


def place_of(path: Path, rows: np.ndarray, config: LogConfig) -> Place:
    """The place of rows of a file that is read by this configuration."""
    kind, _ = format_of(Path(path), config.format)
    return Place(path, rows, None if kind == "parquet" else int(kind == "csv" and not config.columns))


@dataclass(frozen=True)
class Place:
    """A file of a log, and the number in it, from 0, of each of a batch's rows, int64 [n]; a header line is no row.

    `header`: how many header lines a text has; None: it is no text.
    """

    path: Path
    rows: np.ndarray
    header: int | None = None

    def wrong(self, index: int, message: str) -> InputError:
        """An error of the batch's row `index`, which the message counts from 1; of a text it names the line."""
        row, where = int(self.rows[index]), str(self.path)
        if self.header is not None:
            with suppress(InputError):  # that the file can't be read any more is not what is to be said
                where = f"{where}:{line_of_row(Path(self.path), row + self.header)}"
        return InputError(f"row {row + 1}: {message}", where)
