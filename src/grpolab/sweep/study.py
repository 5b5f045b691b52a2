"""A study: a question, its factors, seeds, hypotheses and figures, read from experiments/<name>.yaml and checked."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, Field, FiniteFloat, ValidationError, create_model, model_validator

from grpolab.errors import RequestError
from grpolab.paths import study_file, within_project
from grpolab.quantities import GAINS, LABELS, QUANTITIES, Thresholds
from grpolab.settings.run import RunSettings
from grpolab.sweep.schema import (
    MOST_VARIANTS,
    NAME,
    Different,
    Factors,
    Figures,
    Name,
    Overrides,
    Part,
    Seeds,
    StudyName,
    different,
    sentences,
    unknown,
    unknown_levels,
)
from grpolab.sweep.tuning.settings import Tuning, named_tunings, with_tuned_values
from grpolab.vocabulary import ANALYTIC_FIGURES, FIGURES, LOOKS, METRICS

MOST_NODES = 100_000  # of a study file; without a bound, a few aliases would fill the memory
LEAST_ARMS = 3  # two are a contrast

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
    tested: str = Field(
        default="",
        description="What its test tests, where `says` claims more: what pages say instead. Not registered, so that it"
        " may be mended.",
    )
    also: str = Field(
        default="",
        description="The hypothesis (`study.id`) that asks the same with a learning rate of each arm's own: a screen"
        " that knows both says both. Not registered either.",
    )
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
    direction: Literal["less", "greater", "equal"] = Field(description="equal: the difference is inside the margin.")
    scale: Literal["linear", "log"] = Field(default="linear", description="log: arms are compared as factors.")
    beyond: FiniteFloat = Field(default=0, ge=0, description="less, greater: by more than this; scale=log: a factor.")
    margin: FiniteFloat | None = Field(
        default=None,
        gt=0,
        description="The smallest difference that matters; scale=log: a factor. Left out: of a score .15 of the"
        " baseline's gain on the task, of a factor 1.1, of others every difference.",
    )
    by_construction: bool = Field(default=False, description="It must hold: a check of the program, not a finding.")
    budget: Literal["rollouts", "updates"] = Field(description="What all sides have in equal number.")

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


if TYPE_CHECKING:
    Stability: TypeAlias = Part
else:  # every threshold of the stability labels; what a study file leaves out keeps its default
    bounded = {field.name: (Annotated[type(field.default), Field(ge=0)], field.default) for field in fields(Thresholds)}
    Stability = create_model("Stability", __base__=Part, **bounded)


def _planned(looks: list[int]) -> list[int]:
    if looks != list(LOOKS) and (len(looks) != 1 or looks[0] < 2):
        raise ValueError(f"looks={looks} is not allowed: one number from 2 on, or {list(LOOKS)}")
    return looks


Looks = Annotated[list[int], AfterValidator(_planned)]


class Study(Part):
    """Factors whose levels are Hydra overrides; every combination of levels is a variant."""

    name: StudyName
    file: str = Field(default="", description="Where it lies, as `within_project` has it; empty: it has none.")
    title: str = Field(default="", description="What it is about in a word or two; else its name.")
    question: str = Field(min_length=1)
    overrides: Overrides = Field(default=[], description="Common to all variants.")
    factors: Factors = Field(min_length=1)
    compare: Name = Field(description="The factor whose levels are the arms.")
    baseline: Name = Field(description="The arm that the others are compared with.")
    seeds: Seeds = Field(description="How many (0, 1, ...), or which.")
    primary_metric: str
    hypotheses: list[Hypothesis] = Field(default=[], description="What is claimed before the study is run.")
    looks: Looks = Field(default=[*LOOKS], description="After how many seeds its hypotheses are looked at.")
    stability: Stability = Field(default=Stability(), description="Where a quantity becomes a label.")
    figures: Figures = Field(default=[], description="What its report draws.")
    placebo: list[Annotated[list[Name], Field(min_length=2, max_length=2)]] = Field(
        default=[], description="Pairs of arms that are the same function."
    )
    skip: list[dict[str, str]] = Field(default=[], description="Combinations of levels that are left out.")
    tuning: Tuning | None = Field(default=None, description="What `grpolab tune` looks for, per arm.")

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        if problems := list(_problems(self)):
            raise ValueError("; ".join(problems))
        return self

    def variants(self) -> list[dict[str, str]]:
        """Every combination of levels that is not skipped, as {factor: level}."""
        every = [dict(zip(self.factors, levels, strict=True)) for levels in product(*self.factors.values())]
        return [levels for levels in every if not any(part.items() <= levels.items() for part in self.skip)]

    def overrides_of(self, levels: dict[str, str]) -> Overrides:
        """The overrides of one variant, in order of precedence.

        Raises RequestError where it names tuned values (`tuned=STUDY`) that are not there.
        """
        arm = levels[self.compare]
        chosen = [self.factors[factor][level] for factor, level in levels.items()]
        of_arm = [level[arm] if isinstance(level, dict) else level for level in chosen]
        return with_tuned_values([*self.overrides, *(text for overrides in of_arm for text in overrides)], arm)

    @property
    def tunings(self) -> list[dict[str, Any]]:
        """The tunings whose values it names, and where. Raises RequestError where one is not there."""
        return named_tunings(self.overrides, self.factors)


class Collection(Part):
    """A study that only includes others."""

    name: StudyName
    file: str = Field(default="", description="Where it lies, as `within_project` has it; empty: it has none.")
    title: str = Field(default="", description="What it is about in a word or two; else its name.")
    question: str = Field(min_length=1)
    includes: Annotated[list[StudyName], Different] = Field(min_length=1)
    seeds: Seeds | None = Field(default=None, description="Replaces the seeds of the included studies.")
    primary: Annotated[list[str], Different] = Field(
        default=[], description="Hypotheses (`study.id`) that are decided together; all others are described."
    )
    looks: Looks = Field(default=[*LOOKS], description="After how many seeds these are looked at.")
    figures: Figures = Field(default=[], description="Those that need no run.")
    shown: Annotated[list[str], Different] = Field(
        default=[], description="Figures (`study.F2`) that its report shows, and whose runs are kept whole; none: all."
    )

    @model_validator(mode="after")
    def _figures_need_no_run(self) -> Collection:
        if problems := list(unknown("figures", self.figures, ANALYTIC_FIGURES)):
            raise ValueError("; ".join(problems))
        return self


def load(name: str) -> Study | Collection:
    """The study of that name, or in the file at that path (`study_file`). Raises RequestError with all its problems."""
    file = study_file(name)
    shown = within_project(file)
    try:
        if _size(yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader), {}) > MOST_NODES:
            raise ValueError("its aliases (*name) make it too large, or contain themselves")
        # OmegaConf's YAML refuses a key that stands twice, and reads 1e-3 as a number.
        content = _with_text_keys(OmegaConf.to_container(OmegaConf.load(file)))
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise RequestError(f"{shown} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RequestError(f"{shown} must be a mapping of question, factors, ...")
    if given := [key for key in ("name", "file") if key in content]:
        raise RequestError(f"{shown}: {given[0]} is unknown: a study is named by its file")
    model = Collection if "includes" in content else Study
    try:
        return model.model_validate({"name": file.stem, "file": shown, **content})
    except ValidationError as error:
        raise RequestError(f"{shown}: {text}" for text in sentences(model, error)) from error


def called(study: Study | Collection) -> str:
    """What commands call it: its name, or the path of its file where that is not in experiments/."""
    return study.name if study.file in ("", f"experiments/{study.name}.yaml") else study.file


def _size(node: yaml.Node | None, known: dict[int, float]) -> float:
    """Nodes of a YAML document with every alias written out: a few lines can stand for billions. `inf`: no end."""
    if id(node) not in known:
        known[id(node)] = math.inf  # until it is known: met again before that, it contains itself
        inside = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for item in inside for part in (item if isinstance(item, tuple) else [item])]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _with_text_keys(node: Any) -> Any:
    """Levels like `1:` and `8:` are names, not numbers. Raises ValueError where two become one."""
    if isinstance(node, dict):
        different([str(key) for key in node])
        return {str(key): _with_text_keys(item) for key, item in node.items()}
    return [_with_text_keys(item) for item in node] if isinstance(node, list) else node


# ----------------------------------------------------------------------------------------------------------------------
# What of a study, and of its hypotheses, does not fit together.


def _problems(study: Study) -> Iterator[str]:
    """Sentences about factors, levels and metrics that do not exist, or could not be told apart in a variant's name."""
    arms = study.factors.get(study.compare, {})
    for factor, choices in study.factors.items():
        if not choices:
            yield f"factors.{factor} has no level"
        for name in (factor, *choices):
            if not re.fullmatch(NAME, name):
                yield f"factors.{factor}: {name!r} is no name: leave out spaces and slashes"
    combinations = math.prod(len(choices) for choices in study.factors.values())
    if combinations > MOST_VARIANTS:
        yield f"factors make {combinations} variants: a study has at most {MOST_VARIANTS}"
    elif not study.variants():
        yield "skip leaves no variant"
    yield from unknown("figures", study.figures, FIGURES)
    yield from unknown("compare", [study.compare], study.factors)
    yield from unknown("baseline", [study.baseline], arms)
    for factor, choices in study.factors.items():
        for name, level in choices.items():
            if isinstance(level, dict) and ({*level} != {*arms} or factor == study.compare):
                yield f"factors.{factor}.{name} must be a list of overrides, or one for each of {', '.join(arms)}"
    yield from unknown("primary_metric", [study.primary_metric], METRICS)
    for pair in study.placebo:
        yield from unknown("placebo", pair, arms)
    for levels in study.skip:
        yield from unknown_levels("skip", levels, study.factors)
    claims = [claim.id for claim in study.hypotheses]
    yield from (f"hypothesis {name} stands twice: ids differ" for name in set(claims) if claims.count(name) > 1)
    variants = study.variants() if combinations <= MOST_VARIANTS else []
    for claim in study.hypotheses:
        names_unknown = list(_unknown_names(claim, study.factors, study.compare))
        yield from names_unknown
        if not names_unknown and not claim.facets(study.compare, variants):
            arms_named = " and ".join(claim.arms)
            yield f"hypothesis {claim.id}: no seed is shared: {arms_named} are never planned together where it looks"
    if study.tuning:
        yield from study.tuning.problems(study.factors, study.compare, study.seeds)


def _unknown_names(claim: Hypothesis, factors: Factors, compare: str) -> Iterator[str]:
    """Sentences about what a hypothesis names and its study does not have."""
    label, arms, metrics = f"hypothesis {claim.id}", factors.get(compare, {}), [*METRICS, *QUANTITIES]
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


def _misfits(claim: Hypothesis) -> list[str]:
    """What of a hypothesis does not fit together, whatever the study."""
    metric, arms, logarithmic = claim.metric, claim.arms, claim.scale == "log"
    if (claim.contrast is None) == (claim.trend is None):
        return ["give either contrast or trend"]
    if claim.trend is not None and len(arms) < LEAST_ARMS:
        return [f"trend=[{', '.join(arms)}] is too short: a trend has {LEAST_ARMS} arms or more"]
    label, equal = metric in LABELS, claim.direction == "equal"
    ranked = "a trend" if claim.trend else f"metric={metric}, a label of runs,"
    not_a_mean = claim.trend is not None or label
    has_default = logarithmic or metric in GAINS
    rules = [
        (claim.contrast is not None and arms[1:] == arms[:1], f"contrast compares {arms[0]} with itself"),
        (
            len(arms) < 2 and (logarithmic or label),
            f"{'scale=log' if logarithmic else f'metric={metric}'} compares two arms: contrast.minus is missing",
        ),
        (label and claim.trend is not None, f"metric={metric} is a label of runs: a trend needs a number"),
        (label and claim.range_over is not None, "range_over is a number: labels are counted"),
        (not_a_mean and equal, f"direction=equal needs a difference of means: {ranked} has none"),
        (not_a_mean and logarithmic, f"scale=log needs a difference of means: {ranked} has none"),
        (not_a_mean and claim.beyond != 0, f"beyond={claim.beyond:g} is not allowed: {ranked} is tested against none"),
        (not_a_mean and claim.margin is not None, f"margin={claim.margin} is not allowed: {ranked} knows no margin"),
        (equal and claim.beyond != 0, f"beyond={claim.beyond:g} is not allowed with direction=equal: use margin"),
        (
            equal and not not_a_mean and claim.margin is None and not has_default,
            "direction=equal needs a margin: within what?",
        ),
        (
            logarithmic and 0 < claim.beyond < 1,
            f"beyond={claim.beyond:g} is not allowed with scale=log: it is a factor, 1 or above",
        ),
        (
            logarithmic and claim.margin is not None and claim.margin <= 1,
            f"margin={claim.margin} is not allowed with scale=log: it is a factor above 1",
        ),
    ]
    return [sentence for is_wrong, sentence in rules if is_wrong]


def unequal_budgets(
    claims: Sequence[Hypothesis], compare: str, variants: Sequence[tuple[Levels, RunSettings]]
) -> Iterator[str]:
    """A sentence for each hypothesis whose sides do not have in equal number what its budget says.

    `rollouts`: completions that are sampled; `updates`: optimiser steps.
    """
    settings_of = {str(levels): settings for levels, settings in variants}
    unit = {"rollouts": "completions", "updates": "optimiser steps"}
    for claim in claims:
        for facet in claim.facets(compare, [levels for levels, _ in variants]):
            amounts = {}
            for levels in facet:
                run = settings_of[str(levels)]
                completions, updates = run.planned_steps * run.batch_size, run.optimizer_steps
                amounts["/".join(levels.values())] = completions if claim.budget == "rollouts" else updates
            few, many = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
            if amounts[few] != amounts[many]:
                yield (
                    f"hypothesis {claim.id}: budget={claim.budget} does not hold: {few} has {amounts[few]}"
                    f" {unit[claim.budget]}, {many} has {amounts[many]}"
                )
                break
