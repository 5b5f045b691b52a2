"""Effects in words: of a score the accuracies first, at the end and the start of both arms; then differences.

Letters: S seeds, T tasks, A arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpolab.report.questions import AskedQuestion
from grpolab.report.statistics import looks as planned
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.statistics.tests import rank_trend
from grpolab.report.text import estimate, number, signed

FEWEST_VALUES = 4  # different ones, for a t-test; all of fewer seeds


@dataclass(frozen=True)
class TaskEffect:
    """The effect in one task, on the scale on which it is written, with its share of the decision's level."""

    task: str
    effect: float
    low: float
    high: float
    side: int  # 1: its interval alone lies where it is claimed; -1: on the other side; 0: on neither
    text: str
    short: str  # without the interval


def mean_with_interval(values_S: NDArray, interval: tuple[bool, float, int, int]) -> tuple[float, float, float]:
    """Return mean and interval; the median without one where a value is infinite, no interval without spread."""
    if not np.isfinite(values_S).all():
        return float(np.median(values_S)), np.nan, np.nan
    if len(np.unique(values_S)) < min(FEWEST_VALUES, len(values_S)):
        return float(values_S.mean()), np.nan, np.nan
    return float(values_S.mean()), *planned.interval(values_S, *interval)


def task_effect(question: AskedQuestion, n: int, t: int, interval: tuple[bool, float, int, int]) -> TaskEffect:
    """Return the effect in task t over the first n seeds; `interval`: the other arguments of `looks.interval`."""
    bounds = mean_with_interval(question.differences(n)[:, t], interval)
    effect, low, high = (float(np.exp(bound)) for bound in bounds) if question.logarithmic else bounds
    form = _times if question.logarithmic else signed
    side = _side(question, question.margin_T[t], bounds[1], bounds[2])
    return TaskEffect(question.tasks[t], effect, low, high, side, estimate(effect, low, high, form), form(effect))


def _side(question: AskedQuestion, margin: float, low: float, high: float) -> int:
    """Return 1 where the interval lies on the claimed side, -1 on the other (`equal`: outside the margin), else 0."""
    if question.hypothesis["direction"] == "equal":
        return int(-margin < low and high < margin) - int(low > margin or high < -margin)
    low, high = sorted((question.sign * low, question.sign * high))
    return int(low > question.beyond) - int(high < question.beyond)


def effect_in_words(
    question: AskedQuestion, n: int, together: str, tasks: Sequence[TaskEffect], disagree: bool, short: bool
) -> str:
    """Write the effect: of one task as it is; of several their mean, and each. Where tasks disagree, they come first.

    Of a score the accuracies come first, and a share of the gain last.
    """
    share = "" if disagree else _share_of_gain(question, n)
    if ends := _ends(question, n):
        arms = f"{' -> '.join(f'`{arm}`' for arm in reversed(question.arms))}: " if len(question.arms) > 1 else ""
        head = f"{question.score_name} {arms}"
        if len(tasks) == 1:
            return f"{head}{ends[0]}; {together}{share}"
        each = [f"{task.task} {end}" for task, end in zip(tasks, ends, strict=True)]
        listed = ", ".join(each if short else [f"{of}, {task.text}" for of, task in zip(each, tasks, strict=True)])
        return f"{head}{listed}; {'the tasks disagree, ' if disagree else ''}together {together}{share}"
    if len(tasks) == 1:
        return together + share
    listed = ", ".join(f"{task.task} {task.short if short else task.text}" for task in tasks)
    return f"{listed} (the tasks disagree; together {together})" if disagree else f"{together} ({listed}){share}"


def _ends(question: AskedQuestion, n: int) -> list[str]:
    """Write the accuracies of each task as `0.372 -> 0.008 (start 0.304)`; nothing of other metrics."""
    metric = question.hypothesis["metric"]
    if not question.score_name or metric not in ("final_score", "gain"):
        return []
    end_TA, start_T = question.values_STA[:n].mean(axis=0)[:, ::-1], question.start_ST[:n].mean(axis=0)
    if metric == "gain":  # alone it is a way from the start to the end
        end_TA = end_TA + start_T[:, None]
        end_TA = end_TA if len(question.arms) > 1 else np.column_stack([start_T, end_TA])
    if np.isnan(end_TA).any():
        return []
    started = [f" (start {start:.3f})" if len(question.arms) > 1 and np.isfinite(start) else "" for start in start_T]
    return [" -> ".join(f"{end:.3f}" for end in of) + began for of, began in zip(end_TA, started, strict=True)]


def _share_of_gain(question: AskedQuestion, n: int) -> str:
    """Write the difference of two arms as a share of the baseline's gain in the same seeds; empty where that may be 0.

    Of several tasks it is the mean of their shares.
    """
    gain_ST = question.gain_ST[:n]
    if not question.score_name or len(question.arms) < 2 or n < 2 or np.isnan(gain_ST).any():
        return ""
    if any(t_interval(gain_S).low <= 0 for gain_S in gain_ST.T):
        return ""
    share = (question.differences(n).mean(axis=0) / gain_ST.mean(axis=0)).mean()
    return f", {round(100 * share):+d}% of the baseline's gain"


def in_points(question: AskedQuestion, effect: float, low: float, high: float) -> str:
    """Write an effect that is in units of the margins: as a factor, or a difference.

    Of tasks with different margins it is their mean with weights of 1 / margin, as it is decided.
    """
    margin = float(1 / (1 / question.unit_T).mean())
    if question.logarithmic:
        mean, lower, upper = np.exp(np.array([effect, low, high]) * margin)
        return estimate(float(mean), float(lower), float(upper), _times)
    return estimate(effect * margin, low * margin, high * margin, signed)


def _times(factor: float) -> str:
    return f"×{number(factor)}"


def trend_size(question: AskedQuestion, n: int) -> str:
    """Write Kendall's tau with the order of the levels, and the levels' means."""
    values_STA = question.values_STA[:n]
    tau = rank_trend(values_STA).effect
    means = ", ".join(
        f"{arm} {number(mean)}" for arm, mean in zip(question.arms, values_STA.mean(axis=(0, 1)), strict=True)
    )
    return f"{signed(tau)} (means: {means})"
