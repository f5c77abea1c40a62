"""The position of a row of a click log, for messages: file, row, and in a text the line."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.lines import COMPRESSIONS, line_of_row
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
    """The format of a file, "csv", "parquet" or "libsvm", and the usual delimiter of texts with its suffix.

    Raises:
        InputError: `format` is auto and the suffix is unknown.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    zipped = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    suffix = "".join(suffixes[-2:-1] if zipped else suffixes[-1:])
    kind = _SUFFIXES.get(suffix) if format == "auto" else format
    if kind is None:
        known = ", ".join((*_SUFFIXES, f"{'/'.join(COMPRESSIONS)} of the texts"))
        raise InputError(f"unknown kind of file ({known} are known); data.format says what it is", path)
    return kind, "\t" if suffix in (".tsv", ".txt") else ","


def place_of(path: Path, rows: np.ndarray, config: LogConfig) -> Place:
    """The place of the rows with these numbers, int64 [n], of a file that is read with this configuration."""
    kind, _ = format_of(Path(path), config.format)
    return Place(path, rows, None if kind == "parquet" else int(kind == "csv" and not config.columns))


@dataclass(frozen=True)
class Place:
    """The places of a batch's rows.

    Attributes:
        path: of the file.
        rows: int64 [n], each row's number in the file, from 0, without the header.
        header: the number of header lines of a text; None: the file is no text.
    """

    path: Path
    rows: np.ndarray
    header: int | None = None

    def wrong(self, index: int, message: str) -> InputError:
        """The error for the batch's row `index`. The message counts rows from 1, and names the line in a text."""
        row, where = int(self.rows[index]), str(self.path)
        if self.header is not None:
            with suppress(InputError):  # if the file can't be read any more, the message has no line
                where = f"{where}:{line_of_row(Path(self.path), row + self.header)}"
        return InputError(f"row {row + 1}: {message}", where)
