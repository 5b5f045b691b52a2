"""The settings of the objective, which `grpo/loss.py` computes.

An empty key switches its axis off and is no part of a run's signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, ValidationInfo, field_validator, model_validator

from grpolab.registry import ADVANTAGES, AGGREGATIONS, FRAMEWORKS, KL_ESTIMATORS, RATIOS, SCALES, SURROGATES, last_name
from grpolab.settings import NonNegative, NonNegativeOrInf, Positive, PositiveOrInf, Settings, Share, among, setting

RejectionLevel = Literal["token", "sequence", "geometric", "worst"]
Bounds = Annotated[list[NonNegativeOrInf], Field(min_length=2, max_length=2)]
KL_AXES = ("kl_estimator", "kl_gradient", "kl_input_clamp", "kl_output_clamp")


class SamplerCorrection(Settings):
    """A weight exp(old - sampler) on the loss, for samples that are not from the policy that is trained."""

    level: Literal["token", "sequence", "geometric"] = setting(
        "Per token, a product over a sequence, or its geometric mean."
    )
    mode: Literal["truncate", "mask"] = setting("Outside [low, high]: cut to it (TIS), or 0 (IcePop).")
    low: NonNegative = setting("Least weight.")
    high: PositiveOrInf = setting("Largest weight.")


class SamplerRejection(Settings):
    """Leaves tokens or sequences out of the policy loss on which trainer and sampler are too far apart."""

    policy: Literal["old", "current"] = setting(
        "The trainer's policy that the sampler is compared with: that before the update, or the one that learns."
    )
    bounds: dict[RejectionLevel, Bounds] | None = setting(
        "Least and largest ratio trainer / sampler, by level: of a token; of a sequence as a product (`sequence`),"
        " as a geometric mean (`geometric`) or of each of its tokens (`worst`). Empty: none."
    )
    m2_budget: Positive | None = setting(
        "Largest mean squared log ratio of the tokens that stay (M2PO): those with the largest are left out, with"
        " policy=current only where the ratio has moved in the advantage's direction. Empty: none."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.bounds and self.m2_budget is None:
            raise ValueError("bounds and m2_budget are both empty, so that nothing is rejected: leave the rule empty")
        for level, (low, high) in (self.bounds or {}).items():
            if low >= high:
                raise ValueError(f"bounds.{level}=[{low:g}, {high:g}]: the first must be less than the second")
        return self


class AdaptiveEntropySettings(Settings):
    """Raise the entropy bonus while the entropy is at or below a target, and switch it off above (TRL)."""

    target: NonNegative = setting("Entropy in nat per token.")
    step: Positive = setting("Change of the coefficient after each optimiser step.")
    least: NonNegative = setting("Least coefficient.")
    most: Positive = setting("Largest coefficient.")


class AdvantageWeights(Settings):
    """Factors of an advantage by its sign: wrong answers alone (NSR), or right ones at .1 (W-REINFORCE, 2506.01347)."""

    positive: NonNegative = setting("Factor of positive advantages.")
    negative: NonNegative = setting("Factor of negative advantages.")


class Objective(Settings):
    """One point in the space of GRPO losses: the part of the settings that `grpo/loss.py` computes."""

    importance_sampling_level: Annotated[str, among(RATIOS)] = setting(
        "Importance ratio per token; one per sequence (geometric mean, GSPO); that value with each token's"
        " own gradient; or one per contiguous segment."
    )
    log_ratio_clamp: Positive | None = setting("Bound of |log ratio| before the exponential; empty: none.")
    kernel: Annotated[str, among(SURROGATES, or_path=True)] = setting(
        "Loss of a token before averaging (grpo/surrogates.py), or module:name of a Surrogate of your own."
    )
    kernel_options: dict[str, dict[str, float]] | None = setting(
        "Numbers of each kernel; only the chosen kernel's count."
    )
    epsilon: NonNegative = setting("Clip range below 1 (and above, where epsilon_high is empty).")
    epsilon_high: NonNegativeOrInf | None = setting("Clip range above 1; `.inf` is no upper clip.")
    delta: Positive | None = setting("Outer cap of the ratio for both signs of the advantage; empty: none.")
    dual_clip: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = setting(
        "Outer cap of the ratio where the advantage is negative, after the clip; empty: none."
    )
    loss_form: Literal["min_positive", "max_negative"] = setting("The same function, written in two ways.")
    aggregation: Annotated[str, among(AGGREGATIONS, or_path=True)] = setting(
        "How per-token losses are averaged; the name has the denominator. Or module:name of your own."
    )
    beta: NonNegative = setting("Weight of the KL to the warm start; 0: no reference model.")
    kl_estimator: Annotated[str, among(KL_ESTIMATORS)] | None = setting("Estimator of that KL from sampled tokens.")
    kl_gradient: Literal["plain", "importance_weighted", "score_function", "straight_through"] | None = setting(
        "The estimator's own gradient, times the ratio (TRL), times the score function (NeMo-RL), or k2's."
    )
    kl_input_clamp: Positive | None = setting("Bound of |log(reference / policy)|; empty: none.")
    kl_output_clamp: Positive | None = setting("Bound of the estimate; empty: none.")
    entropy_coef: FiniteFloat | None = setting("Weight of the entropy bonus; empty: none.")
    top_entropy_quantile: Share | None = setting("Share of tokens, of highest entropy, to learn from; empty: all.")
    off_policy_mask_threshold: FiniteFloat | None = setting(
        "Sequences with a negative advantage and a mean log(behaviour / policy) above this are left out."
    )
    sampler_correction: SamplerCorrection | None = setting("Weight for another sampler; empty: none.")
    sampler_rejection: SamplerRejection | None = setting("What is left out because of another sampler; empty: nothing.")

    def but(self, **changes: Any) -> Objective:
        """Return a copy with other values of some axes."""
        return self.model_copy(update=changes)

    @property
    def options(self) -> dict[str, float]:
        """Return the chosen kernel's own numbers."""
        return (self.kernel_options or {}).get(last_name(self.kernel), {})

    @property
    def epsilon_above(self) -> float:
        """Return the clip range above 1: `epsilon_high`, or `epsilon` if that is empty."""
        return self.epsilon if self.epsilon_high is None else self.epsilon_high

    @property
    def low(self) -> float:
        """Return the lower end of the clip range."""
        return 1 - self.epsilon

    @property
    def high(self) -> float:
        """Return the upper end of the clip range; inf: no upper clip."""
        return 1 + self.epsilon_above


class ObjectiveSettings(Objective):
    """The objective and what feeds it: the framework, rewards, advantages, old log-probs.

    `dialect`, `paper` and `loss_type` of conf/ are presets of these keys.
    """

    framework: Annotated[str, among(FRAMEWORKS, or_path=True)] | None = setting(
        "Framework that computes loss and metrics its own way; empty: none."
    )
    kl_placement: Literal["loss", "reward", "advantage"] | None = setting(
        "In the loss of each token; in the reward, before it is compared (verl); or taken from the"
        " advantage, which no std then scales (OpenRLHF, AReaL)."
    )
    scale_reward_parts: Literal["group"] | None = setting(
        "Divide each reward part by its group's std first (GDPO); empty: no."
    )
    advantage_estimator: Annotated[str, among(ADVANTAGES)] = setting(
        "Baseline of a reward; `given`: that of the greedy completion (ReMax)."
    )
    scale_rewards: Annotated[str, among(SCALES)] = setting(
        "What the centred reward is divided by: the std of its group (with Bessel's correction, or over n),"
        " of the batch or of the others of its group; its group's mean (MaxRL); the share of rewards that are not 0"
        " (GPG); or nothing (Dr. GRPO)."
    )
    scale_epsilon: NonNegative = setting("Added to that std or mean.")
    advantage_history: Literal["smooth"] | None = setting(
        "Mix advantages with those among all rewards that the prompt has had (DCPO); empty: its group stands alone."
    )
    advantage_weights: AdvantageWeights | None = setting(
        "Factors of positive and of negative advantages, after the scale; empty: none."
    )
    whiten_advantages: Literal["bessel", "population"] | None = setting(
        "Advantages are then centred and divided by their std over the batch's tokens, over N - 1 (verl's"
        " reinforce++) or N (OpenRLHF); empty: no."
    )
    advantage_filter: Positive | None = setting(
        "Whitened advantages further from 0 than this are 0 (StableReinforce: 3); empty: none."
    )
    adaptive_entropy: AdaptiveEntropySettings | None = setting("Rule that moves entropy_coef; empty: fixed.")
    old_log_probs: Literal["trainer", "sampler", "interpolated"] = setting(
        "Denominator of the ratio: the policy before the update, the sampler, or one between the sampler and the policy"
        " that learns (A-3PO), which takes no forward pass."
    )

    @field_validator("kernel_options")
    @classmethod
    def _known_options(
        cls, by_kernel: dict[str, dict[str, float]] | None, info: ValidationInfo
    ) -> dict[str, dict[str, float]] | None:
        chosen = info.data.get("kernel", "clipped")
        for kernel, options in (by_kernel or {}).items():
            surrogate = SURROGATES[chosen] if kernel == last_name(chosen) else SURROGATES.get(kernel)
            known = surrogate.options if surrogate else {}
            if not known:
                have = ", ".join(name for name, surrogate in SURROGATES.items() if surrogate.options)
                why = f"with kernel={chosen}, only {have} have options"
                raise ValueError(f"kernel_options.{kernel}: {why}: choose its kernel, or leave out what sets it")
            for name, value in options.items():
                if name not in known:
                    raise ValueError(f"kernel_options.{kernel}.{name}: {kernel} has {', '.join(known)}")
                above, most = known[name]
                if not above < value <= most:
                    raise ValueError(
                        f"kernel_options.{kernel}.{name}={value} must be more than {above}, at most {most}"
                    )
        return by_kernel

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if problems := list(self._problems()):
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        """Yield a sentence for each pair of keys that does not fit."""
        if absent := [name for name in SURROGATES[self.kernel].options if name not in self.options]:
            yield f"kernel_options.{last_name(self.kernel)} lacks {', '.join(absent)}, which kernel={self.kernel} needs"
        if self.delta is not None and self.dual_clip is not None:
            yield f"delta={self.delta} and dual_clip={self.dual_clip} are two outer caps: set one"
        if self.beta and None in (self.kl_estimator, self.kl_gradient, self.kl_placement):
            yield f"beta={self.beta} needs kl_estimator, kl_gradient and kl_placement"
        if (weights := self.advantage_weights) is not None and not (weights.positive or weights.negative):
            yield "advantage_weights: positive and negative are both 0, so that nothing is learnt: one must be above 0"
        if self.advantage_filter is not None and not self.whiten_advantages:
            yield f"advantage_filter={self.advantage_filter} counts standard deviations: set whiten_advantages"
        if self.advantage_history:
            allowed = {"advantage_estimator": "group_mean", "scale_rewards": "group, group_population, none"}
            allowed |= {"scale_reward_parts": "empty"} | ({"kl_placement": "loss, advantage"} if self.beta else {})
            for key, names in allowed.items():
                if (value := getattr(self, key) or "empty") not in names.split(", "):
                    yield f"{key}={value}: advantage_history compares a prompt's own rewards: it must be one of {names}"
        if self.scale_reward_parts and self.advantage_estimator == "given":
            yield "scale_reward_parts leaves no reward that advantage_estimator=given could compare with"
        if self.adaptive_entropy is not None and self.entropy_coef is None:
            yield "adaptive_entropy needs entropy_coef, the weight that it starts from"
        if self.sampler_correction is not None and self.old_log_probs == "sampler":
            yield "sampler_correction needs old_log_probs=trainer: against the sampler's own every weight is 1"
        if self.sampler_rejection and self.sampler_rejection.policy == "old" and self.old_log_probs == "sampler":
            yield (
                "sampler_rejection.policy=old compares the sampler with itself where old_log_probs=sampler:"
                " set policy=current, or old_log_probs=trainer"
            )

    def resolved_axes(self) -> dict[str, Any]:
        """Return the keys that follow from others, so that two ways to write one objective become equal."""
        values: dict[str, Any] = {
            "epsilon_high": self.epsilon_above,
            "kernel_options": {last_name(self.kernel): self.options} if self.options else None,
        }
        return values if self.beta else {**values, **dict.fromkeys((*KL_AXES, "kl_placement"))}
