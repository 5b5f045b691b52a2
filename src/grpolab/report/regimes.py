"""Preconditions of an ablation: its baseline learns, clipping acts, training without clipping collapses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpolab.paths import Results
from grpolab.records import read_plan
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import at, means_after_first_step, measure
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.text import count, estimate, number, percent, signed
from grpolab.vocabulary import REGIMES

TESTED = (REGIMES, "clip_range", "loss_type")  # studies
FREE_LENGTH = "filler_sorting"  # the task whose answers may have any length
LEAST_GAIN, LEAST_CLIPPED, LEAST_LENGTH_STD = 0.1, 0.01, 1.0  # docs/regimes.md says why


def find_unmet(studies: Sequence[StudyRuns]) -> list[str]:
    """Return a sentence for each precondition of docs/regimes.md that runs fail, with its consequence."""
    return [
        f"{condition} NOT met: in {facet} {measured}; {consequence}."
        for study in studies
        if study.name in TESTED
        for facet in study.facets
        for condition, measured, consequence in _unmet_in(study, facet)
    ]


def find_unmet_of(results: Results, name: str) -> list[str]:
    """Return `find_unmet` of a study that is planned here, or of those that it includes. Raises RequestError."""
    plan = read_plan(results.plan(name)) or {"includes": []}
    return find_unmet([load(results, part)[-1] for part in (*plan["includes"], name) if part in TESTED])


def _unmet_in(study: StudyRuns, facet: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, what was measured, and the consequence of each precondition that is not met in a facet."""
    base, cells = study.baseline, study.cells[study.cells["facet"] == facet]
    if (unclipped := study.cells["setting/kernel"] == "ratio").any():
        arm = study.cells.loc[unclipped, "arm"].iloc[0]
        if "factor/regime" in cells and not (cells["factor/regime"] == "healthy").all():
            lost, lost_base = (at(measure(study, "lost"), facet, of) > 0 for of in (arm, base))
            if len(lost) and len(lost_base) and not (lost.all() and not lost_base.any()):
                of_base = f"{int(lost_base.sum())} of {len(lost_base)} of `{base}`"
                measured = f"{int(lost.sum())} of {count(len(lost), 'run')} of `{arm}` and {of_base} are lost"
                consequence = "conclusions there about no clipping are not about a stressed regime"
                yield 3, f"{measured} (asked: all, and none)", consequence
            return
        gain = t_interval(at(measure(study, "gain"), facet, base))
        if gain.n and not (gain.mean >= LEAST_GAIN and gain.low > 0):
            gains = f"the baseline `{base}` gains {estimate(*gain[:3], signed)} ({count(gain.n, 'seed')}"
            consequence = "the baseline is not shown to learn there, so differences may be noise"
            yield 1, f"{gains}; asked: {LEAST_GAIN} or more, the interval above 0)", consequence
        sides = (means_after_first_step(study, f"clip/active_{side}_nz") for side in ("low", "high"))
        low, high = (float(at(shares, facet, base).mean()) for shares in sides)
        if min(low, high) < LEAST_CLIPPED:
            shares = f"{percent(low)} of the tokens below its range and {percent(high)} above"
            measured = f"clipping in `{base}` silences {shares} (asked: {LEAST_CLIPPED:.0%} each)"
            yield 2, measured, "clip ranges that hardly act there are one arm under several names"
    if (cells["setting/task"] == FREE_LENGTH).all() and "eval/length_std" in study.evaluations:
        evaluations = study.evaluations[(study.evaluations["facet"] == facet) & (study.evaluations["arm"] == base)]
        last = evaluations.sort_values("rollout_step").groupby("signature")["eval/length_std"].last().astype("float64")
        if (last <= LEAST_LENGTH_STD).any():
            spread = f"{number(last.min())} to {number(last.max())} tokens at the end of {count(len(last), 'run')}"
            measured = f"lengths of `{base}` have standard deviations of {spread} (asked: above {LEAST_LENGTH_STD:.0f})"
            yield 4, measured, "claims about length are void where all lengths are the same"
