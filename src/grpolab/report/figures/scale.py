"""Figures of how far findings carry: over the size of the model and the length of an answer (factors of SCALES)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from scipy.stats import kendalltau, norm

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN, MEAN_DOTS, Drawing, NotDrawnError, Sheet, draw_along, figure
from grpolab.report.load import Study
from grpolab.report.measures import SCALES, by_cell, log_ratio_spread, means_after_first_step
from grpolab.report.statistics.intervals import Interval, geometric_band, share_interval, t_band
from grpolab.report.style import QUIET, ArmStyle
from grpolab.report.text import count

SHIFT = 0.015  # decades between the lines of two arms, that they do not hide each other


def number_of(level: str) -> float:
    """What a level says: `0.13M` is 130,000, `48` is 48; NaN for words."""
    try:
        return float(level.removesuffix("M")) * (1e6 if level.endswith("M") else 1)
    except ValueError:
        return np.nan


def _whole(study: Study, scale: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The cells that differ in arm, seed and `scale` alone, where every level of `scale` is planned; with their place.

    They are ordered by the scale, whose number is their column `scale`.
    """
    others = [factor for factor in study.plan["factors"] if factor not in (scale, study.plan["compare"])]
    levels = study.plan["factors"].get(scale, [])
    if len(levels) < 2 or not np.isfinite([number_of(level) for level in levels]).all():
        return
    numbers = study.cells[f"factor/{scale}"].map(number_of)
    cells = study.cells.assign(scale=numbers).sort_values("scale", kind="stable")
    columns = [f"factor/{factor}" for factor in others]
    for place, part in cells.groupby(columns, sort=False) if others else [((), cells)]:
        if part["scale"].nunique() == len(levels):
            words = [f"{level} {SCALES.get(factor, '')}".strip() for factor, level in zip(others, place, strict=True)]
            yield " · ".join(words), part


def _label_scale(panel: Axes, scale: str, levels: Sequence[str]) -> None:
    """A log axis with a tick for each level, by its name; where nothing is drawn yet too."""
    numbers = [number_of(level) for level in levels]
    panel.set(xscale="log", xlim=(min(numbers) / 1.25, max(numbers) * 1.25), xlabel=SCALES[scale])
    panel.set_xticks(numbers, levels)
    panel.minorticks_off()


def _needed(what: str) -> NotDrawnError:
    return NotDrawnError(f"needs a factor {what} whose levels are numbers (0.13M, 48)")


@figure("F32", "effect_by_scale", "Final accuracy minus the baseline's, over parameters and over the length of answers")
def draw_effects(study: Study) -> Drawing:
    scored = by_cell(study, "final_score")
    shown = [
        (scale, place, cells)
        for scale in SCALES
        if scale != study.plan["compare"]
        for place, cells in _whole(study, scale)
        if study.baseline in set(cells["arm"])
    ]
    if not shown:
        raise _needed(" or ".join(SCALES))
    baseline = panels.arm_label(study, study.baseline)
    row = f"final accuracy minus\nthat of {baseline}"
    sheet = Sheet(study, [row], [title for _, title, _ in shown], height=2.0, share_x=False)
    others = [arm for arm in study.arms if arm != study.baseline]
    for panel, (scale, title, cells) in zip(sheet.panels, shown, strict=False):
        scores_XS = {
            arm: panels.pivot_seeds(part.assign(score=scored), "scale", "score") for arm, part in cells.groupby("arm")
        }
        for place, arm in enumerate(others):
            difference_XS = scores_XS.get(arm, pd.DataFrame()) - scores_XS[study.baseline]
            difference_XS = difference_XS.dropna(how="all").dropna(how="all", axis=1)
            if difference_XS.empty:
                continue
            places = difference_XS.index * 10 ** (SHIFT * (place - (len(others) - 1) / 2))
            series = draw_along(panel, places, difference_XS, sheet.styles[arm], t_band)
            sheet.add(series, metric="final_score", scale=scale, facet=title, arm=arm, minus=study.baseline)
        panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")
        _label_scale(panel, scale, study.plan["factors"][scale])
    sheet.legend(arms=others)
    caption = (
        f"Final accuracy minus that of `{study.baseline}` with the same seed, over the model's parameters and over the"
        " tokens of an answer, on log scales. A length is also another task, and a size has its own learning rate."
    )
    return sheet.drawing(caption, f"{MEAN_DOTS}, paired by seed; a description, not corrected")


@figure("F33", "order_by_scale", "Order of the arms: Kendall's rank correlation of each scale with the first")
def draw_order(study: Study) -> Drawing:
    """The scale to compare with is the first of those from which most others differ in one factor alone."""
    asked = [scale for scale in SCALES if scale in study.plan["factors"] and scale != study.plan["compare"]]
    homes = [set(cells["facet"]) for scale in asked for _, cells in _whole(study, scale)]
    if not homes:
        raise _needed(" or ".join(SCALES))
    home = max(study.facets, key=lambda facet: sum(facet in of for of in homes))  # the first of those in most
    scores = study.cells.assign(score=by_cell(study, "final_score"))
    by_facet = scores.groupby("facet")
    arms_AS = {facet: part.pivot(index="arm", columns="seed", values="score") for facet, part in by_facet}
    others = [facet for facet in study.facets if facet != home]
    sheet, names = Sheet(study, [""], [""], height=0.5 + 0.2 * len(others)), "/".join(SCALES[s] for s in asked)
    (panel,) = sheet.panels
    for place, facet in enumerate(others):
        arms = [arm for arm in study.arms if arm in arms_AS[home].index and arm in arms_AS[facet].index]
        here_AS, there_AS = (arms_AS[at].loc[arms].dropna(axis=1) for at in (home, facet))
        both = [seed for seed in here_AS if seed in there_AS]
        tau_S = pd.Series([_tau(here_AS[seed], there_AS[seed]) for seed in both], both, dtype="float64").dropna()
        interval = _tau_interval(tau_S)
        panels.draw_row(panel, place, tau_S.to_numpy(), interval, ArmStyle("#0072b2", "-", "o"))
        size = f"{count(len(arms), 'arm')}, n = {len(tau_S)}"
        panel.annotate(size, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=7)
        sheet.add({**interval._asdict(), "seeds": panels.by_seed(tau_S)}, facet=facet, at=home, arms=arms)
    noise = [_tau(arms_AS[home][a], arms_AS[home][b]) for a, b in combinations(arms_AS[home].dropna(axis=1), 2)]
    if noise:
        panel.axvline(float(np.nanmean(noise)), color=QUIET, linewidth=1.2)
        sheet.add({"mean": float(np.nanmean(noise)), "n": len(noise)}, facet=home, at=home, by="pairs of seeds")
        handles = [Line2D([], [], color=QUIET, linewidth=1.2, label="that order, of two seeds")]
        sheet.figure.legend(handles=handles, loc="outside lower center")
    panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
    panel.set_yticks(range(len(others)), [facet.replace("/", " · ") for facet in others])
    panel.set(ylim=(len(others) - 0.5, -0.5), xlim=(-1.08, 1.08), ylabel=names.replace("/", " · "))
    panel.set_xlabel(f"Kendall's tau with the order at {home.replace('/', ' · ')}")
    caption = (
        f"Does the order of the arms by final accuracy carry? Kendall's tau of their order at each scale ({names}) with"
        f" that at {home}, seed by seed, over the arms that both have (1: the same order; 0: unrelated). Grey: the mean"
        f" tau of two seeds at {home}, what noise alone leaves of an order."
    )
    return sheet.drawing(caption, "mean over shared seeds, 95% interval as of a share, of (tau + 1)/2; dots are seeds")


def _tau(first: pd.Series, second: pd.Series) -> float:
    """Kendall's tau-b; NaN where there are fewer than two arms, or all scores are one."""
    return float(kendalltau(first, second.loc[first.index]).statistic) if len(first) > 1 else np.nan


def _tau_interval(tau_S: pd.Series) -> Interval:
    """The mean over seeds; it lies between -1 and 1, and so does its interval."""
    mean, low, high, n = share_interval((tau_S + 1) / 2)
    return Interval(2 * mean - 1, 2 * low - 1, 2 * high - 1, n)


@figure("F34", "clipping_by_length", "Clip fraction and |log ratio| of answers against their length, beside 1/sqrt(T)")
def draw_clipping(study: Study) -> Drawing:
    """A line for each arm; one line where the lengths are the arms."""
    parts = list(_whole(study, "length"))
    if not parts:
        raise _needed("length")
    clipped = "clipped tokens\n(share)"
    rows = {
        clipped: means_after_first_step(study, "clip/active_nz"),
        "|log ratio| of\nan answer (98%)": log_ratio_spread(study),
    }
    sheet = Sheet(study, rows, [title for title, _ in parts], height=1.7)
    index = pd.MultiIndex.from_frame(study.cells[["facet", "arm", "seed"]])
    for row, values in rows.items():
        of_cell = pd.Series(values.reindex(index).to_numpy(), study.cells.index)
        for title, cells in parts:
            panel, one_arm = sheet.grid[row, title], study.plan["compare"] == "length"
            for arm, part in [("all", cells)] if one_arm else cells.groupby("arm", sort=False):
                values_XS = panels.pivot_seeds(part.assign(value=of_cell.where(of_cell > 0)), "scale", "value")
                if values_XS.empty:
                    continue
                style = sheet.styles.get(arm, ArmStyle("black", "-", "o"))
                series = draw_along(panel, values_XS.index.tolist(), values_XS, style, geometric_band)
                sheet.add(series, metric=row.replace("\n", " "), facet=title, arm=arm)
                if row == clipped and (part["setting/importance_sampling_level"] == "token").all():
                    continue  # whose range each token meets alone
                length_X = np.geomspace(values_XS.index[0], values_XS.index[-1], 50)
                theory_X = expected(series["mean"][0], length_X, is_share=row == clipped)
                seen_X = theory_X >= 0.5 * np.nanmin(values_XS)  # else the panel would be scaled to it
                panel.plot(length_X[seen_X], theory_X[seen_X], color=style.colour, linewidth=0.8, linestyle=":")
            panels.log_axis(panel, "y")
            _label_scale(panel, "length", study.plan["factors"]["length"])
            panel.set_xlabel("")
            if row == clipped:
                panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    panels.label_x(sheet.grid, SCALES["length"])
    drawn = {series["arm"] for series in sheet.numbers}
    sheet.legend([Line2D([], [], color=QUIET, linewidth=0.8, linestyle=":", label="spread as 1/sqrt(T)")], arms=drawn)
    caption = (
        "Share of the tokens with an advantage that clipping silenced, and how far the ratio of a whole answer"
        " (geometric mean of its tokens') moves: half the distance of the 1st and 99th percentile of its logarithm,"
        " mean of A > 0 and A < 0. Means over the optimiser steps that can clip, on log scales. Dotted: from the"
        " shortest answers on, a mean of T independent log ratios of one spread and one drift. Its spread falls as"
        " 1/sqrt(T), so that what one range clips by less than half is clipped ever less, what it clips by more than"
        " half ever more. A length is also another task. 0 is left out."
    )
    return sheet.drawing(caption, f"{MEAN.replace('mean', 'geometric mean')}; dots are seeds")


def expected(first: float, length_X: NDArray, is_share: bool) -> NDArray:
    """What the shortest length's number becomes where the log ratio of an answer is normal, of spread 1/sqrt(T).

    A share is that beyond a fixed range, at a fixed mean; else the number is the spread itself.
    """
    root_X = np.sqrt(length_X / length_X[0])
    return np.asarray(norm.cdf(norm.ppf(first) * root_X) if is_share else first / root_X)
