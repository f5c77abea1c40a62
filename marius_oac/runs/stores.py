"""Tables that lie on disk: their files, and the memory that they may take."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from marius_oac.config.sections import StorageConfig
from marius_oac.runs.checkpoints.checkpoint import TABLES
from marius_oac.runs.checkpoints.retention import Checkpoints, read_saved
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import disk_errors, make_folder, remove_file, sync, write_atomically
from marius_oac.runtime.files.scratch import scratch_folder
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.runtime.progress import Progress
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore, RowLayout
from marius_oac.storage.disk.files import LISTING, Listing, PageFiles, is_page_file
from marius_oac.storage.disk.owner import claim
from marius_oac.storage.disk.store import SsdStore
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.mapped import MappedStore
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.sizes import page_bytes
from marius_oac.types import present


class Tables:
    """Makes the stores of a run: in memory, on disk under a budget, or mapped.

    Args:
        config: `storage` of the run's configuration.
        folder: of the run; None: a temporary one, where files are needed.
        layouts: of each table, by name.
        capacities: most rows of each table, by name.
        stack: what must be closed is entered here.
        binding: where memory and I/O threads belong.
        writable: False to look at the tables of a run that others may be training.
        lasting: False: page files have no names and are gone with the process, snapshots copy rows, and batches leave
            room for calls on demand (`DiskTier`).
    """

    def __init__(
        self,
        config: StorageConfig,
        folder: Path | None,
        layouts: Mapping[str, RowLayout],
        capacities: Mapping[str, int],
        stack: ExitStack,
        binding: Binding = UNBOUND,
        writable: bool = True,
        lasting: bool = True,
    ):
        self._config, self._layouts, self._capacities, self._stack = config, layouts, capacities, stack
        self._policy = binding.memory
        self._tier: DiskTier | None = None
        self.scratch: Path | None = None
        """A folder for what does not fit into memory; None if everything must, or nothing may be written."""
        self._lasting = lasting
        if not config.on_disk:
            return
        if config.paged and not lasting:
            self._tier = self._make_tier(nameless_files(config, list(layouts.values()), binding))
            return
        folder = (folder or stack.enter_context(scratch_folder())) / TABLES
        self.scratch = folder if writable else None
        if writable:
            with disk_errors(folder):
                make_folder(folder)
        if config.paged:
            self._tier = self._make_tier(open_files(config, folder, list(layouts.values()), writable, binding))

    def _make_tier(self, files: PageFiles) -> DiskTier:
        config = self._config
        self._stack.enter_context(files)
        sizes = self._layouts, self._capacities, present(config.memory), config.look_ahead
        return self._stack.enter_context(DiskTier(files, *sizes, self._policy, not self._lasting))

    def make(self, name: str, num_rows: int, initial: RowInitial) -> ParameterStore:
        """A table at its initial values."""
        layout, capacity = self._layouts[name], self._capacities[name]
        if self._tier:
            there = num_rows if initial.recordable else 0
            paged = SsdStore(name, there, layout, initial, self._tier, capacity, self._lasting)
            self._stack.enter_context(paged)
            if not initial.recordable:
                _write_all(paged, num_rows)
            return paged
        if self.scratch:
            store: ParameterStore = MappedStore(self.scratch, name, num_rows, layout, initial, capacity)
        else:
            store = MemoryStore(name, num_rows, layout, initial, capacity, self._policy)
        return self._stack.enter_context(store)


def _write_all(store: ParameterStore, num_rows: int) -> None:
    """Appends all rows to an empty store, some at a time: the keys of all may not fit into memory."""
    with Progress("writing initial rows", "rows", num_rows) as progress:
        for begin in range(0, num_rows, ROWS_PER_BLOCK):
            keys = np.arange(begin, min(begin + ROWS_PER_BLOCK, num_rows))
            store.extend(keys)
            progress.add(keys.size)


def check_places(config: StorageConfig) -> None:
    """Makes the folders of `storage.path`, and a file in each. Raises InputError if that can't be done."""
    for path in map(Path, config.path):
        with disk_errors(path):
            make_folder(path)
            tempfile.TemporaryFile(dir=path).close()


def open_files(
    config: StorageConfig, folder: Path, layouts: list[RowLayout], writable: bool, binding: Binding
) -> PageFiles:
    """The page files of a run, made where there are none yet."""
    make = partial(PageFiles, folder, io=config.io, depth=config.depth, warn=logger.warning, bind=binding.bind_thread)
    checkpoints = Checkpoints(folder.parent / "checkpoints")
    referred_to = any(any(checkpoints.folder.glob(f"{name}/*.slots.npy")) for name in checkpoints.names())
    if (folder / LISTING).exists() or referred_to or not writable:
        listing = Listing.load(folder / LISTING)
        files = make(listing, writable=writable)
        with _closed_on_error(files):
            if writable:
                claim(folder, listing)
        return files
    if read_saved(folder.parent) == "":  # else lost checkpoints may refer to them
        _clean(folder)
    listing = Listing.new(page_bytes(config, layouts), [Path(path) for path in config.path])
    places = {(folder / file).parent for file in listing.files}
    for place in places:
        with disk_errors(place):
            make_folder(place)
    files = make(listing, create=True)
    with _closed_on_error(files):
        for place in places:
            with disk_errors(place):
                sync(place)
        claim(folder, listing, new=True)
        write_atomically(folder / LISTING, listing.dump())
    return files


def nameless_files(config: StorageConfig, layouts: list[RowLayout], binding: Binding) -> PageFiles:
    """Page files that are gone with the process, in the folders of `storage.path`. Raises InputError if one can't be
    made."""
    listing = Listing.new(page_bytes(config, layouts), [Path(path) for path in config.path or (tempfile.gettempdir(),)])
    make = partial(PageFiles, Path(), listing, config.io, config.depth, warn=logger.warning, bind=binding.bind_thread)
    return make(create=True, nameless=True)


@contextmanager
def _closed_on_error(files: PageFiles) -> Iterator[None]:
    try:
        yield
    except BaseException:
        files.close()
        raise


def _clean(folder: Path) -> None:
    """Removes page files that were made by a process that was killed before it could list them."""
    with disk_errors(folder):
        for path in list(folder.iterdir()):
            if is_page_file(path.name) and not path.is_symlink():
                remove_file(path)
