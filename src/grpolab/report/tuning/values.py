"""Each arm at common and at tuned values, on seeds that chose neither: what tuning changes in the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from grpolab.report.figures.panels import MEAN, note_gaps, panel_grid
from grpolab.report.load import StudyRuns
from grpolab.report.measures import at, mean_interval, measure
from grpolab.report.statistics.intervals import Interval
from grpolab.report.statistics.tests import Difference, holm, paired_difference
from grpolab.report.style import QUIET, ArmStyle, Manifest, arm_styles, manifest
from grpolab.report.tables import Table
from grpolab.report.text import NONE, OF_MEANS, estimate, number, probability, signed

COMMON, TUNED = "common", "tuned"


@dataclass(frozen=True, eq=False)
class Row:
    """One arm: its score at common and at tuned values, the paired differences, and its lead over the baseline.

    `where`: levels of the remaining factors, and the tuned one where there are several.
    """

    where: str
    arm: str
    scores: dict[str, pd.Series]  # {COMMON: by seed, TUNED: by seed}
    means: dict[str, Interval]
    gain: Difference  # tuned - common
    lead: dict[str, Difference]  # arm - baseline
    overrides: str


def compare(study: StudyRuns) -> list[Row]:
    """A row for each arm, in every place where the study has common and tuned values and differs in nothing else.

    Common is the first level of the factor whose level names the tuning that names none itself.
    """
    final, compared = measure(study, "final_score"), study.plan["compare"]
    rows: list[Row] = []
    for tuning in study.plan.get("tuned", []):
        factor = tuning["factor"]
        if factor in (None, compared):
            continue
        tuned = [other["level"] for other in study.plan["tuned"] if other["factor"] == factor]
        common = next((level for level in study.plan["factors"][factor] if level not in tuned), None)
        rest = [f"factor/{name}" for name in study.plan["factors"] if name not in (factor, compared)]
        cells = study.cells[["facet", f"factor/{factor}", *rest]].drop_duplicates()
        facets = {(level, " · ".join(levels)): facet for facet, level, *levels in cells.itertuples(index=False)}
        for level, where in facets:
            if level == tuning["level"] and (common, where) in facets:
                pair = {COMMON: facets[common, where], TUNED: facets[level, where]}
                place = " · ".join(filter(None, [where, level if len(tuned) > 1 else ""]))
                scores = {arm: {end: at(final, facet, arm) for end, facet in pair.items()} for arm in study.arms}
                rows += [
                    Row(
                        where=place,
                        arm=arm,
                        scores=ends,
                        means={end: mean_interval(study, "final_score", values) for end, values in ends.items()},
                        gain=paired_difference(ends[TUNED], ends[COMMON]),
                        lead={end: paired_difference(ends[end], scores[study.baseline][end]) for end in ends},
                        overrides=", ".join(tuning["arms"].get(arm, {}).get("overrides", [])),
                    )
                    for arm, ends in scores.items()
                ]
    return rows


def table(study: StudyRuns, rows: list[Row]) -> Table:
    """Scores at both values, their paired difference (Holm over the arms), and each arm's lead over the baseline."""
    numbers, shown = [], []
    for row, p in zip(rows, holm([row.gain.p for row in rows]), strict=True):
        numbers.append(
            {"where": row.where, "arm": row.arm, "tuned_values": row.overrides}
            | _flat("score", row.means)
            | {"gain": row.gain.effect, "gain_low": row.gain.low, "gain_high": row.gain.high, "pairs": row.gain.n}
            | {"p": row.gain.p, "p_holm": p}
            | _flat("lead", row.lead)
        )
        shown.append(
            {"where": row.where, "arm": row.arm, "tuned values": row.overrides, "seeds": row.gain.n}
            | {end: estimate(*mean[:3]) for end, mean in row.means.items()}
            | {"tuned minus common": estimate(*row.gain[:3], signed), "Holm p": probability(p)}
            | {
                f"minus {study.baseline}, {end}": NONE if row.arm == study.baseline else estimate(*lead[:3], signed)
                for end, lead in row.lead.items()
            }
        )
    caption = (
        f"{study.name}: final score (`{study.metric}`) of each arm at common and at tuned values, on seeds that chose"
        f" neither; differences are paired by seed; mean [95% interval: {OF_MEANS}]."
    )
    hidden = [] if any(row.where for row in rows) else ["where"]
    return Table("tuned_values", caption, pd.DataFrame(numbers), pd.DataFrame(shown).drop(columns=hidden))


def _flat(name: str, estimates: Mapping[str, Interval | Difference]) -> dict[str, float]:
    """{name_common, name_common_low, ...}."""
    return {
        f"{name}_{end}{suffix}": value
        for end, interval in estimates.items()
        for suffix, value in zip(("", "_low", "_high"), interval[:3], strict=True)
    }


def sentences(rows: Sequence[Row]) -> Iterator[str]:
    """What tuning changes: each arm's gain, and whether the order of the arms is the same."""
    for where in dict.fromkeys(row.where for row in rows):
        here = [row for row in rows if row.where == where and row.gain.n]
        if not here:
            continue
        place = f" in {where}" if where else ""
        gains = [f"`{row.arm}` {estimate(*row.gain[:3], signed)}" for row in here]
        yield f"Tuned minus common values{place}, paired by seed: {'; '.join(gains)}."
        ranked = {end: sorted(here, key=lambda row: -row.means[end].mean) for end in (COMMON, TUNED)}
        means = {
            end: ", ".join(f"`{row.arm}` {number(row.means[end].mean)}" for row in best_first)
            for end, best_first in ranked.items()
        }
        same = "the same order" if ranked[COMMON] == ranked[TUNED] else "another order"
        yield f"Order of the means{place}: {means[COMMON]} at common values; {means[TUNED]} at tuned ones ({same})."


def draw(study: StudyRuns, rows: list[Row]) -> tuple[Figure, Manifest]:
    """Score at both values, tuned minus common, and the lead over the baseline at both, one line per arm."""
    places = list(dict.fromkeys(row.where for row in rows))
    titles = ["final score", "tuned minus common", f"minus {study.baseline}"]
    figure, grid = panel_grid(places, titles, height=0.45 + 0.32 * len(study.arms), share_x=False)
    styles, numbers = arm_styles(study.arms), []
    for place in places:
        score, gain, lead = (grid[place, title] for title in titles)
        here = [row for row in rows if row.where == place]
        for y, row in enumerate(here):
            for end in (COMMON, TUNED):
                _draw_estimate(score, y, end, row.means[end], row.scores[end], styles[row.arm])
                if row.arm != study.baseline:
                    _draw_estimate(lead, y, end, row.lead[end], None, styles[row.arm])
            _draw_estimate(gain, y, "", row.gain, row.scores[TUNED] - row.scores[COMMON], styles[row.arm])
            both = pd.DataFrame(row.scores)
            numbers.append(
                {"where": row.where, "arm": row.arm, "gain": list(row.gain[:3]), "n": row.gain.n}
                | {f"score_{end}": list(mean[:3]) for end, mean in row.means.items()}
                | {f"lead_{end}": list(difference[:3]) for end, difference in row.lead.items()}
                | {"seeds": dict(zip(map(int, both.index), both.to_numpy().tolist(), strict=True))}
            )
        for panel in (gain, lead):
            panel.axvline(0, color=QUIET, linewidth=0.8)
        score.set_yticks(range(len(here)), [row.arm for row in here])
        score.set_ylim(len(here) - 0.5, -0.5)
    ends = [Line2D([], [], color=QUIET, marker="o", markerfacecolor="white", label=f"{COMMON} values")]
    ends += [Line2D([], [], color=QUIET, marker="o", label=f"{TUNED} values")]
    figure.legend(handles=ends, loc="outside lower center", ncols=2)
    note_gaps(figure, study)
    caption = (
        "Final score of each arm at common and at tuned values, on seeds that chose neither; what tuning gives each"
        f" arm; and each arm's difference to `{study.baseline}`, both at common or both at tuned values."
    )
    statistic = f"{MEAN}, differences paired by seed; dots are seeds"
    return figure, manifest(study, "tuned_values", caption, statistic, numbers)


_OFFSET = {COMMON: -0.16, TUNED: 0.16, "": 0.0}


def _draw_estimate(
    panel: Axes, y: int, end: str, interval: Interval | Difference, seeds: pd.Series | None, style: ArmStyle
) -> None:
    """A mean with its interval; hollow at common values."""
    height = y + _OFFSET[end]
    if seeds is not None:
        panel.plot(seeds, np.full(len(seeds), height - 0.1), ".", color=style.colour, alpha=0.4, markersize=3)
    panel.hlines(height, interval.low, interval.high, color=style.colour, linewidth=1)
    face = "white" if end == COMMON else style.colour
    panel.plot(interval[0], height, style.marker, color=style.colour, markerfacecolor=face, markersize=4)
