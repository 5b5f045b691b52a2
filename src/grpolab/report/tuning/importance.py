"""Which key the score depends on: fANOVA (Hutter, Hoos and Leyton-Brown, 2014), Optuna's implementation."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from grpolab.report.figures.panels import panel_grid, say
from grpolab.report.manifest import Manifest
from grpolab.report.style import arm_styles
from grpolab.report.text import count
from grpolab.report.tuning.marks import column, manifest
from grpolab.report.tuning.trials import COMPLETE, Tuning

FOREST_SEED = 0
FEWEST = 5  # complete trials; a forest on fewer fits noise


def importances(tuning: Tuning, arm: str) -> dict[str, float]:
    """Share of the variance of the score, over the arm's space, that each key explains alone; the rest is interactions.

    From the arm's complete trials; empty where they are too few. Keys are even in what the sampler draws from
    (logarithms for a log-uniform one): Optuna's own plot would weight the last decade most.
    """
    import optuna  # seconds to import, and most reports have no tuning

    metric, keys = tuning.objectives[0], tuning.keys(arm)
    done = tuning.scored(arm, metric)
    if len(done) < FEWEST:
        return {}
    even: dict[str, Any] = {key.name: optuna.distributions.FloatDistribution(0.0, 1.0) for key in keys}
    shares = {key.name: key.share(column(done, key)).clip(0, 1) for key in keys}
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces every study
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), direction="maximize")
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={name: float(places[row]) for name, places in shares.items()}, distributions=even, value=score
            )
            for row, score in enumerate(done["score"])
        ]
    )
    found = optuna.importance.FanovaImportanceEvaluator(seed=FOREST_SEED).evaluate(study)
    return {key.name: float(found[key.name]) for key in keys}


def importance(tuning: Tuning) -> tuple[Figure, Manifest]:
    """The importance of each key, one panel per arm."""
    most = max(len(tuning.keys(arm)) for arm in tuning.arms)
    figure, grid = panel_grid([""], tuning.arms, height=0.2 + 0.25 * most, share_y=False)
    styles, numbers = arm_styles(tuning.arms), []
    for (_, arm), panel in grid.items():
        found, n = importances(tuning, arm), len(tuning.of(arm, COMPLETE))
        if not found:
            say(panel, f"{count(n, 'complete trial')}: {FEWEST} are needed")
        bars = panel.barh(list(found), list(found.values()), height=0.6, color=styles[arm].colour)
        panel.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        panel.set(xlim=(0, 1.15), xticks=[0, 0.5, 1])
        panel.invert_yaxis()
        panel.grid(visible=False, axis="y")
        panel.set_xlabel(f"share of variance ({count(n, 'trial')})")
        numbers.append({"arm": arm, "x": list(found), "importance": list(found.values()), "n": n})
    caption = (
        f"Share of the variance of `{tuning.objectives[0]}` over the space that each key explains alone (fANOVA on the"
        " complete trials; pruned ones have no score). With a few dozen trials it is a hint, no measurement."
    )
    return figure, manifest(tuning, "tuning_importance", caption, f"random forest, seed {FOREST_SEED}", numbers)
