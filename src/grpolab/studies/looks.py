"""Planned looks (tests after 5, 10, ... seeds; `sweep --until-decided`) add seeds only for undecided hypotheses.

Every variant is trained with the seeds of the first look. After each look the report decides, and the variants that an
open hypothesis needs get the seeds of the next look. No state is kept but the plans: a repeated command reaches the
same look from the outcomes, because a decision uses only the seeds of its look (`report/claims.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from grpolab.errors import RequestError, listing
from grpolab.paths import Results
from grpolab.quantities import GAINS
from grpolab.sweep.plan import Plan
from grpolab.sweep.study import Collection, Hypothesis, Levels, Study
from grpolab.sweep.tuning.settings import shared_seeds
from grpolab.vocabulary import REGIME_SEEDS

MOST_NAMED = 12  # open hypotheses named in a line


class Answer(NamedTuple):
    """The report's verdict on a hypothesis, at one setting of the factors that it does not fix."""

    study: str
    hypothesis: str
    where: str  # those levels, joined
    verdict: str
    is_open: bool
    seeds: int  # with all values that it needs

    @property
    def name(self) -> str:
        return self.hypothesis + (f" ({self.where})" if self.where else "")


Decide = Callable[[Results, list[dict[str, Any]]], Sequence[Answer]]  # from the documents of plans


def report_decides(results: Results, documents: list[dict[str, Any]]) -> list[Answer]:
    from grpolab.report.claims import OPEN, decide
    from grpolab.report.load import read_all, study_of

    runs = read_all(results, dict.fromkeys(cell["signature"] for plan in documents for cell in plan["cells"]))
    claims = decide([study_of(results, plan, runs) for plan in documents])
    return [
        Answer(claim.study, claim.id, claim.where, claim.verdict, claim.verdict in OPEN, claim.seeds)
        for claim in claims
        if claim.is_finding
    ]


@dataclass(frozen=True)
class Ladder:
    """The seeds of a study in the order in which looks add them."""

    seeds: list[int]
    looks: list[int]  # the number of seeds at each look
    registered: bool  # a registration has constant margins


class Looks:
    """The looks of one command: the plans of the current look, and the step to the next."""

    def __init__(self, plans: Sequence[Plan], most_seeds: int | None = None, decide: Decide = report_decides) -> None:
        """Begin at the first look. `plans`: of a study, or of a collection's studies and, last, its own.

        `most_seeds`: the last look. Raises RequestError if there is nothing to decide, no such look, or the seeds are
        not clear.
        """
        self.decide, self._asked, self._current = decide, plans, 0
        self._ladders = _ladders(plans, most_seeds)
        ladders = [(plan, self._ladders[plan.study.name]) for plan in plans if plan.study.name in self._ladders]
        # Study -> variant -> how many it has.
        self._seeds = {plan.study.name: dict.fromkeys(_variants(plan), ladder.looks[0]) for plan, ladder in ladders}

    @property
    def size(self) -> int:
        """Seeds at the current look; the most if studies differ."""
        return max(ladder.looks[: self._current + 1][-1] for ladder in self._ladders.values())

    @property
    def plans(self) -> list[Plan]:
        """The plans of the current look, with the runs of the looks before."""
        parts = [self._grown(plan) for plan in self._asked if isinstance(plan.study, Study)]
        whole = self._asked[-1]
        if isinstance(whole.study, Study):
            return parts
        return [*parts, Plan(whole.study, sorted({seed for part in parts for seed in part.seeds}), parts=parts)]

    def _grown(self, plan: Plan) -> Plan:
        name = plan.study.name
        if name not in self._ladders:  # it claims nothing
            return plan
        return plan.with_seeds({v: self._ladders[name].seeds[:n] for v, n in self._seeds[name].items()})

    def advance(self, answers: Sequence[Answer]) -> int:
        """Go on to the next look. Return how many variants get seeds; 0 if all is decided, or this was the last look.

        A hypothesis that lacks the value of a seed of the current look gets no further seeds.
        """
        self._current += 1
        grown = 0
        for plan in self._asked:
            ladder = self._ladders.get(plan.study.name)
            if ladder is None or self._current >= len(ladder.looks):
                continue
            before, now = ladder.looks[self._current - 1 : self._current + 1]
            waiting = [answer for answer in answers if answer.is_open and answer.seeds >= before]
            places = {(answer.hypothesis, answer.where) for answer in waiting if answer.study == plan.study.name}
            variants = set(_needed(plan, places, ladder.registered))
            self._seeds[plan.study.name] |= dict.fromkeys(variants, now)
            grown += len(variants)
        return grown


def tally(answers: Sequence[Answer]) -> tuple[dict[str, int], list[str]]:
    """Return the number of hypotheses by verdict, and the names of the open ones."""
    verdicts = Counter(answer.verdict for answer in answers if not answer.is_open)
    several = len({answer.study for answer in answers}) > 1
    return dict(verdicts), [f"{a.study}.{a.name}" if several else a.name for a in answers if a.is_open]


def summarize(size: int, answers: Sequence[Answer]) -> str:
    """Return `look 5: 7 of 12 decided (6 supported, 1 negligible); open: H3d, H11`."""
    verdicts, names = tally(answers)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
    decided = f"look {size}: {sum(verdicts.values())} of {len(answers)} decided" + (f" ({counts})" if counts else "")
    return decided + (f"; open: {listing(names, MOST_NAMED)}" if names else "")


def _ladders(plans: Sequence[Plan], most_seeds: int | None) -> dict[str, Ladder]:
    """Return the seeds of each study that has something to decide."""
    whole = plans[-1]
    together = isinstance(whole.study, Collection) and bool(whole.study.primary)
    owners = {plan.study.name: whole if together else plan for plan in plans if isinstance(plan.study, Study)}
    ladders = {name: _ladder(owner) for name, owner in owners.items() if _tested(owner)}
    if not ladders:
        raise RequestError(f"study {whole.study.name} has no hypothesis to decide: leave --until-decided out")
    least = max(ladder.looks[0] for ladder in ladders.values())  # every study has its first look
    allowed = sorted({n for ladder in ladders.values() for n in ladder.looks if n >= least})
    most = most_seeds or allowed[-1]
    if most not in allowed:
        raise RequestError(
            f"--max-seeds {most} is not allowed: study {whole.study.name} is looked at after"
            f" {', '.join(map(str, allowed))} seeds"
        )
    for name, ladder in ladders.items():
        looks = [n for n in ladder.looks if n <= most]
        ladders[name] = replace(ladder, seeds=ladder.seeds[: looks[-1]], looks=looks)
    studies = [plan.study for plan in plans if isinstance(plan.study, Study) and plan.study.name in ladders]
    problems = [text for study in studies for text in shared_seeds(study.tunings, ladders[study.name].seeds)]
    if problems:
        raise RequestError(dict.fromkeys(problems))
    return ladders


def _tested(owner: Plan) -> list[str]:
    """Return the names of the hypotheses to decide, without checks that hold by construction."""
    if isinstance(owner.study, Study):
        return [claim.id for claim in owner.study.hypotheses if not claim.by_construction]
    known = {f"{part.study.name}.{name}" for part in owner.parts for name in _tested(part)}
    return [name for name in owner.study.primary if name in known]


def _ladder(owner: Plan) -> Ladder:
    """Return the registered seeds; without a registration the study's own exploring seeds and those after them."""
    name, entries = owner.study.name, owner.registered
    if missing := sorted(owner.hypotheses.keys() - entries.keys()) if entries else []:
        others = "other hypotheses are: register the study again, with other seeds"
        raise RequestError(f"study {name}: {', '.join(missing)} is not registered as it is, {others}")
    if len({entry["line"] for entry in entries.values()}) > 1:
        raise RequestError(f"study {name}: its hypotheses are registered with different seeds: register it again")
    for entry in entries.values():
        return Ladder(entry["seeds"], entry["looks"], registered=True)
    looks, first = owner.study.looks, sorted(seed for seed in owner.seeds if seed < REGIME_SEEDS)
    seeds = [*first, *range(first[-1] + 1 if first else 0, REGIME_SEEDS)]
    if len(seeds) < looks[-1]:
        raise RequestError(
            f"seeds={','.join(map(str, first))} of study {name} leave fewer than {looks[-1]} to explore with, which"
            f" are below {REGIME_SEEDS}: begin with smaller ones, or register it"
        )
    return Ladder(seeds, looks, registered=False)


def _variants(plan: Plan) -> dict[str, Levels]:
    return {cell.variant: cell.levels for cell in plan.cells}


def _needed(plan: Plan, places: set[tuple[str, str]], registered: bool) -> Iterator[str]:
    """Yield the variants that the hypotheses at these places, (id, levels), need."""
    study, variants = plan.study, _variants(plan)
    assert isinstance(study, Study)
    for claim in study.hypotheses:
        beside = _beside(claim, study.baseline, registered)
        for facet in claim.facets(study.compare, list(variants.values())):
            where = "/".join(facet[0][f] for f in study.factors if f not in (study.compare, claim.range_over, "task"))
            if (claim.id, where) in places:
                names = {"/".join({**levels, study.compare: arm}.values()) for levels in facet for arm in beside}
                yield from ("/".join(levels.values()) for levels in facet)
                yield from names & variants.keys()


def _beside(claim: Hypothesis, baseline: str, registered: bool) -> list[str]:
    """Return the arms that a hypothesis needs besides those it compares: for its condition and its margin."""
    of_gain = claim.margin is None and claim.metric in GAINS and not claim.trend and claim.scale == "linear"
    of_condition = [claim.provided.of] if claim.provided else []
    return of_condition + ([baseline] if of_gain and not registered else [])
