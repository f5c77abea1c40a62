"""Which values a trial tries, and whether it goes on: Optuna's samplers and pruners over what is known of all trials.

Nothing is kept between two questions: a study is made of the trials each time. So a search that was killed asks what it
would have asked, and with one trial at a time it tries the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from marius_oac.config.space import Choices, Range, SpaceConfig, Value
from marius_oac.errors import InputError, how_to_install
from marius_oac.training.tune.trials import Trial

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial

ENOUGH_TRIALS = 20
"""Complete trials, from which on it is said which settings matter."""
_AMONG_BEST = 5
"""As many of them are the best that others are compared with, at least: what PED-ANOVA asks for."""
_NEEDS = {"gp": "scipy", "cmaes": "cmaes"}


class Sampling:
    """Asks Optuna. Raises InputError where it, or what the sampler needs, is not installed."""

    def __init__(self, space: SpaceConfig):
        try:
            import optuna
        except ImportError:
            raise InputError(f"needs Optuna: {how_to_install('tune')}", "tune") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._space = optuna, space
        self._distributions = {key: self._distribution(values) for key, values in space.space.items()}
        package = _NEEDS.get(space.sampler)
        if package and not find_spec(package):
            raise InputError(f"needs {package}: pip install {package}", f"sampler: {space.sampler}")

    def next_values(self, trials: Sequence[Trial]) -> dict[str, Value | None]:
        """The values of the trial that follows all these."""
        study = self._study(trials)
        study.sampler = self._sampler(len(trials))
        return dict(study.ask(self._distributions).params)

    def pruned(self, trial: Trial, trials: Sequence[Trial], judged: int, epochs: int) -> Trial:
        """A trial as it is if it is stopped at the first evaluation at which the others say so; itself if at none.

        It does not hang on when one looks: what came after that evaluation is forgotten.

        Args:
            trials: all.
            judged: so many evaluations were found good enough before.
            epochs: of a whole run; the evaluation after the last stops nothing any more.
        """
        study = self._study([each for each in trials if each.number != trial.number])
        for count in range(judged + 1, len(trial.curve) + 1):
            so_far = trial.model_copy(update={"curve": trial.curve[:count]})
            if trial.curve[count - 1][0] < epochs and self._pruner().prune(study, self._frozen(so_far)):
                return so_far.model_copy(update={"state": "pruned"})
        return trial

    def importances(self, trials: Sequence[Trial]) -> dict[str, float]:
        """Shares of one: how much hangs on each key, the largest first. Empty where too few trials are complete.

        They are the same each time: PED-ANOVA draws nothing.
        """
        complete = [trial for trial in trials if trial.value is not None]
        if len(complete) < ENOUGH_TRIALS or len(self._distributions) < 2:
            return {}
        importance = self._optuna.importance
        best = max(0.1, _AMONG_BEST / len(complete))
        evaluator = importance.PedAnovaImportanceEvaluator(target_quantile=best)
        found = importance.get_param_importances(self._study(complete), evaluator=evaluator)
        return {key: float(share) for key, share in sorted(found.items(), key=lambda each: (-each[1], each[0]))}

    def _study(self, trials: Sequence[Trial]) -> Study:
        study = self._optuna.create_study(direction="maximize")
        study.add_trials([self._frozen(trial) for trial in trials])
        return study

    def _frozen(self, trial: Trial) -> FrozenTrial:
        states = self._optuna.trial.TrialState
        state = {"running": states.RUNNING, "complete": states.COMPLETE, "pruned": states.PRUNED,
                 "failed": states.FAIL}[trial.state]  # fmt: skip
        return self._optuna.trial.create_trial(
            state=state,
            value=trial.value,
            params=trial.values,
            distributions=self._distributions,
            intermediate_values=dict(trial.curve),
        )

    def _distribution(self, values: Choices | Range) -> BaseDistribution:
        kinds = self._optuna.distributions
        if isinstance(values, Choices):
            return kinds.CategoricalDistribution(values.choices)
        if values.integers:
            return kinds.IntDistribution(int(values.low), int(values.high), values.log, int(values.step or 1))
        return kinds.FloatDistribution(float(values.low), float(values.high), values.log, values.step)

    def _sampler(self, number: int) -> BaseSampler:
        seed = int(np.random.SeedSequence([self._space.seed, number]).generate_state(1)[0])
        kinds, startup = self._optuna.samplers, self._space.startup
        make: dict[str, Any] = {
            "tpe": lambda: kinds.TPESampler(n_startup_trials=startup, seed=seed),
            "gp": lambda: kinds.GPSampler(n_startup_trials=startup, seed=seed),
            "cmaes": lambda: kinds.CmaEsSampler(n_startup_trials=startup, seed=seed),
            "random": lambda: kinds.RandomSampler(seed=seed),
        }
        return make[self._space.sampler]()

    def _pruner(self) -> BasePruner:
        kinds = self._optuna.pruners
        return {"median": kinds.MedianPruner, "halving": kinds.SuccessiveHalvingPruner, "none": kinds.NopPruner}[
            self._space.pruner
        ]()
