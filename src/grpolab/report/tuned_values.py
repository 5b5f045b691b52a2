"""Each arm at common and at tuned values, on seeds that chose neither: what tuning changes in the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from grpolab.report.load import StudyRuns
from grpolab.report.measures import at, mean_interval, measure
from grpolab.report.statistics.intervals import Interval
from grpolab.report.statistics.tests import Difference, holm, paired_difference
from grpolab.report.tables import Table
from grpolab.report.text import NONE, OF_MEANS, estimate, probability, signed

COMMON, TUNED = "common", "tuned"


@dataclass(frozen=True, eq=False)
class ArmAtBoth:
    """One arm at common and at tuned values, in one place: levels of the remaining factors, and the tuned one."""

    place: str
    arm: str
    scores: dict[str, pd.Series]  # {COMMON: by seed, TUNED: by seed}
    means: dict[str, Interval]
    gain: Difference  # tuned - common
    lead: dict[str, Difference]  # arm - baseline
    overrides: str


def compare(study: StudyRuns) -> list[ArmAtBoth]:
    """Compare each arm at both values wherever a study has both and differs in nothing else.

    Common is the first level of the factor whose level names the tuning that names none itself.
    """
    final, compared = measure(study, "final_score"), study.plan["compare"]
    rows: list[ArmAtBoth] = []
    for tuning in study.plan.get("tuned", []):
        factor = tuning["factor"]
        if factor in (None, compared):
            continue
        tuned = [other["level"] for other in study.plan["tuned"] if other["factor"] == factor]
        common = next((level for level in study.plan["factors"][factor] if level not in tuned), None)
        rest = [f"factor/{name}" for name in study.plan["factors"] if name not in (factor, compared)]
        cells = study.cells[["facet", f"factor/{factor}", *rest]].drop_duplicates()
        facets = {(level, " · ".join(levels)): facet for facet, level, *levels in cells.itertuples(index=False)}
        for level, where in facets:
            if level != tuning["level"] or (common, where) not in facets:
                continue
            pair = {COMMON: facets[common, where], TUNED: facets[level, where]}
            scores = {arm: {end: at(final, facet, arm) for end, facet in pair.items()} for arm in study.arms}
            place = " · ".join(filter(None, [where, level if len(tuned) > 1 else ""]))
            for arm, ends in scores.items():
                means = {end: mean_interval(study, "final_score", values) for end, values in ends.items()}
                lead = {end: paired_difference(ends[end], scores[study.baseline][end]) for end in ends}
                gain = paired_difference(ends[TUNED], ends[COMMON])
                overrides = ", ".join(tuning["arms"].get(arm, {}).get("overrides", []))
                rows.append(ArmAtBoth(place, arm, ends, means, gain, lead, overrides))
    return rows


def table(study: StudyRuns, rows: list[ArmAtBoth]) -> Table:
    """Scores at both values, their paired difference (Holm over the arms), and each arm's lead over the baseline."""
    numbers, shown = [], []
    for row, p in zip(rows, holm([row.gain.p for row in rows]), strict=True):
        estimates = {f"score_{end}": mean[:3] for end, mean in row.means.items()} | {"gain": row.gain[:3]}
        estimates |= {f"lead_{end}": lead[:3] for end, lead in row.lead.items()}
        ends = {name + end: of[n] for name, of in estimates.items() for n, end in enumerate(("", "_low", "_high"))}
        leads = {
            f"minus {study.baseline}, {end}": NONE if row.arm == study.baseline else estimate(*lead[:3], signed)
            for end, lead in row.lead.items()
        }
        numbers.append(
            {"where": row.place, "arm": row.arm, "tuned_values": row.overrides, "pairs": row.gain.n}
            | {**ends, "p": row.gain.p, "p_holm": p}
        )
        shown.append(
            {"where": row.place, "arm": row.arm, "tuned values": row.overrides, "seeds": row.gain.n}
            | {end: estimate(*mean[:3]) for end, mean in row.means.items()}
            | {"tuned minus common": estimate(*row.gain[:3], signed), "Holm p": probability(p), **leads}
        )
    caption = (
        f"{study.name}: final score (`{study.metric}`) of each arm at common and at tuned values, on seeds that chose"
        f" neither; differences are paired by seed; mean [95% interval: {OF_MEANS}]."
    )
    hidden = [] if any(row.place for row in rows) else ["where"]
    return Table("tuned_values", caption, pd.DataFrame(numbers), pd.DataFrame(shown).drop(columns=hidden))


def sentences(rows: Sequence[ArmAtBoth]) -> Iterator[str]:
    """Say what tuning changes in each arm."""
    for where in dict.fromkeys(row.place for row in rows):
        gains = [f"`{row.arm}` {estimate(*row.gain[:3], signed)}" for row in rows if row.place == where and row.gain.n]
        if gains:
            place = f" in {where}" if where else ""
            yield f"Tuned minus common values{place}, paired by seed: {'; '.join(gains)}."
