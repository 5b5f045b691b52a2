"""Why a training run looks the way it does: every cause that the doctor can name, and that `conf/fault/` can plant.

The ids are file names of `conf/fault/`. Order is precedence: where two causes fit equally well, the earlier one
explains the later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Question = Literal["ratio_is_one", "first_ratio_is_not_one", "training_goes_wrong", "metric_misleads"]

# What people ask; each cause answers one of them.
QUESTIONS: dict[Question, str] = {
    "ratio_is_one": "Why is my ratio always 1, or my clip fraction always 0?",
    "first_ratio_is_not_one": "Why is the ratio not 1 on the first pass over a fresh batch?",
    "training_goes_wrong": "Why does training break down, or go nowhere?",
    "metric_misleads": "Why does the clip metric not fit the rest of the log?",
}


@dataclass(frozen=True)
class Cause:
    """One thing that can be wrong with a run."""

    id: str
    question: Question
    says: str  # what happened, one sentence
    try_: str  # what to change, one sentence


_LISTED = [
    # The old policy is not the one that sampled the batch.
    Cause(
        "aliased_old_policy",
        "ratio_is_one",
        "The old log-probs are the live ones: the ratio is 1 whatever the weights do, and nothing is ever clipped.",
        "Compute the old log-probs once per batch, before its first update, without gradient, and keep them.",
    ),
    Cause(
        "resynchronised_old_policy",
        "ratio_is_one",
        "The old policy is synchronised before every minibatch: each update starts at ratio 1, however often the"
        " batch is reused.",
        "Synchronise the old policy once per rollout batch, not once per minibatch or iteration.",
    ),
    Cause(
        "recomputed_old_log_probs",
        "ratio_is_one",
        "The old log-probs are recomputed after the batch's first update: the second pass starts at ratio 1 again,"
        " and drift is missed by a step.",
        "Compute the old log-probs before the first optimiser step on the batch.",
    ),
    # No gradient, or hardly any.
    Cause(
        "constant_reward",
        "ratio_is_one",
        "All rewards of every group are equal: every advantage is 0, so there is no gradient.",
        "Check the reward function and the answer parser; take prompts that are sometimes right and sometimes wrong.",
    ),
    Cause(
        "overscaled_advantages",
        "ratio_is_one",
        "Rewards differ, but advantages are normalised to nearly nothing.",
        "Look at what divides the advantages (a wrong std, a second whitening, too large an epsilon).",
    ),
    Cause(
        "weak_signal",
        "ratio_is_one",
        "Gradients are below Adam's epsilon: the steps shrink with the gradient and hardly move the policy.",
        "Raise the scale of reward or loss, or lower adam_epsilon.",
    ),
    # A gradient, but no step.
    Cause(
        "frozen_parameters",
        "ratio_is_one",
        "There is a gradient and a learning rate, but the weights do not move at all: the optimiser does not hold the"
        " parameters that are used.",
        "Check requires_grad and that the optimiser was made from the parameters of the model that is trained.",
    ),
    Cause(
        "low_precision_weights",
        "ratio_is_one",
        "The weights are kept in a precision whose spacing is wider than the update, so most updates round to nothing.",
        "Keep float32 master weights (or raise the learning rate); autocast only the forward pass.",
    ),
    Cause(
        "gradient_clipping",
        "ratio_is_one",
        "Gradient clipping cuts the gradient to almost nothing before the step.",
        "Raise max_grad_norm to about the usual gradient norm.",
    ),
    Cause(
        "endless_warmup",
        "ratio_is_one",
        "The warm-up lasts so long that the learning rate never gets near its peak.",
        "Shorten warmup_steps to a few percent of the run's optimiser steps.",
    ),
    Cause(
        "tiny_learning_rate",
        "ratio_is_one",
        "The learning rate is too small for the policy to move within a batch.",
        "Raise learning_rate.",
    ),
    # The trust region is too tight.
    Cause(
        "strong_kl",
        "ratio_is_one",
        "The KL term holds the policy at its reference: it never moves far enough to be clipped.",
        "Lower beta (GRPO today often uses 0).",
    ),
    Cause(
        "tiny_epsilon",
        "ratio_is_one",
        "The clip range is so narrow that nearly every token is clipped as soon as the policy moves.",
        "Widen epsilon (0.2 for token ratios, 3e-4 and up for sequence ratios).",
    ),
    # Sampler and trainer do not agree.
    Cause(
        "dropout",
        "first_ratio_is_not_one",
        "Dropout is on while training: two passes of the same weights give different log-probs.",
        "Switch dropout off (model.eval(), or dropout probabilities of 0) for old and new log-probs.",
    ),
    Cause(
        "visible_padding",
        "first_ratio_is_not_one",
        "Padding is visible to one of the two forward passes: log-probs depend on how long the other rows of the"
        " batch are.",
        "Pass the attention mask, and count positions from the first real token.",
    ),
    Cause(
        "temperature_mismatch",
        "first_ratio_is_not_one",
        "Sampler and trainer use different temperatures: their log-probs differ by a factor on the logits.",
        "Divide the trainer's logits by the sampling temperature.",
    ),
    Cause(
        "mask_mismatch",
        "first_ratio_is_not_one",
        "Old and new log-probs belong to different tokens: the completion is shifted or cut differently in one of the"
        " two passes.",
        "Check the shift by one between logits and labels, and where the completion mask begins and ends.",
    ),
    Cause(
        "precision_mismatch",
        "first_ratio_is_not_one",
        "Sampler and trainer compute in different precision: a small difference on every token, without a direction.",
        "Use one precision for both, or correct with truncated importance weights (sampler_correction).",
    ),
    # Training breaks down.
    Cause(
        "unclipped",
        "training_goes_wrong",
        "Nothing is clipped although the batch is reused and ratios go far from 1: the policy was driven away from the"
        " one that sampled.",
        "Use a clip range (kernel=clipped, epsilon=0.2), take fewer iterations, or a smaller learning rate.",
    ),
    Cause(
        "kl_overflow",
        "training_goes_wrong",
        "The KL term overflows: a few tokens that the reference finds far likelier dominate loss and gradient.",
        "Clamp the KL's input, or use another estimator (k1, k2) or a smaller beta.",
    ),
    Cause(
        "unbounded_cell",
        "training_goes_wrong",
        "Tokens with A<0 and a ratio above 1+epsilon are not clipped: their gradient grows with the ratio, and spikes.",
        "Set delta or dual_clip, take fewer iterations, or a smaller learning rate.",
    ),
    Cause(
        "entropy_explosion",
        "training_goes_wrong",
        "Entropy grew out of bounds: the policy turned to noise.",
        "Lower entropy_coef; check the sign of the entropy bonus.",
    ),
    Cause(
        "entropy_collapse",
        "training_goes_wrong",
        "Entropy fell to almost 0 early: samples of a prompt are all the same, so nothing is left to compare.",
        "Raise epsilon_high, add an entropy bonus or a KL, or lower the learning rate.",
    ),
    Cause(
        "length_blow_up",
        "training_goes_wrong",
        "Completions grow until they are cut off at max_completion_length.",
        "Check what rewards length (a missing end penalty, sum aggregation); mask truncated completions.",
    ),
    Cause(
        "collapse",
        "training_goes_wrong",
        "The policy collapsed: reward fell and stayed down, and the ratio says little since then.",
        "Go back before the collapse; a smaller learning rate, fewer iterations, or a KL.",
    ),
    Cause(
        "starving_variance",
        "training_goes_wrong",
        "Most groups have equal rewards: few completions teach anything.",
        "Draw harder prompts or filter the groups (dynamic sampling); raise num_generations.",
    ),
    # The metric.
    Cause(
        "padding_in_clip_metric",
        "metric_misleads",
        "The clip fraction counts padding: it is diluted by tokens that do not exist.",
        "Average the clip mask over completion tokens only.",
    ),
]

CAUSES: dict[str, Cause] = {cause.id: cause for cause in _LISTED}

# Not causes: what looks odd and is as it should be.
NOTES = {
    "no_reuse": (
        "One optimiser step per on-policy batch: the ratio is exactly 1 and nothing can be clipped. This is normal."
    ),
    "zero_first_loss": (
        "The loss is 0 at the start because advantages are centred and the ratio is 1; its gradient is not 0."
        " This is normal."
    ),
}
