"""One number per run: what tables, claims and figures compare."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.errors import RequestError, near_matches
from grpolab.report.load import Study
from grpolab.report.stability import CELL_COLUMNS, DEFAULT, Thresholds, stability_table
from grpolab.vocabulary import METRICS

# Index of every result here: where, which, which again.
_KEYS = ["facet", "arm", "seed"]


def measure(study: Study, metric: str, thresholds: Thresholds = DEFAULT) -> pd.Series:
    """A number for each run, indexed by (facet, arm, seed).

    `metric` is a column of the stability table (`final_score`, `drawdown`, ...; labels count as 0 and 1), or any metric
    of the journal: its mean over the run's records.

    Raises RequestError for any other word.
    """
    if metric in METRICS:
        return run_means(study, metric)
    table = stability_table(study, thresholds)
    quantities = table.columns.drop(CELL_COLUMNS)
    if metric in quantities:
        return table.set_index(_KEYS)[metric].astype("float64")
    near = near_matches(metric, [*METRICS, *quantities])
    raise RequestError(f"metric={metric} is neither a journal metric nor a stability quantity{near}")


def run_means(study: Study, metric: str) -> pd.Series:
    """Mean of a journal metric over each run's records; runs whose journals lack it are left out."""
    return _means(getattr(study, f"{METRICS[metric].kind}s"), metric)


def means_after_first_step(study: Study, metric: str) -> pd.Series:
    """The same over the updates that can clip: all but the first optimiser step on each batch."""
    updates = study.updates
    return _means(updates[(updates["iteration"] > 0) | (updates["minibatch"] > 0)], metric)


def clip_ceiling(study: Study) -> pd.Series:
    """What a rule that clips everything it can would clip: (1 - zero-variance share)(1 - 1/updates per batch), per run.

    Zero-variance groups have no gradient to lose, and before the first optimiser step on a batch every ratio is 1.
    """
    updates = study.cells["setting/num_iterations"] * study.cells["setting/num_minibatches"]
    reusable = pd.Series(1 - 1 / updates.to_numpy(dtype=float), pd.MultiIndex.from_frame(study.cells[_KEYS]))
    return ((1 - run_means(study, "zero_variance/share")) * reusable).dropna()


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
