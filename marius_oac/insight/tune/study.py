"""The study of a search: Optuna's storage, sampler and pruner.

The storage is a journal, a file of lines of JSON. Nothing of it is unpickled: CMA-ES, the one sampler of Optuna's that
would unpickle its state, is not offered.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marius_oac.config.space import Choices, Range, SpaceConfig
from marius_oac.errors import InputError, how_to_install
from marius_oac.runtime.files.atomic import disk_errors

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

STUDY = "study.journal"
"""The file of the study."""
NAME = "search"
"""Of the study, in its file."""


class Trials:
    """The trials of a study. One process at a time may make an object or call a method that writes.

    Raises InputError where the file is damaged, or Optuna or what the sampler needs is not installed.
    """

    def __init__(self, path: Path, space: SpaceConfig):
        check_optuna(space)
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            with disk_errors(path):
                _repair(path)
                self._storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            self.study = optuna.create_study(
                storage=self._storage, study_name=NAME, direction="maximize", load_if_exists=True, pruner=_pruner(space)
            )
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise InputError(f"is damaged: {type(error).__name__}: {error}", path) from None
        self._path, self._space = path, space
        self._distributions = {key: _distribution(values) for key, values in space.space.items()}

    def ask(self) -> Trial:
        """A new trial. Its values follow from the seed, its number and the trials before it."""
        self.study.sampler = self._sampler(len(self.all()))
        return self.study.ask(self._distributions)

    def check(self) -> None:
        """Ends a trial whose process was killed before it had all values. Raises InputError where another one has
        values that are not of the space: they may come from a stranger."""
        from optuna.trial import TrialState

        for each in self.all():
            if each.distributions != self._distributions and each.state != TrialState.FAIL:
                if each.state != TrialState.RUNNING:
                    raise InputError(
                        f"is damaged: trial {each.number} has values that are not of the space", self._path
                    )
                self.study.tell(each.number, state=TrialState.FAIL)

    def taken_over(self, number: int) -> Trial:
        """A trial that has not ended, to go on with."""
        from optuna.trial import Trial

        study = self._storage.get_study_id_from_name(NAME)
        return Trial(self.study, self._storage.get_trial_id_from_study_id_trial_number(study, number))

    def all(self) -> list[FrozenTrial]:
        """All, by number."""
        return self.study.get_trials(deepcopy=False)

    def known(self, number: int) -> dict[int, float]:
        """The results of a trial so far, by epoch."""
        return self.all()[number].intermediate_values

    def _sampler(self, number: int) -> BaseSampler:
        from optuna import samplers

        seed = int(np.random.SeedSequence([self._space.seed, number]).generate_state(1)[0])
        if self._space.sampler == "random":
            return samplers.RandomSampler(seed=seed)
        kinds: dict[str, Any] = {"tpe": samplers.TPESampler, "gp": samplers.GPSampler}
        made: BaseSampler = kinds[self._space.sampler](n_startup_trials=self._space.startup, seed=seed)
        return made


def _pruner(space: SpaceConfig) -> BasePruner:
    from optuna import pruners

    kinds = {"median": pruners.MedianPruner, "halving": pruners.SuccessiveHalvingPruner, "none": pruners.NopPruner}
    return kinds[space.pruner]()


def _distribution(values: Choices | Range) -> BaseDistribution:
    from optuna import distributions as kinds

    if isinstance(values, Choices):
        return kinds.CategoricalDistribution(values.choices)
    if values.integers:
        return kinds.IntDistribution(int(values.low), int(values.high), values.log, int(values.step or 1))
    return kinds.FloatDistribution(float(values.low), float(values.high), values.log, values.step)


def check_optuna(space: SpaceConfig) -> None:
    """Raises InputError where Optuna, or what the sampler needs, is not installed."""
    if not find_spec("optuna"):
        raise InputError(f"needs Optuna: {how_to_install('tune')}", "tune")
    if space.sampler == "gp" and not find_spec("scipy"):
        raise InputError("needs scipy: pip install scipy", "sampler: gp")


def _repair(path: Path) -> None:
    """Cuts off a last line without an end, which a full disk leaves."""
    if path.exists():
        with open(path, "rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
