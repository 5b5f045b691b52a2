"""Preconditions of an ablation: its baseline learns, clipping acts, training without clipping collapses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from grpolab.paths import Results
from grpolab.records import read_plan
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import at, means_after_first_step, measure
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.text import count, estimate, number, percent, signed
from grpolab.vocabulary import REGIMES

CONCERNED = (REGIMES, "clip_range", "loss_type")  # studies whose runs are tested
FREE_LENGTH = "filler_sorting"  # the task whose answers may have any length
# The least that a regime must offer; docs/regimes.md says why.
LEAST_GAIN, LEAST_CLIPPED, LEAST_LENGTH_STD = 0.1, 0.01, 1.0


class RegimeCheck(NamedTuple):
    """One precondition of docs/regimes.md in one facet; `met` is None where no run tells."""

    number: int
    met: bool | None
    measured: str
    meaning: str  # the consequence where it is not met

    @property
    def verdict(self) -> str:
        """Its number and whether it is met."""
        return f"{self.number} {'not known' if self.met is None else 'met' if self.met else 'NOT met'}"


def unmet(studies: Sequence[StudyRuns]) -> list[str]:
    """Return a sentence for each precondition that the runs of these studies fail, with its consequence."""
    concerned = [study for study in studies if study.name in CONCERNED]
    every = [condition for study in concerned for facet in study.facets for condition in _conditions(study, facet)]
    failed = [condition for condition in every if condition.met is False]
    return [f"{condition.verdict}: {condition.measured}; {condition.meaning}." for condition in failed]


def unmet_of(results: Results, name: str) -> list[str]:
    """Return `unmet` of a study that is planned here, or of those that it includes. Raises RequestError as `load`."""
    plan = read_plan(results.plan(name)) or {"includes": []}
    parts = [part for part in (*plan["includes"], name) if part in CONCERNED]
    return unmet([load(results, part)[-1] for part in parts])


def _conditions(study: StudyRuns, facet: str) -> Iterator[RegimeCheck]:
    """Yield 3 of a stressed regime; else 1 and 2 where an arm is unclipped, and 4 where lengths are free."""
    base, no_clip = study.baseline, _unclipped(study)
    cells = study.cells[study.cells["facet"] == facet]
    if no_clip and "factor/regime" in cells and not (cells["factor/regime"] == "healthy").all():
        lost, lost_base = (at(measure(study, "lost"), facet, arm) > 0 for arm in (no_clip, base))
        yield RegimeCheck(
            3,
            bool(lost.all() and not lost_base.any()) if len(lost) and len(lost_base) else None,
            f"in {facet} {int(lost.sum())} of {count(len(lost), 'run')} of `{no_clip}` and {int(lost_base.sum())} of"
            f" {len(lost_base)} of `{base}` are lost (asked: all, and none)",
            "what is said there of training without clipping is not about the regime that it is meant for",
        )
        return
    if no_clip:
        gain, (low, high) = t_interval(at(measure(study, "gain"), facet, base)), _clipped(study, facet)
        yield RegimeCheck(
            1,
            gain.mean >= LEAST_GAIN and gain.low > 0 if gain.n else None,
            f"in {facet} the baseline `{base}` gains {estimate(*gain[:3], signed)} ({count(gain.n, 'seed')};"
            f" asked: {LEAST_GAIN} or more, the interval above 0)",
            "arms are compared there with one that is not shown to learn, and differences between them may be noise",
        )
        yield RegimeCheck(
            2,
            None if pd.isna(low) else min(low, high) >= LEAST_CLIPPED,
            f"in {facet} clipping in `{base}` silences {percent(low)} of the tokens below its range and"
            f" {percent(high)} above (asked: {LEAST_CLIPPED:.0%} each)",
            "arms that differ in a clip range that hardly acts are one arm under two names",
        )
    if (cells["setting/task"] == FREE_LENGTH).all() and "eval/length_std" in study.evaluations:
        own = study.evaluations[(study.evaluations["facet"] == facet) & (study.evaluations["arm"] == base)]
        last = own.sort_values("rollout_step").groupby("signature")["eval/length_std"].last().astype("float64")
        yield RegimeCheck(
            4,
            bool((last > LEAST_LENGTH_STD).all()) if len(last) else None,
            f"in {facet} the lengths of `{base}` have standard deviations of {number(last.min())} to"
            f" {number(last.max())} tokens at the end of {count(len(last), 'run')} (asked: above"
            f" {LEAST_LENGTH_STD:.0f})",
            "claims about length are void where lengths are all the same",
        )


def _unclipped(study: StudyRuns) -> str:
    """Return the arm without clipping; empty where the study has none."""
    arms = study.cells.loc[study.cells["setting/kernel"] == "ratio", "arm"]
    return str(arms.iloc[0]) if len(arms) else ""


def _clipped(study: StudyRuns, facet: str) -> list[float]:
    """Return the mean share of the baseline's tokens with an advantage that are clipped below and above its range."""
    sides = (means_after_first_step(study, f"clip/active_{side}_nz") for side in ("low", "high"))
    return [float(at(shares, facet, study.baseline).mean()) for shares in sides]
