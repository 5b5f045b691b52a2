"""Which tokens were clipped, by name: counted in the completions that runs keep under samples/."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from grpolab.paths import Results

COLUMNS = ["signature", "token", "tokens", "low", "high"]


def count_clipped(results: Results, signatures: Iterable[str]) -> pd.DataFrame:
    """For each run and each token that was clipped in its samples: its occurrences, and how many were clipped.

    Columns: COLUMNS. `low` and `high` are clipped below and above, on the last pass over the batch. Runs without
    samples have no rows.
    """
    counted = [_count_run(results, signature) for signature in signatures]
    return pd.concat([pd.DataFrame(columns=COLUMNS), *counted], ignore_index=True).astype(
        dict.fromkeys(COLUMNS[2:], "int64")
    )


def _count_run(results: Results, signature: str) -> pd.DataFrame:
    files = sorted((results.run(signature) / "samples").glob("*.parquet"))
    if not files:
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.concat([pd.read_parquet(file, columns=["token", "clipped"]) for file in files])
    marks = pd.DataFrame({"tokens": 1, "low": rows["clipped"] == "low", "high": rows["clipped"] == "high"})
    counts = marks.groupby(rows["token"].to_numpy()).sum().rename_axis("token").reset_index()
    return counts[counts["low"] + counts["high"] > 0].assign(signature=signature)[COLUMNS]
