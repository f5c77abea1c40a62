"""Where data of this package are written: new folders, and the user's cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from marius_oac.data.reading.database import query_errors
from marius_oac.errors import InputError
from marius_oac.runtime.files.atomic import check_place, sync
from marius_oac.runtime.files.unfinished import flush_folder, new_part


def default_cache_dir() -> Path:
    """The folder $XDG_CACHE_HOME/marius_oac, or ~/.cache/marius_oac."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marius_oac"


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out`. If the block succeeds it is flushed to disk and renamed to `out`, else removed.

    Raises:
        InputError: it can't be made there, `out` was created meanwhile, or the disk is full.
    """
    check_place(out)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(new_part(out))
        except OSError as error:
            raise InputError(f"can't be made: {error.strerror}", out) from None
        with query_errors(out, "nothing was kept"):
            yield folder
            flush_folder(folder)
            try:
                os.rename(folder, out)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise InputError("came into being while it was prepared; nothing was changed", out) from None
                raise
            sync(out.parent)
