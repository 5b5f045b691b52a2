"""Figures of clipping: how much is clipped, how much could be, by whose definition, where, and which tokens."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import NDArray

from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN, MEAN_DOTS, SMOOTHED, Drawing, NotDrawnError, Sheet, figure, smoothed
from grpolab.report.load import Study
from grpolab.report.measures import add_ragged, at, clip_ceiling, run_means
from grpolab.report.reference import tokens_clipped
from grpolab.report.statistics.intervals import share_band, share_interval, t_band
from grpolab.report.style import QUIET, ArmStyle, arm_styles
from grpolab.vocabulary import CLIP_METRIC, EXCESS_EDGES, SIGNS, convention


@figure("F2", "clip_fraction", "Clip fraction over time, below and above the range")
def draw_clip_fraction(study: Study) -> Drawing:
    rows = {
        "clipped below\n(tokens with A≠0)": ("updates", "clip/active_low_nz"),
        "clipped above\n(tokens with A≠0)": ("updates", "clip/active_high_nz"),
        "clipped\n(all tokens)": ("updates", "clip/active"),
    }
    sheet = panels.lines_by_arm(study, rows, height=1.35)
    panels.start_at_zero(sheet.grid)
    for panel in sheet.panels:
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    caption = (
        "Share of tokens whose gradient clipping set to zero (below the range with A<0, above it with A>0): mean over"
        " the optimiser steps of a rollout step, of which the first can never clip."
    )
    return sheet.drawing(caption, f"{MEAN}; {SMOOTHED}")


@figure("F3", "clip_ceiling", "Clip fraction of each arm against what it could clip at most")
def draw_clip_ceiling(study: Study) -> Drawing:
    sheet = Sheet(study, [""], height=0.3 + 0.2 * len(study.arms))
    clip_shares, ceilings = run_means(study, "clip/active"), clip_ceiling(study)
    drawn = []  # on the log scale
    for (_, facet), panel in sheet.grid.items():
        for place, (arm, style) in enumerate(sheet.styles.items()):
            clip_S = at(clip_shares, facet, arm)
            if clip_S.empty:
                sheet.add({}, metric="clip/active", facet=facet, arm=arm)
                continue
            clip, ceiling = share_interval(clip_S), share_interval(at(ceilings, facet, arm))
            if ceiling.mean > 0:
                panel.vlines(ceiling.mean, place - 0.3, place + 0.3, color=QUIET, linewidth=2)
            if clip.mean > 0:
                panels.draw_row(panel, place, clip_S.to_numpy(), clip, style)
            else:
                panel.annotate("0", (0.01, place), xycoords=("axes fraction", "data"), va="center")
            drawn += [value for value in (*clip_S, clip.low) if value > 0]
            series = {**clip._asdict(), "ceiling": ceiling.mean, "seeds": panels.by_seed(clip_S)}
            sheet.add(series, metric="clip/active", facet=facet, arm=arm)
        sheet.name_rows(panel, study.arms)
    for panel in sheet.panels:
        panel.set_xlim(min(drawn, default=0.1) / 1.6, 1.05)
        panels.log_axis(panel, "x")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    panels.label_x(sheet.grid, "clipped tokens (share)")
    handles = [
        Line2D([], [], color="0.3", marker="o", linestyle="", label="clipped"),
        Line2D([], [], color=QUIET, marker="|", markersize=8, markeredgewidth=2, linestyle="", label="ceiling"),
    ]
    sheet.figure.legend(handles=handles, loc="outside lower center", ncols=2)
    caption = (
        "Share of tokens that clipping silenced (`clip/active`, each token counted once whatever the ratio level), mean"
        " over all optimiser steps, on a log scale. Grey: the ceiling, (1 - share of zero-variance groups)(1 -"
        " 1/updates per batch). 0 is written out."
    )
    return sheet.drawing(caption, MEAN_DOTS)


# Ours, for what users of frameworks also look at.
_OURS = {
    "clip/out_of_range": "ratio-only, whatever the advantage: ROLL's ppo_ratio_clipfrac; clip/out_of_range",
    "clip/active_nz": "of the tokens that have an advantage: clip/active_nz",
}


@figure("D1", "clip_conventions", "One run, many numbers: its clip fraction as each framework would log it")
def draw_clip_conventions(study: Study) -> Drawing:
    rows = {"clipped, by pass": "iteration", "clipped, by rollout step": "rollout_step"}
    sheet = Sheet(study, rows, height=1.9, share_x=False)
    baseline = study.updates[study.updates["arm"] == study.baseline]
    groups: dict[str, list[str]] = {}  # frameworks whose values are equal in every record, under the first of them
    for name in CLIP_METRIC:
        values = baseline.get(convention(name))
        if values is not None and not values.isna().all():
            same = (first for first in groups if np.allclose(values, baseline[convention(first)], equal_nan=True))
            groups.setdefault(next(same, name), []).append(name)
    if not groups:
        raise NotDrawnError(f"no run of `{study.baseline}` has diagnostics.clip_conventions")
    labels = {convention(name): ", ".join(names) for name, names in groups.items()} | _OURS
    sheet.styles = dict(zip(labels, arm_styles([*groups, *_OURS]).values(), strict=True))
    for (row, facet), panel in sheet.grid.items():
        updates, x = baseline[baseline["facet"] == facet], rows[row]
        for metric, label in labels.items():
            values_XS = panels.pivot_seeds(updates, x, metric)
            is_sum = not values_XS.empty and values_XS.max(axis=None) > 1  # over sequences
            values_XS, band = (
                smoothed(values_XS) if x == "rollout_step" else values_XS,
                t_band if is_sum else share_band,
            )
            sheet.line(panel, values_XS, sheet.styles[metric], band, metric=metric, label=label, by=x, facet=facet)
        panel.set_xlabel("pass (0 = first)" if x == "iteration" else "rollout steps")
        panels.whole_numbers(panel)
    panels.start_at_zero(sheet.grid)
    for panel in sheet.panels:
        if panel.get_ylim()[1] > 1.1:  # a sum, not a share
            panel.set_yscale("symlog", linthresh=1)
            panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: panels.plain(share)))
        else:
            panel.yaxis.set_major_formatter(PercentFormatter(1))
    handles = [panels.handle(label, sheet.styles[metric]) for metric, label in labels.items()]
    sheet.figure.legend(handles=handles, loc="outside lower center", ncols=1, handlelength=2.6)
    caption = (
        f"The clip fraction of the runs of `{study.baseline}` as each framework defines it (docs/dialects.md): mean"
        " over the rollout steps at each pass over a batch, and over the passes of each rollout step. Frameworks whose"
        " numbers agree in every record share a line."
    )
    return sheet.drawing(caption, f"{MEAN}; {SMOOTHED}")


_PROBABILITIES = {"p_old/up_clipped": "above", "p_old/all": "all", "p_old/down_clipped": "below"}
_SIDES = {"above": "#b35806", "below": "#8073ac", "all": QUIET}  # colours that no arm has
MOST_TOKENS = 10


@figure("F19", "clipped_tokens", "Which tokens are clipped: how probable they were, and which they are")
def draw_clipped_tokens(study: Study) -> Drawing:
    probability, tokens = "probability under the old policy", "share of all clipped tokens"
    sheet = Sheet(study, [probability, tokens], height=0.8 + 0.17 * len(study.arms), share_x=False, share_y=False)
    for shift, (metric, side) in zip((-0.3, 0, 0.3), _PROBABILITIES.items(), strict=True):
        means = run_means(study, metric)
        for facet, (place, arm) in product(study.facets, enumerate(study.arms)):
            values_S, style = at(means, facet, arm), sheet.styles[arm]._replace(colour=_SIDES[side], marker="o")
            interval, labels = share_interval(values_S), {"metric": metric, "facet": facet, "arm": arm}
            if len(values_S):
                panels.draw_row(sheet.grid[probability, facet], place + shift, values_S.to_numpy(), interval, style)
            sheet.add({**interval._asdict(), "seeds": panels.by_seed(values_S)}, **labels)
    for panel in sheet.row(probability):
        sheet.name_rows(panel, study.arms)
        panel.set(xlim=(0, 1), xlabel=probability, ylabel="")
    for facet in study.facets:
        panel, shares = sheet.grid[tokens, facet], _clipped_shares(study, facet)
        if shares.empty:
            panels.say(panel, "no clipped token in the samples of the baseline")
        else:
            places, bottom = range(len(shares)), np.zeros(len(shares))
            for column, side in (("high", "above"), ("low", "below")):
                panel.bar(places, shares[column], bottom=bottom, color=_SIDES[side], width=0.75, linewidth=0)
                bottom += shares[column].to_numpy()
            panel.set_xticks(places, [_shown(token) for token in shares.index])
            panel.grid(axis="x", visible=False)
            panel.set_xlabel("token")
        series = {"x": shares.index.tolist(), **shares.to_dict("list")}
        sheet.add(series, metric="samples", facet=facet, arm=study.baseline)
    words = {"above": "clipped above", "below": "clipped below", "all": "all tokens"}
    sheet.legend([Patch(color=colour, label=words[side]) for side, colour in _SIDES.items()], arms=())
    caption = (
        "Mean probability under the old policy of tokens clipped above the range, below it, and of all tokens, over the"
        " optimiser steps of a run in which there are any. Then the tokens that are"
        f" clipped most in the runs of `{panels.arm_label(study, study.baseline)}`, by their share of all clipped"
        " tokens of the completions that runs keep (`diagnostics.samples_every`), last pass over the batch, all seeds"
        " together."
    )
    return sheet.drawing(caption, MEAN_DOTS)


def _clipped_shares(study: Study, facet: str) -> pd.DataFrame:
    """Share of all clipped tokens that each of the most clipped ones (index) has, by the side (columns high, low)."""
    cells = study.done[(study.done["facet"] == facet) & (study.done["arm"] == study.baseline)]
    counts = tokens_clipped(study.results, cells["signature"]).groupby("token")[["high", "low"]].sum()
    shares = counts / max(1, counts.to_numpy().sum())
    return shares.loc[shares.sum(axis=1).nlargest(MOST_TOKENS).index].astype("float64")


def _shown(token: str) -> str:
    """A token for a tick label: blanks made visible, long ones cut, `$` no formula."""
    visible = repr(token)[1:-1].replace(" ", "␣").replace("$", r"\$") or "''"
    return visible if len(visible) <= 6 else f"{visible[:5]}…"


LEAST_SHARE = 1e-4  # below it F4 shows nothing: it would be single tokens


@figure(
    "F4",
    "counterfactual_clipping",
    "What any clip range would have clipped, for token and sequence ratios of the same run",
)
def draw_counterfactual(study: Study) -> Drawing:
    sheet = Sheet(study, ["would be clipped\n(share of tokens)"], height=2.0)
    styles = {"token": ArmStyle("#0072b2", "-", "o"), "sequence": ArmStyle("#d55e00", "--", "s")}
    for (_, facet), panel in sheet.grid.items():
        histograms = dict(study.by_arm("histograms", facet)).get(study.baseline, study.histograms.iloc[:0])
        for level, style in styles.items():
            beyond = {seed: share_beyond(records, level) for seed, records in histograms.groupby("seed")}
            shares_XS = pd.DataFrame(beyond, index=list(EXCESS_EDGES))
            shares_XS = shares_XS[(shares_XS > 0).any(axis=1)]  # edges that no seed passed are left out
            sheet.line(panel, shares_XS, style, share_band, level=level, facet=facet, arm=study.baseline)
        for which in ("x", "y"):
            panels.log_axis(panel, which)
        panel.set_xticks([1e-4, 1e-2, 1], ["0.0001", "0.01", "1"])
        panel.set_ylim(LEAST_SHARE, 1.2)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        cells = study.cells[study.cells["facet"] == facet]
        ranges = {*cells["setting/epsilon"], *cells["setting/epsilon_high"]}
        for epsilon in sorted(e for e in ranges if EXCESS_EDGES[0] <= e <= EXCESS_EDGES[-1]):
            panel.axvline(epsilon, color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
    panels.label_x(sheet.grid, "clip range epsilon")
    handles = [Line2D([], [], color=s.colour, linestyle=s.line, label=f"{level} ratio") for level, s in styles.items()]
    handles.append(Line2D([], [], color=QUIET, linewidth=0.7, linestyle=":", label="ranges of the study's arms"))
    sheet.figure.legend(handles=handles, loc="outside lower center", ncols=3)
    caption = (
        f"Share of tokens that a symmetric clip range would have silenced in the runs of `{study.baseline}`, had it met"
        " their token ratios or their sequence ratios; last optimiser step of every rollout step with a histogram."
    )
    return sheet.drawing(caption, MEAN)


def share_beyond(records: pd.DataFrame, level: str) -> NDArray:
    """Share of all tokens with a ratio beyond each of EXCESS_EDGES, on the side where clipping acts. Shape: (edges,).

    Counts are: not beyond 1, then one bin up to each edge, then the rest.
    """
    counts = np.sum([add_ragged(records[f"excess/{level}_{sign}"]) for sign in SIGNS], axis=0)
    tokens = add_ragged(records["position/count"]).sum()
    beyond = np.cumsum(counts[::-1])[::-1]
    return beyond[2:] / tokens


LEAST_TOKENS = 100  # a mean over fewer tokens is not drawn


@figure("F7", "ratio_by_position", "Ratio and clipping by position in the completion")
def draw_position(study: Study) -> Drawing:
    """From sums and counts of tokens at each position of the histogram records."""
    rows = {
        f"{what}\nfrom the {end}": (f"{ends}/{field}", f"{ends}/count")
        for what, field in (("mean |log ratio|", "abs_log_ratio"), ("clipped (share)", "active"))
        for end, ends in (("start", "position"), ("end", "position_end"))
    }
    sheet = Sheet(study, rows, height=1.25, share_x=False)
    for row, (sums, counts) in rows.items():
        for panel, facet, arm, records in sheet.arms(row, "histograms"):
            means = {}
            for seed, of_seed in records.groupby("seed") if sums in records else ():
                n_T = add_ragged(of_seed[counts].dropna())
                means[seed] = pd.Series(add_ragged(of_seed[sums].dropna()) / np.where(n_T >= LEAST_TOKENS, n_T, np.nan))
            means_XS = pd.DataFrame(means).dropna(how="all")
            band = share_band if sums.endswith("active") else t_band
            sheet.line(panel, means_XS, sheet.styles[arm], band, metric=sums, facet=facet, arm=arm)
        for panel in sheet.row(row):
            panel.set_xlabel("0 = first token" if counts == "position/count" else "0 = last token")
            panels.whole_numbers(panel)
    panels.start_at_zero(sheet.grid)
    sheet.legend()
    caption = (
        "Mean |log ratio| and share of clipped tokens by token position, from the start and from the end of the"
        f" completion; last optimiser step of the rollout steps with a histogram; positions with {LEAST_TOKENS} tokens"
        " or more in a run."
    )
    return sheet.drawing(caption, MEAN)
