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
from grpolab.report import load
from grpolab.report.measures import run_means, stability_table
from grpolab.report.plans import outcome_at, read_plan
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
    committed = outcome_at(results.reference)
    plans = [plan for file in sorted(results.reference.glob("plans/*.json")) if (plan := read_plan(file))["cells"]]
    every = load.read_all(committed, dict.fromkeys(cell["signature"] for plan in plans for cell in plan["cells"]))
    runs = pd.concat([_numbers(load.study_of(committed, plan, every)) for plan in plans]).drop_duplicates("signature")
    ill = runs[["lost", "below_start"]].astype(bool).any(axis=1) | (runs["gain"] <= 0)
    setting = runs[~ill & (runs["outcome"] == COMPLETED) & (runs["setting/beta"] == 0)]
    runs = setting[setting["factor/reward"] != "random"].rename(columns=lambda name: name.removeprefix("setting/"))
    return pd.DataFrame(
        {
            **{"level": runs["importance_sampling_level"], "kernel": runs["kernel"], "low": runs["epsilon"]},
            **{"high": runs["epsilon_high"].astype(float), "staleness": runs["staleness"], "task": runs["task"]},
            "updates": runs["num_iterations"] * runs["num_minibatches"],
            "clip": runs["clip/active"].where(runs["kernel"] != "cispo", runs["clip/capped"]),
            **{"entropy": runs["entropy_ratio"], "kl": runs["kl_ref"], "length": runs["length_ratio"]},
        }
    )


def _numbers(study: load.StudyRuns) -> pd.DataFrame:
    """Return the runs of a study with their settings, their quantities and their shares of clipped tokens."""
    runs = study.done.merge(stability_table(study).drop(columns=["variant", "outcome"]), on=load.KEYS)
    for name in ("clip/active", "clip/capped"):
        runs = runs.join(run_means(study, name).rename(name), on=load.KEYS)
    return runs


if __name__ == "__main__":
    make_table(Results(Path("results"))).to_csv(sys.stdout, index=False, float_format="%.4g")
