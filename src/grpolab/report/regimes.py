"""Whether an ablation compares something: does its baseline learn, does clipping act, does its absence hurt?"""

from __future__ import annotations

import pandas as pd

from grpolab.paths import Results
from grpolab.report.load import Study, load
from grpolab.report.measures import at, means_after_first_step, measure
from grpolab.report.statistics import t_interval
from grpolab.report.text import estimate, markdown_table, number, percent, signed

STUDY = "clip_range"
# What a regime must offer, fixed before the runs.
LEAST_GAIN, LEAST_CLIPPED = 0.15, 0.01
SETTINGS = ("learning_rate", "num_iterations", "num_generations", "epsilon", "epsilon_high", "max_completion_length")

HEAD = f"""# Regimes

An ablation whose baseline does not learn compares noise, and one in which clipping never acts compares nothing. The
reference studies therefore use regimes in which, over the seeds of `{STUDY}`:

1. at the healthy learning rate the baseline's mean gain in expected accuracy is at least {LEAST_GAIN}, with a 95%
   t-interval above 0, on two tasks;
2. there, after the first optimiser step on a batch, clipping silences at least {LEAST_CLIPPED:.0%} of the tokens with a
   non-zero advantage on each side;
3. at the stressed learning rate the unclipped arm collapses and the baseline does not.

The settings stand in `conf/run.yaml` and `conf/task/`, the learning rates in `experiments/{STUDY}.yaml`. This page is
printed by `grpolab regimes`, from the runs of `make sweep` (in a fresh clone: from the committed reference)."""


def page(results: Results) -> str:
    """`docs/regimes.md`, all numbers from the runs. Raises RequestError where the study was never planned."""
    study = load(results, STUDY)[-1]
    table = pd.DataFrame([_row(study, facet) for facet in study.facets])
    settings = study.cells.drop_duplicates("facet").set_index("facet")[[f"setting/{name}" for name in SETTINGS]]
    settings.columns = pd.Index(SETTINGS)
    return "\n\n".join(
        [
            HEAD,
            f"Seeds: {', '.join(map(str, sorted(study.done['seed'].unique())))}. Baseline: `{study.baseline}`.",
            markdown_table(table),
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
    return {
        "regime": facet,
        "start": number(start.mean),
        "gain of the baseline": estimate(*gain[:3], signed),
        "clipped low": percent(low.mean),
        "clipped high": percent(high.mean),
        "baseline collapses": _collapses(study, facet, study.baseline),
        f"`{unclipped}` collapses": _collapses(study, facet, unclipped),
        "conditions 1, 2": "met"
        if gain.mean >= LEAST_GAIN and gain.low > 0 and min(low.mean, high.mean) >= LEAST_CLIPPED
        else "not met",
    }


def _collapses(study: Study, facet: str, arm: str) -> str:
    """`2 of 3`; a diverged run counts."""
    lost = at(measure(study, "collapsed"), facet, arm) + at(measure(study, "diverged"), facet, arm)
    return f"{int((lost > 0).sum())} of {len(lost)}"


def _shown(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)
