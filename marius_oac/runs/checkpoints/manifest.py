"""What a checkpoint's manifest and files may contain; checked before either is used."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from marius_oac.errors import CheckpointError
from marius_oac.runs.checkpoints.origin import Origin
from marius_oac.runtime.files.untrusted import (
    BlockedFile,
    Described,
    FileName,
    typed,
)
from marius_oac.storage.saved import REFERRING_PARTS, AboutTable
from marius_oac.storage.snapshots import PARTS

_ARRAYS = {
    "values": ((np.float32,), (None, None)),
    "state": ((np.float32,), (None, None)),
    "timestamps": ((np.int64,), (None,)),
    "slots": ((np.int64,), (None,)),
    "checksums": ((np.uint64,), (None,)),
    "index.keys": ((np.int64,), (None,)),
    "index.vocabularies": ((np.uint16,), (None,)),
    "index.checks": ((np.uint32,), (None,)),
    "index.free": ((np.int64,), (None,)),
    "seen": ((np.int64,), (None,)),
    "last_file": ((np.int32,), (None,)),
    "dropped": ((np.int64,), (1,)),
}
_OTHERS = (np.int32, np.int64, np.float32, np.float64), (None,)


class Best(Described):
    """The content of `best.json`."""

    name: FileName


class Saved(Described):
    """The content of `saved.json`."""

    checkpoint: Annotated[str, Field(pattern=r"^[0-9]{10}$")] | None


class Manifest(Described):
    """The parts of a manifest that a checkpoint is read by."""

    sequence: Annotated[int, Field(ge=0, lt=10**10)]
    extra: dict[str, Any]
    files: dict[FileName, BlockedFile]
    origin: Origin
    pages: dict[FileName, AboutTable] = {}


MOST_BYTES = 256 << 20
"""Of a manifest: digests of the blocks of 64 files of any size."""


def check_manifest(manifest: dict[str, Any], path: Path) -> Manifest:
    """Returns what it says. Raises CheckpointError, with the key, if something is missing, of another type, or names no
    plain file."""
    found = typed(manifest, path, Manifest, CheckpointError)
    whole = {name.removesuffix(".values.npy") for name in found.files if name.endswith(".values.npy")}
    needed = {"dense.safetensors", *(f"{table}.{part}.npy" for table in whole for part in PARTS)}
    needed |= {f"{table}.{part}.npy" for table in found.pages for part in REFERRING_PARTS}
    for name in sorted(needed - set(found.files)):
        raise CheckpointError(f"is damaged: files.{name} is missing", path)
    return found


def kind_of(part: str) -> tuple[tuple[type, ...], tuple[int | None, ...]]:
    """Types and shape that an array of a checkpoint may have, by its name without the table's."""
    return _ARRAYS.get(part.replace("waiting.", "index."), _OTHERS)
