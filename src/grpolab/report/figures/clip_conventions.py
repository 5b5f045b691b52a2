"""D1: one run, many numbers: its clip fraction as each framework would log it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from grpolab.peer_metrics import CLIP_METRIC, convention
from grpolab.report.figures.panels import (
    MEAN_BAND,
    draw_seeds,
    note_gaps,
    panel_grid,
    pivot_seeds,
    say,
    start_at_zero,
)
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.style import arm_styles

_BY = {"iteration": "pass (0 = first)", "rollout_step": "rollout steps"}
# Ours, for what users of frameworks also look at.
_OURS = {
    "clip/out_of_range": "ratio-only, whatever the advantage: ROLL's ppo_ratio_clipfrac; clip/out_of_range",
    "clip/active_nz": "of the tokens that have an advantage: clip/active_nz",
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """The baseline's clip fraction by every definition, by pass and over rollout steps; one line for each number."""
    rows = {f"clipped, by {'pass' if x == 'iteration' else 'rollout step'}": x for x in _BY}
    figure, grid = panel_grid(list(rows), study.facets, height=1.9, share_x=False)
    own = study.updates[study.updates["arm"] == study.baseline]
    groups = _alike(own)
    styles = arm_styles([*groups, *_OURS])
    labels = {convention(name): ", ".join(names) for name, names in groups.items()} | _OURS
    numbers: list[Series] = []
    for (row, facet), panel in grid.items():
        updates, x = own[own["facet"] == facet], rows[row]
        for style, (metric, label) in zip(styles.values(), labels.items(), strict=True):
            values_XS = pivot_seeds(updates, x, metric)
            is_share = values_XS.empty or values_XS.max(axis=None) <= 1  # a sum over sequences is none
            series = draw_seeds(panel, values_XS, style, share=is_share)
            numbers.append({"metric": metric, "label": label, "by": x, "facet": facet, **series})
        if not groups:
            say(panel, f"no run of `{study.baseline}` has diagnostics.clip_conventions")
        panel.set_xlabel(_BY[x])
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    start_at_zero(grid)
    for panel in grid.values():
        if panel.get_ylim()[1] > 1.1:  # a sum, not a share
            panel.set_yscale("symlog", linthresh=1)
        else:
            panel.yaxis.set_major_formatter(PercentFormatter(1))
    handles = [
        Line2D([], [], color=style.colour, linestyle=style.line, marker=style.marker, label=label)
        for style, label in zip(styles.values(), labels.values(), strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=1, handlelength=2.6)
    note_gaps(figure, study)
    caption = (
        f"The clip fraction of the runs of `{study.baseline}` as each framework defines it (docs/dialects.md): mean"
        " over the rollout steps at each pass over a batch, and over the passes of each rollout step. Frameworks whose"
        " numbers agree in every record share a line."
    )
    return figure, manifest(study, "D1", caption, MEAN_BAND, numbers)


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
