"""Which of our metrics a name in a log is: by a framework's table, as an evaluation, or by likeness."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from grpolab.framework_names import FRESH_BATCH, LOG_EVALUATIONS, LOG_NAMES
from grpolab.meanings import METRICS

# Framework -> its name -> ours. `grpolab`: our own metrics in MLflow, where the run folder is elsewhere.
NAMES = LOG_NAMES | {
    "grpolab": {name: name for name, metric in METRICS.items() if metric.kind in ("update", "rollout")}
}
STEPS = (
    *("step", "training_step", "training/global_step", "global_step", "global_step/max_steps", "system/global_step"),
    *("trainer/global_step", "rollout/step", "eval/step", "iteration", "_step", "Step"),
)
# The mean of one part of the reward, under the name of its function (TRL, ms-swift); before 0.16 without `/mean`.
PART = re.compile(r"rewards/(?!(?:mean|std|max|min|chosen|rejected|accuracies|margins)\Z)[^/]+(?:/mean)?")
LONGEST_NAME = 300  # characters
OTHER = "another framework"  # whose names are read by likeness alone

# Names of homemade trainers -> ours, where nearly everybody who writes such a name means that.
_OF = "(?:(?:train|training|trainer|rollout|rollouts|actor|policy|ppo|grpo|rl|batch|metrics|charts)_)*"
_MEAN, _MEANS = "(?:mean|avg|average)_", "_(?:mean|avg|average)"
_COMPLETION = "(?:completion|response|generation|generated|gen|output)s?"


def _mean_of(name: str) -> str:
    return f"(?:{_MEAN})?(?:{name})(?:{_MEANS})?"


_LIKE = {
    "loss": _mean_of("(?:losses_)?(?:(?:policy|pg|actor|surrogate|total|grpo|ppo|rl)_)?(?:gradient_)?loss")
    + "|loss_(?:policy|pg|actor)",
    "grad_norm": _mean_of("(?:global_|total_)?grad(?:ient)?_?norm"),
    "learning_rate": "lr|learning_?rate",
    "clip/active": _mean_of("(?:pg_)?clip(?:ped)?_?(?:frac|fraction|ratio|rate)"),
    "kl_old/k3": _mean_of("approx_?kl"),
    "kl_old/k1": _mean_of("ppo_kl|old_?kl|kl_old|old_approx_kl"),
    "kl_ref/k3": _mean_of("kl|(?:kl_)?ref(?:erence)?_kl|kl_ref|kl_div|kl_divergence|kl_loss|kl_penalty"),
    "ratio/token_mean": f"{_MEAN}(?:importance_)?ratio|(?:importance_)?(?:ratio|weight){_MEANS}",
    "ratio/token_max": "(?:importance_)?ratio_max|max_ratio",
    "ratio/token_min": "(?:importance_)?ratio_min|min_ratio",
    "entropy/behaviour": _mean_of("entropy"),
    "reward/mean": _mean_of("(?:raw_|episode_)?rewards?|scores?"),
    "reward/std": "(?:rewards?|scores?)_std|std_(?:rewards?|scores?)",
    "reward/max": "rewards?_max|max_rewards?",
    "reward/min": "rewards?_min|min_rewards?",
    "length/mean": _mean_of(f"{_COMPLETION}_(?:len|lens|length|lengths)") + f"|{_MEAN}{_COMPLETION}_tokens",
    "length/max": f"max_{_COMPLETION}_(?:len|length)|{_COMPLETION}_(?:len|length)s?_max",
    "truncation/share": "(?:truncat(?:ed|ion)|cut_?off)_(?:ratio|rate|frac|fraction|share)|frac_truncated",
    "zero_variance/share": "(?:frac_)?(?:reward_)?zero_(?:std|var|variance)(?:_(?:ratio|rate|frac|fraction|share))?",
    "eval/reward": f"(?:eval|val|test|validation)_{_mean_of('rewards?')}|{_MEAN}(?:eval|val|test)_rewards?",
    "eval/accuracy_expected": "(?:eval|val|test|validation)_(?:mean_)?(?:acc|accuracy)"
    "|eval_rewards_(?!.*_std$)[a-z0-9_]*(?:accuracy|correct)[a-z0-9_]*",
}
_LIKES = [(re.compile(f"{_OF}(?:{pattern})"), ours) for ours, pattern in _LIKE.items()]
_EVALUATIONS = [
    (re.compile(re.escape(name).replace("@", "(?:@|_at_)").replace(r"\{\}", "[^@ ]{1,100}")), ours)
    for name, ours in LOG_EVALUATIONS.items()
]
# A share is between 0 and 1: a name that is like one's and has another value is something else.
SHARES = ("clip/active", "truncation/share", "zero_variance/share", "eval/accuracy_expected")


def as_tracked(name: str) -> str:
    """Spell a metric's name as MLflow does (verl writes `_at_` for `@`), without a tracker's prefix."""
    name = name.rpartition(" - ")[2].removeprefix("train/")  # `run - train/loss` in a chart of W&B
    return re.sub(r"[^\w./ -]", "_", name.replace("@", "_at_")).replace(" / ", "/")


TRACKED = {of: {as_tracked(theirs): ours for theirs, ours in names.items()} for of, names in NAMES.items()}
# A printed config has rates too, so a rate alone makes no row.
RATES = {name for names in TRACKED.values() for name, ours in names.items() if ours == "learning_rate"}
KNOWN = {name for names in TRACKED.values() for name in names} | {*STEPS, *FRESH_BATCH.values()}
TELLING = KNOWN.difference(STEPS, RATES, FRESH_BATCH.values())  # one of these makes a row of training
TELLING_OF = {of: TELLING & names.keys() for of, names in TRACKED.items()}


@lru_cache(4096)
def known(name: str) -> str | None:
    """Return a name as `as_tracked` spells it if it is a metric's, exactly or by likeness, or a step's."""
    tracked = as_tracked(name[:LONGEST_NAME])
    is_known = tracked in KNOWN or evaluation(tracked) or likeness(tracked) or PART.fullmatch(tracked)
    return tracked if is_known else None


@lru_cache(4096)
def evaluation(name: str) -> str | None:
    """Return our metric if a framework, or we, log one of an evaluation under this name."""
    if name in METRICS and METRICS[name].kind == "evaluation":
        return name
    return next((ours for pattern, ours in _EVALUATIONS if pattern.fullmatch(name)), None)


@lru_cache(4096)
def likeness(name: str) -> str | None:
    """Return our metric that a name like `train/meanReward` most likely is."""
    words = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name[:100]).lower()).strip("_")
    return next((ours for pattern, ours in _LIKES if pattern.fullmatch(words)), None)


def number(written: Any) -> float | None:
    """Read a number as logs write it: 0.5, '0.5', '17/124' (17 of 124), nan. Return None for anything else."""
    if type(written) is float:
        return written
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        return None
    try:
        return float(written)
    except OverflowError:
        return None
    except ValueError:
        whole, slash, _ = str(written).partition("/")
        return number(whole) if slash else None
