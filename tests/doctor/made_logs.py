"""Logs of other frameworks, made for the rules that ask what their numbers say of each other. No number is a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from grpolab.doctor.evidence import Evidence
from grpolab.framework_names import LOG_ONLY
from grpolab.meanings import METRICS

ROWS = 30
N = np.arange(ROWS)
RISING = np.linspace(0.2, 0.6, ROWS)


def made_log(framework: str = "trl", **metrics: Any) -> Evidence:
    """A sound log of 30 rows, with other metrics; None leaves one out, and `settings` are what its config prints."""
    settings = metrics.pop("settings", {})
    sound = {"reward/mean": RISING, "reward/std": 0.4, "zero_variance/share": 0.3, "loss": -0.01, "grad_norm": 0.5}
    sound |= {"length/min": 90.0, "length/mean": 210.0 + 3 * N, "length/max": 500.0 + N % 7, "truncation/share": 0.0}
    sound |= {"entropy/behaviour": 0.5, "kl_ref/k3": 0.01 + 0.001 * N, "learning_rate": 1e-6, **metrics}
    tables: dict[str, dict[str, Any]] = {"updates": {}, "rollouts": {}}
    for name, values in sound.items():
        if values is not None:
            is_update = name not in LOG_ONLY and METRICS[name].kind == "update"
            tables["updates" if is_update else "rollouts"][name] = values
    frames = {name: pd.DataFrame({"rollout_step": N, **columns}) for name, columns in tables.items()}
    return Evidence(run="log", state="a log", framework=framework, settings=settings, **frames)


def gap(values: Any, metric: str = "gap/mean", **settings: Any) -> Evidence:
    return made_log(**{metric: values}, settings=settings)


def noisy(level: float) -> np.ndarray:
    return level * (1 + 0.2 * np.sin(7.0 * N))


def resumed(run: Evidence, at: int) -> Evidence:
    """The log of a run that was resumed at a row, three steps back."""
    steps = np.where(at <= N, N - 3, N)
    return replace(
        run, rollouts=run.rollouts.assign(rollout_step=steps), updates=run.updates.assign(rollout_step=steps)
    )


def cut(share: float, mean: float, most: float = 1200.0, framework: str = "trl", **settings: Any) -> Evidence:
    """Completions of which a share counts as cut off, with such lengths."""
    lengths = {"length/min": 30.0, "length/mean": mean, "length/max": most}
    return made_log(framework, **{"truncation/share": share, **lengths}, settings=settings)


def odd(run: Evidence, **steps: list[int]) -> Evidence:
    return replace(run, not_finite=steps)


SAW = 0.002 + 0.03 * (N % 5)
KL = np.where(N < 15, 0.02 + 0.002 * N, 1e-4 * (N - 14))
LEFT_OUT = {"truncation/share": 0.2, "length/min": 0.0, "length/terminated_min": 120.0}

FUNCTIONS = ("rewards/answer/mean", "rewards/form/mean")


def parts(answer: Any, form: Any, reward: Any, n: int = 60) -> Evidence:
    """A log of TRL with two parts of the reward."""
    columns = {"rollout_step": range(n), "reward/mean": reward, **dict(zip(FUNCTIONS, (answer, form), strict=True))}
    return replace(made_log(), rollouts=pd.DataFrame(columns))


def course(first: float, last: float, n: int = 60) -> np.ndarray:
    return np.linspace(first, last, n) + 0.01 * np.sin(np.arange(n))


Made = Callable[[], Evidence]
# Cause -> a log that has it, and its nearest neighbour that has not.
LOG_PAIRS: dict[str, tuple[Made, Made]] = {
    "wide_sampler_gap": (lambda: gap(noisy(0.25)), lambda: gap(noisy(0.03))),  # as in float8
    "sampler_gap_jump": (
        lambda: gap(np.where(N < 12, noisy(0.01), noisy(0.3))),
        lambda: gap(np.where(N == 12, 0.3, noisy(0.01))),  # one batch
    ),
    "late_weight_sync": (lambda: gap(SAW), lambda: gap(np.where(N % 7 < 2, 0.002, SAW))),
    "reference_replaced": (
        lambda: made_log(**{"kl_ref/k3": KL}),
        lambda: made_log(**{"kl_ref/k3": 0.002 * (N % 10) + 1e-5}),  # a reference that follows on purpose
    ),
    "loss_off_scale": (lambda: made_log(loss=noisy(4000.0)), lambda: made_log("verl", loss=noisy(4000.0))),
    "reward_hides_parts": (
        lambda: parts(course(0.2, 0.3), 0.1, 0.25),
        lambda: parts(0.2, 0.1, 0.3),  # nothing differs
    ),
    "metrics_contradict": (lambda: cut(0.97, 400.0), lambda: cut(0.97, 1180.0)),
}
# Cause, log, what is said of it, and what is not.
LOG_SIDES: list[tuple[str, Evidence, str, str]] = [
    ("metrics_contradict", cut(0.9, 400.0), "end tokens", "Raise max_completion_length"),
    ("metrics_contradict", made_log(**LEFT_OUT), "leave out", "end tokens"),
    ("metrics_contradict", cut(0.1, 300.0, 700.0, "verl", max_completion_length=1024), "width of the batch", "end tok"),
    ("metrics_contradict", made_log(**{"length/max": 512.0}), "none counts as cut off", "end tokens"),
    ("metrics_contradict", made_log(**dict.fromkeys(("length/min", "length/max"), 210.0 + 3 * N)), "padding", "cap"),
    ("metrics_contradict", made_log(**{"entropy/behaviour": -0.4}), "below 0", "truncation"),
    ("metrics_contradict", made_log(**{"length/mean": 600.0}), "length/mean is above length/max", "truncation"),
    ("metrics_contradict", made_log(**{"reward/std": 0.0}), "zero_variance/share is not 1", "truncation"),
    ("sampler_gap_jump", gap(np.where((N > 9) & (N < 16), 0.3, 0.01)), "from step 16 on", "resume)"),
    ("sampler_gap_jump", resumed(gap(np.where(N < 12, 0.01, 0.3)), 12), "a resume", "it is the same again"),
    ("late_weight_sync", gap(SAW), "once in 5 rows", "~"),
    ("reference_replaced", resumed(made_log(**{"kl_ref/k3": KL}), 15), "counter falls there", "~"),
    (
        "not_finite",
        odd(made_log(), **{"reward/std": [4, 5], "loss": [6, 7]}),
        "reward function returned none",
        "from there on",
    ),
    ("not_finite", odd(made_log(), grad_norm=[4, 5, 6]), "logging_nan_inf_filter", "from there on"),
]

CONSISTENT: list[Evidence] = [
    made_log(),
    cut(1.0, 1200.0),  # every completion at the cap
    cut(0.5, 700.0),
    cut(0.1, 300.0, 1024.0, "verl", max_completion_length=1024),
    cut(0.1, 300.0, 700.0, max_completion_length=1024),  # a row of TRL may be a mean of steps with and without one
    made_log(**LEFT_OUT | {"length/min": 120.0}),
    made_log(**dict.fromkeys(("length/min", "length/mean", "length/max"), 4.0)),  # answers of one length
    made_log(**{"length/mean": 7.0, "length/min": 3.0, "length/max": 9.0}),  # short answers
    made_log(**{"zero_variance/share": 1.0}),  # groups are equal, and differ from each other
    made_log(**{"reward/std": 0.0, "zero_variance/share": 1.0}),
    made_log(**{"clip/active": 0.02, "clip/active_low": 0.008, "clip/active_high": 0.0121}),  # rounded
]
