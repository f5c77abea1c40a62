"""What stands in the folders of cases beside texts: folders, links, pipes, compressed and binary files, runs."""

from __future__ import annotations

import gzip as gzip_module
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.runtime.files.atomic import sealed

Maker = Callable[[Path, Mapping[str, str]], None]


def folder(path: Path, specimens: Mapping[str, str]) -> None:
    path.mkdir()


def pipe(path: Path, specimens: Mapping[str, str]) -> None:
    os.mkfifo(path)


def link(target: str) -> Maker:
    return lambda path, specimens: path.symlink_to(specimens.get(target, target))


def gzip(content: str | bytes) -> bytes:
    return gzip_module.compress(content if isinstance(content, bytes) else content.encode(), mtime=0)


def parquet(**columns: Any) -> Maker:
    """Of lists, or of arrays of Arrow."""
    return lambda path, specimens: pq.write_table(pa.table(columns), path)


def npy(array: Any) -> Maker:
    return lambda path, specimens: np.save(path, array)


def copy(specimen: str, *changes: Callable[[Path], None]) -> Maker:
    """A copy of a run or a graph, changed."""

    def make(path: Path, specimens: Mapping[str, str]) -> None:
        shutil.copytree(specimens[specimen], path)
        for change in changes:
            change(path)

    return make


def without(*patterns: str) -> Callable[[Path], None]:
    """Removes files and folders."""

    def change(path: Path) -> None:
        for pattern in patterns:
            found = list(path.glob(pattern))
            assert found, pattern
            for each in found:
                shutil.rmtree(each) if each.is_dir() else each.unlink()

    return change


def put(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Writes a file anew."""
    return lambda path: (path / name).write_bytes(content if isinstance(content, bytes) else content.encode()) and None


def resealed(name: str, **values: Any) -> Callable[[Path], None]:
    """Changes keys of a JSON file that holds its own checksum, which holds again."""

    def change(path: Path) -> None:
        tree = json.loads((path / name).read_text()) | values
        tree.pop("sha256", None)
        (path / name).write_bytes(sealed(tree))

    return change
