"""Figures along the settings that a study's factors move: sensitivity, maps of two settings, staleness."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Real

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from grpolab.report.figures.panels import (
    MEAN,
    MEAN_DOTS,
    Drawing,
    NotDrawnError,
    arm_label,
    band_series,
    legend_arms,
    log_axis,
    panel_grid,
    pivot_seeds,
)
from grpolab.report.load import Study
from grpolab.report.measures import by_cell, is_share, measure
from grpolab.report.statistics.intervals import share_band, t_band
from grpolab.report.style import NOTE_COLOUR, QUIET, ArmStyle, Series, arm_styles
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
        return [min(value, self._beyond) for value in values]

    @property
    def _beyond(self) -> float:
        """Where an infinite value stands on the log scale."""
        return 4 * max(value for value in self.values if np.isfinite(value))

    def label(self, panel: Axes) -> None:
        """Ticks and name of the x axis."""
        panel.set_xlabel(self.name)
        if self.is_log:
            log_axis(panel, "x")
            if np.inf in self.values:
                decades = 10.0 ** np.arange(np.ceil(np.log10(min(self.values))), np.log10(self._beyond / 4) + 1e-9)
                panel.set_xticks([*decades, self._beyond], [*(f"{decade:g}" for decade in decades), "∞"])
        else:
            panel.set_xticks(range(len(self.values)), [_tick(value) for value in self.values])


def draw_along(
    panel: Axes,
    axis: Axis,
    values: pd.DataFrame,
    columns: tuple[str, str],
    style: ArmStyle,
    shift: float = 0.0,
    share: bool = False,
) -> Series:
    """Seeds as dots and their mean with its 95% interval along an axis; `columns` are those of x and y.

    `share`: y lies between 0 and 1, and so does its interval.
    """
    values_XS = pivot_seeds(values, *columns)
    if values_XS.empty:
        return {"x": []}
    places = axis.places(values_XS.index.tolist(), shift)
    band = (share_band if share else t_band)(values_XS.to_numpy())
    mean, low, high, _ = band
    panel.plot(places, values_XS.to_numpy(), ".", color=style.colour, markersize=3, alpha=0.5)
    limits = panel.dataLim.frozen()
    lines = {"color": style.colour, "linestyle": style.line, "marker": style.marker}
    panel.errorbar(places, mean, yerr=[mean - low, high - mean], capsize=2, elinewidth=0.8, **lines)
    panel.dataLim.set(limits)
    return band_series(values_XS, band)


def draw_sensitivity(study: Study) -> Drawing:
    """Final accuracy along each numeric axis of the study, one line per arm; one line where the arms are the axis."""
    scores = study.cells.assign(score=by_cell(study, "final_score"))
    panels = {
        (setting, title): frame
        for factor, setting in numeric_axes(study).items()
        for title, frame in split(scores, (factor, study.plan["compare"])).items()
    }
    if not panels:
        raise NotDrawnError("needs a factor that moves nothing but a number")
    figure, grid = panel_grid(["final accuracy"], [title for _, title in panels], height=2.0, share_x=False)
    numbers: list[Series] = []
    for panel, ((setting, title), frame) in zip(grid.values(), panels.items(), strict=False):
        lines = _draw_lines(panel, frame, setting, study)
        numbers += [{"setting": setting, "facet": title, **series} for series in lines]
    best = Line2D([], [], color="black", marker="*", linestyle="", markersize=8, label="best mean of the arm")
    legend_arms(figure, study, [series["arm"] for series in numbers], [best])
    caption = (
        "Final accuracy against each setting that a factor moves: evenly spaced, in order of size, or on a log scale"
        " where the values span decades (∞ stands beyond the largest). Shaded: one standard deviation of the seeds. A"
        " star marks the value with the best mean of each arm; picked on these runs, it is biased upwards."
    )
    return Drawing(figure, caption, MEAN_DOTS, numbers)


def _draw_lines(panel: Axes, scores: pd.DataFrame, setting: str, study: Study) -> list[Series]:
    """A line for each arm; one for all where each arm has one value of the setting."""
    axis = Axis(sorted(scores[setting].unique()), setting.removeprefix("setting/"))
    one_line = scores.groupby("arm")[setting].nunique().eq(1).all()
    lines = [("all", scores)] if one_line else list(scores.groupby("arm", sort=False))
    styles, share, numbers = arm_styles(study.arms), is_share(study, "final_score"), []
    for place, (arm, arm_scores) in enumerate(lines):
        style, shift = styles.get(arm, ArmStyle("black", "-", "o")), 0.06 * (place - (len(lines) - 1) / 2)
        series = draw_along(panel, axis, arm_scores, (setting, "score"), style, shift, share)
        if series["x"]:
            series["best"] = _shade_and_mark(panel, axis.places(series["x"], shift), series, style, share)
        numbers.append({"arm": arm, **series})
    axis.label(panel)
    return numbers


def _shade_and_mark(panel: Axes, places: Sequence[float], series: Series, style: ArmStyle, share: bool) -> float:
    """The seeds' spread as a band (of a share: between 0 and 1), and a star at the best mean; the value there."""
    mean = np.array(series["mean"])
    values_SX = np.array(list(series["seeds"].values()))
    counts = np.isfinite(values_SX).sum(axis=0)
    spread = np.full(len(mean), np.nan)
    spread[counts > 1] = np.nanstd(values_SX[:, counts > 1], axis=0, ddof=1)
    low, high = mean - spread, mean + spread
    if share:
        low, high = np.maximum(low, 0), np.minimum(high, 1)
    panel.fill_between(places, low, high, color=style.colour, alpha=0.1, linewidth=0)
    best = int(np.nanargmax(mean))
    panel.plot(places[best], mean[best], "*", color=style.colour, markersize=10, markeredgecolor="white", zorder=3)
    return float(series["x"][best])


_PALE = "#e8b9be"  # behind the word `missing`
# Quantity of the stability table -> row.
_MAPPED = {
    "entropy_last": "final entropy (nat per token)",
    "final_score": "final accuracy",
    "kl_old": "KL(old || new) of a batch (nat)",
}


def draw_factor_map(study: Study) -> Drawing:
    """A map of each quantity over the first two factors that move a number; what other factors do stands apart."""
    axes = dict(list(numeric_axes(study).items())[:2])
    if len(axes) < 2:
        raise NotDrawnError(f"two factors must move a number each; here: {', '.join(axes) or 'none'}")
    parts, (y, x) = split(study.cells, axes, "/"), axes.values()
    rows = {quantity: f"{text}\n{y.removeprefix('setting/')}" for quantity, text in _MAPPED.items()}
    figure, grid = panel_grid(list(rows.values()), list(parts), height=2.1, share_x=False, share_y=False)
    numbers: list[Series] = []
    for quantity, row in rows.items():
        values = measure(study, quantity).rename("value").reset_index()
        for title, cells in parts.items():
            series = _draw_map(grid[row, title], cells.merge(values, on=["facet", "arm", "seed"], how="left"), y, x)
            numbers.append({"metric": quantity, "facet": title, **series})
    caption = (
        "Entropy of the sampling policy over the last tenth of the run, final held-out accuracy, and the KL divergence"
        " of the policy from the one that sampled the batch at the batch's last update (estimator k3, mean over the"
        " run), for each pair of settings, in order of size. Darker is more; hatched: no run has a result."
    )
    return Drawing(figure, caption, "mean over seeds (sample standard deviation)", numbers)


def _draw_map(panel: Axes, cells: pd.DataFrame, y: str, x: str) -> Series:
    """Mean (sd) in each cell of y (rows, rising) by x (columns, rising)."""
    by_cell = cells.groupby([y, x])["value"]
    mean_YX, sd_YX, n_YX = (by_cell.agg(how).unstack() for how in ("mean", "std", "count"))
    norm = mpl.colors.Normalize(np.nanmin(mean_YX), np.nanmax(mean_YX)) if n_YX.to_numpy().any() else None
    planned = int(by_cell.size().max())
    for row, column in np.ndindex(mean_YX.shape):
        mean, sd, n = (table.iat[row, column] for table in (mean_YX, sd_YX, n_YX))
        share = float(norm(mean)) if norm and n > 0 else np.nan
        _draw_cell(panel, column, row, share, _words(mean, sd, int(n) if n > 0 else 0, planned))
    panel.grid(visible=False)
    for axis, values in ((panel.xaxis, mean_YX.columns), (panel.yaxis, mean_YX.index)):
        axis.set_ticks(range(len(values)), [_tick(value) for value in values])
        axis.set_tick_params(length=0)
    panel.set_xlabel(x.removeprefix("setting/"))
    panel.set(xlim=(-0.5, mean_YX.shape[1] - 0.5), ylim=(-0.5, mean_YX.shape[0] - 0.5))
    tables = {"mean": mean_YX, "sd": sd_YX, "n": n_YX}
    lists = {name: table.to_numpy(dtype=np.float64).tolist() for name, table in tables.items()}
    return {"x": mean_YX.columns.tolist(), "y": mean_YX.index.tolist(), **lists}


def _draw_cell(panel: Axes, x: int, y: int, share: float, words: str) -> None:
    """One square, the darker the greater its share of the panel's range; without a share hatched."""
    missing = np.isnan(share)
    colour = "white" if missing else mpl.colormaps["Blues"](0.08 + 0.72 * share)
    edge, hatch = (_PALE, "//") if missing else ("white", None)
    corner = (x - 0.5, y - 0.5)
    panel.add_patch(Rectangle(corner, 1, 1, facecolor=colour, linewidth=0.6, edgecolor=edge, hatch=hatch))
    ink = NOTE_COLOUR if missing else "white" if share > 0.6 else "black"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if missing else None
    panel.text(x, y, words, ha="center", va="center", fontsize=7, color=ink, bbox=box)


def _words(mean: float, sd: float, n: int, planned: int) -> str:
    """`0.412 (0.021)` in two lines; how many seeds where some are missing."""
    if not n:
        return "missing"
    spread = f"\n({number(sd)})" if n > 1 else ""
    return number(mean) + spread + (f"\nn = {n}" if n < planned else "")


_STALENESS = "setting/staleness"
_STALENESS_ROWS = {
    "final accuracy": "final_score",
    "clipped tokens\n(share)": "clip/active",
    "largest\ntoken ratio": "ratio_max",
    "sampler–trainer\ngap (nat)": "gap/sampler_trainer",
}
_ON_LOG_SCALE = ("ratio_max", "gap/sampler_trainer")


def draw_staleness(study: Study) -> Drawing:
    """Accuracy, its paired difference to the baseline, clipping, largest ratio and sampler-trainer gap by staleness."""
    difference = f"accuracy minus\nthat of {arm_label(study, study.baseline)}"
    rows = {"final accuracy": "final_score", difference: "difference"} | _STALENESS_ROWS
    factors = [factor for factor, setting in numeric_axes(study).items() if setting == _STALENESS]
    if not factors:
        raise NotDrawnError("needs a factor that moves staleness alone")
    panels = split(_staleness_values(study), (factors[0], study.plan["compare"]))
    figure, grid = panel_grid(list(rows), list(panels), height=1.3)
    styles, numbers = arm_styles(study.arms), list[Series]()
    for title, values in panels.items():
        axis = Axis(sorted(values[_STALENESS].unique()), "staleness")
        for row, metric in rows.items():
            panel = grid[row, title]
            shown = values.where(values[metric] > 0) if metric in _ON_LOG_SCALE else values
            for place, (arm, arm_values) in enumerate(shown.dropna(subset=[metric]).groupby("arm", sort=False)):
                if metric != "difference" or arm != study.baseline:
                    share, shift = is_share(study, metric), 0.08 * place
                    series = draw_along(panel, axis, arm_values, (_STALENESS, metric), styles[arm], shift, share)
                    numbers.append({"metric": metric, "facet": title, "arm": arm, **series})
            axis.label(panel)
            if metric in _ON_LOG_SCALE:
                log_axis(panel, "y")
            if metric == "difference":
                panel.axhline(0, color=QUIET, linewidth=0.7, linestyle=":")
    legend_arms(figure, study, [series["arm"] for series in numbers])
    caption = (
        "Against staleness (rollout steps between sampling a batch and learning from it): final accuracy; its"
        f" difference to `{study.baseline}` at the same staleness, seed by seed; clipped tokens (`clip/active`, mean"
        " of the run); largest token ratio of the run; largest difference of the sampler's and the trainer's"
        " log-probabilities, mean over batches. The last two on log scales, where 0 is left out; the gap"
        " is known where the trainer computes log-probabilities of its own (`old_log_probs`)."
    )
    statistic = f"{MEAN}, of the difference paired by seed; dots are seeds"
    return Drawing(figure, caption, statistic, numbers)


def _staleness_values(study: Study) -> pd.DataFrame:
    """The study's cells with each metric of the rows as a column, and the paired difference of the accuracy."""
    cells = study.cells.assign(**{metric: by_cell(study, metric) for metric in _STALENESS_ROWS.values()})
    baseline = cells.loc[cells["arm"] == study.baseline, ["facet", "seed", "final_score"]]
    cells = cells.merge(baseline, on=["facet", "seed"], how="left", suffixes=("", "_baseline"))
    return cells.assign(difference=cells["final_score"] - cells["final_score_baseline"])
