"""Figures along numbers: settings that a factor moves, passes over a batch, the size of a model, the length of answers.

Dimension letters: X values of a setting, S seeds, P places of a map with rows Y and columns X.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from grpolab.report import measures
from grpolab.report.figures import panels
from grpolab.report.figures.panels import BLACK, MEAN, MEAN_DOTS, Drawing, NotDrawnError, Sheet, pivot_seeds
from grpolab.report.load import StudyRuns
from grpolab.report.measures import SCALES, numeric_axes, split
from grpolab.report.statistics.intervals import geometric_band, share_band, t_band
from grpolab.report.style import NOTE_COLOUR, QUIET, Series
from grpolab.report.text import number

DECADES = 100.0  # values that are this far apart get a log scale
NEEDS_SCALE = "needs a factor {} whose levels are numbers (0.13M, 48)"


def _write_value(value: float) -> str:
    return f"{value:g}".replace("inf", "∞")


def scale_axis(panel: Axes, values: Sequence[float], name: str) -> dict[float, float]:
    """Set the x axis for values of a setting, which rise; return {value: place}.

    They are evenly spaced, or on a log scale where they span DECADES, with an infinite value beyond the largest.
    """
    panel.set_xlabel(name)
    finite = [value for value in values if np.isfinite(value)]
    if not finite or finite[0] <= 0 or finite[-1] < DECADES * finite[0]:
        panel.set_xticks(range(len(values)), map(_write_value, values))
        return {value: place for place, value in enumerate(values)}
    beyond = 4 * finite[-1]
    places = {value: min(value, beyond) for value in values}
    panel.set_xlim(finite[0] / 1.5, places[values[-1]] * 1.5)
    panels.set_log_axis(panel, "x")
    if np.inf in places:
        decades = 10.0 ** np.arange(np.ceil(np.log10(finite[0])), np.floor(np.log10(finite[-1])) + 1)
        panel.set_xticks([*decades, beyond], [*map(_write_value, decades), "∞"])
    return places


def draw_accuracy_by_setting(study: StudyRuns) -> Drawing:
    """Final accuracy against each setting that a factor moves: evenly spaced, in order of size, or on a log scale where
    the values span decades (∞ stands beyond the largest).
    """
    scores = study.cells.assign(score=measures.by_cell(study, "final_score"))
    shown = {
        (setting, title): cells
        for factor, setting in numeric_axes(study).items()
        for title, cells in split(scores, (factor, study.plan["compare"])).items()
    }
    if not shown:
        raise NotDrawnError("needs a factor that moves nothing but a number")
    sheet = Sheet(study, ["final accuracy"], [title for _, title in shown], height=2.0, share_x=False)
    band = measures.band_of(study, "final_score")
    for panel, ((setting, title), cells) in zip(sheet.grid.values(), shown.items(), strict=False):
        place_of = scale_axis(panel, sorted(cells[setting].unique()), setting.removeprefix("setting/"))
        arms_are_the_axis = cells.groupby("arm")[setting].nunique().eq(1).all()
        lines = {"all": cells} if arms_are_the_axis else dict(iter(cells.groupby("arm", sort=False)))
        values = {arm: pivot_seeds(of_arm, setting, "score") for arm, of_arm in lines.items()}
        sheet.draw_beside(panel, values, band, place_of.__getitem__, setting=setting, facet=title)
    sheet.draw_legend(arms=[series["arm"] for series in sheet.numbers])
    return sheet.finish(MEAN_DOTS)


def draw_batch_reuse(study: StudyRuns) -> Drawing:
    """Clip fraction (mean over all optimiser steps) against num_iterations; the clip fraction of each pass over the
    batch; and final accuracy against num_iterations, minus that of `{study.baseline}` with the same seed.
    """
    passes, baseline = "setting/num_iterations", study.baseline
    clipped, by_pass = "clipped tokens\n(share)", "clipped, by pass\nover the batch"
    gain = f"final accuracy minus\nthat of {panels.arm_label(study, baseline)}"
    baseline_passes = study.cells.loc[study.cells["arm"] == baseline, passes].iloc[0]
    sheet = Sheet(study, [clipped, by_pass, gain], share_x=False)
    for facet in study.facets:
        clip_XS, score_XS = (
            measures.by_setting(study, measures.measure(study, metric), facet, passes).T
            for metric in ("clip/active", "final_score")
        )
        gain_XS = score_XS - score_XS.reindex([baseline_passes]).iloc[0]
        clip_labels: dict[str, Any] = {"metric": "clip/active", "facet": facet}
        gain_labels: dict[str, Any] = {"metric": "final_score", "facet": facet, "minus": baseline}
        for row, values_XS, band, labels in (
            (clipped, clip_XS, share_band, clip_labels),
            (gain, gain_XS, t_band, gain_labels),
        ):
            panel = sheet.grid[row, facet]
            places = scale_axis(panel, values_XS.index.tolist(), "num_iterations")
            sheet.draw_means(panel, sheet.share_columns(values_XS), BLACK, band, list(places.values()), **labels)
    by_arm: dict[str, dict[Any, pd.DataFrame]] = {facet: {} for facet in study.facets}
    for _, facet, arm, updates in sheet.by_arm(by_pass, "updates", "clip/active"):
        by_arm[facet][arm] = pivot_seeds(updates, "iteration", "clip/active")
    for facet, values in by_arm.items():  # beside each other: arms have nearly the same values at a pass
        panel = sheet.grid[by_pass, facet]
        sheet.draw_beside(panel, values, share_band, float, metric="clip/active", by="iteration", facet=facet)
        panels.set_whole_ticks(panel)
        panel.set_xlabel("pass (0 = first)")
    sheet.mark(0, gain)
    sheet.draw_legend()
    return sheet.finish(f"{MEAN_DOTS}; differences paired by seed")


def draw_setting_map(study: StudyRuns) -> Drawing:
    """Entropy of the sampling policy over the last tenth of the run, final held-out accuracy, and the KL divergence of
    the policy from the one that sampled the batch at the batch's last update (estimator k3, mean over the run), for
    each pair of settings, in order of size. Colour: how far above (red) or below (blue) its own mean over the settings
    a seed is on average; ±: standard error of that. The colours reach over two standard errors at least, so that noise
    stays pale. Hatched: no run has a result.
    """
    # Over the first two factors that move a number; the levels of other factors have panels of their own.
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
        values = measures.by_cell(study, quantity)
        for title, cells in parts.items():
            series = _draw_map(sheet.grid[row, title], cells.assign(value=values), y, x)
            sheet.grid[row, title].set(xlabel=x.removeprefix("setting/"), ylabel=row)
            sheet.record(series, metric=quantity, facet=title)
    return sheet.finish("mean over seeds; the colour and ± are paired by seed")


def _draw_map(panel: Axes, cells: pd.DataFrame, y: str, x: str) -> Series:
    """Draw the mean in each square of y (rows) by x (columns), both increasing.

    The colour is the mean deviation of seeds from their own means over the settings that every seed has.
    """
    values_PS = cells.pivot(index=[y, x], columns="seed", values="value")
    complete_PS = values_PS.dropna()
    apart_PS = values_PS - (complete_PS if len(complete_PS) else values_PS).mean()
    columns = {"mean": values_PS.mean(axis=1), "apart": apart_PS.mean(axis=1), "error": apart_PS.sem(axis=1)}
    squares = pd.DataFrame(columns | {"n": values_PS.count(axis=1)})

    def write(square: pd.Series) -> str:
        # Where every seed has one value (a KL of exactly 0), the error is that of the others' mean alone.
        varies = values_PS.loc[square.name].nunique() > 1
        spread = f"\n±{square.error:.1g}".replace("0.", ".", 1) if varies else ""
        return number(square["mean"]) + spread + (f"\nn = {square.n:.0f}" if square.n < squares["n"].max() else "")

    words_YX = squares.apply(write, axis=1).unstack()
    tables = {name: values.unstack() for name, values in squares.items()}
    apart_YX = tables["apart"]
    reach = np.nanmax([apart_YX.abs(), 2 * tables["error"]], initial=0) or 1.0
    import seaborn as sns  # imported late: a second, for the one figure that needs it

    sns.heatmap(
        apart_YX,
        **{"vmin": -reach / 0.6, "vmax": reach / 0.6, "cmap": "RdBu_r", "cbar": False},
        **{"annot": words_YX, "fmt": "", "annot_kws": {"fontsize": 7, "color": "black"}},
        **{"xticklabels": [*map(_write_value, apart_YX.columns)], "yticklabels": [*map(_write_value, apart_YX.index)]},
        **{"linewidths": 0.6, "ax": panel},
    )
    panel.invert_yaxis()
    panel.tick_params(length=0, labelrotation=0)
    panel.patch.set(facecolor="white", edgecolor="#e8b9be", hatch="//")  # seen where a square is missing
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": NOTE_COLOUR}
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    for row, column in np.argwhere(apart_YX.isna().to_numpy()):
        panel.text(column + 0.5, row + 0.5, "missing", **look)
    lists = {name: table.to_numpy(dtype=np.float64).tolist() for name, table in tables.items()}
    return {"x": apart_YX.columns.tolist(), "y": apart_YX.index.tolist(), **lists}


def parse_level(level: str) -> float:
    """Return the number of a level: `0.13M` is 130,000, `48` is 48; NaN for words."""
    try:
        return float(level.removesuffix("M")) * (1e6 if level.endswith("M") else 1)
    except ValueError:
        return np.nan


def _complete_scales(study: StudyRuns, scale: str) -> dict[str, pd.DataFrame]:
    """Return by title the groups of cells that differ only in arm, seed and `scale`, if all levels of it are planned.

    They are ordered by a column `scale`, the number of the level.
    """
    levels = study.plan["factors"].get(scale, [])
    if len(levels) < 2 or not np.isfinite([*map(parse_level, levels)]).all():
        return {}
    cells = study.cells.assign(scale=study.cells[f"factor/{scale}"].map(parse_level))
    parts = split(cells.sort_values("scale", kind="stable"), (scale, study.plan["compare"]), units=SCALES)
    return {title: part for title, part in parts.items() if part["scale"].nunique() == len(levels)}


def _label_scale(panel: Axes, scale: str, levels: Sequence[str], label: str) -> None:
    """Set a log axis with a tick for each level, by its name; also where nothing is drawn yet."""
    numbers = [parse_level(level) for level in levels]
    panel.set(xscale="log", xlim=(min(numbers) / 1.25, max(numbers) * 1.25), xlabel=label)
    panel.set_xticks(numbers, levels)
    panel.minorticks_off()


def draw_effect_by_scale(study: StudyRuns) -> Drawing:
    """Final accuracy minus that of `{study.baseline}` with the same seed, over the model's parameters and over the
    tokens of an answer, on log scales. A length is also another task, and a size has its own learning rate.
    """
    baseline, scores = study.baseline, study.cells.assign(score=measures.by_cell(study, "final_score"))
    shown = {
        (scale, title): cells.join(scores["score"])
        for scale in SCALES
        if scale != study.plan["compare"]
        for title, cells in _complete_scales(study, scale).items()
        if baseline in set(cells["arm"])
    }
    if not shown:
        raise NotDrawnError(NEEDS_SCALE.format(" or ".join(SCALES)))
    row = f"final accuracy minus\nthat of {panels.arm_label(study, baseline)}"
    sheet = Sheet(study, [row], [title for _, title in shown], height=2.0, share_x=False)
    others = [arm for arm in study.arms if arm != baseline]
    for panel, ((scale, title), cells) in zip(sheet.grid.values(), shown.items(), strict=False):
        scores_XS = {arm: pivot_seeds(part, "scale", "score") for arm, part in cells.groupby("arm")}
        differences = {arm: scores_XS.get(arm, pd.DataFrame()) - scores_XS[baseline] for arm in others}
        paired = {arm: apart.dropna(how="all").dropna(how="all", axis=1) for arm, apart in differences.items()}
        labels = {"metric": "final_score", "scale": scale, "facet": title, "minus": baseline}
        sheet.draw_beside(panel, paired, t_band, float, **labels)
        _label_scale(panel, scale, study.plan["factors"][scale], SCALES[scale])
    sheet.mark(0)
    sheet.draw_legend(arms=others)
    return sheet.finish(f"{MEAN_DOTS}, paired by seed; a description, not corrected")


def draw_clipping_by_length(study: StudyRuns) -> Drawing:
    """Two numbers against the length of answers, on log scales: the share of the tokens with an advantage that clipping
    silences, and the spread of the log ratio of a whole answer (the mean over its tokens): half the distance from its
    1st to its 99th percentile, mean of A > 0 and A < 0. Both are means over the optimiser steps that can clip; zeros
    are not drawn. Dotted, from the shortest answers on: tokens whose log ratios are independent and of one
    distribution. Their mean's spread falls as 1/sqrt(T), so a clipped share below one half falls with length, and one
    above it rises. Answers of another length are also another task.
    """
    parts = _complete_scales(study, "length")
    if not parts:
        raise NotDrawnError(NEEDS_SCALE.format("length"))
    clipped, spread = "clipped tokens\n(share)", "|log ratio| of\nan answer (98%)"
    rows = {
        clipped: measures.means_after_first_step(study, "clip/active_nz"),
        spread: measures.log_ratio_spread(study),
    }
    sheet = Sheet(study, rows, list(parts), height=1.7)
    index = pd.MultiIndex.from_frame(study.cells[["facet", "arm", "seed"]])
    for (row, title), panel in sheet.grid.items():
        of_cell = pd.Series(rows[row].reindex(index).to_numpy(), study.cells.index)
        cells = parts[title].assign(value=of_cell.where(of_cell > 0))
        one_arm = study.plan["compare"] == "length"
        for arm, part in [("all", cells)] if one_arm else cells.groupby("arm", sort=False):
            values_XS = pivot_seeds(part, "scale", "value")
            if values_XS.empty:
                continue
            look, lengths = sheet.styles.get(arm, BLACK), values_XS.index.tolist()
            labels: dict[str, Any] = {"metric": row.replace("\n", " "), "facet": title, "arm": arm}
            mean_X = sheet.draw_means(panel, values_XS, look, geometric_band, lengths, **labels)
            if row == clipped and (part["setting/importance_sampling_level"] == "token").all():
                continue  # each token meets the range by itself
            length_X = np.geomspace(lengths[0], lengths[-1], 50)
            theory_X = extrapolate(float(mean_X[0]), length_X, is_share=row == clipped)
            seen_X = theory_X >= 0.5 * np.nanmin(values_XS)  # else the panel would be scaled to it
            panel.plot(length_X[seen_X], theory_X[seen_X], color=look.colour, linewidth=0.8, linestyle=":")
        panels.set_log_axis(panel, "y", panels.write_percent if row == clipped else panels.write_plainly)
        _label_scale(panel, "length", study.plan["factors"]["length"], "")
    sheet.label_x(SCALES["length"])
    drawn = {series["arm"] for series in sheet.numbers}
    theory = Line2D([], [], color=QUIET, linewidth=0.8, linestyle=":", label="spread as 1/sqrt(T)")
    sheet.draw_legend([theory], arms=drawn)
    return sheet.finish(f"{MEAN.replace('mean', 'geometric mean')}; dots are seeds")


def extrapolate(first: float, length_X: NDArray, is_share: bool) -> NDArray:
    """Extrapolate from the shortest length, on the assumption that an answer's log ratio has a spread of 1/sqrt(T).

    The result is the spread itself, or the share of normal log ratios beyond a fixed range, at a fixed mean.
    """
    root_X = np.sqrt(length_X / length_X[0])
    return np.asarray(ndtr(ndtri(first) * root_X) if is_share else first / root_X)
