"""Checkpoints: weights, optimizer state and timestamps of one moment, checksummed, never half-written.

A checkpoint is a folder named by the number of its next batch, in the run's `checkpoints/`:

    manifest.json                format version, position, size and SHA-256 of every other file
    TABLE.values.npy             float32 [rows, dimension]
    TABLE.state.npy              float32 [rows, state width]
    TABLE.timestamps.npy         int64 [rows]
    dense.safetensors            relations, networks and their optimizer state

It is written under a temporary name, flushed to the disk, and renamed: a checkpoint that has its name is complete.
What a killed process left under a temporary name is removed by the next one. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from marius_oac.errors import CheckpointError, InputError
from marius_oac.storage.contract import ROWS_PER_BLOCK, ParameterStore

VERSION = 1
MANIFEST = "manifest.json"
DENSE = "dense.safetensors"
_TEMPORARY = ".unfinished-"
_PARTS = ("values", "state", "timestamps")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. `sequence` is the next batch, `extra` what the training loop put in."""

    path: Path
    sequence: int
    extra: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        return self.path.name

    def tables(self) -> list[str]:
        """Names of the tables."""
        return sorted(name.removesuffix(".values.npy") for name in self.files if name.endswith(".values.npy"))

    def array(self, table: str, part: str) -> np.ndarray:
        """Part `values`, `state` or `timestamps` of a table, mapped read-only."""
        path = self.path / f"{table}.{part}.npy"
        try:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"can't be read: {error}", path) from None

    def dense(self) -> dict[str, Any]:
        """The dense tensors, on the CPU."""
        try:
            return load_file(self.path / DENSE)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"can't be read: {error}", self.path / DENSE) from None

    def restore(self, stores: Sequence[ParameterStore]) -> None:
        """Loads every table, block by block."""
        for store in stores:
            values, state, timestamps = (self.array(store.name, part) for part in _PARTS)
            if values.shape != (store.num_rows, store.layout.dimension):
                raise CheckpointError(f"table {store.name!r} has another shape, {list(values.shape)}", self.path)
            for first in range(0, store.num_rows, ROWS_PER_BLOCK):
                part = slice(first, first + ROWS_PER_BLOCK)
                rows = np.concatenate((values[part], state[part]), axis=1)
                store.load(first, np.array(timestamps[part]), np.ascontiguousarray(rows))

    def verify(self) -> None:
        """Reads every file through. Raises CheckpointError naming the one that is missing or damaged."""
        for name, entry in self.files.items():
            path = self.path / name
            try:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise CheckpointError(f"can't be read: {error.strerror}", path) from None
            if path.stat().st_size != entry["bytes"] or digest != entry["sha256"]:
                raise CheckpointError("is damaged: its checksum differs from the one it was written with", path)


class Checkpoints:
    """The checkpoints of one run, oldest first."""

    def __init__(self, folder: Path):
        self.folder = folder

    def names(self) -> list[str]:
        """Names of the complete checkpoints, oldest first."""
        return sorted(path.name for path in self.folder.glob("[0-9]*") if path.is_dir())

    def clean(self) -> None:
        """Removes what a killed process left unfinished."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(path)

    def open(self, name: str | None = None, verify: bool = True) -> Checkpoint:
        """The named checkpoint ("best": the best one), or the newest.

        Raises:
            CheckpointError: there is none, or it is damaged; the message offers the one before it.
        """
        names = self.names()
        if name == "best":
            name = self.best()
        if not names:
            raise CheckpointError("there is no checkpoint yet", self.folder)
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
        path = self.folder / "best.json"
        return json.loads(path.read_text("utf-8"))["name"] if path.exists() else None

    def mark_best(self, name: str) -> None:
        """Keeps this checkpoint, whatever its age, until a better one is marked."""
        write_atomically(self.folder / "best.json", json.dumps({"name": name}))

    def save(
        self,
        sequence: int,
        stores: Sequence[ParameterStore],
        dense: Mapping[str, Any],
        extra: Mapping[str, Any],
        keep: int,
    ) -> Checkpoint:
        """Writes a checkpoint and removes all but the `keep` newest and the best one. The pipeline must be drained.

        Raises:
            InputError: the disk is full, or can't be written; the older checkpoints are as they were.
        """
        path = self.folder / f"{sequence:010d}"
        temporary = self.folder / f"{_TEMPORARY}{path.name}"
        with _disk_errors(path):
            if temporary.exists():
                shutil.rmtree(temporary)
            temporary.mkdir(parents=True)
            try:
                self._write(temporary, sequence, stores, dense, extra)
                if path.exists():  # the same moment, saved before: a resumed run that came here again
                    shutil.rmtree(path)
                os.rename(temporary, path)
                sync_folder(self.folder)
            except OSError:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        protected = {*self.names()[-keep:], self.best()}
        for name in self.names():
            if name not in protected:
                shutil.rmtree(self.folder / name)
        return self._read(path)

    @staticmethod
    def _write(folder: Path, sequence: int, stores, dense, extra) -> None:
        files = {}
        for store in stores:
            files |= _write_table(folder, store)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in dense.items()}, folder / DENSE)
        with open(folder / DENSE, "rb+") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files[DENSE] = {"bytes": (folder / DENSE).stat().st_size, "sha256": digest}
        manifest = {"format": "marius-oac checkpoint", "version": VERSION, "sequence": sequence,
                    "extra": dict(extra), "files": files}  # fmt: skip
        with open(folder / MANIFEST, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)

    @staticmethod
    def _read(path: Path) -> Checkpoint:
        try:
            manifest = json.loads((path / MANIFEST).read_text("utf-8"))
            if manifest["version"] != VERSION:
                raise CheckpointError(f"is of format version {manifest['version']}, not {VERSION}", path)
            return Checkpoint(path, manifest["sequence"], manifest["extra"], manifest["files"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"is damaged ({type(error).__name__})", path / MANIFEST) from None


def _write_table(folder: Path, store: ParameterStore) -> dict[str, dict[str, Any]]:
    """Streams a table to its three files; returns their sizes and checksums."""
    dimension, count = store.layout.dimension, store.num_rows
    shapes = {"values": (count, dimension), "state": (count, store.layout.state_width), "timestamps": (count,)}
    writers = {part: _NpyWriter(folder / f"{store.name}.{part}.npy", shapes[part],
               np.int64 if part == "timestamps" else np.float32) for part in _PARTS}  # fmt: skip
    try:
        for block in store.blocks():
            writers["values"].write(block.rows[:, :dimension])
            writers["state"].write(block.rows[:, dimension:])
            writers["timestamps"].write(block.timestamps)
        return {writer.path.name: writer.finish() for writer in writers.values()}
    finally:
        for writer in writers.values():
            writer.file.close()


class _NpyWriter:
    """A .npy file written in blocks of rows and hashed on the way."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: type):
        self.path, self.file, self._digest = path, open(path, "wb+"), hashlib.sha256()  # noqa: SIM115
        descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
        np.lib.format.write_array_header_1_0(self.file, {"descr": descr, "fortran_order": False, "shape": shape})
        self.file.seek(0)
        self._digest.update(self.file.read())

    def write(self, rows: np.ndarray) -> None:
        rows = np.ascontiguousarray(rows)
        self._digest.update(rows)
        self.file.write(rows)

    def finish(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"bytes": self.file.tell(), "sha256": self._digest.hexdigest()}


def write_atomically(path: Path, text: str) -> None:
    """Writes a file under a temporary name, flushes it to the disk and renames it."""
    temporary = path.with_name(f".{path.name}.unfinished")
    with _disk_errors(path):
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Flushes a folder's entries, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", path) from error
    except SafetensorError as error:
        raise InputError(f"can't be written: {error}", path) from error
