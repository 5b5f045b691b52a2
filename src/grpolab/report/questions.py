"""Hypotheses in numbers: their seeds, tasks and arms, the values of each, and the margins.

A hypothesis is one question for each combination of the levels that it leaves open. Its unit is the seed: the mean over
tasks of the difference that a seed shows, each in units of the smallest difference that matters there (the margin).
`claims.py` decides them.

Letters: S seeds, T tasks, A arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.quantities import GAINS, LABELS
from grpolab.report.load import StudyRuns
from grpolab.report.measures import by_cell
from grpolab.report.registered import label as label_of
from grpolab.report.statistics.looks import LOOKS
from grpolab.report.text import count, number
from grpolab.vocabulary import DIVERGED, LOW_START, MARGIN_FACTOR, MARGIN_OF_GAIN, RESULTS

ALL_TASKS = "all tasks"
DIGITS = 12  # of a compared number; digits behind these are rounding, which no test may take for a spread
Hypothesis = dict[str, Any]  # as the plan has it
# The columns of a cell, besides its factors, that a question reads: tables of all its settings are slow to cut.
_COLUMNS = ("seed", "arm", "outcome", "commit", "touched", "warm_start_accuracy", "setting/task")


@dataclass(frozen=True)
class AskedQuestion:
    """A hypothesis in one combination of the levels that it leaves open, with the numbers that decide it."""

    study: str
    hypothesis: Hypothesis
    where: str
    tasks: list[str]
    arms: list[str]
    values_STA: NDArray  # of the seeds that have all of them, in the order in which they are looked at
    margin_T: NDArray  # on the tested scale; NaN: every difference matters
    looks: tuple[int, ...]
    family: str  # the registration, or the study; questions of one family are decided together
    label: str
    why: str
    void: str  # the reason why nothing can be decided
    gaps: str  # a note about runs that ended early or are left out, and seeds that began low
    score_name: str = ""  # the score in words; empty where the metric is no score
    start_ST: NDArray = field(default_factory=lambda: np.empty((0, 0)))  # a score's, NaN where arms begin apart
    gain_ST: NDArray = field(default_factory=lambda: np.empty((0, 0)))  # the baseline's, of the same seeds

    @property
    def logarithmic(self) -> bool:
        """Return whether arms are compared as factors."""
        return self.hypothesis["scale"] == "log"

    @property
    def sign(self) -> float:
        """Return 1 where the difference should be above 0, else -1."""
        return -1.0 if self.hypothesis["direction"] == "less" else 1.0

    @property
    def beyond(self) -> float:
        """Return the claimed distance beyond 0, on the tested scale."""
        given = self.hypothesis["beyond"]
        return float(np.log(given or 1)) if self.logarithmic else given

    def differences(self, n: int) -> NDArray:
        """Return the first arm minus the second (or 0) of the first n seeds, as logarithms if so tested; (n, T)."""
        of = self.values_STA[:n, :, 0]
        minus = self.values_STA[:n, :, 1] if len(self.arms) > 1 else np.zeros_like(of)
        with np.errstate(divide="ignore", invalid="ignore"):
            of, minus = (np.log(of), np.log(minus)) if self.logarithmic else (of, minus)
            # A share that is 0 in one arm is infinitely smaller; in both arms it is a tie.
            difference = np.where(of == minus, 0.0, of - minus)
        return _rounded(difference, np.maximum(np.abs(of), np.abs(minus)) + self.logarithmic)

    @property
    def unit_T(self) -> NDArray:
        """Return the unit of a difference in each task: its margin where every task has one, else 1."""
        return self.margin_T if np.isfinite(self.margin_T).all() else np.ones(len(self.tasks))

    def pooled(self, n: int) -> NDArray:
        """Return one number a seed: the mean over tasks of its differences in units of the margins; (n,)."""
        d_ST = self.differences(n) / self.unit_T
        with np.errstate(invalid="ignore"):
            mean_S = d_ST.mean(axis=1)
        mean_S = np.where(np.isnan(mean_S), 0.0, mean_S)  # infinite in one task, the other way in another: a tie
        return _rounded(mean_S, np.abs(d_ST).max(axis=1))


def _rounded(values: NDArray, of: NDArray) -> NDArray:
    """Round values to DIGITS of the largest numbers that they were computed from."""
    known = np.isfinite(of) & (of > 0)
    scale = 10.0 ** (DIGITS - np.ceil(np.log10(np.where(known, of, 1.0))))
    return np.where(known, np.round(np.where(known, values, 0.0) * scale) / scale, values)


def ask(study: StudyRuns, hypothesis: Hypothesis, owner: StudyRuns, decided: bool) -> Iterator[AskedQuestion]:
    """Ask a hypothesis once for each combination of open levels that has all its arms in some task.

    `owner`: the study or collection that registers it; `decided`: it belongs to a family.
    """
    name = hypothesis["id"] if owner is study else f"{study.name}.{hypothesis['id']}"
    entry = owner.plan.get("registered", {}).get(name)
    for where, here, tasks, arms in _combinations(study, hypothesis):
        question = _question(study, hypothesis, where, here, tasks, arms, entry, owner)
        family = "" if not decided or hypothesis["by_construction"] else entry["line"] if entry else owner.name
        yield replace(question, family=family)


def _combinations(study: StudyRuns, hypothesis: Hypothesis) -> Iterator[tuple[str, pd.DataFrame, list[str], list[str]]]:
    """Yield each combination of open levels, its cells (the metric as `value`), its tasks, and the arms.

    Only tasks that have all arms count. Arms with a task of their own each (lengths of answers) are compared over all
    tasks.
    """
    plan, columns = study.plan, [name for name in study.cells if name in _COLUMNS or name.startswith("factor/")]
    cells = study.cells[columns].assign(value=by_cell(study, hypothesis["metric"]))
    for factor, level in hypothesis["where"].items():
        cells = cells[cells[f"factor/{factor}"] == level]
    arms = hypothesis["trend"] or [arm for arm in hypothesis["contrast"].values() if arm is not None]
    open_ = [f for f in plan["factors"] if f not in (plan["compare"], hypothesis["range_over"], "task")]
    cells = cells.assign(
        where=["/".join(row) for row in cells[[f"factor/{f}" for f in open_]].to_numpy(dtype=str)],
        # Where tasks are what is compared, a seed has one number over all of them.
        task=ALL_TASKS if plan["compare"] == "task" else cells.get("factor/task", cells["setting/task"]),
    )
    for where, here in cells.groupby("where", sort=False):
        has_all = here.groupby("task", sort=False)["arm"].agg(lambda found: set(arms) <= set(found))
        tasks = [str(task) for task in has_all.index[has_all]]
        of_arm = here[here["arm"].isin(arms)].groupby("arm")["task"].nunique()
        if not tasks and set(of_arm.index) == set(arms) and (of_arm == 1).all():
            here, tasks = here.assign(task=ALL_TASKS), [ALL_TASKS]
        if tasks:
            yield str(where), here[here["task"].isin(tasks)], tasks, arms


def _question(
    study: StudyRuns,
    hypothesis: Hypothesis,
    where: str,
    here: pd.DataFrame,
    tasks: list[str],
    arms: list[str],
    entry: dict[str, Any] | None,
    owner: StudyRuns,
) -> AskedQuestion:
    """Put a hypothesis in numbers. `here`: cells of the tasks with the metric as `value`; `entry`: its registration."""
    cells = here[here["arm"].isin(arms)]
    deciding = {*arms, (hypothesis["provided"] or {}).get("of")}
    label, why = label_of(entry, {study.name, owner.name}, here[here["arm"].isin(deciding)])
    if entry:
        cells = cells[cells["seed"].isin(entry["seeds"])]
    if hypothesis["scale"] == "log":
        cells = cells.assign(value=cells["value"].where(cells["value"] >= 0))  # a negative number has no logarithm
    # A range over a factor is NaN where a level has no value: it would be too small. Else there is one run of a seed.
    summary = np.ptp if hypothesis["range_over"] else np.max
    values = cells.groupby(["seed", "task", "arm"])["value"].agg(lambda runs: summary(runs.to_numpy()))
    wide = values.unstack(["task", "arm"]).reindex(columns=pd.MultiIndex.from_product([tasks, arms]))
    if hypothesis["provided"]:  # a seed counts once its condition can be read, too
        of = here[here["arm"] == hypothesis["provided"]["of"]].groupby("seed")
        readable = of["outcome"].agg(lambda found: found.isin(RESULTS).all()) & (of["task"].nunique() == len(tasks))
        wide = wide[readable.reindex(wide.index, fill_value=False)]
    if entry:  # looks are at the first registered seeds: what comes after a gap waits
        wide = wide.reindex(sorted(entry["seeds"]))
        wide = wide[wide.notna().all(axis=1).cummin()]
    wide = wide.dropna().sort_index()
    diverged = int((cells["outcome"] == DIVERGED)[cells["seed"].isin(wide.index)].sum())
    finished = cells["outcome"].isin(RESULTS).groupby(cells["seed"]).all()
    valueless = len(set(finished.index[finished]) - set(wide.index)) if not entry else 0
    waits = next((seed for seed in sorted(entry["seeds"]) if seed not in wide.index), None) if entry else None
    gaps = f"; {count(diverged, 'run')} that diverged counted as far as they came" if diverged else ""
    gaps += f"; {count(valueless, 'seed')} without a value of it" if valueless else ""
    if waits in finished.index and finished[waits]:
        asked = cells.groupby("seed").size()
        stopped = f"no look goes past seed {waits}, of which not every arm was asked for"
        no_value = f"seed {waits} has no value of it, and no look goes past a seed"
        gaps += f"; {stopped if asked[waits] < asked.max() else no_value}"
    gaps += _low_starts(cells[cells["seed"].isin(wide.index)])
    looks = tuple((entry or owner.plan).get("looks") or LOOKS)
    # Margin and condition are those of the first look: later seeds must not change what was decided.
    first = here[here["seed"].isin(wide.index[: looks[0]])]
    if entry:  # what has none is null in the registry
        margin_T = np.array([entry["margins"].get(place) for place in _places(where, tasks)], dtype=np.float64)
    else:
        margin_T = np.array([_margin(study, hypothesis, first[first["task"] == task]) for task in tasks])
    values_STA = wide.to_numpy(dtype=np.float64).reshape(len(wide), len(tasks), len(arms))
    question = AskedQuestion(
        study.name, hypothesis, where, tasks, arms, values_STA, margin_T, looks, "", label, why, "", gaps
    )
    is_score = hypothesis["metric"] in GAINS and hypothesis["contrast"] and not hypothesis["range_over"]
    if is_score and hypothesis["scale"] == "linear":
        compared, baseline = here[here["arm"].isin(arms)], here[here["arm"] == study.baseline]
        start_ST = _shared(study, compared, "start", wide.index, tasks)
        gain_ST = _shared(study, baseline, "gain", wide.index, tasks)
        question = replace(question, score_name=study.score_name, start_ST=start_ST, gain_ST=gain_ST)
    void = _condition_fails(study, hypothesis, first) or _nothing_differs(question, looks[0])
    if hypothesis["direction"] == "equal" and np.isnan(margin_T).any():
        void = void or "where its baseline gains nothing, no difference is small"
    return replace(question, void=void)


def _shared(study: StudyRuns, cells: pd.DataFrame, quantity: str, seeds: pd.Index, tasks: list[str]) -> NDArray:
    """Return the number that all cells of a seed and a task share; NaN where they have none, or several; (S, T)."""
    of = by_cell(study, quantity)[cells.index].groupby([cells["seed"], cells["task"]])
    one = of.first().where(of.nunique(dropna=False) == 1)
    return one.unstack("task").reindex(index=seeds, columns=tasks).to_numpy(dtype=np.float64)


def _low_starts(cells: pd.DataFrame) -> str:
    """Name seeds whose warm start did not take; they are kept, because the deciding seeds were fixed before."""
    if cells.empty:
        return ""
    starts = cells["warm_start_accuracy"].astype("float64").groupby([cells["task"], cells["seed"]]).min()
    usual = starts.groupby("task").transform("median")
    low = starts[starts < LOW_START * usual]
    return "".join(
        f"; the warm start of seed {seed} came to accuracy {low[task, seed]:.3f} on training prompts, the median seed's"
        f" to {usual[task, seed]:.3f}"
        for task, seed in low.index
    )


def _margin(study: StudyRuns, hypothesis: Hypothesis, here: pd.DataFrame) -> float:
    """Return the smallest difference that matters in one task, on the tested scale; NaN: every one does."""
    given = hypothesis["margin"]
    if hypothesis["scale"] == "log":
        return float(np.log(given or MARGIN_FACTOR))
    if given is None and hypothesis["metric"] in GAINS and not hypothesis["trend"]:
        baseline = here[here["arm"] == study.baseline]
        gain = by_cell(study, "gain")[baseline.index].mean()
        return MARGIN_OF_GAIN * gain if gain > 0 else np.nan
    return np.nan if given is None else given


def _condition_fails(study: StudyRuns, hypothesis: Hypothesis, here: pd.DataFrame) -> str:
    """Say in which task the condition of the hypothesis does not hold; empty where it holds."""
    condition = hypothesis["provided"]
    if not condition:
        return ""
    of = here[here["arm"] == condition["of"]]
    means = by_cell(study, condition["metric"])[of.index].groupby(of["task"], sort=False).mean()
    for task, mean in means.items():
        if not mean > condition["above"]:
            measured = "not measured" if np.isnan(mean) else number(mean)
            return (
                f"its condition fails in {task}: `{condition['metric']}` of {condition['of']} is {measured}, not above"
                f" {condition['above']:g}"
            )
    return ""


def _nothing_differs(question: AskedQuestion, n: int) -> str:
    """Say that arms have one value in each of the first n seeds: no number of seeds would decide it.

    Empty for labels: a rare one may come with more seeds.
    """
    values_STA = question.values_STA[:n]
    is_label = question.hypothesis["metric"] in LABELS
    if not len(values_STA) or is_label or len(question.arms) == 1 or not (values_STA == values_STA[..., :1]).all():
        return ""
    return f"its arms have one value in each of {count(len(values_STA), 'seed')}"


def margins(study: StudyRuns, hypothesis: Hypothesis) -> dict[str, float]:
    """Return the smallest difference that matters, for each place (levels of the other factors) and task, as tested.

    Of a score it is a share of the baseline's gain there, over all runs of the study. A registration keeps these as
    constants, from seeds that decide nothing.
    """
    return {
        place: float(_margin(study, hypothesis, here[here["task"] == task]))
        for where, here, tasks, _ in _combinations(study, hypothesis)
        for place, task in zip(_places(where, tasks), tasks, strict=True)
    }


def _places(where: str, tasks: Sequence[str]) -> list[str]:
    return ["/".join(filter(None, (where, task))) for task in tasks]
