"""All rules, and what they find in a run, a study or a `GRPOConfig`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpolab.lint import clip, data, loss, study, trl
from grpolab.lint.arms import Arms
from grpolab.lint.rule import SEVERITIES, Finding, Rule
from grpolab.settings import RunSettings
from grpolab.sweep.plan import Plan
from grpolab.sweep.study import Study

RUN_RULES: tuple[Rule[RunSettings], ...] = (
    clip.clip_cannot_bind,
    clip.epsilon_of_another_level,
    clip.epsilon_below_noise,
    clip.delta_inside_range,
    clip.dual_clip_by_default,
    loss.cap_scales_gradient,
    loss.sequences_weighted_by_length,
    loss.kl_clamp_ends_gradient,
    data.zero_variance_groups,
    data.dropout_is_off,
    data.planted_fault,
)
STUDY_RULES: tuple[Rule[Arms], ...] = (
    study.same_function,
    study.same_at_equal_lengths,
    study.claim_about_equals,
    study.one_epsilon_for_two_levels,
    study.one_rate_for_two_scales,
    study.reuse_costs_rollouts,
    study.hardly_a_test,
    study.too_few_seeds,
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
    ours = [one for one in check_run(settings) if one.rule != clip.clip_cannot_bind.name]
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
