"""Tables of a run as they lie in its folder, whatever store wrote them: opened, checked and listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.runtime.files.untrusted import Described
from marius_oac.storage.disk.files import LISTING, Listing
from marius_oac.storage.disk.owner import OWNER, verify_claim
from marius_oac.storage.disk.saved_pages import PagedRows, SavedPages
from marius_oac.storage.snapshots import SavedTable

REFERENCES, REFERRING_PARTS = SavedPages.parts[0], SavedPages.parts
"""The arrays of a table whose rows stay where they lie; the first is `SavedTable.references`."""


class AboutTable(Described):
    """What a manifest says of such a table: `Snapshot.about`."""

    rows: PagedRows


def referring_table(
    name: str, path: Path, array: Callable[[str], np.ndarray], about: Mapping[str, Any], tables: Path, kept_by: object
) -> SavedTable:
    """Opens a table of a checkpoint whose rows stay where they lie.

    Args:
        name, path, array: see `SavedTable`.
        about: `Snapshot.about`, an `AboutTable`.
        tables: the folder of the run's tables.
        kept_by: an object whose existence keeps the rows unchanged.
    """
    return SavedPages(name, path, array, PagedRows.load(about["rows"]), tables, kept_by)


def table_files(tables: Path) -> list[Path]:
    """The files that hold rows of a run with this folder of tables, wherever they lie. Raises InputError as
    `Listing.load`."""
    listing = tables / LISTING
    return [tables / name for name in Listing.load(listing).files] if listing.exists() else []


def verify_tables(tables: Path, check: Callable[[Path, Callable[[], Any]], Any]) -> int:
    """Checks what a folder of tables says of the files with its rows; returns the number of these files.

    `check(path, work)` returns what `work`, which reads the file at `path`, returns; None: the file is damaged.
    """
    if not (tables / LISTING).exists():
        return 0
    listing = check(tables / LISTING, lambda: Listing.load(tables / LISTING))
    if listing is None:
        return 0
    check(tables / OWNER, lambda: verify_claim(tables, listing))
    return len(listing.files)
