"""Checks every row of the files of a click log, read as training will read it, before training begins."""

from __future__ import annotations

from collections.abc import Sequence

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.files import BlockReader, LogFile
from marius_oac.data.logs.pieces import Pieces
from marius_oac.runtime.progress import Progress

BLOCK_EXAMPLES = 1 << 16


def check_rows(
    files: Sequence[LogFile], config: LogConfig, pieces: Sequence[Pieces], part: int = 0, parts: int = 1
) -> None:
    """Parses and converts all examples of `files`, which have labels. The digests of what is read are recorded in
    `pieces`, so that training fails if the files change.

    Args:
        part, parts: check only every `parts`-th block, starting with block `part`.

    Raises:
        InputError: training would refuse an example; names its file and row.
    """
    with (
        BlockReader(files, config, pieces=pieces) as reader,
        Progress("checking the rows", "examples", sum(file.rows for file in files)) as progress,
    ):
        place = 0
        for number, file in enumerate(files):
            for block in range(-(-file.rows // BLOCK_EXAMPLES)):
                raw = reader.lazy_block(number, block, BLOCK_EXAMPLES)
                if place % parts == part:
                    raw.check()
                place += 1
                progress.add(raw.size)
