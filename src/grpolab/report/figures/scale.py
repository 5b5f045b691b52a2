"""Figures of how far findings carry: over the size of the model and the length of an answer (factors of SCALES)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray
from scipy.stats import norm

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN, MEAN_DOTS, Drawing, NotDrawnError, Sheet
from grpolab.report.load import StudyRuns
from grpolab.report.measures import SCALES, by_cell, log_ratio_spread, means_after_first_step
from grpolab.report.statistics.intervals import geometric_band, t_band
from grpolab.report.style import QUIET, ArmStyle

SHIFT = 0.015  # decades between the lines of two arms, so that they do not hide each other


def number_of(level: str) -> float:
    """Return what a level says: `0.13M` is 130,000, `48` is 48; NaN for words."""
    try:
        return float(level.removesuffix("M")) * (1e6 if level.endswith("M") else 1)
    except ValueError:
        return np.nan


def _complete_scales(study: StudyRuns, scale: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the cells that differ in arm, seed and `scale` alone, where every level of `scale` is planned.

    Each with a title of the other levels. They are ordered by the scale, whose number is their column `scale`.
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
    """Set a log axis with a tick for each level, by its name; also where nothing is drawn yet."""
    numbers = [number_of(level) for level in levels]
    panel.set(xscale="log", xlim=(min(numbers) / 1.25, max(numbers) * 1.25), xlabel=SCALES[scale])
    panel.set_xticks(numbers, levels)
    panel.minorticks_off()


def _need_factor(name: str) -> NotDrawnError:
    return NotDrawnError(f"needs a factor {name} whose levels are numbers (0.13M, 48)")


def draw_effect_by_scale(study: StudyRuns) -> Drawing:
    """Draw F32."""
    scored = by_cell(study, "final_score")
    shown = [
        (scale, place, cells)
        for scale in SCALES
        if scale != study.plan["compare"]
        for place, cells in _complete_scales(study, scale)
        if study.baseline in set(cells["arm"])
    ]
    if not shown:
        raise _need_factor(" or ".join(SCALES))
    row = f"final accuracy minus\nthat of {panels.arm_label(study, study.baseline)}"
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
            labels = {"metric": "final_score", "scale": scale, "facet": title, "arm": arm, "minus": study.baseline}
            sheet.along(panel, places, difference_XS, sheet.styles[arm], t_band, **labels)
        _label_scale(panel, scale, study.plan["factors"][scale])
    sheet.mark_zero(row)
    sheet.legend(arms=others)
    caption = (
        f"Final accuracy minus that of `{study.baseline}` with the same seed, over the model's parameters and over the"
        " tokens of an answer, on log scales. A length is also another task, and a size has its own learning rate."
    )
    return sheet.drawing(caption, f"{MEAN_DOTS}, paired by seed; a description, not corrected")


def draw_clipping_by_length(study: StudyRuns) -> Drawing:
    """Draw F34: a line for each arm, or one line where the lengths are the arms."""
    parts = list(_complete_scales(study, "length"))
    if not parts:
        raise _need_factor("length")
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
                labels = {"metric": row.replace("\n", " "), "facet": title, "arm": arm}
                series = sheet.along(panel, values_XS.index.tolist(), values_XS, style, geometric_band, **labels)
                if row == clipped and (part["setting/importance_sampling_level"] == "token").all():
                    continue  # each token meets the range by itself
                length_X = np.geomspace(values_XS.index[0], values_XS.index[-1], 50)
                theory_X = expected(series["mean"][0], length_X, is_share=row == clipped)
                seen_X = theory_X >= 0.5 * np.nanmin(values_XS)  # else the panel would be scaled to it
                panel.plot(length_X[seen_X], theory_X[seen_X], color=style.colour, linewidth=0.8, linestyle=":")
            panels.log_axis(panel, "y")
            _label_scale(panel, "length", study.plan["factors"]["length"])
            panel.set_xlabel("")
            if row == clipped:
                panel.yaxis.set_major_formatter(FuncFormatter(panels.as_percent))
    sheet.label_x(SCALES["length"])
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
    """Return what the shortest length's number becomes where an answer's log ratio is normal, of spread 1/sqrt(T).

    A share is that beyond a fixed range, at a fixed mean; else the number is the spread itself.
    """
    root_X = np.sqrt(length_X / length_X[0])
    return np.asarray(norm.cdf(norm.ppf(first) * root_X) if is_share else first / root_X)
