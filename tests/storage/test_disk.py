"""The store on disk passes the conformance suite, with little memory and with much."""

from contextlib import ExitStack

import pytest

from marius_oac.storage.disk.files import LISTING, Listing, PageFiles
from marius_oac.storage.disk.layout import page_bytes_for
from marius_oac.storage.disk.store import SsdStore
from marius_oac.storage.disk.tier import DiskTier
from tests.storage.conformance import JIT, StoreConformance
from tests.storage.torture import ConcurrentConformance


def make_tier(folder, layouts, capacities, frames, look_ahead=8, io="direct"):
    page_bytes = page_bytes_for([layout.row_bytes for layout in layouts.values()])
    listing = Listing.new(page_bytes)
    files = PageFiles(folder, listing, io, depth=4, create=True)
    (folder / LISTING).write_text(listing.dump(), "utf-8")
    return DiskTier(files, layouts, capacities, frames * (page_bytes + 64), look_ahead)


class DiskStores:
    frames = 3

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.folder = tmp_path
        with ExitStack() as self.stack:
            yield

    def make_store(self, num_rows, layout, initial, capacity=None):
        tier = make_tier(
            self.folder,
            {initial.table: layout},
            {initial.table: num_rows if capacity is None else capacity},
            self.frames,
        )
        self.stack.enter_context(tier)
        return SsdStore(initial.table, num_rows, layout, initial, tier, capacity)


class TestDiskStore(DiskStores, StoreConformance):
    pass


class TestConcurrentDiskStore(DiskStores, ConcurrentConformance):
    frames = 8
    ROUNDS = 250 if JIT else 12  # a call takes the tier's lock, too


@pytest.mark.slow
class TestConcurrentDiskStoreLonger(DiskStores, ConcurrentConformance):
    frames = 8
    ROUNDS = 2000 if JIT else 12


class TestDiskStoreOfOneFrame(DiskStores, StoreConformance):
    frames = 1
