"""Triton's cache of kernels that was filled before and carried here (`benchmarks.gpu.warm`)."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path

MADE_FOR = "made-for"
"""File of the cache: for which Triton."""


def pack(cache: Path, packed: Path) -> None:
    """Writes a cache to a file ending in .tar.xz, a tenth of its size."""
    packed.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(packed, "w:xz", preset=4) as archive:
        archive.add(cache, ".")


def use(packed: Path) -> None:
    """Has Triton take its kernels from this file, if it is there: it is unpacked beside itself, where Triton then keeps
    others, too."""
    if not packed.exists():
        return
    cache = packed.resolve().with_name(packed.name.removesuffix(".tar.xz"))
    with tarfile.open(packed) as archive:
        archive.extractall(cache, filter="data")
    for group in cache.glob("*/__grp__*.json"):  # Triton 3.6 keeps whole paths
        paths = json.loads(group.read_text())["child_paths"]
        group.write_text(json.dumps({"child_paths": {name: str(group.with_name(name)) for name in paths}}))
    os.environ["TRITON_CACHE_DIR"] = str(cache)


def folder() -> Path | None:
    """The carried cache, where one is used."""
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given and (Path(given) / MADE_FOR).exists() else None


def kernels(where: Path | None = None) -> int:
    """How many there are; without `where`, in the cache that Triton uses here."""
    where = where or Path(os.environ.get("TRITON_CACHE_DIR") or Path("~/.triton/cache").expanduser())
    return sum(1 for _ in where.glob("*/*.cubin"))


def made_for() -> str | None:
    """For which Triton the carried cache was made."""
    return (where / MADE_FOR).read_text().strip() if (where := folder()) else None


def here() -> str:
    """The Triton of this machine, in short: its version, and a digest of all that it hashes of itself."""
    from triton import __version__
    from triton.runtime.cache import triton_key

    return short(__version__, triton_key())


def short(version: str, key: str) -> str:
    return f"{version}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
