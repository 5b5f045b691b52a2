"""What pruning saves, and whether it costs anything: `python benchmarks/tune_pruning.py [--jobs N] [--folder FOLDER]`.

One arm of the reference tuning (experiments/tuning.yaml) is tuned with its pruner and without, once for each of three
sampler seeds; the sampler is random search, so that both try the same values and differ in nothing but the pruner. The
pruned tuning goes first, and the other goes on with its runs. Printed are the share of optimiser steps that pruning
saved and the best score of both. Promised are at least 30% in the mean, and equal best scores; the exit code is 1 where
that is not so.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpolab.cli.running import quantities
from grpolab.paths import Results, read_json
from grpolab.sweep.tuning.arms import Arms, load_tuned
from grpolab.sweep.tuning.command import tune
from grpolab.sweep.tuning.settings import Pruner

STUDY, SEEDS, LEAST_SAVED = "tuning", (0, 1, 2), 0.3


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--folder", type=Path, help="results that are kept, and gone on with")
    parser.add_argument("--arm", default="token")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the sampler")
    given = parser.parse_args(arguments)
    if given.folder:
        return compare(given.folder.resolve(), given.arm, given.seeds, given.jobs)
    with tempfile.TemporaryDirectory() as folder:
        return compare(Path(folder), given.arm, given.seeds, given.jobs)


def compare(folder: Path, arm: str, seeds: Sequence[int], jobs: int | None) -> int:
    """Tune with and without pruning; the exit code."""
    rows = []
    for seed in seeds:
        pruned, whole = (tuned(folder, arm, seed, jobs, pruning) for pruning in (True, False))
        steps = pruned["optimizer_steps"]
        rows.append((1 - steps["run"] / steps["full"], best(pruned, arm), best(whole, arm)))
    print("sampler seed  saved  best with pruning  best without")
    for seed, (saved, ours, theirs) in zip(seeds, rows, strict=True):
        print(f"{seed:12}  {saved:5.0%}  {ours:17.4f}  {theirs:12.4f}")
    mean = sum(saved for saved, *_ in rows) / len(rows)
    print(f"saved in the mean: {mean:.0%}")
    return 0 if mean >= LEAST_SAVED and all(ours == theirs for _, ours, theirs in rows) else 1


def tuned(folder: Path, arm: str, seed: int, jobs: int | None, pruning: bool) -> dict[str, Any]:
    """trials.json of a tuning of one arm."""
    study = load_tuned(STUDY)
    name = f"{study.name}-{seed}-{'pruned' if pruning else 'whole'}"
    assert study.tuning
    changed = {"sampler": "random", "sampler_seed": seed} | ({} if pruning else {"pruner": Pruner(name="none")})
    alone = {**study.factors, study.compare: {arm: study.factors[study.compare][arm]}}
    tuning = study.tuning.model_copy(update=changed)
    study = study.model_copy(update={"name": name, "factors": alone, "baseline": arm, "tuning": tuning})
    arms = Arms(study, [f"machine.results={folder}", "machine.tracking_uri=null"])
    if tune(arms, quantities, lambda *_: None, folder / f"{name}.yaml", jobs) != 0:
        raise SystemExit(f"the tuning {name} did not end: the same command with --folder goes on")
    document = read_json(Results(folder).studies / name / "tuning" / "trials.json")
    assert document
    return document


def best(document: dict[str, Any], arm: str) -> float:
    """The score of the arm's best trial."""
    number = document["best"][arm][0]
    trial = next(one for one in document["trials"] if (one["arm"], one["number"]) == (arm, number))
    metric = document["objectives"][0]["metric"]
    score: float = trial["scores"][metric]["mean"]
    return score


if __name__ == "__main__":
    raise SystemExit(main())
