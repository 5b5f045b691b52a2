"""Whether an ablation compares something: does its baseline learn, does clipping act, does its absence hurt?"""

from __future__ import annotations

import pandas as pd

from grpolab.paths import Results
from grpolab.report.load import Study, load
from grpolab.report.measures import at, means_after_first_step, measure
from grpolab.report.statistics import t_interval
from grpolab.report.text import estimate, markdown_table, number, percent, signed

STUDY, LENGTH_STUDY = "clip_range", "loss_type"
# What a regime must offer.
LEAST_GAIN, LEAST_CLIPPED, LEAST_LENGTH_STD = 0.15, 0.01, 1.0
SETTINGS = ("learning_rate", "num_iterations", "num_generations", "epsilon", "epsilon_high", "max_completion_length")

HEAD = f"""# Regimes

An ablation whose baseline does not learn compares noise, and one in which clipping never acts compares nothing. The
reference studies therefore use regimes in which, over the seeds of `{STUDY}`:

1. at the healthy learning rate the baseline's mean gain in expected accuracy is at least {LEAST_GAIN}, with a 95%
   t-interval above 0, on two tasks;
2. there, after the first optimiser step on a batch, clipping silences at least {LEAST_CLIPPED:.0%} of the tokens with a
   non-zero advantage on each side;
3. at the stressed learning rate every unclipped run collapses and no run of the baseline does;
4. in the task of free length, the completions of every run still differ in length: their standard deviation over
   the last evaluation's items is above {LEAST_LENGTH_STD:.0f} token, else a study of length would be void.

The settings stand in `conf/run.yaml` and `conf/task/`, the learning rates in `experiments/{STUDY}.yaml`. This page is
printed by `grpolab regimes`, from the runs of `make sweep` (in a fresh clone: from the committed reference)."""


def page(results: Results) -> str:
    """`docs/regimes.md`, all numbers from the runs. Raises RequestError where a study was never planned."""
    study = load(results, STUDY)[-1]
    table = pd.DataFrame([_row(study, facet) for facet in study.facets])
    settings = study.cells.drop_duplicates("facet").set_index("facet")[[f"setting/{name}" for name in SETTINGS]]
    settings.columns = pd.Index(SETTINGS)
    return "\n\n".join(
        [
            HEAD,
            f"Seeds: {', '.join(map(str, sorted(study.done['seed'].unique())))}. Baseline: `{study.baseline}`.",
            markdown_table(table),
            _free_length(load(results, LENGTH_STUDY)[-1]),
            "Settings that the plan records:",
            markdown_table(settings.map(_shown).reset_index()),
        ]
    )


def _row(study: Study, facet: str) -> dict[str, str]:
    """One regime: what the conditions ask for."""
    start, gain = (t_interval(at(measure(study, name), facet, study.baseline)) for name in ("start", "gain"))
    low, high = (
        t_interval(at(means_after_first_step(study, f"clip/active_{side}_nz"), facet, study.baseline))
        for side in ("low", "high")
    )
    unclipped = study.cells.loc[study.cells["setting/kernel"] == "ratio", "arm"].iloc[0]
    lost = {arm: _collapses(study, facet, arm) for arm in (study.baseline, unclipped)}
    if (study.cells.loc[study.cells["facet"] == facet, "factor/regime"] == "healthy").all():
        learns = gain.mean >= LEAST_GAIN and gain.low > 0
        asked = {"1": learns, "2": min(low.mean, high.mean) >= LEAST_CLIPPED}
    else:
        asked = {"3": bool(lost[unclipped].all() and not lost[study.baseline].any())}
    return {
        "regime": facet,
        "start": number(start.mean),
        "gain of the baseline": estimate(*gain[:3], signed),
        "clipped low": percent(low.mean),
        "clipped high": percent(high.mean),
        **{f"`{arm}` collapses": f"{int(runs.sum())} of {len(runs)}" for arm, runs in lost.items()},
        "conditions": ", ".join(f"{name} {'met' if met else 'NOT met'}" for name, met in asked.items()),
    }


def _collapses(study: Study, facet: str, arm: str) -> pd.Series:
    """Whether each run of an arm collapsed, diverged or was stopped as hopeless, by seed."""
    return sum(at(measure(study, label), facet, arm) for label in ("collapsed", "diverged", "stopped")) > 0


def _free_length(study: Study) -> str:
    """Condition 4 in a sentence."""
    lengths = study.evaluations.sort_values("rollout_step").groupby("signature")["eval/length_std"]
    last = lengths.last().astype("float64")
    verdict = "met" if (last > LEAST_LENGTH_STD).all() else "NOT met"
    return (
        f"Condition 4 is {verdict}: over the {len(last)} runs of `{study.name}` the standard deviation of the length at"
        f" the end is {number(last.min())} to {number(last.max())} tokens."
    )


def _shown(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)
