"""F19: how probable the tokens are that clipping meets, and which they are."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from grpolab.report.figures.panels import (
    MEAN_BAND,
    arm_label,
    draw_seeds,
    legend_arms,
    note_gaps,
    panel_grid,
    pivot_seeds,
    say,
)
from grpolab.report.load import Study, clipped_tokens
from grpolab.report.manifest import Manifest, manifest
from grpolab.report.style import arm_styles

_ROWS = {
    "old probability,\nup-clipped": "p_old/up_clipped",
    "old probability,\ndown-clipped": "p_old/down_clipped",
    "old probability,\nall tokens": "p_old/all",
}
_TOKENS = "share of all\nclipped tokens"
_COLOURS = {"high": "#b35806", "low": "#8073ac"}  # no arm has them
MOST_TOKENS = 10


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Mean old probability of up-clipped, down-clipped and all tokens; below, the baseline's most clipped tokens."""
    figure, grid = panel_grid([*_ROWS, _TOKENS], study.facets, height=1.2, share_x=False)
    styles, numbers = arm_styles(study.arms), []
    for facet in study.facets:
        for row, metric in _ROWS.items():
            panel = grid[row, facet]
            for arm, updates in study.by_arm("updates", facet):
                series = draw_seeds(panel, pivot_seeds(updates, "rollout_step", metric), styles[arm], share=True)
                numbers.append({"metric": metric, "facet": facet, "arm": arm, **series})
            panel.set(ylim=(0, 1), xlabel="rollout steps")
            if not panel.lines:
                say(panel, "nothing was clipped on this side")
        shares = _shares(study, facet)
        _draw_tokens(grid[_TOKENS, facet], shares)
        numbers.append(
            {
                "metric": "samples",
                "facet": facet,
                "arm": study.baseline,
                "x": shares.index.tolist(),
                **shares.to_dict("list"),
            }
        )
    sides = [
        Patch(color=_COLOURS[side], label=f"clipped {where}") for side, where in (("high", "above"), ("low", "below"))
    ]
    legend_arms(figure, study, study.arms, sides)
    note_gaps(figure, study)
    caption = (
        "Mean probability under the old policy of tokens clipped above the range, below it, and of all tokens,"
        " averaged over the optimiser steps of a rollout step in which there are any. Last the tokens that are"
        f" clipped most in the runs of `{arm_label(study, study.baseline)}`, by their share of all clipped tokens of"
        " the completions that runs keep (`diagnostics.samples_every`), last pass over the batch, all seeds together."
    )
    return figure, manifest(study, "F19", caption, MEAN_BAND, numbers)


def _shares(study: Study, facet: str) -> pd.DataFrame:
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
    panel.bar(places, shares["high"], color=_COLOURS["high"], width=0.75, linewidth=0)
    panel.bar(places, shares["low"], bottom=shares["high"], color=_COLOURS["low"], width=0.75, linewidth=0)
    panel.set_xticks(places, [_shown(token) for token in shares.index])
    panel.grid(axis="x", visible=False)
    panel.set_xlabel("token")


def _shown(token: str) -> str:
    """A token for a tick label: blanks made visible, long ones cut, `$` no formula."""
    visible = repr(token)[1:-1].replace(" ", "␣").replace("$", r"\$") or "''"
    return visible if len(visible) <= 6 else f"{visible[:5]}…"
