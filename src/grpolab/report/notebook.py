"""Choose the study that a notebook reads."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from grpolab.paths import SWEEP_STUDY, Results
from grpolab.report.plans import default_study, read_plan, studies_of
from grpolab.report.text import listing


def choose_study(results: Results, committed: str = SWEEP_STUDY) -> tuple[str, str]:
    """Return the study that was swept last in a results folder, and a sentence about it.

    Where none was swept, it is the `committed` one, or another committed one. `GRPOLAB_STUDY` names another.
    """
    swept = _swept_studies(results)
    name, which = os.environ.get("GRPOLAB_STUDY", ""), "the study that `GRPOLAB_STUDY` names"
    if not name and swept:
        name, planned = next(iter(swept.items()))
        which = f"the study that was swept last here (planned {planned:%Y-%m-%d %H:%M} UTC)"
    elif not name:
        name = committed if results.committed_plan(committed).is_file() else default_study(results)
        which = "the committed outcome, because none was swept here"
    others = dict.fromkeys(other for other in [*swept, *studies_of(results)] if other != name)
    more = f" Others: {listing(list(others))}." if others else ""
    how = "`GRPOLAB_STUDY=NAME make notebooks` reads another, `GRPOLAB_RESULTS` names another results folder."
    return name, f"**This is `{name}`**, {which}, in `{results.root}`. {how}{more}"


def _swept_studies(results: Results) -> dict[str, datetime]:
    """Return the studies that are planned here and when, the newest first.

    Parts of a newer collection are left out, and single runs (`grpolab train`), which compare nothing.
    """
    plans = [read_plan(file) for file in results.studies.glob("*/plan.json")]
    plans = [plan for plan in plans if plan.get("created") and (plan["includes"] or len(plan["cells"]) > 1)]
    made = {plan["study"]: datetime.fromisoformat(plan["created"]).astimezone(UTC) for plan in plans}
    whole = {part: plan["study"] for plan in plans for part in plan["includes"]}
    alone = {name: at for name, at in made.items() if name not in whole or at > made[whole[name]]}
    return dict(sorted(alone.items(), key=lambda item: item[1], reverse=True))
