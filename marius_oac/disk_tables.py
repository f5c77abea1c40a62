"""Tables that lie on disk: their files, and the memory that they may take."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from marius_oac.checkpoint import TABLES
from marius_oac.checkpoints import Checkpoints, read_saved
from marius_oac.config_base import BaseConfig
from marius_oac.config_sections import StorageConfig
from marius_oac.console import say
from marius_oac.errors import ConfigError
from marius_oac.files import disk_errors, make_folder, remove_file, sync, write_atomically
from marius_oac.memory import Need
from marius_oac.runtime.binding import UNBOUND, Binding
from marius_oac.storage.contract import ParameterStore, RowLayout
from marius_oac.storage.disk import SsdStore
from marius_oac.storage.disk_tier import DiskTier
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.mapped import MappedStore
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.page_files import LISTING, MOST_PAGES_A_JOB, Listing, PageFiles, is_page_file, num_threads
from marius_oac.storage.page_owner import claim
from marius_oac.storage.paged_table import FRAME_BYTES, PAGE_TABLE_BYTES, frames_in, page_bytes_for, too_small


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
    ):
        self._config, self._layouts, self._capacities, self._stack = config, layouts, capacities, stack
        self._policy = binding.memory
        self.tier: DiskTier | None = None
        self.scratch: Path | None = None
        """A folder for what does not fit into memory; None where everything must, or nothing may be written."""
        if not config.on_disk:
            return
        folder = (folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))) / TABLES
        self.scratch = folder if writable else None
        if writable:
            with disk_errors(folder):
                make_folder(folder)
        if config.paged:
            files = stack.enter_context(open_files(config, folder, list(layouts.values()), writable, binding))
            tier = DiskTier(files, layouts, capacities, config.memory, config.look_ahead, binding.memory)
            self.tier = stack.enter_context(tier)

    def make(self, name: str, num_rows: int, initial: RowInitial) -> ParameterStore:
        """A table at its initial values."""
        layout, capacity = self._layouts[name], self._capacities[name]
        if self.tier:
            store: ParameterStore = SsdStore(name, num_rows, layout, initial, self.tier, capacity)
        elif self.scratch:
            store = MappedStore(self.scratch, name, num_rows, layout, initial, capacity)
        else:
            store = MemoryStore(name, num_rows, layout, initial, capacity, self._policy)
        return self._stack.enter_context(store)


def table_needs(
    config: StorageConfig, layouts: Mapping[str, RowLayout], rows: Mapping[str, int], key: str
) -> list[Need]:
    """What tables of so many rows take in memory, and on disk while they are trained; `key` makes them smaller."""
    whole = sum(count * layouts[name].row_bytes for name, count in rows.items())
    if not config.paged:
        mapped = config.io == "mmap"
        disk = [Need("disk", "tables", whole, key)] if mapped else []
        return [Need("host", "tables", whole, key, mapped=mapped), *disk]
    size = page_bytes(config, list(layouts.values()))
    pages = sum(-(-count // (size // layouts[name].row_bytes)) for name, count in rows.items())
    frames = frames_in(config.memory, size)
    if pages:
        frames = min(frames, pages)
    moving = num_threads(config.io, config.depth) * MOST_PAGES_A_JOB
    return [
        Need("host", "rows in memory", frames * (size + FRAME_BYTES), "storage.memory"),
        Need("host", "page tables", pages * PAGE_TABLE_BYTES, key),
        Need("host", "pages on their way", moving * size, "storage.depth"),
        Need(rows_place(config), "tables", pages * size, key),
    ]


def check_places(config: StorageConfig) -> None:
    """Makes the folders of `storage.path`, and a file in each. Raises InputError where that can't be done."""
    for path in map(Path, config.path):
        with disk_errors(path):
            make_folder(path)
            tempfile.TemporaryFile(dir=path).close()


def rows_place(config: StorageConfig) -> str:
    """Where on disk the rows of tables and checkpoints lie; a place of `memory.PLACES`."""
    return "pages" if config.path else "disk"


def check_batch(config: StorageConfig, layout: RowLayout, rows: np.ndarray) -> None:
    """Raises ConfigError where the memory for rows can't hold a batch of these, with what it takes."""
    if not config.paged:
        return
    size = page_bytes(config, [layout])
    pages = np.unique(rows // (size // layout.row_bytes)).size
    if pages > frames_in(config.memory, size):
        raise too_small("a batch", pages, frames_in(config.memory, size), size)


def ahead_bytes(config: BaseConfig, plan_bytes: int) -> int:
    """What plans take that wait for their rows to come from disk."""
    return (config.storage.look_ahead + config.pipeline.in_flight) * plan_bytes if config.storage.paged else 0


def page_bytes(config: StorageConfig, layouts: list[RowLayout]) -> int:
    """Bytes of a page. Raises ConfigError where `storage.page` is too small for a row."""
    widest = max(layout.row_bytes for layout in layouts)
    if config.page is not None and config.page < widest:
        raise ConfigError(f"a row has {widest:,} bytes, a page only {config.page:,}", "storage.page")
    return config.page or page_bytes_for([layout.row_bytes for layout in layouts])


def open_files(
    config: StorageConfig, folder: Path, layouts: list[RowLayout], writable: bool, binding: Binding
) -> PageFiles:
    """The page files of a run, made where there are none yet."""
    rest = {"io": config.io, "depth": config.depth, "warn": _warn, "bind": binding.bind_thread}
    checkpoints = Checkpoints(folder.parent / "checkpoints")
    referred_to = any(any(checkpoints.folder.glob(f"{name}/*.slots.npy")) for name in checkpoints.names())
    if (folder / LISTING).exists() or referred_to or not writable:
        listing = Listing.load(folder / LISTING)
        files = PageFiles(folder, listing, **rest, writable=writable)
        with _closed_on_error(files):
            if writable:
                claim(folder, listing)
        return files
    if read_saved(folder.parent) == "":  # else they may be what lost checkpoints refer to
        _clean(folder)
    listing = Listing.new(page_bytes(config, layouts), [Path(path) for path in config.path])
    places = {(folder / file).parent for file in listing.files}
    for place in places:
        with disk_errors(place):
            make_folder(place)
    files = PageFiles(folder, listing, **rest, create=True)
    with _closed_on_error(files):
        for place in places:
            with disk_errors(place):
                sync(place)
        claim(folder, listing, new=True)
        write_atomically(folder / LISTING, listing.dump())
    return files


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


def _warn(line: str) -> None:
    say(f"note: {line}")
