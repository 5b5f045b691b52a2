"""The linter's rules about one run, and about a `GRPOConfig` of TRL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from scipy.special import lambertw

from grpolab.paths import read_json
from grpolab.registry import GROUP_BASELINES, SURROGATES
from grpolab.settings.equalities import absolute_cap
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel, TinyModel

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
Subject = TypeVar("Subject")


@dataclass(frozen=True)
class LintFinding:
    """A sentence of one rule about one subject."""

    rule: str
    severity: Severity
    key: str  # the key to change
    sentence: str
    where: str = ""  # the study and variants that it is about; empty: all

    @property
    def line(self) -> str:
        """The finding in one line."""
        place = f" ({self.where})" if self.where else ""
        return f"{self.severity} {self.rule}: {self.sentence}{place}; change {self.key}"


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """A pure function that yields a sentence for each thing that it finds in a subject."""

    name: str
    severity: Severity
    key: str
    about: str
    check: Callable[[Subject], Iterator[str]]


@dataclass(frozen=True)
class Rules(Generic[Subject]):
    """The rules about one kind of subject, the most costly first."""

    title: str  # in docs/lint.md
    rules: list[Rule[Subject]] = field(default_factory=list)

    def rule(self, severity: Severity, key: str) -> Callable[[Callable[[Subject], Iterator[str]]], Rule[Subject]]:
        """Declare a function as a rule: its name is the rule's name, its docstring the row in docs/lint.md."""

        def declare(check: Callable[[Subject], Iterator[str]]) -> Rule[Subject]:
            name, about = check.__name__.removeprefix("trl_").replace("_", "-"), " ".join((check.__doc__ or "").split())
            self.rules.append(Rule(name, severity, key, about, check))
            return self.rules[-1]

        return declare

    def findings(self, subject: Subject) -> list[LintFinding]:
        """Return what the rules find in a subject."""
        return [
            LintFinding(rule.name, rule.severity, rule.key, sentence)
            for rule in self.rules
            for sentence in rule.check(subject)
        ]


RUN_RULES = Rules[RunSettings]("A run")

ONE_A_SEQUENCE = {"sequence", "sequence_token"}
# The usual range of a token's ratio. A mean over T independent tokens moves less, by sqrt(T).
TOKEN_EPSILON, TOO_WIDE = 0.2, 3.0
# What rounding alone does to a token's log-prob (standard deviation, measured on the tiny model: 1.2e-6 and 0.016).
LOG_PROB_NOISE = {"float32": 1e-6, "bfloat16": 0.016}
# What a dialect switches on without being asked.
DUAL_CLIP_BY_DEFAULT = {"verl": 3.0}
# Every token weighs the same. LUSPO's sums of sequences are left out: there the length is the point.
BY_TOKEN = {
    *("token_mean_rollout", "token_mean_minibatch", "token_mean_microbatch"),
    *("token_sum", "token_sum_constant", "token_sum_length"),
}
FAR = 10.0  # no policy is that far from its reference on a token that matters
SLOW_WARM_START = 1e-4  # a learning rate for pretrained weights
MOST_EQUAL = 0.5  # share of groups without a difference that is worth a word


def clip_range(settings: RunSettings) -> tuple[float, float]:
    """Return `epsilon` and `epsilon_high` with the default filled in."""
    return settings.epsilon, settings.resolved_axes()["epsilon_high"]


def _is_right_or_wrong(settings: RunSettings) -> bool:
    return settings.reward.function is None and [*settings.reward.weights] == ["correct"]


def _clips_ratios(settings: RunSettings) -> bool:
    return SURROGATES[settings.kernel].bounds_the_ratio and not settings.ratio_is_one


@RUN_RULES.rule("warning", "fault")
def planted_fault(settings: RunSettings) -> Iterator[str]:
    """The training loop is broken on purpose (conf/fault/) to test the doctor: the run is good for nothing else."""
    if settings.fault:
        yield f"fault={settings.fault} is planted: the loop is broken on purpose, for `grpolab diagnose` to find"


@RUN_RULES.rule("warning", "warm_start")
def nothing_to_start_from(settings: RunSettings) -> Iterator[str]:
    """A tiny model has random weights. Without a warm start, or at a rate that suits pretrained weights (`task=jsonl`
    has both), no answer is right, so all rewards are 0 and nothing is learnt.
    """
    warm = settings.warm_start
    if not isinstance(settings.model, TinyModel) or not _is_right_or_wrong(settings):
        return
    none, slow = warm.max_steps == 0, warm.learning_rate < SLOW_WARM_START
    if none or slow:
        why = "no warm start" if none else f"warm_start.learning_rate={warm.learning_rate:g} hardly moves them"
        longest = settings.max_completion_length
        yield (
            f"model=tiny has random weights, and {why}: no answer will be right, and a reward that is always 0 teaches"
            " nothing; set warm_start.max_steps=1500 warm_start.learning_rate=3e-3, and max_completion_length (now"
            f" {longest}) to the characters of the longest answer and one more; or take model=pretrained"
        )


@RUN_RULES.rule("warning", "epsilon_high")
def cap_scales_gradient(settings: RunSettings) -> Iterator[str]:
    """TRL's CISPO takes `epsilon_high` as the cap itself: below 1 it multiplies every gradient, also at ratio 1. Unset
    it falls back to epsilon, 0.2.
    """
    cap = absolute_cap(settings)
    if cap is not None and cap < 1:
        yield (
            f"epsilon_high={cap:g} is the cap itself in TRL's cispo, not 1 + epsilon_high: every weight at ratio"
            f" {cap:g} and above becomes {cap:g}, so on-policy gradients are scaled by {cap:g} (ScaleRL has 5.0)"
        )


@RUN_RULES.rule("warning", "num_generations")
def zero_variance_groups(settings: RunSettings) -> Iterator[str]:
    """A reward of 0 or 1 and a small group: at least half of the groups are expected to be all right or all wrong, so
    that their advantages are 0.
    """
    if not _is_right_or_wrong(settings) or settings.advantage_estimator not in GROUP_BASELINES:
        return
    # Convex in the accuracy p: prompts that differ in difficulty have at least the share of their mean.
    known = settings.warm_start.target_accuracy if settings.warm_start.max_steps else None
    p = 0.5 if known is None else known
    group = settings.num_generations
    equal = p**group + (1 - p) ** group
    if equal >= MOST_EQUAL:
        start = f"at the warm start's accuracy of {p:g}" if known is not None else "at any accuracy"
        yield (
            f"num_generations={group} and a reward of 0 or 1: {start} at least {equal:.0%} of the groups have equal"
            " rewards, and teach nothing"
        )


@RUN_RULES.rule("warning", "epsilon")
def epsilon_below_noise(settings: RunSettings) -> Iterator[str]:
    """The clip range is narrower than what rounding in `dtype` does to the ratio of a completion of that length: it
    clips at random.
    """
    level, length = settings.importance_sampling_level, settings.max_completion_length
    averaged = length if level in ONE_A_SEQUENCE else 1
    noise = LOG_PROB_NOISE[settings.dtype] / math.sqrt(averaged)
    narrow = min(clip_range(settings))
    if _clips_ratios(settings) and narrow < noise:
        over = f" over {length} tokens" if averaged > 1 else ""
        yield (
            f"a clip range of {narrow:g} is below what {settings.dtype} rounds a {level} ratio by{over}"
            f" (about {noise:.1g}): it clips at random"
        )


@RUN_RULES.rule("warning", "delta")
def delta_inside_range(settings: RunSettings) -> Iterator[str]:
    """The outer cap delta lies inside the clip range, and then it caps positive advantages too."""
    _, high = clip_range(settings)
    if settings.kernel == "clipped" and settings.delta is not None and settings.delta < 1 + high:
        yield (
            f"delta={settings.delta:g} is below 1 + epsilon_high = {1 + high:g}: it caps positive advantages too, and"
            " epsilon_high never acts"
        )


@RUN_RULES.rule("warning", "epsilon or importance_sampling_level")
def epsilon_of_another_level(settings: RunSettings) -> Iterator[str]:
    """A sequence ratio is a geometric mean over T tokens and moves less than a token's, by about sqrt(T): a clip range
    made for tokens clips less of it. On the same batches a range of 0.2 clips 2.2% of the tokens by sequence ratios and
    5.0% by token ratios (study `ratio_level`, arm `token`, addition); GSPO's own range is 3e-4.
    """
    low, _ = clip_range(settings)
    length = settings.max_completion_length
    comparable = TOKEN_EPSILON / math.sqrt(length)
    by_sequence = settings.importance_sampling_level in ONE_A_SEQUENCE
    if by_sequence and _clips_ratios(settings) and low > TOO_WIDE * comparable:
        yield (
            f"epsilon={low:g} at importance_sampling_level={settings.importance_sampling_level} is"
            f" {low / comparable:.0f} times what compares with a token's {TOKEN_EPSILON} over {length} tokens"
            f" ({comparable:.1g}): it will hardly clip"
        )


@RUN_RULES.rule("warning", "aggregation")
def sequences_weighted_by_length(settings: RunSettings) -> Iterator[str]:
    """The loss has one ratio per sequence but is averaged over tokens: a sequence's weight grows with its length.
    GSPO's aggregation is sequence_mean.
    """
    by_kernel = settings.kernel == "gmpo"
    by_ratio = settings.importance_sampling_level in ONE_A_SEQUENCE
    own_average = settings.framework == "verl" and (by_kernel or settings.importance_sampling_level == "sequence_token")
    longest = settings.max_completion_length
    if (by_ratio or by_kernel) and settings.aggregation in BY_TOKEN and longest > 1 and not own_average:
        what = "kernel=gmpo" if by_kernel else f"importance_sampling_level={settings.importance_sampling_level}"
        yield (
            f"{what} has one ratio per sequence, and aggregation={settings.aggregation} weighs each sequence by its"
            f" length, 1 to {longest}: GSPO's is sequence_mean"
        )


@RUN_RULES.rule("warning", "kl_output_clamp")
def kl_clamp_ends_gradient(settings: RunSettings) -> Iterator[str]:
    """Outside the clamp the KL stops pulling the policy back, exactly where it has drifted furthest."""
    ends: dict[str, tuple[float, float]] = {}  # clamp -> log(reference / policy) where the gradient ends: above, below
    if (most := settings.kl_input_clamp) is not None:
        ends[f"kl_input_clamp={most:g}"] = (most, -most)
    if (most := settings.kl_output_clamp) is not None:
        reach = math.sqrt(2 * most) if settings.kl_estimator == "k2" else most
        ends[f"kl_output_clamp={most:g}"] = (reach, -reach)
        if settings.kl_estimator == "k3":  # the two q at which exp(q) - q - 1 is the clamp
            above, below = (float(-1 - most - lambertw(-math.exp(-1 - most), k).real) for k in (-1, 0))
            ends[f"kl_output_clamp={most:g}"] = (above, below)
    acts = settings.beta > 0 and settings.kl_placement == "loss" and settings.kl_gradient == "plain"
    if acts and ends and min(above for above, _ in ends.values()) < FAR:
        above, below = min(above for above, _ in ends.values()), max(below for _, below in ends.values())
        yield (
            f"with {' and '.join(ends)} the KL (beta={settings.beta:g}) has no gradient where log(reference / policy)"
            f" is above {above:.2f} or below {below:.2f}"
        )


@RUN_RULES.rule("warning", "num_iterations or num_minibatches")
def clip_cannot_bind(settings: RunSettings) -> Iterator[str]:
    """One update per fresh batch: every ratio is exactly 1, so no clip range can act, and clip_ratio is 0."""
    cap = absolute_cap(settings)
    if SURROGATES[settings.kernel].clips and settings.ratio_is_one and (cap is None or cap >= 1):
        low, high = clip_range(settings)
        yield (
            "num_iterations=1 and num_minibatches=1 make one update per batch, with every ratio exactly 1:"
            f" epsilon={low:g} and epsilon_high={high:g} cannot act, the clip fraction stays 0"
        )


@RUN_RULES.rule("note", "dual_clip")
def dual_clip_by_default(settings: RunSettings) -> Iterator[str]:
    """A dialect has dual clip switched on although its plain name (GRPO, PPO) does not say so."""
    default = DUAL_CLIP_BY_DEFAULT.get(settings.framework or "")
    if default is not None and settings.dual_clip == default and settings.kernel == "clipped":
        yield (
            f"{settings.framework} has dual clip on by default: where A < 0 no ratio counts above"
            f" dual_clip={default:g}, in GRPO's paper there is no such bound"
        )


@RUN_RULES.rule("note", "model.path")
def dropout_is_off(settings: RunSettings) -> Iterator[str]:
    """The pretrained model's config has dropout. It is never applied here, because the ratio of the first pass would
    not be 1; a trainer that leaves it on computes something else.
    """
    if isinstance(settings.model, PretrainedModel) and (found := dropout_of(settings.model.path)):
        yield f"config.json of model.path={settings.model.path} has {found}: dropout stays off here, in every forward"


def dropout_of(model: str) -> str:
    """Return the dropout rates above 0 in the config of a model's local folder, `attention_dropout=0.1`, or ''."""
    config = read_json(Path(model) / "config.json") or {}
    rates = {name: value for name, value in config.items() if "drop" in name and isinstance(value, int | float)}
    return ", ".join(f"{name}={value:g}" for name, value in rates.items() if value > 0)


Options = Mapping[str, Any]  # of a `GRPOConfig`, all filled in
TRL_RULES = Rules[Options]("A GRPOConfig of TRL 1.16")  # traps of which it does not warn
REUSE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
# Options that change the sampler and not the log-probs that training takes for the sampler's.
TRUNCATES = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def _reuse(options: Options) -> tuple[str, bool]:
    """Return the optimiser steps per generation batch in words, and True if there is one at most."""
    mu, slices, window = (options[key] for key in REUSE)
    sentence = (
        f"optimiser steps per generation batch: {' * '.join(REUSE[:2])} / {REUSE[2]} = {mu} * {slices} / {window}"
        f" = {mu * slices / window:g}"
    )
    return sentence, window % (mu * slices) == 0


@TRL_RULES.rule("warning", "gradient_accumulation_steps")
def reuse_is_no_op(options: Options) -> Iterator[str]:
    """All passes over a batch fall into one accumulation window: num_iterations counts the same batch again in one
    step, and there is no off-policy step at all.
    """
    steps, on_policy = _reuse(options)
    if options["num_iterations"] > 1 and on_policy:
        yield f"{steps}; the passes add up in one step, num_iterations > 1 does nothing"


@TRL_RULES.rule("warning", "disable_dropout")
def dropout_moves_the_ratio(options: Options) -> Iterator[str]:
    """The model has dropout, and TRL keeps it on while sampling and training: the ratio of the first pass is not 1."""
    rates = dropout_of(str(options["model_name_or_path"] or ""))
    if rates and not options["disable_dropout"]:
        yield f"the model's config.json has {rates} and disable_dropout=False: ratios of the first pass are not 1"


@TRL_RULES.rule("warning", "top_p, top_k, min_p or repetition_penalty")
def sampler_is_another_policy(options: Options) -> Iterator[str]:
    """Truncated sampling (top_p, ...): completions come from another policy than the old log-probs say."""
    changed = [f"{name}={options[name]}" for name, off in TRUNCATES.items() if options[name] not in (off, None)]
    if changed:
        yield f"{', '.join(changed)} change the sampler, not its log-probs: the ratio is not that to the sampler"


@TRL_RULES.rule("warning", "num_iterations or steps_per_generation")
def trl_clip_cannot_bind(options: Options) -> Iterator[str]:
    """No more than one optimiser step per generation batch: every ratio is 1 and clip_ratio is always 0. This is
    TRL's default.
    """
    cap = options["epsilon"] if options["epsilon_high"] is None else options["epsilon_high"]
    clips = options["loss_type"] not in ("sapo", "vespo") and (options["loss_type"] != "cispo" or cap >= 1)
    steps, on_policy = _reuse(options)
    if clips and on_policy:
        yield f"{steps}; every ratio is 1, epsilon={options['epsilon']:g} cannot act, clip_ratio is 0"


@TRL_RULES.rule("note", "steps_per_generation")
def hidden_staleness(options: Options) -> Iterator[str]:
    """More slices of a generation batch than accumulation steps: later slices are off-policy even with
    num_iterations=1.
    """
    if options["num_iterations"] == 1 and options["steps_per_generation"] > options["gradient_accumulation_steps"]:
        yield f"{_reuse(options)[0]}; all but the first are off-policy, although num_iterations is 1"


@TRL_RULES.rule("note", "importance_sampling_level")
def luspo_by_token(options: Options) -> Iterator[str]:
    """LUSPO is GSPO times the length; at TRL's default level it is a plain sum over tokens."""
    if options["loss_type"] == "luspo" and options["importance_sampling_level"] == "token":
        yield "loss_type=luspo at importance_sampling_level=token is a sum over tokens: LUSPO has the sequence ratio"
