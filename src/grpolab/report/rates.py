"""Learning rates of a study that trains each arm at several: the best one, and the band of rates that work.

Dimension letters: X learning rates, S seeds, R replicates of a bootstrap, A rules.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

from grpolab.report import measures
from grpolab.report.load import StudyRuns
from grpolab.report.measures import numeric_axes, split
from grpolab.report.statistics.intervals import CONFIDENCE, t_interval
from grpolab.report.statistics.looks import ALPHA
from grpolab.report.tables import Table
from grpolab.report.text import estimate, signed

STALENESS, PASSES = "setting/staleness", "setting/num_iterations"
GENERATIONS, PROMPTS = "setting/num_generations", "setting/prompts_per_step"
RATE = "setting/learning_rate"
KEPT = 0.5  # the share of the best gain that a workable rate keeps
REPLICATES = 2_000
FEWEST_RATES = 3  # of a grid; two are regimes


class RateBand(NamedTuple):
    """The learning rates around the best one that keep KEPT of its gain, and how many times apart their ends are.

    `open_low`, `open_high`: the band goes on beyond the grid, so that its width is at least that. `least` and `most`
    bound the width; they are NaN below two seeds. `lack`: why there is no band.
    """

    low: float = np.nan
    high: float = np.nan
    width: float = np.nan
    least: float = np.nan
    most: float = np.nan
    open_low: bool = False
    open_high: bool = False
    lack: str = ""


def workable_band(rate_X: NDArray, gain_XS: NDArray) -> RateBand:
    """Return the band of workable rates of one rule, from its gains over the warm start; rates rise, (X,), (X, S).

    Between two rates of the grid gain is linear in the rate's logarithm. The width has a percentile interval of a
    bootstrap over seeds, each drawn with its gains at all rates (generator seed 0); with five seeds it is too short.
    """
    if gain_XS.shape[1] < 2:
        return RateBand(lack="needs two seeds at every rate")
    best = int(gain_XS.mean(axis=1).argmax())
    if not t_interval(gain_XS[best]).low > 0:
        return RateBand(lack="no gain at any rate")
    seeds = gain_XS.shape[1]
    drawn_RS = np.random.default_rng(0).integers(seeds, size=(REPLICATES, seeds))
    low, high = _ends(np.log(rate_X), gain_XS.mean(axis=1))
    ends_R2 = np.array([_ends(np.log(rate_X), gain_XS[:, drawn_S].mean(axis=1)) for drawn_S in drawn_RS])
    tail = 100 * (1 - CONFIDENCE) / 2
    least, most = np.exp(np.nanpercentile(ends_R2[:, 1] - ends_R2[:, 0], [tail, 100 - tail]))
    return RateBand(
        *(float(np.exp(low)), float(np.exp(high)), float(np.exp(high - low)), float(least), float(most)),
        open_low=bool(low == np.log(rate_X[0])),
        open_high=bool(high == np.log(rate_X[-1])),
    )


def _ends(log_X: NDArray, gain_X: NDArray) -> tuple[float, float]:
    """Return where gain falls below KEPT of its largest, on the way down and up from there; NaN without a gain."""
    best = int(gain_X.argmax())
    least = KEPT * gain_X[best]
    if gain_X[best] <= 0:
        return np.nan, np.nan
    ends = []
    for step, last in ((-1, 0), (1, len(gain_X) - 1)):
        at = best
        while at != last and gain_X[at + step] >= least:
            at += step
        if at == last:
            ends.append(float(log_X[last]))
        else:
            share = (gain_X[at] - least) / (gain_X[at] - gain_X[at + step])
            ends.append(float(log_X[at] + share * (log_X[at + step] - log_X[at])))
    return ends[0], ends[1]


def rate_factor(study: StudyRuns) -> str:
    """Return the factor that moves the learning rate alone; empty if none does."""
    return next((factor for factor, setting in numeric_axes(study).items() if setting == RATE), "")


def at_best_rates(cells: pd.DataFrame, *moved: str) -> tuple[pd.DataFrame, bool]:
    """Return the cells of each rule, task and value of the settings `moved` at the rate with the best mean score.

    Also whether there were several rates. A rate counts only if every planned seed has a result there.
    """
    place = ["setting/task", "arm", *moved]
    of_rate = cells.groupby([*place, RATE])["score"].agg(lambda scores: scores.mean(skipna=False)).reset_index()
    chosen = of_rate.sort_values("score", ascending=False, kind="stable").drop_duplicates(place)
    return cells.merge(chosen[[*place, RATE]], on=[*place, RATE]), bool(of_rate.duplicated(place).any())


class Lead(NamedTuple):
    """The best rule at a place, its mean lead over the next one in points, and whether it leads every other surely."""

    rule: str
    over: str
    mean: float
    is_beyond: bool


def best_rule(apart: pd.DataFrame, place: tuple[Any, Any]) -> Lead | None:
    """Return the lead of the best rule at a place; None below two rules. `apart`: (staleness, passes, rule) by seed.

    It is beyond doubt if the paired 95% t-interval of its lead over each other rule, with Bonferroni's correction for
    their number, excludes 0.
    """
    here_AS = apart.loc[place].dropna(how="all") if place in apart.index.droplevel(-1) else apart.iloc[:0]
    if len(here_AS) < 2:
        return None
    order = here_AS.mean(axis=1).sort_values(ascending=False, kind="stable").index
    leads = {rule: (here_AS.loc[order[0]] - here_AS.loc[rule]).dropna() for rule in order[1:]}

    def is_above_0(lead_S: pd.Series) -> bool:
        n = len(lead_S)
        if n < 2:
            return False
        half = -special.stdtrit(n - 1, ALPHA / 2 / len(leads)) * lead_S.std() / np.sqrt(n)
        return bool(lead_S.mean() - half > 0)

    return Lead(order[0], order[1], float(leads[order[1]].mean()), all(map(is_above_0, leads.values())))


def tables(study: StudyRuns) -> list[Table]:
    """Return the table of each arm's best learning rate; none for a study without a factor of three rates or more.

    A later study takes its rates from it. Best: the highest mean final score over seeds, of rates at which every
    planned seed has a result. Beside it stand the next lower and higher rates of the grid, paired by seed.
    """
    factor = rate_factor(study)
    if not factor or factor == study.plan["compare"] or len(study.plan["factors"][factor]) < FEWEST_RATES:
        return []
    cells = study.cells.assign(score=measures.by_cell(study, "final_score").to_numpy())
    rows, shown = [], []
    for facet, part in split(cells, (factor, study.plan["compare"]), "/").items():
        for arm, of_arm in part.groupby("arm", sort=False):
            score_XS = of_arm.pivot(index=RATE, columns="seed", values="score")
            whole_XS = score_XS.dropna()
            if whole_XS.empty:
                continue
            best = whole_XS.mean(axis=1).idxmax()
            score, place = t_interval(score_XS.loc[best]), score_XS.index.get_loc(best)
            row = {"facet": facet, "arm": arm, "n": score.n, "rate": best, "rates": len(score_XS)}
            row |= {"whole": len(whole_XS), "score": score.mean, "score_low": score.low, "score_high": score.high}
            words = {"facet": facet, "arm": arm, "seeds": score.n, "best rate": f"{best:.2g}"}
            words |= {"final score": estimate(*score[:3])}
            for side, other in (("lower", place - 1), ("higher", place + 1)):
                is_there = 0 <= other < len(score_XS)
                loss = t_interval(score_XS.iloc[other] - score_XS.loc[best] if is_there else [])
                row |= {side: score_XS.index[other] if is_there else np.nan, f"{side}_minus": loss.mean}
                row |= {f"{side}_low": loss.low, f"{side}_high": loss.high}
                words[f"next {side} rate"] = estimate(*loss[:3], signed) if is_there else "none: the grid ends"
            rows.append(row)
            shown.append(words | {"rates with every seed": f"{len(whole_XS)} of {len(score_XS)}"})
    return [Table("best_rates", _BEST_RATES.format(study.name), pd.DataFrame(rows), pd.DataFrame(shown))]


_BEST_RATES = (
    "{}: each arm's best learning rate, which later studies take: that of the highest mean final score, where every"
    " planned seed has a result; its mean [95% t-interval], and by how much the next rates of the grid end lower,"
    " paired by seed. The seeds that choose a rate flatter it: description, no verdict."
)
