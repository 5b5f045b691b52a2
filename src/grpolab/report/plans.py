"""Read plans, as a sweep or the committed outcome has them: the cells of a study. Needs neither numpy nor pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpolab import records
from grpolab.errors import Damaged
from grpolab.paths import REFERENCE_STUDY, SWEEP_STUDY, Results
from grpolab.study_names import not_planned
from grpolab.vocabulary import FIGURES, GONE_FIGURES, LOOKS

Plan = dict[str, Any]
_COMPARED = {"compare", "baseline", "factors", "question", "seeds", "figures", "hypotheses"}  # keys that a report needs
_CELL_KEYS = {"levels", "settings", "rollout_steps"}


def default_study(results: Results) -> str:
    """Return the study that a command means which names none: one that is planned here, else a committed one."""
    names = (REFERENCE_STUDY, SWEEP_STUDY)
    planned = [name for name in names if results.plan(name).is_file()]
    committed = [name for name in names if results.committed_plan(name).is_file()]
    return [*planned, *committed, SWEEP_STUDY][0]


def plans_of(results: Results, name: str) -> list[Plan]:
    """Return the plan of a study, after those of the studies that it includes: of this folder, else of the reference.

    Raises RequestError when neither knows the study.
    """
    committed = not results.plan(name).is_file() and results.committed_plan(name).is_file()

    def plan_of(study: str) -> Plan:
        path = results.committed_plan(study) if committed else results.plan(study)
        if not path.is_file():
            raise not_planned(results, study)
        return read_plan(path)

    whole = plan_of(name)
    return [*(plan_of(part) for part in whole["includes"]), whole]


def read_plan(path: Path) -> Plan:
    """Read a plan as it was written, or as it was packed for the reference. Raises Damaged where none can be read."""
    plan = records.read_plan(path)
    if plan is None:
        raise Damaged(f"{path} is not there")
    if "study" not in plan:
        raise Damaged(f"{path} is no plan that a report can be made of: it lacks study")
    looks = plan.get("looks", LOOKS)
    if list(looks) != list(LOOKS) and not (len(looks) == 1 and isinstance(looks[0], int) and looks[0] >= 2):
        raise Damaged(f"{path} is no plan: looks={looks!r:.60} is neither one number from 2 on nor {list(LOOKS)}")
    needed = {plan.get("compare"), *plan.get("factors", {})}
    for cell in plan["cells"]:
        if not cell.keys() >= _CELL_KEYS or not needed <= cell["levels"].keys():
            raise Damaged(f"{path} is no plan that a report can be made of: {cell!r:.60} lacks something")
    if "figures" in plan:
        plan["figures"] = [figure for figure in plan["figures"] if figure not in GONE_FIGURES]
    if strange := [figure for figure in plan.get("figures", []) if figure not in FIGURES]:
        raise Damaged(f"{path} asks for figures={strange[0]!r:.60}, which is not one of {', '.join(FIGURES)}")
    if plan["cells"] and (lacking := _COMPARED - plan.keys()):
        raise Damaged(f"{path} is no plan that a report can be made of: it lacks {', '.join(sorted(lacking))}")
    return plan
