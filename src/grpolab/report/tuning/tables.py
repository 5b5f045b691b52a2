"""Tables of a tuning: what each arm was given and where it went, and every trial."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from grpolab.report.tables import Table
from grpolab.report.text import NONE, number, percent
from grpolab.report.tuning.trials import COMPLETE, DIVERGED, FAILED, PRUNED, Tuning

_ENDED = (COMPLETE, PRUNED, DIVERGED)  # a failed trial is made up for, so it is no part of the budget


def budget(tuning: Tuning) -> Table:
    """Per arm: its trials by how they ended, whether it got the budget, and the optimiser steps that pruning saved."""
    rows = [_budget_of(tuning, arm) for arm in tuning.arms]
    numbers = pd.DataFrame(rows)
    asked = tuning.document["trials_per_arm"]
    shown = numbers[["arm"]].assign(
        **{"trials": [f"{row.trials} of {asked}" for row in numbers.itertuples()]},
        **{state: numbers[state] for state in (COMPLETE, PRUNED, DIVERGED, FAILED)},
        **{"pruned share": [percent(share) for share in numbers["pruned_share"]]},
        **{"optimiser steps": [f"{row.decided:,} of {row.full:,}" for row in numbers.itertuples()]},
        **{"saved": [percent(share) for share in numbers["saved"]]},
        **{"best trial": [NONE if np.isnan(best) else f"{best:.0f}" for best in numbers["best"]]},
        **{tuning.objectives[0]: [number(score) for score in numbers["score"]]},
    )
    caption = (
        f"{tuning.study}: {asked} trials for every arm ({tuning.document['sampler']['name']}, pruner"
        f" {tuning.document['pruner']['name']}). `saved`: optimiser steps after a trial was decided, of those that"
        " its seeds would have taken."
    )
    return Table("tuning_budget", caption, numbers, shown)


def _budget_of(tuning: Tuning, arm: str) -> dict[str, Any]:
    ended = tuning.of(arm, *_ENDED)
    full, decided = int(ended["full"].sum()), int(ended["decided"].sum())
    best, metric = tuning.best(arm)[:1], tuning.objectives[0]
    done = tuning.scored(arm, metric)
    return {
        **{"arm": arm, "trials": len(ended), "asked": tuning.document["trials_per_arm"]},
        **{state: len(tuning.of(arm, state)) for state in (COMPLETE, PRUNED, DIVERGED, FAILED)},
        "pruned_share": len(tuning.of(arm, PRUNED)) / len(ended) if len(ended) else np.nan,
        **{"full": full, "decided": decided, "run": int(ended["run"].sum())},
        "saved": 1 - decided / full if full else np.nan,
        "best": best[0] if best else np.nan,
        "score": done.loc[done["number"].isin(best), "score"].mean(),
    }


def trials(tuning: Tuning) -> Table:
    """Every trial: its values, scores and end."""
    names, stars = [key.name for key in tuning.all_keys()], {arm: tuning.best(arm) for arm in tuning.arms}
    rows, shown = [], []
    for trial in tuning.trials.itertuples():
        plain = {"arm": trial.arm, "trial": trial.number}
        values = {name: trial.values.get(name) for name in names}
        scores = {metric: trial.scores.get(metric, np.nan) for metric in tuning.objectives}
        rows.append(plain | values | scores | {"state": trial.state, "reason": trial.reason, "steps": trial.decided})
        best = " (best)" if trial.number in stars[trial.arm][:1] else ""
        shown.append(
            plain
            | {name: NONE if value is None else _value(value) for name, value in values.items()}
            | {metric: number(score) for metric, score in scores.items()}
            | {"state": trial.state + best, "reason": trial.reason or NONE, "optimiser steps": f"{trial.decided:,}"}
        )
    columns = ["arm", "trial", *names, *tuning.objectives, "state", "reason"]
    caption = f"{tuning.study}: every trial; scores are means over the tuning seeds."
    return Table(
        "tuning_trials",
        caption,
        pd.DataFrame(rows, columns=[*columns, "steps"]),
        pd.DataFrame(shown, columns=[*columns, "optimiser steps"]),
    )


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
