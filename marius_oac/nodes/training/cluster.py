"""Training on several nodes, as one of their processes, which `torchrun` has started (see `launch`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from marius_oac.config.dense import ignored_by_kstep
from marius_oac.config.errors import parse
from marius_oac.config.task import TaskConfig, build_config
from marius_oac.data.logs.run_log import LOG, RunLog
from marius_oac.errors import CheckpointError, ConfigError, InputError, NodeLost
from marius_oac.nodes.groups.contract import Group
from marius_oac.nodes.groups.torch_group import TorchGroup
from marius_oac.nodes.launch.cluster import Place, names
from marius_oac.nodes.launch.parent import MET, tell_agent
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.sharded.peers import check_saved
from marius_oac.nodes.sharded.place import agreed_products, check_gpus, config_of
from marius_oac.nodes.training.agreed import agreed_home, part_of
from marius_oac.nodes.training.rowless import Rowless
from marius_oac.runs.checkpoints.origin import new_token
from marius_oac.runs.checkpoints.parts import NODES, Layout, ShardedCheckpoint, drop_after
from marius_oac.runs.checkpoints.retention import START, Checkpoints
from marius_oac.runs.folder.about import ABOUT
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runs.folder.user_code import code_to_resume, code_to_train
from marius_oac.runs.loop import TrainingLoop
from marius_oac.runs.task import Task
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import check_no_link
from marius_oac.runtime.standstill import watched
from marius_oac.tasks.registry import entry_of
from marius_oac.training import local, products


def train_on_nodes(
    config: TaskConfig, place: Place, out: str | Path | None = None, *, trace: bool = False
) -> local.Run | None:
    """Trains from scratch, as one of the processes of `place.cluster`. Collective. Returns None if the run has no files
    here.

    The first process keeps the run's folder; rows and checkpoints of each lie in `nodes/LAYOUT/NODE` of it.

    Raises:
        InputError: this or another node can't train; nothing was written.
        NodeLost: another node has ended or is silent.
    """
    path = Path(out) if out else Path("runs") / entry_of(config).default_name(config)
    with open_group(place) as group:
        # torchrun has started the nodes again because one was lost: they continue where the first one finds a run.
        if any(group.gather(place.attempt > 0)) and group.gather(not place.rank and (path / "run.json").exists())[0]:
            mine = code_to_train(config)  # another run may lie here, for which training was refused before
            return _resumed(path, place, group, (), (), None, None, trace, mine)
        config, notes = agreed_products(config, config_of(config, place), group)
        own = config_of(config, place)
        check_gpus(own, group)
        home = agreed_home(config, place, group, lambda: _new_task(own, path, place, notes), path)
        if isinstance(home, Rowless):
            home.train()
            return None
        with _created(path, place, home.group, home) as folder:
            _train(home, folder, trace)
    return local.open_run(folder.path)


def _train(
    home: NodesHome, folder: RunFolder, trace: bool, prepare: Callable[[TrainingLoop], None] = lambda loop: None
) -> None:
    try:
        with watched(home.config.stall_after):
            local.run(home, folder, trace, None, prepare)
    except (Closed, NodeLost):  # another thread, or another node after an error that reached this one too
        if home.failure is None or isinstance(home.failure, Closed):
            raise
        raise home.failure from None


@contextmanager
def _created(path: Path, place: Place, group: Group, home: NodesHome) -> Iterator[RunFolder]:
    """Makes the folder of a new run, or this process's part of it."""
    part, id, task = part_of(path, home, place), group.gather(new_token())[0], home.task
    about = task.config, task.fingerprint, task.run_files()
    if place.rank:
        group.barrier()  # the first process makes the folder that contains the others'
    where = part if place.rank else path
    with RunFolder.create(where, *about, over_nodes=True, id=id) as folder:
        folder.keep_rows_in(part)
        if not place.rank:
            group.barrier()
        yield folder


def resume_on_nodes(
    path: str | Path,
    place: Place,
    overrides: Iterable[str] = (),
    *,
    data: Sequence[str] = (),
    data_path: str | Path | None = None,
    checkpoint: str | None = None,
    trace: bool = False,
    trust: bool = False,
) -> local.Run | None:
    """Continues from the newest checkpoint that all processes have, or the one named. Collective. See `resume`.

    If the nodes have changed, rows are distributed again; every process then needs the parts of all earlier nodes.
    """
    with open_group(place) as group:
        if checkpoint is not None and any(group.gather(place.attempt > 0)):
            raise InputError(
                "a node was lost and started again; to go back once more would lose what was trained since: go on "
                "without it",
                f"--checkpoint {checkpoint}",
            )
        return _resumed(Path(path), place, group, overrides, data, data_path, checkpoint, trace, trust)


def _resumed(
    path: Path,
    place: Place,
    group: Group,
    overrides: Iterable[str],
    data: Sequence[str],
    data_path: str | Path | None,
    checkpoint: str | None,
    trace: bool,
    trust: bool | Collection[bytes],
) -> local.Run | None:
    saved, log, id = _told(path, place, group, data_path)
    if any(group.gather(place.attempt > 0)):
        data = _not_taken_in(data, saved)
    shared = products.kept(local.with_data(saved.replace(*overrides), data), saved)
    config = config_of(shared, place)
    check_gpus(config, group)

    def make() -> Task:
        return entry_of(config).resume(code_to_resume(config, path, trust), log, data)

    home = agreed_home(shared, place, group, make, path, True, checkpoint)
    if isinstance(home, Rowless):
        home.train()
        return None
    if log and data:
        home.check_new_data(len(log.files))
    task, config = home.task, home.config
    part = part_of(path, home, place)
    before = _before(path, part, home, checkpoint, id)
    with _opened(path, part, place, home, id) as folder:
        folder.check_resumable(config, task.fingerprint)
        if not place.rank:
            for key, why in ignored_by_kstep(config):  # the run may have begun with another kind
                logger.warning(f"{key}: {why}")
        if checkpoint is None and not data and not before and not home.peers.any(not local.has_ended(folder, task)):
            if home.group is not group:
                group.gather(None if place.rank else {"over": True})
            return local.open_run(folder.path)

        def load(loop: TrainingLoop) -> None:
            if before:
                loop.take_over(before)
            else:
                loop.restore(checkpoint)
            drop_after(path, loop.position.batch_index, part.parent)

        _train(home, folder, trace, load)
    return local.open_run(folder.path)


def _told(
    path: Path, place: Place, group: Group, data_path: str | Path | None
) -> tuple[TaskConfig, RunLog | None, str]:
    """The first process's configuration and log of the run, with the present paths of its files, and its id.
    Collective."""
    said: dict[str, str] = {}
    if not place.rank:
        try:
            folder = RunFolder.open(path)
            places = RunPlaces(folder, data_path)
            log = local.log_of(folder, places)
            said = {"id": folder.about.id, "config": places.config().dump()} | ({"log": log.dump()} if log else {})
        except InputError as error:
            said = {"problem": str(error)}
    said = group.gather(said)[0]
    if "problem" in said:
        raise InputError(said["problem"], f"node {names(place.cluster)[0]}")
    log = RunLog.parse(said["log"].encode(), path / LOG) if "log" in said else None
    return build_config(parse(said["config"], path)[0]), log, said["id"]


def _not_taken_in(data: Sequence[str], saved: TaskConfig) -> Sequence[str]:
    """Those of a command's files that are not in the run's log yet, if torchrun has started it again."""
    known = saved.train_files if data else ()
    return () if data and known[-len(data) :] == tuple(data) else data


def _before(path: Path, part: Path, home: NodesHome, checkpoint: str | None, id: str) -> ShardedCheckpoint | None:
    """The checkpoint of another layout to continue from; None: the run, of this id, continues from one of its own, or
    starts.

    Raises:
        InputError: a process lacks its own part, or a checkpoint of it that all have saved, or those of other nodes
            that have written the newest checkpoint; or the run was trained without nodes.
    """
    if home.peers.any(bool(Checkpoints(path / "checkpoints").names())):
        raise InputError("the run was trained without nodes; it goes on so: leave --nodes or --local-nodes out", path)
    if checkpoint == START:
        return None
    peers, own = home.peers, Checkpoints(part / "checkpoints").names()
    others = [layout for layout in Layout.all(path) if layout.path != part.parent]
    seen = {name: layout for layout in others for name in layout.names()}

    def newest_of(found: Iterable[str]) -> str:
        return max((name for name in found if name == (checkpoint or name)), default="")

    mine, theirs = newest_of(peers.common(own)), newest_of(peers.common(sorted(seen)))
    begun = peers.gather(sorted({name for layout in others for name in layout.begun()}))
    newest = newest_of(name for found in begun for name in found)
    if newest > max(mine, theirs):
        lacking = [name for name, has in peers.each(newest in seen) if not has]
        raise InputError(
            f"checkpoint {newest} was written by other nodes, and their parts are not all here, or not whole: copy "
            f"{path / NODES} of each of them to all, or name an older one with --checkpoint",
            f"node {', '.join(lacking)}",
        )
    gone = [name for name, there in peers.each(part.is_dir()) if not there]
    if gone and peers.any(bool(own)) and not mine and not theirs:
        raise InputError(f"its part of the run is gone: bring {part.parent} back to it", f"node {', '.join(gone)}")
    if checkpoint is None:
        check_saved(peers, path, part, max(mine, theirs))
    return peers.agreed(lambda: seen[theirs].open(theirs, id, as_read=True)) if theirs > mine else None


@contextmanager
def _opened(path: Path, part: Path, place: Place, home: NodesHome, id: str) -> Iterator[RunFolder]:
    """Opens the folder of a run that continues, or this process's part of it, which is made for a new node. Raises
    InputError, on all, if one is of another run."""
    where = part if place.rank else path
    check_no_link(part, path)
    lost = [node for node, gone in home.peers.each(where.exists() and not (where / ABOUT).exists()) if gone]

    def opened() -> RunFolder:
        about = home.config, home.task.fingerprint, home.task.run_files()
        if not where.exists():
            return RunFolder.create(where, *about, over_nodes=True, id=id)
        if not (where / ABOUT).exists():
            return RunFolder.written_anew(where, *about, id)
        folder = RunFolder.open(where)
        if folder.about.id != id:
            raise CheckpointError("is of another run than that of the first node", where / ABOUT)
        return folder

    with home.peers.agreed(opened) as folder:
        if lost and not place.rank:
            logger.warning(f"node {', '.join(lost)}: run.json was gone, and is written anew; the checkpoints fit")
        folder.keep_rows_in(part)
        home.group.barrier()
        yield folder


def open_group(place: Place) -> Group:
    """Makes the group of all processes of the cluster."""
    os.environ |= {"RANK": str(place.rank), **place.environment()}
    group = TorchGroup.from_environment(place.cluster.timeout, place.interface, names(place.cluster))
    tell_agent(MET)
    return group


def _new_task(config: TaskConfig, path: Path, place: Place, notes: Sequence[str]) -> Task:
    if not place.rank:
        RunFolder.check_new(path)
    for key, why in ignored_by_kstep(config):
        raise ConfigError(why, key)
    code_to_train(config)
    task = local.start_task(config, quiet=place.rank > 0)
    task.notes = (*task.notes, *notes)
    return task
