"""Figures of clipping and of the ratios that are clipped: how much, how much could be, by whose definition, how far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import NDArray

from grpolab.meanings import CLIP_METRIC, convention
from grpolab.report.figures import panels
from grpolab.report.figures.panels import GEOMETRIC, MEAN, MEAN_DOTS, OVER_TIME, Drawing, NotDrawnError, Sheet
from grpolab.report.journals import at_quarters
from grpolab.report.load import StudyRuns
from grpolab.report.measures import at, clip_ceiling, run_means
from grpolab.report.stability import after_first_step
from grpolab.report.statistics.intervals import share_band, share_interval, t_band
from grpolab.report.style import QUIET, ArmStyle, arm_styles
from grpolab.vocabulary import EXCESS_EDGES, LEVELS, QUANTILES, SIGNS, quantile_metric


def draw_clip_fraction(study: StudyRuns) -> Drawing:
    """Share of tokens whose gradient clipping set to zero (below the range with A<0, above it with A>0): mean over the
    optimiser steps of a rollout step, of which the first can never clip.
    """
    rows = {
        "clipped below\n(tokens with A≠0)": ("updates", "clip/active_low_nz"),
        "clipped above\n(tokens with A≠0)": ("updates", "clip/active_high_nz"),
        "clipped\n(all tokens)": ("updates", "clip/active"),
    }
    sheet = panels.draw_curves(study, rows, height=1.35)
    sheet.start_at_zero(as_percent=True)
    return sheet.finish(OVER_TIME)


def draw_clip_ceiling(study: StudyRuns) -> Drawing:
    """Share of tokens that clipping silenced (`clip/active`, each token counted once whatever the ratio level), mean
    over all optimiser steps, on a log scale. Grey: the ceiling, (1 - share of zero-variance groups)(1 - 1/updates per
    batch). 0 is written out.
    """
    sheet = Sheet(study, [""], height=0.3 + 0.2 * len(study.arms))
    clip_shares, ceilings = run_means(study, "clip/active"), clip_ceiling(study)
    smallest = 0.1  # above 0, for the log scale
    for (_, facet), panel in sheet.grid.items():
        for y, arm in enumerate(study.arms):
            labels = {"metric": "clip/active", "facet": facet}
            clip_S = at(clip_shares, facet, arm)
            if clip_S.empty:
                sheet.record({}, **labels, arm=arm)
                continue
            clip, ceiling = share_interval(clip_S), share_interval(at(ceilings, facet, arm)).mean
            if ceiling > 0:
                panel.vlines(ceiling, y - 0.3, y + 0.3, color=QUIET, linewidth=2)
            if not clip.mean:
                panel.annotate("0", (0.01, y), xycoords=("axes fraction", "data"), va="center")
            sheet.draw_interval(panel, y, clip_S, clip, arm, **labels, ceiling=ceiling)
            smallest = min([smallest, *(value for value in (*clip_S, clip.low) if value > 0)])
        sheet.name_rows(panel, study.arms)
    for panel in sheet.grid.values():
        panel.set_xlim(smallest / 1.6, 1.05)
        panels.set_log_axis(panel, "x", panels.write_percent)
    sheet.label_x("clipped tokens (share)")
    clipped = Line2D([], [], color="0.3", marker="o", linestyle="", label="clipped")
    grey = Line2D([], [], color=QUIET, marker="|", markersize=8, markeredgewidth=2, linestyle="", label="ceiling")
    sheet.draw_legend([clipped, grey], arms=())
    return sheet.finish(MEAN_DOTS)


# Our own counts that users of frameworks also look at.
_OURS = {
    "clip/out_of_range": "ratio-only, whatever the advantage: ROLL's ppo_ratio_clipfrac; clip/out_of_range",
    "clip/active_nz": "of the tokens that have an advantage: clip/active_nz",
}


def draw_clip_conventions(study: StudyRuns) -> Drawing:
    """The clip fraction of the runs of `{study.baseline}` as each framework defines it (docs/dialects.md): mean over
    the rollout steps at each pass over a batch, and over the passes of each rollout step. Frameworks whose numbers
    agree in every record share a line.
    """
    rows = {"clipped, by pass": "iteration", "clipped, by rollout step": "rollout_step"}
    sheet = Sheet(study, rows, height=1.9, share_x=False)
    baseline = study.updates[study.updates["arm"] == study.baseline]
    groups: dict[str, list[str]] = {}  # frameworks with equal values, under the first of them
    for name in CLIP_METRIC:
        values = baseline.get(convention(name))
        if values is not None and not values.isna().all():
            same = (first for first in groups if np.allclose(values, baseline[convention(first)], equal_nan=True))
            groups.setdefault(next(same, name), []).append(name)
    if not groups:
        raise NotDrawnError(
            f"no update of `{study.baseline}` has diagnostics.clip_conventions: make sweep STUDY={study.name}"
        )
    labels = {convention(name): ", ".join(names) for name, names in groups.items()} | _OURS
    looks = dict(zip(labels, arm_styles([*groups, *_OURS]).values(), strict=True))
    sheet.styles = looks
    for (row, facet), panel in sheet.grid.items():
        updates, x = baseline[baseline["facet"] == facet], rows[row]
        for metric, label in labels.items():
            values_XS = panels.pivot_seeds(updates, x, metric)
            is_sum = not values_XS.empty and values_XS.max(axis=None) > 1  # over sequences
            values_XS = panels.smooth(values_XS) if x == "rollout_step" else values_XS
            of_line: dict[str, Any] = {"metric": metric, "label": label, "by": x, "facet": facet}
            sheet.draw_means(panel, values_XS, looks[metric], t_band if is_sum else share_band, **of_line)
        panel.set_xlabel("pass (0 = first)" if x == "iteration" else "rollout steps")
        panels.set_whole_ticks(panel)
    sheet.start_at_zero()
    for panel in sheet.grid.values():
        if panel.get_ylim()[1] > 1.1:  # a sum, not a share
            panel.set_yscale("symlog", linthresh=1)
            panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: panels.write_plainly(share)))
        else:
            panel.yaxis.set_major_formatter(PercentFormatter(1))
    handles = [panels.line_of(looks[metric], label) for metric, label in labels.items()]
    sheet.figure.legend(handles=handles, loc="outside lower center", ncols=1, handlelength=2.6)
    return sheet.finish(OVER_TIME)


LEAST_SHARE = 1e-4  # below it F4 shows nothing: it would be single tokens


def draw_counterfactual_clipping(study: StudyRuns) -> Drawing:
    """Share of tokens that a symmetric clip range would have silenced in the runs of `{study.baseline}`, had it met
    their token ratios or their sequence ratios; last optimiser step of every rollout step with a histogram.
    """
    sheet = Sheet(study, ["would be clipped\n(share of tokens)"], height=2.0)
    looks = {"token": ArmStyle("#0072b2", "-", "o"), "sequence": ArmStyle("#d55e00", "--", "s")}
    for (_, facet), panel in sheet.grid.items():
        histograms = dict(study.by_arm("histograms", facet)).get(study.baseline, study.histograms.iloc[:0])
        for level, look in looks.items():
            beyond = {seed: share_beyond(records, level) for seed, records in histograms.groupby("seed")}
            shares_XS = pd.DataFrame(beyond, index=list(EXCESS_EDGES))
            shares_XS = shares_XS[(shares_XS > 0).any(axis=1)]  # edges that no seed passed are left out
            sheet.draw_means(panel, shares_XS, look, share_band, level=level, facet=facet, arm=study.baseline)
        panels.set_log_axis(panel, "x")
        panels.set_log_axis(panel, "y", panels.write_percent)
        panel.set_xticks([1e-4, 1e-2, 1], ["0.0001", "0.01", "1"])
        panel.set_ylim(LEAST_SHARE, 1.2)
        cells = study.cells[study.cells["facet"] == facet]
        ranges = {*cells["setting/epsilon"], *cells["setting/epsilon_high"]}
        for epsilon in sorted(e for e in ranges if EXCESS_EDGES[0] <= e <= EXCESS_EDGES[-1]):
            panel.axvline(epsilon, color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
    sheet.label_x("clip range epsilon")
    handles = [Line2D([], [], color=s.colour, linestyle=s.line, label=f"{level} ratio") for level, s in looks.items()]
    handles.append(Line2D([], [], color=QUIET, linewidth=0.7, linestyle=":", label="ranges of the study's arms"))
    sheet.draw_legend(handles, arms=())
    return sheet.finish(MEAN)


def share_beyond(records: pd.DataFrame, level: str) -> NDArray:
    """Return the share of tokens whose ratio is beyond each of EXCESS_EDGES on the side where clipping acts; (edges,).

    The first count is of ratios not beyond 1; then comes one bin up to each edge, then the rest.
    """
    counts = np.sum([np.sum([*records[f"excess/{level}_{sign}"]], axis=0, dtype=float) for sign in SIGNS], axis=0)
    tokens = sum(np.sum(row, dtype=float) for row in records["position/count"])  # rows may differ in length
    beyond = np.cumsum(counts[::-1])[::-1]
    return beyond[2:] / tokens


def draw_ratio_range(study: StudyRuns) -> Drawing:
    """Smallest and largest importance ratio of each rollout step, of tokens and of whole sequences (geometric mean),
    over all its optimiser steps and completions; log scale. Above 1 the largest, below 1 the smallest.
    """
    rows = {f"{level} ratio,\nsmallest and largest": level for level in LEVELS}
    sheet = Sheet(study, rows, height=1.9)
    sheet.mark(1)
    for row, level in rows.items():
        for end in ("min", "max"):
            sheet.draw_metric(row, "updates", f"ratio/{level}_{end}", log=True, how=end)
    sheet.label_x("rollout steps")
    sheet.draw_legend()
    return sheet.finish(GEOMETRIC)


def draw_log_ratio_spread(study: StudyRuns) -> Drawing:
    """How far importance ratios are from 1 at the last optimiser step on a batch, of tokens and of whole sequences
    (geometric mean). Thick: the middle 98%; thin: the middle 99.8%; white: the median. Grey: the arm's clip range,
    where it clips this ratio. Log scale.
    """
    sheet = Sheet(study, LEVELS, height=0.5 + 0.27 * len(study.arms), share_x=False)
    for level in LEVELS:
        names = {sign: {quantile_metric(level, q, sign): q for q in QUANTILES} for sign in SIGNS}
        for panel, facet, arm, updates in sheet.by_arm(level, "updates", quantile_metric(level, "p50", "pos")):
            y, colour = study.arms.index(arm), sheet.styles[arm].colour
            bounds = clip_range(study, facet, arm)
            if bounds and level == bounds[0] and len(updates):
                panel.fill_betweenx([y - 0.42, y + 0.42], *bounds[1:], color="0.88", linewidth=0, zorder=0)
                panel.vlines(bounds[1:], y - 0.42, y + 0.42, color="0.6", linewidth=1, zorder=0)
            for sign, shift, alpha in (("pos", -0.17, 1.0), ("neg", 0.17, 0.55)) if len(updates) else ():
                logs = np.log(at_quarters(updates)[list(names[sign])].astype("float64")).rename(columns=names[sign])
                least, low, middle, high, most = np.exp(logs.median()[["p001", "p01", "p50", "p99", "p999"]])
                panel.hlines(y + shift, least, most, color=colour, alpha=alpha, linewidth=0.8)
                panel.hlines(y + shift, low, high, color=colour, alpha=alpha, linewidth=3.5)
                panel.plot(middle, y + shift, "|", color="white", markersize=3.5, markeredgewidth=1)
                labels = {"level": level, "sign": sign, "facet": facet, "arm": arm}
                sheet.record({"mean": float(middle), **logs.median().to_dict()}, **labels)
        ends = [np.exp([s["p001"], s["p999"]]) for s in sheet.numbers if s["level"] == level]
        for facet in study.facets:
            panel = sheet.grid[level, facet]
            sheet.name_rows(panel, study.arms)
            panel.set(xlabel=f"{level} ratio", ylabel="")
            panel.axvline(1, color=QUIET, linewidth=0.6, zorder=0)
            panels.set_factor_axis(panel, *((np.min(ends), np.max(ends)) if ends else (0.5, 2)))
            if not any(series["facet"] == facet and series["level"] == level for series in sheet.numbers):
                sheet.write_lack(panel, "no run here has diagnostics.quantiles", facet=facet, level="")
    looks = (("A > 0", "0.25"), ("A < 0", "0.6"), ("clip range", "0.88"))
    sheet.draw_legend([Patch(color=colour, label=label) for label, colour in looks], arms=())
    return sheet.finish("median over seeds, and over the rollout steps that end the quarters of each run")


def clip_range(study: StudyRuns, facet: str, arm: str) -> tuple[str, float, float] | None:
    """Return the level of the ratio that an arm clips, and the bounds between which it does not; None if it does not.

    A bound without end is as far away as no ratio of a figure is.
    """
    cell = study.cells[(study.cells["facet"] == facet) & (study.cells["arm"] == arm)].iloc[0]
    if cell["setting/kernel"] != "clipped":
        return None
    low, high = cell["setting/epsilon"], cell["setting/epsilon_high"]
    return cell["setting/importance_sampling_level"], max(1 - low, 1e-9), min(1 + high, 1e9)


def draw_response_ratio(study: StudyRuns) -> Drawing:
    """Mean sequence ratio (geometric mean over a response's tokens) of the responses with a positive and with a
    negative advantage. In each rollout step the first update is left out, because every ratio is 1 there. Last row: the
    mean ratio of all tokens, those without an advantage included.
    """
    rows = {
        "mean sequence ratio,\nA > 0": "ratio/sequence_mean_pos",
        "mean sequence ratio,\nA < 0": "ratio/sequence_mean_neg",
        "mean token ratio,\nall tokens": "ratio/token_mean",
    }
    sheet = Sheet(study, rows, height=1.35, share_y=False)
    sheet.mark(1)
    for row, metric in rows.items():
        sheet.draw_metric(row, study.updates[after_first_step(study.updates)], metric)
    for (_, facet), panel in sheet.grid.items():
        if len(panel.lines) == 1:  # the mark
            sheet.write_lack(panel, "no batch here has a second update", facet=facet)
    sheet.label_x("rollout steps")
    sheet.draw_legend()
    return sheet.finish(OVER_TIME)
