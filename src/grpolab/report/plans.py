"""Plans, as a sweep or the committed reference has them: which cells there ought to be, and which study is meant.

Nothing here needs a table, so that a command can begin with it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results

Plan = dict[str, Any]


def default_study(results: Results) -> str:
    """The study that is meant where none is named: what is planned here, else what the committed reference holds."""
    names = (REFERENCE_STUDY, SWEEP_STUDY)
    planned = [name for name in names if results.plan(name).is_file()]
    committed = [name for name in names if reference_plan(results, name).is_file()]
    return [*planned, *committed, SWEEP_STUDY][0]


def plans_of(results: Results, name: str) -> list[Plan]:
    """The plan of a study, after those of the studies that it includes: of this folder, else of the reference.

    Raises RequestError when neither knows the study.
    """
    committed = not results.plan(name).is_file() and reference_plan(results, name).is_file()

    def plan_of(study: str) -> Plan:
        path = reference_plan(results, study) if committed else results.plan(study)
        if not path.is_file():
            raise RequestError(f"study={study} has no plan in {results.studies}: run `grpolab sweep {study}` first")
        return read_plan(path)

    whole = plan_of(name)
    return [*(plan_of(part) for part in whole["includes"]), whole]


def reference_plan(results: Results, study: str) -> Path:
    """The plan of a study of the reference, which knows the study where there is this file."""
    return results.reference / "plans" / f"{study}.json"


def read_plan(path: Path) -> Plan:
    """A plan as it was written, or as it was packed for the reference."""
    plan = json.loads(path.read_text())
    variants = plan.pop("variants", None)
    if variants is not None:
        common = plan.pop("settings", {})
        plan["cells"] = [_cell(variant, common, int(seed)) for variant in variants for seed in variant["runs"]]
    return plan


def _cell(variant: dict[str, Any], common: dict[str, Any], seed: int) -> dict[str, Any]:
    shared = {key: value for key, value in variant.items() if key != "runs"}
    settings = {**common, **variant["settings"], "seed": seed}
    return {**shared, "seed": seed, "signature": variant["runs"][str(seed)], "settings": settings}
