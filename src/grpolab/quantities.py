"""Numbers and labels of a whole run, and the thresholds at which a number becomes a label.

`report/stability.py` computes them. A hypothesis may claim any of them, as it may any metric.
"""

from __future__ import annotations

from dataclasses import dataclass

# fmt: off
LABELS = {
    "collapsed": "its accuracy fell by collapse_drop and collapse_share of the gain, and did not recover",
    "diverged": "its outcome: loss, gradient or weights became non-finite",
    "stopped": "its outcome: `early_stop` ended it",
    "lost": "collapsed, diverged or stopped",
    "below_start": "its final score is below_start_errors standard errors below its start",
    "spiky": "it has more gradient spikes than spikes_per_100",
    "ratio_blow_up": "a token ratio above ratio_max, or an effective sample size below ess",
    "kl_old_high": "kl_old is above its threshold",
    "entropy_collapsed": "the entropy fell by more than entropy_drop, or below entropy_ratio of its start",
    "entropy_exploded": "the entropy rose to more than entropy_explosion of its start while the reward fell",
    "starved": "starvation is above its threshold",
    "truncated": "truncation is above its threshold",
}
_NUMBERS = {
    "start": "accuracy before training",
    "final_score": "mean accuracy over the last quarter of the evaluations, never the best one",
    "gain": "final_score - start",
    "mean_score": "mean accuracy over all evaluations (the area under the curve)",
    "drawdown": "largest fall of the accuracy below an earlier peak",
    "jitter": "interquartile range of the accuracy's first differences, which have no trend left",
    "spikes_per_100": "rollout steps in 100 whose largest gradient norm is far above the median before",
    "grad_norm_p50": "median gradient norm before clipping", "grad_norm_p99": "its 99th percentile",
    "grad_norm_max": "the largest one",
    "clipped_gradients": "share of optimiser steps whose gradient norm is above max_grad_norm",
    "ratio_max": "largest token ratio", "sequence_ratio_max": "largest sequence ratio",
    "ess_min": "smallest effective sample size of an update",
    "outer_mass": "mean clip/outer: tokens with A<0 that the outer cap cut",
    "kl_old": "mean KL(old, new) after the last update of each rollout step",
    "entropy_first": "mean entropy of the sampling policy, first tenth of the run",
    "entropy_last": "the same, last tenth", "entropy_last20": "the same, last fifth",
    "entropy_min": "its smallest value", "entropy_drop": "entropy_first - entropy_last",
    "entropy_ratio": "entropy_last / entropy_first",
    "entropy_slope": "least-squares slope of the entropy, nat per rollout step",
    "kl_ref": "KL to the warm start, exact over the vocabulary, last measured",
    "starvation": "share of groups with equal rewards, last tenth",
    "starved_right": "share of groups that are all right, last tenth",
    "starved_wrong": "share of groups that are all wrong, last tenth",
    "truncation": "share of truncated completions, last tenth",
    "length_ratio": "mean length of the completions, last tenth of the run over the first",
    "clip_share": "mean clip/active_nz: clipped tokens among those with an advantage",
    "clip_change": "mean clip/active in the last tenth of the rollout steps minus in the first",
    "ceiling_share": "mean clip/active over its ceiling, (1 - zero-variance share)(1 - 1/updates per batch)",
    "counterfactual_log_ratio": "log of what a sequence ratio would clip at .2 over what a token ratio would, same run",
    "up_clipped_gap": "mean of p_old/up_clipped - p_old/all over the updates that clip above",
    "zero_variance_gap": "mean of zero_variance/share - (p^G + (1-p)^G), p the batch's share of right completions",
    "sequence_sign_gap": "mean sequence ratio where A>0 minus where A<0, over updates after the first of a batch",
    "log_ratio_range": "mean over rollout steps of log(largest / smallest token ratio)",
}
# fmt: on
QUANTITIES = _NUMBERS | LABELS
# Between 0 and 1 whatever a study measures. The scores are where its primary metric is.
SCORES = ("start", "final_score", "mean_score", "drawdown")
GAINS = ("final_score", "mean_score", "gain")  # a difference of them is a share of the baseline's gain
SHARES = (
    *("clipped_gradients", "ess_min", "outer_mass", "clip_share", "truncation"),
    *("starvation", "starved_right", "starved_wrong"),
)


@dataclass(frozen=True)
class Thresholds:
    """Values at which a quantity becomes a label. They are judgement calls: a study file may set its own."""

    tail: float = 0.10  # share of a run that 'first' and 'last' mean
    score_tail: float = 0.25  # share of the evaluations whose mean is the final score
    collapse_drop: float = 0.10  # accuracy lost from the peak ...
    collapse_share: float = 0.50  # ... and the share of the gain that this is
    below_start_errors: float = 2.0  # standard errors of the first accuracy
    spike_factor: float = 5.0  # times the median of the rollout steps before
    spike_window: int = 20  # how many of them
    spike_least: int = 5  # no median of fewer, unless the window is shorter
    spikes_per_100: float = 3.0
    ratio_max: float = 50.0
    ess: float = 0.5
    entropy_ratio: float = 0.25
    entropy_drop: float = 0.25  # nat
    entropy_explosion: float = 2.0  # last over first, with falling reward
    kl_old: float = 0.05  # nat per token and rollout step
    starvation: float = 0.8  # share of groups
    truncation: float = 0.10  # share of completions
