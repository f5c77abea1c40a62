"""Waits for a run's checkpoints and files: save, load, export, compare, verify. The same for graphs and for clicks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.waits.measured import Wait, files_in, read_files, size_of, write_bytes
from marius_oac.config.task import TaskConfig
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runs.session import Session
from marius_oac.runs.verification import verify
from marius_oac.runtime.files.atomic import sync
from marius_oac.tasks.registry import entry_of
from marius_oac.training.local import log_of
from marius_oac.training.trained import compare_runs, export_run


@contextmanager
def opened(run: Path) -> Iterator[Session]:
    """A run's tables and network, as `resume` makes them."""
    folder = RunFolder.open(run)
    config: TaskConfig = folder.config
    task = entry_of(config).resume(config, log_of(folder, RunPlaces(folder, None)), ())
    task.use_folder(run)
    with Session(task) as session:
        yield session


def waits(kind: str, run: Path, other: Path, session: Session, scratch: Path, stack: ExitStack) -> list[Wait]:
    """The rows. `other` is a run of the same bits; `session` is empty, and as `run` afterwards."""
    checkpoints = Checkpoints(run / "checkpoints")
    saved = checkpoints.open(pinned=True)
    stack.callback(saved.close)
    task, parts = session.task, session.parts
    files = [saved.path / name for name in saved.files]
    size = size_of(files)

    def load(_: Path) -> None:
        found = checkpoints.open()
        task.load_state_arrays(found.arrays())
        found.restore(session.stores)
        task.load_dense(parts, found)

    load(scratch)
    dense = saved.dense()
    arrays = {name: np.array(array) for name, array in saved.arrays().items()}

    def save(path: Path) -> None:
        Checkpoints(path).save(saved.batch_index, session.stores, dense, saved.extra, 1, arrays)

    whole = {name: saved.array(table, part) for table in saved.tables() for part in ("values", "state", "timestamps")
             for name in [f"{table}.{part}"]}  # fmt: skip
    tensors = {name: torch.from_numpy(np.array(each)) for name, each in (whole | arrays).items()}

    def torch_save(path: Path) -> None:
        torch.save(tensors, path)
        sync(path)

    kept = scratch / f"{kind}.pt"
    torch_save(kept)
    plain, values = {name: tensor.numpy() for name, tensor in tensors.items()}, None

    def torch_load(_: Path) -> None:
        for name, tensor in torch.load(kept).items():
            plain[name][:] = tensor.numpy()

    values = {table: np.ascontiguousarray(saved.array(table, "values")) for table in saved.tables()}
    exported = sum(each.nbytes for each in values.values())

    def np_save(path: Path) -> None:
        path.mkdir()
        for table, rows in values.items():
            np.save(path / f"{table}.npy", rows)
            sync(path / f"{table}.npy")

    def parquet(path: Path) -> None:
        path.mkdir()
        for table, rows in values.items():
            column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
            pq.write_table(pa.table({"embedding": column}), path / f"{table}.parquet")
            sync(path / f"{table}.parquet")

    def compare(_: Path) -> None:
        assert compare_runs(run, other).same

    theirs = Checkpoints(other / "checkpoints").open()

    def array_equal(_: Path) -> None:
        for table in saved.tables():
            for part in ("values", "state"):
                assert np.array_equal(saved.array(table, part), theirs.array(table, part))

    compared = [path for path in files if not path.name.endswith(".timestamps.npy") and path.suffix == ".npy"
                and (".values." in path.name or ".state." in path.name)]  # fmt: skip
    both = [*files, *(theirs.path / path.name for path in files)]
    every = files_in(run)

    def sha256sum(_: Path) -> None:
        subprocess.run(["sha256sum", *map(os.fspath, every)], stdout=subprocess.DEVNULL, check=True)

    def check(_: Path) -> None:
        assert verify(run).sound

    disk, memory = "the bytes written and flushed", "the bytes read from the page cache"
    gb = size / 1e9
    formats = (
        ("safetensors", np_save, "np.save"),
        ("npy", np_save, "np.save"),
        ("parquet", parquet, "pyarrow, no names"),
    )
    return [
        Wait(f"{kind}: checkpoint", save, write_bytes(size), disk, gb, "GB", torch_save, "torch.save"),
        Wait(f"{kind}: load", load, read_files(files), memory, gb, "GB", torch_load, "torch.load, unchecked"),
        *(
            Wait(f"{kind}: export, {form}", lambda path, form=form: export_run(run, form, path),
                 write_bytes(exported), disk, exported / 1e9, "GB", way, said)
            for form, way, said in formats
        ),
        Wait(f"{kind}: compare", compare, read_files(both), memory, 2 * size_of(compared) / 1e9, "GB", array_equal,
             "np.array_equal, unchecked"),
        Wait(f"{kind}: verify", check, read_files(every), memory, size_of(every) / 1e9, "GB", sha256sum, "sha256sum"),
    ]  # fmt: skip
