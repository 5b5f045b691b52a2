"""Runs and studies for the linter's tests, each written in a line."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from grpolab.lint.rules import LintFinding
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import Plan, expand
from grpolab.sweep.study import Study


@cache
def composer() -> Composer:
    """Return one for all tests: it keeps what Hydra composed."""
    return Composer()


def run(*overrides: str) -> RunSettings:
    return composer().compose(overrides)


def plan(arms: dict[str, list[str]], *overrides: str, seeds: Any = 10, name: str = "planted", **fields: Any) -> Plan:
    """Return a study with the factor `arm`, and perhaps others."""
    study = Study(
        name=name,
        question="?",
        overrides=list(overrides),
        factors={"arm": arms, **fields.pop("factors", {})},
        compare="arm",
        baseline=next(iter(arms)),
        seeds=seeds,
        primary_metric="eval/accuracy_expected",
        **fields,
    )
    return expand(study, composer(), needs_clipping=False)


def claim(of: str, minus: str, metric: str = "final_score", direction: str = "greater", **keys: Any) -> dict[str, Any]:
    """Return a hypothesis."""
    return {
        **{"id": "H", "says": "?", "source": "?", "budget": "rollouts", "metric": metric},
        **{"contrast": {"of": of, "minus": minus}, "direction": direction, "margin": 0.1},
        **keys,
    }


def sentences(findings: Iterable[LintFinding], rule: str) -> list[str]:
    """Return what one rule says."""
    return [finding.sentence for finding in findings if finding.rule == rule]
