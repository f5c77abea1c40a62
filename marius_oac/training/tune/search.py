"""A search: trials are started, watched, pruned and told of, until there are as many as asked for."""

from __future__ import annotations

import os
from pathlib import Path

from marius_oac.config.space import SpaceConfig, at, override
from marius_oac.config.task import load_config
from marius_oac.errors import ConfigError, InputError, MariusOacError
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runtime.console import say
from marius_oac.tasks.registry import entry_of
from marius_oac.training.tune.processes import Processes, Running
from marius_oac.training.tune.request import TuneRequest
from marius_oac.training.tune.results import Outcome, best_of, write_results
from marius_oac.training.tune.sampling import Sampling
from marius_oac.training.tune.trials import Trial, TrialsFolder

FIRST = 5
"""If as many trials fail at the beginning, the search ends: it is not their values."""


def tune(request: TuneRequest) -> Outcome:
    """Searches, or goes on with a search.

    Raises:
        InputError: config, space or folder are wrong, Optuna is missing, or no trial has a result.
        StopSignal: Ctrl-C; running trials have written a checkpoint, and the same call goes on.
    """
    config = load_config(request.config, request.overrides)
    space = SpaceConfig.load(request.space, request.config, request.overrides)
    cores = len(os.sched_getaffinity(0))
    if request.jobs > cores:
        raise InputError(f"{request.jobs} trials at once, and there are {cores} cores", "--jobs")
    if not config.evaluation.every:
        raise ConfigError("is 0, and trials are compared by validation", "evaluation.every")
    config = entry_of(config).decided(config)
    sampling = Sampling(space)
    folder = TrialsFolder(request.out or Path("tune") / request.config.stem)
    shared = {"config": config.model_dump(mode="json"), "space": space.model_dump(mode="json")}
    with folder.locked(shared):
        return Search(request, folder, sampling, config.decisive_metric).run()


class Search:
    """The trials of a folder that this process holds."""

    def __init__(self, request: TuneRequest, folder: TrialsFolder, sampling: Sampling, metric: str):
        self._request, self._folder, self._sampling, self._metric = request, folder, sampling, metric
        self._trials = folder.trials()
        self._epochs = dict[int, int]()
        self._waiting = [trial for trial in self._trials if trial.state == "running"]

    def run(self) -> Outcome:
        """Until all trials have ended."""
        if self._trials:
            done = len(self._trials) - len(self._waiting)
            say(f"{self._folder.path}: goes on after {done} of {self._request.trials} trials")
        with Processes(self._folder, self._metric, self._request.jobs) as processes:
            while self._left() or processes.running:
                while self._left() and processes.room():
                    self._begin(processes)
                if processes.running:
                    ended, news = processes.wait()
                    for each in news:
                        self._heard(each)
                    for each in ended:
                        self._ended(each)
        self._say_why_not()
        return write_results(self._folder, self._request, self._trials, self._metric)

    def _left(self) -> bool:
        return bool(self._waiting) or len(self._trials) < self._request.trials

    def _begin(self, processes: Processes) -> None:
        """Starts the next trial. Where its values don't go together it has failed."""
        if self._waiting:
            trial = self._waiting.pop(0)
        else:
            trial = Trial(number=len(self._trials), values=self._sampling.next_values(self._trials))
            self._trials.append(trial)
        overrides = (*self._request.overrides, *(override(key, value) for key, value in trial.values.items()))
        try:
            config = at(trial.values, self._request.config, self._request.overrides)
        except ConfigError as error:
            self._keep(trial.model_copy(update={"state": "failed", "why": str(error)}))
            return
        self._epochs[trial.number] = config.training.epochs
        self._folder.write(trial)
        processes.start(trial, str(self._request.config), overrides)

    def _heard(self, one: Running) -> None:
        """A trial has new evaluations: it may be stopped."""
        if one.stopped is None:
            number = one.trial.number
            judged = len(self._trials[number].curve)
            trial = self._sampling.pruned(one.trial, self._trials, judged, self._epochs[number])
            if trial.state == "running":
                self._trials[number] = trial
                self._folder.write(trial)
            else:
                one.stopped = trial
                one.stop()

    def _ended(self, one: Running) -> None:
        """A process has ended."""
        self._heard(one)
        code, log = one.process.returncode, self._folder.file(one.trial.number, "log")
        trial = (one.stopped or one.trial).model_copy(update={"seconds": one.seconds})
        if one.stopped:
            self._keep(trial)
        elif code == 0:
            self._keep(self._with_result(trial))
        elif code == 2 or code < 0:
            why = _last_line(log) if code == 2 else f"was killed by signal {-code}; there may be too little memory"
            self._keep(trial.model_copy(update={"state": "failed", "why": why}))
        else:
            what = "was stopped by a signal" if code > 128 else "has ended with a defect"
            raise MariusOacError(f"trial {trial.number} {what}, see {log}; the same command goes on")

    def _with_result(self, trial: Trial) -> Trial:
        """A trial whose run has ended: by the checkpoint that is its result."""
        run = RunFolder.open(self._folder.run(trial.number))
        summary = run.summary()
        value = summary[f"valid.{self._metric}"] if run.config.training.early_stopping else trial.curve[-1][1]
        test = {key: float(value) for key, value in summary.items() if key.startswith("test.") and value is not None}
        return trial.model_copy(update={"state": "complete", "value": value, "test": test})

    def _keep(self, trial: Trial) -> None:
        """A trial is over: writes and tells it; only the best one's run stays."""
        before = best_of(self._trials)
        self._trials[trial.number] = trial
        self._folder.write(trial)
        best = best_of(self._trials)
        if best is not before and best is not None:
            write_results(self._folder, self._request, self._trials, self._metric)
        if not self._request.keep:
            for each in {trial.number, before.number if before else trial.number}:
                if best is None or each != best.number:
                    self._folder.remove_run(each)
        ended = sum(each.state != "running" for each in self._trials)
        say(f"{ended} of {self._request.trials}: {_line(trial, best, self._metric)}")
        if len(self._trials) == FIRST:
            self._say_why_not(FIRST)

    def _say_why_not(self, first: int | None = None) -> None:
        """Raises InputError where none of the trials, or of the first ones, has anything to show."""
        failed = [trial for trial in self._trials[:first] if trial.state == "failed"]
        if len(failed) == len(self._trials[:first]):
            raise InputError(f"all of the first {len(failed)} trials failed; the last: {failed[-1].why}", "tune")


def _line(trial: Trial, best: Trial | None, metric: str) -> str:
    if trial.value is not None:
        what = f"valid {metric} {trial.value:.4f}"
    elif trial.state == "pruned":
        what = f"stopped after epoch {trial.curve[-1][0]}, valid {metric} {trial.curve[-1][1]:.4f}"
    else:
        what = f"failed: {trial.why}"
    known = f" (best: {best.value:.4f}, trial {best.number})" if best and best.number != trial.number else ""
    known = known or (" (best so far)" if best else "")
    return f"trial {trial.number}: {what}{known}, {trial.seconds:.0f} s: {trial.told()}"


def _last_line(log: Path) -> str:
    with open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("marius-oac tune: ") if lines else "its process said nothing"
