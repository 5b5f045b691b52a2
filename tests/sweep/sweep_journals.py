"""A short journal, with values that are easy to add up."""

import json
from typing import Any

from grpolab.paths import Results


def write_journal(results: Results, signature: str, *records: dict[str, Any]) -> None:
    """Add records to a run's journal."""
    results.run(signature).mkdir(parents=True, exist_ok=True)
    with (results.run(signature) / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def evaluation(step: int, accuracy: float) -> dict[str, Any]:
    return {"kind": "evaluation", "rollout_step": step, "eval/accuracy_expected": accuracy}


def update(iteration: int, low: float, high: float, least: float, most: float) -> dict[str, Any]:
    clipped = {"clip/active_low": low, "clip/active_high": high, "clip/active": low + high}
    ratios = {"ratio/token_min": least, "ratio/token_max": most}
    return {"kind": "update", "rollout_step": 0, "iteration": iteration, "minibatch": 0, **clipped, **ratios}


RUN = [
    evaluation(0, 0.3),
    update(0, 0.0, 0.0, 1.0, 1.0),
    update(1, 0.01, 0.02, 0.5, 1.5),
    update(2, 0.03, 0.04, 0.25, 4.0),
    {"kind": "rollout", "rollout_step": 0, "reward/mean": 0.2, "entropy/behaviour": 0.7},
    {"kind": "rollout", "rollout_step": 1, "reward/mean": 0.5, "entropy/behaviour": 0.6},
    evaluation(2, 0.45),
]
