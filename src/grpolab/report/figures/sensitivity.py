"""F24: final accuracy against the settings that a factor of the study moves."""

from __future__ import annotations

from numbers import Real

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.report.figures.panels import legend_arms, note_gaps, panel_grid, pivot_seeds, say
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import measure
from grpolab.report.statistics import t_band
from grpolab.report.style import ArmStyle, arm_styles

_ROW = "final accuracy"


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Final accuracy along each numeric axis of the study, one line per arm; one line where the arms are the axis."""
    scores = measure(study, "final_score").rename("score").reset_index()
    scores = scores.merge(study.cells, on=["facet", "arm", "seed"])
    panels = {
        (setting, title): frame
        for factor, setting in numeric_axes(study).items()
        for title, frame in _split(scores, study, factor)
    }
    figure, grid = panel_grid([_ROW], [title for _, title in panels] or [""], height=2.0, share_x=False)
    styles, numbers = arm_styles(study.arms), []
    for panel, ((setting, title), frame) in zip(grid.values(), panels.items(), strict=False):
        ticks = sorted(study.cells[setting].unique())
        one_line = frame.groupby("arm")[setting].nunique().eq(1).all()
        for arm, own in [("all", frame)] if one_line else list(frame.groupby("arm", sort=False)):
            series = _draw_line(panel, own, setting, ticks, styles.get(arm, ArmStyle("black", "-", "o")))
            numbers.append({"setting": setting, "facet": title, "arm": arm, **series})
        panel.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
        panel.set_xlabel(setting.removeprefix("setting/"))
    if not panels:
        say(next(iter(grid.values())), "no factor of this study moves a number alone")
    legend_arms(figure, study, [series["arm"] for series in numbers])
    note_gaps(figure, study)
    caption = "Final accuracy against each setting that a factor moves (evenly spaced, in order of size)."
    return figure, manifest(study, "F24", caption, "mean over seeds, 95% t-interval; dots are seeds", numbers)


def numeric_axes(study: Study) -> dict[str, str]:
    """{factor: setting} for the factors whose levels differ in nothing but numbers, all of them different.

    The first such setting stands for a factor that moves several together (epsilon and epsilon_high).
    """
    axes = {}
    for factor in study.plan["factors"]:
        others = [c for c in study.cells if c.startswith("factor/") and c != f"factor/{factor}"] + ["seed"]
        rows = study.cells.merge(study.cells.loc[:0, others], on=others)  # one cell of each level, all else equal
        moved = [c for c in rows if c.startswith("setting/") and rows[c].astype(str).nunique() > 1]
        numeric = all(isinstance(value, Real) for column in moved for value in rows[column])
        distinct = [column for column in moved if numeric and rows[column].nunique() == len(rows)]
        if distinct:
            axes[factor] = distinct[0]
    return axes


def _split(scores: pd.DataFrame, study: Study, factor: str) -> list[tuple[str, pd.DataFrame]]:
    """The scores by the levels of the factors that are neither the axis nor the arms."""
    within = [c for c in scores if c.startswith("factor/") and c[7:] not in (factor, study.plan["compare"])]
    if not within:
        return [("", scores)]
    return [(" · ".join(levels), frame) for levels, frame in scores.groupby(within, sort=False)]


def _draw_line(panel: Axes, scores: pd.DataFrame, setting: str, ticks: list, style: ArmStyle) -> Series:
    """Mean with interval at each value, seeds as dots. Values stand at their rank."""
    values_XS = pivot_seeds(scores, setting, "score")
    place = [ticks.index(value) for value in values_XS.index]
    mean, low, high, n = t_band(values_XS.to_numpy())
    panel.plot(place, values_XS.to_numpy(), ".", color=style.colour, markersize=3, alpha=0.5)
    error = [mean - low, high - mean]
    panel.errorbar(
        place,
        mean,
        yerr=error,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        capsize=2,
        elinewidth=0.8,
    )
    seeds = {int(seed): values_XS[seed].tolist() for seed in values_XS}
    series = {"x": values_XS.index.tolist(), "mean": mean.tolist(), "low": low.tolist(), "high": high.tolist()}
    return {**series, "n": n.tolist(), "seeds": seeds}
