"""A search: trials are chosen by Optuna, trained as runs, stopped early, and told of, until there are as many as asked
for.

Guarantees:
- Several processes may search in one folder. A trial belongs to the process that has locked its file; the system
  unlocks it when the process ends, however it ends, and the next process that looks for a trial goes on with it.
- The study is written to under the lock of the folder, by one process at a time.
- With one process, the trials are those of a search that was never stopped or killed.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from marius_oac.config.space import SpaceConfig, at, written
from marius_oac.config.task import TaskConfig, load_config
from marius_oac.errors import (
    CallbackError,
    CheckpointError,
    ConfigError,
    InputError,
    Interrupted,
    MariusOacError,
    shown,
)
from marius_oac.insight.tune.results import FIRST, Outcome, check_failures, line_of, ranked, tested, told
from marius_oac.insight.tune.study import STUDY, Trials, check_optuna
from marius_oac.runs.callbacks import Callbacks
from marius_oac.runs.folder.about import differences
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.metrics import MetricsFile
from marius_oac.runtime.command import failure_of_machine
from marius_oac.runtime.console import say
from marius_oac.runtime.files.atomic import (
    check_no_link,
    check_place,
    disk_errors,
    make_folder,
    open_own,
    remove_file,
    write_atomically,
)
from marius_oac.tasks.registry import entry_of
from marius_oac.training.local import resume, train
from marius_oac.types import present

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

_SHARED = "shared"  # attribute of the study: the config and the space of all trials


@dataclass(frozen=True)
class TuneRequest:
    """What a user asks for.

    Attributes:
        config: path of the YAML file that all trials share.
        space: path of the file of `SpaceConfig`.
        overrides: `key=value` for all trials.
        trials: how many there will be in all, those that are there included.
        out: folder of the search; default: `tune/` and the config's name.
        keep: whether all runs are kept, not only the best.
    """

    config: Path
    space: Path
    overrides: tuple[str, ...] = ()
    trials: int = 50
    out: Path | None = None
    keep: bool = False


def tune(request: TuneRequest) -> Outcome:
    """Searches, or goes on with a search, also one in which other processes search.

    Raises:
        InputError: config, space or folder are wrong, Optuna is missing, or no trial has a result.
        Interrupted: Ctrl-C; the trial's run has written a checkpoint, and the same call goes on.
    """
    config = load_config(request.config, request.overrides)
    space = SpaceConfig.load(request.space, request.config, request.overrides)
    if not config.evaluation.every:
        raise ConfigError("is 0, and trials are compared by validation", "evaluation.every")
    config = entry_of(config).decided(config)
    folder = request.out or Path("tune") / request.config.stem
    check_optuna(space)
    _make(folder)
    shared = {"config": config.model_dump(mode="json"), "space": space.model_dump(mode="json")}
    search = Search(request, folder, space, config.decisive_metric)
    try:
        search.check(shared)
        while (trial := search.next()) is not None:
            search.run(trial)
        return search.outcome()
    finally:
        search.let_go()


def _make(folder: Path) -> None:
    """Makes the folder. Raises InputError where it is there and is something else."""
    check_place(folder)
    with disk_errors(folder):
        if folder.exists() and not (folder / STUDY).is_file() and any(folder.iterdir()):
            raise InputError("exists already, and is no search; choose another --out", folder)
        for path in (folder, folder / "runs"):
            check_no_link(path, folder.parent)
            make_folder(path)
    check_no_link(folder / STUDY)


class _Pruned(MariusOacError):
    """The others' results say that a trial should stop."""


class Search:
    """The part that this process has in the search of a folder."""

    def __init__(self, request: TuneRequest, folder: Path, space: SpaceConfig, metric: str):
        self._request, self._folder, self._metric = request, folder, metric
        self._held: int | None = None  # the lock of the trial that runs
        with self._alone():
            self._trials = Trials(folder / STUDY, space)

    def check(self, shared: dict[str, Any]) -> None:
        """Raises InputError where the search was begun with other settings."""
        study = self._trials.study
        with self._alone():
            if _SHARED not in study.user_attrs:
                study.set_user_attr(_SHARED, shared)
        for key, before, now in differences(study.user_attrs[_SHARED], shared):
            raise InputError(
                f"was begun with {key} {shown(before)}, and now it is {shown(now)}; choose another --out", self._folder
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within the block no other process writes to the study."""
        lock = present(_locked(self._folder / ".lock", wait=True))
        try:
            yield
        finally:
            os.close(lock)

    def next(self) -> Trial | None:
        """The next trial for this process: one whose process has ended, or a new one. None: there is none."""
        with self._alone():
            self._trials.check()
            trials = self._trials.all()
            for each in trials:
                if each.state.name == "RUNNING" and self._take(each.number):
                    say(f"{self._folder}: goes on with trial {each.number} of {self._request.trials}")
                    return self._trials.taken_over(each.number)
            if len(trials) >= self._request.trials:
                return None
            trial = self._trials.ask()
            self._take(trial.number)
            return trial

    def _take(self, number: int) -> bool:
        """Whether this process now holds a trial, and not another one."""
        self._held = _locked(self._lock(number), wait=False)
        return self._held is not None

    def let_go(self) -> None:
        """Leaves the trial that this process holds, if any, to others."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _lock(self, number: int) -> Path:
        return self._run(number).with_suffix(".lock")

    def _run(self, number: int) -> Path:
        return self._folder / "runs" / f"{number:04d}"

    def run(self, trial: Trial) -> None:
        """Trains a trial to its end, and writes its result."""
        state, value, why = "COMPLETE", None, ""
        try:
            config = at(trial.params, self._request.config, self._request.overrides)
            self._train(trial, config)
            value = self._result(trial, config)
        except _Pruned:
            state = "PRUNED"
        except Interrupted as error:
            raise Interrupted("stopped; the same command goes on", error.exit_code - 128) from None
        except CallbackError as error:  # the evaluation could not be kept
            raise error.__cause__ or error from None
        except Exception as error:
            known = error if isinstance(error, MariusOacError) and error.exit_code == 2 else failure_of_machine(error)
            if known is None:
                raise
            state, why = "FAIL", str(known)
        gc.collect()
        torch.cuda.empty_cache()  # the next trial plans by the memory that is free
        self._end(trial, state, value, why)

    def _train(self, trial: Trial, config: TaskConfig) -> None:
        """Trains the run of a trial, or goes on with it. Raises _Pruned where it is to be stopped early."""
        out = self._run(trial.number)
        hear = Callbacks(on_evaluation=lambda line: self._judge(trial, line, config.training.epochs))
        if out.exists():
            for line in MetricsFile(out).lines():  # of which a process that was killed may have told nobody
                hear.line(line)
            try:
                resume(out, callbacks=hear)
                return
            except CheckpointError:  # it was killed before its first checkpoint
                self._remove_run(trial.number)
        train(config, out, callbacks=hear)

    def _judge(self, trial: Trial, line: Mapping[str, Any], epochs: int) -> None:
        """Passes on an evaluation. Raises _Pruned where the others were better; after the last epoch that saves
        nothing."""
        value, epoch = line.get(self._metric), line["epoch"] + 1
        if line["split"] != "valid" or value is None:
            return
        if epoch not in self._trials.known(trial.number):
            with self._alone():
                trial.report(value, epoch)
        if epoch < epochs and trial.should_prune():
            raise _Pruned

    def _result(self, trial: Trial, config: TaskConfig) -> float:
        """The metric on valid of the checkpoint that is the run's result. Keeps the metrics on test with the trial."""
        summary, known = RunFolder.open(self._run(trial.number)).summary(), self._trials.known(trial.number)
        if not known:
            raise InputError(f"no evaluation had a {self._metric}")
        test = {key: value for key, value in summary.items() if key.startswith("test.") and value is not None}
        with self._alone():
            trial.set_user_attr("test", test)
        return float(summary[f"valid.{self._metric}"]) if config.training.early_stopping else known[max(known)]

    def _end(self, trial: Trial, state: str, value: float | None, why: str) -> None:
        """A trial is over: writes and tells it; of the runs that have ended only the best one's stays."""
        from optuna.trial import TrialState

        with self._alone():
            trial.set_user_attr("why", why)
            self._trials.study.tell(trial, value, TrialState[state])
            trials = self._trials.all()
            best = next(iter(ranked(trials)), None)
            if best is not None and best.number == trial.number:
                self._write_best(trials)
            self._clean(trials, best)
            self.let_go()
        ended = sum(each.state.is_finished() for each in trials)
        say(f"{ended} of {self._request.trials}: {line_of(trials[trial.number], best, self._metric)}")
        if ended == FIRST:
            check_failures(trials)

    def _clean(self, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> None:
        """Removes what trials that are over need no more, also those whose process was killed as it did so."""
        for each in trials:
            if each.state.is_finished():
                remove_file(self._lock(each.number))
                if each is not best and not self._request.keep:
                    self._remove_run(each.number)

    def _remove_run(self, number: int) -> None:
        path = self._run(number)
        check_no_link(path, self._folder)
        with disk_errors(path):
            if path.exists():
                shutil.rmtree(path)

    def outcome(self) -> Outcome:
        """What was found, and `best.yaml`. Raises InputError where no trial is complete."""
        with self._alone():
            trials = self._trials.all()
            check_failures(trials)
            best = self._write_best(trials)
            self._clean(trials, best)
        return Outcome(self._folder, self._run(best.number), trials, self._metric)

    def _write_best(self, trials: Sequence[FrozenTrial]) -> FrozenTrial:
        if not (found := ranked(trials)):
            raise InputError("no trial is complete", self._folder)
        best = found[0]
        about = (
            f"Trial {best.number} of {len(trials)}: valid {self._metric} {best.value:.4f}, on test {tested(best)}.\n"
            f"Made by: marius-oac tune {self._request.config} --space {self._request.space}\n"
            f"Chosen: {told(best.params)}"
        )
        config = at(best.params, self._request.config, self._request.overrides)
        write_atomically(self._folder / "best.yaml", written(config, about))
        return best


def _locked(path: Path, wait: bool) -> int | None:
    """A descriptor that holds the lock of a file; None where another process holds it and this one does not wait."""
    with disk_errors(path):
        lock = open_own(path, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
    return lock
