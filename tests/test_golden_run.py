"""A change of code that changes results must raise RESULTS_VERSION, or old runs would silently stand for new ones.

`python tests/test_golden_run.py` writes golden_run.json anew, after RESULTS_VERSION was raised.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tiny import records, run_folder, tiny_settings

from grpolab import RESULTS_VERSION
from grpolab.paths import Results
from grpolab.run import warm_start
from grpolab.run.train import run

GOLDEN = Path(__file__).with_name("golden_run.json")
# Numbers travel between machines to about 1e-4 (other vector instructions); every real change is far larger.
TOLERANCE = {"rel": 2e-3, "abs": 1e-6}

BASE: dict[str, Any] = {"warm_start": {"max_steps": 20}, "max_completion_length": 4, "rollout_steps": 4}
CORRUPTED = {"corruption_base": 0.1, "corruption_per_filler": 0.1}
FILLERS = {"name": "filler_sorting", "length": 2, "max_fillers": 2, **CORRUPTED}
# Adam's usual epsilon turns rounding into direction at a gradient of 0.
SMOOTH = {"adam_epsilon": 0.01, "learning_rate": 0.05}
RUNS: dict[str, dict[str, Any]] = {
    "grpo on addition": BASE,
    "gspo with every option": BASE
    | {"importance_sampling_level": "sequence", "aggregation": "token_mean_rollout", "scale_rewards": "batch"}
    | {"num_minibatches": 2, "micro_batch_size": 4, "beta": 0.05, "delta": 1.5, "epsilon": 0.02, "epsilon_high": 0.05}
    | {"lr_scheduler_type": "cosine", "warmup_steps": 2, "temperature": 0.8, "weight_decay": 0.1, **SMOOTH},
    "cispo on free length": BASE
    | {"seed": 2}  # with 0 a token is drawn within rounding of another, and kinds of CPU part
    | {"task": FILLERS, "kernel": "cispo", "epsilon": 1.0, "epsilon_high": 0.1, "scale_rewards": "none"}
    | {"aggregation": "token_sum_constant", **SMOOTH},
}


def numbers(name: str, results: Results) -> dict[str, float]:
    """What a run came to, from warm start to end."""
    settings = tiny_settings(**RUNS[name])
    outcome = run(settings, results)
    assert outcome["outcome"] == "completed", outcome["error"]
    folder = run_folder(settings, results)
    evaluations, rollouts, updates = (records(folder, kind) for kind in ("evaluation", "rollout", "update"))
    return {
        "warm start": warm_start.ensure(settings, results).accuracy or 0.0,
        "accuracy at the start": evaluations[0]["eval/accuracy_expected"],
        "accuracy at the end": evaluations[-1]["eval/accuracy_expected"],
        "reward": sum(record["reward/mean"] for record in rollouts),
        "first gradient": updates[0]["grad_norm"],
        "all gradients": sum(record["grad_norm"] for record in updates),
        "last loss": updates[-1]["loss"],
        "clipped": sum(record["clip/active"] + record["clip/capped"] for record in updates),
        "drift": sum(record["kl_old/k3"] for record in updates),
        "entropy": rollouts[-1]["entropy/behaviour"],
        "movement": rollouts[-1]["weights/step_norm"],
        "divergence": rollouts[-1]["kl_ref/exact"],
    }


def test_the_golden_numbers_are_those_of_this_results_version() -> None:
    recorded = json.loads(GOLDEN.read_text())["results_version"]
    assert recorded == RESULTS_VERSION, f"RESULTS_VERSION is {RESULTS_VERSION}: run `python tests/test_golden_run.py`"


@pytest.mark.parametrize("name", RUNS)
def test_results_are_those_of_this_results_version(name: str, results: Results) -> None:
    found, expected = numbers(name, results), json.loads(GOLDEN.read_text())["runs"][name]
    changed = {
        key: (value, found[key]) for key, value in expected.items() if found[key] != pytest.approx(value, **TOLERANCE)
    }
    if changed:
        pytest.fail(
            f"a run computes something else than before (recorded, now): {changed}. If that is meant, raise"
            " RESULTS_VERSION in src/grpolab/__init__.py, so that no old run is reused, and run"
            " `python tests/test_golden_run.py`."
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {name: numbers(name, Results.open(folder)) for name in RUNS}
    GOLDEN.write_text(json.dumps({"results_version": RESULTS_VERSION, "runs": found}, indent=1) + "\n")
