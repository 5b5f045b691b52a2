"""Turn hypotheses into numbers: their seeds, tasks, arms, measured values and margins. `claims.py` decides them.

A hypothesis asks one question for each combination of levels of the factors that it does not fix. The unit is the seed:
a seed's differences in the tasks, each divided by that task's margin (the smallest difference that matters), are
averaged.

Letters: S seeds, T tasks, A arms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.quantities import GAINS, LABELS
from grpolab.report.load import StudyRuns
from grpolab.report.measures import by_cell, reach
from grpolab.report.registered import label as label_of
from grpolab.report.statistics.looks import LOOKS, disagreement
from grpolab.report.text import count, number
from grpolab.vocabulary import DIVERGED, LOW_START, MARGIN_FACTOR, MARGIN_OF_GAIN, NEAR_TARGET, RESULTS

ALL_TASKS = "all tasks"
ONE_RATE, OWN_RATES = "one learning rate", "each arm at its own learning rate"
QUESTION, CONSEQUENCE, REPETITION = "question", "consequence", "repetition"  # kinds of hypotheses
FEWEST_IN_SCORE = 3  # evaluations; a score of fewer is marked
DIGITS = 12  # digits of a compared number; further ones are rounding errors, which are no spread
Hypothesis = dict[str, Any]  # as the plan has it
# The columns of a cell, besides its factors, that a question reads: tables of all its settings are slow to cut.
_COLUMNS = (
    *("seed", "arm", "outcome", "commit", "touched", "began", "setting/task"),
    *("warm_start_accuracy", "setting/warm_start_target"),
)


@dataclass(frozen=True)
class Question:
    """A hypothesis at one setting of the factors that it does not fix, with the numbers that decide it."""

    study: str
    hypothesis: Hypothesis
    where: str  # the combination, as `stressed/1M`
    tasks: list[str]
    arms: list[str]
    values_STA: NDArray  # of the seeds that have a value for all tasks and arms, in the order of the looks
    margin_T: NDArray  # smallest difference that matters, on the tested scale; NaN: every difference matters
    looks: tuple[int, ...]
    family: str  # the registration, or the study; one Holm correction covers the questions of a family
    label: str
    seeds: tuple[int, ...] = ()  # S of them
    why: str = ""
    void: str = ""  # the reason why nothing can be decided
    is_run: bool = True  # a run of its seeds has finished, with a value or without
    gaps: str = ""  # a note about runs that ended early or are left out
    low_starts: str = ""  # the same about seeds whose warm start stayed far below its target
    earlier: int = 0  # how often the hypothesis was registered before
    score_name: str = ""  # the score in words; empty if the metric is no score
    start_ST: NDArray = field(default_factory=lambda: np.empty((0, 0)))  # a score's, NaN if arms begin apart
    gain_ST: NDArray = field(default_factory=lambda: np.empty((0, 0)))  # the baseline's gain, of the same seeds
    baseline: str = ""  # the study's, which may be neither of the arms
    rollouts: pd.DataFrame = field(default_factory=pd.DataFrame)  # of a final score (`_rollouts`)
    last_margin: dict[str, float] = field(default_factory=dict)  # by task (`_last_margin`)
    rates: str = ""  # ONE_RATE or OWN_RATES; empty if its arms are learning rates, or only one
    asks: tuple[str, str, bool] = (QUESTION, "", False)  # its kind, the reason, and if both are registered

    @property
    def kind(self) -> str:
        """The kind of its test: `label` counts runs, `trend` ranks levels, `mean` averages differences."""
        is_label = self.hypothesis["metric"] in LABELS
        return "label" if is_label else "trend" if self.hypothesis["trend"] else "mean"

    @property
    def is_equality(self) -> bool:
        return bool(self.hypothesis["direction"] == "equal")

    @property
    def logarithmic(self) -> bool:
        """True if arms are compared by ratios, as differences of logarithms."""
        return bool(self.hypothesis["scale"] == "log")

    @property
    def sign(self) -> float:
        """1 if the hypothesis says that the difference is above 0, else -1."""
        return -1.0 if self.hypothesis["direction"] == "less" else 1.0

    @property
    def beyond(self) -> float:
        """The claimed minimum size of the difference, on the tested scale."""
        distance = self.hypothesis["beyond"]
        return float(np.log(distance or 1)) if self.logarithmic else distance

    @property
    def pooled_beyond(self) -> float:
        """The claimed minimum size in units of the margins, mean over tasks."""
        return float((self.beyond / self.unit_T).mean())

    @property
    def has_margins(self) -> bool:
        return bool(np.isfinite(self.margin_T).all())

    @property
    def unit_T(self) -> NDArray:
        """The unit of a difference in each task: the task's margin if every task has one, else 1."""
        return self.margin_T if self.has_margins else np.ones(len(self.tasks))

    def differences(self, n: int) -> NDArray:
        """Return the first arm minus the second (or 0) for the first n seeds, of logarithms if so tested; (n, T)."""
        of = self.values_STA[:n, :, 0]
        minus = self.values_STA[:n, :, 1] if len(self.arms) > 1 else np.zeros_like(of)
        with np.errstate(divide="ignore", invalid="ignore"):
            of, minus = (np.log(of), np.log(minus)) if self.logarithmic else (of, minus)
            # A share of 0 in one arm makes the difference infinite; in both arms it is a tie.
            difference = np.where(of == minus, 0.0, of - minus)
        return _rounded(difference, np.maximum(np.abs(of), np.abs(minus)) + self.logarithmic)

    def pooled(self, n: int) -> NDArray:
        """Return each seed's mean over tasks of the differences in units of the margins; (n,)."""
        d_ST = self.differences(n) / self.unit_T
        with np.errstate(invalid="ignore"):
            mean_S = d_ST.mean(axis=1)
        mean_S = np.where(np.isnan(mean_S), 0.0, mean_S)  # +inf in one task and -inf in another: a tie
        return _rounded(mean_S, np.abs(d_ST).max(axis=1))

    def disagreement(self, n: int) -> float:
        """Return p that all tasks have one effect in units of their margins; NaN for one task, or without means."""
        d_ST = self.differences(n) / self.unit_T if self.kind == "mean" else np.full((n, 1), np.nan)
        return disagreement(d_ST.T) if np.isfinite(d_ST).all() else np.nan

    def as_claimed(self) -> NDArray:
        """Return for each seed and task whether it agrees with the claim; bool, (S, T)."""
        if self.kind == "trend":
            return np.asarray((self.sign * np.diff(self.values_STA, axis=2) > 0).all(axis=2))
        d_ST = self.differences(len(self.values_STA))
        return np.asarray(np.abs(d_ST) < self.margin_T if self.is_equality else self.sign * d_ST > self.beyond)


def _rounded(values: NDArray, of: NDArray) -> NDArray:
    """Round values to DIGITS digits, counted from the largest numbers that they were computed from."""
    known = np.isfinite(of) & (of > 0)
    scale = 10.0 ** (DIGITS - np.ceil(np.log10(np.where(known, of, 1.0))))
    return np.where(known, np.round(np.where(known, values, 0.0) * scale) / scale, values)


def ask(study: StudyRuns, hypothesis: Hypothesis, owner: StudyRuns, decided: bool) -> Iterator[Question]:
    """Yield a question for each setting of the factors that the hypothesis does not fix, if a task there has all arms.

    `owner`: the study or collection that registers it; `decided`: it belongs to a family.
    """
    name = hypothesis["id"] if owner is study else f"{study.name}.{hypothesis['id']}"
    entry = (owner.plan.get("registered") or {}).get(name)
    looks = tuple((entry or owner.plan).get("looks") or LOOKS)
    provided, metric = hypothesis["provided"] or {}, hypothesis["metric"]
    family = "" if not decided or hypothesis["by_construction"] else entry["line"] if entry else owner.name
    is_score = metric in GAINS and hypothesis["contrast"] and not hypothesis["range_over"]
    for where, here, tasks, arms in _combinations(study, hypothesis):
        cells = here[here["arm"].isin(arms)]
        deciding = here[here["arm"].isin({*arms, provided.get("of")})]
        label, why = label_of(entry, {study.name, owner.name}, deciding)
        if entry:
            cells = cells[cells["seed"].isin(entry["seeds"])]
        values = _values(hypothesis, here, cells, tasks, arms, entry)
        values_STA = values.to_numpy(dtype=np.float64).reshape(len(values), len(tasks), len(arms))
        # Margin and condition come from the seeds of the first look, so that later seeds cannot change a decision.
        first = here[here["seed"].isin(values.index[: looks[0]])]
        if entry:  # a place without a margin is null in the registry
            margin_T = np.array([entry["margins"].get(place) for place in _places(where, tasks)], dtype=np.float64)
        else:
            margin_T = np.array([_margin(study, hypothesis, first[first["task"] == task]) for task in tasks])
        void = _condition_fails(study, hypothesis, first)
        first_STA = values_STA[: looks[0]]
        if len(first_STA) and len(arms) > 1 and metric not in LABELS and (first_STA == first_STA[..., :1]).all():
            void = void or f"its arms have one value in each of {count(len(first_STA), 'seed')}"
        if hypothesis["direction"] == "equal" and np.isnan(margin_T).any():
            void = void or "where its baseline gains nothing, no difference is small"
        score: dict[str, Any] = {}
        if is_score and hypothesis["scale"] == "linear":
            baseline, compared = here[here["arm"] == study.baseline], here[here["arm"].isin(arms)]
            score["score_name"] = study.score_name
            score["start_ST"] = _shared(study, compared, "start", values.index, tasks)
            score["gain_ST"] = _shared(study, baseline, "gain", values.index, tasks)
            score["baseline"] = study.baseline
            if metric == "final_score" and len(arms) > 1:
                score["rollouts"] = _rollouts(study, compared)
                score["last_margin"] = _last_margin(study, baseline, dict(zip(tasks, margin_T, strict=True)))
        words: dict[str, Any] = {
            "family": family,
            "label": label,
            "seeds": tuple(values.index),
            "why": why,
            "void": void,
            "is_run": bool(cells["outcome"].isin(RESULTS).any()),
            "gaps": (_few_evaluations(study) if is_score else "") + _gaps(cells, values.index, entry),
            "low_starts": _low_starts(cells[cells["seed"].isin(values.index)]),
            "earlier": (entry or {}).get("earlier", 0),
            "rates": _rates(study, cells, hypothesis),
            "asks": _kind(hypothesis, entry),
        }
        yield Question(study.name, hypothesis, where, tasks, arms, values_STA, margin_T, looks, **words, **score)


def _combinations(study: StudyRuns, hypothesis: Hypothesis) -> Iterator[tuple[str, pd.DataFrame, list[str], list[str]]]:
    """Yield each combination of levels left open, with its cells (the metric as `value`), its tasks, and the arms.

    Only tasks that have all arms count. If each arm has its own task (lengths of answers), they are compared over all
    tasks.
    """
    plan, columns = study.plan, [name for name in study.cells if name in _COLUMNS or name.startswith("factor/")]
    cells = study.cells[columns].assign(
        value=by_cell(study, hypothesis["metric"]),
        where=study.places(hypothesis["range_over"]),
        # If the tasks themselves are compared, a seed has one number over all of them.
        task=ALL_TASKS if plan["compare"] == "task" else study.tasks,
    )
    for factor, level in hypothesis["where"].items():
        cells = cells[cells[f"factor/{factor}"] == level]
    arms = hypothesis["trend"] or [arm for arm in hypothesis["contrast"].values() if arm is not None]
    for where, here in cells.groupby("where", sort=False):
        has_all = here.groupby("task", sort=False)["arm"].agg(lambda present: set(arms) <= set(present))
        tasks = [str(task) for task in has_all.index[has_all]]
        of_arm = here[here["arm"].isin(arms)].groupby("arm")["task"].nunique()
        if not tasks and set(of_arm.index) == set(arms) and (of_arm == 1).all():
            here, tasks = here.assign(task=ALL_TASKS), [ALL_TASKS]
        if tasks:
            yield str(where), here[here["task"].isin(tasks)], tasks, arms


def _values(
    hypothesis: Hypothesis, here: pd.DataFrame, cells: pd.DataFrame, tasks: list[str], arms: list[str], entry: Any
) -> pd.DataFrame:
    """Return a row for each seed that has all values, with a column for each task and arm.

    `here`: cells of the tasks with the metric as `value`; `cells`: those of the arms; `entry`: the registration.
    """
    if hypothesis["scale"] == "log":
        cells = cells.assign(value=cells["value"].where(cells["value"] >= 0))  # a negative number has no logarithm
    # The range over a factor is NaN if a level has no value, because it would be too small. Else a seed has one run.
    summary = np.ptp if hypothesis["range_over"] else np.max
    values = cells.groupby(["seed", "task", "arm"])["value"].agg(lambda runs: summary(runs.to_numpy()))
    wide = values.unstack(["task", "arm"]).reindex(columns=pd.MultiIndex.from_product([tasks, arms]))
    if hypothesis["provided"]:  # a seed counts only if its condition is known, too
        of = here[here["arm"] == hypothesis["provided"]["of"]].groupby("seed")
        readable = of["outcome"].agg(lambda ends: ends.isin(RESULTS).all()) & (of["task"].nunique() == len(tasks))
        wide = wide[readable.reindex(wide.index, fill_value=False)]
    if entry:  # looks take the registered seeds in order, so seeds after a missing one wait
        wide = wide.reindex(sorted(entry["seeds"]))
        wide = wide[wide.notna().all(axis=1).cummin()]
    return wide.dropna().sort_index()


def _few_evaluations(study: StudyRuns) -> str:
    """Say how few evaluations a run's score is the mean of, if they are fewer than FEWEST_IN_SCORE."""
    done = study.evaluations[study.evaluations["signature"].isin(study.done["signature"])]
    whole = int(done.groupby("signature").size().max()) if len(done) else 0
    last = math.ceil(study.thresholds.score_tail * whole)
    few = "the last evaluation alone" if last == 1 else f"the mean of the last {last}"
    return f"; a score is {few}, of {whole}" if 0 < last < FEWEST_IN_SCORE else ""


def _gaps(cells: pd.DataFrame, seeds: pd.Index, entry: Any) -> str:
    """Name runs that diverged, and seeds without a value.

    `cells`: the arms' cells; `seeds`: the seeds that count, which were fixed before.
    """
    counted = cells[cells["seed"].isin(seeds)]
    diverged = int((counted["outcome"] == DIVERGED).sum())
    gaps = f"; {count(diverged, 'run')} that diverged counted as far as they came" if diverged else ""
    finished = cells["outcome"].isin(RESULTS).groupby(cells["seed"]).all()
    valueless = finished.index[finished].difference(seeds)
    if len(valueless) and not entry:
        gaps += f"; {count(len(valueless), 'seed')} without a value of it"
    waits = next((seed for seed in sorted(entry["seeds"]) if seed not in seeds), None) if entry else None
    if waits in valueless:
        runs = cells.groupby("seed").size()
        stopped = f"the plan stopped before seed {waits}: not every arm was asked for"
        no_value = f"seed {waits} has no value of it, and no look goes past a seed without one"
        gaps += f"; {stopped if runs[waits] < runs.max() else no_value}"
    return gaps


def _low_starts(counted: pd.DataFrame) -> str:
    """Name the seeds whose warm start did not reach its target (or half of the median seed's); they count all the same.

    The kept weights are those next to the target, which may lie a little below it.
    """
    starts = counted["warm_start_accuracy"].astype("float64").groupby([counted["task"], counted["seed"]]).min()
    usual = starts.groupby("task").transform("median")
    least, words = LOW_START * usual, usual.map("the median seed's {:.3f}".format)
    if "setting/warm_start_target" in counted:  # plans of older programs do not say it
        target = counted.groupby(["task", "seed"])["setting/warm_start_target"].first().astype("float64")
        least = (NEAR_TARGET * target).fillna(least)
        words = target.map("its target {:g}".format).where(target > 0, words)
    named = [
        f"seed {seed} in {task} came to accuracy {start:.3f} on training prompts, {words[task, seed]}"
        for (task, seed), start in starts[starts < least].items()
    ]
    return f"warm starts that stayed low: {'; '.join(named)}" if named else ""


def _shared(study: StudyRuns, cells: pd.DataFrame, quantity: str, seeds: pd.Index, tasks: list[str]) -> NDArray:
    """Return the quantity of a seed and task if all its cells have the same value, else NaN; (S, T)."""
    of = by_cell(study, quantity)[cells.index].groupby([cells["seed"], cells["task"]])
    one = of.first().where(of.nunique(dropna=False) == 1)
    return one.unstack("task").reindex(index=seeds, columns=tasks).to_numpy(dtype=np.float64)


def _rollouts(study: StudyRuns, cells: pd.DataFrame) -> pd.DataFrame:
    """Return for each cell and each arm as `goal`: completions to where that arm's run of the seed and task ends."""
    ends, parts = by_cell(study, "final_score")[cells.index], list[pd.DataFrame]()
    for goal in cells["arm"].unique():
        goals = ends.where(cells["arm"] == goal).groupby([cells["seed"], cells["task"]]).transform("first")
        parts.append(cells[["seed", "task", "arm"]].join(reach(study, goals)).assign(goal=goal))
    return pd.concat(parts)


def _last_margin(study: StudyRuns, baseline: pd.DataFrame, margins: dict[str, float]) -> dict[str, float]:
    """Return by task the share of the baseline's rollouts that its last margin takes, median over seeds."""
    ends = by_cell(study, "final_score")[baseline.index]
    near, end = reach(study, ends - baseline["task"].map(margins).astype("float64")), reach(study, ends)
    left = (end["completions"] - near["completions"]) / end["whole"]
    return left.groupby(baseline["task"]).median().to_dict()


def _kind(hypothesis: Hypothesis, entry: Any) -> tuple[str, str, bool]:
    """Return a hypothesis's kind, the reason, and True if its registration says so, which then decides."""
    if registered := (entry or {}).get("kind"):
        kind, _, because = registered.partition(": ")
        return kind, because, True
    return hypothesis.get("kind", QUESTION), hypothesis.get("because", ""), False  # plans of older programs have none


def _rates(study: StudyRuns, cells: pd.DataFrame, hypothesis: Hypothesis) -> str:
    """Say if the arms share a learning rate in each task, or have one of their own, found by tuning.

    Two arms may have the same one, each as its own: then the hypothesis says so.
    """
    rates = study.cells.loc[cells.index].get("setting/learning_rate")
    if rates is None or cells["arm"].nunique() < 2:
        return ""
    if study.plan.get("tuned") or "at its own learning rate" in (hypothesis.get("tested") or hypothesis["says"]):
        return OWN_RATES
    return ONE_RATE if (rates.groupby(cells["task"]).nunique() == 1).all() else ""


def _margin(study: StudyRuns, hypothesis: Hypothesis, here: pd.DataFrame) -> float:
    """Return the smallest difference that matters in one task, on the tested scale; NaN if every difference matters."""
    margin = hypothesis["margin"]
    if hypothesis["scale"] == "log":
        return float(np.log(margin or MARGIN_FACTOR))
    if margin is None and hypothesis["metric"] in GAINS and not hypothesis["trend"]:
        gain = by_cell(study, "gain")[here.index[here["arm"] == study.baseline]].mean()
        return float(MARGIN_OF_GAIN * gain) if gain > 0 else np.nan
    return np.nan if margin is None else float(margin)


def _condition_fails(study: StudyRuns, hypothesis: Hypothesis, here: pd.DataFrame) -> str:
    """Say in which task the condition of the hypothesis does not hold; empty if it holds everywhere."""
    if not (condition := hypothesis["provided"]):
        return ""
    of = here[here["arm"] == condition["of"]]
    means = by_cell(study, condition["metric"])[of.index].groupby(of["task"], sort=False).mean()
    for task, mean in means.items():
        if not mean > condition["above"]:
            measured = "not measured" if np.isnan(mean) else number(mean)
            of_arm = f"`{condition['metric']}` of {condition['of']}"
            return f"its condition fails in {task}: {of_arm} is {measured}, not above {condition['above']:g}"
    return ""


def margins(study: StudyRuns, hypothesis: Hypothesis) -> dict[str, float]:
    """Return the margin by place (a task with levels of the other factors).

    For a score, it is by default a share of the baseline's mean gain there, over all runs of the study. A registration
    keeps margins as constants, from pilot seeds that its tests do not use.
    """
    return {
        place: _margin(study, hypothesis, here[here["task"] == task])
        for where, here, tasks, _ in _combinations(study, hypothesis)
        for place, task in zip(_places(where, tasks), tasks, strict=True)
    }


def _places(where: str, tasks: Sequence[str]) -> list[str]:
    return ["/".join(filter(None, (where, task))) for task in tasks]
