"""The figure catalogue: every figure is declared here, once, and drawn by `draw`."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.report.figures import clipping, comparison, compute, learning, ratios, sensitivity, surfaces
from grpolab.report.figures.panels import Drawing, NotDrawnError, note_gaps, only_says
from grpolab.report.load import Study
from grpolab.report.style import Manifest, manifest, paper_style
from grpolab.vocabulary import ANALYTIC_FIGURES

# Each figure's id, which names its file too: the function that draws it, and its title.
FIGURES: dict[str, tuple[Callable[[Study], Drawing], str]] = {
    "F1": (learning.draw_learning_curves, "Learning curves: training reward and held-out accuracy"),
    "F2": (clipping.draw_clip_fraction, "Clip fraction over time, below and above the range"),
    "F3": (clipping.draw_clip_ceiling, "Clip fraction of each arm against what it could clip at most"),
    "F4": (
        clipping.draw_counterfactual,
        "What any clip range would have clipped, for token and sequence ratios of the same run",
    ),
    "F5": (ratios.draw_log_ratios, "Spread of the log ratio at four moments of training, per token and per sequence"),
    "F6": (ratios.draw_ratio_range, "Smallest and largest ratio at each rollout step"),
    "F7": (clipping.draw_position, "Ratio and clipping by position in the completion"),
    "F8": (ratios.draw_response_ratio, "Mean sequence ratio of right and of wrong completions"),
    "F9": (
        surfaces.draw_geometry,
        "Shape of the objective and its gradient weight against the ratio, from the loss code itself",
    ),
    "F10": (
        surfaces.draw_weight_surface,
        "Gradient weight over old and new probability, for either sign of the advantage",
    ),
    "F11": (
        surfaces.draw_surrogate,
        "Surrogate objectives and KL on the way from the old to the new weights of a batch",
    ),
    "F12": (learning.draw_entropy, "Entropy of the sampling policy"),
    "F13": (sensitivity.draw_factor_map, "Map of lower against upper clip range: entropy, accuracy, KL"),
    "F14": (
        learning.draw_entropy_reward,
        "What entropy buys: accuracy against entropy, with the fitted exchange curve",
    ),
    "F15": (learning.draw_kl, "KL to the old policy in each update, and to the warm start"),
    "F16": (learning.draw_gradient_norm, "Gradient norm before clipping, and its spikes"),
    "F17": (learning.draw_lengths, "Length of right and of wrong completions, and how many are truncated"),
    "F18": (compute.draw_reuse, "Clip fraction and final accuracy against the number of passes over a batch"),
    "F19": (
        clipping.draw_clipped_probability,
        "Old probability of the tokens that are clipped, and which tokens they are",
    ),
    "F20": (learning.draw_zero_variance, "Groups whose rewards are all equal, against what chance alone would make"),
    "F21": (comparison.draw_aggregates, "Aggregate scores over tasks: IQM, mean, median, optimality gap"),
    "F22": (comparison.draw_profile, "Performance profiles: share of runs above every score"),
    "F23": (comparison.draw_improvement, "Probability that an arm's run beats the baseline's"),
    "F24": (sensitivity.draw_sensitivity, "Final accuracy against each setting that a factor moves"),
    "F25": (compute.draw_threshold_time, "Time until half of the gain is reached, runs that never reach it censored"),
    "F26": (
        comparison.draw_stability_summary,
        "Stability of every arm: collapses, drawdown, spikes, largest ratio, entropy lost",
    ),
    "F27": (comparison.draw_forest, "Differences of every arm to the baseline, paired by seed"),
    "F28": (comparison.draw_ladder, "Ladder: one change after the other, and each left out"),
    "F29": (compute.draw_compute_curve, "Accuracy against rollouts, with a sigmoid fit and its extrapolation"),
    "F30": (sensitivity.draw_staleness, "Stale data and a sampler that differs: accuracy, clipping, largest ratio"),
    "F31": (
        ratios.draw_probability_histogram,
        "Histogram of the sampled tokens' probabilities, at the start and at the end",
    ),
    "D1": (clipping.draw_clip_conventions, "One run, many numbers: its clip fraction as each framework would log it"),
}


def draw(study: Study, figure: str) -> tuple[Figure, Manifest]:
    """Draw one figure of the catalogue, e.g. "F2"; where the study lacks what it needs, a sentence that says so.

    Raises RequestError for a figure that does not exist, or that needs runs where the plan has no cells.
    """
    if figure not in FIGURES:
        raise RequestError(f"figures={figure} of study={study.name} is not one of {', '.join(FIGURES)}")
    if figure not in ANALYTIC_FIGURES and study.cells.empty:
        able = ", ".join(ANALYTIC_FIGURES)
        raise RequestError(f"figures={figure} of study={study.name} needs cells; such a study can ask for {able}")
    with paper_style():
        try:
            drawing = FIGURES[figure][0](study)
        except NotDrawnError as lack:
            sentence = only_says(f"{figure}: {lack}")
            drawing = Drawing(sentence, f"Not drawn: {lack}.", "none", [{"lacks": str(lack)}])
        if figure not in ANALYTIC_FIGURES:
            note_gaps(drawing.figure, study, drawing.lacks)
    return drawing.figure, manifest(study, figure, drawing.caption, drawing.statistic, drawing.numbers)
