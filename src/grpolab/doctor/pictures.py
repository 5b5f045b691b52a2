"""Pictures of the ratio and the clip over the passes of a batch, for the notebook that asks why the ratio is 1."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpolab.doctor.evidence import USUAL_RANGE
from grpolab.report.figures import panels
from grpolab.report.load import StudyRuns
from grpolab.report.stability import after_first_step
from grpolab.report.statistics.intervals import share_band
from grpolab.report.style import paper_style


@paper_style()
def passes(study: StudyRuns) -> Figure:
    """Draw the clip fraction by pass over the batch: 0 on the first, by construction."""
    sheet = panels.Sheet(study, study.facets, ["clipped tokens by pass over the batch"], share_x=False)
    for (facet, _), panel in sheet.grid.items():
        for arm, updates in study.by_arm("updates", facet):
            by_pass = panels.pivot_seeds(updates, "iteration", "clip/active")
            sheet.draw_means(panel, by_pass, sheet.styles[arm], share_band)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    sheet.start_at_zero()
    sheet.label_x("pass over the batch")
    sheet.draw_legend()
    return sheet.figure


@paper_style()
def reach(study: StudyRuns) -> Figure:
    """Draw the largest ratio - 1 on updates after a batch's first, over the run, and the usual clip range."""
    later = after_first_step(study.updates)
    shown = replace(study, updates=later.assign(reach=later["ratio/token_max"] - 1))
    sheet = panels.draw_curves(shown, {"largest ratio - 1": ("updates", "reach")})
    for panel in sheet.grid.values():
        panel.set_yscale("symlog", linthresh=1e-3)
        panel.axhline(USUAL_RANGE["token"], color="0.4", linewidth=0.7, linestyle="--")
    panels.note_gaps(sheet.figure, shown)
    return sheet.figure
