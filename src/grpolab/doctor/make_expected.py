"""Make `expected.csv`, what healthy runs show, of the committed outcome (results/reference/) and of papers.

    .venv/bin/python -m grpolab.doctor.make_expected > src/grpolab/doctor/expected.csv

A row is an objective with its range and reuse; its numbers are the 5% and 95% quantiles over runs of one number a run.
Learning rate and task are no keys: a row holds those of all its healthy runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from grpolab.doctor.expected import ANY, KEYS, MEASURES
from grpolab.paths import Results
from grpolab.quantities import Thresholds
from grpolab.report.journals import mean, tail_length
from grpolab.report.plans import read_plan
from grpolab.vocabulary import COMPLETED

BAND = (0.05, 0.95)
FEWEST = 10  # runs of a row: of fewer, a 5% quantile says nothing
# What papers state: the share of clipped tokens. `figure`: others read it off a figure.
PAPERS = [
    ("sequence", "clipped", 3e-4, 4e-4, 4, 0.15, "GSPO (2507.18071, figure 2)"),
    ("token", "clipped", 0.2, 0.27, 4, 0.0013, "GSPO's GRPO baseline (2507.18071, figure 2)"),
    ("token", "clipped", 0.2, 0.2, np.nan, 0.003, "base models in 2508.08221"),
]


def make_table(results: Results) -> pd.DataFrame:
    """Return the rows of our runs, then those of papers."""
    runs = _healthy_runs(results)
    by_objective = [(dict(zip(KEYS, key, strict=True)), of) for key, of in runs.groupby([*KEYS])]
    anything = dict.fromkeys(KEYS, np.nan) | {"level": ANY, "kernel": ANY}
    rows = [keys | _bands(of) for keys, of in by_objective if len(of) >= FEWEST]
    rows.append(anything | _bands(runs) | {"clip_low": np.nan, "clip_high": np.nan})
    papers = [
        {**dict(zip(KEYS, keys, strict=False)), "clip_low": clip, "clip_high": clip, "source": source}
        for *keys, clip, source in PAPERS
    ]
    return pd.DataFrame([*rows, *papers])


def _bands(runs: pd.DataFrame) -> dict[str, float]:
    numbers = {
        f"{measure}_{end}": float(runs[measure].quantile(at))
        for measure in MEASURES
        for end, at in zip(("low", "high"), BAND, strict=True)
    }
    return numbers | {"runs": len(runs), "tasks": runs["task"].nunique()}


def _healthy_runs(results: Results) -> pd.DataFrame:
    """Return the runs that completed, learnt and were not lost, without a KL penalty, and with a reward that means it.

    `clip`: the mean over all updates of the share of tokens whose gradient the clip took (CISPO: whose weight it cut);
    `entropy` and `length`: last tenth over first; `kl`: to the start, at the end, exact over the vocabulary.
    """
    cells = {
        cell["signature"]: cell["settings"] | {"reward": cell["levels"].get("reward")}
        for file in sorted(results.reference.glob("plans/*.json"))
        for cell in read_plan(file)["cells"]
    }
    settings = pd.DataFrame.from_dict(cells, orient="index").rename_axis("signature").reset_index()
    tables = {name: pd.read_parquet(results.reference / f"{name}.parquet") for name in ("numbers", "outcomes")}
    lengths = pd.read_parquet(results.reference / "rollouts.parquet", columns=["signature", "length/mean"])
    runs = settings.merge(tables["numbers"].drop_duplicates("signature"), on="signature")
    runs = runs.merge(tables["outcomes"][["signature", "outcome"]], on="signature")
    ill = runs[["lost", "below_start"]].astype(bool).any(axis=1) | (runs["gain"] <= 0)
    runs = runs[~ill & (runs["outcome"] == COMPLETED) & (runs["beta"] == 0) & (runs["reward"] != "random")]
    return pd.DataFrame(
        {
            **{"level": runs["importance_sampling_level"], "kernel": runs["kernel"], "low": runs["epsilon"]},
            **{"high": runs["epsilon_high"].astype(float), "staleness": runs["staleness"], "task": runs["task"]},
            "updates": runs["num_iterations"] * runs["num_minibatches"],
            "clip": runs["mean clip/active"].where(runs["kernel"] != "cispo", runs["mean clip/capped"]),
            **{"entropy": runs["entropy_ratio"], "kl": runs["kl_ref"]},
            "length": runs["signature"].map(lengths.groupby("signature")["length/mean"].apply(_end_over_start)),
        }
    )


def _end_over_start(values: pd.Series) -> float:
    n = tail_length(len(values), Thresholds.tail)
    return mean(values.to_numpy()[-n:]) / mean(values.to_numpy()[:n])


if __name__ == "__main__":
    make_table(Results(Path("results"))).to_csv(sys.stdout, index=False, float_format="%.4g")
