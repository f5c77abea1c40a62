"""What the stores of a run must do with checkpoints, wherever their rows lie.

from marius_oac.testing.stores import check_stores

def test_my_stores(tmp_path):
    @contextmanager
    def make(run):
        ...
        yield stores

    check_stores(make, tmp_path)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import numpy as np

from marius_oac.config.sections import StorageConfig
from marius_oac.errors import CheckpointError, DivergedError, InputError
from marius_oac.runs.checkpoints.checkpoint import Checkpoint, name_of
from marius_oac.runs.checkpoints.retention import FOLDER, Checkpoints
from marius_oac.runs.stores import Tables
from marius_oac.storage.contract import ParameterStore, backing_of
from marius_oac.storage.snapshots import PARTS

Make = Callable[[Path], AbstractContextManager[Sequence[ParameterStore]]]
Moment = list[list[np.ndarray]]
_SAVED, _ROUNDS = (1, 2, 3), 8


def check_stores(make: Make, folder: Path) -> None:
    """Checks that checkpoints hold what the stores held, whatever is written later, and that stores go back to them.

    Args:
        make: makes the stores of a run in a folder, which is empty or was used before: some dozens of rows each.
        folder: an empty one.

    Raises:
        AssertionError: something is wrong.
    """
    for check in (_moments_stay, _rows_of_other_stores, _old_checkpoints_make_room, _what_is_refused):
        run = folder / check.__name__.strip("_")
        run.mkdir()
        check(make, run)


def _moments_stay(make: Make, run: Path) -> None:
    checkpoints, moments = Checkpoints(run / FOLDER), {}
    with make(run) as stores:
        for number in _SAVED:
            moments[number] = _changed(stores, number)
            _save(checkpoints, number, stores)
        _changed(stores, 4)
        _compare(checkpoints, moments, "after rows were written")
        _go_back(checkpoints, 2, stores, moments)
        _changed(stores, 5)
        _compare(checkpoints, moments, "after the stores went back")
    with make(run) as stores:
        for number in (3, 1):
            _go_back(checkpoints, number, stores, moments)
        moments[6] = _changed(stores, 6)
        _save(checkpoints, 6, stores)
        _compare(checkpoints, moments, "after the run was opened again")


def _rows_of_other_stores(make: Make, run: Path) -> None:
    with make(run) as stores, ExitStack() as stack:
        others = [_in_memory(stack, each, each.num_rows) for each in stores]
        for mine, theirs, folder in ((stores, others, run), (others, stores, run / "other")):
            checkpoints = Checkpoints(folder / FOLDER)
            expected = _changed(mine, 1 + (mine is others))
            _save(checkpoints, 1, mine)
            _open(checkpoints, 1).restore(theirs)
            assert _same(_moment(theirs), expected), "rows change on their way between stores of two kinds"


def _old_checkpoints_make_room(make: Make, run: Path) -> None:
    checkpoints, used = Checkpoints(run / FOLDER), []
    with make(run) as stores:
        for number in range(1, _ROUNDS):
            last = _changed(stores, number)
            _save(checkpoints, number, stores, keep=1)
            found = backing_of(stores).metrics()
            used.append(sum(value for name, value in found.items() if name.endswith("bytes_in_use")))
        _compare(checkpoints, {number: last}, "after older ones were removed")
    assert used[-1] <= 2 * used[1], f"old checkpoints take room: {used[1]:,.0f} bytes in use become {used[-1]:,.0f}"


def _what_is_refused(make: Make, run: Path) -> None:
    checkpoints = Checkpoints(run / FOLDER)
    with make(run) as stores, ExitStack() as stack:
        before, store = _changed(stores, 1), stores[-1]
        longer = _in_memory(stack, store, store.num_rows + 1)
        _save(Checkpoints(run / "longer" / FOLDER), 1, [longer])
        try:
            _open(Checkpoints(run / "longer" / FOLDER), 1).restore([store])
        except CheckpointError:
            assert _same(_moment(stores), before), "a table of another shape was refused, and rows have changed"
        else:
            raise AssertionError("a table of another shape is restored")
        row = np.full((1, store.layout.width), np.nan, np.float32)
        store.commit(np.array([store.num_rows - 1]), row, 9)
        try:
            checkpoints.save(1, stores, {}, {}, keep=1)
        except DivergedError:
            assert not checkpoints.names(), "a checkpoint of rows that are NaN is left"
        else:
            raise AssertionError("rows that are NaN are saved")


def _in_memory(stack: ExitStack, like: ParameterStore, num_rows: int) -> ParameterStore:
    tables = Tables(StorageConfig(), None, {like.name: like.layout}, {like.name: num_rows}, stack)
    return tables.make(like.name, num_rows, like.initial)


def _changed(stores: Sequence[ParameterStore], number: int) -> Moment:
    """Writes two of three rows, with timestamp `number`; returns what the stores hold then."""
    for store in stores:
        rows = np.flatnonzero((np.arange(store.num_rows) + number) % 3)
        values = np.random.default_rng(number).integers(-99, 99, (rows.size, store.layout.width)).astype(np.float32)
        store.overwrite(rows, values, number, np.zeros(rows.size, np.int64))
    return _moment(stores)


def _moment(stores: Sequence[ParameterStore]) -> Moment:
    """The three parts of each store's rows."""
    return [_parts(store) for store in stores]


def _parts(store: ParameterStore) -> list[np.ndarray]:
    rows, timestamps = np.empty((store.num_rows, store.layout.width), np.float32), np.empty(store.num_rows, np.int64)
    store.read(np.arange(store.num_rows), rows, timestamps)
    return [rows[:, : store.layout.dimension], rows[:, store.layout.dimension :], timestamps]


def _same(found: Moment, expected: Moment) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(np.array_equal(a, b) for one, other in pairs for a, b in zip(one, other, strict=True))


def _save(checkpoints: Checkpoints, number: int, stores: Sequence[ParameterStore], keep: int = 9) -> None:
    checkpoints.save(number, stores, {}, {"tables": [store.name for store in stores]}, keep)


def _open(checkpoints: Checkpoints, number: int) -> Checkpoint:
    return checkpoints.open(name_of(number))


def _compare(checkpoints: Checkpoints, moments: dict[int, Moment], when: str) -> None:
    for number, expected in moments.items():
        saved = _open(checkpoints, number)
        try:
            found = [[saved.array(table, part)[:] for part in PARTS] for table in saved.extra["tables"]]
        except InputError as error:
            raise AssertionError(f"checkpoint {number} can't be read {when}: {error}") from None
        assert _same(found, expected), f"checkpoint {number} holds other rows {when}"


def _go_back(
    checkpoints: Checkpoints, number: int, stores: Sequence[ParameterStore], moments: dict[int, Moment]
) -> None:
    checkpoints.keep_for(stores)
    _open(checkpoints, number).restore(stores)
    assert _same(_moment(stores), moments[number]), f"checkpoint {number} is not what the stores hold after `restore`"
