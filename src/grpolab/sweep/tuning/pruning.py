"""When a trial is given up. Steps are rollout steps, those of a trial's seeds one after the other.

What is reported is the mean of the last evaluations, and it is the *current* one that is compared: by the best so far
(as Optuna's median compares) a run that collapses would never be given up.
"""

from __future__ import annotations

import statistics

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner, WilcoxonPruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from grpolab.sweep.tuning.settings import Pruner

WATCHED = "eval/accuracy_expected"  # every task measures it, and where one answer is right without sampling noise


class CurrentMedianPruner(BasePruner):
    """Below the median that finished trials had at the same step."""

    def __init__(self, startup_trials: int) -> None:
        self._startup_trials = startup_trials

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether the trial is to be given up at its last step."""
        step = trial.last_step
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        values = [one.intermediate_values[step] for one in finished if step in one.intermediate_values]
        if step is None or len(values) < self._startup_trials:
            return False
        current, median = trial.intermediate_values[step], statistics.median(values)
        return current < median if study.direction == StudyDirection.MAXIMIZE else current > median


def pruner(asked: Pruner, first: int, last: int) -> BasePruner:
    """The pruner of trials that are first judged at step `first` and end at `last`."""
    if asked.name == "median":
        return CurrentMedianPruner(asked.startup_trials)
    if asked.name == "asha":
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=asked.factor)
    if asked.name == "hyperband":
        return HyperbandPruner(min_resource=first, max_resource=last, reduction_factor=asked.factor)
    return WilcoxonPruner(p_threshold=asked.p) if asked.name == "wilcoxon" else NopPruner()
