"""Check a run, a study or a `GRPOConfig` by the linter's rules, and write the page of the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from grpolab.lint.config_rules import CONFIG_RULES
from grpolab.lint.rules import (
    RUN_RULES,
    SEVERITIES,
    TRL_RULES,
    LintFinding,
    Options,
    Rules,
    clip_cannot_bind,
    nothing_to_start_from,
)
from grpolab.lint.study_rules import STUDY_RULES, LintedStudy
from grpolab.settings.equalities import AT_EQUAL_LENGTHS, describe
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.sweep.plan import Plan
from grpolab.sweep.study import Study

Imported: TypeAlias = tuple[Options, RunSettings]  # another framework's options, and the run that they are read as


def check_run(settings: RunSettings) -> list[LintFinding]:
    """Return what the rules find in one run."""
    return by_severity(RUN_RULES.findings(settings))


def check_config(name: str, config: Imported, default: Imported) -> list[LintFinding]:
    """Return what the rules find in another framework's config: its own traps, then those of the run that it means.

    A finding about the framework's `default` config too, with this one's KL, is only a note.
    """
    usual = default[0], default[1].model_copy(update={"beta": config[1].beta})
    everybody = {finding.rule for finding in _of_config(name, *usual)}
    findings = _of_config(name, *config)
    return by_severity(
        [replace(finding, severity="note") if finding.rule in everybody else finding for finding in findings]
    )


def _of_config(name: str, options: Options, settings: RunSettings) -> list[LintFinding]:
    # The model and its start are not in another framework's options: here they are the values of our conf/.
    findings = [finding for finding in check_run(settings) if finding.rule != nothing_to_start_from.name]
    if name != "trl":
        return findings
    return [*TRL_RULES.findings(options), *(it for it in findings if it.rule != clip_cannot_bind.name)]  # in both


def check_plans(plans: Sequence[Plan]) -> list[LintFinding]:
    """Return what the rules find in studies and variants. A finding about a key that the study varies is a note."""
    studies = [plan for plan in plans if isinstance(plan.study, Study)]
    findings = []
    for plan in studies:
        study_name = plan.study.name if len(studies) > 1 else ""
        variants = {variant.name: variant.settings for variant in plan.variants}
        points = [resolve_run(settings).model_dump() for settings in variants.values()]
        varied = {key for key in points[0] if any(point[key] != points[0][key] for point in points)}
        variants_with = defaultdict[LintFinding, list[str]](list)
        for name in variants:
            for finding in check_run(variants[name]):
                variants_with[finding].append(name)
        for finding, names in variants_with.items():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            place = "" if len(names) == len(variants) else f"variant {names[0]}{more}"
            severity = "note" if varied.intersection(finding.key.split()) else finding.severity
            where = ", ".join(filter(None, (study_name, place)))
            findings.append(replace(finding, severity=severity, where=where))
        findings += [replace(finding, where=study_name) for finding in STUDY_RULES.findings(LintedStudy.of(plan))]
    return by_severity(findings)


def by_severity(findings: list[LintFinding]) -> list[LintFinding]:
    """Return errors first and notes last, in each the most costly first."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


PAGE = """\
# What the linter says

Written by `grpolab lint --rules`. `grpolab lint` checks the run of conf/, `grpolab lint key=value ...` another one,
`grpolab lint STUDY` a study, `grpolab lint --from trl|verl FILE` a config of that framework. A sweep prints the
errors and warnings before it starts; only an error stops it. What that framework's default config triggers too is
listed in one line, as a note. If a study varies the key deliberately, a finding about one of its runs is only a note.

{rules}
## Equalities

Two arms are the same function where rewriting their settings by these equalities makes them equal. 'Same function'
means same gradient; loss values may differ. The last equality is for the task `sorting` only, whose right answers all
have one length; it does not hold exactly where an answer ends early.

{equalities}
"""


def page() -> str:
    """Return docs/lint.md: every rule with its severity, and every equality."""
    lines = []
    every: tuple[Rules[Any], ...] = (RUN_RULES, STUDY_RULES, TRL_RULES, *CONFIG_RULES.values())
    for rules in every:
        lines += [f"## {rules.title}", "", "| rule | severity | key | what it finds |", "| --- | --- | --- | --- |"]
        lines += [f"| `{rule.name}` | {rule.severity} | `{rule.key}` | {rule.about} |" for rule in rules.rules]
        lines.append("")
    equalities = "\n".join(f"- {describe(equality)}" for equality in AT_EQUAL_LENGTHS)
    return PAGE.format(rules="\n".join(lines), equalities=equalities)
