"""A diagnosis in words and as JSON, pictures of the ratio, and the doctor's section of a report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grpolab.doctor.evidence import USUAL_RANGE, Evidence
from grpolab.doctor.examine import CAUSES, Diagnosis, examine
from grpolab.doctor.read import PLANTED, TABLES
from grpolab.report.figures.panels import (
    draw_seeds,
    label_x,
    legend_arms,
    lines_by_arm,
    note_gaps,
    panel_grid,
    pivot_seeds,
    start_at_zero,
)
from grpolab.report.load import Study
from grpolab.report.style import arm_styles
from grpolab.report.text import count, markdown_table

WIDTH = 110


def text(diagnosis: Diagnosis) -> str:
    """Several lines: the causes with evidence and advice, what is normal, what could not be looked at."""
    return "\n".join(_lines(diagnosis))


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"run {diagnosis.run}: {diagnosis.state}"
    if diagnosis.fall:
        yield from _filled("", f"{diagnosis.fall}.")
    for place, finding in enumerate(diagnosis.findings, start=1):
        yield from ("", f"{place}. {finding.cause} ({finding.confidence})")
        yield from _filled("   ", CAUSES[finding.cause].says)
        for sentence in finding.evidence:
            yield from _filled("   - ", sentence)
        if finding.instead:
            yield from _filled("   ", f"Looks the same in this log: {', '.join(finding.instead)}.")
        yield from _filled("   Try: ", CAUSES[finding.cause].remedy)
    if not diagnosis.findings:
        yield from ("", *_filled("", _without_cause(diagnosis)))
    for note in diagnosis.notes:
        yield from ("", *_filled("normal: ", f"{note.says} Here: {note.evidence}."))
    if diagnosis.unknown:
        yield from ("", "not looked at:")
        for sentence in diagnosis.unknown:
            yield from _filled("   - ", sentence)


def _filled(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _without_cause(diagnosis: Diagnosis) -> str:
    """What it means that no rule fits."""
    if diagnosis.fall:
        return "No cause found: the fall is real, and nothing that the doctor knows explains it."
    if diagnosis.unknown:
        return "No cause found in what could be looked at. What could not stands below, and may hide one."
    return "No cause found: every number that the doctor knows is there, and none is known to be wrong."


def record(diagnosis: Diagnosis) -> dict[str, Any]:
    """The same as plain values, for JSON."""
    return {
        "run": diagnosis.run,
        "state": diagnosis.state,
        "fall": diagnosis.fall,
        "causes": [
            {
                "cause": finding.cause,
                "confidence": finding.confidence,
                "says": CAUSES[finding.cause].says,
                "evidence": list(finding.evidence),
                "instead": list(finding.instead),
                "try": CAUSES[finding.cause].remedy,
            }
            for finding in diagnosis.findings
        ],
        "normal": [{"note": note.name, "says": note.says, "evidence": note.evidence} for note in diagnosis.notes],
        "unknown": list(diagnosis.unknown),
    }


# ----------------------------------------------------------------------------------------------------------------------
# The ratio within a batch, and how far it reaches over a run: pictures of the notebook `why_is_my_ratio_one`.


def passes(study: Study) -> Figure:
    """Clip fraction by pass over the batch: 0 on the first, by construction."""
    figure, grid = panel_grid(study.facets, ["clipped tokens by pass over the batch"], share_x=False)
    styles = arm_styles(study.arms)
    for facet, panel in zip(study.facets, grid.values(), strict=True):
        for arm, updates in study.by_arm("updates", facet):
            draw_seeds(panel, pivot_seeds(updates, "iteration", "clip/active"), styles[arm], share=True)
        panel.yaxis.set_major_formatter(PercentFormatter(1))
    start_at_zero(grid)
    label_x(grid, "pass over the batch")
    legend_arms(figure, study, study.arms)
    return figure


def reach(study: Study) -> Figure:
    """Largest ratio - 1 on updates after a batch's first, over the run, and the usual clip range."""
    later = study.updates[(study.updates["iteration"] > 0) | (study.updates["minibatch"] > 0)]
    shown = replace(study, updates=later.assign(reach=later["ratio/token_max"] - 1))
    figure, grid, _ = lines_by_arm(shown, {"largest ratio - 1": ("updates", "reach")})
    for panel in grid.values():
        panel.set_yscale("symlog", linthresh=1e-3)
        panel.axhline(USUAL_RANGE["token"], color="0.4", linewidth=0.7, linestyle="--")
    note_gaps(figure, shown)
    return figure


# ----------------------------------------------------------------------------------------------------------------------
# The report's section about runs in which something is wrong.


def section(parts: Sequence[Study]) -> str:
    """One row per run with a cause, the surest cause only; the others are counted. Empty where nothing was run."""
    cells = {cell["signature"]: (part, cell) for part in parts for cell in part.done.to_dict("records")}
    if not cells:
        return ""
    journals = {  # study -> table -> signature
        part.name: {name: dict(iter(getattr(part, name).groupby("signature"))) for name in TABLES.values()}
        for part in parts
    }
    rows = []
    for part, cell in cells.values():  # a run that several studies share is examined once
        findings = examine(_evidence(cell, journals[part.name])).findings
        if findings:
            rows.append(
                {
                    "run": f"{cell['variant']}, seed {cell['seed']} ({cell['signature']})",
                    "cause": findings[0].cause.replace("_", " "),
                    "confidence": findings[0].confidence,
                    "evidence": "; ".join(findings[0].evidence),
                }
            )
    head = (
        f"## Diagnosis\n\nFrom the journals alone (`grpolab diagnose RUN` looks at completions and weights too):"
        f" {count(len(cells) - len(rows), 'run')} of {len(cells)} without a known cause of trouble."
    )
    return f"{head}\n\n{markdown_table(pd.DataFrame(rows))}" if rows else head


def _evidence(cell: dict[str, Any], journals: dict[str, dict[Any, pd.DataFrame]]) -> Evidence:
    """Of one cell, from its study's tables, which a fresh clone has too."""
    tables = {
        name: runs.get(cell["signature"], pd.DataFrame()).dropna(axis=1, how="all") for name, runs in journals.items()
    }
    given = {key.removeprefix("setting/"): value for key, value in cell.items() if key.startswith("setting/")}
    settings = {key: value for key, value in given.items() if pd.notna(value) and key not in PLANTED}
    if pd.notna(cell.get("evaluation_items")):
        settings["evaluation.items"] = cell["evaluation_items"]
    return Evidence(run=cell["signature"], state=cell["outcome"], settings=settings, **tables)
