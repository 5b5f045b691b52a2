"""Run folders as tables: every journal is read once, however many studies share the run.

Metrics are float32 here and in the committed reference, so a figure that is redrawn from it has the numbers, and the
bytes, of the figure that was drawn from the run folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from grpolab.identity import in_words
from grpolab.paths import Results
from grpolab.report.journals import columns, join, read_journal
from grpolab.vocabulary import POSITIONS, RESULTS

TABLES = ("updates", "rollouts", "evaluations", "histograms", "timings")
# Nullable, so that beside missing cells version 1 does not become 1.0.
_COUNTS = ("rollout_steps", "optimizer_steps", "threads", "results_version", "evaluation_items")


@dataclass(frozen=True)
class Runs:
    """Tables of many runs, each with a column `signature`.

    `outcomes` has one row per run that has an outcome, with what its provenance says; the other tables hold the journal
    (and timings) of runs whose outcome is a result, one row per record.
    """

    outcomes: pd.DataFrame
    updates: pd.DataFrame
    rollouts: pd.DataFrame
    evaluations: pd.DataFrame
    histograms: pd.DataFrame
    timings: pd.DataFrame


def read_runs(results: Results, signatures: Iterable[str]) -> Runs:
    """The runs among `signatures` whose outcome is written. A run without one is not done, and is not read."""
    outcomes: list[dict[str, Any]] = []
    journals: dict[str, pa.Table] = {}
    for signature in signatures:
        folder = results.run(signature)
        if not (folder / "outcome.json").is_file():
            continue
        outcomes.append({"signature": signature, **_outcome(folder)})
        if outcomes[-1]["outcome"] in RESULTS:
            journals[signature] = read_journal(folder)
    return Runs(
        outcomes=_outcomes(outcomes),
        **{table: _frame(join(journals, table.removesuffix("s"))) for table in TABLES},
    )


def _outcomes(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=None if rows else ["signature", "outcome"])
    return frame.astype({column: "Int64" for column in _COUNTS if column in frame})


def _outcome(folder: Path) -> dict[str, Any]:
    """The flat part of outcome.json, and of provenance.json what a report says about a run."""
    outcome = json.loads((folder / "outcome.json").read_text())
    provenance_file = folder / "provenance.json"  # a run that failed before its first step has none
    provenance = json.loads(provenance_file.read_text()) if provenance_file.exists() else {}
    warm_start, hardware = provenance.get("warm_start") or {}, provenance.get("hardware") or {}
    return {
        **{key: outcome.get(key) for key in ("outcome", "reason", "rollout_steps", "optimizer_steps", "seconds")},
        **{key: outcome.get(key) for key in ("journal_sha256", "policy_sha256")},
        **{key: provenance.get(key) for key in ("commit", "dirty", "lock_sha256", "python", "threads")},
        "results_version": provenance.get("results_version"),
        "hardware": json.dumps(hardware, sort_keys=True),
        **({"content": in_words(content)} if (content := provenance.get("content")) else {}),
        "warm_start": warm_start.get("signature"),
        "warm_start_accuracy": warm_start.get("accuracy"),
        "evaluation_items": (provenance.get("dataset") or {}).get("evaluation_items"),
    }


def table(records: list[dict[str, Any]]) -> pd.DataFrame:
    """Records of one kind as columns: the strings "inf", "-inf" and "nan" become numbers, an absent metric NaN."""
    return _frame(columns(records))


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas() if table.num_columns else pd.DataFrame(columns=["signature", *POSITIONS])
