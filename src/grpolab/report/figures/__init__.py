"""The figure catalogue: the files of this folder declare the figures (`@figure`), and `draw` draws them."""

from __future__ import annotations

from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.report.figures import (  # noqa: F401
    clipping,
    comparison,
    compute,
    learning,
    ratios,
    scale,
    sensitivity,
    surfaces,
)
from grpolab.report.figures.panels import CATALOGUE, Drawing, NotDrawnError, note_gaps, panel_grid, say
from grpolab.report.load import Study
from grpolab.report.style import Manifest, manifest, paper_style
from grpolab.vocabulary import ANALYTIC_FIGURES
from grpolab.vocabulary import FIGURES as ORDER

FIGURES = {identity: CATALOGUE[identity] for identity in sorted(CATALOGUE, key=ORDER.index)}


def draw(study: Study, figure: str) -> tuple[Figure, Manifest]:
    """Draw one figure of the catalogue, e.g. "F2".

    Where the study lacks what it needs, the manifest has no numbers; its caption, and the picture, say what is lacking.

    Raises RequestError for a figure that does not exist, or that needs runs where the plan has no cells.
    """
    if figure not in FIGURES:
        raise RequestError(f"figures={figure} of study={study.name} is not one of {', '.join(FIGURES)}")
    if figure not in ANALYTIC_FIGURES and study.cells.empty:
        able = ", ".join(ANALYTIC_FIGURES)
        raise RequestError(f"figures={figure} of study={study.name} needs cells; such a study can ask for {able}")
    with paper_style():
        try:
            if figure not in ANALYTIC_FIGURES and study.done.empty:
                raise NotDrawnError("no run has a result yet")
            drawing = FIGURES[figure].draw(study)
        except NotDrawnError as lack:
            sentence, grid = panel_grid([""], [""], height=0.3)
            grid["", ""].set_axis_off()
            say(grid["", ""], f"{figure}: {lack}")
            drawing = Drawing(sentence, f"Not drawn: {lack}.", "none", [])
        if figure not in ANALYTIC_FIGURES:
            note_gaps(drawing.figure, study, drawing.lacks)
    return drawing.figure, manifest(study, figure, drawing.caption, drawing.statistic, drawing.numbers)
