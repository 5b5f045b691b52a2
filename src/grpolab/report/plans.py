"""Read plans (the cells of a study) that a sweep or the committed outcome wrote. Needs neither numpy nor pandas."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpolab import records
from grpolab.errors import Damaged, RequestError
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results
from grpolab.run_files import EACH, NONE, NUMBER, TEXT, Shape, check_shape
from grpolab.study_names import not_planned
from grpolab.vocabulary import FIGURES, GONE_FIGURES, LOOKS

Plan = dict[str, Any]
_COMPARED = {"compare", "baseline", "factors", "question", "seeds", "figures", "hypotheses"}  # keys that a report needs
_HYPOTHESIS: Shape = {
    **dict.fromkeys(("id", "says", "metric", "direction", "scale"), str),
    **dict.fromkeys(("tested?", "kind?", "because?", "source?", "budget?"), str),
    "also?": (str, [str]),  # one name in plans of older programs
    **{"contrast": (NONE, {"of": str, "minus": TEXT}), "trend": (NONE, [str]), "range_over": TEXT},
    **{"where": {EACH: str}, "provided": (NONE, {"metric": str, "of": str, "above": (int, float)})},
    **{"beyond": (int, float), "margin": NUMBER, "by_construction": bool},
}
_IN_CELL = {"levels", "settings", "rollout_steps"}


def default_study(results: Results) -> str:
    """Return the study of a command that names none: one that is planned here, else a committed one."""
    names = (REFERENCE_STUDY, SWEEP_STUDY)
    files = [(path(name), name) for path in (results.plan, results.committed_plan) for name in names]
    return next((name for file, name in files if file.is_file()), SWEEP_STUDY)


def outcome_at(folder: Path) -> Results:
    """Open a results folder, or an exported reference. Raises RequestError if the folder is neither."""
    results = Results(folder)
    results.is_ours = False
    if (folder / "plans").is_dir():
        results.reference = folder  # the folder is only the reference part of a results folder
    elif not (folder / "format.json").is_file():
        raise RequestError(f"FOLDER={folder} is no results folder (no format.json), no exported reference (no plans/)")
    return results


def studies_of(results: Results) -> list[str]:
    """List studies, collections left out, that are planned in a results folder or that its reference holds."""
    files = [*results.studies.glob("*/plan.json"), *results.reference.glob("plans/*.json")]
    return sorted({plan["study"] for plan in map(read_plan, files) if plan["cells"]})


def plans_of(results: Results, name: str) -> list[Plan]:
    """Return the plan of a study, after those of the studies that it includes: of this folder, else of the reference.

    Raises RequestError if neither knows the study.
    """
    committed = not results.plan(name).is_file() and results.committed_plan(name).is_file()
    path_of = results.committed_plan if committed else results.plan

    def plan_of(study: str) -> Plan:
        if not path_of(study).is_file():
            raise not_planned(results, study)
        return read_plan(path_of(study))

    whole = plan_of(name)
    return [*(plan_of(part) for part in whole["includes"]), whole]


def find_elsewhere(results: Results, plans: Sequence[Plan]) -> list[str]:
    """List the studies outside of these plans that their hypotheses name under `also`, if their plans are known."""
    names = [name for plan in plans for hypothesis in plan.get("hypotheses", []) for name in also(hypothesis)]
    others = {name.partition(".")[0] for name in names} - {plan["study"] for plan in plans}
    return sorted(other for other in others if results.plan(other).is_file() or results.committed_plan(other).is_file())


def also(hypothesis: dict[str, Any]) -> list[str]:
    """Return the hypotheses (`study.id`) that ask the same elsewhere."""
    named = hypothesis.get("also") or []
    return [named] if isinstance(named, str) else named


def read_plan(path: Path) -> Plan:
    """Read a plan as it was written, or as it was packed for the reference. Raises Damaged."""
    plan = records.read_plan(path)
    if plan is None:
        raise Damaged(f"{path} is not there")
    needed = {"study"} | (_COMPARED if plan["cells"] else set())
    if lacking := needed - plan.keys():
        raise Damaged(f"{path} is no plan that a report can be made of: it lacks {', '.join(sorted(lacking))}")
    if plan["cells"] and plan["compare"] not in plan["factors"]:
        raise Damaged(f"{path} is no plan: compare={plan['compare']!r:.60} is not one of its factors")
    looks = plan.get("looks", LOOKS)
    if list(looks) != list(LOOKS) and not (len(looks) == 1 and isinstance(looks[0], int) and looks[0] >= 2):
        raise Damaged(f"{path} is no plan: looks={looks!r:.60} is neither one number from 2 on nor {list(LOOKS)}")
    factors = {plan.get("compare"), *plan.get("factors", {})}
    for cell in plan["cells"]:
        if lacking := _IN_CELL - cell.keys() or factors - cell["levels"].keys():
            raise Damaged(
                f"{path} is no plan that a report can be made of: {cell!r:.60} lacks {min(map(str, lacking))}"
            )
    check_shape(plan, {"hypotheses?": [_HYPOTHESIS]}, path)
    for hypothesis in plan.get("hypotheses", []):
        if (hypothesis["contrast"] is None) == (hypothesis["trend"] is None):
            raise Damaged(f"{path} is no plan: its hypothesis {hypothesis['id']!r:.60} has no contrast, or a trend too")
    figures = [figure for figure in plan.get("figures", []) if figure not in GONE_FIGURES]
    if unknown := [figure for figure in figures if figure not in FIGURES]:
        raise Damaged(f"{path} asks for figures={unknown[0]!r:.60}, which is not one of {', '.join(FIGURES)}")
    return plan | ({"figures": figures} if "figures" in plan else {})
