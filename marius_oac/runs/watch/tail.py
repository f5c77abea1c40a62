"""The lines of `metrics.jsonl` as they come: each is read once, but where the file was rewound."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from marius_oac.errors import CheckpointError
from marius_oac.runs.folder.metrics import parsed
from marius_oac.runs.report.history import check_size
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.untrusted import open_regular

MOST_LINE = 1 << 20
"""Bytes of a line, and of what is read at once."""
_KNOWN = 256
"""Bytes before the place that was read to; where a file does not have them, it was rewound. A line has the seconds that
its batches took, so no other line has the same bytes."""


class Tail:
    """Reads the complete lines that a file has gained since it was last read."""

    def __init__(self, path: Path):
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._read, self._before, self._number = 0, b"", 0

    def read(self) -> tuple[bool, list[dict[str, Any]]]:
        """The new lines.

        A run that is resumed replaces the file by its beginning; this one is then read from its start, and what was
        read before is void.

        Returns:
            Whether the lines of earlier calls are void; the lines, parsed. A damaged line is left out with a warning;
            one that has no end yet is left for a later call.

        Raises:
            CheckpointError: it can't be read, is too large, or has a line of more than `MOST_LINE` bytes.
        """
        try:
            with open_regular(self._path, CheckpointError) as file:
                size = os.fstat(file.fileno()).st_size
                check_size(size, self._path)
                known = len(self._before)
                rewound = os.pread(file.fileno(), known, self._read - known) != self._before
                if rewound:
                    self._forget()
                return rewound, self._lines(file.fileno(), size)
        except FileNotFoundError:
            rewound = self._read > 0
            self._forget()
            return rewound, []
        except OSError as error:
            raise CheckpointError(f"can't be read: {error.strerror}", self._path) from None

    def _lines(self, file: int, end: int) -> list[dict[str, Any]]:
        lines = []
        while self._read < end:
            content = os.pread(file, min(MOST_LINE, end - self._read), self._read)
            whole = content[: content.rfind(b"\n") + 1]
            if not whole:
                if len(content) == MOST_LINE:
                    raise CheckpointError("is damaged: a line is too long", f"{self._path}:{self._number + 1}")
                break
            for text in whole[:-1].split(b"\n"):
                self._number += 1
                line = parsed(text)
                if line is None:
                    logger.warning(f"{self._path}:{self._number}: is damaged; this line is left out")
                else:
                    lines.append(line)
            self._read += len(whole)
            self._before = (self._before + whole)[-_KNOWN:]
        return lines
