"""The figure catalogue. A figure is a function `draw_<name>` of a file in this folder, loaded when it is drawn.

The function's docstring is the caption; `{study...}` in it stands for an attribute of the study.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from grpolab.errors import RequestError
from grpolab.vocabulary import ANALYTIC_FIGURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from grpolab.report.load import StudyRuns
    from grpolab.report.style import Manifest


class Entry(NamedTuple):
    """A figure of the catalogue: the file that draws it, and its name, which is also that of its PNG, PDF and JSON."""

    file: str
    name: str


FIGURES = {
    "F1": Entry("learning", "learning_curves"),
    "F2": Entry("clipping", "clip_fraction"),
    "F3": Entry("clipping", "clip_ceiling"),
    "F4": Entry("clipping", "counterfactual_clipping"),
    "F5": Entry("clipping", "log_ratio_spread"),
    "F6": Entry("clipping", "ratio_range"),
    "F8": Entry("clipping", "response_ratio"),
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
    "F32": Entry("settings", "effect_by_scale"),
    "F34": Entry("settings", "clipping_by_length"),
    "F35": Entry("rates", "workable_rates"),
    "F36": Entry("rates", "staleness_map"),
    "F37": Entry("learning", "pass_at_k"),
    "F38": Entry("sampler", "mismatch_kl"),
    "F39": Entry("comparison", "sign_errors"),
    "F42": Entry("sampler", "ratio_by_probability"),
    "F43": Entry("sampler", "ess_before_collapse"),
    "F44": Entry("rates", "budget_frontier"),
    "D1": Entry("clipping", "clip_conventions"),
    "D2": Entry("learning", "logged_curves"),
}


def draw(study: StudyRuns, figure: str) -> tuple[Figure, Manifest]:
    """Draw one figure of the catalogue, e.g. "F2".

    Where the study lacks what the figure needs, the manifest has no numbers, and picture and caption say what is
    lacking. Raises RequestError for an unknown figure, and for one that needs runs where the plan has no cells.
    """
    if figure not in FIGURES:
        raise RequestError(f"figures={figure} of study={study.name} is not one of {', '.join(FIGURES)}")
    if figure not in ANALYTIC_FIGURES and study.cells.empty:
        able = ", ".join(ANALYTIC_FIGURES)
        raise RequestError(f"figures={figure} of study={study.name} needs cells; such a study can ask for {able}")
    file, name = FIGURES[figure]
    panels, drawers = (import_module(f"grpolab.report.figures.{module}") for module in ("panels", file))
    return cast("tuple[Figure, Manifest]", panels.draw_figure(study, figure, getattr(drawers, f"draw_{name}")))
