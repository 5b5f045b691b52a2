"""The linter's findings, and its rules about a run. docs/lint.md explains every rule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpolab.equalities import absolute_cap
from grpolab.paths import read_json
from grpolab.registry import GROUP_BASELINES, SURROGATES
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel, TinyModel

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Rules = dict[str, tuple[Severity, str]]  # rule -> its severity and the key to change, the most costly first
Sentences = dict[str, str]  # rule -> what it found

RUN_RULES: Rules = {
    "planted-fault": ("warning", "fault"),
    "nothing-to-start-from": ("warning", "warm_start"),
    "learning-rate": ("warning", "learning_rate"),
    "cap-scales-gradient": ("warning", "epsilon_high"),
    "zero-variance-groups": ("warning", "num_generations"),
    "filter-starves": ("warning", "filter_groups.max_batches"),
    "sampling-mask-lost": ("warning", "keep_sampling_mask, or top_k, top_p and min_p"),
    "epsilon-below-noise": ("warning", "epsilon"),
    "rejection-of-nothing": ("warning", "sampler_rejection"),
    "rejection-within-noise": ("warning", "sampler_rejection.bounds"),
    "delta-inside-range": ("warning", "delta"),
    "epsilon-of-another-level": ("warning", "epsilon or importance_sampling_level"),
    "sequences-weighted-by-length": ("warning", "aggregation"),
    "kl-clamp-ends-gradient": ("warning", "kl_output_clamp"),
    "clip-cannot-bind": ("warning", "num_iterations or num_minibatches"),
    "dual-clip-by-default": ("note", "dual_clip"),
    "dropout-is-off": ("note", "model.path"),
}
ONE_A_SEQUENCE = {"sequence", "sequence_token"}
# The usual range of a token's ratio. A mean over T independent tokens moves less, by sqrt(T).
TOKEN_EPSILON, TOO_WIDE = 0.2, 3.0
# Standard deviation of a token's log-prob by rounding alone (measured on the tiny model: 1.2e-6 and 0.016).
LOG_PROB_NOISE = {"float32": 1e-6, "bfloat16": 0.016}
DUAL_CLIP_BY_DEFAULT = {"verl": 3.0}
# Aggregations that weigh every token the same. LUSPO's sums of sequences are left out: there the length is the point.
BY_TOKEN = {
    *("token_mean_rollout", "token_mean_minibatch", "token_mean_microbatch"),
    *("token_sum", "token_sum_constant", "token_sum_length", "prompt_mean"),
}
FAR = 10.0  # |log(reference / policy)| that no token which matters reaches
USUAL_RATE, HIGH, LOW = 1e-6, 20, 1 / 50  # HIGH and LOW: factors on it beyond which a rate gets a warning
SLOW_WARM_START = 1e-4  # a learning rate for pretrained weights
MOST_EQUAL = 0.5  # share of groups with equal rewards that is worth a warning


@dataclass(frozen=True)
class LintFinding:
    """One sentence of a rule about a run, a study or a config."""

    rule: str
    severity: Severity
    key: str  # the key to change
    sentence: str
    where: str = ""  # the study and the variants that it is about; empty: all

    @property
    def line(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.severity} {self.rule}: {self.sentence}{place}; change {self.key}"


def to_findings(rules: Rules, sentences: Iterable[tuple[str, str]]) -> list[LintFinding]:
    """Return a finding for each sentence of a rule, in the order of the rules."""
    findings = [LintFinding(rule, *rules[rule], sentence) for rule, sentence in sentences]
    return sorted(findings, key=lambda finding: [*rules].index(finding.rule))


def by_severity(findings: list[LintFinding]) -> list[LintFinding]:
    """Return errors first and notes last."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def check_run(run: RunSettings) -> list[LintFinding]:
    """Return what the rules find in one run, the most costly first."""
    sentences = _check_signal(run) | _check_clip(run) | _check_rejection(run) | _check_lengths(run)
    sentences |= _check_kl_clamp(run)
    if isinstance(run.model, PretrainedModel):
        sentences |= check_rate("learning-rate", "learning_rate", run.learning_rate, is_lora=run.lora is not None)
    return to_findings(RUN_RULES, sentences.items())


def _check_signal(run: RunSettings) -> Sentences:
    """Check that the first rewards can teach something; name a planted fault, and dropout that stays off."""
    sentences, warm = Sentences(), run.warm_start
    if run.fault:
        sentences["planted-fault"] = (
            f"fault={run.fault} is planted: the loop is broken on purpose, for `grpolab diagnose` to find"
        )
    is_right_or_wrong = run.reward.function is None and [*run.reward.weights] == ["correct"]
    has_none, is_slow = warm.max_steps == 0, warm.learning_rate < SLOW_WARM_START
    if isinstance(run.model, TinyModel) and is_right_or_wrong and (has_none or is_slow):
        why = "no warm start" if has_none else f"warm_start.learning_rate={warm.learning_rate:g} hardly moves them"
        sentences["nothing-to-start-from"] = (
            f"model=tiny has random weights, and {why}: no answer will be right, and rewards that are all 0 teach"
            " nothing; set warm_start.max_steps=1500 warm_start.learning_rate=3e-3, and max_completion_length (now"
            f" {run.max_completion_length}) to the longest answer's characters and one more; or take model=pretrained"
        )
    # Share of groups with equal rewards at accuracy p: p**G + (1-p)**G, least at p = 0.5. It is convex, so prompts of
    # unequal difficulty have at least the share at their mean.
    known = warm.target_accuracy if warm.max_steps else None
    p = 0.5 if known is None else known
    group = run.num_generations
    equal = p**group + (1 - p) ** group
    if equal >= MOST_EQUAL and is_right_or_wrong and run.advantage_estimator in GROUP_BASELINES:
        start = f"at the warm start's accuracy of {p:g}" if known is not None else "at any accuracy"
        sentences["zero-variance-groups"] = (
            f"num_generations={group} and a reward of 0 or 1: {start} at least {equal:.0%} of the groups have equal"
            " rewards, and teach nothing"
        )
    rule = run.filter_groups
    if rule and (is_right_or_wrong or (rule.metric == "correct" and run.reward.function is None)) and equal < 1:
        needed = 1 / (1 - equal)
        often = "half of the time, which is best" if known is None else f"with probability {p:g}"
        at = f"num_generations={group} and answers that are right {often}"
        if 1 < rule.max_batches < needed:
            sentences["filter-starves"] = (
                f"{at}: a rollout step samples {needed:.3g} batches or more until {run.prompts_per_step} groups differ,"
                f" and filter_groups.max_batches={rule.max_batches} ends it before"
            )
        elif rule.max_batches == 1 and run.prompts_per_step < needed:
            sentences["filter-starves"] = (
                f"{at}: of {run.prompts_per_step} groups fewer than one is expected to differ, and filter_groups"
                " drops the others"
            )
    if (cut := run.truncates_sampling) and not run.keep_sampling_mask:
        sentences["sampling-mask-lost"] = (
            f"{cut}: completions come from the policy that is cut to its likely tokens, and the trainer's log-probs are"
            " those of the whole policy, which did not sample them"
        )
    if isinstance(run.model, PretrainedModel) and (rates := dropout_of(run.model.path)):
        sentences["dropout-is-off"] = (
            f"config.json of model.path={run.model.path} has {rates}: dropout stays off here, in every forward"
        )
    return sentences


def dropout_of(model: str) -> str:
    """Return the dropout rates above 0 in the config of a model's local folder, `attention_dropout=0.1`, or ''."""
    config = read_json(Path(model) / "config.json") or {}
    rates = {name: value for name, value in config.items() if "drop" in name and isinstance(value, int | float)}
    return ", ".join(f"{name}={value:g}" for name, value in rates.items() if value > 0)


def clips_ratios(run: RunSettings) -> bool:
    """Return True if a clip range bounds the ratio, and the ratio can differ from 1."""
    return SURROGATES[run.kernel].bounds_the_ratio and not run.ratio_is_one


def _check_clip(run: RunSettings) -> Sentences:
    """Check that the clip range can act, and fits the size of the ratios."""
    sentences, low, high, cap = Sentences(), run.epsilon, run.epsilon_above, absolute_cap(run)
    level, length = run.importance_sampling_level, run.max_completion_length
    if cap is not None and cap < 1:
        sentences["cap-scales-gradient"] = (
            f"epsilon_high={cap:g} is the cap itself in TRL's cispo, not 1 + epsilon_high: on-policy gradients are"
            f" scaled by {cap:g} (ScaleRL has 5.0)"
        )
    averaged = length if level in ONE_A_SEQUENCE else 1
    noise = LOG_PROB_NOISE[run.dtype] / math.sqrt(averaged)
    if clips_ratios(run) and min(low, high) < noise:
        over = f" over {length} tokens" if averaged > 1 else ""
        sentences["epsilon-below-noise"] = (
            f"a clip range of {min(low, high):g} is below what {run.dtype} rounds a {level} ratio by{over} (about"
            f" {noise:.1g}): it clips at random"
        )
    if run.kernel == "clipped" and run.delta is not None and run.delta < 1 + high:
        sentences["delta-inside-range"] = (
            f"delta={run.delta:g} is below 1 + epsilon_high = {1 + high:g}: it caps positive advantages too, and"
            " epsilon_high never acts"
        )
    comparable = TOKEN_EPSILON / math.sqrt(length)
    if level in ONE_A_SEQUENCE and clips_ratios(run) and low > TOO_WIDE * comparable:
        sentences["epsilon-of-another-level"] = (
            f"epsilon={low:g} at importance_sampling_level={level} is {low / comparable:.0f} times what compares with a"
            f" token's {TOKEN_EPSILON} over {length} tokens ({comparable:.1g}): it will hardly clip; GSPO's paper has"
            " 3e-4 below and 4e-4 above, and ten times that ended within 4 points of a token ratio on five tasks"
            " (`grpolab report gspo_fails --brief`; what each range clips: docs/clip_ranges.md)"
        )
    if SURROGATES[run.kernel].clips and run.ratio_is_one and (cap is None or cap >= 1):
        sentences["clip-cannot-bind"] = (
            "num_iterations=1 and num_minibatches=1 make one update per batch, with every ratio 1 up to rounding (other"
            f" kernels, other micro-batches): epsilon={low:g} and epsilon_high={high:g} have nothing else to clip"
        )
    dual = run.dual_clip
    if dual is not None and run.kernel == "clipped" and dual == DUAL_CLIP_BY_DEFAULT.get(run.framework or ""):
        sentences["dual-clip-by-default"] = (
            f"{run.framework} has dual clip on by default: where A < 0 no ratio counts above dual_clip={dual:g};"
            " GRPO's paper has no such bound"
        )
    return sentences


def _check_rejection(run: RunSettings) -> Sentences:
    """Check that a rejection has something to reject, and does not reject by the sampler's noise alone."""
    rule, length = run.sampler_rejection, run.max_completion_length
    if rule is None:
        return {}
    if rule.policy == "old" and not run.other_sampler:
        return {
            "rejection-of-nothing": "the sampler is the trainer here (staleness=0, no sampler_dtype, sampler_noise or"
            " sampler_refresh): every ratio is 1 up to rounding, and sampler_rejection leaves nothing out"
        }
    noise = run.sampler_noise or (LOG_PROB_NOISE["bfloat16"] if run.sampler_dtype == "bfloat16" else 0.0)
    moves = {"sequence": noise * math.sqrt(length), "geometric": noise / math.sqrt(length)}
    narrow = []
    for level, (low, high) in (rule.bounds or {}).items():
        room = min(-math.log(low) if low else math.inf, math.log(high))
        if room < (move := moves.get(level, noise)):
            narrow.append(f"{level}: [{low:g}, {high:g}] (the noise moves its log ratio by about {move:.2g})")
    if not narrow:
        return {}
    return {
        "rejection-within-noise": f"bounds of {' and of '.join(narrow)} are within the sampler's own noise: they leave"
        " out by chance, and unlikely tokens first, which teach most"
    }


def check_rate(rule: str, key: str, rate: float | None, is_lora: bool) -> Sentences:
    """Check a pretrained model's learning rate, which `key` names."""
    usual = USUAL_RATE * (10 if is_lora else 1)
    takes = f"{key}={rate or 0:g}: GRPO by {'LoRA' if is_lora else 'training all weights'} usually takes {usual:g}"
    if rate is not None and rate >= HIGH * usual:
        also = "" if is_lora else " (LoRA takes about ten times that)"
        return {rule: f"{takes}{also}, and more makes reward collapse late"}
    if rate is not None and 0 < rate <= LOW * usual:
        return {rule: f"{takes}; at this rate nothing moves"}
    return {}


def _check_lengths(run: RunSettings) -> Sentences:
    """Check that a loss with one ratio per sequence is not averaged over tokens."""
    level, longest, is_gmpo = run.importance_sampling_level, run.max_completion_length, run.kernel == "gmpo"
    averages_itself = run.framework == "verl" and (is_gmpo or level == "sequence_token")
    has_one_ratio = is_gmpo or level in ONE_A_SEQUENCE
    if not has_one_ratio or run.aggregation not in BY_TOKEN or longest <= 1 or averages_itself:
        return {}
    ratio = "kernel=gmpo" if is_gmpo else f"importance_sampling_level={level}"
    weighs = f"aggregation={run.aggregation} weighs each sequence by its length, 1 to {longest}"
    return {
        "sequences-weighted-by-length": f"{ratio} has one ratio per sequence, and {weighs}: GSPO's is sequence_mean"
    }


def _check_kl_clamp(run: RunSettings) -> Sentences:
    """Check that the KL still has a gradient when the policy has drifted far from the reference."""
    ends: dict[str, tuple[float, float]] = {}  # clamp -> log(reference / policy) where the gradient ends: above, below
    if (most := run.kl_input_clamp) is not None:
        ends[f"kl_input_clamp={most:g}"] = (most, -most)
    if (most := run.kl_output_clamp) is not None:
        above = math.sqrt(2 * most) if run.kl_estimator == "k2" else most
        below = -above
        if run.kl_estimator == "k3":  # the two q at which exp(q) - q - 1 is the clamp
            from scipy.special import lambertw  # imported late: a quarter of a second, which few runs need

            above, below = (float(-1 - most - lambertw(-math.exp(-1 - most), branch).real) for branch in (-1, 0))
        ends[f"kl_output_clamp={most:g}"] = (above, below)
    acts = run.beta > 0 and run.kl_placement == "loss" and run.kl_gradient == "plain"
    if not acts or not ends or (above := min(above for above, _ in ends.values())) >= FAR:
        return {}
    return {
        "kl-clamp-ends-gradient": f"with {' and '.join(ends)} the KL (beta={run.beta:g}) has no gradient where"
        f" log(reference / policy) is above {above:.2f} or below {max(below for _, below in ends.values()):.2f}"
    }
