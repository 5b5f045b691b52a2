"""F4: what other clip ranges would have clipped, for token and sequence ratios of the same run."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from grpolab.report.figures.panels import MEAN_BAND, draw_seeds, label_x, note_gaps, panel_grid
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import add_ragged
from grpolab.report.style import QUIET, ArmStyle
from grpolab.vocabulary import EXCESS_EDGES, LEVELS, SIGNS

_LINES = {"token": ArmStyle("#0072b2", "-", "o"), "sequence": ArmStyle("#d55e00", "--", "s")}


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Share of tokens that a symmetric range epsilon would clip, for both ratio levels, on the baseline's runs."""
    figure, grid = panel_grid(["would be clipped\n(share of tokens)"], study.facets, height=2.0)
    numbers: list[Series] = []
    for (_, facet), panel in grid.items():
        frame = dict(study.by_arm("histograms", facet)).get(study.baseline, study.histograms.iloc[:0])
        for level in LEVELS:
            shares_XS = _shares_by_seed(frame, level)
            series = draw_seeds(panel, shares_XS, _LINES[level], share=True)
            numbers.append({"level": level, "facet": facet, "arm": study.baseline, **series})
        panel.set(xscale="log", yscale="log")
        _mark_ranges(panel, study, facet)
    label_x(grid, "clip range epsilon")
    handles = [Line2D([], [], color=s.colour, linestyle=s.line, label=f"{level} ratio") for level, s in _LINES.items()]
    handles.append(Line2D([], [], color=QUIET, linewidth=0.7, linestyle=":", label="ranges of the study's arms"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    note_gaps(figure, study)
    caption = (
        f"Share of tokens that a symmetric clip range would have silenced in the runs of `{study.baseline}`, had it met"
        " their token ratios or their sequence ratios; last optimiser step of every rollout step with a histogram."
    )
    return figure, manifest(study, "F4", caption, MEAN_BAND, numbers)


def _shares_by_seed(histograms: pd.DataFrame, level: str) -> pd.DataFrame:
    """Share beyond each edge (index) for each seed (columns); edges that no seed passed are left out."""
    by_seed = {seed: share_beyond(records, level) for seed, records in histograms.groupby("seed")}
    shares = pd.DataFrame(by_seed, index=list(EXCESS_EDGES))
    return shares[(shares > 0).any(axis=1)]


def share_beyond(records: pd.DataFrame, level: str) -> NDArray:
    """Share of all tokens with a ratio beyond each of EXCESS_EDGES, on the side where clipping acts. Shape: (edges,).

    Counts are: not beyond 1, then one bin up to each edge, then the rest.
    """
    counts = np.sum([add_ragged(records[f"excess/{level}_{sign}"]) for sign in SIGNS], axis=0)
    tokens = add_ragged(records["position/count"]).sum()
    beyond = np.cumsum(counts[::-1])[::-1]
    return beyond[2:] / tokens


def _mark_ranges(panel: Axes, study: Study, facet: str) -> None:
    """Thin vertical lines at the finite clip ranges of the arms."""
    cells = study.cells[study.cells["facet"] == facet]
    ranges = {*cells["setting/epsilon"], *cells["setting/epsilon_high"]}
    for epsilon in sorted(e for e in ranges if EXCESS_EDGES[0] <= e <= EXCESS_EDGES[-1]):
        panel.axvline(epsilon, color=QUIET, linewidth=0.7, linestyle=":", zorder=0)
