"""What another kind of CPU changes: `make bench WHAT=code-paths`. What is measured: docs/faults.md.

    python benchmarks/code_paths.py [STUDY] [--seeds N] [--jobs N] [--results FOLDER]

Trains a study twice on this machine, each time by other code of torch and MKL, as two kinds of CPU would, and compares
run by run. What is trained already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpolab.paths import Results
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import measure

# The code that torch and MKL choose by themselves, and the code that every x86 CPU has (torch: since 2013).
PATHS = {"chosen": {}, "compatible": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE"}}
SCORE = "final_score"


def main(arguments: Sequence[str]) -> int:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="loss_type")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path(__file__).parents[1] / "results" / "code_paths")
    given = parser.parse_intermixed_args(arguments)
    places = [Results(given.results.resolve() / name) for name in PATHS]
    for place, variables in zip(places, PATHS.values(), strict=True):
        options = [given.study, "--seeds", given.seeds, "--jobs", str(given.jobs), *given.overrides]
        machine = [f"machine.results={place.root}", "machine.tracking_uri=null"]
        command = [sys.executable, "-P", "-m", "grpolab", "sweep", *options, *machine]
        subprocess.run(command, env={**os.environ, **variables}, stdout=sys.stderr, check=True)
    print(table(*places, given.study))
    return 0


def table(chosen: Results, compatible: Results, study: str) -> str:
    """How far the two are apart, in lines."""
    a, b = load(chosen, study)[-1], load(compatible, study)[-1]
    runs = sorted(set(a.done["signature"]) & set(b.done["signature"]))
    warm_starts = sorted(set(a.done["warm_start"]) & set(b.done["warm_start"]))
    losses = [_losses(chosen, compatible, name) for name in warm_starts]
    parted = [_first_other_reward(a, b, name) for name in runs]
    equal = sum((_column(a, name, "journal_sha256") == _column(b, name, "journal_sha256")) for name in runs)
    ends = (measure(a, SCORE) - measure(b, SCORE)).abs()
    noise = float(measure(a, SCORE).groupby(["facet", "arm"]).std().pow(2).mean() ** 0.5)
    shift = abs(float((measure(a, SCORE) - measure(b, SCORE)).mean()))
    return "\n".join(
        [
            f"{study}: {len(runs)} runs from {len(warm_starts)} warm starts; {_cpu(chosen, runs[0])}",
            f"  journals that are equal to the bit            {equal} of {len(runs)}",
            f"  warm start: its loss first differs at step    {_span([loss.index[0] for loss in losses])}",
            f"  ... by (relative)                             {_span([loss.iloc[0] for loss in losses])}",
            f"  ... at the warm start's last step             {_span([loss.iloc[-1] for loss in losses])}",
            f"  rollout step at which other answers are drawn {_span(parted)}",
            f"  {SCORE}: mean |difference| of one run      {ends.mean():.4f} (largest {ends.max():.4f})",
            f"  {SCORE}: difference of the means           {shift:.4f}",
            f"  {SCORE}: standard deviation over seeds     {noise:.4f}",
            f"  mean |difference| over that deviation         {ends.mean() / noise:.2f}",
        ]
    )


def _losses(chosen: Results, compatible: Results, name: str) -> pd.Series:
    """Relative difference of a warm start's loss, by optimiser step from the first that differs."""
    files = (place.warm_start(name) / "journal.jsonl" for place in (chosen, compatible))
    one, other = (pd.read_json(file, lines=True, precise_float=True).set_index("step")["loss"] for file in files)
    difference = ((one - other) / one).abs().dropna()
    return difference[difference.ne(0).cummax()]


def _first_other_reward(a: StudyRuns, b: StudyRuns, name: str) -> float:
    """The first rollout step whose mean reward differs; NaN where none does."""
    one, other = (
        study.rollouts[study.rollouts["signature"] == name].set_index("rollout_step")["reward/mean"] for study in (a, b)
    )
    differing = (one != other)[lambda differs: differs]
    return float(differing.index.min()) if len(differing) else float("nan")


def _column(study: StudyRuns, name: str, column: str) -> Any:
    return study.done.set_index("signature").loc[name, column]


def _cpu(results: Results, name: str) -> str:
    hardware = json.loads((results.run(name) / "provenance.json").read_text())["hardware"]
    return ", ".join(str(hardware[key]) for key in ("cpu", "cpu_capability") if key in hardware)


def _span(values: Sequence[float]) -> str:
    """Smallest, median, largest."""
    return " / ".join(f"{value:.3g}" for value in (np.nanmin(values), np.nanmedian(values), np.nanmax(values)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
