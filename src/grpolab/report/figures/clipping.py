"""Figures of clipping: how much is clipped, how much could be, by whose definition, where, and which tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from grpolab.frameworks.names import CLIP_METRIC, convention
from grpolab.report.figures import panels
from grpolab.report.figures.panels import MEAN_BAND, MEAN_DOTS, Drawing, Sheet, draw_seeds, figure
from grpolab.report.load import Study
from grpolab.report.measures import add_ragged, at, clip_ceiling, run_means
from grpolab.report.reference import tokens_clipped
from grpolab.report.statistics.intervals import share_band, share_interval, t_band
from grpolab.report.style import QUIET, ArmStyle, arm_styles
from grpolab.vocabulary import EXCESS_EDGES, SIGNS


@figure("F2", "Clip fraction over time, below and above the range")
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
    return sheet.drawing(caption, MEAN_BAND)


@figure("F3", "Clip fraction of each arm against what it could clip at most")
def draw_clip_ceiling(study: Study) -> Drawing:
    sheet = Sheet(study, ["clipped tokens (share)"], height=2.1)
    clip_shares, ceilings = run_means(study, "clip/active"), clip_ceiling(study)
    drawn = []  # on the log scale
    for (_, facet), panel in sheet.grid.items():
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        panels.name_arms(panel, study.arms)
        for place, (arm, style) in enumerate(sheet.styles.items()):
            clip_S = at(clip_shares, facet, arm)
            if clip_S.empty:
                sheet.add({}, metric="clip/active", facet=facet, arm=arm)
                continue
            clip, ceiling = share_interval(clip_S), share_interval(at(ceilings, facet, arm))
            if ceiling.mean > 0:
                panel.hlines(ceiling.mean, place - 0.35, place + 0.35, color=QUIET, linewidth=2)
            if clip.mean > 0:
                panel.vlines(place, clip.low, clip.high, color=style.colour, linewidth=1)
                panel.plot(place, clip.mean, style.marker, color=style.colour, markersize=5)
                panel.plot(np.full(len(clip_S), place - 0.22), clip_S, ".", color=style.colour, alpha=0.6, markersize=3)
            else:
                panel.annotate("0", (place, 0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
            drawn += [value for value in (*clip_S, clip.low) if value > 0]
            series = {**clip._asdict(), "ceiling": ceiling.mean, "seeds": panels.by_seed(clip_S)}
            sheet.add(series, metric="clip/active", facet=facet, arm=arm)
    for panel in sheet.panels:
        panel.set_ylim(min(drawn, default=0.1) / 1.6, 1.05)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        panel.yaxis.set_minor_formatter(NullFormatter())
    handles = [
        Line2D([], [], color="0.3", marker="o", linestyle="", label="clipped"),
        Line2D([], [], color=QUIET, linewidth=2, label="ceiling"),
    ]
    sheet.figure.legend(handles=handles, loc="outside lower center", ncols=2)
    caption = (
        "Share of tokens that clipping silenced (`clip/active`, each token counted once whatever the ratio level), mean"
        " over all optimiser steps, on a log scale: points, for a log scale has no zero from which a bar could rise."
        " Grey line: the ceiling, (1 - share of zero-variance groups)(1 - 1/updates per batch). 0 is written out."
    )
    return sheet.drawing(caption, MEAN_DOTS)


# Ours, for what users of frameworks also look at.
_OURS = {
    "clip/out_of_range": "ratio-only, whatever the advantage: ROLL's ppo_ratio_clipfrac; clip/out_of_range",
    "clip/active_nz": "of the tokens that have an advantage: clip/active_nz",
}


@figure("D1", "One run, many numbers: its clip fraction as each framework would log it")
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
    labels = {convention(name): ", ".join(names) for name, names in groups.items()} | _OURS
    styles = list(arm_styles([*groups, *_OURS]).values())
    for (row, facet), panel in sheet.grid.items():
        updates, x = baseline[baseline["facet"] == facet], rows[row]
        for style, (metric, label) in zip(styles, labels.items(), strict=True):
            values_XS = panels.pivot_seeds(updates, x, metric)
            is_sum = not values_XS.empty and values_XS.max(axis=None) > 1  # over sequences
            series = draw_seeds(panel, values_XS, style, t_band if is_sum else share_band)
            sheet.add(series, metric=metric, label=label, by=x, facet=facet)
        if not groups:
            panels.say(panel, f"no run of `{study.baseline}` has diagnostics.clip_conventions")
        panel.set_xlabel("pass (0 = first)" if x == "iteration" else "rollout steps")
        panels.whole_numbers(panel)
    panels.start_at_zero(sheet.grid)
    for panel in sheet.panels:
        if panel.get_ylim()[1] > 1.1:  # a sum, not a share
            panel.set_yscale("symlog", linthresh=1)
        else:
            panel.yaxis.set_major_formatter(PercentFormatter(1))
    handles = [panels.handle(label, style) for style, label in zip(styles, labels.values(), strict=True)]
    sheet.figure.legend(handles=handles, loc="outside lower center", ncols=1, handlelength=2.6)
    caption = (
        f"The clip fraction of the runs of `{study.baseline}` as each framework defines it (docs/dialects.md): mean"
        " over the rollout steps at each pass over a batch, and over the passes of each rollout step. Frameworks whose"
        " numbers agree in every record share a line."
    )
    return sheet.drawing(caption, MEAN_BAND)


_SIDES = {"high": ("above", "#b35806"), "low": ("below", "#8073ac")}  # colours that no arm has
MOST_TOKENS = 10


@figure("F19", "Old probability of the tokens that are clipped, and which tokens they are")
def draw_clipped_probability(study: Study) -> Drawing:
    rows = {
        "old probability,\nup-clipped": "p_old/up_clipped",
        "old probability,\ndown-clipped": "p_old/down_clipped",
        "old probability,\nall tokens": "p_old/all",
    }
    tokens = "share of all\nclipped tokens"
    sheet = Sheet(study, [*rows, tokens], height=1.2, share_x=False)
    for facet in study.facets:
        for row, metric in rows.items():
            panel = sheet.grid[row, facet]
            sheet.lines(row, study.updates[study.updates["facet"] == facet], metric)
            panel.set(ylim=(0, 1), xlabel="rollout steps")
            if not panel.lines:
                panels.say(panel, "nothing was clipped on this side")
        panel, shares = sheet.grid[tokens, facet], _clipped_shares(study, facet)
        if shares.empty:
            panels.say(panel, "no clipped token in the samples of the baseline")
        else:
            places, bottom = range(len(shares)), np.zeros(len(shares))
            for side, (_, colour) in _SIDES.items():
                panel.bar(places, shares[side], bottom=bottom, color=colour, width=0.75, linewidth=0)
                bottom += shares[side].to_numpy()
            panel.set_xticks(places, [_shown(token) for token in shares.index])
            panel.grid(axis="x", visible=False)
            panel.set_xlabel("token")
        series = {"x": shares.index.tolist(), **shares.to_dict("list")}
        sheet.add(series, metric="samples", facet=facet, arm=study.baseline)
    sheet.legend([Patch(color=colour, label=f"clipped {where}") for where, colour in _SIDES.values()])
    caption = (
        "Mean probability under the old policy of tokens clipped above the range, below it, and of all tokens,"
        " averaged over the optimiser steps of a rollout step in which there are any. Last the tokens that are"
        f" clipped most in the runs of `{panels.arm_label(study, study.baseline)}`, by their share of all clipped"
        " tokens of the completions that runs keep (`diagnostics.samples_every`), last pass over the batch, all seeds"
        " together."
    )
    return sheet.drawing(caption, MEAN_BAND)


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


@figure("F4", "What any clip range would have clipped, for token and sequence ratios of the same run")
def draw_counterfactual(study: Study) -> Drawing:
    sheet = Sheet(study, ["would be clipped\n(share of tokens)"], height=2.0)
    styles = {"token": ArmStyle("#0072b2", "-", "o"), "sequence": ArmStyle("#d55e00", "--", "s")}
    for (_, facet), panel in sheet.grid.items():
        histograms = dict(study.by_arm("histograms", facet)).get(study.baseline, study.histograms.iloc[:0])
        for level, style in styles.items():
            beyond = {seed: share_beyond(records, level) for seed, records in histograms.groupby("seed")}
            shares_XS = pd.DataFrame(beyond, index=list(EXCESS_EDGES))
            shares_XS = shares_XS[(shares_XS > 0).any(axis=1)]  # edges that no seed passed are left out
            series = draw_seeds(panel, shares_XS, style, share_band)
            sheet.add(series, level=level, facet=facet, arm=study.baseline)
        panel.set(xscale="log", yscale="log")
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
    return sheet.drawing(caption, MEAN_BAND)


def share_beyond(records: pd.DataFrame, level: str) -> NDArray:
    """Share of all tokens with a ratio beyond each of EXCESS_EDGES, on the side where clipping acts. Shape: (edges,).

    Counts are: not beyond 1, then one bin up to each edge, then the rest.
    """
    counts = np.sum([add_ragged(records[f"excess/{level}_{sign}"]) for sign in SIGNS], axis=0)
    tokens = add_ragged(records["position/count"]).sum()
    beyond = np.cumsum(counts[::-1])[::-1]
    return beyond[2:] / tokens


LEAST_TOKENS = 100  # a mean over fewer tokens is not drawn


@figure("F7", "Ratio and clipping by position in the completion")
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
            sheet.add(draw_seeds(panel, means_XS, sheet.styles[arm], band), metric=sums, facet=facet, arm=arm)
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
    return sheet.drawing(caption, MEAN_BAND)
