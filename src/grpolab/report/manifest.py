"""What stands behind a figure: which runs, which statistic, and the numbers that are drawn."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from grpolab.paths import write_text_atomic
from grpolab.report.load import Study
from grpolab.vocabulary import DIVERGED, FAILED, STOPPED

# One drawn series: labels (row, facet, arm, ...) and lists of equal length (x, mean, low, high, n); `seeds` maps a
# seed to its list.
Series = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """Everything needed to draw the figure again and to check it.

    `alt` says what the picture shows to those who cannot see it; `numbers` are what it shows.
    """

    figure: str
    study: str
    caption: str
    alt: str
    statistic: str
    seeds: list[int]
    commits: list[str]
    results_versions: list[int]
    locks: list[str]
    signatures: list[str]
    diverged: list[str]
    stopped: list[str]
    missing: list[str]
    failed: list[str]
    numbers: list[Series]

    def write(self, path: Path) -> Path:
        """As JSON with five digits a number."""
        write_text_atomic(path, json.dumps(_rounded(asdict(self)), allow_nan=False, ensure_ascii=False) + "\n")
        return path


def manifest(study: Study, figure: str, caption: str, statistic: str, numbers: list[Series], alt: str = "") -> Manifest:
    """The manifest of a figure that shows `study`; the alt text is the caption with the arms, unless it is given."""
    done, absent = study.done, study.absent
    failed = absent["outcome"] == FAILED
    return Manifest(
        figure=figure,
        study=study.name,
        caption=caption,
        alt=alt or " ".join([caption, *_arms(study)]),
        statistic=statistic,
        seeds=sorted(int(seed) for seed in done["seed"].unique()),
        commits=_distinct(done, "commit"),
        results_versions=_distinct(done, "results_version"),
        locks=_distinct(done, "lock_sha256"),
        signatures=sorted(done["signature"].unique()),
        diverged=cell_names(done[done["outcome"] == DIVERGED]),
        stopped=cell_names(done[done["outcome"] == STOPPED]),
        missing=cell_names(absent[~failed]),
        failed=cell_names(absent[failed]),
        numbers=numbers,
    )


def cell_names(cells: pd.DataFrame) -> list[str]:
    """`variant seed 2` of each cell."""
    return [f"{cell.variant} seed {cell.seed}" for cell in cells.itertuples()]


def _arms(study: Study) -> list[str]:
    return [] if study.cells.empty else [f"Arms of {study.name}: {', '.join(study.arms)}."]


def _distinct(cells: pd.DataFrame, column: str) -> list:
    return sorted(cells[column].dropna().unique().tolist()) if column in cells else []


def _rounded(value: Any) -> Any:
    """Strict JSON: five digits, null for NaN, a string for an infinity."""
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    return value
