"""Checkpoints of loops in several processes: each writes its part into a folder of its own, `process-RANK-of-SIZE`, as
one process writes all.

Parts of one moment have the same number. A part is removed only when all processes have written a newer one, so there
is always one that all have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from marius_oac.errors import CheckpointError, InputError, MariusOacError
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.training.own_loop import checkpoints
from marius_oac.training.own_loop.checkpoints import HalfLoaded, Moment, Parts
from marius_oac.training.own_loop.sharing import Share

Agreed = Callable[[str, Any], list[Any]]
"""`Agreement.gather`."""


def save(agreed: Agreed, share: Share, folder: Path, parts: Parts, moment: Moment, keep: int) -> None:
    """Writes this process's part.

    Raises:
        InputError: a process could not write its part, or they are at different batches; older ones are kept.
    """
    what, said = "saves", False
    own = folder / f"process-{share.rank}-of-{share.size}"
    newest = [int(name) for name in Checkpoints(own).names()[-1:]]
    every = agreed(what, [moment.next_batch, max([moment.next_batch, *(number + 1 for number in newest)])])
    for rank, (batch, _) in enumerate(every):
        if batch != every[0][0]:
            raise InputError(f"rank 0 saves before batch {every[0][0]} and rank {rank} before batch {batch}",
                             "Engine.save")  # fmt: skip

    def written() -> None:
        nonlocal said
        said = True
        _all_well(agreed, what, None)

    try:
        checkpoints.check_layout(folder, share.size)
        checkpoints.save(own, parts, moment, keep, max(number for _, number in every), written)
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
    """Sets everything to the newest checkpoint of which every process has its part; None: there is none yet.

    Raises:
        CheckpointError: parts are missing, of another number of processes, damaged, or of something else.
        HalfLoaded: a process could not load its part, and others have.
    """
    what, problem, names = "loads", None, []  # type: str, MariusOacError | None, list[str]
    own = folder / f"process-{share.rank}-of-{share.size}"
    try:
        checkpoints.check_layout(folder, share.size)
        names = Checkpoints(own).names()
    except MariusOacError as error:
        problem = error
    _all_well(agreed, what, problem)
    every = agreed(what, names)
    common = set(names).intersection(*every)
    if not common:
        if not any(every):
            return None
        missing = next((rank for rank, each in enumerate(every) if not each), None)
        said = "no checkpoint is there in all parts" if missing is None else f"rank {missing} has no part of any"
        raise CheckpointError(f"{said}: bring the folder's parts back to where they were written", folder)
    moment = None
    try:
        moment = checkpoints.load(own, parts, max(common))
    except MariusOacError as error:
        problem = error
    try:
        _all_well(agreed, what, problem)
    except InputError as error:
        if error is problem:
            raise
        raise HalfLoaded(error.message, folder) from None
    return moment
