"""Checkpoints of a user's own loop: all that decides how it goes on, at one moment.

They are those of a run (`runs/checkpoints`): a folder of ten digits with a manifest and checksums, written under
another name and renamed. The rows of each table and its keys are files of their own; states of the user's objects are
plain data in the manifest and tensors beside it. Nothing is pickled.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from marius_oac.errors import CheckpointError, DivergedError, InputError, shown
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runtime.files.atomic import disk_errors, make_folder
from marius_oac.runtime.files.untrusted import MOST_BYTES, check_tree
from marius_oac.torch import generators
from marius_oac.torch.drawing import Position
from marius_oac.torch.layouts import drop_others, others, part_at
from marius_oac.torch.plain import from_plain, to_plain
from marius_oac.torch.refusals import rows_elsewhere
from marius_oac.torch.sharing import ALONE, Share
from marius_oac.torch.tables import Table


@dataclass(frozen=True)
class Parts:
    """What a checkpoint holds of a user's loop.

    Attributes:
        tables: of rows, idle.
        model: its parameters and buffers.
        optimizers, stateful: objects with `state_dict` and `load_state_dict`.
    """

    tables: Sequence[Table]
    model: nn.Module
    optimizers: Sequence[torch.optim.Optimizer]
    stateful: Sequence[Any]


@dataclass(frozen=True)
class Moment:
    """When it was: the number of the next batch, and where the pass over the loader is, if one is under way."""

    next_batch: int
    position: Position | None


def save(
    folder: Path, parts: Parts, moment: Moment, keep: int, share: Share = ALONE, least: int = 0,
    written: Callable[[], None] = lambda: None, session: str | None = None,
) -> None:  # fmt: skip
    """Writes a checkpoint, or this process's part of one, and removes all but the `keep` newest.

    Args:
        least: the smallest number that it may have.
        written: called when it is complete, before any other is removed.
        session: see `Origin`; the same for all processes.

    Raises:
        DivergedError: a parameter is not finite.
        InputError: a state can't be saved, or the folder can't be written, or holds checkpoints of something else.
    """
    for name, parameter in parts.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise DivergedError(moment.next_batch - 1, f"parameter {shown(name)} holds NaN or infinite numbers")
    state = {
        "model": _of_model(parts),
        "optimizers": [each.state_dict() for each in parts.optimizers],
        "stateful": [each.state_dict() for each in parts.stateful],
        "generators": generators.to_save(generators.states()),
        "position": None if moment.position is None else moment.position.to_save(),
    }
    tensors: dict[str, torch.Tensor] = {}
    tree = {name: to_plain(value, name, tensors) for name, value in state.items()}
    tables = {table.store.name: about(table) for table in parts.tables}
    extra = {"loop": {"next_batch": moment.next_batch, "tables": tables, "optimizers": _kinds(parts), "state": tree}}
    _check_readable(extra)
    checkpoints = part_at(folder, *share)
    checkpoints.saved_as(session or checkpoints.origin.session, share.rank, share.size)
    with _alone_in(checkpoints.folder):
        _save(checkpoints, folder, tables, parts, tensors, extra, keep, share, max(moment.next_batch, least), written)


def _of_model(parts: Parts) -> dict[str, Any]:
    with rows_elsewhere():
        return parts.model.state_dict()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Within the block no other process saves there. Raises InputError if one does, or the folder can't be made."""
    with disk_errors(folder):
        make_folder(folder)
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("another process saves its checkpoints there: name another folder", folder) from None
        except OSError:
            pass  # some network file systems lock no folders
        yield
    finally:
        os.close(opened)


def _save(
    checkpoints: Checkpoints, folder: Path, tables: Mapping[str, Any], parts: Parts,
    tensors: Mapping[str, torch.Tensor], extra: Mapping[str, Any], keep: int, share: Share, least: int,
    written: Callable[[], None],
) -> None:  # fmt: skip
    for each in (checkpoints, *map(Checkpoints, others(folder, share))):
        _check_own(each, tables)
    checkpoints.clean()
    before = [int(name) + 1 for name in checkpoints.names()]
    with ExitStack() as stack:
        for table in parts.tables:
            stack.enter_context(table.at_rest())
        keys = {f"{table.store.name}.{name}": each for table in parts.tables for name, each in table.keys().items()}
        sequence = max([least, *before])  # two of one batch have two names
        checkpoints.save(sequence, [table.store for table in parts.tables], tensors, extra, keep, keys,
                         written)  # fmt: skip
    drop_others(folder, share, keep)


def _check_readable(extra: Mapping[str, Any]) -> None:
    """Raises InputError for what a manifest can't hold: `load` would refuse it."""
    try:
        check_tree({"extra": extra})
    except ValueError as error:
        raise InputError(f"a state can't be saved: {error}", "Engine.save") from None
    size = len(json.dumps(extra))
    if size > MOST_BYTES // 2:
        raise InputError(f"a state can't be saved: {size >> 20} MiB are no tensors or arrays; make them such",
                         "Engine.save")  # fmt: skip


def _check_own(checkpoints: Checkpoints, about: Mapping[str, Any]) -> None:
    """Raises InputError if the folder holds checkpoints of something else, which would be removed as the oldest."""
    for name in checkpoints.names()[-1:]:
        loop = checkpoints.open(name, verify=False).extra.get("loop")
        if not isinstance(loop, dict) or loop.get("tables") != about:
            raise InputError("holds checkpoints of something else: name another folder", checkpoints.folder)


def load(checkpoint: Checkpoint, parts: Parts, alike: bool = True) -> Moment:
    """Sets everything to a checkpoint, which has been verified.

    Args:
        alike: it is of as many processes; else generators stay as they are, and the pass over the loader begins anew,
            since what each process draws is something else.

    Raises:
        CheckpointError: it is damaged, or belongs to another loop; nothing has changed.
        HalfLoaded: it was found while things changed.
    """
    saved = checkpoint.extra.get("loop")
    if not isinstance(saved, dict):
        raise CheckpointError("is no checkpoint of a loop of one's own", checkpoint.path)
    tensors = checkpoint.dense()
    try:
        state = {name: from_plain(tree, tensors) for name, tree in saved["state"].items()}
        position = state["position"] and Position.from_saved(state["position"])
        drawn, next_batch = generators.from_saved(state["generators"]), int(saved["next_batch"])
        _check(parts, saved, state["model"], len(state["stateful"]))
    except CheckpointError as error:
        raise CheckpointError(error.message, checkpoint.path) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"has a damaged state: {shown(str(error))}", checkpoint.path) from None
    try:
        _apply(parts, checkpoint, state)
        if alike:
            generators.set_states(drawn)
    except Exception as error:
        raise HalfLoaded(f"can't be loaded: {error}", checkpoint.path) from error
    return Moment(next_batch, position if alike else None)


class HalfLoaded(CheckpointError):
    """Some of a checkpoint was loaded, and then something did not fit."""


def _apply(parts: Parts, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
    parts.model.load_state_dict(state["model"], strict=False)  # `_check` has compared the names; rows follow
    for each, own in zip((*parts.optimizers, *parts.stateful), (*state["optimizers"], *state["stateful"]), strict=True):
        each.load_state_dict(own)
    arrays = checkpoint.arrays()
    for table in parts.tables:
        prefix = f"{table.store.name}."
        keys = {name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)}
        table.restore(checkpoint.table(table.store.name), keys)


def about(table: Table) -> dict[str, Any]:
    """What must be the same where a table is loaded."""
    initial = {"std": table.initial.scale, "seed": table.initial.seed, "state": table.initial.state_initial}
    return {"dimension": table.dimension, "optimizer": table.kind, "initial": initial}


def _kinds(parts: Parts) -> list[str]:
    return [type(each).__name__ for each in parts.optimizers]


def _check(parts: Parts, saved: Mapping[str, Any], model: Mapping[str, Any], stateful: int) -> None:
    """Raises CheckpointError if the checkpoint is that of other tables, another model or other optimizers."""
    own: dict[str, Any] = {table.store.name: about(table) for table in parts.tables}
    for name in sorted({*own, *saved["tables"]}):
        there = saved["tables"].get(name)
        if own.get(name) != there:
            raise CheckpointError(f"has table {name!r} as {there}, and the model as {own.get(name)}")
    if saved["optimizers"] != _kinds(parts):
        raise CheckpointError(f"has the optimizers {', '.join(saved['optimizers'])}, not {', '.join(_kinds(parts))}")
    if stateful != len(parts.stateful):
        raise CheckpointError(f"has {stateful} objects of `stateful`, not {len(parts.stateful)}")
    shapes = {name: _shape(value) for name, value in _of_model(parts).items()}
    for name in sorted({*shapes, *model}):
        if (name in shapes) != (name in model) or shapes[name] != _shape(model[name]):
            there = _shape(model[name]) if name in model else "missing"
            raise CheckpointError(f"parameter {name!r} is {there}, and in the model {shapes.get(name, 'missing')}")


def _shape(value: Any) -> Any:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def check_stateful(given: Sequence[Any], what: str) -> None:
    """Raises InputError if one has no state to save."""
    for each in given:
        if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
            raise InputError(f"{shown(each)} has no state_dict and load_state_dict", f"Engine: {what}")
