"""The meaning and unit of every name in journals, charts and tables.

`grpolab vocabulary` writes `docs/metrics.md` from this file. A record lacks a metric that was not computed, or that has
nothing to be computed from (no token was up-clipped): missing is never zero. The journal has records of four kinds:
an optimiser step (`update`), a rollout step (`rollout`), an evaluation and, now and then, a `histogram`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from grpolab import vocabulary
from grpolab.quantities import QUANTITIES, Thresholds

# --- tags of an MLflow run; besides them each factor of its study is one, with the level of the cell ----------------
TAGS = {
    "study": "the study that asks for the run",
    "variant": "the cell without its seed: one level of each factor; absent on the summary run",
    "arm": "the level of the factor that the study compares",
    "task": "what is learnt",
    "seed": "the run's seed",
    "signature": "hash of resolved settings, of the content that they name (data, own code, local model, package) and of"
    " results_version; the run's folder",
    "outcome": "completed, diverged, stopped or failed",
    "lost": "no, or how: collapsed, diverged or stopped; by the thresholds of the study",
    "cause": "the first cause that the doctor finds in its journal (`grpolab diagnose RUN`), or `none known`",
}


@dataclass(frozen=True)
class Metric:
    """One column of the journal."""

    name: str
    meaning: str
    unit: str
    kind: str  # update, rollout, evaluation or timing
    mirrored: bool = False  # True: MLflow draws it; the rest is in the journal artefact


# One metric, one line.
# fmt: off
_LISTED = [
    Metric("loss", "The number that was minimised; its value says nothing about progress.", "1", "update", mirrored=True),
    Metric("grad_norm", "Global L2 norm of the gradient before clipping.", "1", "update", mirrored=True),
    Metric("grad_cosine", "Cosine of the gradient with that of the optimiser step before (diagnostics.gradient_cosine).", "1", "update"),
    Metric("learning_rate", "AdamW's learning rate in this step.", "1", "update", mirrored=True),
    Metric("clip/out_of_range", "Ratio outside [1-epsilon, 1+epsilon_high], whatever the advantage and whether the kernel clips (gmpo: log ratio outside [-epsilon, epsilon_high]; dppo, ipo: tokens that they drop).", "share of tokens", "update", mirrored=True),
    Metric("clip/active_low", "A<0 and the ratio below 1-epsilon: the clipped branch is used, so the advantage gives no gradient (band: for either sign of A; dppo, ipo: tokens dropped because their probability, not their ratio, fell too far; ipo for either sign of A).", "share of tokens", "update", mirrored=True),
    Metric("clip/active_high", "A>0 and the ratio above 1+epsilon_high: the clipped branch is used, so the advantage gives no gradient (band: for either sign of A; dppo, ipo: tokens dropped because their probability, not their ratio, rose too far; ipo for either sign of A).", "share of tokens", "update", mirrored=True),
    Metric("clip/active", "clip/active_low + clip/active_high.", "share of tokens", "update", mirrored=True),
    Metric("clip/active_low_nz", "clip/active_low among tokens with a non-zero advantage.", "share of tokens", "update"),
    Metric("clip/active_high_nz", "clip/active_high among tokens with a non-zero advantage.", "share of tokens", "update"),
    Metric("clip/active_nz", "clip/active among tokens with a non-zero advantage.", "share of tokens", "update"),
    Metric("clip/active_sequences", "Mean over sequences of each one's share of tokens in clip/active.", "mean share of a sequence", "update", mirrored=True),
    Metric("clip/outer", "Tokens with A<0 and a ratio above the outer cap (delta, dual_clip): their gradient is zero.", "share of tokens", "update", mirrored=True),
    Metric("clip/dropped", "Tokens that the kernel left out for another reason than the ratio (clip_cov's draw).", "share of tokens", "update"),
    Metric("clip/capped", "Tokens whose weight was cut (CISPO's cap) or penalised (kl_cov) while their gradient was kept.", "share of tokens", "update", mirrored=True),
    Metric("kl_old/k1", "KL(old || new), estimator k1: mean of -log ratio (can be negative).", "nat per token", "update"),
    Metric("kl_old/k3", "KL(old || new), estimator k3: mean of ratio - 1 - log ratio.", "nat per token", "update", mirrored=True),
    Metric("kl_ref/k3", "KL(new || warm start), estimator k3 whatever kl_estimator is; only where beta > 0.", "nat per token", "update", mirrored=True),
    Metric("entropy/current", "Entropy of the policy that is being updated, before this optimiser step, mean over completion tokens.", "nat per token", "update", mirrored=True),
    Metric("ratio/ess", "Effective sample size of the token ratios, (sum r)^2 / (N sum r^2).", "share of tokens", "update", mirrored=True),
    Metric("ratio/token_mean", "Mean token ratio.", "1", "update"),
    Metric("ratio/sequence_mean_pos", "Mean sequence ratio (geometric mean of its token ratios) where the advantage is above zero.", "1", "update"),
    Metric("ratio/sequence_mean_neg", "Mean sequence ratio where the advantage is below zero.", "1", "update"),
    Metric("ratio/token_min", "Smallest token ratio.", "1", "update", mirrored=True),
    Metric("ratio/token_max", "Largest token ratio.", "1", "update", mirrored=True),
    Metric("ratio/sequence_min", "Smallest sequence ratio.", "1", "update"),
    Metric("ratio/sequence_max", "Largest sequence ratio.", "1", "update", mirrored=True),
    Metric("p_old/up_clipped", "Mean old probability of the tokens in clip/active_high.", "probability", "update"),
    Metric("p_old/down_clipped", "Mean old probability of the tokens in clip/active_low.", "probability", "update"),
    Metric("p_old/all", "Mean old probability of all tokens.", "probability", "update"),
    Metric("rejection/tokens", "Tokens that sampler_rejection leaves out of the policy loss.", "share of tokens", "update", mirrored=True),
    Metric("rejection/sequences", "Sequences that sampler_rejection leaves out whole.", "share of completions", "update", mirrored=True),
    Metric("rejection/unlikely", "Tokens left out among those whose old probability is below 0.1.", "share of such tokens", "update"),
    Metric("rejection/signal", "Share of the sum of |A| (1 - old probability) over tokens that those left out hold: how much of the policy gradient at its tokens' logits is lost.", "share", "update", mirrored=True),
    Metric("reward/mean", "Mean reward of the sampled completions; those without a score are left out.", "reward", "rollout", mirrored=True),
    Metric("reward/std", "Standard deviation of the reward over the sampled completions (Bessel).", "reward", "rollout", mirrored=True),
    Metric("reward/correct", "Mean of the reward's part `correct`.", "share of completions", "rollout", mirrored=True),
    Metric("reward/verdict", "Mean of the part `correct` as a verifier that errs reports it (reward.verifier).", "share of completions", "rollout"),
    Metric("reward/format", "Mean of the reward's part `format`: the completion parses.", "share of completions", "rollout", mirrored=True),
    Metric("reward/overlong", "Mean of the reward's part `overlong`: 0 to -1 over the last reward.overlong_buffer of max_completion_length.", "reward", "rollout", mirrored=True),
    Metric("reward/length", "Mean of the reward's part `length`, by the rule reward.length_penalty.", "reward", "rollout", mirrored=True),
    Metric("zero_variance/share", "Groups whose rewards are all equal: without advantage_history they teach nothing.", "share of groups", "rollout", mirrored=True),
    Metric("zero_variance/all_right", "Groups with equal rewards in which every completion is right.", "share of groups", "rollout", mirrored=True),
    Metric("zero_variance/all_wrong", "Groups with equal rewards in which no completion is right.", "share of groups", "rollout", mirrored=True),
    Metric("advantages/nonzero", "Completions that train and whose advantage is not 0 (DCPO's response utilization ratio); only with advantage_history.", "share of completions", "rollout", mirrored=True),
    Metric("prompts/again", "Sampled groups whose prompt had been sampled before: on the others advantage_history has nothing to go by; only with it.", "share of groups", "rollout", mirrored=True),
    Metric("prompts/seen", "Training prompts that were sampled so far; recorded only where a rule chooses prompts by their last groups.", "share of prompts", "rollout", mirrored=True),
    Metric("prompts/left_out", "Training prompts whose last group reached pass_rate_cap: they are not sampled again.", "share of prompts", "rollout", mirrored=True),
    Metric("sampling/kept_mass", "Probability of the tokens from which top_k, top_p or min_p let the sampler choose, mean over sampled tokens.", "probability", "rollout", mirrored=True),
    Metric("filter/sampled", "Completions that the rollout step sampled, those of groups that do not train included; only with filter_groups.", "completions", "rollout", mirrored=True),
    Metric("filter/passed", "Sampled groups that differ in the filter's metric.", "share of groups", "rollout", mirrored=True),
    Metric("filter/groups", "Groups that differ and train; fewer than prompts_per_step where max_batches did not find as many.", "groups", "rollout", mirrored=True),
    Metric("length/mean", "Mean completion length, end token included.", "tokens", "rollout", mirrored=True),
    Metric("length/std", "Standard deviation of the length (Bessel).", "tokens", "rollout"),
    Metric("length/p95", "95th percentile of the length.", "tokens", "rollout"),
    Metric("length/right_mean", "Mean length of right completions.", "tokens", "rollout"),
    Metric("length/wrong_mean", "Mean length of wrong completions.", "tokens", "rollout"),
    Metric("length/right_p95", "95th percentile of the length of right completions.", "tokens", "rollout"),
    Metric("length/wrong_p95", "95th percentile of the length of wrong completions.", "tokens", "rollout"),
    Metric("truncation/share", "Completions that ran into max_completion_length without an end token or stop string.", "share of completions", "rollout", mirrored=True),
    Metric("truncation/right", "Truncated among right completions.", "share of completions", "rollout"),
    Metric("truncation/wrong", "Truncated among wrong completions.", "share of completions", "rollout"),
    Metric("completions/unique", "Distinct completions of a prompt over num_generations, mean over prompts.", "share of completions", "rollout"),
    Metric("entropy/behaviour", "Entropy of the policy before the first update on the batch, which sampled it unless batches are stale; mean over completion tokens.", "nat per token", "rollout", mirrored=True),
    Metric("entropy/behaviour_p80", "80th percentile of that policy's entropy over completion tokens.", "nat per token", "rollout"),
    Metric("gap/sampler_trainer", "Largest |log-prob of the sampler - old log-prob of the trainer| of a token in the batch; only where old_log_probs=trainer.", "nat", "rollout", mirrored=True),
    Metric("gap/k1", "KL(sampler || trainer before the update), estimator k1: mean of log(sampler / trainer) over tokens (can be negative); this and the next six only where diagnostics.mismatch.", "nat per token", "rollout", mirrored=True),
    Metric("gap/k3", "The same KL, estimator k3: mean of w - 1 - log w, w = trainer / sampler.", "nat per token", "rollout", mirrored=True),
    Metric("gap/chi2", "Chi-squared distance of trainer and sampler: mean of w^2 over tokens, minus 1.", "1", "rollout", mirrored=True),
    Metric("gap/chi2_sequence", "The same over sequences, w the product of a sequence's token weights, log w within 20 of 0.", "1", "rollout"),
    Metric("gap/perplexity_ratio", "Perplexity of the trainer over that of the sampler on a sequence, mean over sequences.", "1", "rollout", mirrored=True),
    Metric("gap/ess", "Effective sample size of the token weights w, (sum w)^2 / (N sum w^2).", "share of tokens", "rollout", mirrored=True),
    Metric("gap/ess_sequence", "Effective sample size of the sequence weights.", "share of completions", "rollout", mirrored=True),
    Metric("gap/first_pass", "Largest |log ratio| before the first optimiser step of the batch; 0 on CPU in float32 where old_log_probs=trainer.", "nat", "rollout"),
    Metric("kl_ref/exact", "KL(policy || warm start) after the rollout step's updates, exact over the vocabulary, mean over its completion tokens.", "nat per token", "rollout", mirrored=True),
    Metric("weights/step_norm", "L2 norm of the change of all weights in this rollout step.", "1", "rollout", mirrored=True),
    Metric("probability/below_0.1", "Sampled tokens whose old probability is below 0.1.", "share of tokens", "rollout"),
    Metric("eval/accuracy_expected", "Expected accuracy of one sample: exact (product of token probabilities) where the right answer is unique, else the mean over sampled completions.", "share of items", "evaluation", mirrored=True),
    Metric("eval/accuracy_greedy", "Accuracy of the greedy completion (where the right answer is unique).", "share of items", "evaluation", mirrored=True),
    Metric("eval/pass_at_k", "Items with a right one among evaluation.samples completions (where many are right).", "share of items", "evaluation", mirrored=True),
    *(Metric(f"eval/pass_at_{k}", f"Items with a right one among {k} completions, where evaluation.samples is {k} or more: exact if the right answer is unique, else estimated without bias (2107.03374, eq. 1).", "share of items", "evaluation", mirrored=True) for k in vocabulary.PASS_AT),
    Metric("eval/maj_at_k", "Items whose most frequent final answer among evaluation.samples completions is right, a tie as the share of its answers that are (task=jsonl, task=dataset).", "share of items", "evaluation", mirrored=True),
    Metric("eval/other_accuracy", "Mean over other_tasks of their eval/accuracy_expected: what training on the task leaves of them.", "share of items", "evaluation", mirrored=True),
    Metric("eval/reward", "Mean reward of completions of held-out prompts, in logs of other programs alone.", "reward", "evaluation"),
    Metric("eval/length_mean", "Mean length of the sampled evaluation completions (where many answers are right).", "tokens", "evaluation", mirrored=True),
    Metric("eval/length_std", "Standard deviation of that length (Bessel).", "tokens", "evaluation", mirrored=True),
    Metric("seconds/rollout", "Wall time of sampling, scoring and the sampler-trainer check.", "s", "timing"),
    Metric("seconds/update", "Wall time of all updates of the rollout step, their diagnostics included.", "s", "timing"),
    Metric("seconds/evaluation", "Wall time of the evaluation after the rollout step.", "s", "timing"),
    Metric("seconds/elapsed", "Wall time since the run started, earlier sessions included.", "s", "timing"),
    Metric("system/rss_mib", "Resident memory of the worker.", "MiB", "timing", mirrored=True),
    Metric("system/cpu_percent", "CPU time over wall time of the worker since the last row.", "%", "timing", mirrored=True),
]
# fmt: on

_WORDS = {"min": "Smallest", "p50": "Median", "max": "Largest"}
_QUANTILES = [
    Metric(
        vocabulary.quantile_metric(level, quantile, sign),
        f"{_WORDS.get(quantile) or f'{share:.3g} quantile'} of the {level} ratios, {text}.",
        *("1", "update"),
    )
    for level in vocabulary.LEVELS
    for quantile, share in vocabulary.QUANTILES.items()
    for sign, text in vocabulary.SIGNS.items()
]
_COUNTERFACTUALS = [
    Metric(
        vocabulary.counterfactual(level, epsilon),
        f"clip/active if this run's {level} ratios met epsilon={epsilon:g} on both sides.",
        *("share of tokens", "update"),
    )
    for level, epsilons in vocabulary.COUNTERFACTUAL_EPSILONS.items()
    for epsilon in epsilons
]
_TOKENS, _SEQUENCE, _AS_LOSS = "share of tokens", "mean share of a sequence", "as the loss is averaged"
# Framework -> the clip fraction that its users look at, what it counts at the run's own kernel and range, and its unit.
# DeepSpeed-Chat and NeMo-RL log none.
# fmt: off
_CLIP_FRACTIONS = {
    "trl": ("clip_ratio/region_mean", "A<0 below or A>0 above the range, the ratio after the cap delta; a sequence ratio: of all sequences", _TOKENS),
    "verl": ("actor/pg_clipfrac", "the clip, before the dual clip, changed the loss (cispo: ratio-only); without padding", _TOKENS),
    "roll": ("actor/clipfrac@sum", "the clip changed the loss; token means count padding, sequence_sum has no upper bound of 1", _AS_LOSS),
    "openrlhf": ("ppo_clip_ratio", "the clip, before the dual clip, changed the loss; without padding", _TOKENS),
    "slime": ("pg_clipfrac", "the clip changed the loss (cispo: ratio-only); by default the mean of sequences' shares", _AS_LOSS),
    "areal": ("clip_ratio", "A<0 below or A>0 above the range; without padding and rejected tokens", _TOKENS),
    "open_instruct": ("policy/clipfrac_avg", "A<0 below or A>0 above the range (cispo: above, any A); without padding", _TOKENS),
    "prime_rl": ("is_masked", "dropped from the loss by the kernel's own rule; empty sequences count as 0", _SEQUENCE),
    "skyrl": ("clip_ratio", "A<0 below or A>0 above the range (cispo: ratio-only), the ratio in float32; without padding", _TOKENS),
    "torchtune": ("clipfrac", "A<0 below or A>0 above the range; without padding", _AS_LOSS),
}
# fmt: on
CLIP_METRIC = {framework: metric for framework, (metric, _, _) in _CLIP_FRACTIONS.items()}


def convention(framework: str) -> str:
    """Return the journal's name of an update's clip fraction as a framework defines it, in a run of any dialect."""
    return f"convention/{framework}"


_CONVENTIONS = [
    Metric(convention(framework), f"`{metric}` of {framework}: {counted}.", unit, "update", mirrored=True)
    for framework, (metric, counted, unit) in _CLIP_FRACTIONS.items()
]

_EVERY = [*_LISTED, *_QUANTILES, *_COUNTERFACTUALS, *_CONVENTIONS]
METRICS: dict[str, Metric] = {metric.name: metric for metric in _EVERY}

# Columns that every record has besides its metrics.
POSITIONS = {
    "kind": "update, rollout, evaluation or histogram",
    "rollout_step": "rollout step, from 0; an evaluation at n stands after n rollout steps (0: the start)",
    "iteration": "pass over the batch, from 0 (updates and histograms)",
    "minibatch": "minibatch within the pass, from 0 (updates and histograms)",
    "optimizer_step": "optimiser steps taken before this record",
    "completions": "completions sampled so far, this rollout step's included (rollouts and evaluations)",
}

# Fields of a histogram record: lists, not numbers.
HISTOGRAM_FIELDS = {
    "excess/token_pos": "counts of ratio - 1 by EXCESS_EDGES, tokens with A>0 and ratio>1 (first entry: ratio<=1)",
    "excess/token_neg": "counts of 1 - ratio by EXCESS_EDGES, tokens with A<0 and ratio<1 (first entry: ratio>=1)",
    "excess/sequence_pos": "the same with each token's sequence ratio, A>0",
    "excess/sequence_neg": "the same with each token's sequence ratio, A<0",
    "position/count": "tokens at each position of a completion from its start",
    "position/abs_log_ratio": "sum of |log ratio| at each position",
    "position/active": "clipped tokens (clip/active) at each position",
    "position_end/count": "tokens at each position from the end (entry 0: the last token)",
    "position_end/abs_log_ratio": "sum of |log ratio| at each position from the end",
    "position_end/active": "clipped tokens at each position from the end",
    "probability/counts": "sampled tokens by old probability, ten equal bins",
    "gap/count": "sampled tokens by the sampler's probability, by GAP_EDGES; this and the next two only where diagnostics.mismatch",
    "gap/abs_log_ratio": "sum of |log(trainer / sampler)| over them",
    "gap/ratio": "sum of trainer / sampler over them",
}


def page() -> str:
    """Return `docs/metrics.md`, the whole vocabulary as one page."""
    lines = ["# Metrics", "", "Generated by `grpolab vocabulary`; the source is `src/grpolab/meanings.py`.", ""]

    def add(title: str, head: str, rows: Iterable[str]) -> None:
        lines.extend([f"## {title}", "", head, "|---" * (head.count("|") - 1) + "|", *rows, ""])

    for kind, title in (
        ("update", "Per optimiser step"),
        ("rollout", "Per rollout step"),
        ("evaluation", "Per evaluation"),
        ("timing", "Timing and memory (`timing.jsonl`, outside every promise of equality)"),
    ):
        rows = [
            f"| `{m.name}` | {m.meaning.replace('|', '&#124;')} | {m.unit} | {'yes' if m.mirrored else ''} |"
            for m in METRICS.values()
            if m.kind == kind
        ]
        add(title, "| metric | meaning | unit | MLflow |", rows)
    thresholds = {field.name: f"{field.default:g}" for field in fields(Thresholds)}
    for title, table in (
        ("Of a whole run, as tables and hypotheses name it", QUANTITIES),
        ("Thresholds of its labels (`stability:` in a study file)", thresholds),
        ("Positions", POSITIONS),
        ("Histograms", HISTOGRAM_FIELDS),
        ("Outcomes", vocabulary.OUTCOMES),
        ("MLflow tags (besides them each factor of the study is one, with the level of the cell)", TAGS),
    ):
        rows = [f"| `{name}` | {meaning.replace('|', '&#124;')} |" for name, meaning in table.items()]
        add(title, "| name | meaning |", rows)
    return "\n".join(lines)
