"""The figures of a tuning, one function each; Optuna's own plots know neither arms nor seeds nor common values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.tri import LinearTriInterpolator, Triangulation
from numpy.typing import ArrayLike

from grpolab.report.figures.panels import Drawing, handle, label_x, panel_grid, say, whole_numbers
from grpolab.report.style import COLUMN_WIDTH, NOTE_COLOUR, QUIET, Manifest, Series, arm_styles, paper_style
from grpolab.report.text import count
from grpolab.report.tuning.trials import Key, Tuning, number_of
from grpolab.vocabulary import COMPLETE, DIVERGED, FAILED, PRUNED

OVER_SEEDS = "mean over the tuning seeds"
BEST, COMMON, COMMON_PAIR = "best", "common value", "common values"
COLOURS = "cividis"  # scores; it reads the same in grey
# Where a trial without a score is marked: just above the lower end of the panel, arms that share it above each other.
_FLOOR, _ROW = 0.035, 0.04
_MARKS: dict[str, dict[str, Any]] = {
    COMPLETE: {"marker": "o", "markersize": 3.2},
    PRUNED: {"marker": "v", "markersize": 4, "markerfacecolor": "none", "markeredgewidth": 0.8},
    DIVERGED: {"marker": "x", "markersize": 4, "markeredgewidth": 1.0, "color": NOTE_COLOUR},
    BEST: {"marker": "*", "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.6},
    COMMON_PAIR: {"marker": "P", "markersize": 6, "markeredgecolor": "black", "markeredgewidth": 0.6},
}
_COMMON_LINE: dict[str, Any] = {"color": QUIET, "linestyle": (0, (1, 1.5)), "linewidth": 1.0}


def mark(panel: Axes, x: ArrayLike, y: ArrayLike, state: str, colour: str, **options: Any) -> None:
    """Trials of one state at their places."""
    look = {"color": colour, "linestyle": "none", "zorder": 3, **_MARKS[state], **options}
    panel.plot(x, y, **look)


def mark_unscored(panel: Axes, x: ArrayLike, states: pd.Series, colour: str, row: int = 0) -> None:
    """Pruned and diverged trials along the lower end of a panel: they have a place on its x axis, and no score."""
    panel.margins(y=max(panel.get_ymargin(), _FLOOR + 1.6 * (row + 1) * _ROW))
    for state in (PRUNED, DIVERGED):
        here = np.asarray(x)[(states == state).to_numpy()]
        mark(panel, here, np.full(len(here), _FLOOR + row * _ROW), state, colour, transform=panel.get_xaxis_transform())


def score_colours(tuning: Tuning, metric: str) -> ScalarMappable:
    """One scale for the scores of all arms."""
    scores = np.concatenate([tuning.scored(arm, metric)["score"] for arm in tuning.arms])
    low, high = (scores.min(), scores.max()) if len(scores) else (0.0, 1.0)
    return ScalarMappable(Normalize(low, high if high > low else low + 1e-9), COLOURS)


def legend(figure: Figure, tuning: Tuning, marks: Sequence[str], arms: bool = False) -> None:
    """One legend below all panels: marks (of states that trials are in), and the arms where they share panels."""
    handles = [handle(arm, style) for arm, style in arm_styles(tuning.arms).items()] if arms else []
    absent = {COMPLETE, PRUNED, DIVERGED} - {*tuning.trials["state"]}
    for name in marks:
        face = "white" if name in (BEST, COMMON_PAIR) else QUIET
        look = _COMMON_LINE if name == COMMON else {"color": face, "linestyle": "none", **_MARKS[name]}
        if name not in absent:
            handles.append(Line2D([], [], **{**look, "label": name}))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 7), handlelength=2.2)


def history(tuning: Tuning) -> Drawing:
    """Score of each trial by number, with the best so far as a step line; one row per objective."""
    figure, grid = panel_grid(tuning.objectives, tuning.arms, height=1.6)
    styles, numbers = arm_styles(tuning.arms), []
    for (metric, arm), panel in grid.items():
        done, others = tuning.scored(arm, metric), tuning.of(arm, PRUNED, DIVERGED)
        colour, sign = styles[arm].colour, tuning.sign(metric)
        best_so_far = sign * np.maximum.accumulate(sign * done["score"].to_numpy())
        panel.step(done["number"], best_so_far, where="post", color=colour)
        mark(panel, done["number"], done["score"], COMPLETE, colour)
        mark_unscored(panel, others["number"], others["state"], colour)
        whole_numbers(panel)
        numbers.append(
            {"arm": arm, "metric": metric, "x": done["number"].tolist(), "score": done["score"].tolist()}
            | {"best_so_far": best_so_far.tolist()}
            | {state: tuning.of(arm, state)["number"].tolist() for state in (PRUNED, DIVERGED)}
        )
    label_x(grid, "trial")
    legend(figure, tuning, [COMPLETE, PRUNED, DIVERGED])
    caption = (
        "Score of each trial in the order of asking, and the best so far. Pruned and diverged trials have no score and"
        " stand along the lower edge."
    )
    return Drawing(figure, caption, OVER_SEEDS, numbers)


def intermediate(tuning: Tuning) -> Drawing:
    """What the pruner saw of each seed of each trial; pruned ones are grey and end in their mark."""
    pruner = tuning.document["pruner"]
    figure, grid = panel_grid([pruner["metric"]], tuning.arms, height=1.9)
    styles, numbers = arm_styles(tuning.arms), []
    for (_, arm), panel in grid.items():
        best = tuning.best(arm)[:1]
        whole_numbers(panel)
        for trial in tuning.of(arm, PRUNED, DIVERGED, COMPLETE).sort_values("state", ascending=False).itertuples():
            is_best, seeds = trial.number in best, {}
            shade = styles[arm].colour if trial.state == COMPLETE else QUIET
            for seed, points in trial.intermediate.items():
                steps, values = [step for step, _ in points], [number_of(value) for _, value in points]
                seeds[int(seed)] = {"x": steps, "value": values}
                panel.plot(steps, values, color=shade, linewidth=1.6 if is_best else 0.6, alpha=1 if is_best else 0.7)
            if seeds and (is_best or trial.state != COMPLETE):  # where its last seed ended
                mark(panel, steps[-1:], values[-1:], BEST if is_best else trial.state, shade)
            numbers.append(
                {"arm": arm, "trial": trial.number, "state": trial.state, "seeds": dict(sorted(seeds.items()))}
            )
    label_x(grid, "rollout steps")
    legend(figure, tuning, [PRUNED, DIVERGED, BEST])
    caption = (
        f"What the pruner saw: mean of the last {pruner.get('window', 1)} evaluations of `{pruner['metric']}`, one line"
        " per seed of a trial. Grey lines end where their trial was pruned or diverged; the best trial is drawn thick."
    )
    return Drawing(figure, caption, "single seeds", numbers)


FOREST_SEED = 0
FEWEST = 5  # complete trials; a forest on fewer fits noise


def importances(tuning: Tuning, arm: str) -> dict[str, float]:
    """Share of the variance of the score, over the arm's space, that each key explains alone; the rest is interactions.

    fANOVA (Hutter, Hoos and Leyton-Brown, 2014) in Optuna's implementation, from the arm's complete trials; empty where
    they are too few. Keys are even in what the sampler draws from (logarithms for a log-uniform one): Optuna's own plot
    would weight the last decade most.
    """
    import optuna  # seconds to import, and most reports have no tuning

    keys, done = tuning.keys(arm), tuning.scored(arm, tuning.objectives[0])
    if len(done) < FEWEST:
        return {}
    even: dict[str, Any] = {key.name: optuna.distributions.FloatDistribution(0.0, 1.0) for key in keys}
    shares = pd.DataFrame({key.name: key.share(key.places(done)).clip(0, 1) for key in keys})
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it announces every study
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage(), direction="maximize")
    for params, score in zip(shares.to_dict("records"), done["score"], strict=True):
        study.add_trial(optuna.trial.create_trial(params=params, distributions=even, value=score))
    share = optuna.importance.FanovaImportanceEvaluator(seed=FOREST_SEED).evaluate(study)
    return {key.name: float(share[key.name]) for key in keys}


def importance(tuning: Tuning) -> Drawing:
    """The importance of each key, one panel per arm."""
    most = max(len(tuning.keys(arm)) for arm in tuning.arms)
    figure, grid = panel_grid([""], tuning.arms, height=0.2 + 0.25 * most, share_y=False)
    styles, numbers = arm_styles(tuning.arms), []
    for (_, arm), panel in grid.items():
        share, n = importances(tuning, arm), len(tuning.of(arm, COMPLETE))
        if not share:
            say(panel, f"{count(n, 'complete trial')}: {FEWEST} are needed")
        bars = panel.barh(list(share), list(share.values()), height=0.6, color=styles[arm].colour)
        panel.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        panel.set(xlim=(0, 1.15), xticks=[0, 0.5, 1], xlabel=f"share of variance ({count(n, 'trial')})")
        panel.invert_yaxis()
        panel.grid(visible=False, axis="y")
        numbers.append({"arm": arm, "x": list(share), "importance": list(share.values()), "n": n})
    caption = (
        f"Share of the variance of `{tuning.objectives[0]}` over the space that each key explains alone (fANOVA on the"
        " complete trials; pruned ones have no score). With a few dozen trials it is a hint, no measurement."
    )
    return Drawing(figure, caption, f"random forest, seed {FOREST_SEED}", numbers)


STRETCHES = 6  # equal parts of a key's range, each of which gives the line one point


def sensitivity(tuning: Tuning) -> Drawing:
    """Score against each key, all arms in one panel: a line through the best trial of each sixth of the range.

    A mean over trials would mix in the other keys, and pruning would flatter it, because the trials that it left out
    are the bad ones; the best trial of a stretch is what the arm reaches there when the other keys are tuned.
    """
    all_keys, numbers = {key.name: key for key in tuning.all_keys()}, []
    figure, grid = panel_grid(tuning.objectives, list(all_keys), height=2.0, share_x=False)
    for (metric, name), panel in grid.items():
        for row, (arm, (colour, dashes, marker)) in enumerate(arm_styles(tuning.arms).items()):
            for key in (key for key in tuning.keys(arm) if key.name == name):
                done, others = tuning.scored(arm, metric), tuning.of(arm, PRUNED, DIVERGED)
                line = profile(done, key, tuning.sign(metric))
                panel.plot(key.places(done), done["score"], marker, color=colour, alpha=0.35, markersize=2.5)
                panel.fill_between(line["x"], line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
                panel.plot(line["x"], line["score"], color=colour, linestyle=dashes, marker=marker)
                mark_unscored(panel, key.places(others), others["state"], colour, row)
                numbers.append({"arm": arm, "metric": metric, "key": name, **line.to_dict("list")})
        all_keys[name].dress(panel, "x")
    legend(figure, tuning, [PRUNED, DIVERGED], arms=True)
    caption = (
        "Score against each tuned key. Faint: every complete trial. The line goes through the best trial of each"
        " sixth of the range (where one trial is alone there, its other keys show too), shaded from its"
        " lowest to its highest seed."
    )
    return Drawing(figure, caption, f"{OVER_SEEDS}, range of seeds", numbers)


def profile(done: pd.DataFrame, key: Key, sign: int) -> pd.DataFrame:
    """The best of the trials `done` in each stretch of a key's range: x, score, low and high (its seeds)."""
    shares = key.share(key.places(done))
    stretches = shares if key.choices else np.clip(np.floor(shares * STRETCHES), 0, STRETCHES - 1)
    best: Any = (sign * done["score"]).groupby(stretches).idxmax()
    chosen = done.loc[best]
    return chosen.assign(x=key.places(chosen))[["x", "score", "low", "high"]].sort_values("x")


def slices(tuning: Tuning) -> Drawing:
    """Score against each key, one row per arm; bars reach over the seeds of a trial."""
    metric, numbers = tuning.objectives[0], []
    most = max(len(tuning.keys(arm)) for arm in tuning.arms)
    figure, grid = panel_grid(tuning.arms, list(map(str, range(most))), height=1.45, share_x=False)
    for (arm, place), panel in grid.items():
        keys, colour = tuning.keys(arm)[int(place) : int(place) + 1], arm_styles(tuning.arms)[arm].colour
        done, others = tuning.scored(arm, metric), tuning.of(arm, PRUNED, DIVERGED)
        best = done["number"].isin(tuning.best(arm)[:1])
        panel.set(title="", ylabel=f"{arm}\n{metric}" if place == "0" else "")
        panel.set_visible(bool(keys))
        for key in keys:
            x = key.places(done)
            panel.vlines(x, done["low"], done["high"], color=colour, linewidth=0.6, alpha=0.6)
            mark(panel, x, done["score"], COMPLETE, colour)
            mark_unscored(panel, key.places(others), others["state"], colour)
            mark(panel, x[best], done["score"][best], BEST, colour)
            (common,) = tuning.common(arm, key)
            if np.isfinite(common):
                panel.axvline(common, **_COMMON_LINE)
            key.dress(panel, "x")
            panel.set_xlabel(key.name)
            drawn = done[["score", "low", "high"]].to_dict("list")
            numbers.append({"arm": arm, "key": key.name, "x": x.tolist(), **drawn})
    legend(figure, tuning, [COMPLETE, PRUNED, DIVERGED, BEST, COMMON])
    caption = (
        f"`{metric}` of each trial against each tuned key; bars reach from the lowest to the highest seed. Dotted: the"
        " value that the study gives without tuning. Pruned and diverged trials stand along the lower edge."
    )
    return Drawing(figure, caption, OVER_SEEDS, numbers)


_GRID = 200  # points a side, between which nothing is interpolated any more
_LEVELS = 9


def contour(tuning: Tuning) -> Drawing | None:
    """Score over each pair of keys, interpolated between complete trials; None with fewer than two keys."""
    metric = tuning.objectives[0]
    pairs = {arm: list(combinations(tuning.keys(arm), 2)) for arm in tuning.arms}
    most = max(map(len, pairs.values()))
    if not most:
        return None
    figure, grid = panel_grid(list(map(str, range(most))), tuning.arms, height=1.9, share_x=False, share_y=False)
    colours, numbers = score_colours(tuning, metric), []
    for (place, arm), panel in grid.items():
        pair = pairs[arm][int(place) : int(place) + 1]
        panel.set_visible(bool(pair))
        for x, y in pair:
            numbers.append(_draw_contour(panel, tuning, arm, x, y, colours))
    figure.colorbar(colours, ax=list(grid.values()), label=metric, pad=0.01, aspect=25)
    legend(figure, tuning, [COMPLETE, PRUNED, DIVERGED, BEST, COMMON_PAIR])
    caption = (
        f"`{metric}` over pairs of keys, linear between complete trials (dots); nothing is drawn where no three trials"
        " enclose a place."
    )
    return Drawing(figure, caption, OVER_SEEDS, numbers)


def _draw_contour(panel: Axes, tuning: Tuning, arm: str, x: Key, y: Key, colours: ScalarMappable) -> Series:
    """One arm's trials over one pair of keys; the numbers that are drawn."""
    done = tuning.scored(arm, tuning.objectives[0])
    across, up = x.places(done), y.places(done)
    try:  # the surface through the scores, linear in what the sampler draws from
        surface = LinearTriInterpolator(Triangulation(x.share(across), y.share(up)), done["score"].to_numpy())
    except (RuntimeError, ValueError):  # fewer than three trials, or all on one line
        say(panel, "too few complete trials")
    else:
        even, levels = np.linspace(0, 1, _GRID), np.linspace(*colours.get_clim(), _LEVELS)
        z = surface(*np.meshgrid(even, even))
        panel.contourf(x.at(even), y.at(even), z, levels, cmap=COLOURS, norm=colours.norm, extend="both")
    mark(panel, across, up, COMPLETE, "black", markersize=2.8, markeredgecolor="white", markeredgewidth=0.3)
    for state in (PRUNED, DIVERGED):
        ended = tuning.of(arm, state)
        mark(panel, x.places(ended), y.places(ended), state, "0.15")
    mark(panel, tuning.common(arm, x), tuning.common(arm, y), COMMON_PAIR, "white")
    best = done["number"].isin(tuning.best(arm)[:1])
    mark(panel, across[best], up[best], BEST, "white")
    x.dress(panel, "x")
    y.dress(panel, "y")
    panel.set(xlabel=x.name, ylabel=y.name)
    named = {"arm": arm, "x_key": x.name, "y_key": y.name}
    return named | {"x": across.tolist(), "y": up.tolist(), "score": done["score"].tolist()}


def parallel(tuning: Tuning) -> Drawing:
    """One line per trial through its values; complete ones end at their score and have its colour."""
    metric = tuning.objectives[0]
    figure, grid = panel_grid([""], tuning.arms, height=1.8)
    colours, numbers = score_colours(tuning, metric), []
    low, high = colours.get_clim()
    for (_, arm), panel in grid.items():
        keys, scores = tuning.keys(arm), tuning.scored(arm, metric).set_index("number")["score"]
        for trial in tuning.of(arm, COMPLETE, PRUNED, DIVERGED).itertuples():
            places = [key.share(key.drawn([trial.values[key.name]])).item() for key in keys]
            score = scores.get(trial.number)
            if score is None:
                panel.plot(range(len(places)), places, color="0.75", linewidth=0.6, zorder=1)
            else:  # the better, the further in front
                end = (score - low) / (high - low)
                line = {"color": colours.cmap(end), "linewidth": 1.1, "zorder": 2 + end}
                panel.plot(range(len(places) + 1), [*places, end], **line)
            numbers.append({"arm": arm, "trial": trial.number, "state": trial.state, "places": places, "score": score})
        _dress_axes(panel, keys, metric, low, high)
    figure.colorbar(colours, ax=list(grid.values()), label=metric, pad=0.01, aspect=25)
    caption = (
        f"Each line is a trial: its values between the bounds of each key, and its `{metric}`. Trials without a score"
        " (pruned, diverged) are grey and end at their last key."
    )
    return Drawing(figure, caption, OVER_SEEDS, numbers)


def _dress_axes(panel: Axes, keys: list[Key], metric: str, low: float, high: float) -> None:
    """A vertical line per key and one for the score, the bounds written at its ends."""
    ends = [(key.choices[0], key.choices[-1]) if key.choices else (f"{key.low:g}", f"{key.high:g}") for key in keys]
    least, most = (f"{score if abs(score) > (high - low) / 1000 else 0:.3g}" for score in (low, high))
    for place, (bottom, top) in enumerate([*ends, (least, most)]):
        panel.axvline(place, color="black", linewidth=0.6, zorder=1)
        panel.text(place, -0.03, bottom, ha="center", va="top", fontsize=7)
        panel.text(place, 1.03, top, ha="center", va="bottom", fontsize=7)
    names = [*(key.name for key in keys), metric]
    panel.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    panel.tick_params(axis="x", length=0, pad=13)
    panel.set(yticks=[], ylim=(0, 1), xlim=(-0.35, len(keys) + 0.35))
    panel.grid(visible=False)
    panel.spines[:].set_visible(False)
    panel.set_title(panel.get_title(), pad=14)


def pareto(tuning: Tuning) -> Drawing | None:
    """Every other objective against the first, the fronts as lines; None with one objective."""
    first, *others = tuning.objectives
    if not others:
        return None
    figure, grid = panel_grid(others, [""], height=2.2)
    figure.set_figwidth(max(figure.get_figwidth(), COLUMN_WIDTH))
    numbers: list[Series] = []
    for (other, _), panel in grid.items():
        for arm, (colour, line, marker) in arm_styles(tuning.arms).items():
            scores, front = tuning.scored(arm, first).set_index("number"), tuning.best(arm)
            points = scores[["score"]].assign(other=tuning.scored(arm, other).set_index("number")["score"]).dropna()
            on_front = points[points.index.isin(front)].sort_values("score")
            chosen = points[points.index.isin(front[:1])]
            panel.plot(points["score"], points["other"], marker, color=colour, alpha=0.4, markersize=3)
            panel.plot(on_front["score"], on_front["other"], color=colour, linestyle=line, marker=marker)
            mark(panel, chosen["score"], chosen["other"], BEST, colour)
            numbers.append(
                {"arm": arm, "x_metric": first, "y_metric": other, "trial": points.index.tolist()}
                | {"x": points["score"].tolist(), "y": points["other"].tolist(), "front": front}
            )
        labels = [f"{metric} ({'more' if tuning.sign(metric) > 0 else 'less'} is better)" for metric in (first, other)]
        panel.set(xlabel=labels[0], ylabel=labels[1])
    legend(figure, tuning, [BEST], arms=True)
    caption = (
        "The objectives of each complete trial; lines join an arm's Pareto front, the trials that no other trial of"
        " the arm beats in every objective. The star is the one whose values were taken."
    )
    return Drawing(figure, caption, OVER_SEEDS, numbers)


# In the order of a report. A figure's name stands behind the study's in its file's.
FIGURES: dict[str, Callable[[Tuning], Drawing | None]] = {
    "trial_history": history,
    "trial_curves": intermediate,
    "key_importance": importance,
    "key_sensitivity": sensitivity,
    "key_slices": slices,
    "key_contours": contour,
    "trial_paths": parallel,
    "trial_front": pareto,
}


def draw(tuning: Tuning, figure: str) -> tuple[Figure, Manifest] | None:
    """Draw one figure; None where the tuning has too few keys or objectives for it.

    In its manifest `diverged` and `failed` name trials.
    """
    with paper_style():
        drawing = FIGURES[figure](tuning)
    if drawing is None:
        return None
    commit, trials = tuning.document["commit"], list(tuning.trials.itertuples())
    named = {
        state: [f"{trial.arm} trial {trial.number}" for trial in trials if trial.state == state]
        for state in (DIVERGED, FAILED)
    }
    return drawing.figure, Manifest(
        figure=figure,
        study=tuning.study,
        caption=drawing.caption,
        alt=drawing.caption,
        statistic=drawing.statistic,
        seeds=list(tuning.document["seeds"]),
        commits=[commit] if commit else [],
        results_versions=[tuning.document["results_version"]],
        locks=[],  # a tuning's document does not say
        signatures=sorted({signature for trial in trials for signature in trial.signatures.values()}),
        stopped=[],
        missing=[],
        **named,
        numbers=drawing.numbers,
    )
