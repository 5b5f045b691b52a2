"""F11: what the surrogates promise along an update, and what it costs in KL."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from grpolab.report.figures.panels import (
    MEAN_BAND,
    draw_seeds,
    label_x,
    legend_arms,
    note_gaps,
    panel_grid,
    pivot_seeds,
)
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, manifest
from grpolab.report.style import QUIET, arm_styles
from grpolab.report.text import count

_ROWS = {
    r"$L_\mathrm{CPI}$ (not clipped)": "l_cpi",
    r"$L_\mathrm{CLIP}$ (clipped)": "l_clip",
    "KL(old || there)\n(nat per token)": "kl",
}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Unclipped and clipped surrogate and KL from the old to the new policy of updates, and as far again."""
    figure, grid = panel_grid(list(_ROWS), study.facets, height=1.5)
    table, styles, numbers = _table(study), arm_styles(study.arms), []
    for (row, facet), panel in grid.items():
        panel.axvline(1, color=QUIET, linewidth=0.6, zorder=0)
        for arm in study.arms:
            own = table[(table["facet"] == facet) & (table["arm"] == arm)]
            if len(own):
                series = draw_seeds(panel, pivot_seeds(own, "alpha", _ROWS[row]), styles[arm])
                numbers.append({"metric": _ROWS[row], "facet": facet, "arm": arm, **series})
    label_x(grid, "weights: 0 = old, 1 = new")
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study, *_lacking(study, table))
    batches = table["rollout_step"].nunique()
    caption = (
        "The unclipped surrogate, the clipped one at the arm's ratio level, clip range and averaging (whatever rule it"
        " trains with), and the exact KL divergence from the old policy, on the weights old + alpha (new - old) and on"
        f" the batch of the update: mean over the first {batches} rollout steps of each run, made again from its warm"
        " start."
    )
    return figure, manifest(study, "F11", caption, MEAN_BAND, numbers or [{"x": []}])


def _table(study: Study) -> pd.DataFrame:
    """The table's rows of the study's runs, with their facet, arm and seed."""
    path = study.results.surrogate
    columns = ["signature", "rollout_step", "alpha", *_ROWS.values()]
    table = pd.read_csv(path, dtype={"signature": str}) if path.is_file() else pd.DataFrame(columns=columns)
    return table.merge(study.done[["signature", "facet", "arm", "seed"]], on="signature")


def _lacking(study: Study, table: pd.DataFrame) -> list[str]:
    """The note of the runs that the table lacks, if there are any."""
    wanted = set(study.done["signature"])
    lacking = wanted - set(table["signature"])
    runs = f"{len(lacking)} of {count(len(wanted), 'run')}"
    note = f"Not in {study.results.surrogate.name}: {runs} (`grpolab surrogate {study.name}` adds them)"
    return [note] if lacking else []
