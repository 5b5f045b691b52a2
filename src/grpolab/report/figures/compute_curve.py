"""F29: accuracy against rollouts with a saturation curve fitted to every run, and how well it foretells the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from grpolab.report.figures.panels import (
    MEAN_DOTS,
    draw_row,
    legend_arms,
    log_axis,
    name_rows,
    note_gaps,
    panel_grid,
    say,
)
from grpolab.report.load import Study
from grpolab.report.manifest import Manifest, Series, manifest
from grpolab.report.measures import completions_learnt, is_share
from grpolab.report.statistics import (
    PARAMETERS,
    Interval,
    Saturation,
    TooFewError,
    fit_saturation,
    share_band,
    share_interval,
    t_band,
    t_interval,
)
from grpolab.report.style import NOTE_COLOUR, QUIET, ArmStyle, arm_styles

HELD_OUT = 0.25  # share of the evaluations, the last ones
_CURVE = "held-out accuracy"
_LABELS = {"asymptote": "asymptote A", "exponent": "exponent B", "midpoint": "midpoint $C_{mid}$\n(completions)"}
_HELD_OUT = "held out: predicted\nminus measured"


@dataclass(frozen=True)
class _Run:
    """One run's evaluations and its fits: to all of them, and to those before the held-out ones."""

    seed: int
    compute_E: NDArray
    score_E: NDArray
    whole: Saturation
    early: Saturation | None

    @property
    def held_out(self) -> int:
        return _held_out(len(self.score_E))

    @property
    def surprise(self) -> float:
        """Mean of predicted minus measured accuracy over the held-out evaluations; NaN where none can be held out."""
        if self.early is None:
            return np.nan
        return float(np.mean(self.early.at(self.compute_E[-self.held_out :]) - self.score_E[-self.held_out :]))


def draw(study: Study) -> tuple[Figure, Manifest]:
    """Accuracy by completions with fitted curves; A, B and C_mid by arm; the error of the extrapolation."""
    columns = [_CURVE, *_LABELS.values(), _HELD_OUT]
    facets = study.facets
    figure, grid = panel_grid(
        facets, columns, height=max(1.25, 0.45 + 0.17 * len(study.arms)), share_x=False, share_y=False
    )
    styles, numbers = arm_styles(study.arms), []
    band = share_band if is_share(study, study.metric) else t_band
    for facet in facets:
        panels = {column: grid[facet, column] for column in columns}
        for place, (arm, evaluations) in enumerate(study.by_arm("evaluations", facet)):
            try:
                runs = _fits(evaluations, study)
            except TooFewError as lack:
                numbers.append({"facet": facet, "arm": arm, "lacks": str(lack)})
                say(panels[_CURVE], str(lack))
                continue
            labels = {"facet": facet, "arm": arm}
            numbers.append({**labels, "metric": study.metric, **_draw_curve(panels[_CURVE], runs, styles[arm], band)})
            numbers += [{**labels, **series} for series in _draw_estimates(panels, place, runs, styles[arm])]
        _finish(panels, [arm for arm, _ in study.by_arm("evaluations", facet)], facet)
    legend_arms(figure, study, study.arms)
    note_gaps(figure, study)
    return figure, manifest(study, "F29", _caption(study), MEAN_DOTS, numbers)


def _caption(study: Study) -> str:
    return (
        f"Held-out accuracy (`{study.metric}`) against completions learnt from, mean over seeds. Lines: mean of the"
        " curves start + (A - start)/(1 + (C_mid/C)^B) that are fitted to each run by least squares, A at most 1."
        " Dots: the seeds whose curve identifies the parameter (inside its bounds; 95% interval of the fit within .1"
        " for A and a factor of 2 for B and C_mid). Where not all do, k/n says how many, and there is no mean. Last:"
        f" how much too high the curve is at the last {HELD_OUT:.0%} of the evaluations when it is fitted without them"
        " (dotted)."
    )


def _held_out(evaluations: int) -> int:
    """How many of a run's evaluations, the start included, are held out."""
    return max(1, round(HELD_OUT * (evaluations - 1)))


def _fits(evaluations: pd.DataFrame, study: Study) -> list[_Run]:
    """Raises TooFewError where the runs have too few evaluations."""
    runs = []
    for seed, unsorted in evaluations.groupby("seed"):
        own = unsorted.sort_values("rollout_step")
        compute_E = completions_learnt(study, own).to_numpy(dtype=np.float64)
        score_E = own[study.metric].to_numpy(dtype=np.float64)
        keep = len(score_E) - _held_out(len(score_E))
        early = fit_saturation(compute_E[:keep], score_E[:keep]) if keep > len(PARAMETERS) else None
        runs.append(_Run(int(seed), compute_E, score_E, fit_saturation(compute_E, score_E), early))
    return runs


def _draw_curve(panel: Axes, runs: list[_Run], style: ArmStyle, band: Callable) -> Series:
    """Means of the evaluations as markers, of the fitted curves as lines; dotted where it is foretold."""
    compute_E = runs[0].compute_E
    scores = pd.DataFrame({run.seed: pd.Series(run.score_E, run.compute_E) for run in runs})
    mean, low, high, n = band(scores.to_numpy())
    panel.plot(scores.index, mean, style.marker, color=style.colour, markersize=2.5)
    dense = np.linspace(0, compute_E[-1], 100)[1:]
    panel.plot(dense, np.mean([run.whole.at(dense) for run in runs], axis=0), color=style.colour, linewidth=0.9)
    early = [run.early for run in runs if run.early is not None]
    if early:
        beyond = np.linspace(compute_E[-1 - runs[0].held_out], compute_E[-1], 30)
        foretold = np.mean([fit.at(beyond) for fit in early], axis=0)
        panel.plot(beyond, foretold, color=style.colour, linestyle=":", linewidth=1.2)
    values = {"mean": mean.tolist(), "low": low.tolist(), "high": high.tolist(), "n": n.tolist()}
    seeds = {run.seed: run.score_E.tolist() for run in runs}
    return {"x": scores.index.tolist(), **values, "seeds": seeds}


def _draw_estimates(panels: dict[str, Axes], place: int, runs: list[_Run], style: ArmStyle) -> list[Series]:
    """A row in each panel of a parameter, and in that of the extrapolation."""
    numbers: list[Series] = []
    for parameter, column in _LABELS.items():
        known = {run.seed: getattr(run.whole, parameter) for run in runs if run.whole.identified[parameter]}
        of = share_interval if parameter == "asymptote" else _geometric  # A is an accuracy
        interval = _estimate(np.array(list(known.values())), len(runs), of)
        _draw_known(panels[column], place, known, len(runs), interval, style)
        numbers.append({"metric": parameter, **interval._asdict(), "runs": len(runs), "seeds": known})
    surprises = {run.seed: run.surprise for run in runs if np.isfinite(run.surprise)}
    interval = _estimate(np.array(list(surprises.values())), len(surprises), t_interval)
    _draw_known(panels[_HELD_OUT], place, surprises, len(surprises), interval, style)
    return [*numbers, {"metric": "predicted minus measured", **interval._asdict(), "seeds": surprises}]


def _estimate(values_S: NDArray, runs: int, of: Callable[[NDArray], Interval]) -> Interval:
    """Mean with its interval; NaN where some runs have no value: the rest are no sample."""
    return of(values_S) if len(values_S) == runs else Interval(np.nan, np.nan, np.nan, len(values_S))


def _geometric(values_S: NDArray) -> Interval:
    mean, low, high, n = t_interval(np.log(values_S))
    return Interval(float(np.exp(mean)), float(np.exp(low)), float(np.exp(high)), n)


def _draw_known(
    panel: Axes, place: int, known: dict[int, float], runs: int, interval: Interval, style: ArmStyle
) -> None:
    """A row; how many runs identify the parameter where that is not every one."""
    if known:
        draw_row(panel, place, np.array(list(known.values())), interval, style)
    if len(known) < runs:
        words = f"{len(known)}/{runs}"
        panel.text(
            1.02, place, words, transform=panel.get_yaxis_transform(), color=NOTE_COLOUR, va="center", fontsize=7
        )


def _finish(panels: dict[str, Axes], arms: list[str], facet: str) -> None:
    """Scales, names of the arms, and a sentence in a panel that has nothing to show."""
    panels[_CURVE].set_ylabel(facet.replace("/", "\n"))
    panels[_CURVE].set_xlabel("completions")
    for column, panel in panels.items():
        if column == _CURVE:
            continue
        name_rows(panel, arms if column == _LABELS["asymptote"] else [""] * len(arms))
        if not panel.lines:
            panel.set_xticks([])
            for text in list(panel.texts):
                text.remove()
            say(panel, "too few evaluations to hold any out" if column == _HELD_OUT else "no curve identifies it")
        elif column == _HELD_OUT:
            panel.axvline(0, color=QUIET, linewidth=0.7, linestyle=":")
        elif column == _LABELS["asymptote"]:
            low, high = panel.dataLim.intervalx
            panel.set_xlim(low - 0.03, high + 0.03)
        else:
            _widen(panel)
            log_axis(panel, "x")


def _widen(panel: Axes) -> None:
    """Show a decade at least: a log scale has no readable ticks within less."""
    low, high = panel.dataLim.intervalx
    room = max(1.1, np.sqrt(10 * low / high))
    panel.set_xlim(low / room, high * room)
