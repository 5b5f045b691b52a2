"""Rules: the metric misleads."""

from __future__ import annotations

import pandas as pd

from grpolab.report.diagnosis.evidence import Evidence
from grpolab.report.diagnosis.finding import Finding
from grpolab.report.diagnosis.thresholds import MISCOUNTED
from grpolab.report.text import count, number, percent


def padding_in_clip_metric(run: Evidence) -> Finding | None:
    """The logged clip fraction is the one counted on the kept tokens times the share of places that hold a token."""
    both = _counted(run)
    both = both[(both["counted"] > 0) & (both["filled"] < 1 - MISCOUNTED)]
    padded = (both["logged"] / (both["counted"] * both["filled"]) - 1).abs() < MISCOUNTED
    if both.empty or not padded.all():
        return None
    step, first = int(both.index[0]), both.iloc[0]
    evidence = (
        f"at rollout step {step} {percent(first['counted'])} of the completion tokens carry a clip mark, the log says"
        f" {percent(first['logged'])}; the same in all {count(len(both), 'step')} that were kept",
        f"their ratio is {number(first['logged'] / first['counted'])}, and {number(first['filled'])} of the places of"
        " the batch hold a token",
    )
    return Finding("padding_in_clip_metric", "certain", evidence)


def _counted(run: Evidence) -> pd.DataFrame:
    """By kept rollout step: the last pass's clip fraction as logged, and as counted; the places that hold a token."""
    if run.samples.empty or not {"clip/active", "iteration"} <= set(run.updates):
        return pd.DataFrame({"logged": [], "counted": [], "filled": []})
    counted = (run.samples["clipped"] != "").groupby(run.samples["rollout_step"]).mean()
    last = run.updates[run.updates["iteration"] == run.updates["iteration"].max()]
    logged = last.groupby("rollout_step")["clip/active"].mean()
    lengths = run.samples.groupby(["rollout_step", "prompt_index", "sample"]).size().groupby("rollout_step")
    filled = lengths.mean() / lengths.max()
    return pd.DataFrame({"logged": logged, "counted": counted, "filled": filled}).dropna()
