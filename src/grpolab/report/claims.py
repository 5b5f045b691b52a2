"""Decide the hypotheses of study files: supported, opposite, negligible or inconclusive.

`questions.py` puts them in numbers; `statistics/looks.py` decides all questions of a family together. Tables, figures
and sentences repeat the verdicts of this file, and nothing else in the package calls a difference real or not.

Letters: S seeds, T tasks, K looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from grpolab.quantities import LABELS
from grpolab.report.effects import (
    FEWEST_VALUES,
    TaskEffect,
    effect_in_words,
    in_points,
    mean_with_interval,
    task_effect,
    trend_size,
)
from grpolab.report.journals import kind_of_cpu
from grpolab.report.load import StudyRuns
from grpolab.report.questions import AskedQuestion, ask
from grpolab.report.registered import CONFIRMATORY
from grpolab.report.statistics import looks as planned
from grpolab.report.statistics.looks import ALPHA, INCONCLUSIVE, LOOKS, NEGLIGIBLE, OPPOSITE, SUPPORTED, LookTests
from grpolab.report.statistics.tests import benjamini_hochberg, label_difference, rank_trend, sign_flip, sign_test
from grpolab.report.text import NONE, count, listing, p_equals

VOID = "void"  # nothing could be decided by any number of seeds
DESCRIBED = "described"  # not among the primary hypotheses of the collection that is reported
HOLDS, FAILS, NOT_RUN = "holds", "fails", "not run"  # verdicts of a check
CHECK = "check"  # the label of a hypothesis that holds by construction
VERDICTS = (SUPPORTED, OPPOSITE, NEGLIGIBLE, INCONCLUSIVE, VOID)
SKEWED = 1.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A hypothesis in one combination of the levels that it leaves open, decided.

    `effect`, `low` and `high` are in units of the margin, so that claims of all kinds have one scale; NaN where there
    is no margin, or no mean is tested. `size` is the same in words. `p` is the repeated one (comparable over looks),
    `adjusted_p` Holm's, `q` that of Benjamini and Hochberg over all studies of the report. `n`: seeds at the decision,
    or at the last look; `seeds`: all that there are.
    """

    study: str
    id: str
    says: str  # what was tested
    registered: str = ""  # the words of the study file and its registration, where they differ from `says`
    also: str = ""  # the claim (`study.id`) that asks the same with a learning rate for each arm
    source: str
    metric: str
    where: str = ""
    contrast: str
    verdict: str
    found: str  # the verdict for a reader: where tasks disagree, in which of them
    label: str  # confirmatory, exploratory or a check
    why: str = ""  # the reason why it is exploratory
    n: int
    seeds: int
    size: str  # of a score accuracies first: the second arm's -> the first one's, and where both began
    short: str = NONE  # the same without the intervals of single tasks
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    tasks: tuple[TaskEffect, ...] = ()
    disagreement: float = np.nan  # p that all tasks have one effect
    p: float = np.nan
    adjusted_p: float = np.nan
    q: float = np.nan
    margin_sds: float = np.nan  # the margin in standard deviations of the seeds' differences
    flags: tuple[str, ...] = ()
    sentence: str

    @property
    def is_finding(self) -> bool:
        """Return whether the hypothesis was tested; checks and descriptions are listed apart."""
        return self.verdict in VERDICTS


def decide(studies: Sequence[StudyRuns]) -> list[Claim]:
    """Decide every hypothesis of a study, or of a collection's studies, which come before it; then placebo pairs.

    A registration is one family, with its seeds, looks and margins; hypotheses that are not registered are decided with
    the study's other such ones, by the seeds at hand. A collection with `primary` hypotheses decides these together,
    and describes the others.
    """
    whole, asked = studies[-1], list[AskedQuestion]()
    primary = whole.plan.get("primary") or []
    for study in studies:
        for hypothesis in study.plan.get("hypotheses", []):
            name = f"{study.name}.{hypothesis['id']}" if primary else hypothesis["id"]
            owner = whole if primary else study
            asked += ask(study, hypothesis, owner, name in primary or not primary)
    claims = dict[int, Claim]()
    for family in dict.fromkeys(question.family for question in asked):
        places = [n for n, question in enumerate(asked) if question.family == family]
        of_family, gone = [asked[n] for n in places], _count_withdrawn(family, studies)
        claims |= zip(places, _decide_together(of_family, gone) if family else map(_describe, of_family), strict=True)
    placebo = [_placebo(study, *pair) for study in studies for pair in study.plan.get("placebo", [])]
    decided = [*(claims[n] for n in range(len(asked))), *placebo]
    tested = [n for n, claim in enumerate(decided) if claim.is_finding and np.isfinite(claim.q)]
    shares = benjamini_hochberg([decided[n].q for n in tested])
    for n, q in zip(tested, shares, strict=True):
        decided[n] = replace(decided[n], q=float(q))
    return decided


def standing(study: StudyRuns, claims: Sequence[Claim]) -> str:
    """Say which of a study's claims were registered before their runs, for the captions of its figures."""
    if study.done.empty:
        return ""
    found = [claim for claim in claims if claim.study == study.name and claim.is_finding]
    sure = list(dict.fromkeys(claim.id for claim in found if claim.label == CONFIRMATORY))
    return f"Confirmatory: {listing(sure)}; the rest is exploratory." if sure else "Exploratory."


def _count_withdrawn(family: str, studies: Sequence[StudyRuns]) -> int:
    """Count the hypotheses of a registration that were changed or removed since: they keep their share of ALPHA."""
    entries = [known.items() for study in studies if (known := study.plan.get("registered"))]
    left = {name for known in entries for name, entry in known if entry["line"] == family}
    return len(json.loads(family)["hypotheses"].keys() - left) if left else 0


# ----------------------------------------------------------------------------------------------------------------------
# From a question to its verdict.


def _kind(question: AskedQuestion) -> str:
    """Return the kind of test: `label` counts runs, `trend` ranks levels, `mean` averages differences."""
    is_label = question.hypothesis["metric"] in LABELS
    return "label" if is_label else "trend" if question.hypothesis["trend"] else "mean"


def _run_tests(question: AskedQuestion, n: int) -> tuple[float, float, bool]:
    """Test the first n seeds: p of a direction, p of the margin, and whether the estimate lies where it is claimed.

    The margin counts only where every task is inside its own, and the tasks (fewer than seeds) do not disagree.
    """
    if question.void or len(question.values_STA) < n:
        return np.nan, np.nan, False
    sign, kind = question.sign, _kind(question)
    if kind == "label":
        difference, p = label_difference(question.values_STA[:n, :, 0], question.values_STA[:n, :, 1])
        return p, 1.0, sign * difference > 0
    if kind == "trend":
        tau = rank_trend(question.values_STA[:n])
        return tau.p, 1.0, sign * tau.effect > 0
    y_S, unit_T = question.pooled(n), question.unit_T
    beyond = float((question.beyond / unit_T).mean())
    has_margin, equal = bool(np.isfinite(question.margin_T).all()), question.hypothesis["direction"] == "equal"
    if not np.isfinite(y_S).all() or len(np.unique(y_S)) < min(FEWEST_VALUES, n):
        if equal:  # its opposite lies beyond the margin
            sign, beyond = float(np.sign(np.median(y_S))), 1.0
        shifted_S = sign * y_S - beyond
        above = bool((shifted_S > 0).sum() > (shifted_S < 0).sum())
        return sign_test(shifted_S) if above or not equal else 1.0, 1.0, above
    test = planned.run_tests(y_S[None], 1.0 if has_margin else np.nan, sign, beyond, (n,), equal)
    d_ST = question.differences(n)
    untested = 1 < len(question.tasks) >= n  # too few seeds to tell whether tasks disagree
    inside = bool((np.abs(d_ST.mean(axis=0)) < unit_T).all()) and not (untested or _disagreement(question, n) < ALPHA)
    return float(test.direction_p[0, 0]), float(test.margin_p[0, 0]) if inside else 1.0, bool(test.claimed[0, 0])


def _disagreement(question: AskedQuestion, n: int) -> float:
    """Return p that all tasks have one effect in units of their margins; NaN for one task, or if no mean is tested."""
    d_ST = question.differences(n) / question.unit_T if _kind(question) == "mean" else np.full((n, 1), np.nan)
    return planned.disagreement(d_ST.T) if np.isfinite(d_ST).all() else np.nan


def _decide_together(family: Sequence[AskedQuestion], gone: int = 0) -> list[Claim]:
    """Decide the questions of one family; `gone` more hypotheses of it are not asked any more."""
    looks = family[0].looks
    tests_MK = [[_run_tests(question, n) for n in looks] for question in family]
    found = LookTests(*(np.array([[test[i] for test in of] for of in tests_MK]) for i in range(3)))
    equal_M = np.array([question.hypothesis["direction"] == "equal" for question in family])
    decisions = planned.decide(found, equal_M=equal_M, gone=gone)
    claims = []
    for question, tests, *decision in zip(family, tests_MK, *decisions, strict=True):
        verdict, by_margin, look, level, p = decision
        n = looks[look] if look >= 0 else 0
        by = int(question.hypothesis["direction"] == "equal" and verdict != OPPOSITE)  # the margin is what it claims
        q = float(planned.repeated_p(tests[look][by], look, len(looks))) if n else np.nan
        q = q / 2 if by and q < 1 else q  # as `looks.decide` does
        verdict = VOID if question.void else str(verdict)
        interval = (bool(by_margin), float(level), int(look), len(looks))
        claims.append(_claim(question, verdict, n, interval, float(p), float(p * ALPHA / level), q))
    return claims


def _describe(question: AskedQuestion) -> Claim:
    """Describe a check, or a hypothesis outside of every family: an ordinary 95% interval, and no test."""
    n = len(question.values_STA)
    verdict = DESCRIBED
    if question.hypothesis["by_construction"]:
        verdict = (HOLDS if _as_claimed(question).all() else FAILS) if n else NOT_RUN
    return _claim(question, verdict, n, (False, ALPHA, 0, 1), np.nan, np.nan, np.nan)


def _as_claimed(question: AskedQuestion) -> NDArray:
    """Return whether each seed shows the claim in each task; (S, T)."""
    sign, values_STA = question.sign, question.values_STA
    if _kind(question) == "trend":
        return np.asarray((sign * np.diff(values_STA, axis=2) > 0).all(axis=2))
    d_ST = question.differences(len(values_STA))
    if question.hypothesis["direction"] == "equal":
        return np.asarray(np.abs(d_ST) < question.margin_T)
    return np.asarray(sign * d_ST > question.beyond)


# ----------------------------------------------------------------------------------------------------------------------
# In words.


def _claim(
    question: AskedQuestion,
    verdict: str,
    n: int,
    interval: tuple[bool, float, int, int],
    p: float,
    adjusted_p: float,
    q: float,
) -> Claim:
    """Write the claim in numbers and in words; `interval` holds the other arguments of `looks.interval`."""
    hypothesis, kind, y_S = question.hypothesis, _kind(question), np.empty(0)
    effect = low = high = margin_sds = disagreement = np.nan
    tasks, size, short = tuple[TaskEffect, ...](), NONE, NONE
    if n and kind == "mean":
        y_S, places = question.pooled(n), len(question.tasks)
        of_task = (interval[0], interval[1] / places, *interval[2:])
        tasks = tuple(task_effect(question, n, t, of_task) for t in range(places))
        effect, low, high = mean_with_interval(y_S, interval)
        disagreement = _disagreement(question, n)
        together = in_points(question, effect, low, high)
        size, short = (
            effect_in_words(question, n, together, tasks, disagreement < ALPHA, wanted) for wanted in (False, True)
        )
        if np.isfinite(question.margin_T).all() and np.isfinite(y_S).all() and np.ptp(y_S):
            margin_sds = float(1 / np.std(y_S, ddof=1))
        else:
            effect = low = high = np.nan  # in units of nothing
    elif n and kind == "label":
        of, minus = question.values_STA[:n].sum(axis=(0, 1)).astype(int)
        runs = n * len(question.tasks)
        size = short = f"{of} of {runs} runs against {minus} of {runs}"
    elif n:
        size = trend_size(question, n)
        short = f"tau {size}"
    flags = tuple(_flags(question, verdict, n, y_S, margin_sds, (low, high), interval[1]))
    label, why = (CHECK, "") if hypothesis["by_construction"] else (question.label, question.why)
    adjusted_p, found = min(adjusted_p, 1.0), _verdict_by_task(verdict, tasks, disagreement < ALPHA)
    tested = hypothesis.get("tested")  # plans of older programs have none
    return Claim(
        study=question.study,
        **{key: hypothesis[key] for key in ("id", "source", "metric")},
        says=tested or hypothesis["says"],
        registered=hypothesis["says"] if tested else "",
        also=hypothesis.get("also", ""),
        where=question.where,
        contrast=_contrast(question),
        verdict=verdict,
        found=found,
        label=label,
        why=why,
        n=n,
        seeds=len(question.values_STA),
        size=size,
        short=short,
        effect=effect,
        low=low,
        high=high,
        tasks=tasks,
        disagreement=disagreement,
        p=p,
        adjusted_p=adjusted_p,
        q=q,
        margin_sds=margin_sds,
        flags=flags,
        sentence=_sentence(question, f"{found} ({label})", n, size, adjusted_p, flags),
    )


def _verdict_by_task(verdict: str, tasks: Sequence[TaskEffect], disagree: bool) -> str:
    """Write a verdict; where tasks disagree about a direction, name the tasks that show it alone."""
    if not disagree or verdict not in (SUPPORTED, OPPOSITE):
        return verdict
    shown = 1 if verdict == SUPPORTED else -1
    on, not_on, other = (listing([task.task for task in tasks if task.side == side]) for side in (shown, 0, -shown))
    if not not_on and not other:
        return f"{verdict} on each task, by different amounts"
    parts = [f"{verdict} on {on}" if on else f"{verdict} together, on no task alone"]
    parts += [f"not shown on {not_on}"] if not_on and on else []
    return ", ".join(parts + ([f"the other way on {other}"] if other else []))


def _contrast(question: AskedQuestion) -> str:
    """Write the arms as they are compared."""
    return (", " if _kind(question) == "trend" else " / " if question.logarithmic else " - ").join(question.arms)


def _sentence(question: AskedQuestion, verdict: str, n: int, size: str, adjusted_p: float, flags: Sequence[str]) -> str:
    """Write the finding, its place, how sure it is, and its flags."""
    hypothesis, tasks = question.hypothesis, listing(question.tasks)
    of = f"`{hypothesis['metric']}` of {_contrast(question)}"
    if _kind(question) == "trend":
        of = f"Kendall's tau of `{hypothesis['metric']}` over {_contrast(question)}"
    if hypothesis["range_over"]:
        of = f"the range over {hypothesis['range_over']} of {of}"
    head = f"{hypothesis['id']} is {verdict}" + (f" in {question.where}" if question.where else "")
    if hypothesis["by_construction"]:
        shows = _as_claimed(question)
        return f"{head}: {of}, as claimed in {int(shows.sum())} of {count(shows.size, 'pair')} of a seed and a task."
    notes = "".join(f"; {note}" for note in flags)
    if not n:
        first = question.looks[0]
        seeds = f"{min(len(question.values_STA), first)} of the {first} seeds of the first look, {tasks}"
        return f"{head}: {of} ({seeds}){question.gaps}{notes}."
    chance = f"; adjusted {p_equals(adjusted_p)}" if np.isfinite(adjusted_p) and not question.void else ""
    late = _at_all_seeds(question, n) if np.isfinite(adjusted_p) else ""
    return f"{head}: {of} is {size} ({count(n, 'seed')}, {tasks}{chance}{late}){question.gaps}{notes}."


def _at_all_seeds(question: AskedQuestion, n: int) -> str:
    """Describe the effect over all seeds, where some came after the decision."""
    seeds = len(question.values_STA)
    if seeds == n or _kind(question) != "mean":
        return ""
    return f"; at all {seeds} seeds {in_points(question, float(question.pooled(seeds).mean()), np.nan, np.nan)}"


def _flags(
    question: AskedQuestion,
    verdict: str,
    n: int,
    y_S: NDArray,
    margin_sds: float,
    bounds: tuple[float, float],
    level: float,
) -> Iterator[str]:
    """Yield warnings, which change no verdict. `bounds`: its interval; `level`: its share of ALPHA."""
    if question.void:
        yield question.void
    if not n or verdict not in VERDICTS:
        return
    equal, turned = question.hypothesis["direction"] == "equal", verdict in (SUPPORTED, OPPOSITE)
    if turned and not equal and n == LOOKS[0] and (verdict == SUPPORTED or not question.beyond):
        yield "decided at five seeds: the estimate is probably too large"
    if not len(y_S) or not np.isfinite(y_S).all():
        return
    if turned and not equal:
        if bounds[0] > -1 and bounds[1] < 1:
            yield "smaller than the margin"
        if verdict == OPPOSITE and question.beyond and question.sign * bounds[question.sign > 0] > 0:
            yield "less than claimed, and not shown to be the other way round"
        beyond = float((question.beyond / question.unit_T).mean())
        if n >= 2 * LOOKS[0] and sign_flip(question.sign * y_S - beyond) > ALPHA:
            yield "a test without normality (sign flips) does not find it"
    if verdict == NEGLIGIBLE and (bounds[0] > 0 or bounds[1] < 0):
        yield "not zero, and yet inside the margin"
    if len(np.unique(y_S)) >= FEWEST_VALUES and abs(pd.Series(y_S).skew()) > SKEWED:
        yield "skewed differences: p may be too small"
    if verdict == INCONCLUSIVE and np.isfinite(margin_sds):
        yield from _outlook(question, y_S, n, level)


def _outlook(question: AskedQuestion, y_S: NDArray, n: int, level: float) -> Iterator[str]:
    """Say at which later look it would be decided at this level, were mean and spread as observed."""
    mean, sd = float(y_S.mean()), float(np.std(y_S, ddof=1))
    distance = question.sign * mean - float((question.beyond / question.unit_T).mean())
    if question.hypothesis["direction"] == "equal":
        distance = max(abs(mean) - 1, 0.0)
    looks = question.looks
    for look, later in enumerate(looks):
        if later <= n:
            continue
        local = [float(planned.level_at(a, look, len(looks))) for a in (level, 2 * level)]
        reach = [-special.stdtrit(later - 1, a / 2) * sd / np.sqrt(later) for a in local]
        if abs(distance) > reach[0] or 1 - abs(mean) > reach[1]:
            yield f"{later} seeds would decide it at the earliest, were mean and spread as observed"
            return
    if n < looks[-1]:
        yield f"{looks[-1]} seeds would not decide it, were mean and spread as observed (margin: {1 / sd:.1f} sd)"


def _placebo(study: StudyRuns, first: str, second: str) -> Claim:
    """Check that the runs of two arms that are one function are equal to the bit, by hashes of journal and weights.

    The journals of two dialects differ in any case: each has its framework's metrics. Runs of two kinds of CPU that
    differ are not compared.
    """
    planned_cells = study.cells[study.cells["arm"].isin((first, second))]
    pairs = int((planned_cells["arm"] == first).sum())
    hashes, what = ["journal_sha256", "policy_sha256"], "whole journal and final weights"
    if "setting/framework" in planned_cells and planned_cells["setting/framework"].nunique(dropna=False) > 1:
        hashes, what = ["policy_sha256"], "final weights"
    done, equal, different, elsewhere = study.done, 0, list[str](), 0
    if len(done):
        done = done.assign(cpu=done["hardware"].map(kind_of_cpu))
        of, minus = (done[done["arm"] == arm].set_index(["facet", "seed"])[[*hashes, "cpu"]] for arm in (first, second))
        shared = of.index.intersection(minus.index, sort=False)
        of, minus = of.loc[shared], minus.loc[shared]
        same, one_kind = (of[hashes] == minus[hashes]).all(axis=1), of["cpu"] == minus["cpu"]
        equal, elsewhere = int(same.sum()), int((~same & ~one_kind).sum())
        different = [f"{facet} seed {seed}" for facet, seed in shared[~same & one_kind]]
    not_compared = f"; {count(elsewhere, 'pair')} of two kinds of CPU cannot be compared" if elsewhere else ""
    verdict = FAILS if different else HOLDS if equal == pairs > 0 else NOT_RUN
    return Claim(
        study=study.name,
        id="placebo",
        says=f"`{second}` and `{first}` are the same function.",
        source="identity O3",
        metric=what,
        contrast=f"{second} - {first}",
        verdict=verdict,
        found=verdict,
        label=CHECK,
        n=equal + len(different),
        seeds=equal + len(different),
        size=f"bit-identical in {equal} of {count(pairs, 'planned pair')}",
        sentence=f"`{second}` and `{first}` are bit-identical ({what}) in {equal} of {count(pairs, 'planned pair')}"
        + (f"; they differ in {listing(different)}" if different else "")
        + f"{not_compared}.",
    )
