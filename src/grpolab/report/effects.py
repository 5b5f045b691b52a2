"""Decisions in words: for a score, first both arms' accuracies at the end and at the start, then differences.

Letters: S seeds, T tasks, A arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from grpolab.report.questions import ONE_RATE, Question
from grpolab.report.statistics import looks as planned
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.statistics.looks import ALPHA, INCONCLUSIVE, LOOKS, NEGLIGIBLE, OPPOSITE, SUPPORTED
from grpolab.report.statistics.tests import rank_trend, sign_flip
from grpolab.report.text import count, estimate, listing, number, p_equals, signed

FEWEST_VALUES = 4  # different values that a t-test needs; with fewer seeds, all must differ
SKEWED = 1.0


@dataclass(frozen=True)
class Decision:
    """A verdict, and what decided it. The defaults are for a description: an ordinary 95% interval, and no test."""

    verdict: str
    n: int  # seeds at the decision, or at the last look
    by_margin: bool = False  # the test of the margin decided
    level: float = ALPHA  # the question's part of ALPHA
    look: int = 0
    looks: int = 1
    p: float = np.nan  # adjusted for several looks (`looks.repeated_p`)
    q: float = np.nan  # the same for what the hypothesis claims, for Benjamini and Hochberg's procedure

    @property
    def adjusted_p(self) -> float:
        """p after Holm's correction."""
        return min(self.p * ALPHA / self.level, 1.0)

    def estimate(self, values_S: NDArray, tasks: int = 1) -> tuple[float, float, float]:
        """Return mean and interval at the decision's level, which is divided by the number of tasks.

        If a value is infinite, return the median without an interval; no interval if too few values differ.
        """
        if not np.isfinite(values_S).all():
            return float(np.median(values_S)), np.nan, np.nan
        if len(np.unique(values_S)) < min(FEWEST_VALUES, len(values_S)):
            return float(values_S.mean()), np.nan, np.nan
        bounds = planned.interval(values_S, self.by_margin, self.level / tasks, self.look, self.looks)
        return float(values_S.mean()), *bounds


@dataclass(frozen=True)
class TaskEffect:
    """The effect in one task, on the scale on which it is written, with its share of the decision's level."""

    task: str
    effect: float
    low: float
    high: float
    side: int  # 1: the task's interval lies on the claimed side; -1: on the other; 0: on neither
    text: str
    short: str  # the effect in words, without the interval


def task_effects(question: Question, decision: Decision) -> tuple[TaskEffect, ...]:
    """Return the effect in each task over the seeds of the decision."""
    effects, form = [], _times if question.logarithmic else signed
    for task, margin, d_S in zip(question.tasks, question.margin_T, question.differences(decision.n).T, strict=True):
        effect, low, high = decision.estimate(d_S, len(question.tasks))
        if question.is_equality:
            side = int(-margin < low and high < margin) - int(low > margin or high < -margin)
        else:
            nearer, farther = sorted((question.sign * low, question.sign * high))
            side = int(nearer > question.beyond) - int(farther < question.beyond)
        if question.logarithmic:
            effect, low, high = (float(np.exp(bound)) for bound in (effect, low, high))
        effects.append(TaskEffect(task, effect, low, high, side, estimate(effect, low, high, form), form(effect)))
    return tuple(effects)


def said(question: Question) -> str:
    """Return what the hypothesis says of its test, marked if all arms share a learning rate that it does not name."""
    hypothesis = question.hypothesis
    words = str(hypothesis.get("tested") or hypothesis["says"])  # plans of older programs have no `tested`
    if question.rates != ONE_RATE or "learning rate" in words or hypothesis["by_construction"]:
        return words
    return f"{words.rstrip('.')}, at {ONE_RATE}{'.' if words.endswith('.') else ''}"


def verdict_by_task(question: Question, verdict: str, tasks: Sequence[TaskEffect], disagree: bool) -> str:
    """Write a verdict on a direction with its tasks, unless each of them shows it by itself, and no other way.

    An equality that is supported holds in every task.
    """
    if verdict not in (SUPPORTED, OPPOSITE) or len(tasks) < 2 or (question.is_equality and verdict == SUPPORTED):
        return verdict
    shown = 1 if verdict == SUPPORTED else -1
    on, not_on, other = (listing([task.task for task in tasks if task.side == side]) for side in (shown, 0, -shown))
    if not not_on and not other:
        return f"{verdict} on each task, by different amounts" if disagree else verdict
    alone = f"by itself on {on}" if on else "on no task alone"
    if not disagree:
        parts = [f"{verdict} over the tasks together, {alone}"]
    else:
        parts = [f"{verdict} on {on}" if on else f"{verdict} together, {alone}"]
        parts += [f"not shown on {not_on}"] if not_on and on else []
    return ", ".join(parts + ([f"the other way on {other}"] if other else []))


def effect_in_words(question: Question, n: int, tasks: Sequence[TaskEffect], pooled: str, disagree: bool) -> list[str]:
    """Write the effect over n seeds twice: with the intervals of single tasks, and without.

    For one task that is `pooled`; for several, their mean and then each one, or each one first if tasks disagree. A
    score begins with the accuracies, and ends with the share of the gain.
    """
    ends, share = _ends(question, n), "" if disagree else _share_of_gain(question, n)
    arms = f"{' -> '.join(f'`{arm}`' for arm in reversed(question.arms))}: " if len(question.arms) > 1 else ""
    texts = []
    for with_intervals in (True, False):
        sizes = [task.text if with_intervals else task.short for task in tasks]
        if len(tasks) == 1:
            text = f"{question.score_name} {arms}{ends[0]}; {pooled}" if ends else pooled
        elif ends:
            each = [f"{task.task} {end}" for task, end in zip(tasks, ends, strict=True)]
            each = [f"{of}, {size}" for of, size in zip(each, sizes, strict=True)] if with_intervals else each
            together = f"{'the tasks disagree, ' if disagree else ''}together {pooled}"
            text = f"{question.score_name} {arms}{', '.join(each)}; {together}"
        else:
            listed = ", ".join(f"{task.task} {size}" for task, size in zip(tasks, sizes, strict=True))
            text = f"{listed} (the tasks disagree; together {pooled})" if disagree else f"{pooled} ({listed})"
        texts.append(text + share)
    return texts


def _ends(question: Question, n: int) -> list[str]:
    """Write the accuracies of each task as `0.372 -> 0.008 (start 0.304)`; nothing for other metrics."""
    metric, is_pair = question.hypothesis["metric"], len(question.arms) > 1
    if not question.score_name or metric not in ("final_score", "gain"):
        return []
    end_TA, start_T = question.values_STA[:n].mean(axis=0)[:, ::-1], question.start_ST[:n].mean(axis=0)
    if metric == "gain":  # alone it is a way from the start to the end
        end_TA = end_TA + start_T[:, None]
        end_TA = end_TA if is_pair else np.column_stack([start_T, end_TA])
    if np.isnan(end_TA).any():
        return []
    begins = [f" (start {start:.3f})" if is_pair and np.isfinite(start) else "" for start in start_T]
    return [" -> ".join(f"{end:.3f}" for end in of) + began for of, began in zip(end_TA, begins, strict=True)]


def _share_of_gain(question: Question, n: int) -> str:
    """Write the difference of two arms as a share of the baseline's gain in the same seeds; empty if that may be 0.

    For several tasks, it is the mean of their shares.
    """
    gain_ST = question.gain_ST[:n]
    if not question.score_name or len(question.arms) < 2 or n < 2 or np.isnan(gain_ST).any():
        return ""
    if any(t_interval(gain_S).low <= 0 for gain_S in gain_ST.T):
        return ""
    share = (question.differences(n).mean(axis=0) / gain_ST.mean(axis=0)).mean()
    return f", {round(100 * share):+d}% of the baseline's gain"


def rollouts_in_words(question: Question, n: int) -> str:
    """Say which share of its rollouts the better arm needs to get where the other one ends; empty if none is to say.

    Medians over seeds; of runs of different lengths, numbers of completions. `more than 100%`: most seeds never get
    there. A task where the other arm ends no higher than it began has nothing to say.
    """
    frame, parts = question.rollouts, dict[tuple[str, str], list[str]]()
    if frame.empty or not n:
        return ""
    frame = frame[frame["seed"].isin(question.seeds[:n])]
    for task, ends_A in zip(question.tasks, question.values_STA[:n].mean(axis=0), strict=True):
        lower, higher = (question.arms[place] for place in np.argsort(ends_A, kind="stable"))
        runs = frame[(frame["task"] == task) & (frame["goal"] == lower)].fillna({"completions": np.inf})
        medians = runs.groupby("arm")[["completions", "whole"]].median()
        if not medians["completions"][lower] > 0:
            continue
        one_length, first, words = medians["whole"].nunique() == 1, (higher, lower) not in parts, dict[str, str]()
        for arm, (reached, whole) in medians.iterrows():
            share = f"{reached / whole:.0%}" if np.isfinite(reached) else "more than 100%"
            words[str(arm)] = share if one_length or np.isinf(reached) else f"{reached:,.0f} of {whole:,.0f}"
        unit = f" {'of its rollouts' if one_length else 'completions'}" if first else ""
        place = f" on {task}" if len(question.tasks) > 1 else ""
        itself = f"`{lower}` itself {words[lower]}" if first else words[lower]
        parts.setdefault((higher, lower), []).append(f"{words[higher]}{unit}{place} ({itself})")
    return "; ".join(
        f"to where `{lower}` ends `{higher}` needs {', '.join(each)}" for (higher, lower), each in parts.items()
    )


def in_points(question: Question, effect: float, low: float = np.nan, high: float = np.nan) -> str:
    """Write an effect that is given in units of the margins as a factor or a difference.

    For tasks with different margins it is their mean with weights 1 / margin, as in the decision.
    """
    margin = float(1 / (1 / question.unit_T).mean())
    effect, low, high = (bound * margin for bound in (effect, low, high))
    if question.logarithmic:
        effect, low, high = (float(np.exp(bound)) for bound in (effect, low, high))
    return estimate(effect, low, high, _times if question.logarithmic else signed)


def _times(factor: float) -> str:
    return f"×{number(factor)}"


def trend_in_words(question: Question, n: int) -> str:
    """Write Kendall's tau with the order of the levels, and the levels' means."""
    values_STA = question.values_STA[:n]
    means = zip(question.arms, values_STA.mean(axis=(0, 1)), strict=True)
    return (
        f"{signed(rank_trend(values_STA).effect)} (means: {', '.join(f'{arm} {number(mean)}' for arm, mean in means)})"
    )


def contrast(question: Question) -> str:
    """Write the arms as they are compared."""
    return (", " if question.kind == "trend" else " / " if question.logarithmic else " - ").join(question.arms)


def sentence(question: Question, decision: Decision, verdict: str, size: str, flags: Sequence[str]) -> str:
    """Write the finding, its place, how sure it is, and its flags."""
    hypothesis, tasks, n = question.hypothesis, listing(question.tasks), decision.n
    of = f"`{hypothesis['metric']}` of {contrast(question)}"
    if question.kind == "trend":
        of = f"Kendall's tau of `{hypothesis['metric']}` over {contrast(question)}"
    if hypothesis["range_over"]:
        of = f"the range over {hypothesis['range_over']} of {of}"
    head = f"{hypothesis['id']} is {verdict}" + (f" in {question.where}" if question.where else "")
    if hypothesis["by_construction"]:
        shows = question.as_claimed()
        return f"{head}: {of}, as claimed in {int(shows.sum())} of {count(shows.size, 'pair')} of a seed and a task."
    notes = question.gaps + "".join(f"; {flag}" for flag in flags)
    seeds = len(question.values_STA)
    if not n:
        first = question.looks[0]
        return f"{head}: {of} ({min(seeds, first)} of the {first} seeds of the first look, {tasks}){notes}."
    sure = ""
    if np.isfinite(decision.adjusted_p):
        sure = f"; adjusted {p_equals(decision.adjusted_p)}"
        if seeds > n and question.kind == "mean":  # some seeds came after the decision
            sure += f"; at all {seeds} seeds {in_points(question, float(question.pooled(seeds).mean()))}"
    return f"{head}: {of} is {size} ({count(n, 'seed')}, {tasks}{sure}){notes}."


def flags(question: Question, decision: Decision, low: float, high: float) -> Iterator[str]:
    """Yield warnings, which change no verdict. `low`, `high`: the interval in units of the margins, or NaN."""
    if question.void:
        yield question.void
    if np.isnan(decision.p):  # nothing was tested
        return
    verdict, sign, n = decision.verdict, question.sign, decision.n
    turned = verdict in (SUPPORTED, OPPOSITE) and not question.is_equality
    if turned and n == LOOKS[0] and (verdict == SUPPORTED or not question.beyond):
        yield "decided at five seeds: the estimate is probably too large"
    y_S = question.pooled(n) if question.kind == "mean" else np.empty(0)
    if not len(y_S) or not np.isfinite(y_S).all():
        return
    if turned:
        if low > -1 and high < 1:
            yield "smaller than the margin"
        if verdict == OPPOSITE and question.beyond and sign * (high if sign > 0 else low) > 0:
            yield "less than claimed, and not shown to be the other way round"
        if n >= 2 * LOOKS[0] and sign_flip(sign * y_S - question.pooled_beyond) > ALPHA:
            yield "a test without normality (sign flips) does not find it"
    if verdict == NEGLIGIBLE and (low > 0 or high < 0):
        yield "not zero, and yet inside the margin"
    if len(np.unique(y_S)) >= FEWEST_VALUES and abs(pd.Series(y_S).skew()) > SKEWED:
        yield "skewed differences: p may be too small"
    if verdict == INCONCLUSIVE and question.has_margins and np.ptp(y_S):
        yield from _outlook(question, decision, y_S)


def _outlook(question: Question, decision: Decision, y_S: NDArray) -> Iterator[str]:
    """Say at which later look the question would be decided at this level, if mean and spread stayed as observed."""
    mean, sd, looks = float(y_S.mean()), float(np.std(y_S, ddof=1)), question.looks
    distance = question.sign * mean - question.pooled_beyond
    if question.is_equality:
        distance = max(abs(mean) - 1, 0.0)
    for look, later in enumerate(looks):
        if later <= decision.n:
            continue
        local = [float(planned.level_at(a, look, len(looks))) for a in (decision.level, 2 * decision.level)]
        reach = [-special.stdtrit(later - 1, a / 2) * sd / np.sqrt(later) for a in local]
        if abs(distance) > reach[0] or 1 - abs(mean) > reach[1]:
            yield f"{later} seeds would decide it at the earliest, were mean and spread as observed"
            return
    if decision.n < looks[-1]:
        yield f"{looks[-1]} seeds would not decide it, were mean and spread as observed (margin: {1 / sd:.1f} sd)"
