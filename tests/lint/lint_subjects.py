"""What the linter is tested on: composed runs, and studies that are written down in a line."""

from __future__ import annotations

from functools import cache
from typing import Any

from grpolab.lint.study_rules import LintedStudy
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import Plan, expand
from grpolab.sweep.study import Study


@cache
def composer() -> Composer:
    """One for all tests: what Hydra composed is kept."""
    return Composer()


def run(*overrides: str) -> RunSettings:
    """One run."""
    return composer().compose(overrides)


def plan(arms: dict[str, list[str]], *overrides: str, seeds: int = 10, name: str = "planted", **fields: Any) -> Plan:
    """A study with one factor, `arm`."""
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


def arms(of: dict[str, list[str]], *overrides: str, **fields: Any) -> LintedStudy:
    """The same as the rules see it."""
    return LintedStudy.of(plan(of, *overrides, **fields))


def claim(of: str, minus: str, metric: str = "final_score", direction: str = "greater", **keys: Any) -> dict[str, Any]:
    """A hypothesis."""
    return {
        **{"id": "H", "says": "?", "source": "?", "budget": "rollouts", "metric": metric},
        **{"contrast": {"of": of, "minus": minus}, "direction": direction, "margin": 0.1},
        **keys,
    }
