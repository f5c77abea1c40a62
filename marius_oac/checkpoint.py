"""Checkpoints: weights, optimizer state and timestamps of one moment, checksummed, never half-written.

A checkpoint is a folder named by the number of its next batch, in the run's `checkpoints/`:

    manifest.json                format version, position, size and SHA-256 of every other file, and its own SHA-256
    TABLE.values.npy             float32 [rows, dimension]
    TABLE.state.npy              float32 [rows, state width]
    TABLE.timestamps.npy         int64 [rows]
    NAME.npy                     what else a task keeps, such as the keys of a table's rows
    TABLE.slots.npy              instead of values, state and timestamps, where rows lie on disk: the slot of each page,
    TABLE.checksums.npy          int64 [pages], -1 where it was never written, and what its bytes must be, uint64
    dense.safetensors            relations, networks and their optimizer state

It is written under a temporary name, flushed to the disk, and renamed; before it is removed it loses its name: a
checkpoint that has its name is complete. What a killed process left under a temporary name is removed by the next one.
Nothing is ever unpickled.

A checkpoint of rows on disk copies no rows: pages that have changed since the last one are written out, and stay where
they are until no checkpoint refers to them any more (`storage/page_slots.py`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from marius_oac.errors import CheckpointError, DivergedError
from marius_oac.files import NpyWriter, disk_errors, sync, unfinished, write_atomically, write_flushed
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore
from marius_oac.storage.disk import SsdStore
from marius_oac.storage.disk_tier import DiskTier
from marius_oac.storage.page_files import LISTING, Listing
from marius_oac.storage.saved_pages import PagedArray, PagedRows

FORMAT, VERSION = "marius-oac checkpoint", 1
MANIFEST = "manifest.json"
DENSE = "dense.safetensors"
BEST = "best.json"
_PARTS = ("values", "state", "timestamps")
_PAGED_PARTS = ("slots", "checksums")
TABLES = "tables"
"""The folder of a run that holds `pages.json`, and the page files where nothing else is asked for."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. `sequence` is the next batch, `extra` what the training loop put in.

    `pages` says, for each table that lies on disk, how many rows it has and how they are laid out.
    """

    path: Path
    sequence: int
    extra: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    pages: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def digest(self) -> str:
        """Equal for equal files."""
        return _digest(self.files)

    def tables(self) -> list[str]:
        """Names of the tables."""
        whole = {name.removesuffix(".values.npy") for name in self.files if name.endswith(".values.npy")}
        return sorted(whole | set(self.pages))

    def array(self, table: str, part: str) -> np.ndarray | PagedArray:
        """Part `values`, `state` or `timestamps` of a table, mapped read-only; of rows on disk what reads like it."""
        if table in self.pages and part in _PARTS:
            listing = Listing.load(self.path.parents[1] / TABLES / LISTING)
            slots, checksums = (self.array(table, each) for each in _PAGED_PARTS)
            about = PagedRows.load(self.pages[table]["rows"])
            return PagedArray(self.path.parents[1] / TABLES, listing, table, about, slots, checksums, part)
        path = self.path / f"{table}.{part}.npy"
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"can't be read: {error}", path) from None

    def arrays(self) -> dict[str, np.ndarray]:
        """What `save` got as `arrays`, mapped read-only."""
        parts = {f"{table}.{part}" for table in self.tables() for part in (*_PARTS, *_PAGED_PARTS)}
        names = [name.removesuffix(".npy") for name in self.files if name.endswith(".npy")]
        return {name: self.array(*name.split(".", 1)) for name in names if name not in parts}

    def dense(self) -> dict[str, Any]:
        """The dense tensors, on the CPU."""
        try:
            return load_file(self.path / DENSE)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"can't be read: {error}", self.path / DENSE) from None

    def slots(self) -> Iterator[np.ndarray]:
        """The slots of the pages of each table that lies on disk."""
        for table in self.pages:
            yield self.array(table, "slots")

    def restore(self, stores: Sequence[ParameterStore]) -> None:
        """Loads every table, block by block; a table on disk into a table on disk without reading it."""
        for store in stores:
            shapes = {part: self.array(store.name, part).shape for part in _PARTS}
            if shapes != _shapes(store):
                raise CheckpointError(f"table {store.name!r} has another shape, {list(shapes['values'])}", self.path)
            if store.name in self.pages and isinstance(store, SsdStore):
                store.tier.restore(store.name, *(self.array(store.name, part) for part in _PAGED_PARTS))
                continue
            for first in range(0, store.num_rows, ROWS_PER_BLOCK):
                # Mapped anew for each block: a page that was read counts as our memory until its mapping goes.
                block = slice(first, first + ROWS_PER_BLOCK)
                values, state, timestamps = (self.array(store.name, part)[block] for part in _PARTS)
                store.load(first, np.array(timestamps), np.concatenate((values, state), axis=1))

    def verify(self, ending: str = "") -> None:
        """Reads every file through, or those whose names end so.

        Raises CheckpointError naming the one that is missing or damaged.
        """
        for name, entry in self.files.items():
            if not name.endswith(ending):
                continue
            path = self.path / name
            try:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise CheckpointError(f"can't be read: {error.strerror}", path) from None
            if path.stat().st_size != entry["bytes"] or digest != entry["sha256"]:
                raise CheckpointError("is damaged: its checksum differs from the one it was written with", path)


class Checkpoints:
    """The checkpoints of one run, oldest first. `tier` holds the rows of tables on disk, while the run is trained."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tier: DiskTier | None = None
        self._kept: set[str] = set()  # checkpoints whose pages the tier knows

    def names(self) -> list[str]:
        """Names of the complete checkpoints, oldest first."""
        return sorted(path.name for path in self.folder.glob("[0-9]*") if path.is_dir())

    def open(self, name: str | None = None, verify: bool = True) -> Checkpoint:
        """The named checkpoint ("best": the best one), or the newest.

        Raises:
            CheckpointError: there is none, or it is damaged; the message offers the one before it.
        """
        names = self.names()
        if not names:
            raise CheckpointError("there is no checkpoint yet", self.folder)
        if name == "best":
            name = self.best()
            if name is None:
                raise CheckpointError("there is no best checkpoint: nothing has been evaluated yet", self.folder)
        if name is not None and name not in names:
            raise CheckpointError(f"there is no checkpoint {name!r}; there are {', '.join(names)}", self.folder)
        chosen = name or names[-1]
        try:
            checkpoint = self._read(self.folder / chosen)
            if verify:
                checkpoint.verify()
            return checkpoint
        except CheckpointError as error:
            before = [other for other in names if other < chosen]
            offer = f"; the one before it: --checkpoint {before[-1]}" if before else "; there is none before it"
            raise CheckpointError(error.message + offer, error.where) from None

    def best(self) -> str | None:
        """Name of the best checkpoint by the validation metric, or None."""
        path = self.folder / BEST
        try:
            return str(json.loads(path.read_text("utf-8"))["name"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError("is damaged", path) from None

    def mark_best(self, name: str | None) -> None:
        """Keeps this checkpoint, whatever its age, until another one is marked; None: there is no best one."""
        if name is None:
            (self.folder / BEST).unlink(missing_ok=True)
        else:
            write_atomically(self.folder / BEST, json.dumps({"name": name}))

    def save(
        self,
        sequence: int,
        stores: Sequence[ParameterStore],
        dense: Mapping[str, Any],
        extra: Mapping[str, Any],
        keep: int,
        arrays: Mapping[str, np.ndarray] = MappingProxyType({}),
        written: Callable[[], None] = lambda: None,
    ) -> Checkpoint:
        """Writes a checkpoint and removes all but the `keep` newest and the best one. The pipeline must be drained.

        `extra` is plain data for the manifest, `arrays` what becomes files of their own, by names such as `users.keys`.
        `written` is called when it is complete, before any other is removed.

        Raises:
            DivergedError: a number is NaN or infinite; such a checkpoint would push a good one out.
            InputError: the disk is full, or can't be written; the older checkpoints are as they were.
        """
        path = self.folder / name_of(sequence)
        temporary = unfinished(path)
        with disk_errors(path):
            try:
                if temporary.exists():
                    shutil.rmtree(temporary)
                temporary.mkdir(parents=True)
                files = _write_arrays(temporary, arrays)
                _write(temporary, sequence, stores, dense, extra, files)
                os.rename(temporary, path)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync(self.folder)
        if self.tier:
            self._keep(self._read(path))
        written()
        protected = {*self.names()[-keep:], self.best()}
        self._remove(name for name in self.names() if name not in protected)
        return self._read(path)

    def drop_after(self, sequence: int) -> None:
        """Removes the checkpoints of later moments, the newest first."""
        self._remove(name for name in reversed(self.names()) if name > name_of(sequence))

    def keep_pages(self) -> None:
        """Says to the tier, which knows of none, which pages the checkpoints refer to.

        What a damaged checkpoint refers to is not known, and no run can go on from it.
        """
        self._kept.clear()
        for name in self.names():
            try:
                checkpoint = self._read(self.folder / name)
                checkpoint.verify(".slots.npy")
            except CheckpointError:
                continue
            self._keep(checkpoint)

    def _keep(self, checkpoint: Checkpoint) -> None:
        for slots in checkpoint.slots():
            self.tier.keep(slots)
        self._kept.add(checkpoint.name)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.folder / name
            slots = [np.array(each) for each in self._read(path).slots()] if name in self._kept else []
            with disk_errors(path):
                os.rename(path, unfinished(path))
                shutil.rmtree(unfinished(path))
                sync(self.folder)
            for each in slots:  # not before: what a checkpoint with a name refers to is never overwritten
                self.tier.let_go(each)
            self._kept.discard(name)

    @staticmethod
    def _read(path: Path) -> Checkpoint:
        try:
            content = (path / MANIFEST).read_bytes()
            manifest = json.loads(content)
            if manifest["format"] != FORMAT:
                raise ValueError
            if manifest["version"] != VERSION:
                raise CheckpointError(f"is of format version {manifest['version']}, not {VERSION}", path / MANIFEST)
            del manifest["sha256"]
            if content != _manifest_bytes(manifest):  # to the letter: the last digits of a float may change nothing
                raise ValueError
            return Checkpoint(
                path, manifest["sequence"], manifest["extra"], manifest["files"], manifest.get("pages", {})
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f" ({error.strerror})" if isinstance(error, OSError) else ""
            raise CheckpointError(f"is damaged{reason}", path / MANIFEST) from None


def name_of(sequence: int) -> str:
    """The name of the checkpoint whose next batch is `sequence`."""
    return f"{sequence:010d}"


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest | {"sha256": _digest(manifest)}, indent=1).encode()


def _write_arrays(folder: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    files = {}
    for name, array in arrays.items():
        with NpyWriter(folder / f"{name}.npy", array.shape, array.dtype) as writer:
            for first in range(0, len(array), ROWS_PER_BLOCK):
                writer.write(array[first : first + ROWS_PER_BLOCK])
            files[writer.path.name] = writer.finish()
    return files


def _write(folder: Path, sequence: int, stores, dense, extra, files) -> None:
    pages = {}
    for store in stores:
        if isinstance(store, SsdStore):
            files |= _write_pages(folder, store, sequence)
            pages[store.name] = {"rows": store.about.dump()}
        else:
            files |= _write_table(folder, store, sequence)
    for name, tensor in dense.items():
        _check_finite(name, tensor.detach().cpu().numpy(), sequence)
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in dense.items()})
    files[DENSE] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    write_flushed(folder / DENSE, content)
    manifest = {"format": FORMAT, "version": VERSION, "sequence": sequence, "extra": dict(extra), "files": files}
    manifest |= {"pages": pages} if pages else {}
    write_flushed(folder / MANIFEST, _manifest_bytes(manifest))
    sync(folder)


def _check_finite(name: str, numbers: np.ndarray, sequence: int) -> None:
    if not np.isfinite(numbers).all():
        raise DivergedError(sequence - 1, f"{name} hold NaN or infinite numbers")


def _shapes(store: ParameterStore) -> dict[str, tuple[int, ...]]:
    count, layout = store.num_rows, store.layout
    return {"values": (count, layout.dimension), "state": (count, layout.state_width), "timestamps": (count,)}


def _write_pages(folder: Path, store: SsdStore, sequence: int) -> dict[str, dict[str, Any]]:
    """Writes what has changed to the page files, and to the checkpoint where each page lies."""
    store.flush()
    if store.tier.not_finite:
        raise DivergedError(sequence - 1, f"{store.tier.not_finite} hold NaN or infinite numbers")
    saved = store.tier.saved(store.name, store.num_rows)
    return _write_arrays(folder, {f"{store.name}.{part}": saved[part] for part in _PAGED_PARTS})


def _write_table(folder: Path, store: ParameterStore, sequence: int) -> dict[str, dict[str, Any]]:
    """Streams a table to its three files; returns their sizes and checksums.

    Block after block: coroutines measured worse (`benchmarks/README.md`).
    """
    dimension = store.layout.dimension
    with ExitStack() as stack:
        writers = {
            part: stack.enter_context(
                NpyWriter(folder / f"{store.name}.{part}.npy", shape, np.int64 if part == "timestamps" else np.float32)
            )
            for part, shape in _shapes(store).items()
        }
        for block in store.blocks():
            _check_finite(store.name, block.rows, sequence)
            writers["values"].write(block.rows[:, :dimension])
            writers["state"].write(block.rows[:, dimension:])
            writers["timestamps"].write(block.timestamps)
        return {writer.path.name: writer.finish() for writer in writers.values()}
