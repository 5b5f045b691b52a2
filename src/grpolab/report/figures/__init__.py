"""The figure catalogue: one function per figure, each from a study to the drawing and its manifest."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.report.figures import clipping, comparison, compute, learning, ratios, stability, surfaces
from grpolab.report.load import Study
from grpolab.report.style import Manifest, paper_style
from grpolab.vocabulary import ANALYTIC_FIGURES

FIGURES: dict[str, Callable[[Study], tuple[Figure, Manifest]]] = {
    "F1": learning.draw_learning_curves,
    "F2": clipping.draw_clip_fraction,
    "F3": clipping.draw_clip_ceiling,
    "F4": clipping.draw_counterfactual,
    "F5": ratios.draw_log_ratios,
    "F6": ratios.draw_ratio_range,
    "F7": clipping.draw_position,
    "F8": ratios.draw_response_ratio,
    "F9": surfaces.draw_geometry,
    "F10": surfaces.draw_weight_surface,
    "F11": surfaces.draw_surrogate,
    "F12": learning.draw_entropy,
    "F13": comparison.draw_factor_map,
    "F14": learning.draw_entropy_reward,
    "F15": learning.draw_kl,
    "F16": learning.draw_gradient_norm,
    "F17": learning.draw_lengths,
    "F18": compute.draw_reuse,
    "F19": clipping.draw_clipped_probability,
    "F20": learning.draw_zero_variance,
    "F21": comparison.draw_aggregates,
    "F22": comparison.draw_profile,
    "F23": comparison.draw_improvement,
    "F24": stability.draw_sensitivity,
    "F25": compute.draw_threshold_time,
    "F26": stability.draw_stability_summary,
    "F27": comparison.draw_forest,
    "F28": comparison.draw_ladder,
    "F29": compute.draw_compute_curve,
    "F30": ratios.draw_staleness,
    "F31": ratios.draw_probability_histogram,
    "D1": clipping.draw_clip_conventions,
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
