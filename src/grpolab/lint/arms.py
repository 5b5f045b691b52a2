"""A study as the linter sees it: its arms side by side, one table for each combination of the other factors' levels."""

from __future__ import annotations

from dataclasses import dataclass

from grpolab.settings import RunSettings
from grpolab.sweep.plan import Plan
from grpolab.sweep.study import Hypothesis, Study


@dataclass(frozen=True)
class Facet:
    """The arms of a study at the same levels of its other factors."""

    levels: dict[str, str]  # of the other factors
    arms: dict[str, RunSettings]

    @property
    def label(self) -> str:
        """`task=addition, regime=healthy`; empty where the study has one factor."""
        return ", ".join(f"{factor}={level}" for factor, level in self.levels.items())


@dataclass(frozen=True)
class Arms:
    """A study, its seeds and its facets."""

    study: Study
    seeds: list[int]
    facets: list[Facet]

    @classmethod
    def of(cls, plan: Plan) -> Arms:
        """The arms of a plan that is no collection."""
        assert isinstance(plan.study, Study)
        study, tables = plan.study, dict[str, Facet]()
        for cell in plan.cells:
            levels = {factor: level for factor, level in cell.levels.items() if factor != study.compare}
            facet = tables.setdefault(str(levels), Facet(levels, {}))
            facet.arms.setdefault(cell.levels[study.compare], cell.settings)
        return cls(study, plan.seeds, list(tables.values()))

    def facets_of(self, claim: Hypothesis) -> list[Facet]:
        """The facets that a hypothesis is about and that have all its arms."""
        arms = set(claim.arms)
        return [f for f in self.facets if claim.where.items() <= f.levels.items() and arms <= f.arms.keys()]

    def declared_equal(self, first: str, second: str) -> bool:
        """Whether the study says itself that two arms are the same: a placebo, or a claim of equality."""
        pair = {first, second}
        claimed = [claim.arms for claim in self.study.hypotheses if claim.direction == "equal"]
        return any(pair == set(arms) for arms in [*self.study.placebo, *claimed])
