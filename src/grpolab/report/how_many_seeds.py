"""What the runs of a study say about claims with few seeds: its contrasts as arrays, and two tables for reviewers.

`power.py` computes; `power_screen.py` answers `grpolab power`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpolab.report import power
from grpolab.report.load import StudyRuns
from grpolab.report.measures import at, measure
from grpolab.report.power import RATES
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.tables import Table
from grpolab.report.text import NONE, count, estimate, number, signed, times
from grpolab.vocabulary import MARGIN_OF_GAIN

SIZES = (1, 3, 5, 10)  # seeds of a paper
SHARE = 4  # a paper has at most a quarter of the seeds: the truth is the mean over them all
LEAST = SHARE * SIZES[-1]  # seeds of a study whose report has the tables
TRUE = {"as measured": np.nan, "none": 0.0, "half a margin": 0.5, "one margin": 1.0, "two margins": 2.0}
PAIRINGS = {True: "paired", False: "unpaired"}


@dataclass(frozen=True, eq=False)
class PairOfArms:
    """The final scores of an arm and of the baseline in one facet, of the seeds that both have; `score_SA`: (S, 2)."""

    facet: str
    arm: str
    baseline: str
    seeds: tuple[int, ...]  # S of them
    score_SA: NDArray
    margin: float  # MARGIN_OF_GAIN of the baseline's gain there; NaN if it gains nothing


def contrasts(study: StudyRuns) -> list[PairOfArms]:
    """Return every arm against the baseline in every facet where they share at least two seeds."""
    final, gain, found = measure(study, "final_score"), measure(study, "gain"), list[PairOfArms]()
    for facet in study.facets:
        gained = float(at(gain, facet, study.baseline).mean())
        for arm in study.arms:
            both = pd.DataFrame({"of": at(final, facet, arm), "minus": at(final, facet, study.baseline)}).dropna()
            if arm != study.baseline and len(both) > 1:
                margin = MARGIN_OF_GAIN * gained if gained > 0 else np.nan
                score_SA, seeds = both.to_numpy(dtype=np.float64), tuple(both.index)
                found.append(PairOfArms(facet, arm, study.baseline, seeds, score_SA, margin))
    return found


@lru_cache(maxsize=8)
def sign_errors(study: StudyRuns) -> pd.DataFrame:
    """Return what papers with few seeds would claim, a row for each facet, arm, number of seeds, pairing and truth.

    `true` names the true difference: as measured over all seeds, none, or a multiple of the margin with the noise of
    these runs. Each of power.RATES has its bounds (`_low`, `_high`; `power.bounds`). The arm `mean` is the mean
    over the arms of a facet with the same seeds. Contrasts without a margin are left out. Cached: do not change it.
    """
    rows = list[dict[str, object]]()
    for facet in study.facets:
        here = [c for c in contrasts(study) if c.facet == facet and np.isfinite(c.margin)]
        most = max((len(c.score_SA) for c in here), default=0)
        whole = [c for c in here if len(c.score_SA) == most]
        for n in (n for n in SIZES if n <= most / SHARE):
            for paired, pairing in PAIRINGS.items():
                seeds = power.draw_seeds(most, n, paired, np.random.default_rng(n))
                found = []
                for c in whole:
                    differences = [c.margin * share for share in TRUE.values()]
                    found.append(power.paper_rates(c.score_SA, *seeds, paired, differences, c.margin))
                    rows += _rows({"facet": facet, "arm": c.arm, "n": n, "runs": pairing}, len(seeds[0]), c, *found[-1])
                mean = [np.mean(of, axis=0) for of in zip(*found, strict=True)]
                rows += _rows({"facet": facet, "arm": "mean", "n": n, "runs": pairing}, len(seeds[0]), None, *mean)
    return pd.DataFrame(rows)


def _rows(
    keys: dict[str, object], papers: int, contrast: PairOfArms | None, values_DK: NDArray, without_SDK: NDArray
) -> Iterator[dict[str, object]]:
    """Yield a row for each true difference; `contrast` is None of a mean over arms, which has no truth as measured."""
    low_DK, high_DK = power.bounds(values_DK, without_SDK, papers)
    for d, (true, share) in enumerate(TRUE.items()):
        if contrast is None and np.isnan(share):
            continue
        row = {**keys, "seeds": len(without_SDK), "true": true, "in_margins": share}
        if contrast:
            score_SA = contrast.score_SA
            measured = float((score_SA[:, 0] - score_SA[:, 1]).mean())
            in_margins = measured / contrast.margin if np.isnan(share) else share
            row |= {"in_margins": in_margins, "difference": in_margins * contrast.margin}
        for k, rate in enumerate(RATES):
            row |= {rate: values_DK[d, k], f"{rate}_low": low_DK[d, k], f"{rate}_high": high_DK[d, k]}
        yield row


def best_checkpoints(study: StudyRuns) -> pd.DataFrame:
    """Return what reporting a run's best evaluation adds to its final score, a row for each facet and arm.

    `adds`: mean over seeds; `more`: by how much more than for the baseline with the same seeds, which a difference to
    the baseline gains by it. Both with t-intervals. `jitter`: the arm's mean fluctuation within a run.
    """
    final, jitter, metric = measure(study, "final_score"), measure(study, "jitter"), study.metric
    trained = study.evaluations[study.evaluations["rollout_step"] > 0]
    best = trained.groupby(["facet", "arm", "seed"])[metric].max() if metric in trained else final
    rows, added = [], (best.astype("float64") - final).dropna()
    for facet in study.facets:
        for arm in study.arms:
            adds_S, base_S = at(added, facet, arm), at(added, facet, study.baseline)
            if adds_S.empty:
                continue
            adds = t_interval(adds_S)
            more = t_interval(adds_S - base_S if arm != study.baseline else [])
            row = {"facet": facet, "arm": arm, "n": adds.n, "adds": adds.mean, "adds_low": adds.low}
            row |= {"adds_high": adds.high, "more": more.mean, "more_low": more.low, "more_high": more.high}
            rows.append(row | {"jitter": float(at(jitter, facet, arm).mean())})
    return pd.DataFrame(rows)


def tables(study: StudyRuns, least: int = LEAST) -> list[Table]:
    """Return the tables of a study with at least so many seeds of all of its arms somewhere; else none."""
    if max((len(c.score_SA) for c in contrasts(study)), default=0) < least:
        return []
    rates, best = sign_errors(study), best_checkpoints(study)
    return [Table("sign_errors", _RATES.format(study.name), rates, _show_rates(study, rates))] * bool(len(rates)) + [
        Table("best_checkpoint", _BEST.format(study.name), best, _show_best(study, best))
    ]


def sentences(study: StudyRuns, least: int = LEAST) -> list[str]:
    """Say how often papers see an arm ahead that is not, mean over arms and facets; [] of a study with fewer seeds."""
    if max((len(c.score_SA) for c in contrasts(study)), default=0) < least:
        return []
    rates = sign_errors(study)
    none = rates[(rates["arm"] == "mean") & (rates["true"] == "none")]
    ahead = none.groupby(["n", "runs"])["ahead"].mean()
    said = [
        f"with {count(n, 'seed')} {_percent(ahead[n, 'unpaired'])} unpaired and {_percent(ahead[n, 'paired'])} paired"
        for n in SIZES
        if (n, "paired") in ahead
    ]
    margin = f"by {MARGIN_OF_GAIN:g} of what `{study.baseline}` gains"
    where = f"Where a method is no better than `{study.baseline}`, papers with runs like these would see it ahead"
    return [f"{where} {margin}: {', '.join(said)}."]


_RATES = (
    "{}: what papers with so few seeds of each arm would claim. Imagined papers draw their seeds from these runs, the"
    " same for both arms (paired) or other ones (unpaired). True differences are assumed, with the noise of these runs;"
    " mean over the arms against the baseline. A margin is .15 of the baseline's gain. Claimed: the 95% interval"
    " (Student's t, Welch's) excludes 0; of one seed: the difference is at least a margin. Exaggeration: mean size of"
    " claimed differences over the true one. Brackets: 95%, jackknife over the seeds, of shares Wilson's. The truth is"
    " a mean over the same seeds: papers with a sixth of them scatter 9% less about it, if paired, than about that of"
    " all possible seeds. Description, no verdict."
)
_BEST = (
    "{}: what reporting the best evaluation of a run, in place of the mean of the last quarter, adds to its score; mean"
    " over seeds [95% t-interval]; how much more it adds than for the baseline with the same seeds, which a difference"
    " to the baseline gains by it; and jitter (interquartile range of a run's first differences). Description."
)


def _show_rates(study: StudyRuns, rates: pd.DataFrame) -> pd.DataFrame:
    """Return the means over arms for a reader: a row for each facet, number of seeds and pairing."""

    def share(row: pd.Series, rate: str) -> str:
        return estimate(row[rate], row[f"{rate}_low"], row[f"{rate}_high"], _percent)

    rows = []
    means = rates[rates["arm"] == "mean"]
    for keys, of in means.groupby(["facet", "n", "runs"], sort=False):
        at_true = {row["true"]: row for _, row in of.iterrows()}
        half, one, two, none = (at_true[true] for true in ("half a margin", "one margin", "two margins", "none"))
        exaggerated = estimate(one["exaggeration"], one["exaggeration_low"], one["exaggeration_high"], times)
        row = dict(zip((study.facet_factors or "facet", "seeds", "runs"), keys, strict=True))
        row |= {f"wrong sign, {row_['true']}": share(row_, "wrong_sign") for row_ in (half, one, two)}
        row |= {"no difference, claimed": share(none, "claimed"), "ahead by a margin": share(none, "ahead")}
        row |= {"one margin, claimed": share(one, "claimed"), "wrong if claimed": share(one, "wrong_if_claimed")}
        rows.append(row | {"exaggeration": exaggerated})
    return pd.DataFrame(rows)


def _show_best(study: StudyRuns, best: pd.DataFrame) -> pd.DataFrame:
    rows = [
        {study.facet_factors or "facet": row.facet, "arm": row.arm, "n": row.n}
        | {"best evaluation adds": estimate(row.adds, row.adds_low, row.adds_high, signed)}
        | {f"more than {study.baseline}": estimate(row.more, row.more_low, row.more_high, signed)}
        | {"jitter within a run": number(row.jitter)}
        for row in best.itertuples()
    ]
    return pd.DataFrame(rows)


def _percent(value: float) -> str:
    return NONE if np.isnan(value) else f"{100 * value:.0f}%"
