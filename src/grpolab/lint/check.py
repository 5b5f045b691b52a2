"""Rules about a study: arms that are the same function, and comparisons that show something else than they say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from grpolab.lint import rules, trl
from grpolab.lint.rules import BOUNDS_THE_RATIO, ONE_A_SEQUENCE, SEVERITIES, Arms, Finding, Rule, clip_range, rule
from grpolab.settings.equalities import (
    AT_EQUAL_LENGTHS,
    EXACT,
    Equality,
    ratio_is_one,
    rewritten,
    updates_per_batch,
    why_the_same,
)
from grpolab.settings.run import RunSettings
from grpolab.sweep.plan import Plan
from grpolab.sweep.study import Study, least_seeds

# Smallest difference, in standard deviations of the paired differences, that a two-sided t-test at .05 with so many
# pairs finds with power .8, before Holm's correction.
DETECTABLE = {2: 11.55, 3: 3.26, 4: 2.13, 5: 1.68, 6: 1.43, 7: 1.27, 8: 1.16, 9: 1.07, 10: 1.0}
FEWEST = 3  # seeds; two find nothing below eleven standard deviations
T_TESTS = ("paired_t", "paired_log_t", "equivalence")
# Seeds that a statement usually needs: ten for accuracies, five for what drifts over a run, by its standard deviation.
ENOUGH = {"eval/": 10, "final_score": 10, "mean_score": 10, "gain": 10, "entropy": 5, "kl_ref": 5}
# A claim about one of these knows that steps differ in size.
STEP_SIZES = {"weights/step_norm", "grad_norm", "grad_norm_p50", "grad_norm_p99", "grad_norm_max"}
# Aggregations whose gradient is a mean's times something.
SCALES = {
    "sequence_sum": "the length of a completion",
    "sequence_sum_nonempty": "the length of a completion",
    "token_sum": "the tokens of a minibatch",
    "token_sum_constant": "the mean length over max_completion_length",
    "token_sum_length": "the tokens of a minibatch over max_completion_length",
}


class SameArms(NamedTuple):
    """Two arms that are one function."""

    first: str
    second: str
    reasons: tuple[str, ...]


@rule("warning", "placebo")
def same_function(arms: Arms) -> Iterator[str]:
    """Two arms are the same function, by their resolved settings and the equalities below, and the study declares
    neither a placebo nor a claim of equality.
    """
    yield from _sentences(arms, _same_arms(arms, EXACT))


@rule("warning", "task")
def same_at_equal_lengths(arms: Arms) -> Iterator[str]:
    """Two arms differ only in how they average over lengths, and the task's right answers all have one length."""
    exact = _same_arms(arms, EXACT)
    known = {(same.first, same.second, facet) for same, facets in exact.items() for facet in facets}
    found = {
        same: [facet for facet in facets if (same.first, same.second, facet) not in known]
        for same, facets in _same_arms(arms, AT_EQUAL_LENGTHS).items()
    }
    yield from _sentences(arms, {same: facets for same, facets in found.items() if facets})


def _same_arms(arms: Arms, table: Sequence[Equality]) -> dict[SameArms, list[str]]:
    """Pairs that are one function and not declared so, each with its facets."""
    found = defaultdict[SameArms, list[str]](list)
    for facet in arms.facets:
        seen: dict[str, str] = {}
        for arm, settings in facet.arms.items():
            first = seen.setdefault(str(rewritten(settings, table)), arm)
            if first != arm and not arms.declared_equal(first, arm):
                reasons = why_the_same(facet.arms[first], settings, table) or []
                found[SameArms(first, arm, tuple(reasons))].append(facet.label)
    return found


def _sentences(arms: Arms, found: dict[SameArms, list[str]]) -> Iterator[str]:
    for same, facets in found.items():
        place = f" for {' and for '.join(facets)}" if len(facets) < len(arms.facets) else ""
        reasons = "; ".join(same.reasons) or "their settings are equal"
        yield f"arms {same.first} and {same.second} are the same function{place}: {reasons}"


@rule("error", "hypotheses")
def claim_about_equals(arms: Arms) -> Iterator[str]:
    """A hypothesis claims a difference between two arms that are the same function wherever it looks."""
    for claim in arms.study.hypotheses:
        for of, minus in pairwise(claim.arms):
            pairs = [(facet.arms[of], facet.arms[minus]) for facet in arms.facets_of(claim)]
            reasons = [why_the_same(*pair) for pair in pairs]
            if claim.direction != "equal" and reasons and None not in reasons:
                yield (
                    f"hypothesis {claim.id} claims that {of} and {minus} differ, which are the same function:"
                    f" {'; '.join(reasons[0] or ['equal settings'])}"
                )


@rule("warning", "epsilon")
def one_epsilon_for_two_levels(arms: Arms) -> Iterator[str]:
    """Token and sequence ratios are compared at the same clip range only, which is not the same share of clipping:
    match the clip fraction, or give each level several ranges.
    """
    for facet in arms.facets:
        ranges = defaultdict[str, set[tuple[float, float]]](set)
        for settings in facet.arms.values():
            if settings.kernel in BOUNDS_THE_RATIO and not ratio_is_one(settings):
                level = "sequence" if settings.importance_sampling_level in ONE_A_SEQUENCE else "token"
                ranges[level].add(clip_range(settings))
        if len(ranges) > 1 and ranges["token"] == ranges["sequence"]:
            shown = ", ".join(f"{low:g}/{high:g}" for low, high in sorted(ranges["token"]))
            yield f"token and sequence ratios have the same clip ranges ({shown}), which clip different shares"
            return


@rule("warning", "learning_rate")
def one_rate_for_two_scales(arms: Arms) -> Iterator[str]:
    """Arms whose aggregations differ in the scale of the gradient have one learning rate: the smaller step may be all
    that is seen. AdamW hides a scale, max_grad_norm brings it back. A claim about the size of steps shows that the
    study knows.
    """
    said = {arm for claim in arms.study.hypotheses if claim.metric in STEP_SIZES for arm in claim.arms}
    for facet in arms.facets:
        scales_at = defaultdict[tuple[float, float], set[str]](set)
        for settings in facet.arms.values():
            scales_at[settings.learning_rate, settings.max_grad_norm].add(SCALES.get(settings.aggregation, ""))
        for arm, settings in facet.arms.items():
            rate, norm, scale = settings.learning_rate, settings.max_grad_norm, SCALES.get(settings.aggregation)
            if scale and arm not in said and norm < float("inf") and len(scales_at[rate, norm]) > 1:
                said.add(arm)
                yield (
                    f"arm {arm} has gradients that are a mean's times {scale}, at the learning_rate={rate:g} and"
                    f" max_grad_norm={norm:g} of other arms"
                )


@rule("warning", "max_optimizer_steps")
def reuse_costs_rollouts(arms: Arms) -> Iterator[str]:
    """Arms with more updates per batch sample fewer completions, because the budget counts updates: what reuse does and
    what less data does are one comparison.
    """
    for facet in arms.facets:
        budgets = sorted((updates_per_batch(s), s.planned_steps * s.batch_size) for s in facet.arms.values())
        for (few, completions), (many, left) in pairwise(budgets):
            if few < many and completions > left:
                yield (
                    f"{many} updates per batch get {left} completions and {few} get {completions}:"
                    " reuse and less data are one comparison"
                )
                return


@rule("note", "seeds")
def hardly_a_test(arms: Arms) -> Iterator[str]:
    """Fewer seeds than a hypothesis asks for, or than its test can decide with: it will stay undecided."""
    seeds = len(arms.seeds)
    for claim in arms.study.hypotheses:
        needed = max(claim.seeds, least_seeds(claim.test, len(claim.arms)))
        if seeds < needed:
            yield f"seeds={seeds} leave {claim.id} undecided: it asks for {needed} (test={claim.test})"


@rule("note", "seeds")
def too_few_seeds(arms: Arms) -> Iterator[str]:
    """Fewer seeds than a t-test on a statement of that kind usually needs: accuracies ten, entropy and KL to the start
    five, all else three.
    """
    seeds = len(arms.seeds)
    wanting = defaultdict[int, list[str]](list)
    for claim in arms.study.hypotheses:
        needed = next((count for name, count in ENOUGH.items() if claim.metric.startswith(name)), FEWEST)
        if claim.test in T_TESTS and 2 <= seeds < needed:
            wanting[needed].append(claim.id)
    for needed, claims in wanting.items():
        yield (
            f"seeds={seeds} find a difference above {DETECTABLE[seeds]:g} standard deviations (power .8, before Holm's"
            f" correction); {', '.join(claims)} usually take {needed} seeds, which find {DETECTABLE[needed]:g}"
        )


# ----------------------------------------------------------------------------------------------------------------------
# All rules, and what they find in a run, a study or a `GRPOConfig`.


RUN_RULES: tuple[Rule[RunSettings], ...] = (
    rules.clip_cannot_bind,
    rules.epsilon_of_another_level,
    rules.epsilon_below_noise,
    rules.delta_inside_range,
    rules.dual_clip_by_default,
    rules.cap_scales_gradient,
    rules.sequences_weighted_by_length,
    rules.kl_clamp_ends_gradient,
    rules.zero_variance_groups,
    rules.dropout_is_off,
    rules.planted_fault,
)
STUDY_RULES: tuple[Rule[Arms], ...] = (
    same_function,
    same_at_equal_lengths,
    claim_about_equals,
    one_epsilon_for_two_levels,
    one_rate_for_two_scales,
    reuse_costs_rollouts,
    hardly_a_test,
    too_few_seeds,
)
TRL_RULES: tuple[Rule[trl.Options], ...] = (
    trl.clip_cannot_bind,
    trl.reuse_is_no_op,
    trl.hidden_staleness,
    trl.dropout_moves_the_ratio,
    trl.sampler_is_another_policy,
    trl.luspo_by_token,
)


def check_run(settings: RunSettings) -> list[Finding]:
    """What one run's settings will do unasked."""
    return by_severity([found for rule in RUN_RULES for found in rule.findings(settings)])


def check_plans(plans: Sequence[Plan]) -> list[Finding]:
    """What the studies' arms and variants will do unasked.

    What a study varies itself was chosen: a finding about such a key is a note.
    """
    own = [plan for plan in plans if isinstance(plan.study, Study)]
    several = len(own) > 1
    return by_severity([found for plan in own for found in _check_plan(plan, plan.study.name if several else "")])


def check_trl(options: Mapping[str, Any], settings: RunSettings) -> list[Finding]:
    """What a `GRPOConfig` will do unasked: TRL's own traps first, and the rest by the run that it is imported as."""
    found = [found for rule in TRL_RULES for found in rule.findings(options)]
    ours = [one for one in check_run(settings) if one.rule != rules.clip_cannot_bind.name]
    return by_severity([*found, *ours])


def by_severity(findings: list[Finding]) -> list[Finding]:
    """Errors first, notes last."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


def _check_plan(plan: Plan, study_name: str) -> list[Finding]:
    first_of = {cell.variant: cell.settings for cell in reversed(plan.cells)}
    variants = {name: first_of[name] for name in dict.fromkeys(cell.variant for cell in plan.cells)}
    where = defaultdict[Finding, list[str]](list)
    for name, settings in variants.items():
        for finding in check_run(settings):
            where[finding].append(name)
    varied = _varied(list(variants.values()))
    in_variants = [
        replace(
            finding,
            severity="note" if varied.intersection(finding.key.split()) else finding.severity,
            where=_place(study_name, names, len(variants)),
        )
        for finding, names in where.items()
    ]
    arms = Arms.of(plan)
    in_arms = [replace(found, where=study_name) for rule in STUDY_RULES for found in rule.findings(arms)]
    return in_variants + in_arms


def _varied(variants: list[RunSettings]) -> set[str]:
    """Top-level keys that differ between variants."""
    points = [settings.resolved().model_dump() for settings in variants]
    return {key for key in points[0] if any(point[key] != points[0][key] for point in points)}


def _place(study_name: str, names: list[str], every: int) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    variants = "" if len(names) == every else f"variant {names[0]}{more}"
    return ", ".join(part for part in (study_name, variants) if part)


# ----------------------------------------------------------------------------------------------------------------------
# docs/lint.md: every rule with its severity, from the rules themselves.


HEAD = """\
# What the linter says

Written by `grpolab lint --rules`. `grpolab lint` checks the run of conf/, `grpolab lint key=value ...` another one,
`grpolab lint STUDY` a study, `grpolab lint --from trl|verl FILE` a config of that framework. A sweep says its errors
and warnings before it starts; only an error stops it. What a study varies itself was chosen: it is then a note.
"""
EQUALITIES = """\
## Equalities

Two arms are the same function where these make their settings equal. Gradients are meant: at ratio 1 the values of the
losses differ, what is learnt does not. The last one holds for the task `sorting`, up to answers that end early.
"""


def page() -> str:
    """The whole page."""
    sections = [
        _table("A run", RUN_RULES),
        _table("A study", STUDY_RULES),
        _table("A GRPOConfig of TRL 1.16", TRL_RULES),
    ]
    equalities = [f"- {' '.join((equality.__doc__ or '').split())}" for equality in AT_EQUAL_LENGTHS]
    return "\n".join([HEAD, *sections, EQUALITIES, *equalities]) + "\n"


def _table(title: str, rules: Sequence[Rule[Any]]) -> str:
    rows = [f"| `{rule.name}` | {rule.severity} | `{rule.key}` | {rule.about} |" for rule in rules]
    return "\n".join(
        [f"## {title}", "", "| rule | severity | key | what it finds |", "| --- | --- | --- | --- |", *rows, ""]
    )
