"""Figures of clipping: how much is clipped, how much could be, by whose definition, where, and which tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from grpolab.frameworks.names import CLIP_METRIC, convention
from grpolab.report.figures.panels import (
    MEAN_BAND,
    MEAN_DOTS,
    Drawing,
    arm_label,
    by_seed,
    draw_arms,
    draw_seeds,
    handle,
    label_x,
    legend_arms,
    lines_by_arm,
    name_arms,
    panel_grid,
    pivot_seeds,
    say,
    start_at_zero,
    whole_numbers,
)
from grpolab.report.load import Study, clipped_tokens
from grpolab.report.measures import add_ragged, at, clip_ceiling, run_means
from grpolab.report.statistics.intervals import share_interval
from grpolab.report.style import QUIET, ArmStyle, Series, arm_styles
from grpolab.vocabulary import EXCESS_EDGES, LEVELS, SIGNS

_FRACTION_ROWS = {
    "clipped below\n(tokens with A≠0)": ("updates", "clip/active_low_nz"),
    "clipped above\n(tokens with A≠0)": ("updates", "clip/active_high_nz"),
    "clipped\n(all tokens)": ("updates", "clip/active"),
}


def draw_clip_fraction(study: Study) -> Drawing:
    """Share of clipped tokens: below and above the range among tokens with an advantage, and among all."""
    figure, grid, numbers = lines_by_arm(study, _FRACTION_ROWS, height=1.35)
    start_at_zero(grid)
    for panel in grid.values():
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    caption = (
        "Share of tokens whose gradient clipping set to zero (below the range with A<0, above it with A>0): mean over"
        " the optimiser steps of a rollout step, of which the first can never clip."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


def draw_clip_ceiling(study: Study) -> Drawing:
    """The run's mean clip fraction as a point with its interval, seeds as dots, and the ceiling as a line above."""
    figure, grid = panel_grid(["clipped tokens (share)"], study.facets, height=2.1)
    clip, ceiling, styles = run_means(study, "clip/active"), clip_ceiling(study), arm_styles(study.arms)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        name_arms(panel, study.arms)
        for place, arm in enumerate(study.arms):
            series = _draw_clipped(panel, place, at(clip, facet, arm), at(ceiling, facet, arm), styles[arm])
            numbers.append({"metric": "clip/active", "facet": facet, "arm": arm, **series})
    drawn = [value for series in numbers for value in (*series.get("seeds", {}).values(), series.get("low", 0.0))]
    lowest = min((value for value in drawn if value > 0), default=0.1)
    for panel in grid.values():
        panel.set_ylim(lowest / 1.6, 1.05)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        panel.yaxis.set_minor_formatter(NullFormatter())
    handles = [
        Line2D([], [], color="0.3", marker="o", linestyle="", label="clipped"),
        Line2D([], [], color=QUIET, linewidth=2, label="ceiling"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    caption = (
        "Share of tokens that clipping silenced (`clip/active`, each token counted once whatever the ratio level), mean"
        " over all optimiser steps, on a log scale: points, for a log scale has no zero from which a bar could rise."
        " Grey line: the ceiling, (1 - share of zero-variance groups)(1 - 1/updates per batch). 0 is written out."
    )
    return Drawing(figure, caption, MEAN_DOTS, numbers)


def _draw_clipped(panel: Axes, place: int, clip_S: pd.Series, ceiling_S: pd.Series, style: ArmStyle) -> Series:
    if clip_S.empty:
        return {}
    clip, ceiling = share_interval(clip_S), share_interval(ceiling_S)
    if ceiling.mean > 0:
        panel.hlines(ceiling.mean, place - 0.35, place + 0.35, color=QUIET, linewidth=2)
    if clip.mean > 0:
        panel.vlines(place, clip.low, clip.high, color=style.colour, linewidth=1)
        panel.plot(place, clip.mean, style.marker, color=style.colour, markersize=5)
        panel.plot(np.full(len(clip_S), place - 0.22), clip_S, ".", color=style.colour, alpha=0.6, markersize=3)
    else:
        panel.annotate("0", (place, 0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    return {**clip._asdict(), "ceiling": ceiling.mean, "seeds": by_seed(clip_S)}


_BY = {"iteration": "pass (0 = first)", "rollout_step": "rollout steps"}
# Ours, for what users of frameworks also look at.
_OURS = {
    "clip/out_of_range": "ratio-only, whatever the advantage: ROLL's ppo_ratio_clipfrac; clip/out_of_range",
    "clip/active_nz": "of the tokens that have an advantage: clip/active_nz",
}


def draw_clip_conventions(study: Study) -> Drawing:
    """The baseline's clip fraction by every definition, by pass and over rollout steps; one line for each number."""
    rows = {f"clipped, by {'pass' if x == 'iteration' else 'rollout step'}": x for x in _BY}
    figure, grid = panel_grid(list(rows), study.facets, height=1.9, share_x=False)
    baseline = study.updates[study.updates["arm"] == study.baseline]
    groups = _alike(baseline)
    styles = arm_styles([*groups, *_OURS])
    labels = {convention(name): ", ".join(names) for name, names in groups.items()} | _OURS
    numbers: list[Series] = []
    for (row, facet), panel in grid.items():
        updates, x = baseline[baseline["facet"] == facet], rows[row]
        for style, (metric, label) in zip(styles.values(), labels.items(), strict=True):
            values_XS = pivot_seeds(updates, x, metric)
            is_share = values_XS.empty or values_XS.max(axis=None) <= 1  # a sum over sequences is none
            series = draw_seeds(panel, values_XS, style, share=is_share)
            numbers.append({"metric": metric, "label": label, "by": x, "facet": facet, **series})
        if not groups:
            say(panel, f"no run of `{study.baseline}` has diagnostics.clip_conventions")
        panel.set_xlabel(_BY[x])
        whole_numbers(panel)
    start_at_zero(grid)
    for panel in grid.values():
        if panel.get_ylim()[1] > 1.1:  # a sum, not a share
            panel.set_yscale("symlog", linthresh=1)
        else:
            panel.yaxis.set_major_formatter(PercentFormatter(1))
    handles = [handle(label, style) for style, label in zip(styles.values(), labels.values(), strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=1, handlelength=2.6)
    caption = (
        f"The clip fraction of the runs of `{study.baseline}` as each framework defines it (docs/dialects.md): mean"
        " over the rollout steps at each pass over a batch, and over the passes of each rollout step. Frameworks whose"
        " numbers agree in every record share a line."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


def _alike(updates: pd.DataFrame) -> dict[str, list[str]]:
    """Frameworks whose values are equal in every record, under the first of them; those without any are left out."""
    groups: dict[str, list[str]] = {}
    for name in CLIP_METRIC:
        values = updates.get(convention(name))
        if values is None or values.isna().all():
            continue
        same = (first for first in groups if np.allclose(values, updates[convention(first)], equal_nan=True))
        groups.setdefault(next(same, name), []).append(name)
    return groups


_PROBABILITY_ROWS = {
    "old probability,\nup-clipped": "p_old/up_clipped",
    "old probability,\ndown-clipped": "p_old/down_clipped",
    "old probability,\nall tokens": "p_old/all",
}
_TOKENS = "share of all\nclipped tokens"
_SIDE_COLOURS = {"high": "#b35806", "low": "#8073ac"}  # no arm has them
MOST_TOKENS = 10


def draw_clipped_probability(study: Study) -> Drawing:
    """Mean old probability of up-clipped, down-clipped and all tokens; below, the baseline's most clipped tokens."""
    figure, grid = panel_grid([*_PROBABILITY_ROWS, _TOKENS], study.facets, height=1.2, share_x=False)
    numbers: list[Series] = []
    for facet in study.facets:
        for row, metric in _PROBABILITY_ROWS.items():
            panel = grid[row, facet]
            numbers += draw_arms(panel, study, study.by_arm("updates", facet), metric, facet)
            panel.set(ylim=(0, 1), xlabel="rollout steps")
            if not panel.lines:
                say(panel, "nothing was clipped on this side")
        shares = _clipped_shares(study, facet)
        _draw_tokens(grid[_TOKENS, facet], shares)
        labels = {"metric": "samples", "facet": facet, "arm": study.baseline}
        numbers.append({**labels, "x": shares.index.tolist(), **shares.to_dict("list")})
    where = {"high": "above", "low": "below"}
    sides = [Patch(color=colour, label=f"clipped {where[side]}") for side, colour in _SIDE_COLOURS.items()]
    legend_arms(figure, study, extra=sides)
    caption = (
        "Mean probability under the old policy of tokens clipped above the range, below it, and of all tokens,"
        " averaged over the optimiser steps of a rollout step in which there are any. Last the tokens that are"
        f" clipped most in the runs of `{arm_label(study, study.baseline)}`, by their share of all clipped tokens of"
        " the completions that runs keep (`diagnostics.samples_every`), last pass over the batch, all seeds together."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


def _clipped_shares(study: Study, facet: str) -> pd.DataFrame:
    """Share of all clipped tokens that each of the most clipped ones (index) has, by the side (columns high, low)."""
    cells = study.done[(study.done["facet"] == facet) & (study.done["arm"] == study.baseline)]
    counts = clipped_tokens(study, cells["signature"]).groupby("token")[["high", "low"]].sum()
    shares = counts / max(1, counts.to_numpy().sum())
    return shares.loc[shares.sum(axis=1).nlargest(MOST_TOKENS).index].astype("float64")


def _draw_tokens(panel: Axes, shares: pd.DataFrame) -> None:
    if shares.empty:
        say(panel, "no clipped token in the samples of the baseline")
        return
    places = range(len(shares))
    panel.bar(places, shares["high"], color=_SIDE_COLOURS["high"], width=0.75, linewidth=0)
    panel.bar(places, shares["low"], bottom=shares["high"], color=_SIDE_COLOURS["low"], width=0.75, linewidth=0)
    panel.set_xticks(places, [_shown(token) for token in shares.index])
    panel.grid(axis="x", visible=False)
    panel.set_xlabel("token")


def _shown(token: str) -> str:
    """A token for a tick label: blanks made visible, long ones cut, `$` no formula."""
    visible = repr(token)[1:-1].replace(" ", "␣").replace("$", r"\$") or "''"
    return visible if len(visible) <= 6 else f"{visible[:5]}…"


_LEVEL_STYLES = {"token": ArmStyle("#0072b2", "-", "o"), "sequence": ArmStyle("#d55e00", "--", "s")}


def draw_counterfactual(study: Study) -> Drawing:
    """Share of tokens that a symmetric range epsilon would clip, for both ratio levels, on the baseline's runs."""
    figure, grid = panel_grid(["would be clipped\n(share of tokens)"], study.facets, height=2.0)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        frame = dict(study.by_arm("histograms", facet)).get(study.baseline, study.histograms.iloc[:0])
        for level in LEVELS:
            beyond = {seed: share_beyond(records, level) for seed, records in frame.groupby("seed")}
            shares_XS = pd.DataFrame(beyond, index=list(EXCESS_EDGES))
            shares_XS = shares_XS[(shares_XS > 0).any(axis=1)]  # edges that no seed passed are left out
            series = draw_seeds(panel, shares_XS, _LEVEL_STYLES[level], share=True)
            numbers.append({"level": level, "facet": facet, "arm": study.baseline, **series})
        panel.set(xscale="log", yscale="log")
        cells = study.cells[study.cells["facet"] == facet]
        ranges = {*cells["setting/epsilon"], *cells["setting/epsilon_high"]}
        for epsilon in sorted(e for e in ranges if EXCESS_EDGES[0] <= e <= EXCESS_EDGES[-1]):
            panel.axvline(epsilon, color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
    label_x(grid, "clip range epsilon")
    handles = [
        Line2D([], [], color=s.colour, linestyle=s.line, label=f"{level} ratio") for level, s in _LEVEL_STYLES.items()
    ]
    handles.append(Line2D([], [], color=QUIET, linewidth=0.7, linestyle=":", label="ranges of the study's arms"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    caption = (
        f"Share of tokens that a symmetric clip range would have silenced in the runs of `{study.baseline}`, had it met"
        " their token ratios or their sequence ratios; last optimiser step of every rollout step with a histogram."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


def share_beyond(records: pd.DataFrame, level: str) -> NDArray:
    """Share of all tokens with a ratio beyond each of EXCESS_EDGES, on the side where clipping acts. Shape: (edges,).

    Counts are: not beyond 1, then one bin up to each edge, then the rest.
    """
    counts = np.sum([add_ragged(records[f"excess/{level}_{sign}"]) for sign in SIGNS], axis=0)
    tokens = add_ragged(records["position/count"]).sum()
    beyond = np.cumsum(counts[::-1])[::-1]
    return beyond[2:] / tokens


# (what, counted from): (sums of the histogram records, their token counts)
_POSITION_ROWS = {
    ("mean |log ratio|", "start"): ("position/abs_log_ratio", "position/count"),
    ("mean |log ratio|", "end"): ("position_end/abs_log_ratio", "position_end/count"),
    ("clipped (share)", "start"): ("position/active", "position/count"),
    ("clipped (share)", "end"): ("position_end/active", "position_end/count"),
}
LEAST_TOKENS = 100  # a mean over fewer tokens is not drawn


def draw_position(study: Study) -> Drawing:
    """Mean |log ratio| and clip fraction at each token position, from either end."""
    labels = {f"{what}\nfrom the {end}": (end, *fields) for (what, end), fields in _POSITION_ROWS.items()}
    figure, grid = panel_grid(list(labels), study.facets, height=1.25, share_x=False)
    styles, numbers = arm_styles(study.arms), []
    for (label, facet), panel in grid.items():
        end, sums, counts = labels[label]
        for arm, frame in study.by_arm("histograms", facet):
            means_XS = _means_by_position(frame, sums, counts)
            series = draw_seeds(panel, means_XS, styles[arm], share=sums.endswith("active"))
            numbers.append({"metric": sums, "facet": facet, "arm": arm, **series})
        panel.set_xlabel("0 = first token" if end == "start" else "0 = last token")
        whole_numbers(panel)
    start_at_zero(grid)
    legend_arms(figure, study)
    caption = (
        "Mean |log ratio| and share of clipped tokens by token position, from the start and from the end of the"
        f" completion; last optimiser step of the rollout steps with a histogram; positions with {LEAST_TOKENS} tokens"
        " or more in a run."
    )
    return Drawing(figure, caption, MEAN_BAND, numbers)


def _means_by_position(records: pd.DataFrame, sums: str, counts: str) -> pd.DataFrame:
    """Mean at each position (index) for each seed (columns)."""
    if sums not in records:
        return pd.DataFrame()
    means = {}
    for seed, of_seed in records.groupby("seed"):
        n_T = add_ragged(of_seed[counts].dropna())
        means[seed] = pd.Series(add_ragged(of_seed[sums].dropna()) / np.where(n_T >= LEAST_TOKENS, n_T, np.nan))
    return pd.DataFrame(means).dropna(how="all")
