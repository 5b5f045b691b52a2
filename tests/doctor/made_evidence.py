"""Evidence of a made run for the doctor's tests: sound unless a test changes it. No number here is a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from grpolab.doctor import Diagnosis, examine
from grpolab.doctor.evidence import Evidence, Weights, to_evidence
from grpolab.doctor.run_folder import read_run
from grpolab.meanings import METRICS
from grpolab.readers.logs import read_log

STEPS, PASSES = 12, 4
SETTINGS = {
    **{"epsilon": 0.2, "epsilon_high": 0.2, "beta": 0.0, "kl_placement": "loss", "importance_sampling_level": "token"},
    **{"num_generations": 8, "prompts_per_step": 8, "staleness": 0, "learning_rate": 3e-4, "warmup_steps": 0},
    **{"max_grad_norm": 1.0, "adam_epsilon": 1e-8, "scale_epsilon": 1e-4, "max_completion_length": 6},
    "dtype": "float32",
}


def diagnose(folder: Path) -> Diagnosis:
    return examine(read_run(folder))


def diagnose_log(framework: str | None, path: Path) -> Diagnosis:
    return examine(to_evidence(read_log(framework, path)))


def sound(passes: int = PASSES, **settings: Any) -> Evidence:
    """A run that learns: the ratio leaves 1 pass by pass, reward and accuracy rise, entropy falls a little."""
    return Evidence(
        run="made",
        state="completed",
        settings=SETTINGS | settings,
        updates=pd.DataFrame([_update(step, iteration) for step in range(STEPS) for iteration in range(passes)]),
        rollouts=_rollouts(),
        evaluations=pd.DataFrame({"rollout_step": [0, 6, 12], "eval/accuracy_expected": [0.3, 0.4, 0.5]}),
        samples=_samples().copy(),
        weights=Weights(count=100_000, on_grid=0.0001, moved=1.0),
    )


def changed(run: Evidence, metrics: Mapping[str, Any], where: Any = None) -> Evidence:
    """The run with other values of metrics of one kind, where a mask says so, or everywhere."""
    is_update = METRICS[next(iter(metrics))].kind == "update"
    table = "updates" if is_update else "rollouts"
    frame = getattr(run, table).copy()
    for metric, value in metrics.items():
        frame.loc[slice(None) if where is None else where(frame), metric] = value
    return replace(run, **{table: frame})


def later(updates: pd.DataFrame) -> pd.Series:
    """Updates after a batch's first."""
    return updates["iteration"] > 0


def falling(first: float, last: float, n: int = STEPS) -> np.ndarray:
    """A straight line over the rollout steps."""
    return np.linspace(first, last, n)


def _update(step: int, iteration: int) -> dict[str, float]:
    far = 0.4 * iteration
    return {
        **{"rollout_step": step, "iteration": iteration, "minibatch": 0, "learning_rate": 3e-4},
        **{"loss": -1e-9 if iteration == 0 else -0.01 * iteration, "grad_norm": 1.0 / (1 + iteration)},
        **{"ratio/token_min": 1 / (1 + far), "ratio/token_max": 1 + far, "ratio/token_max_neg": 1 + far / 2},
        **{"ratio/token_mean": 1.0, "kl_old/k1": 0.01 * iteration, "kl_old/k3": 0.01 * iteration},
        **{"clip/active": 6 / 296 * iteration, "clip/active_nz": 0.03 * iteration},
        **{"cf/token_0.2": 0.02 * iteration, "cf/sequence_0.0003": 0.3},
    }


def _rollouts() -> pd.DataFrame:
    return pd.DataFrame(
        {
            **{"rollout_step": range(STEPS), "reward/mean": falling(0.3, 0.5), "entropy/behaviour": falling(0.6, 0.4)},
            **{"zero_variance/share": 0.2, "zero_variance/all_right": 0.1, "zero_variance/all_wrong": 0.1},
            **{"completions/unique": 0.5, "length/mean": 5.0, "truncation/share": 0.05, "weights/step_norm": 0.1},
            **{"gap/sampler_trainer": 5e-6, "gap/first_pass": 0.0, "kl_ref/exact": falling(0.01, 0.1)},
        }
    )


@cache
def _samples() -> pd.DataFrame:
    """Two kept rollout steps of 8 prompts x 8 completions x 2 or 5 tokens, old log-probs as their own entropy says."""
    draw = np.random.default_rng(0)
    frames = []
    for step in (0, 10):
        sequences = pd.DataFrame({"prompt_index": np.repeat(range(8), 8), "sample": np.tile(range(8), 8)})
        sequences["reward"] = (sequences["sample"] < 3).astype(float)
        sequences["advantage"] = (sequences["reward"] - 3 / 8) / 0.5
        tokens = sequences.loc[sequences.index.repeat(5)].assign(position=list(range(5)) * 64, rollout_step=step)
        tokens = tokens[tokens["position"] < 5 - 3 * (tokens["sample"] == 7)]  # some answers are shorter
        tokens["old_log_prob"] = -draw.exponential(0.6 if step == 0 else 0.43, len(tokens))
        tokens["ratio"] = np.exp(0.05 * draw.standard_normal(len(tokens)))
        marks = 18  # of 296: what the last pass of a sound run says
        tokens["clipped"] = ["low"] * marks + [""] * (len(tokens) - marks)
        frames.append(tokens)
    return pd.concat(frames, ignore_index=True)
