"""The figure catalogue: one function per figure, each from a study to the drawing and its manifest."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.report.figures import (
    aggregates,
    clip_ceiling,
    clip_conventions,
    clip_fraction,
    clipped_probability,
    compute_curve,
    counterfactual,
    entropy,
    entropy_reward,
    factor_map,
    forest,
    geometry,
    gradient_norm,
    improvement,
    kl,
    ladder,
    learning_curves,
    lengths,
    log_ratios,
    position,
    probability_histogram,
    profile,
    ratio_range,
    response_ratio,
    reuse,
    sensitivity,
    stability_summary,
    staleness,
    surrogate,
    threshold_time,
    weight_surface,
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
    "F5": log_ratios.draw,
    "F6": ratio_range.draw,
    "F7": position.draw,
    "F8": response_ratio.draw,
    "F9": geometry.draw,
    "F10": weight_surface.draw,
    "F11": surrogate.draw,
    "F12": entropy.draw,
    "F13": factor_map.draw,
    "F14": entropy_reward.draw,
    "F15": kl.draw,
    "F16": gradient_norm.draw,
    "F17": lengths.draw,
    "F18": reuse.draw,
    "F19": clipped_probability.draw,
    "F20": zero_variance.draw,
    "F21": aggregates.draw,
    "F22": profile.draw,
    "F23": improvement.draw,
    "F24": sensitivity.draw,
    "F25": threshold_time.draw,
    "F26": stability_summary.draw,
    "F27": forest.draw,
    "F28": ladder.draw,
    "F29": compute_curve.draw,
    "F30": staleness.draw,
    "F31": probability_histogram.draw,
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
