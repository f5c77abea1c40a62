"""What a folder of tables says of the files with its rows."""

import numpy as np
import pytest

from marius_oac.errors import InputError
from marius_oac.storage.disk.files import LISTING, Listing
from marius_oac.storage.disk.owner import OWNER
from marius_oac.storage.saved import table_files, verify_tables
from marius_oac.storage.snapshots import SavedTable

IDENTITY = "0" * 32


@pytest.fixture
def tables(tmp_path):
    """A folder of tables with one file of rows in it and one elsewhere."""
    folder = tmp_path / "tables"
    folder.mkdir()
    files = (f"0-{IDENTITY}.pages", f"{tmp_path}/1-{IDENTITY}.pages")
    (folder / LISTING).write_text(Listing(IDENTITY, 4096, files).dump())
    return folder


def test_files_are_found_wherever_they_lie(tables, tmp_path):
    assert table_files(tables) == [tables / f"0-{IDENTITY}.pages", tmp_path / f"1-{IDENTITY}.pages"]
    assert table_files(tmp_path) == []
    (tables / LISTING).write_text("{")
    with pytest.raises(InputError):
        table_files(tables)


def test_listing_and_owner_are_checked_and_files_counted(tables, tmp_path):
    checked = []

    def check(path, work):
        checked.append(path)
        return work() if path.name == LISTING else None

    assert verify_tables(tables, check) == 2 and checked == [tables / LISTING, tables / OWNER]


def test_of_a_damaged_listing_no_file_is_counted_and_no_owner_asked(tables, tmp_path):
    checked = []
    assert verify_tables(tables, lambda path, work: checked.append(path)) == 0 and checked == [tables / LISTING]
    assert verify_tables(tmp_path, lambda path, work: checked.append(path)) == 0 and len(checked) == 1


def test_a_table_that_is_copied_refers_to_nothing_elsewhere(tmp_path):
    table = SavedTable("rows", tmp_path, lambda part: np.zeros(3))
    assert table.references is None and list(table.damage(None, print)) == []
