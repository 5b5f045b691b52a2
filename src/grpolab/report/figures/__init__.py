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
    """A figure of the catalogue: the file that draws it, and its name, which is also that of its files."""

    file: str
    name: str


FIGURES = {
    "F1": Entry("learning", "learning_curves"),
    "F2": Entry("clipping", "clip_fraction"),
    "F3": Entry("clipping", "clip_ceiling"),
    "F4": Entry("clipping", "counterfactual_clipping"),
    "F5": Entry("ratios", "log_ratio_spread"),
    "F6": Entry("ratios", "ratio_range"),
    "F8": Entry("ratios", "response_ratio"),
    "F9": Entry("surfaces", "objective_shape"),
    "F10": Entry("surfaces", "gradient_weight"),
    "F12": Entry("learning", "entropy"),
    "F13": Entry("settings", "setting_map"),
    "F15": Entry("learning", "kl"),
    "F16": Entry("learning", "gradient_norm"),
    "F17": Entry("learning", "completion_length"),
    "F18": Entry("settings", "batch_reuse"),
    "F20": Entry("learning", "equal_reward_groups"),
    "F21": Entry("comparison", "aggregate_scores"),
    "F24": Entry("settings", "accuracy_by_setting"),
    "F25": Entry("comparison", "time_to_threshold"),
    "F26": Entry("comparison", "stability"),
    "F27": Entry("comparison", "final_accuracy"),
    "F28": Entry("comparison", "each_change"),
    "F32": Entry("scale", "effect_by_scale"),
    "F34": Entry("scale", "clipping_by_length"),
    "D1": Entry("clipping", "clip_conventions"),
    "D2": Entry("learning", "logged_curves"),
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
