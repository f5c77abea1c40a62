"""The story of a run folder, told by processes that are killed at each of its operations on files.

Prints a JSON list: for every operation what was killed there, and what was wrong afterwards ("" if nothing). Nothing
trains here: the batches are a toy, so that every moment can be tried, not some.

Run as `python -m tests.runs.kill_driver FOLDER memory|disk`: where the rows lie.
"""

import builtins
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.errors import MariusOacError
from marius_oac.kernels.cpu.pages import SLOTS_PER_SEGMENT
from marius_oac.runs.checkpoints.checkpoint import Checkpoint, name_of
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.stores import Tables
from marius_oac.storage.contract import ParameterStore, RowLayout
from marius_oac.storage.disk import slots as page_slots
from marius_oac.storage.disk.files import HEADER_BYTES, PageFiles
from marius_oac.storage.initial import RowInitial
from tests.disk import PAGE
from tests.run_folders import contents

BATCHES, EVERY, BEST = 6, 2, 2  # checkpoints after 2, 4 and 6 batches; the first of them is the best one
MEMORY = Config.build({"data": {"path": "g"}, "pipeline": {"order": "arrival"}})
CONFIGS = {
    "memory": MEMORY,
    "disk": MEMORY.replace("storage.memory=12400", f"storage.page={PAGE}", "storage.io=buffered"),
}
"""On disk three rows fit into memory."""
ROWS, LAYOUT = 6, RowLayout(500, 500)  # a page a row
PER_PAGE_FILES = ("manifest.json", ".slots.npy", ".checksums.npy")
"""What of a checkpoint depends on where its pages lie."""
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}


page_slots.SLOTS_PER_SEGMENT, page_slots._HALF = 8, 4  # few: so that slots are soon used again
_grow = PageFiles.grow
PageFiles.grow = lambda files, slots: _grow(files, SLOTS_PER_SEGMENT)  # the files have room in their own segments


def live(path: Path, config: Config) -> None:
    """Creates the run, or goes on from its newest checkpoint, to the end; as `training` does, in small."""
    folder = RunFolder.open(path) if path.exists() else RunFolder.create(path, config, "a graph")
    with folder, ExitStack() as stack:
        tables = Tables(config.storage, path, {"entities": LAYOUT}, {"entities": ROWS}, stack)
        store = tables.make("entities", ROWS, RowInitial("normal", 1.0, 0, "entities"))
        dense, first, records = torch.zeros(2), 0, {}
        if folder.checkpoints.names():
            folder.checkpoints.keep_for([store])
            checkpoint = folder.checkpoints.open()
            checkpoint.restore([store])
            folder.note_saved(checkpoint.batch_index)
            dense, first, records = checkpoint.dense()["dense"], checkpoint.extra["sequence"], checkpoint.extra
        folder.rewind(first, records)
        folder.write_config(config)
        if first == BEST:
            folder.checkpoints.mark_best(name_of(BEST))
        for batch in range(first, BATCHES):
            advance(store, batch)
            dense = dense * 0.5 + batch
            folder.metrics.add({"kind": "interval", "batch": batch, "sum": float(dense.sum())})
            if (batch + 1) % EVERY == 0:
                folder.order.append([batch, batch - 1])
                records = {"sequence": batch + 1} | folder.flushed_records(batch + 1)
                written = partial(folder.note_saved, batch + 1)
                folder.checkpoints.save(batch + 1, [store], {"dense": dense}, records, keep=1, written=written)
            if batch + 1 == BEST:
                folder.checkpoints.mark_best(name_of(BEST))
        folder.write_summary({"sha256": store.fingerprint(), "checkpoint": name_of(BATCHES)})


def advance(store: ParameterStore, batch: int) -> None:
    """What a batch would do: rows that follow from the rows before, all but every third."""
    rows = np.flatnonzero((np.arange(ROWS) + batch) % 3)
    values, timestamps = np.empty((rows.size, LAYOUT.width), np.float32), np.empty(rows.size, np.int64)
    store.read(rows, values, timestamps)
    store.commit(rows, values * np.float32(0.5) + np.float32(batch), batch)


def count_operations(at_operation) -> None:
    """From now on calls `at_operation(what)` before this process changes or flushes a file, and when it has opened one
    for writing: then the file is empty, or lacks what will be added.

    Nothing is flushed to the disk: what a killed process has written is in the kernel's hands, and stays.
    """
    opened = open

    def audit(event: str, args: tuple) -> None:
        made = event == "open" and args[1] is None and args[2] & os.O_CREAT  # by `os.open`
        if event in CHANGES or made:
            at_operation(f"{event} {args[0]}")

    def counted_open(file, mode="r", *args, **kwargs):
        result = opened(file, mode, *args, **kwargs)
        if set(mode) & set("wax+"):
            at_operation(f"open {file}")
        return result

    sys.addaudithook(audit)
    builtins.open = io.open = counted_open
    os.fsync = lambda descriptor: at_operation("fsync")
    os.fdatasync = lambda descriptor: at_operation("fdatasync")
    grow, write = PageFiles.grow, PageFiles.write

    def counted_grow(files: PageFiles, slots: int) -> None:
        grow(files, slots)
        at_operation("pages: room")

    def counted_write(files: PageFiles, slots: np.ndarray, addresses: np.ndarray) -> int:
        """A killed process may leave half a page."""
        with opened(files.path_of(0), "r+b") as file:
            file.seek(HEADER_BYTES + int(slots[0]) * PAGE)
            file.write(bytes(PAGE // 2))
        at_operation("pages: torn")
        return write(files, slots, addresses)

    PageFiles.grow, PageFiles.write = counted_grow, counted_write


def in_child(work) -> int:
    """The exit code of a process that does `work()`; minus the signal that killed it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def live_until(path: Path, config: Config, number: int) -> None:
    """Lives until the operation of that number, from 1, and is killed before it."""
    numbers = itertools.count(1)

    def kill(what: str) -> None:
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    count_operations(kill)
    live(path, config)


def list_operations(path: Path, config: Config, log: Path) -> list[str]:
    """The operations of a life that nobody ends."""

    def work() -> None:
        seen: list[str] = []
        count_operations(seen.append)
        live(path, config)
        log.write_text(json.dumps(list(seen)))

    assert in_child(work) == 0
    return json.loads(log.read_text())


def state(path: Path) -> dict[str, str]:
    """What the run holds. The checkpoint before the last may be there or not: a life that ended before it was removed
    leaves it to the next one that saves. Rows on disk count, and not where they lie."""
    leave = (".lock", "tables/", f"checkpoints/{name_of(BATCHES - EVERY)}/")
    found, folder = contents(path), RunFolder.open(path)
    for name in folder.checkpoints.names():
        checkpoint = folder.checkpoints.open(name)
        if checkpoint.pages:
            found = {file: digest for file, digest in found.items() if not file.endswith(PER_PAGE_FILES)}
            found |= {f"checkpoints/{name}/{part}": digest for part, digest in rows_of(checkpoint).items()}
        else:  # the origin is random
            manifest = f"checkpoints/{name}/manifest.json"
            found[manifest] = repr((checkpoint.batch_index, checkpoint.extra, checkpoint.files))
    # All but where it lies, and its random name.
    found["run.json"] = repr(folder.about.model_copy(update={"path": "", "id": ""}))
    return {name: digest for name, digest in found.items() if not name.startswith(leave)}


def rows_of(checkpoint: Checkpoint) -> dict[str, str]:
    """SHA-256 of the rows of a checkpoint; those on disk are checked on the way."""
    parts = ("values", "state", "timestamps")
    return {part: hashlib.sha256(checkpoint.array("entities", part)[:].tobytes()).hexdigest() for part in parts}


def fault_of(path: Path, config: Config, first: int, second: int, whole: dict[str, str]) -> str:
    """What is wrong when one life ends at operation `first`, the next one at `second`, and a third may finish."""
    for number in (first, second):
        code = in_child(partial(live_until, path, config, number))
        if code not in (-signal.SIGKILL, 0):
            return f"a life ended with code {code}"
        if path.exists():
            try:
                folder = RunFolder.open(path)
                for name in folder.checkpoints.names():
                    rows_of(folder.checkpoints.open(name))
                folder.metrics.lines(), folder.order.read(), folder.summary(), folder.checkpoints.best()
            except MariusOacError as error:
                return str(error)
    if in_child(partial(live_until, path, config, 0)):  # no operation has this number
        return "it did not go on"
    if state(path) != whole:
        return f"another end: {sorted(state(path).items() ^ whole.items())}"
    left = [entry.name for entry in path.parent.iterdir() if entry != path]
    return f"left behind: {left}" if left else ""


def killed(folder: Path, config: Config, last: int, whole: dict[str, str], number: int) -> str:
    """What is wrong after a kill at an operation of so many, and another one that follows from it."""
    place = folder / f"killed-{number}"
    place.mkdir()
    wrong = fault_of(place / "run", config, number, number * 7 % last + 1, whole)
    shutil.rmtree(place)
    return wrong


def main(folder: Path, config: Config) -> None:
    live(folder / "warm" / "run", config)  # compiles and imports everything once
    operations = list_operations(folder / "whole" / "run", config, folder / "operations.json")
    found = partial(killed, folder, config, len(operations), state(folder / "whole" / "run"))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), multiprocessing.get_context("fork")) as pool:
        wrong = pool.map(found, range(1, len(operations) + 1))
    told = [f"{number}: {what.replace(str(folder / 'whole'), '')}" for number, what in enumerate(operations, 1)]
    json.dump(list(zip(told, wrong, strict=True)), sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), CONFIGS[sys.argv[2]])
