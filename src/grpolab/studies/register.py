"""`grpolab register`: register a study's hypotheses, margins and deciding seeds before these seeds are run."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from grpolab.errors import RequestError
from grpolab.identity import ABSENT, absent
from grpolab.paths import Results
from grpolab.report.load import read_all, study_of
from grpolab.report.questions import margins
from grpolab.sweep.ledger import committed_outcomes
from grpolab.sweep.plan import Plan
from grpolab.sweep.registration import register
from grpolab.sweep.study import Study, load
from grpolab.vocabulary import REGIME_SEEDS, REGIMES


def register_study(plans: Sequence[Plan], results: Results, now: str) -> str:
    """Register the hypotheses of a study, or of a collection (last in `plans`). Return the line.

    Raises RequestError if data or code is not here, no task has all arms of a hypothesis, and as
    `registration.register`.
    """
    whole, kept = plans[-1], committed_outcomes(results)
    cells = [cell for plan in plans for cell in plan.cells]
    contents = [cell.settings.content() for cell in cells]
    if missing := {f"{key}={content[key][ABSENT]}" for content in contents for key in absent(content)}:
        raise RequestError(
            f"{named} of study {whole.study.name} is not here, and its content is part of what is registered: register"
            " where it is"
            for named in sorted(missing)
        )
    trained = {c.settings.seed for c in cells if c.signature in kept or results.run(c.signature).is_dir()}
    chose = load(REGIMES)
    fixed, kinds, explored = dict[str, dict[str, float | None]](), dict[str, str](), set[int]()
    for part in whole.parts or [whole]:
        prefix = f"{part.study.name}." if whole.parts else ""
        # Margins are from what explored and from what chose the regimes: whatever of the study was trained there.
        seeds = [*(seed for seed in part.study.seeds or [] if seed < REGIME_SEEDS), *(chose.seeds or [])]
        plan = part.with_seeds({cell.variant: seeds for cell in part.cells}).document(now, None)
        study = study_of(results, plan, read_all(results, dict.fromkeys(cell["signature"] for cell in plan["cells"])))
        explored |= {int(seed) for seed in study.done["seed"]}
        for hypothesis in part.study.hypotheses if isinstance(part.study, Study) else ():
            of = margins(study, hypothesis.model_dump())
            kinds[prefix + hypothesis.id] = ": ".join(filter(None, (hypothesis.kind, hypothesis.because)))
            fixed[prefix + hypothesis.id] = {place: None if isnan(margin) else margin for place, margin in of.items()}
    if lonely := [name for name in whole.hypotheses if not fixed[name]]:
        raise RequestError(
            f"{name} of study {whole.study.name} compares arms that no task has together: it could never be decided"
            for name in lonely
        )
    rules = whole.seeds, whole.study.looks, fixed, kinds
    return register(whole.study.name, whole.hypotheses, *rules, trained, sorted(explored), now)
