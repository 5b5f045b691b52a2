"""A made trials.json for the tests of the report room: three arms, two keys. No number here is a result."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from report_results import write_study

from grpolab.paths import Results, write_json_atomic

RATE = {"low": 1e-4, "high": 1e-2, "log": True}
RANGE = {"low": 0.1, "high": 0.5, "log": False}
SECOND = {"token": "epsilon", "gspo": "epsilon", "cispo": "epsilon_high"}  # each arm's other key
SEEDS = (1000, 1001)
BEST_RATES = {"token": 3e-4, "gspo": 1e-3, "cispo": 3e-3}


def write_trials(root: Path, study: str = "ratio", trials: int = 12, **changes: Any) -> Results:
    """`studies/<study>/tuning/trials.json`; `changes` replace its keys.

    Of each arm's trials every third is pruned at half of its first seed, and the last one diverges. A complete trial
    scores 0.7 - (log10(learning_rate / best))^2 / 4, its seeds 0.01 above and below.
    """
    results = Results.open(root)
    made = [_trial(arm, number, trials) for arm in BEST_RATES for number in range(trials)]
    document = {
        **{"format": 1, "study": study, "results_version": 2, "commit": "c0ffee"},
        "arms": {arm: _space(other) for arm, other in SECOND.items()},
        **{"levels": {"task": "addition"}, "sampler": {"name": "tpe", "seed": 0}},
        "pruner": {"name": "median", "metric": "eval/accuracy_expected", "window": 3, "after": 16},
        "objectives": [{"metric": "final_score", "direction": "maximize"}],
        **{"trials_per_arm": trials, "seeds": list(SEEDS)},
        "best": {arm: _best(arm, made) for arm in BEST_RATES},
        "trials": made,
    }
    write_json_atomic(results.trials(study), {**document, **changes})
    return results


def _space(other: str) -> dict[str, Any]:
    return {"space": {"learning_rate": RATE, other: RANGE}, "common": {"learning_rate": 3e-4, other: 0.2}}


def _best(arm: str, made: list[dict[str, Any]]) -> list[int]:
    done = [trial for trial in made if trial["arm"] == arm and trial["state"] == "complete"]
    ranked = sorted(done, key=lambda trial: -trial["scores"]["final_score"]["mean"])
    return [trial["number"] for trial in ranked[:1]]


def _trial(arm: str, number: int, trials: int) -> dict[str, Any]:
    rng = np.random.default_rng([len(arm), number])
    rate, epsilon = float(10 ** rng.uniform(-4, -2)), float(rng.uniform(0.1, 0.5))
    score = 0.7 - math.log10(rate / BEST_RATES[arm]) ** 2 / 4
    state = "diverged" if number == trials - 1 else "pruned" if number % 3 == 2 else "complete"
    begun = SEEDS if state == "complete" else SEEDS[:1]
    by_seed = {str(seed): score + (0.01 if seed == SEEDS[1] else -0.01) for seed in begun}
    steps = {"complete": 320, "pruned": 80, "diverged": 32}[state]
    return {
        **{"arm": arm, "number": number, "state": state, "values": {"learning_rate": rate, SECOND[arm]: epsilon}},
        "reason": {"complete": None, "pruned": "median: behind at step 20", "diverged": "the loss is nan"}[state],
        "scores": _scores(state, score, by_seed),
        "signatures": {seed: f"{arm}{number:02d}{seed}" for seed in by_seed},
        "optimizer_steps": {"full": 320, "decided": steps},
    }


def _scores(state: str, score: float, by_seed: dict[str, float]) -> dict[str, Any]:
    if state == "pruned":
        return {}
    if state == "diverged":
        return {"final_score": {"mean": "-inf", "seeds": dict.fromkeys(by_seed, "-inf")}}
    return {"final_score": {"mean": score, "seeds": by_seed}}


TUNED = {
    **{"factor": "values", "level": "tuned", "study": "ratio", "seeds": list(SEEDS), "trials_per_arm": 12},
    "arms": {arm: {"overrides": [f"learning_rate={rate}"], "trial": 3} for arm, rate in BEST_RATES.items()},
}


def write_evaluation(root: Path, study: str = "ratio", seeds: int = 4, **changes: Any) -> Results:
    """A finished study whose arms stand at common and at tuned values; `changes` replace keys of its plan."""
    factors = {"ratio": list(BEST_RATES), "values": ["common", "tuned"]}
    return write_study(root, study, factors, seeds, **{"tuned": [TUNED], "figures": [], **changes})
