"""Decisions in words: for a score, first both arms' accuracies at the end and at the start, then differences.

Letters: S seeds, T tasks, A arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.report.questions import ONE_RATE, Question
from grpolab.report.statistics import looks as planned
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.statistics.looks import ALPHA, INCONCLUSIVE, LOOKS, OPPOSITE, SUPPORTED, few_values
from grpolab.report.statistics.tests import rank_trend
from grpolab.report.text import count, estimate, listing, number, p_equals, signed, times

SKEWED = 1.0
LATER = 0.02  # of a run: two arms are scored at different parts of it
SOME_TASKS = ("by itself on", "on no single task", "not shown on", "the other way on")  # in the words of a verdict
SMALL = "smaller than the margin, and real"


@dataclass(frozen=True)
class Decision:
    """A verdict, and what decided it. The defaults are for a description: an ordinary 95% interval, and no test."""

    verdict: str
    n: int  # seeds at the decision, or at the last look
    by_margin: bool = False  # the test of the margin decided
    level: float = ALPHA  # the question's part of ALPHA
    share: float = 1.0  # the look's part of that
    all_level: float = ALPHA  # the look's part of ALPHA over all questions of the family, decided ones too
    p: float = np.nan  # adjusted for several looks: divided by the share
    q: float = np.nan  # the same for what the hypothesis claims, for Benjamini and Hochberg's procedure

    @property
    def adjusted_p(self) -> float:
        """p after Holm's correction."""
        return min(self.p * ALPHA / self.level, 1.0)

    def estimate(self, values_S: NDArray, tasks: int = 1) -> tuple[float, float, float]:
        """Return mean and interval at the decision's level, divided by the number of tasks unless the margin decided.

        If a value is infinite, return the median without an interval; no interval if too few values differ.
        """
        if not np.isfinite(values_S).all():
            return float(np.median(values_S)), np.nan, np.nan
        if few_values(values_S):
            return float(values_S.mean()), np.nan, np.nan
        level = self.level * self.share
        return float(values_S.mean()), *planned.interval(values_S, 2 * level if self.by_margin else level / tasks)


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
    effects, form = [], times if question.logarithmic else signed
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


def verdict_in_words(question: Question, decision: Decision, tasks: Sequence[TaskEffect], disagree: bool) -> str:
    """Write a verdict: first what its interval says of a difference's size, last the tasks where they differ."""
    words = verdict_by_task(question, decision.verdict, tasks, disagree)
    if question.is_equality and decision.verdict == INCONCLUSIVE and any(task.side for task in tasks):
        shown = {"inside the margin on": 1, "beyond it on": -1, "not shown on": 0}
        on = {text: [task.task for task in tasks if task.side == side] for text, side in shown.items()}
        words += f": {', '.join(f'{text} {listing(names)}' for text, names in on.items() if names)}"
    size = _size_in_words(question, decision)
    return f"{size} ({words})" if size else words


def _size_in_words(question: Question, decision: Decision) -> str:
    """Say of a difference that is not 0 whether it is smaller than the margin; '' if it may be 0, or is larger.

    It is not 0 if its direction was decided, or would be without Holm's gain from decided ones.
    """
    turned = decision.verdict in (SUPPORTED, OPPOSITE) and not question.is_equality
    if question.kind != "mean" or not question.has_margins or question.beyond or np.isnan(decision.p):
        return ""
    d_ST, y_S = question.differences(decision.n) / question.unit_T, question.pooled(decision.n)
    if not np.isfinite(d_ST).all() or any(map(few_values, (y_S, *d_ST.T))):
        return ""
    level = decision.level * decision.share if turned else decision.all_level
    low, high = planned.interval(y_S, level)
    if not turned and low <= 0 <= high:
        T, (_, low, high) = len(question.tasks), decision.estimate(y_S)
        of_tasks = zip(question.tasks, (planned.interval(d_S, level / T) for d_S in d_ST.T), strict=True)
        on = [task for task, (least, most) in of_tasks if T > 1 and (least > 0 or most < 0)]
        size = f"{SMALL} on {listing(on)}" if on else "smaller than the margin, and perhaps not 0"
        return size if decision.by_margin and (on or low > 0 or high < 0) else ""
    if decision.by_margin or all(np.abs(planned.interval(d_S, level)).max() < 1 for d_S in d_ST.T):
        return SMALL
    if low > -1 and high < 1:
        return f"in the mean over tasks {SMALL}"
    return "" if turned or low > 1 or high < -1 else "real, and not shown to be smaller than the margin"


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
    alone = f"by itself on {on}" if on else "on no single task"
    if not disagree:
        parts = [f"{verdict} over the tasks together, {alone}"]
    else:
        parts = [f"{verdict} on {on}" if on else f"{verdict} together, {alone}"]
        parts += [f"not shown on {not_on}"] if not_on and on else []
    return ", ".join(parts + ([f"the other way on {other}"] if other else []))


def effect_in_words(question: Question, n: int, tasks: Sequence[TaskEffect], pooled: str, disagree: bool) -> list[str]:
    """Write the effect over n seeds twice: with the intervals of single tasks, and without.

    For one task that is `pooled`; for several, their mean and then each one, or each one first if tasks disagree. A
    score begins with the accuracies, and ends with the share of the gain and, if they differ, where arms are scored.
    """
    ends, share = _ends(question, n), "" if disagree else _share_of_gain(question, n)
    share += _where_scored(question, n) if ends else ""
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
    whose = "the baseline" if question.baseline == question.arms[-1] else f"`{question.baseline}`"
    return f", {round(100 * share):+d}% of {whose}'s gain"


def _where_scored(question: Question, n: int) -> str:
    """Say at which share of its run each arm is scored, median over seeds, in tasks where two differ by 2% or more.

    A score is of the last evaluations, so an arm with fewer of them over the same completions is scored later.
    """
    frame, texts = question.rollouts, list[str]()
    for task, of_task in frame[frame["seed"].isin(question.seeds[:n])].groupby("task") if len(frame) else ():
        at_A = of_task.groupby("arm")["scored"].median()
        if at_A.max() - at_A.min() >= LATER:
            place = f" on {task}" if len(question.tasks) > 1 else ""
            texts.append(f"{listing([f'{share:.0%} of a run of `{arm}`' for arm, share in at_A.items()])}{place}")
    return f"; scored at {'; '.join(texts)}" if texts else ""


def rollouts_in_words(question: Question, n: int) -> str:
    """Write what share of its rollouts the better arm needs to reach the other one's final accuracy; empty if unknown.

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
        itself = f"`{lower}` itself after {words[lower]}" if first else words[lower]
        parts.setdefault((higher, lower), []).append(f"{words[higher]}{unit}{place} ({itself})")
    return "; ".join(
        f"`{higher}` gets to where `{lower}` ends after {', '.join(each)}" for (higher, lower), each in parts.items()
    )


def in_points(question: Question, effect: float, low: float = np.nan, high: float = np.nan) -> str:
    """Write an effect that is given in units of the margins as a factor or a difference.

    For tasks with different margins it is their mean with weights 1 / margin, as in the decision.
    """
    margin = float(1 / (1 / question.unit_T).mean())
    effect, low, high = (bound * margin for bound in (effect, low, high))
    if question.logarithmic:
        effect, low, high = (float(np.exp(bound)) for bound in (effect, low, high))
    return estimate(effect, low, high, times if question.logarithmic else signed)


def trend_in_words(question: Question, n: int) -> str:
    """Write Kendall's tau with the order of the levels, and the levels' means."""
    values_STA = question.values_STA[:n]
    means = zip(question.arms, values_STA.mean(axis=(0, 1)), strict=True)
    named = ", ".join(f"{arm} {number(mean)}" for arm, mean in means)
    return f"{signed(rank_trend(values_STA).effect)} (means: {named})"


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
    if question.low_starts:
        yield question.low_starts
    if question.earlier:
        times = "once" if question.earlier == 1 else f"{question.earlier} times"
        yield f"registered {times} before: decided at {ALPHA:g}/{2**question.earlier}"
    if np.isnan(decision.p):  # nothing was tested
        return
    verdict, sign, n = decision.verdict, question.sign, decision.n
    turned = verdict in (SUPPORTED, OPPOSITE) and not question.is_equality
    if turned and n == LOOKS[0] and (verdict == SUPPORTED or not question.beyond):
        yield "decided at five seeds: the estimate is probably too large"
    y_S = question.pooled(n) if question.kind == "mean" else np.empty(0)
    if not len(y_S) or not np.isfinite(y_S).all():
        return
    if turned and verdict == OPPOSITE and question.beyond and sign * (high if sign > 0 else low) > 0:
        yield "less than claimed, and not shown to be the other way round"
    if not few_values(y_S) and abs(pd.Series(y_S).skew()) > SKEWED:
        yield "skewed differences: p may be too small"
    if verdict == INCONCLUSIVE and question.has_margins and np.ptp(y_S):
        yield from _outlook(question, decision, y_S)


def _outlook(question: Question, decision: Decision, y_S: NDArray) -> Iterator[str]:
    """Say at which later look the question would be decided at this level, if means and spreads stayed as observed."""
    d_ST, mean, sd = question.differences(decision.n) / question.unit_T, float(y_S.mean()), float(np.std(y_S, ddof=1))
    distance = abs(mean) - 1 if question.is_equality else abs(question.sign * mean - question.pooled_beyond)
    for later, share in zip(question.looks, planned.shares(question.looks), strict=True):
        if later <= decision.n:
            continue
        direction, margin = (planned.critical(a * decision.level * share, later) / np.sqrt(later) for a in (1, 2))
        inside = np.abs(d_ST.mean(axis=0)) + margin * d_ST.std(axis=0, ddof=1) < 1
        if distance > direction * sd or inside.all():
            yield f"{later} seeds would decide it at the earliest, were mean and spread as observed"
            return
    if decision.n < question.looks[-1]:
        margin_sds = f"(margin: {1 / sd:.1f} sd)"
        yield f"{question.looks[-1]} seeds would not decide it, were mean and spread as observed {margin_sds}"
