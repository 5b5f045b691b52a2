"""The figure catalogue: one function per figure, each from a study to the drawing and its manifest."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.report.figures import (
    clip_ceiling,
    clip_conventions,
    clip_fraction,
    counterfactual,
    entropy,
    geometry,
    gradient_norm,
    learning_curves,
    position,
    reuse,
    sensitivity,
    stability_summary,
    zero_variance,
)
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest
from grpolab.report.style import paper_style
from grpolab.vocabulary import ANALYTIC_FIGURES

FIGURES: dict[str, Callable[[Study], tuple[Figure, Manifest]]] = {
    "F1": learning_curves.draw,
    "F2": clip_fraction.draw,
    "F3": clip_ceiling.draw,
    "F4": counterfactual.draw,
    "F7": position.draw,
    "F9": geometry.draw,
    "F12": entropy.draw,
    "F16": gradient_norm.draw,
    "F18": reuse.draw,
    "F20": zero_variance.draw,
    "F24": sensitivity.draw,
    "F26": stability_summary.draw,
    "D1": clip_conventions.draw,
}


def draw(study: Study, figure: str) -> tuple[Figure, Manifest]:
    """Draw one figure of the catalogue, e.g. "F2".

    Raises RequestError for a figure that does not exist, or that needs runs where the plan has no cells.
    """
    if figure not in FIGURES:
        raise RequestError(f"figures={figure} of study={study.name} is not one of {', '.join(FIGURES)}")
    if figure not in ANALYTIC_FIGURES and study.cells.empty:
        able = ", ".join(ANALYTIC_FIGURES)
        raise RequestError(f"figures={figure} of study={study.name} needs cells; such a study can ask for {able}")
    with paper_style():
        return FIGURES[figure](study)
