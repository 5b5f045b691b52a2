"""The figure catalogue. A figure is a function `draw_<name>` of a file in this folder, loaded when it is drawn."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.report.figures.panels import Drawing, NotDrawnError, note_gaps, panel_grid, say
from grpolab.report.load import StudyRuns
from grpolab.report.style import Manifest, manifest, paper_style
from grpolab.vocabulary import ANALYTIC_FIGURES


class Entry(NamedTuple):
    """A figure of the catalogue: the file that draws it, its name (also that of its files), and its title."""

    file: str
    name: str
    title: str


FIGURES = {
    "F1": Entry("learning", "learning_curves", "Learning curves: training reward and held-out accuracy"),
    "F2": Entry("clipping", "clip_fraction", "Clip fraction over time, below and above the range"),
    "F3": Entry("clipping", "clip_ceiling", "Clip fraction of each arm against what it could clip at most"),
    "F4": Entry(
        "clipping",
        "counterfactual_clipping",
        "What any clip range would have clipped, for token and sequence ratios of the same run",
    ),
    "F5": Entry(
        "ratios", "log_ratio_spread", "Spread of the log ratio at four moments of training, per token and per sequence"
    ),
    "F6": Entry("ratios", "ratio_range", "Smallest and largest ratio at each rollout step"),
    "F8": Entry("ratios", "response_ratio", "Mean sequence ratio of right and of wrong completions"),
    "F9": Entry(
        "surfaces",
        "objective_shape",
        "Shape of the objective and its gradient weight against the ratio, from the loss code itself",
    ),
    "F10": Entry(
        "surfaces", "gradient_weight", "Gradient weight over old and new probability, for either sign of the advantage"
    ),
    "F12": Entry("learning", "entropy", "Entropy of the sampling policy, and its difference to the baseline's"),
    "F13": Entry("settings", "setting_map", "Map of lower against upper clip range: entropy, accuracy, KL"),
    "F15": Entry("learning", "kl", "KL to the old policy in each update, and to the warm start"),
    "F16": Entry("learning", "gradient_norm", "Gradient norm before clipping, and its spikes"),
    "F17": Entry(
        "learning", "completion_length", "Length of right and of wrong completions, and how many are truncated"
    ),
    "F18": Entry(
        "settings", "batch_reuse", "Clip fraction and final accuracy against the number of passes over a batch"
    ),
    "F20": Entry(
        "learning", "equal_reward_groups", "Groups whose rewards are all equal, against what chance alone would make"
    ),
    "F21": Entry("comparison", "aggregate_scores", "Aggregate scores over tasks: IQM, mean, median, optimality gap"),
    "F24": Entry("settings", "accuracy_by_setting", "Final accuracy against each setting that a factor moves"),
    "F25": Entry(
        "comparison",
        "time_to_threshold",
        "Time until half of the gain is reached, runs that never reach it censored",
    ),
    "F26": Entry(
        "comparison", "stability", "Stability of every arm: collapses, drawdown, spikes, largest ratio, entropy lost"
    ),
    "F27": Entry("comparison", "final_accuracy", "Final accuracy of every arm minus the baseline's, paired by seed"),
    "F28": Entry("comparison", "each_change", "Ladder: what one change after the other brings, and each left out"),
    "F32": Entry(
        "scale",
        "effect_by_scale",
        "Final accuracy minus the baseline's, over parameters and over the length of answers",
    ),
    "F34": Entry(
        "scale",
        "clipping_by_length",
        "Clip fraction and |log ratio| of answers against their length, beside 1/sqrt(T)",
    ),
    "D1": Entry(
        "clipping", "clip_conventions", "One run, many numbers: its clip fraction as each framework would log it"
    ),
    "D2": Entry("learning", "logged_curves", "What logs of other frameworks show over time"),
}


def draw(study: StudyRuns, figure: str) -> tuple[Figure, Manifest]:
    """Draw one figure of the catalogue, e.g. "F2".

    Where the study lacks what the figure needs, the manifest has no numbers, and its caption and the picture say what
    is lacking. Raises RequestError for a figure that does not exist, or that needs runs where the plan has no cells.
    """
    if figure not in FIGURES:
        raise RequestError(f"figures={figure} of study={study.name} is not one of {', '.join(FIGURES)}")
    needs_runs = figure not in ANALYTIC_FIGURES
    if needs_runs and study.cells.empty:
        able = ", ".join(ANALYTIC_FIGURES)
        raise RequestError(f"figures={figure} of study={study.name} needs cells; such a study can ask for {able}")
    entry = FIGURES[figure]
    draw_figure = getattr(import_module(f"grpolab.report.figures.{entry.file}"), f"draw_{entry.name}")
    with paper_style():
        try:
            if needs_runs and study.done.empty:
                raise NotDrawnError("no run has a result yet")
            drawing: Drawing = draw_figure(study)
        except NotDrawnError as lack:
            sentence, grid = panel_grid([""], [""], height=0.3)
            grid["", ""].set_axis_off()
            say(grid["", ""], f"{figure}: {lack}")
            drawing = Drawing(sentence, f"Not drawn: {lack}.", "none", [])
        if needs_runs:
            note_gaps(drawing.figure, study)
    return drawing.figure, manifest(study, figure, drawing.caption, drawing.statistic, drawing.numbers)
