"""Figures of studies that train each rule at several learning rates, on stale batches, or with splits of one budget.

Dimension letters: X learning rates, S seeds, Y rows and P columns of a map, C amounts of compute.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from grpolab.report import measures
from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN, Drawing, NotDrawnError, Sheet, pivot_seeds
from grpolab.report.load import StudyRuns
from grpolab.report.measures import split
from grpolab.report.rates import (
    GENERATIONS,
    PASSES,
    PROMPTS,
    RATE,
    REPLICATES,
    STALENESS,
    RateBand,
    at_best_rates,
    best_rule,
    rate_factor,
    workable_band,
)
from grpolab.report.statistics.intervals import t_interval
from grpolab.report.style import NOTE_COLOUR, QUIET


def draw_workable_rates(study: StudyRuns) -> Drawing:
    """Final accuracy against the learning rate (log scale; dotted: the warm start; ×: at least one run collapsed,
    diverged or was stopped), and the band of rates around each rule's best one that keep half of the best gain: how
    many times apart its ends are, in brackets the 95% interval of a bootstrap over seeds; > where the band goes on
    beyond the grid.
    """
    if not (factor := rate_factor(study)):
        raise NotDrawnError("needs a factor that moves nothing but learning_rate")
    columns = ["final accuracy", "rates that keep half of the best gain"]
    values = {name: measures.by_cell(study, name) for name in ("final_score", "gain", "start", "lost")}
    cells = study.cells.assign(**{name: of.to_numpy() for name, of in values.items()})
    arms_are_rates = factor == study.plan["compare"]
    parts = split(cells, (factor, study.plan["compare"]), "/")
    sheet = Sheet(study, list(parts), columns, height=0.35 + 0.18 * max(5, len(study.arms)), share_y=False)
    band = measures.band_of(study, "final_score")
    for task, part in parts.items():
        curve, bars = (sheet.grid[task, column] for column in columns)
        curve.axhline(part["start"].mean(), color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
        lines = {"all": part} if arms_are_rates else dict(iter(part.groupby("arm", sort=False)))
        for y, (arm, of_arm) in enumerate(lines.items()):
            look = sheet.styles.get(arm, panels.BLACK)
            labels: dict[str, Any] = {"facet": task, "arm": arm}
            scores_XS = pivot_seeds(of_arm, RATE, "final_score")
            scores_XS = sheet.share_columns(scores_XS) if len(scores_XS) else scores_XS
            mean_X = sheet.draw_means(curve, scores_XS, look, band, metric="final_score", **labels)
            lost_X = of_arm.groupby(RATE)["lost"].sum().reindex(scores_XS.index)
            marked = scores_XS.index[lost_X > 0]
            curve.plot(marked, mean_X[lost_X > 0], "x", color=look.colour, markersize=6, markeredgewidth=1.3)
            sheet.record({"x": scores_XS.index.tolist(), "lost": lost_X.tolist()}, **labels)
            gains_XS = pivot_seeds(of_arm, RATE, "gain").dropna(axis="columns")
            whole = len(gains_XS) == of_arm[RATE].nunique() and gains_XS.shape[1] > 0
            found = RateBand(lack="runs are missing")
            if whole:
                found = workable_band(gains_XS.index.to_numpy(dtype=float), gains_XS.to_numpy())
            _draw_rate_band(bars, y, found, look.colour)
            sheet.record(found._asdict() | {"metric": "band"}, **labels)
        if not any(series["facet"] == task and series["x"] for series in sheet.numbers if "x" in series):
            sheet.write_lack(curve, "no run has a result yet", facet=task)
            curve.set_yticks([])
        sheet.name_rows(bars, list(lines))
        rates = sorted(part[RATE].unique())
        for panel in (curve, bars):
            panel.set(xscale="log", xlim=(rates[0] / 1.25, rates[-1] * 1.25))
            panel.set_xticks(rates, [*map(panels.write_short, rates)])
            panel.tick_params(axis="x", labelrotation=35 if len(rates) > 4 else 0)
            panel.minorticks_off()
    sheet.label_x("learning rate")
    sheet.draw_legend([Line2D([], [], color="0.3", marker="x", linestyle="", label="some runs lost")])
    return sheet.finish(f"{MEAN}; bands: {REPLICATES:,} replicates, generator seed 0")


def _draw_rate_band(panel: Axes, y: int, band: RateBand, colour: str) -> None:
    """Draw a bar over the band, with an arrow where it is open, and its width beside the panel."""
    if band.lack:
        words = band.lack
    else:
        panel.hlines(y, band.low, band.high, color=colour, linewidth=5, alpha=0.8)
        for is_open, end, arrow in ((band.open_low, band.low, "<"), (band.open_high, band.high, ">")):
            if is_open:
                panel.plot(end, y, arrow, color=colour, markersize=6, clip_on=False)
        more = ">" if band.open_low or band.open_high else ""
        words = f"{more}×{band.width:.2g} [{band.least:.2g}, {band.most:.2g}]"
    look: dict[str, Any] = {"va": "center", "color": NOTE_COLOUR if band.lack else colour}
    panel.annotate(words, (1.02, y), xycoords=("axes fraction", "data"), **look)


MISSING, BEST = "missing", "best rule"


def draw_staleness_map(study: StudyRuns) -> Drawing:
    """Final accuracy in points above (red) or below (blue) that of `{study.baseline}` on fresh batches that are used
    once, by the steps that a batch is old (staleness) and the passes over it; ± is half of the interval, paired by
    seed. Last: the best rule with its lead over the next one, in colour where it leads every other rule by more than
    its interval, which is corrected for their number. Grey: not planned.{rates}
    """
    cells = study.cells.assign(score=measures.by_cell(study, "final_score").to_numpy())
    if any(name not in cells or cells[name].nunique() < 2 for name in (STALENESS, PASSES)):
        raise NotDrawnError("needs factors that move staleness and num_iterations")
    chosen, several = at_best_rates(cells, STALENESS, PASSES)
    tasks, rules = list(dict.fromkeys(cells["setting/task"])), [arm for arm in study.arms if arm in set(cells["arm"])]
    sheet = Sheet(study, tasks, [*rules, BEST], height=1.75, share_x=False, share_y=False)
    axes = [sorted(cells[name].unique()) for name in (STALENESS, PASSES)]
    places = pd.MultiIndex.from_product(axes, names=["staleness (steps)", "passes"])
    for task in tasks:
        planned = {*cells[cells["setting/task"] == task].set_index([STALENESS, PASSES, "arm"]).index}
        here = chosen[chosen["setting/task"] == task].pivot(
            index=[STALENESS, PASSES, "arm"], columns="seed", values="score"
        )
        start = (*places[0], study.baseline)
        if start not in here.index or here.loc[start].isna().all():
            raise NotDrawnError(f"waits for {study.baseline} on fresh batches that are used once, on {task}")
        apart = 100 * (here - here.loc[start])
        reach = float(np.nanmax(apart.mean(axis=1).abs())) or 1.0
        for rule in rules:
            words, means = pd.Series("", places), pd.Series(np.nan, places)
            for place in places:
                difference_S = apart.loc[(*place, rule)].dropna() if (*place, rule) in apart.index else np.empty(0)
                if not len(difference_S):
                    words[place] = MISSING if (*place, rule) in planned else ""
                    continue
                found = t_interval(difference_S)
                means[place] = found.mean
                words[place] = f"{found.mean:+.1f}\n±{found.high - found.mean:.1f}"
                if (*place, rule) == start:
                    words[place] = f"{100 * here.loc[start].mean():.1f}%"
                sheet.record({**found._asdict(), "staleness": place[0], "passes": place[1]}, facet=task, arm=rule)
            _draw_places(sheet.grid[task, rule], means, words, reach)
        leads = {place: lead for place in places if (lead := best_rule(apart, place))}
        panel, words = sheet.grid[task, BEST], pd.Series("", places)
        for place, lead in leads.items():
            words[place] = f"{lead.rule}\n{lead.mean:+.1f}"
            sheet.record(lead._asdict() | {"staleness": place[0], "passes": place[1]}, facet=task, metric=BEST)
        _draw_places(panel, pd.Series(np.nan, places), words, reach)
        panel.set_facecolor("white")
        for place, lead in leads.items():
            if lead.is_beyond:
                row, column = (places.levels[level].get_loc(place[level]) for level in (0, 1))
                colour = sheet.styles[lead.rule].colour
                panel.fill_between([column - 0.5, column + 0.5], row - 0.5, row + 0.5, color=colour, alpha=0.3)
    how = "mean over seeds, paired by seed, 95% t-interval: a description"
    return sheet.finish(how, rates=CHOSEN if several else "")


CHOSEN = " Each square has its best learning rate, which the same seeds chose: a little too high."


def _draw_places(panel: Axes, means: pd.Series, words: pd.Series, reach: float) -> None:
    """Draw a square for each place, rows and columns by the two levels of the index, coloured within +-reach."""
    means_YP, words_YP = means.unstack(), words.unstack()
    panel.imshow(means_YP, origin="lower", aspect="auto", cmap="RdBu_r", vmin=-reach / 0.6, vmax=reach / 0.6)
    for (row, column), text in np.ndenumerate(words_YP.to_numpy()):
        colour = NOTE_COLOUR if text == MISSING else "black"
        panel.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    panel.set_facecolor("0.93")  # where no run is planned
    panel.set_xticks(range(means_YP.shape[1]), means_YP.columns)
    panel.set_yticks(range(means_YP.shape[0]), means_YP.index)
    panel.tick_params(length=0)
    panel.grid(visible=False)
    y, x = means.index.names
    panel.set(xlabel=x, ylabel=y)


FORWARD_AND_BACKWARD = 3  # a pass of training costs three times the forward pass that samples (2 and 6 FLOP a weight)
MAP, CURVES = "final accuracy (%)", "accuracy"


def draw_budget_frontier(study: StudyRuns) -> Drawing:
    """Splits of one budget into prompts of a step, completions of a prompt and passes over them. Above: final accuracy
    with half of its 95% interval, a panel for each number of passes; red above, blue below the mean of all squares;
    grey: not planned. Below: held-out accuracy against compute so far, one line for each split: a sampled completion
    counts as 1, and each pass over one as 3 (forward and backward). Black: the frontier, the best split of any panel at
    that much compute: {frontier}.{rates}
    """
    moved = [GENERATIONS, PROMPTS, PASSES]
    cells = study.cells.assign(score=measures.by_cell(study, "final_score").to_numpy())
    if any(name not in cells or cells[name].nunique() < 2 for name in moved):
        raise NotDrawnError("needs factors that move num_generations, prompts_per_step and num_iterations")
    if cells["setting/task"].nunique() > 1:
        raise NotDrawnError("needs one task: a completion of another costs another amount")
    chosen, several = at_best_rates(cells, *moved)
    squares = {place: of for place, of in chosen.groupby(moved, sort=True) if of["score"].notna().any()}
    if not squares:
        raise NotDrawnError("waits for a split with a result of every seed at one learning rate")
    columns = {passes: _name_passes(passes) for passes in sorted(cells[PASSES].unique())}
    sheet = Sheet(study, [MAP, CURVES], list(columns.values()), height=1.9, share_x=False, share_y=False)
    scores = {place: t_interval(100 * of["score"]) for place, of in squares.items()}
    means = [score.mean for score in scores.values()]
    middle, reach = float(np.mean(means)), float(np.ptp(means)) or 1.0
    axes = [sorted(cells[name].unique()) for name in (GENERATIONS, PROMPTS)]
    places = pd.MultiIndex.from_product(axes, names=["completions of a prompt", "prompts of a step"])
    curves = {place: _over_compute(study, of, place[-1]) for place, of in squares.items()}
    best = _frontier(curves)
    for passes, column in columns.items():
        words, apart = pd.Series("", places), pd.Series(np.nan, places)
        for generations, prompts in {*cells.loc[cells[PASSES] == passes].set_index([GENERATIONS, PROMPTS]).index}:
            place = (generations, prompts, passes)
            words[place[:2]] = MISSING
            if score := scores.get(place):
                apart[place[:2]] = score.mean - middle
                words[place[:2]] = f"{score.mean:.1f}\n±{score.high - score.mean:.1f}"
                labels = {"generations": int(generations), "prompts": int(prompts), "passes": int(passes)}
                rate = float(squares[place][RATE].iloc[0])
                sheet.record({**score._asdict(), "rate": rate}, metric=MAP, **labels)
        _draw_places(sheet.grid[MAP, column], apart, words, reach)
        panel = sheet.grid[CURVES, column]
        for place, curve_C in curves.items():
            if place[-1] == passes:
                look = sheet.styles[squares[place]["arm"].iloc[0]]
                panel.plot(curve_C.index, curve_C, **{**look.line_options, "markersize": 2})
        panel.plot(best.index, best["score"], color="black", linewidth=1.6, zorder=0)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.locator_params(axis="x", nbins=4)
    sheet.label_x("compute")
    sheet.record({"x": best.index.tolist(), "mean": best["score"].tolist()}, metric="frontier")
    ends = best.loc[best["place"] != best["place"].shift(-1), "place"]
    frontier = "; ".join(
        f"to {compute:,.0f} {generations} x {prompts}, {_name_passes(passes)}"
        for compute, (generations, prompts, passes) in ends.items()
    )
    sheet.draw_legend()
    how = "mean over seeds, 95% t-interval: a description"
    return sheet.finish(how, frontier=frontier, rates=CHOSEN if several else "")


def _name_passes(passes: int) -> str:
    return "used once" if passes == 1 else f"used {passes} times"


def _over_compute(study: StudyRuns, cells: pd.DataFrame, passes: int) -> pd.Series:
    """Return a split's mean held-out accuracy over seeds by the compute spent, (C,)."""
    runs = study.evaluations.merge(cells[["variant", "seed"]], on=["variant", "seed"])
    compute = runs["completions"] * (1 + FORWARD_AND_BACKWARD * passes)
    return runs.groupby(compute)[study.metric].mean().sort_index()


def _frontier(curves: dict[Any, pd.Series]) -> pd.DataFrame:
    """Return the best split (`place`) and its accuracy (`score`) at each amount of compute where one is evaluated.

    Between two evaluations a split's accuracy is on a straight line. The last amount is the largest that all reached.
    """
    end = min(curve_C.index[-1] for curve_C in curves.values())
    compute_C = np.unique([compute for curve_C in curves.values() for compute in curve_C.index if compute <= end])
    scores = {number: np.interp(compute_C, of.index, of) for number, of in enumerate(curves.values())}
    table = pd.DataFrame(scores, index=compute_C)
    places = list(curves)
    best_C = table.idxmax(axis=1)
    return pd.DataFrame({"place": [places[number] for number in best_C], "score": table.max(axis=1)})
