"""Figures along the settings that a study's factors move: sensitivity, maps of two settings, passes over a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Real

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_DOTS, Drawing, NotDrawnError, Sheet
from grpolab.report.load import StudyRuns
from grpolab.report.measures import band_of, by_cell, by_setting, measure
from grpolab.report.statistics.intervals import share_band, t_band
from grpolab.report.style import NOTE_COLOUR, ArmStyle, Series
from grpolab.report.text import number

DECADES = 100.0  # values that are this far apart get a log scale
_BLACK = ArmStyle("black", "-", "o")


def numeric_axes(study: StudyRuns) -> dict[str, str]:
    """Return {factor: setting} for the factors whose levels differ in nothing but numbers, all of them different.

    They may be other numbers for each arm. The first such setting stands for a factor that moves several together
    (epsilon and epsilon_high).
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


def split(values: pd.DataFrame, without: Collection[str], join: str = " · ") -> dict[str, pd.DataFrame]:
    """Return rows with the columns of `cells`, by the joined levels of all factors but those in `without`."""
    within = [column for column in values if column.startswith("factor/") and column[7:] not in without]
    if not within:
        return {"": values}
    return {join.join(levels): frame for levels, frame in values.groupby(within, sort=False)}


def _tick(value: float) -> str:
    return f"{value:g}".replace("inf", "∞")


@dataclass(frozen=True)
class Axis:
    """An x axis for values of a setting: in order of size, evenly spaced, or on a log scale where they span decades.

    An infinite value then stands a step beyond the largest.
    """

    values: Sequence[float]
    name: str

    @property
    def is_log(self) -> bool:
        """Whether it is a log scale."""
        finite = [value for value in self.values if np.isfinite(value)]
        return min(self.values) > 0 and max(finite) >= DECADES * min(finite)

    def places(self, values: Sequence[float], shift: float = 0.0) -> list[float]:
        """Return the places of some of its values; `shift`, in steps, parts lines that would lie on each other."""
        if not self.is_log:
            return [self.values.index(value) + shift for value in values]
        return [min(value, self._beyond) * 10**shift for value in values]

    @property
    def _beyond(self) -> float:
        """The place of an infinite value on the log scale."""
        return 4 * max(value for value in self.values if np.isfinite(value))

    def label(self, panel: Axes) -> None:
        """Set ticks and name of the x axis."""
        panel.set_xlabel(self.name)
        if self.is_log:
            panels.log_axis(panel, "x")
            if np.inf in self.values:
                decades = 10.0 ** np.arange(np.ceil(np.log10(min(self.values))), np.log10(self._beyond / 4) + 1e-9)
                panel.set_xticks([*decades, self._beyond], [*(f"{decade:g}" for decade in decades), "∞"])
        else:
            panel.set_xticks(range(len(self.values)), [_tick(value) for value in self.values])


def draw_accuracy_by_setting(study: StudyRuns) -> Drawing:
    """Draw F24: one line per arm, or one line where the arms are the axis."""
    scores = study.cells.assign(score=by_cell(study, "final_score"))
    shown = {
        (setting, title): cells
        for factor, setting in numeric_axes(study).items()
        for title, cells in split(scores, (factor, study.plan["compare"])).items()
    }
    if not shown:
        raise NotDrawnError("needs a factor that moves nothing but a number")
    sheet = Sheet(study, ["final accuracy"], [title for _, title in shown], height=2.0, share_x=False)
    for panel, ((setting, title), cells) in zip(sheet.panels, shown.items(), strict=False):
        axis = Axis(sorted(cells[setting].unique()), setting.removeprefix("setting/"))
        arms_are_the_axis = cells.groupby("arm")[setting].nunique().eq(1).all()
        lines = [("all", cells)] if arms_are_the_axis else list(cells.groupby("arm", sort=False))
        for place, (arm, of_arm) in enumerate(lines):
            style, shift = sheet.styles.get(arm, _BLACK), 0.06 * (place - (len(lines) - 1) / 2)
            labels = {"setting": setting, "facet": title, "arm": arm}
            values_XS = panels.pivot_seeds(of_arm, setting, "score")
            if values_XS.empty:
                sheet.add({"x": []}, **labels)
                continue
            places = axis.places(values_XS.index.tolist(), shift)
            sheet.along(panel, places, values_XS, style, band_of(study, "final_score"), **labels)
        axis.label(panel)
    sheet.legend(arms=[series["arm"] for series in sheet.numbers])
    caption = (
        "Final accuracy against each setting that a factor moves: evenly spaced, in order of size, or on a log scale"
        " where the values span decades (∞ stands beyond the largest)."
    )
    return sheet.drawing(caption, MEAN_DOTS)


def draw_batch_reuse(study: StudyRuns) -> Drawing:
    """Draw F18: clip fraction and final accuracy against num_iterations, and the clip fraction of each pass."""
    passes = "setting/num_iterations"
    clipped, by_pass = "clipped tokens\n(share)", "clipped, by pass\nover the batch"
    gain = f"final accuracy minus\nthat of {panels.arm_label(study, study.baseline)}"
    own = study.cells.loc[study.cells["arm"] == study.baseline, passes].iloc[0]
    sheet = Sheet(study, [clipped, by_pass, gain], share_x=False)
    for facet in study.facets:
        for row, metric in ((clipped, "clip/active"), (gain, "final_score")):
            labels = {"metric": metric, "facet": facet, **({"minus": study.baseline} if row == gain else {})}
            values_LS = by_setting(study, measure(study, metric), facet, passes).T
            if values_LS.empty:
                sheet.add({"x": []}, **labels)
                continue
            if row == gain:
                values_LS = values_LS - values_LS.reindex([own]).iloc[0]
            axis, band = Axis(values_LS.index.tolist(), "num_iterations"), share_band if row == clipped else t_band
            sheet.along(sheet.grid[row, facet], axis.places(axis.values), values_LS, _BLACK, band, **labels)
            axis.label(sheet.grid[row, facet])
        panel = sheet.grid[by_pass, facet]
        for arm, updates in study.by_arm("updates", facet):
            values_XS = panels.pivot_seeds(updates, "iteration", "clip/active")
            labels = {"metric": "clip/active", "by": "iteration", "facet": facet, "arm": arm}
            sheet.line(panel, values_XS, sheet.styles[arm], share_band, **labels)
        panels.whole_numbers(panel)
        panel.set_xlabel("pass (0 = first)")
    sheet.mark_zero(gain)
    sheet.legend()
    caption = (
        "Clip fraction (mean over all optimiser steps) against num_iterations; the clip fraction of each pass over the"
        f" batch; and final accuracy against num_iterations, minus that of `{study.baseline}` with the same seed."
    )
    return sheet.drawing(caption, f"{MEAN_DOTS}; differences paired by seed")


def draw_setting_map(study: StudyRuns) -> Drawing:
    """Draw F13, over the first two factors that move a number; the levels of other factors have panels of their own."""
    axes = dict(list(numeric_axes(study).items())[:2])
    if len(axes) < 2:
        raise NotDrawnError(f"two factors must move a number each; here: {', '.join(axes) or 'none'}")
    y, x = axes.values()
    labels = {
        "entropy_last": "final entropy (nat per token)",
        "final_score": "final accuracy",
        "kl_old": "KL(old || new) of a batch (nat)",
    }
    rows = {quantity: f"{label}\n{y.removeprefix('setting/')}" for quantity, label in labels.items()}
    parts = split(study.cells, axes, "/")
    sheet = Sheet(study, rows.values(), list(parts), height=2.1, share_x=False, share_y=False)
    for quantity, row in rows.items():
        values = by_cell(study, quantity)
        for title, cells in parts.items():
            series = _draw_map(sheet.grid[row, title], cells.assign(value=values), y, x)
            sheet.add(series, metric=quantity, facet=title)
    caption = (
        "Entropy of the sampling policy over the last tenth of the run, final held-out accuracy, and the KL divergence"
        " of the policy from the one that sampled the batch at the batch's last update (estimator k3, mean over the"
        " run), for each pair of settings, in order of size. Colour: how far above (red) or below (blue) its own mean"
        " over the settings a seed is on average; ±: standard error of that. The colours reach over two standard errors"
        " at least, so that noise stays pale. Hatched: no run has a result."
    )
    return sheet.drawing(caption, "mean over seeds; the colour and ± are paired by seed")


def _draw_map(panel: Axes, cells: pd.DataFrame, y: str, x: str) -> Series:
    """Draw the mean in each square of y (rows) by x (columns), both rising.

    The colour is the distance of seeds to their own means over the settings that every seed has. Squares without a
    value are hatched.
    """
    values_PS = cells.pivot(index=[y, x], columns="seed", values="value")
    apart_PS = values_PS - (shared if len(shared := values_PS.dropna()) else values_PS).mean()
    of_place = {"mean": values_PS.mean(axis=1), "apart": apart_PS.mean(axis=1), "error": apart_PS.sem(axis=1)}
    of_place["n"] = values_PS.count(axis=1)
    tables = {name: values.unstack() for name, values in of_place.items()}
    mean_YX, apart_YX, error_YX, n_YX = tables.values()
    reach = np.nanmax([apart_YX.abs(), 2 * error_YX], initial=0) or 1.0
    for row, column in np.ndindex(mean_YX.shape):
        mean, apart, error, n = (table.iat[row, column] for table in tables.values())
        square = Rectangle((column - 0.5, row - 0.5), 1, 1, linewidth=0.6, edgecolor="white")
        if n > 0:
            square.set_facecolor(mpl.colormaps["RdBu_r"](0.5 + 0.3 * apart / reach))
            # Where every seed has one value (a KL of exactly 0), the error is that of the others' mean alone.
            one = values_PS.loc[mean_YX.index[row], mean_YX.columns[column]].nunique() == 1
            spread = f"\n±{error:.1g}".replace("0.", ".", 1) if n > 1 and not one else ""
            words = number(mean) + spread + (f"\nn = {int(n)}" if n < n_YX.max(axis=None) else "")
            ink, box = "black", None
        else:
            square.set(facecolor="white", edgecolor="#e8b9be", hatch="//")
            words, ink, box = "missing", NOTE_COLOUR, {"facecolor": "white", "edgecolor": "none", "pad": 1}
        panel.add_patch(square)
        panel.text(column, row, words, ha="center", va="center", fontsize=7, color=ink, bbox=box)
    panel.grid(visible=False)
    for axis, values in ((panel.xaxis, mean_YX.columns), (panel.yaxis, mean_YX.index)):
        axis.set_ticks(range(len(values)), [_tick(value) for value in values])
        axis.set_tick_params(length=0)
    panel.set_xlabel(x.removeprefix("setting/"))
    panel.set(xlim=(-0.5, mean_YX.shape[1] - 0.5), ylim=(-0.5, mean_YX.shape[0] - 0.5))
    lists = {name: table.to_numpy(dtype=np.float64).tolist() for name, table in tables.items()}
    return {"x": mean_YX.columns.tolist(), "y": mean_YX.index.tolist(), **lists}
