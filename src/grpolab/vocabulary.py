"""Names that several packages share; `meanings.py` explains metrics and tags."""

from __future__ import annotations

# --- registration ---------------------------------------------------------------------------------------------------
REGISTRY = "experiments/registrations.jsonl"  # below the project
# Each range of seeds has one use: those below REGIME_SEEDS explore, those below TUNING_SEEDS choose regimes, those
# below CONFIRMATION_SEEDS tune values, and the others decide registered hypotheses.
REGIME_SEEDS, TUNING_SEEDS, CONFIRMATION_SEEDS = 900, 1000, 2000
REGIMES = "regimes"  # the study that chooses them

# Numbers of seeds after which registered hypotheses are tested, at the levels of `report/statistics/looks.py`.
LOOKS = (5, 10, 15, 20)

# The default margin, the smallest difference that matters: for a score, a share of the baseline's gain on the task; for
# a quantity that is compared by ratios, this factor.
MARGIN_OF_GAIN, MARGIN_FACTOR = 0.15, 1.1

# A warm start has failed if its accuracy is below this share of its target, or of the other seeds' accuracy.
LOW_START = 0.5
# One below this share of its target did not reach it: of those that did, the kept weights lie above .8 of it.
NEAR_TARGET = 0.8

# --- outcomes of a cell --------------------------------------------------------------------------------------------
COMPLETED, DIVERGED, STOPPED, FAILED, MISSING = "completed", "diverged", "stopped", "failed", "missing"
DAMAGED = "damaged"
UNFINISHED = "unfinished"  # in the page of a study that trains; no file says it
BROKEN_OFF = (DIVERGED, STOPPED)
RESULTS = (COMPLETED, *BROKEN_OFF)  # these are results of the cell; a failure is about the machine
OUTCOMES = {
    COMPLETED: "ran to its end: the first of rollout_steps, max_completions, max_optimizer_steps and max_seconds",
    DIVERGED: "loss, gradient or weights became non-finite; the last finite evaluation is carried forward",
    STOPPED: "its early stop found it hopeless: the metric of `early_stop` stayed at or below the threshold; the last"
    " evaluation is carried forward",
    FAILED: "an error ended it; the error is kept",
    MISSING: "planned, and not run yet",
    DAMAGED: "it ended, and its files are not those that were written then: left out; `--retry-failed` trains it anew",
}

# --- states of a tuning's trial, in trials.json; it diverges and fails as a run does ---------------------------------
COMPLETE, PRUNED, RUNNING = "complete", "pruned", "running"

# --- what a study may ask its report for, besides metrics -----------------------------------------------------------
# fmt: off
FIGURES = (
    "F1", "F2", "F3", "F4", "F5", "F6", "F8", "F9", "F10", "F12", "F13", "F15", "F16", "F17", "F18", "F20", "F21",
    "F24", "F25", "F26", "F27", "F28", "F32", "F34", "F35", "F36", "F37", "F38", "F39", "F42", "F43", "F44",
    "D1", "D2",
)
GONE_FIGURES = ("F7", "F11", "F14", "F19", "F22", "F23", "F29", "F30", "F31", "F33")  # in older plans
# fmt: on
ANALYTIC_FIGURES = ("F9", "F10")  # need no run: a collection of studies may ask for them

# --- grids ---------------------------------------------------------------------------------------------------------
COUNTERFACTUAL_EPSILONS = {"token": (0.1, 0.2, 0.28), "sequence": (0.2, 0.02, 3e-4)}
QUANTILES = {"min": 0.0, "p001": 0.001, "p01": 0.01, "p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
SIGNS = {"pos": "advantage above zero", "neg": "advantage below zero"}
LEVELS = ("token", "sequence")
# Upper edges of the histogram of |ratio - 1| on the side where clipping acts; a last bin takes the rest.
EXCESS_EDGES = tuple(10.0 ** (-4 + i / 8) for i in range(33))  # 1e-4 ... 1

# Edges of the bins of a token's probability by the sampler.
GAP_EDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9, 0.99)


def counterfactual(level: str, epsilon: float) -> str:
    """Return the name of the counterfactual clip fraction of a ratio level at an epsilon, e.g. `cf/token_0.2`."""
    return f"cf/{level}_{epsilon:g}"


def quantile_metric(level: str, quantile: str, sign: str) -> str:
    """Return the name of a quantile of a level's ratios for a sign of the advantage, e.g. `ratio/token_p99_pos`."""
    return f"ratio/{level}_{quantile}_{sign}"


PASS_AT = (4, 16, 64, 256)  # the k of pass@k that an evaluation computes, up to evaluation.samples
EXACT_EVALUATION = ("eval/accuracy_expected", "eval/accuracy_greedy")
MAJ_AT, OTHER = "eval/maj_at_k", "eval/other_accuracy"
SAMPLED_EVALUATION = ("eval/accuracy_expected", "eval/pass_at_k", "eval/length_mean", "eval/length_std")
EVALUATION = (*EXACT_EVALUATION, *SAMPLED_EVALUATION[1:], *(f"eval/pass_at_{k}" for k in PASS_AT), MAJ_AT, OTHER)


def evaluation_metrics(
    unique_answer: bool, samples: int = 1, votes: bool = False, others: bool = False
) -> tuple[str, ...]:
    """Return the metrics that a task's evaluation computes: exact ones where only one answer is right.

    `samples` is evaluation.samples; `votes`: the task has final answers to vote among; `others`: there are other_tasks.
    """
    metrics = [*(EXACT_EVALUATION if unique_answer else SAMPLED_EVALUATION)]
    metrics += [f"eval/pass_at_{k}" for k in PASS_AT if k <= samples]
    metrics += [MAJ_AT] * (votes and samples > 1 and not unique_answer) + [OTHER] * others
    return tuple(metrics)
