"""docs/lint.md: every rule with its severity, from the rules themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpolab.lint.check import RUN_RULES, STUDY_RULES, TRL_RULES
from grpolab.lint.equalities import AT_EQUAL_LENGTHS
from grpolab.lint.rule import Rule

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
