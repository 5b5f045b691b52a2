"""The numbers that tables, claims and figures compare: one per run, indexed by facet, arm and seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from grpolab.errors import RequestError, near_matches
from grpolab.known_runs import KnownRuns
from grpolab.meanings import METRICS
from grpolab.quantities import QUANTITIES, SCORES, SHARES, Thresholds
from grpolab.report.journals import column, final_score
from grpolab.report.load import KEYS, StudyRuns
from grpolab.report.stability import after_first_step, journal_quantities, largest_clip_share, score_quantities
from grpolab.report.statistics import intervals
from grpolab.report.statistics.intervals import LEAST_RUNS, LEAST_TASKS, Band, Interval
from grpolab.report.statistics.tests import Difference, paired_difference, welch_difference
from grpolab.report.text import count
from grpolab.vocabulary import COMPLETED, SIGNS, quantile_metric

# Factors along which a study tests how far its findings generalise, with the unit of their levels (`0.13M`, `48`).
SCALES = {"size": "parameters", "length": "tokens"}
# Means over a run's updates or rollout steps that tables and sentences need, besides those that hypotheses name.
MEANS = (
    *("clip/active", "clip/active_low", "clip/active_high", "clip/out_of_range", "clip/capped", "clip/outer"),
    *("cf/token_0.2", "cf/sequence_0.2", "p_old/up_clipped", "p_old/all", "zero_variance/share"),
)
LATER_MEANS = ("clip/active_nz", "clip/active_low_nz", "clip/active_high_nz")
SPREAD = "later |log ratio|"
OF_JOURNAL = [name for name in QUANTITIES if name not in score_quantities(np.empty(0), COMPLETED, 1, Thresholds())]
SCORE = "(final accuracy - start) / (1 - start)"  # averaged over tasks (Agarwal et al. 2021, arXiv:2108.13264)
_CELL_COLUMNS = ["variant", "arm", "facet", "seed", "outcome"]
_TASK = "factor/task"


@lru_cache(maxsize=32)
def stability_table(study: StudyRuns) -> pd.DataFrame:
    """Return one row per cell with a result: variant, arm, facet, seed, outcome, and every quantity of its run.

    Labels are by the thresholds of the study's plan. Cached: do not change it in place. What a journal alone decides is
    kept from one command to the next.
    """
    kept, rows, known = kept_quantities(study), [], KnownRuns(study.results)
    settings = study.done.filter(like="setting/").rename(columns=lambda name: name.removeprefix("setting/"))
    for cell, of_run in zip(study.done.itertuples(), settings.to_dict("records"), strict=True):
        accuracy_E = column(study.of_cell("evaluations", cell), study.metric)
        scores = score_quantities(accuracy_E, cell.outcome, cell.evaluation_items, study.thresholds)
        if cell.signature not in kept:
            compute = partial(_of_journal, study, cell, of_run)
            kept[cell.signature] = keep_of_run(study, known, cell, "quantities", study.thresholds, compute)
        rows.append({key: getattr(cell, key) for key in _CELL_COLUMNS} | scores | kept[cell.signature])
    known.save()
    return pd.DataFrame(rows, columns=[*_CELL_COLUMNS, *QUANTITIES])


def keep_of_run(study: StudyRuns, known: KnownRuns, cell: Any, what: str, asked: object, compute: Callable) -> Any:
    """Return what `compute` makes of a run; it is kept until the run's journal changes, or what was `asked` of it.

    By the journal's hash, because a committed run may have another one. Runs of others have no signature of ours.
    """
    asked = hashlib.sha256(f"{getattr(cell, 'journal_sha256', None)} {asked}".encode()).hexdigest()
    return compute() if study.is_found else known.derived(cell.signature, f"{what} {asked}", lambda _: compute())


def _of_journal(study: StudyRuns, cell: Any, settings: dict[str, Any]) -> dict[str, float | bool]:
    tables = study.of_cell("updates", cell), study.of_cell("rollouts", cell)
    return journal_quantities(*tables, settings, study.thresholds)


def kept_quantities(study: StudyRuns) -> dict[str, dict[str, float | bool]]:
    """Return by signature those of the kept `journal_quantities` that use the study's thresholds."""
    if study.numbers.empty:
        return {}
    kept = study.numbers[study.numbers["thresholds"] == _to_text(study.thresholds)]
    return dict(zip(kept["signature"], kept[OF_JOURNAL].to_dict("records"), strict=True))


def _to_text(thresholds: Thresholds) -> str:
    return json.dumps(asdict(thresholds), sort_keys=True)


@lru_cache(maxsize=1024)
def measure(study: StudyRuns, metric: str) -> pd.Series:
    """Return a number for each run, indexed by (facet, arm, seed).

    `metric` is a column of the stability table (`final_score`, `drawdown`, ...; labels count as 0 and 1), or a metric
    of the journal: its mean over the run's records. Raises RequestError for any other word.
    Cached: do not change it in place.
    """
    if metric in METRICS:
        return run_means(study, metric)
    if metric in QUANTITIES:
        return stability_table(study)[[*KEYS, metric]].set_index(KEYS)[metric].astype("float64")
    near = near_matches(metric, [*METRICS, *QUANTITIES])
    raise RequestError(f"metric={metric} is neither a journal metric nor a stability quantity{near}")


def run_means(study: StudyRuns, metric: str) -> pd.Series:
    """Return the mean of a journal metric over each run's records; runs whose journals lack it are left out."""
    return _add_kept(study, f"mean {metric}", _means(getattr(study, f"{METRICS[metric].kind}s"), metric))


def means_after_first_step(study: StudyRuns, metric: str) -> pd.Series:
    """Return the mean over each run's updates that can clip: all but the first on each batch."""
    return _add_kept(study, f"later {metric}", _means(study.updates[after_first_step(study.updates)], metric))


def log_ratio_spread(study: StudyRuns) -> pd.Series:
    """Return half the width of the central 98% of log sequence ratios, mean over both signs of A and those updates."""
    updates = study.updates[after_first_step(study.updates)]
    names = {(sign, end): quantile_metric("sequence", end, sign) for sign in SIGNS for end in ("p01", "p99")}
    updates = updates.reindex(columns=[*updates.columns, *(set(names.values()) - set(updates))])
    with np.errstate(divide="ignore"):
        logs = {key: np.log(updates[name].astype("float64")) for key, name in names.items()}
    half = sum(logs[sign, "p99"] - logs[sign, "p01"] for sign in SIGNS) / (2 * len(SIGNS))
    return _add_kept(study, SPREAD, _means(updates.assign(half=half.where(np.isfinite(half))), "half"))


def run_numbers(study: StudyRuns, metrics: Iterable[str]) -> pd.DataFrame:
    """Return one row for each run: signature, thresholds, the quantities of its journal, and means over its records.

    The committed outcome (results/reference/) keeps these instead of a run's updates and rollout steps; of the
    evaluations it keeps all, so what they say is computed again. `metrics`: named by hypotheses.
    """
    wanted = (*MEANS, *sorted(set(metrics) - {*MEANS}))
    means = [name for name in wanted if name in METRICS and METRICS[name].kind in ("update", "rollout")]
    table = stability_table(study)[["seed", "arm", "facet", *OF_JOURNAL]]
    frame = table.merge(study.done[[*KEYS, "signature"]], on=KEYS)
    columns = {f"mean {name}": run_means(study, name) for name in means}
    columns |= {f"later {name}": means_after_first_step(study, name) for name in LATER_MEANS}
    columns |= {SPREAD: log_ratio_spread(study)}
    index = pd.MultiIndex.from_frame(frame[KEYS])
    numbers = pd.DataFrame({name: values.reindex(index).to_numpy() for name, values in columns.items()})
    numbers = pd.concat([frame.drop(columns=KEYS), numbers.dropna(axis=1, how="all")], axis=1)
    return numbers.assign(thresholds=_to_text(study.thresholds))


def _add_kept(study: StudyRuns, column: str, means: pd.Series) -> pd.Series:
    """Return means in float32, as the committed outcome keeps them, with those of runs of which it keeps only means."""
    means = means.astype("float32").astype("float64")
    if column not in study.numbers:
        return means
    by_signature = study.numbers[["signature", column]].drop_duplicates("signature").set_index("signature")[column]
    values = study.done["signature"].map(by_signature).to_numpy(dtype=np.float64)
    return pd.Series(values, pd.MultiIndex.from_frame(study.done[KEYS])).dropna().combine_first(means)


def _means(frame: pd.DataFrame, metric: str) -> pd.Series:
    if metric not in frame:
        return pd.Series(dtype="float64", index=pd.MultiIndex.from_arrays([[], [], []], names=KEYS))
    return frame[metric].astype("float64").groupby([frame[key] for key in KEYS]).mean().dropna()


def clip_ceiling(study: StudyRuns) -> pd.Series:
    """Return for each run the largest share of tokens that any rule can clip (`largest_clip_share`)."""
    updates = study.cells["setting/num_iterations"] * study.cells["setting/num_minibatches"]
    index = pd.MultiIndex.from_frame(study.cells[KEYS])
    shares = run_means(study, "zero_variance/share").reindex(index)
    return largest_clip_share(shares, pd.Series(updates.to_numpy(dtype=float), index)).dropna()


def is_share(study: StudyRuns, metric: str) -> bool:
    """Return True if `metric` lies between 0 and 1, so that the interval of its mean must too."""
    name = study.metric if metric in SCORES else metric
    unit = METRICS[name].unit if name in METRICS else ""
    return name in SHARES or unit.startswith(("share", "mean share", "probability"))


def band_of(study: StudyRuns, metric: str) -> Callable[[ArrayLike], Band]:
    """Return the function that computes 95% bands of means of `metric`: `share_band` for a share, else `t_band`."""
    return intervals.share_band if is_share(study, metric) else intervals.t_band


def mean_interval(study: StudyRuns, metric: str, values_S: ArrayLike) -> Interval:
    """Return the mean over seeds with its 95% interval: `share_interval` for a share, else Student's t."""
    return (intervals.share_interval if is_share(study, metric) else intervals.t_interval)(values_S)


def at(values: pd.Series, facet: str, arm: str) -> pd.Series:
    """Return the values of one arm in one facet, by seed."""
    (facets, arms, seeds), levels = values.index.codes, values.index.levels
    places = [of.get_loc(name) if name in of else None for of, name in zip(levels, (facet, arm), strict=False)]
    rows = np.flatnonzero((facets == places[0]) & (arms == places[1]))
    rows = rows[np.argsort(levels[2].to_numpy()[seeds[rows]], kind="stable")]
    return pd.Series(values.to_numpy()[rows], levels[2].take(seeds[rows]), name=values.name)


def difference(study: StudyRuns, values: pd.Series, facet: str, arm: str, other: str) -> Difference:
    """Return an arm minus another in one facet: paired by seed, or Welch's if runs are not paired."""
    compare = paired_difference if study.is_paired else welch_difference
    return compare(at(values, facet, arm), at(values, facet, other))


@lru_cache(maxsize=1024)
def by_cell(study: StudyRuns, metric: str) -> pd.Series:
    """Return `measure` for each row of `study.cells`, NaN without one. Cached: do not change it in place."""
    values = measure(study, metric).reindex(pd.MultiIndex.from_frame(study.cells[KEYS]))
    return pd.Series(values.to_numpy(dtype=np.float64), study.cells.index)


def by_setting(study: StudyRuns, values: pd.Series, facet: str, setting: str) -> pd.DataFrame:
    """Return values in one facet by seed (index) and the arms' value of a numeric setting (columns, rising).

    No columns unless that setting tells the arms apart.
    """
    cells = study.cells[study.cells["facet"] == facet].drop_duplicates("arm").sort_values(setting)
    if cells[setting].nunique() < len(cells):
        return pd.DataFrame()
    columns = {level: at(values, facet, arm) for level, arm in zip(cells[setting], cells["arm"], strict=True)}
    return pd.DataFrame(columns).dropna(axis=1, how="all")


def numeric_axes(study: StudyRuns) -> dict[str, str]:
    """Return {factor: setting} for the factors whose levels differ only in numbers, all of them different.

    Each arm may have other numbers. If a factor changes several settings together (epsilon and epsilon_high), the first
    one represents them.
    """
    one_seed = study.cells[study.cells["seed"] == study.cells["seed"].min()]
    settings = [column for column in one_seed if column.startswith("setting/")]
    axes = {}
    for factor in study.plan["factors"]:
        groups = list(split(one_seed, [factor]).values())
        moved = [c for c in settings if any(frame[c].astype(str).nunique() > 1 for frame in groups)]
        numeric = all(isinstance(value, Real) for column in moved for value in one_seed[column])
        distinct = [c for c in moved if numeric and all(frame[c].nunique() == len(frame) for frame in groups)]
        if distinct:
            axes[factor] = distinct[0]
    return axes


def split(
    cells: pd.DataFrame, without: Collection[str], join: str = " · ", units: Mapping[str, str] = MappingProxyType({})
) -> dict[str, pd.DataFrame]:
    """Return rows of `cells` by the joined levels, with their units, of all factors but those in `without`."""
    factors = [name[7:] for name in cells if name.startswith("factor/") and name[7:] not in without]
    if not factors:
        return {"": cells}

    def title(levels: tuple[str, ...]) -> str:
        return join.join(f"{level} {units.get(name, '')}".rstrip() for name, level in zip(factors, levels, strict=True))

    groups = cells.groupby([f"factor/{name}" for name in factors], sort=False)
    return {title(levels): frame for levels, frame in groups}


def completions_to_reach(completions_E: NDArray, scores_E: NDArray, goal: float) -> float:
    """Return how many completions a run has sampled when its score first is at a goal; NaN if it never is.

    Between two evaluations E the score is on a straight line.
    """
    above_E = scores_E >= goal
    if not above_E.any():
        return np.nan
    first = int(above_E.argmax())
    around = slice(max(first - 1, 0), first + 1)
    return float(np.interp(goal, scores_E[around], completions_E[around]))


def reach(study: StudyRuns, goals: pd.Series) -> pd.DataFrame:
    """Return for rows of `study.cells`, each with a goal, `completions_to_reach` it, and those of the `whole` run.

    `scored` is the share of the run at which the evaluations of its final score lie, in their mean.
    """
    curves, tail = _curves(study), study.thresholds.score_tail
    none = np.array([np.nan]), np.array([np.nan])
    numbers = [
        (completions_to_reach(completions_E, scores_E, goal), whole, final_score(completions_E, tail) / whole)
        for row, goal in goals.items()
        for completions_E, scores_E in [curves.get(row, none)]
        for whole in [completions_E[-1]]
    ]
    return pd.DataFrame(numbers, goals.index, columns=["completions", "whole", "scored"], dtype=np.float64)


@lru_cache(maxsize=32)
def _curves(study: StudyRuns) -> dict[Any, tuple[NDArray, NDArray]]:
    """Return for each row of `study.cells` with evaluations: completions sampled, and scores; both (E,)."""
    frame = study.evaluations
    if study.metric not in frame:
        return {}
    of_run = frame.sort_values("rollout_step").groupby(["variant", "seed"])[["completions", study.metric]]
    kept = {run: rows.to_numpy(dtype=np.float64).T for run, rows in of_run}
    runs = dict(zip(study.cells.index, zip(study.cells["variant"], study.cells["seed"], strict=True), strict=True))
    return {row: (kept[run][0], kept[run][1]) for row, run in runs.items() if run in kept}


@dataclass(frozen=True, eq=False)
class TaskScores:
    """Scores of runs that differ only in arm, task and seed.

    A score in `scores_ATS` is 0 for a run that ends as accurate as its warm start, 1 for one that is always right. Only
    seeds that every arm has on every task are in it; arms without any run are left out.
    """

    title: str
    arms: list[str]
    tasks: list[str]
    seeds: list[int]
    scores_ATS: NDArray

    @property
    def lack(self) -> str:
        """The reason why scores must not be averaged over the tasks; empty if they may."""
        if len(self.tasks) >= LEAST_TASKS and len(self.seeds) >= LEAST_RUNS:
            return ""
        needs = f"needs {LEAST_TASKS} tasks with {LEAST_RUNS} seeds that every arm has on every task"
        return f"{needs}; has {count(len(self.tasks), 'task')} with {count(len(self.seeds), 'such seed')}"


def pool_tasks(study: StudyRuns) -> list[TaskScores]:
    """Pool scores over tasks, for each combination of the levels of all factors except `task` and the compared one."""
    start, final = by_cell(study, "start"), by_cell(study, "final_score")
    cells = study.cells.assign(score=(final - start) / (1 - start))
    if _TASK not in cells:
        cells[_TASK] = cells["setting/task"]
    others = [c for c in cells if c.startswith("factor/") and c not in (_TASK, f"factor/{study.plan['compare']}")]
    groups = []
    for levels, frame in cells.groupby(others, sort=False) if others else [((), cells)]:
        ran = set(frame.loc[frame["score"].notna(), "arm"])
        arms, tasks = [arm for arm in study.arms if arm in ran], list(frame[_TASK].unique())
        wide = frame[frame["arm"].isin(arms)].set_index(["seed", "arm", _TASK])["score"].unstack(["arm", _TASK])
        complete = wide.reindex(columns=pd.MultiIndex.from_product([arms, tasks])).dropna().sort_index()
        scores_ATS = complete.to_numpy(dtype=np.float64).T.reshape(len(arms), len(tasks), len(complete))
        groups.append(TaskScores(" · ".join(levels), arms, tasks, [int(seed) for seed in complete.index], scores_ATS))
    return groups
