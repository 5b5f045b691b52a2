"""Figures along the settings that a study's factors move: sensitivity, maps of two settings, staleness."""

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
from grpolab.report.figures.panels import MEAN, MEAN_DOTS, Drawing, NotDrawnError, Sheet, draw_along, figure
from grpolab.report.load import Study
from grpolab.report.measures import band_of, by_cell
from grpolab.report.statistics.intervals import geometric_band
from grpolab.report.style import NOTE_COLOUR, QUIET, ArmStyle, Series
from grpolab.report.text import number

DECADES = 100.0  # values that are this far apart get a log scale


def numeric_axes(study: Study) -> dict[str, str]:
    """{factor: setting} for the factors whose levels differ in nothing but numbers, all of them different.

    They may be other numbers for each arm. The first such setting stands for a factor that moves several together
    (epsilon and epsilon_high).
    """
    one_seed = study.cells[study.cells["seed"] == study.cells["seed"].min()]
    axes = {}
    for factor in study.plan["factors"]:
        others = [c for c in one_seed if c.startswith("factor/") and c != f"factor/{factor}"]
        groups = [frame for _, frame in one_seed.groupby(others)] if others else [one_seed]
        moved = [
            c
            for c in one_seed
            if c.startswith("setting/") and any(frame[c].astype(str).nunique() > 1 for frame in groups)
        ]
        numeric = all(isinstance(value, Real) for column in moved for value in one_seed[column])
        distinct = [c for c in moved if numeric and all(frame[c].nunique() == len(frame) for frame in groups)]
        if distinct:
            axes[factor] = distinct[0]
    return axes


def split(values: pd.DataFrame, without: Collection[str], join: str = " · ") -> dict[str, pd.DataFrame]:
    """Rows with the columns of `study.cells`, by the joined levels of all factors but those in `without`."""
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
        """Where some of its values stand; `shift`, in steps, parts lines that would lie on each other."""
        if not self.is_log:
            return [self.values.index(value) + shift for value in values]
        return [min(value, self._beyond) * 10**shift for value in values]

    @property
    def _beyond(self) -> float:
        """Where an infinite value stands on the log scale."""
        return 4 * max(value for value in self.values if np.isfinite(value))

    def label(self, panel: Axes) -> None:
        """Ticks and name of the x axis."""
        panel.set_xlabel(self.name)
        if self.is_log:
            panels.log_axis(panel, "x")
            if np.inf in self.values:
                decades = 10.0 ** np.arange(np.ceil(np.log10(min(self.values))), np.log10(self._beyond / 4) + 1e-9)
                panel.set_xticks([*decades, self._beyond], [*(f"{decade:g}" for decade in decades), "∞"])
        else:
            panel.set_xticks(range(len(self.values)), [_tick(value) for value in self.values])


@figure("F24", "accuracy_by_setting", "Final accuracy against each setting that a factor moves")
def draw_sensitivity(study: Study) -> Drawing:
    """One line per arm; one line where the arms are the axis."""
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
            style, shift = sheet.styles.get(arm, ArmStyle("black", "-", "o")), 0.06 * (place - (len(lines) - 1) / 2)
            values_XS = panels.pivot_seeds(of_arm, setting, "score")
            series: Series = {"x": []}
            if len(values_XS):
                places = axis.places(values_XS.index.tolist(), shift)
                series = draw_along(panel, places, values_XS, style, band_of(study, "final_score"))
            sheet.add(series, setting=setting, facet=title, arm=arm)
        axis.label(panel)
    sheet.legend(arms=[series["arm"] for series in sheet.numbers])
    caption = (
        "Final accuracy against each setting that a factor moves: evenly spaced, in order of size, or on a log scale"
        " where the values span decades (∞ stands beyond the largest)."
    )
    return sheet.drawing(caption, MEAN_DOTS)


@figure("F13", "setting_map", "Map of lower against upper clip range: entropy, accuracy, KL")
def draw_factor_map(study: Study) -> Drawing:
    """Over the first two factors that move a number; what other factors do stands apart."""
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
    """Mean in each square of y (rows, rising) by x (columns, rising), coloured by how far seeds are from their mean.

    That is over the settings that every seed has. Hatched where there is no value.
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


@figure("F30", "stale_batches", "Stale data and a sampler that differs: accuracy, clipping, largest ratio")
def draw_staleness(study: Study) -> Drawing:
    staleness, on_log_scale = "setting/staleness", ("ratio_max",)
    rows = {
        "final accuracy": "final_score",
        f"accuracy minus\nthat of {panels.arm_label(study, study.baseline)}": "difference",
        "clipped tokens\n(share)": "clip/active",
        "largest\ntoken ratio": "ratio_max",
    }
    factors = [factor for factor, setting in numeric_axes(study).items() if setting == staleness]
    if not factors:
        raise NotDrawnError("needs a factor that moves staleness alone")
    measured = {metric: by_cell(study, metric) for metric in rows.values() if metric != "difference"}
    cells = study.cells.assign(**measured)
    baseline = cells[cells["arm"] == study.baseline].set_index(["facet", "seed"])["final_score"].rename("baseline")
    cells = cells.join(baseline, on=["facet", "seed"])
    cells["difference"] = cells["final_score"] - cells["baseline"]
    parts = split(cells, (factors[0], study.plan["compare"]))
    sheet = Sheet(study, rows, list(parts), height=1.3)
    for title, part in parts.items():
        axis = Axis(sorted(part[staleness].unique()), "staleness")
        for row, metric in rows.items():
            panel = sheet.grid[row, title]
            shown = part.where(part[metric] > 0) if metric in on_log_scale else part
            for place, (arm, of_arm) in enumerate(shown.dropna(subset=[metric]).groupby("arm", sort=False)):
                if metric == "difference" and arm == study.baseline:
                    continue
                values_XS = panels.pivot_seeds(of_arm, staleness, metric)
                places = axis.places(values_XS.index.tolist(), 0.08 * place)
                band = geometric_band if metric in on_log_scale else band_of(study, metric)
                series = draw_along(panel, places, values_XS, sheet.styles[arm], band)
                sheet.add(series, metric=metric, facet=title, arm=arm)
            axis.label(panel)
            if metric in on_log_scale:
                panels.log_axis(panel, "y")
            if metric == "difference":
                panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")
    sheet.legend(arms=[series["arm"] for series in sheet.numbers])
    caption = (
        "Against staleness (rollout steps between sampling a batch and learning from it): final accuracy; its"
        f" difference to `{study.baseline}` at the same staleness, seed by seed; clipped tokens (`clip/active`, mean"
        " of the run); largest token ratio of the run, on a log scale."
    )
    statistic = f"{MEAN}, of the difference paired by seed, of the ratio geometric; dots are seeds"
    return sheet.drawing(caption, statistic)
