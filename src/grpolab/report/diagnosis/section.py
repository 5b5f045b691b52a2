"""The report's section about runs in which something is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from grpolab.report.diagnosis.doctor import examine
from grpolab.report.diagnosis.evidence import Evidence
from grpolab.report.diagnosis.finding import Diagnosis
from grpolab.report.diagnosis.read import PLANTED
from grpolab.report.load import Study
from grpolab.report.text import count, markdown_table


def section(parts: Sequence[Study]) -> str:
    """One row per run with a cause, the surest cause only; the others are counted. Empty where nothing was run."""
    cells = {cell["signature"]: (part, cell) for part in parts for cell in part.done.to_dict("records")}
    if not cells:
        return ""
    journals = {part.name: _journals(part) for part in parts}
    found = [(cell, examine(_evidence(cell, journals[part.name]))) for part, cell in cells.values()]
    rows = [_row(cell, diagnosis) for cell, diagnosis in found if diagnosis.findings]
    head = (
        f"## Diagnosis\n\nFrom the journals alone (`grpolab diagnose RUN` looks at completions and weights too):"
        f" {count(len(cells) - len(rows), 'run')} of {len(cells)} without a known cause of trouble."
    )
    return f"{head}\n\n{markdown_table(pd.DataFrame(rows))}" if rows else head


def _journals(part: Study) -> dict[str, dict[Any, pd.DataFrame]]:
    """Each table by signature."""
    return {
        name: dict(iter(getattr(part, name).groupby("signature"))) for name in ("updates", "rollouts", "evaluations")
    }


def _evidence(cell: dict[str, Any], journals: dict[str, dict[Any, pd.DataFrame]]) -> Evidence:
    """A cell's tables, as they are in a fresh clone too; a run that several studies share is examined once."""
    tables = {
        name: runs.get(cell["signature"], pd.DataFrame()).dropna(axis=1, how="all") for name, runs in journals.items()
    }
    settings = {
        key.removeprefix("setting/"): value
        for key, value in cell.items()
        if key.startswith("setting/") and pd.notna(value) and key.removeprefix("setting/") not in PLANTED
    }
    if pd.notna(cell.get("evaluation_items")):
        settings["evaluation.items"] = cell["evaluation_items"]
    return Evidence(run=cell["signature"], state=cell["outcome"], settings=settings, **tables)


def _row(cell: dict[str, Any], diagnosis: Diagnosis) -> dict[str, str]:
    first = diagnosis.findings[0]
    return {
        "run": f"{cell['variant']}, seed {cell['seed']} ({cell['signature']})",
        "cause": first.cause.replace("_", " "),
        "confidence": first.confidence,
        "evidence": "; ".join(first.evidence),
    }
