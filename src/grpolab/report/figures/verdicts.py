"""The picture below the screen that answers: every tested difference with the interval of its decision."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from grpolab.report.claims import Claim
from grpolab.report.load import StudyRuns
from grpolab.report.registered import CONFIRMATORY
from grpolab.report.statistics.looks import INCONCLUSIVE, NEGLIGIBLE, OPPOSITE, SUPPORTED
from grpolab.report.style import QUIET, TEXT_WIDTH, Manifest, manifest, paper_style, save

FIGURE, FIGURE_NAME = "verdicts", Path("figures/verdicts.png")
COLOURS = {SUPPORTED: "#0072b2", OPPOSITE: "#d55e00", NEGLIGIBLE: "#009e73", INCONCLUSIVE: "0.6"}
REACH = 12.0  # margins; an interval that goes further ends in an arrow
KEPT = ("study", "id", "verdict", "label", "effect", "low", "high", "n")


def write_figure(study: StudyRuns, claims: Sequence[Claim], output: Path) -> tuple[Manifest, Path] | None:
    """Write the forest plot below `output` as PNG, PDF and manifest; None where no claim has a margin."""
    shown = [claim for claim in claims if claim.is_finding and np.isfinite([claim.effect, claim.low, claim.high]).all()]
    if not shown:
        return None
    caption = (
        "Every tested difference of means in units of its margin (grey: inside it), with the interval of its decision:"
        " outside of 0 where a direction was decided, inside the grey where the difference is negligible. Filled:"
        " confirmatory; hollow: exploratory. Logarithmic beyond 2 margins; arrows leave the picture. Counts, trends and"
        " metrics without a margin are in the table."
    )
    numbers = [{key: getattr(claim, key) for key in KEPT} for claim in shown]
    alt = f"Forest plot of {len(shown)} differences in units of their margins."
    record = manifest(study, FIGURE, caption, "mean over seeds, interval of the decision", numbers, alt)
    save(_draw(shown), (output / FIGURE_NAME).with_suffix(""))
    record.write((output / FIGURE_NAME).with_suffix(".json"))
    return record, FIGURE_NAME


def _draw(shown: Sequence[Claim]) -> Figure:
    """Draw a row for each claim below the name of its study."""
    rows = len(shown) + len({claim.study for claim in shown})
    with paper_style():
        figure = Figure(figsize=(TEXT_WIDTH, 0.8 + 0.17 * rows), layout="constrained")
        panel = figure.subplots()
        panel.axvspan(-1, 1, color="0.93", linewidth=0)
        panel.axvline(0, color=QUIET, linewidth=0.6)
        place, ticks = 0.0, list[tuple[float, str]]()
        for name, group in groupby(shown, key=lambda claim: claim.study):
            ticks.append((place, name.replace("_", " ")))
            panel.axhline(place, color="0.9", linewidth=5, zorder=0)
            for claim in group:
                place += 1
                colour = COLOURS[claim.verdict]
                face = colour if claim.label == CONFIRMATORY else "white"
                low, effect, high = np.clip([claim.low, claim.effect, claim.high], -REACH, REACH)
                panel.hlines(place, low, high, color=colour, linewidth=1.6)
                panel.plot(effect, place, "o", color=colour, markerfacecolor=face, markersize=4)
                for leaves, end, arrow in ((claim.low < -REACH, -REACH, "<"), (claim.high > REACH, REACH, ">")):
                    if leaves:
                        panel.plot(end, place, arrow, color=colour, markersize=3.5, clip_on=False)
                ticks.append((place, f"{claim.id}  {claim.contrast}" + (f" ({claim.where})" if claim.where else "")))
                look: dict[str, Any] = {"va": "center", "fontsize": 6.5, "color": colour}
                panel.annotate(claim.verdict, (1.01, place), xycoords=("axes fraction", "data"), **look)
            place += 1
        panel.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
        panel.set_ylim(place - 0.4, -0.8)
        panel.set_xscale("symlog", linthresh=2)
        panel.set_xticks([-10, -5, -2, -1, 0, 1, 2, 5, 10], ["-10", "-5", "-2", "-1", "0", "1", "2", "5", "10"])
        panel.minorticks_off()
        panel.grid(visible=False, axis="y")
        panel.set_xlabel("difference in margins (grey: too small to matter)")
    return figure
