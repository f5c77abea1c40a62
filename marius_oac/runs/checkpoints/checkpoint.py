"""Checkpoints: a consistent state of weights, optimizers and timestamps, with checksums, written atomically.

A checkpoint is a folder named by the number of its next batch, in the run's `checkpoints/`:

    manifest.json                format version, position, size of every other file and XXH3 of its blocks, and its own
                                 SHA-256
    TABLE.values.npy             float32 [rows, dimension]
    TABLE.state.npy              float32 [rows, state width]
    TABLE.timestamps.npy         int64 [rows]
    NAME.npy                     what else a task keeps, such as the keys of a table's rows
    TABLE.slots.npy              instead of values, state and timestamps, where rows lie on disk: the slot of each page,
    TABLE.checksums.npy          int64 [pages], -1 where it was never written, and what its bytes must be, uint64
    dense.safetensors            relations, networks and their optimizer state

How it is saved and removed: `retention.py`. Nothing is ever unpickled.

A checkpoint of rows on disk copies no rows: pages that have changed since the last one are written out, and stay where
they are until no checkpoint refers to them any more (`storage/disk/slots.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load, save

from marius_oac.errors import CheckpointError, DivergedError, shown
from marius_oac.models.compute.soundness import LARGEST_VALUE
from marius_oac.runs.checkpoints.manifest import MOST_BYTES, check_manifest, kind_of
from marius_oac.runs.checkpoints.origin import Origin
from marius_oac.runs.checkpoints.pins import Pin
from marius_oac.runtime.files.atomic import json_digest, sealed, sync, write_flushed
from marius_oac.runtime.files.checked import CheckedArray, CheckedFiles
from marius_oac.runtime.files.hashing import check_files
from marius_oac.runtime.files.npy import NpyWriter
from marius_oac.runtime.files.untrusted import (
    BlockedFile,
    blocked_file,
    open_regular,
    parse_json,
    parse_sealed,
    read_bounded,
)
from marius_oac.runtime.files.untrusted_arrays import map_npy
from marius_oac.runtime.standstill import Activity
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore
from marius_oac.storage.saved import REFERRING_PARTS, referring_table
from marius_oac.storage.snapshots import PARTS, RowArray, SavedTable
from marius_oac.types import present

FORMAT, VERSION = "marius-oac checkpoint", 4
MANIFEST = "manifest.json"
DENSE = "dense.safetensors"
SERVES = "nodes.serves"
"""An array of the part of a process over nodes that only serves rows; the dense parameters in its part are not used."""
PLACEMENT = "nodes.placement"
"""An array of a part: the node of each virtual shard, int32 [V]."""
AGREED = ("best", "best_epoch", "worse", "first_loss")
"""What all processes of a run have the same of, of `extra`."""
TABLES = "tables"
"""The folder of a run that holds what its tables need besides checkpoints, and where nothing else is asked for rows."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. `batch_index` is the next batch, `extra` data of the training loop.

    `pages` has `Snapshot.about` of each table whose rows were not copied. With a `pin` it is not removed until `close`,
    or until this object and all arrays of such rows that it returned are garbage. `checked`: see `checked_as_read`.
    `origin` says whose it is.
    """

    path: Path
    batch_index: int
    extra: Mapping[str, Any]
    files: Mapping[str, BlockedFile]
    pages: Mapping[str, Mapping[str, Any]]
    pin: Pin | None = field(default=None, compare=False, repr=False)
    checked: CheckedFiles | None = field(default=None, compare=False, repr=False)
    origin: Origin = field(default_factory=Origin, compare=False, repr=False)

    def checked_as_read(self) -> Self:
        """Returns this checkpoint, whose files nobody has verified yet: of each array and of the dense tensors what is
        read is compared first, block by block, and the rest is not read."""
        return replace(self, checked=CheckedFiles(self.path, self.files, CheckpointError))

    def facts(self) -> dict[str, Any]:
        """What tells whether it is a part of the same moment as others (`origin.apart`), as plain values."""
        known = self.origin.model_dump() | {"sequence": self.batch_index}
        listed = (self.files.get(name) for name in (f"{PLACEMENT}.npy", DENSE))
        placement, dense = (each and each.checksum for each in listed)
        agreed = [self.extra.get(key) for key in AGREED]
        known |= {"placement": placement, "dense": dense, "agreed": agreed, "trains": not self.has(SERVES)}
        return known

    @property
    def name(self) -> str:
        """The name of its folder: ten digits."""
        return self.path.name

    @property
    def digest(self) -> str:
        """SHA-256 of the list of files with their digests."""
        return json_digest({name: each.model_dump() for name, each in self.files.items()})

    def close(self) -> None:
        """Ends the pin, if there is one. Closing twice does nothing."""
        if self.pin:
            self.pin.close()

    def tables(self) -> list[str]:
        """Names of the tables."""
        whole = {name.removesuffix(".values.npy") for name in self.files if name.endswith(".values.npy")}
        return sorted(whole | set(self.pages))

    def array(self, table: str, part: str) -> RowArray:
        """Part `values`, `state` or `timestamps` of a table, mapped read-only, or read when indexed."""
        if table in self.pages and part in PARTS:
            return self.table(table).rows(part)
        if self.checked and part in PARTS:
            return self._read_checked(table, part)
        return self._mapped(table, part)

    def table(self, name: str) -> SavedTable:
        """A table, to restore a store from."""
        if name not in self.pages:
            return SavedTable(name, self.path, partial(self.array, name))
        folder, mapped = self.path.parents[1] / TABLES, partial(self._mapped, name)
        return referring_table(name, self.path, mapped, self.pages[name], folder, self.pin)

    def has(self, name: str) -> bool:
        """Whether there is an array of this name, such as `entities.values`."""
        return f"{name}.npy" in self.files

    def part(self, table: str, part: str) -> RowArray:
        """The array of a file of its own, mapped read-only or read when indexed."""
        return self._read_checked(table, part) if self.checked else self._mapped(table, part)

    def _mapped(self, table: str, part: str) -> np.ndarray:
        """The array of a file of its own, mapped read-only. Where nobody has verified it, the file is verified first,
        without its content in memory: indices of keys are large."""
        name = self._file_of(table, part)
        if self.checked:
            self.verify(name)
        return map_npy(self.path / name, *kind_of(part), CheckpointError)

    def _read_checked(self, table: str, part: str) -> CheckedArray:
        return present(self.checked).array(self._file_of(table, part), *kind_of(part))

    def _file_of(self, table: str, part: str) -> str:
        name = f"{table}.{part}.npy"
        if name not in self.files:
            raise CheckpointError(f"lists no {name}", self.path / MANIFEST)
        return name

    def values(self, table: str, rows: int, width: int) -> RowArray:
        """Part `values` of a table that must have this shape. Raises CheckpointError if it has another."""
        values = self.array(table, "values")
        if values.shape != (rows, width):
            found, needed = list(values.shape), [rows, width]
            raise CheckpointError(f"table {table!r} has the shape {found}, {needed} is expected", self.path)
        return values

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays that `save` got as `arrays`, mapped read-only."""
        return self.arrays_of("")

    def arrays_of(self, begins: str) -> dict[str, np.ndarray]:
        """Those of `arrays` whose names begin so."""
        parts = {f"{table}.{part}" for table in self.tables() for part in (*PARTS, *REFERRING_PARTS)}
        npy = [name for name in self.files if name.endswith(".npy") and name.startswith(begins)]
        names = [name.removesuffix(".npy") for name in npy]
        return {name: self._mapped(*name.split(".", 1)) for name in names if name not in parts}

    def dense(self) -> dict[str, Any]:
        """The dense tensors, on the CPU."""
        try:
            if self.checked:
                return load(self.checked.content(DENSE))
            with open_regular(self.path / DENSE, CheckpointError) as file:
                return load(file.read())
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"can't be read: {error}", self.path / DENSE) from None

    def checksums(self) -> dict[str, str]:
        """The checksum of the file of each array, by the array's name, such as `entities.values`."""
        npy = (name for name in self.files if name.endswith(".npy"))
        return {name.removesuffix(".npy"): self.files[name].checksum for name in npy}

    def references(self) -> Iterator[np.ndarray]:
        """What the tables refer to outside of the checkpoint: `SavedTable.references` of each."""
        for name in self.pages:
            yield present(self.table(name).references)

    def restore(self, stores: Sequence[ParameterStore]) -> None:
        """Loads every table."""
        for store in stores:
            store.restore(self.table(store.name))

    def verify(self, ending: str = "", same: Checkpoint | None = None) -> None:
        """Reads and checks every file, or those whose names end with `ending`, some at once.

        Args:
            same: another checkpoint, which has been verified: what should equal a file of it is compared with that,
                which takes less time than a checksum.

        Raises CheckpointError naming the one that is missing or damaged.
        """
        files = {self.path / name: listed for name, listed in self.files.items() if name.endswith(ending)}
        known = {digest: same.path / f"{name}.npy" for name, digest in same.checksums().items()} if same else {}
        for error in check_files(files, CheckpointError, known).values():
            raise error


def read_checkpoint(path: Path, pinned: bool = False) -> Checkpoint:
    """The checkpoint at a path, its manifest checked; `pinned`: no run can remove it.

    Raises:
        CheckpointError: it is missing or damaged. Missing: it has been removed meanwhile.
    """
    where = path / MANIFEST
    pin = Pin(where) if pinned else None
    try:
        content = read_bounded(where, MOST_BYTES, CheckpointError)
    except OSError as error:
        raise CheckpointError(f"is damaged ({error.strerror})", where) from None
    manifest = parse_json(content, where, dict[str, Any], CheckpointError)
    if manifest.get("format") != FORMAT:
        raise CheckpointError("is damaged, or belongs to something else", where)
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        raise CheckpointError(f"is of format version {shown(version)}, not {VERSION}", where)
    manifest = parse_sealed(content, where, dict[str, Any], CheckpointError)
    known = check_manifest(manifest, where)
    if name_of(manifest["sequence"]) != path.name:
        raise CheckpointError(f"is that of checkpoint {name_of(manifest['sequence'])}", where)
    about = manifest["extra"], known.files, manifest.get("pages", {})
    return Checkpoint(path, manifest["sequence"], *about, pin, origin=known.origin)


@contextmanager
def fitting(checkpoint: Checkpoint) -> Iterator[None]:
    """Names the checkpoint where dense parameters don't fit: the user's own network or layer may have changed."""
    try:
        yield
    except ValueError as error:
        raise CheckpointError(str(error), checkpoint.path) from None


def name_of(batch_index: int) -> str:
    """The name of the checkpoint whose next batch is `batch_index`: ten digits, so that names sort as numbers do."""
    if batch_index >= 10**10:
        raise OverflowError(f"{batch_index} batches have no name of ten digits")
    return f"{batch_index:010d}"


def _write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    files = {}
    for name, array in arrays.items():
        with NpyWriter(folder / f"{name}.npy", array.shape, array.dtype) as writer:
            for first in range(0, len(array), ROWS_PER_BLOCK):
                writer.write(array[first : first + ROWS_PER_BLOCK])
            files[writer.path.name] = writer.finish()
    return files


def write_checkpoint(
    folder: Path,
    batch_index: int,
    stores: Sequence[ParameterStore],
    dense: Mapping[str, Any],
    extra: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    origin: Origin,
) -> None:
    """Writes the files of a checkpoint into a new, empty folder, and flushes them; see `Checkpoints.save`."""
    files, pages = _write_arrays(folder, arrays), {}
    for store in stores:
        written, about = _write_table(folder, store, batch_index)
        files |= written
        if about is not None:
            pages[store.name] = about
    for name, tensor in dense.items():
        _check_finite(name, tensor.detach().cpu().numpy(), batch_index)
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in dense.items()})
    files[DENSE] = blocked_file(content).model_dump()
    write_flushed(folder / DENSE, content)
    manifest = {"format": FORMAT, "version": VERSION, "sequence": batch_index, "extra": dict(extra), "files": files}
    manifest["origin"] = origin.model_dump()
    manifest |= {"pages": pages} if pages else {}
    write_flushed(folder / MANIFEST, sealed(manifest))
    sync(folder)


def _check_finite(name: str, numbers: np.ndarray, batch_index: int) -> None:
    if not np.isfinite(numbers).all():
        raise DivergedError(batch_index - 1, f"{name} hold NaN or infinite numbers")


def _check_rows(name: str, parts: Mapping[str, np.ndarray], batch_index: int) -> None:
    for part in parts.values():
        if part.dtype.kind == "f":
            _check_finite(name, part, batch_index)
    values = parts.get("values", np.zeros(0))
    # Of rows on other nodes no batch sees more than gradients.
    if values.size and max(values.max(), -values.min()) > LARGEST_VALUE:
        raise DivergedError(batch_index - 1, f"{name} hold numbers that are too large (beyond {LARGEST_VALUE:,.0f})")


def _write_table(
    folder: Path, store: ParameterStore, batch_index: int
) -> tuple[dict[str, dict[str, Any]], Mapping[str, Any] | None]:
    """Streams a snapshot of a table to its files; returns their sizes and checksums, and `Snapshot.about`.

    Block after block: coroutines measured worse (`benchmarks/disk`).
    """
    with Activity(f"checkpoint {name_of(batch_index)} is at table {store.name!r}") as activity, ExitStack() as stack:
        try:
            snapshot = store.snapshot()
        except FloatingPointError as error:
            raise DivergedError(batch_index - 1, str(error)) from None
        writers = {
            part: stack.enter_context(NpyWriter(folder / f"{store.name}.{part}.npy", *about))
            for part, about in snapshot.arrays.items()
        }
        for parts in snapshot.blocks:
            _check_rows(store.name, parts, batch_index)
            for part, writer in writers.items():
                writer.write(parts[part])
            activity.moved()
        return {writer.path.name: writer.finish() for writer in writers.values()}, snapshot.about
