"""One number per run: what tables, claims and figures compare."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from grpolab.errors import RequestError, near_matches
from grpolab.quantities import QUANTITIES, SCORES, SHARES
from grpolab.report.load import Study
from grpolab.report.mechanism import clip_ceiling as ceiling_of
from grpolab.report.stability import stability_table
from grpolab.report.statistics import Interval, share_interval, t_interval
from grpolab.vocabulary import METRICS

# Index of every result here: where, which, which again.
_KEYS = ["facet", "arm", "seed"]


def measure(study: Study, metric: str) -> pd.Series:
    """A number for each run, indexed by (facet, arm, seed).

    `metric` is a column of the stability table (`final_score`, `drawdown`, ...; labels count as 0 and 1), or any metric
    of the journal: its mean over the run's records.

    Raises RequestError for any other word.
    """
    if metric in METRICS:
        return run_means(study, metric)
    if metric in QUANTITIES:
        return stability_table(study).set_index(_KEYS)[metric].astype("float64")
    near = near_matches(metric, [*METRICS, *QUANTITIES])
    raise RequestError(f"metric={metric} is neither a journal metric nor a stability quantity{near}")


def is_share(study: Study, metric: str) -> bool:
    """Whether `metric` of a run lies between 0 and 1, so that the interval of its mean has to."""
    name = study.metric if metric in SCORES else metric
    unit = METRICS[name].unit if name in METRICS else ""
    return name in SHARES or unit.startswith(("share", "mean share", "probability"))


def mean_interval(study: Study, metric: str, values_S: ArrayLike) -> Interval:
    """Mean over seeds of what `measure` gives with its 95% interval: Student's, of a share `share_interval`."""
    return (share_interval if is_share(study, metric) else t_interval)(values_S)


def run_means(study: Study, metric: str) -> pd.Series:
    """Mean of a journal metric over each run's records; runs whose journals lack it are left out."""
    return _means(getattr(study, f"{METRICS[metric].kind}s"), metric)


def by_cell(study: Study, metric: str) -> pd.Series:
    """`measure` for each row of `study.cells`; NaN where it has no run, or the run no such number."""
    values = measure(study, metric).reindex(pd.MultiIndex.from_frame(study.cells[_KEYS]))
    return pd.Series(values.to_numpy(dtype=np.float64), study.cells.index)


def completions_learnt(study: Study, evaluations: pd.DataFrame) -> pd.Series:
    """How many completions a run has learnt from by each of its evaluations, those carried forward included."""
    variants = study.cells.drop_duplicates("variant").set_index("variant")
    batch = variants["setting/prompts_per_step"] * variants["setting/num_generations"]
    return evaluations["rollout_step"] * evaluations["variant"].map(batch)


def means_after_first_step(study: Study, metric: str) -> pd.Series:
    """The same over the updates that can clip: all but the first optimiser step on each batch."""
    return _means(after_first_step(study.updates), metric)


def after_first_step(updates: pd.DataFrame) -> pd.DataFrame:
    """The updates but the first on each batch, before which every ratio is 1."""
    return updates[(updates["iteration"] > 0) | (updates["minibatch"] > 0)]


def clip_ceiling(study: Study) -> pd.Series:
    """What a rule that clips everything it can would clip, per run (`mechanism.clip_ceiling`)."""
    updates = study.cells["setting/num_iterations"] * study.cells["setting/num_minibatches"]
    index = pd.MultiIndex.from_frame(study.cells[_KEYS])
    shares = run_means(study, "zero_variance/share").reindex(index)
    return ceiling_of(shares, pd.Series(updates.to_numpy(dtype=float), index)).dropna()


def at(values: pd.Series, facet: str, arm: str) -> pd.Series:
    """The values of one arm in one facet, by seed; empty where there are none."""
    index = values.index
    here = values[(index.get_level_values("facet") == facet) & (index.get_level_values("arm") == arm)]
    return here.droplevel(["facet", "arm"]).sort_index()


def by_setting(study: Study, values: pd.Series, facet: str, setting: str) -> pd.DataFrame:
    """Values in one facet by seed (index) and the arms' value of a numeric setting (columns, rising).

    Only where that setting tells the arms apart; else there are no columns.
    """
    cells = study.cells[study.cells["facet"] == facet].drop_duplicates("arm").sort_values(setting)
    if cells[setting].nunique() < len(cells):
        return pd.DataFrame()
    columns = {
        row.setting: at(values, facet, row.arm) for row in cells.rename(columns={setting: "setting"}).itertuples()
    }
    return pd.DataFrame(columns).dropna(axis=1, how="all")


def add_ragged(rows: pd.Series) -> NDArray:
    """Sum of lists that may differ in length, entry by entry. Shape: (longest,)."""
    total = np.zeros(max((len(row) for row in rows), default=0))
    for row in rows:
        total[: len(row)] += row
    return total


def _means(frame: pd.DataFrame, metric: str) -> pd.Series:
    if metric not in frame:
        return pd.Series(dtype="float64", index=pd.MultiIndex.from_arrays([[], [], []], names=_KEYS))
    return frame[metric].astype("float64").groupby([frame[key] for key in _KEYS]).mean().dropna()
