"""Every trial as one line through its values."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from grpolab.report.figures.panels import panel_grid
from grpolab.report.manifest import Manifest
from grpolab.report.tuning.keys import Key
from grpolab.report.tuning.marks import OVER_SEEDS, manifest, score_colours
from grpolab.report.tuning.trials import COMPLETE, DIVERGED, PRUNED, Tuning


def parallel(tuning: Tuning) -> tuple[Figure, Manifest]:
    """One line per trial through its values; complete ones end at their score and have its colour."""
    metric = tuning.objectives[0]
    figure, grid = panel_grid([""], tuning.arms, height=1.8)
    colours, numbers = score_colours(tuning, metric), []
    for (_, arm), panel in grid.items():
        keys, scores = tuning.keys(arm), tuning.scored(arm, metric).set_index("number")["score"]
        for trial in tuning.of(arm, COMPLETE, PRUNED, DIVERGED).itertuples():
            places = [key.share([trial.values[key.name]]).item() for key in keys]
            score = scores.get(trial.number)
            _draw_line(panel, places, score, colours)
            numbers.append({"arm": arm, "trial": trial.number, "state": trial.state, "places": places, "score": score})
        _dress_axes(panel, keys, metric, colours)
    figure.colorbar(colours, ax=list(grid.values()), label=metric, pad=0.01, aspect=25)
    caption = (
        f"Each line is a trial: its values between the bounds of each key, and its `{metric}`. Trials without a score"
        " (pruned, diverged) are grey and end at their last key."
    )
    return figure, manifest(tuning, "tuning_parallel", caption, OVER_SEEDS, numbers)


def _draw_line(panel: Axes, places: list[float], score: float | None, colours: ScalarMappable) -> None:
    """The better, the further in front."""
    if score is None:
        panel.plot(range(len(places)), places, color="0.75", linewidth=0.6, zorder=1)
        return
    low, high = colours.get_clim()
    end = (score - low) / (high - low)
    panel.plot(range(len(places) + 1), [*places, end], color=colours.cmap(end), linewidth=1.1, zorder=2 + end)


def _dress_axes(panel: Axes, keys: list[Key], metric: str, colours: ScalarMappable) -> None:
    """A vertical line per key and one for the score, the bounds written at its ends."""
    low, high = colours.get_clim()
    scores = [f"{score if abs(score) > (high - low) / 1000 else 0:.3g}" for score in (low, high)]
    ends = [*(_bounds(key) for key in keys), (scores[0], scores[1])]
    for place, (bottom, top) in enumerate(ends):
        panel.axvline(place, color="black", linewidth=0.6, zorder=1)
        panel.text(place, -0.03, bottom, ha="center", va="top", fontsize=7)
        panel.text(place, 1.03, top, ha="center", va="bottom", fontsize=7)
    panel.set_xticks(range(len(ends)), [name.replace("_", "\n") for name in (*(key.name for key in keys), metric)])
    panel.tick_params(axis="x", length=0, pad=13)
    panel.set(yticks=[], ylim=(0, 1), xlim=(-0.35, len(keys) + 0.35))
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    panel.set_title(panel.get_title(), pad=14)


def _bounds(key: Key) -> tuple[str, str]:
    return (key.choices[0], key.choices[-1]) if key.choices else (f"{key.low:g}", f"{key.high:g}")
