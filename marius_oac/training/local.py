"""Training on one machine: build, run, close. `train(config) -> Run` and `resume(run) -> Run` are the Python
interface."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marius_oac.config.base import BaseConfig
from marius_oac.config.idle import idle_settings
from marius_oac.config.task import TaskConfig, kernel_groups
from marius_oac.data.logs.run_log import RunLog
from marius_oac.errors import InputError, Interrupted
from marius_oac.evaluation.metrics import metric_text
from marius_oac.kernels import ahead
from marius_oac.models.compute.user_code import named_code
from marius_oac.pipeline.stages import Probe
from marius_oac.runs.arithmetic import Arithmetic
from marius_oac.runs.callbacks import NO_CALLBACKS, Callbacks
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import RunPlaces
from marius_oac.runs.folder.user_code import code_to_resume, code_to_train
from marius_oac.runs.home import Home
from marius_oac.runs.loop import TrainingLoop
from marius_oac.runs.memory.plan import MemoryPlan, return_freed_memory
from marius_oac.runs.session import Session, pick_device
from marius_oac.runs.stores import check_places
from marius_oac.runs.task import Task
from marius_oac.runs.tracking.trackers import check_trackers, tracking
from marius_oac.runtime.console import logger
from marius_oac.runtime.resuming import resume_command
from marius_oac.runtime.signals import signal_behind
from marius_oac.runtime.standstill import watched
from marius_oac.tasks.registry import entry_of
from marius_oac.training import products
from marius_oac.training.precision import check_precision


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and its summary (the keys of `summary.json`)."""

    path: Path
    summary: dict[str, Any]

    def __str__(self) -> str:
        keys = ("valid.filtered.mrr", "test.filtered.mrr", "test.filtered.hits@1", "test.filtered.hits@3",
                "test.filtered.hits@10", "valid.mrr", "test.mrr", "test.hits@1", "test.hits@3", "test.hits@10",
                "valid.hits@20", "test.hits@20", "valid.hits@50", "test.hits@50", "valid.hits@100", "test.hits@100",
                "training.epochs", "training.seconds", "training.examples_per_second",
                "test.accuracy", "valid.accuracy", "test.auc", "test.log_loss",
                "valid.auc", "progressive.auc", "progressive.log_loss", "progressive.examples",
                "training.lost_updates", "ordering.bytes_read_per_epoch",
                "disk.bytes_read", "disk.bytes_written", "packing.heaviest_by_hash", "packing.heaviest",
                "memory.peak_rss_bytes")  # fmt: skip
        lines = [f"{self.path}: done"]
        for key in keys:
            if key in self.summary:
                lines.append(f"  {key:<32}{metric_text(key, self.summary[key])}")
        return "\n".join(lines)


def train(
    config: TaskConfig,
    out: str | Path | None = None,
    *,
    trace: bool = False,
    callbacks: Callbacks = NO_CALLBACKS,
    probe: Probe | None = None,
) -> Run:
    """Trains from scratch into a new run folder.

    Args:
        config: what to train; `Config.load` reads it from YAML, `Config.build` from a dict.
        out: the run's folder, which must not exist (default: `runs/` and the graph's name).
        trace: also write `trace.json`, one track per worker, for ui.perfetto.dev.
        callbacks: functions of your own that are called after batches, epochs, evaluations and checkpoints.
        probe: called with (stage, batch) before each stage of each batch, for tests.

    Raises:
        CallbackError: a callback has failed; the run can be resumed.
        InputError: config, graph or folder are wrong; nothing was written. Or the disk is full: what was written before
            stays, and the run can be resumed.
        DivergedError: the loss became NaN or infinite; the last good checkpoint is kept.
        Interrupted: Ctrl-C; a checkpoint of that moment was written, unless it came twice.
    """
    if not isinstance(config, BaseConfig):
        kind = type(config).__name__
        raise InputError(f"a Config is needed, such as Config.load('config.yaml') makes, not {kind}", "config")
    path = Path(out) if out else Path("runs") / entry_of(config).default_name(config)
    RunFolder.check_new(path)
    code_to_train(config)
    with watched(config.stall_after), ahead.compiling(kernel_groups(config)):
        task = start_task(config)
        library, notes = products.chosen(task.config)
        task.config = task.config.with_products(library)
        task.notes = (*task.notes, *idle_settings(task.config), *notes)
        home = Home(task)
        check_home(home, path)
        with RunFolder.create(path, task.config, task.fingerprint, task.run_files()) as folder:
            run(home, folder, trace, probe, callbacks=callbacks)
    return open_run(path)


def resume(
    path: str | Path,
    overrides: Iterable[str] = (),
    *,
    data: Sequence[str] = (),
    data_path: str | Path | None = None,
    checkpoint: str | None = None,
    trace: bool = False,
    trust: bool = False,
    callbacks: Callbacks = NO_CALLBACKS,
    probe: Probe | None = None,
) -> Run:
    """Continues from the newest checkpoint of a run, or from the one named; in plan order to the same bits.

    Checkpoints later than the named one are removed, as training continues from there; "start" names the beginning. A
    run that has ended is left as it is, unless more epochs or data are asked for.

    Args:
        overrides: `key=value` changes of what a resumed run may change (`training.epochs`, metrics, workers, ...).
        data: files or patterns of a click log to train on after those that the run has.
        data_path: where the data lies now: the graph's folder, or one that holds the files of the log.
        trust: run the run's own code also where this user has not trained with it; then it is known.

    Raises:
        CheckpointError: no run, a damaged checkpoint, another graph, config or version.
        InputError: the run has code that is not trusted, or a file or a row of `data` is wrong; nothing has changed.
    """
    with RunFolder.open(path) as folder, ExitStack() as stack:
        if folder.over_nodes:
            raise InputError("the run was trained over nodes; it goes on with --nodes FILE, or --local-nodes N", path)
        places = RunPlaces(folder, data_path)
        folder.config = places.config()
        data = places.given(data)
        config = places.changed(with_data(folder.config.replace(*overrides), data))
        config = products.kept(config, folder.config)
        config = code_to_resume(config, folder.path, trust)
        stack.enter_context(watched(config.stall_after))
        log = log_of(folder, places)
        task = entry_of(config).resume(config, log, data)
        folder.check_resumable(config, task.fingerprint)
        if checkpoint is None and not data and has_ended(folder, task):
            epochs = folder.summary()["training.epochs"]
            logger.info(f"{path}: has ended after {epochs} epochs; for more: --set training.epochs=N")
            return open_run(path)
        stack.enter_context(ahead.compiling(kernel_groups(config)))
        known = idle_settings(folder.config)
        task.notes = tuple(note for note in idle_settings(config) if note not in known)
        home = Home(task)
        check_home(home, folder.path)
        if log and data:  # before anything is written: a run with a bad row in its log could not continue
            home.check_new_data(len(log.files))
        run(home, folder, trace, probe, lambda loop: loop.restore(checkpoint), callbacks)
    return open_run(path)


def has_ended(folder: RunFolder, task: Task) -> bool:
    """Returns whether the run has ended, and this task would not train it any further."""
    summary, before, config = folder.summary(), folder.config, task.config
    if not summary:
        return False
    if task.schedule.last <= summary["training.batches"]:
        return True
    same_rule = config.training.early_stopping == before.training.early_stopping
    return summary["training.stopped_early"] and same_rule and config.evaluation == before.evaluation


def start_task(config: TaskConfig, quiet: bool = False) -> Task:
    """Makes the task of a new run, with its data. Defaults that depend on the data are filled in; unless `quiet`, the
    task's notes say which."""
    task, notes = entry_of(config).start(config)
    task.notes = () if quiet else tuple(notes)
    return task


def log_of(folder: RunFolder, places: RunPlaces) -> RunLog | None:
    """Reads the log of a run, with the present paths of its files; None if its data can't grow."""
    if not folder.config.data_grows:
        return None
    return places.log(RunLog.read(folder.path))


def with_data(config: TaskConfig, data: Sequence[str]) -> TaskConfig:
    """Adds files to train on to the configuration of a run."""
    if not data:
        return config
    if not config.data_grows:
        raise InputError("a run on a graph takes no more data; only one on a click log does", "--data")
    return config.replace(f"data.train={json.dumps([*config.train_files, *data])}")


def check_home(home: Home, path: Path) -> None:
    """Raises InputError if a run can't start; prints the task's notes and the memory plan."""
    check_precision(home.config, pick_device(home.config.device))
    home.check()
    for note in home.task.notes:
        logger.warning(note)
    return_freed_memory()
    home.memory_plan = plan_memory(home, path)
    home.memory_plan.announce()
    check_places(home.config.storage)
    if home.peers.leads:
        check_trackers(home.config.trackers)


def plan_memory(home: Home, path: Path) -> MemoryPlan:
    """The memory plan of a run. Where `pipeline.in_flight` is `auto` and memory is short, halves the task's
    `pipeline.most_in_flight` until the plan fits, or there is no less."""
    while True:
        pipeline = home.config.pipeline
        less = pipeline.room // 2 if pipeline.in_flight == "auto" else 0
        try:
            plan = home.plan_memory(path)
            if less:
                plan.check()
            return plan
        except InputError:
            if not less:
                raise
            home.task.config = home.config.replace(f"pipeline.most_in_flight={less}")


def run(
    home: Home,
    folder: RunFolder,
    trace: bool,
    probe: Probe | None,
    prepare: Callable[[TrainingLoop], None] = lambda loop: None,
    callbacks: Callbacks = NO_CALLBACKS,
) -> None:
    """Trains to the end; `prepare` is called with the training loop first."""
    task, peers = home.task, home.peers
    try:
        task.use_folder(folder.rows)
        with Session(task, folder.new_trace() if trace else None, probe, home) as session:
            loop = TrainingLoop(session, folder, callbacks)
            prepare(loop)
            session.initialize()
            folder.write_config(task.config, task.run_files())
            ahead.wait()
            note_arithmetic(session, folder)
            with tracking(task.config.trackers if peers.leads else (), folder, loop.position.batch_index):
                loop.run()
            peers.wait()
    except Interrupted:
        raise
    except BaseException as error:
        number = signal_behind(error)  # that came before the loop handled signals, or was a second one
        if number is None:
            raise
        raise Interrupted(f"stopped; go on with: {resume_command(folder.path)}", number) from None


def note_arithmetic(session: Session, folder: RunFolder) -> None:
    """Compares what decides this process's last bits with that of the run's beginning, and with the first process's.
    Collective."""
    task, peers = session.task, session.home.peers
    known = session.device.type == "cpu" and not named_code(task.config)
    here = Arithmetic.here(
        task.config.compute, session.threads, task.sample(session.device, session.threads) if known else None
    )
    first, *others = (Arithmetic(**told) for told in peers.gather(here.model_dump()))
    if peers.leads:
        for rank, other in enumerate(others, 1):
            if not other.computes_as(first):
                logger.warning(
                    f"other bits are to be expected of process {rank} than of the first ({other.unlike(first)}): "
                    "bits depend on which process trains what"
                )
    folder.note_arithmetic(here)


def open_run(path: str | Path) -> Run:
    """Opens a run that has been trained before; its `summary` is empty if it never ended."""
    folder = RunFolder.open(path)
    return Run(folder.path, folder.summary())
