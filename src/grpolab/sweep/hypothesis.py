"""A hypothesis of a study file: what is claimed of its runs, and what of it does not fit together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, FiniteFloat, model_validator

from grpolab.quantities import LABELS, QUANTITIES
from grpolab.sweep.schema import Different, Factors, Name, Part, unknown, unknown_levels
from grpolab.vocabulary import METRICS

if TYPE_CHECKING:
    from grpolab.settings.run import RunSettings

ALPHA = 0.05  # a test whose p cannot fall below it with so many seeds decides nothing
LEAST_ARMS = 3  # two are a contrast

Test = Literal["paired_t", "paired_log_t", "equivalence", "fisher", "page"]
Levels = dict[str, str]  # factor -> level: one variant


class Contrast(Part):
    """A paired difference of two arms, or one arm's quantity against 0."""

    of: Name
    minus: Name | None = Field(default=None, description="Empty: the quantity itself, against 0.")


class Condition(Part):
    """What must hold for the test to say anything: a clip that fires, a cell that is populated."""

    metric: str = Field(description="A name of the vocabulary, or a stability quantity of the report.")
    of: Name = Field(description="The arm whose mean over seeds is looked at.")
    above: FiniteFloat = Field(description="What the mean must exceed.")


class Hypothesis(Part):
    """What is claimed before the study is run."""

    id: Name
    says: str = Field(min_length=1, description="The claim in plain words.")
    source: str = Field(min_length=1, description="Who claims it.")
    metric: str = Field(description="A name of the vocabulary, or a stability quantity of the report.")
    contrast: Contrast | None = Field(default=None, description="Two arms by seed, or one against 0.")
    trend: Annotated[list[Name], Different] | None = Field(
        default=None, description="In place of a contrast: arms in the order in which the metric rises or falls."
    )
    range_over: Name | None = Field(
        default=None, description="Instead of the metric: its range (max - min) over the levels of this factor."
    )
    where: dict[str, str] = Field(default={}, description="Levels of other factors that the claim is about.")
    provided: Condition | None = Field(default=None, description="Without this the test is void.")
    direction: Literal["less", "greater", "equal"]
    margin: FiniteFloat = Field(
        ge=0, description="less, greater: by more than this (paired_log_t: than this factor); equal: within this."
    )
    test: Test = Field(description="What decides it.")
    seeds: int = Field(default=2, ge=2, strict=True, description="With fewer shared seeds it stays undecided.")
    budget: Literal["rollouts", "updates"] = Field(description="What all sides have in equal number.")
    power: str = Field(min_length=1, description="What the seeds can find.")

    @model_validator(mode="after")
    def _fits_together(self) -> Hypothesis:
        if problems := [f"hypothesis {self.id}: {text}" for text in _misfits(self)]:
            raise ValueError("; ".join(problems))
        return self

    @property
    def arms(self) -> list[str]:
        """The arms that it compares, in its order."""
        if self.contrast is None:
            return list(self.trend or [])
        return [arm for arm in (self.contrast.of, self.contrast.minus) if arm is not None]

    def facets(self, compare: str, variants: Sequence[Levels]) -> list[list[Levels]]:
        """The variants that are compared with each other: a list for each facet that has all of its arms."""
        apart = defaultdict[str, list[Levels]](list)
        for levels in variants:
            if self.where.items() <= levels.items() and levels[compare] in self.arms:
                others = {name: levels[name] for name in levels if name not in (compare, self.range_over)}
                apart[str(others)].append(levels)
        return [facet for facet in apart.values() if {levels[compare] for levels in facet} == set(self.arms)]


def least_seeds(test: Test, arms: int) -> int:
    """The fewest seeds with which a two-sided test can fall below ALPHA at all.

    Fisher: none of n against all of n has p = 2 / (2n over n). Page: n seeds in perfect order have 2 / (arms!)^n.
    """
    if test == "fisher":
        return next(n for n in range(2, 99) if 2 / math.comb(2 * n, n) < ALPHA)
    if test == "page":
        return next(n for n in range(2, 99) if 2 / math.factorial(arms) ** n < ALPHA)
    return 2


def _misfits(claim: Hypothesis) -> Iterator[str]:
    """What of a hypothesis does not fit together, whatever the study."""
    if (claim.contrast is None) == (claim.trend is None):
        yield "give either contrast or trend"
        return
    if (claim.test == "page") != (claim.trend is not None):
        yield f"test={claim.test} does not fit: a trend takes test=page, a contrast any other"
        return
    if claim.trend is not None and len(claim.trend) < LEAST_ARMS:
        yield f"trend=[{', '.join(claim.trend)}] is too short: a trend has {LEAST_ARMS} arms or more"
        return
    if claim.contrast and claim.contrast.of == claim.contrast.minus:
        yield f"contrast compares {claim.contrast.of} with itself"
    if claim.test in ("paired_log_t", "fisher") and len(claim.arms) < 2:
        yield f"test={claim.test} compares two arms: contrast.minus is missing"
    if (claim.test == "fisher") != (claim.metric in LABELS):
        yield f"test={claim.test} does not fit metric={claim.metric}: fisher, and no other, counts labels of runs"
    if claim.test == "fisher" and claim.range_over:
        yield "range_over is a number: test=fisher counts labels"
    if (claim.direction == "equal") != (claim.test == "equivalence"):
        yield f"test={claim.test} does not fit direction={claim.direction}: equivalence and equal need each other"
    if problem := _wrong_margin(claim.test, claim.margin):
        yield f"margin={claim.margin:g} is not allowed with test={claim.test}: {problem}"
    if claim.seeds < (least := least_seeds(claim.test, len(claim.arms))):
        yield f"seeds={claim.seeds} are too few: test={claim.test} can decide from {least} on"


def _wrong_margin(test: Test, margin: float) -> str:
    if test == "equivalence" and margin == 0:
        return "it must be above 0, or nothing is equal"
    if test == "paired_log_t" and margin < 1:
        return "it is a factor, 1 or above"
    if test in ("fisher", "page") and margin != 0:
        return "it must be 0, the test knows no margin"
    return ""


def wrong_names(
    claim: Hypothesis, factors: Factors, compare: str, seeds: int, variants: Sequence[Levels]
) -> Iterator[str]:
    """Sentences about what a hypothesis asks of its study and the study does not have."""
    label = f"hypothesis {claim.id}"
    found = list(_unknown_names(claim, label, factors, compare))
    yield from found
    if not found and not claim.facets(compare, variants):
        yield f"{label}: no seed is shared: {' and '.join(claim.arms)} are never planned together where it looks"
    if seeds < (least := least_seeds(claim.test, len(claim.arms))):
        yield f"{label}: seeds={seeds} are too few for test={claim.test}, which can decide from {least} on"


def _unknown_names(claim: Hypothesis, label: str, factors: Factors, compare: str) -> Iterator[str]:
    arms, metrics = factors.get(compare, {}), [*METRICS, *QUANTITIES]
    if claim.contrast:
        yield from unknown(f"{label}: contrast.of", [claim.contrast.of], arms)
        yield from unknown(f"{label}: contrast.minus", filter(None, [claim.contrast.minus]), arms)
    yield from unknown(f"{label}: trend", claim.trend or [], arms)
    yield from unknown(f"{label}: metric", [claim.metric], metrics)
    yield from unknown_levels(f"{label}: where", claim.where, factors)
    if compare in claim.where:
        yield f"{label}: where.{compare} is the factor that is compared: name levels of other factors"
    if claim.range_over:
        yield from unknown(f"{label}: range_over", [claim.range_over], factors)
        if claim.range_over in (compare, *claim.where):
            yield f"{label}: range_over={claim.range_over} must be a factor that is neither compared nor in where"
    if claim.provided:
        yield from unknown(f"{label}: provided.metric", [claim.provided.metric], metrics)
        yield from unknown(f"{label}: provided.of", [claim.provided.of], arms)


def unequal_budgets(
    claims: Sequence[Hypothesis], compare: str, variants: Sequence[tuple[Levels, RunSettings]]
) -> Iterator[str]:
    """A sentence for each hypothesis whose sides do not have in equal number what its budget says.

    `rollouts`: completions that are sampled; `updates`: optimiser steps.
    """
    settings_of = {str(levels): settings for levels, settings in variants}
    for claim in claims:
        for facet in claim.facets(compare, [levels for levels, _ in variants]):
            amounts = {"/".join(levels.values()): _amount(claim, settings_of[str(levels)]) for levels in facet}
            few, many = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
            if amounts[few] != amounts[many]:
                unit = "completions" if claim.budget == "rollouts" else "optimiser steps"
                yield (
                    f"hypothesis {claim.id}: budget={claim.budget} does not hold: {few} has {amounts[few]} {unit},"
                    f" {many} has {amounts[many]}"
                )
                break


def _amount(claim: Hypothesis, settings: RunSettings) -> int:
    if claim.budget == "rollouts":
        return settings.planned_steps * settings.batch_size
    return settings.optimizer_steps
