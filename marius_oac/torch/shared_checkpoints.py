"""Checkpoints of loops in several processes: each writes its part into a folder of its own, `process-RANK-of-SIZE`, as
one process writes all.

Parts of one moment have the same number. A part is removed only when all processes have written a newer one, so there
is always one that all have. A loop of another number of processes reads all parts (`resharding`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marius_oac.errors import CheckpointError, InputError, MariusOacError
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.checkpoints.origin import check_together, new_token
from marius_oac.runs.checkpoints.pins import Missing
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import disk_errors, make_folder
from marius_oac.torch import checkpoints
from marius_oac.torch.checkpoints import HalfLoaded, Moment, Parts
from marius_oac.torch.layouts import Layouts, layouts, newest, part_at, part_of
from marius_oac.torch.sharing import Share

Agreed = Callable[[str, Any], list[Any]]
"""`Agreement.gather`."""


def save(agreed: Agreed, share: Share, folder: Path, parts: Parts, moment: Moment, keep: int) -> None:
    """Writes this process's part.

    Raises:
        InputError: a process could not write its part, or they are at different batches; older ones are kept.
    """
    what, said, own = "saves", False, part_of(folder, *share)
    problem: MariusOacError | None = None
    try:
        with disk_errors(own):
            make_folder(own)  # of all parts, before any is written: see `_newest_whole`
            last = newest(layouts(folder))
    except MariusOacError as error:
        problem = error
    _all_well(agreed, what, problem)
    every = agreed(what, [moment.next_batch, max(moment.next_batch, last + 1), new_token()])
    for rank, (batch, *_) in enumerate(every):
        if batch != every[0][0]:
            raise InputError(f"rank 0 saves before batch {every[0][0]} and rank {rank} before batch {batch}",
                             "Engine.save")  # fmt: skip

    def written() -> None:
        nonlocal said
        said = True
        _all_well(agreed, what, None)

    try:
        least = max(number for _, number, _ in every)
        checkpoints.save(folder, parts, moment, keep, share, least, written, every[0][2])
    except MariusOacError as error:
        if said:
            raise
        _all_well(agreed, what, error)


def _all_well(agreed: Agreed, what: str, error: MariusOacError | None) -> None:
    """Raises the error, or one that says which other process has one."""
    every = agreed(f"{what} its part", None if error is None else str(error))
    if error is not None:
        raise error
    for rank, why in enumerate(every):
        if why is not None:
            raise InputError(f"rank {rank} {what} and can't: {why}", f"Engine.{what.removesuffix('s')}")


def load(agreed: Agreed, share: Share, folder: Path, parts: Parts) -> Moment | None:
    """Sets everything to the newest checkpoint of which all parts are there; None: there is none yet.

    Raises:
        CheckpointError: parts are missing, damaged, or of something else.
        HalfLoaded: a process could not load its part, and others have.
    """
    what, problem, own, moment = "loads", None, {}, None  # type: str, MariusOacError | None, Layouts, Moment | None
    try:
        own = layouts(folder)
    except OSError as error:
        problem = CheckpointError(f"can't be read: {error.strerror}", folder)
    _all_well(agreed, what, problem)
    there: dict[int, dict[int, list[str]]] = {}
    for seen in agreed(what, own):  # each process may see its own part alone
        for size, ranks in seen.items():
            for rank, names in ranks.items():
                known = there.setdefault(int(size), {}).setdefault(int(rank), [])
                known += [name for name in names if name not in known]
    chosen = _newest_whole(there, folder)
    if chosen is None:
        return None
    name, size = chosen
    if size != share.size and share.rank == 0:
        logger.warning(f"{folder}: checkpoint {name} is of {size} processes, and the loop of {share.size}: the next "
                       "pass over a loader begins at its first batch")  # fmt: skip
    checkpoint, same = None, size == share.size  # type: Checkpoint | None, bool
    try:
        checkpoint = part_at(folder, *share).open(name) if same else _of_others(folder, name, size, share)
    except MariusOacError as error:
        problem = error
    every = agreed(what, checkpoint.facts() if checkpoint and same else None)
    try:
        if same and None not in every:
            _check_one_moment(every, folder, size)
        if checkpoint:
            moment = checkpoints.load(checkpoint, parts, alike=same)
    except MariusOacError as error:
        problem = error
    try:
        _all_well(agreed, what, problem)
    except InputError as error:
        if error is problem:
            raise
        raise HalfLoaded(error.message, folder) from None
    return moment


def _newest_whole(there: Layouts, folder: Path) -> tuple[str, int] | None:
    """The name of the newest checkpoint of which all parts are there, and how many; None: none was ever whole.

    Raises:
        CheckpointError: a newer one was, and parts of it are missing.
    """
    whole, lost = [], []
    for size, parts in there.items():
        common = set.intersection(*(set(parts.get(rank, [])) for rank in range(size)))
        last = max((name for names in parts.values() for name in names), default="")
        missing = [rank for rank in range(size) if rank not in parts]
        if common:
            whole.append((max(common), size))
        elif last and missing:
            lost.append((last, f"rank {missing[0]} of {size} has no part of any checkpoint"))
        elif max(map(len, parts.values())) > 1:  # one alone may be of a first save that ended between renames
            lost.append((last, f"no checkpoint of {size} processes is there in all parts"))
    found = max(whole, default=None)
    for last, said in lost:
        if found is None or last > found[0]:
            raise CheckpointError(f"{said}: bring the folder's parts back to where they were written", folder)
    return found


def _of_others(folder: Path, name: str, size: int, share: Share) -> Checkpoint:
    """A checkpoint of `size` processes, as far as it is this one's. Raises CheckpointError if a part is damaged, or not
    at hand."""
    from marius_oac.torch.resharding import Resharded

    try:
        parts = [part_at(folder, rank, size).open(name) for rank in range(size)]
        _check_one_moment([part.facts() for part in parts], folder, size)
        return Resharded.for_share(parts, share)
    except Missing:
        raise CheckpointError(f"checkpoint {name} is of {size} processes, and this is one of {share.size}: put its "
                              "parts where each process can read all of them", folder) from None  # fmt: skip


def _check_one_moment(parts: Sequence[dict[str, Any]], folder: Path, size: int) -> None:
    """Raises CheckpointError if parts, by rank, were not saved together."""
    check_together([(str(part_of(folder, rank, size)), facts) for rank, facts in enumerate(parts)])
