"""Study files, experiments/<name>.yaml: question, factors, seeds, hypotheses, figures, and the checks of them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, FiniteFloat, ValidationError, create_model, model_validator

from grpolab.bounded import Lenient, RefusedDocument, parse_yaml, read_text
from grpolab.errors import RequestError
from grpolab.identity import dotted
from grpolab.meanings import METRICS
from grpolab.quantities import GAINS, LABELS, QUANTITIES, Thresholds
from grpolab.settings.run import RunSettings
from grpolab.study_names import study_file, within_project
from grpolab.sweep.fields import (
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
    unknown,
    unknown_levels,
)
from grpolab.sweep.schema import sentences
from grpolab.sweep.tuning.settings import Tuning, named_tunings, with_tuned_values
from grpolab.vocabulary import ANALYTIC_FIGURES, FIGURES, LOOKS

LEAST_ARMS = 3  # in a trend; two are a contrast

Levels = dict[str, str]  # factor -> level: one variant


def variant_name(levels: Levels) -> str:
    """Return the levels joined: `symmetric/addition/healthy`."""
    return "/".join(levels.values())


class Contrast(Part):
    """A paired difference of two arms, or one arm against 0."""

    of: Name
    minus: Name | None = Field(default=None, description="Empty: the quantity itself, against 0.")


class Precondition(Part):
    """A precondition of a test, for example that the clip acts at all."""

    metric: str = Field(description="A name of the vocabulary, or a stability quantity of the report.")
    of: Name = Field(description="The arm whose mean over seeds counts.")
    above: FiniteFloat = Field(description="The mean must exceed it.")


class Hypothesis(Part):
    """A claim that is made before the study is run."""

    id: Name
    says: str = Field(min_length=1, description="The claim in plain words.")
    tested: str = Field(
        default="",
        description="Pages say it instead of `says` if the test shows less. Not registered, so it may be mended.",
    )
    also: list[str] = Field(
        default=[],
        description="Hypotheses (`study.id`) that ask the same elsewhere: with a learning rate tuned for each arm, or"
        " of other tasks. The page of this one shows their verdicts too. Not registered either.",
    )
    source: str = Field(min_length=1, description="The paper or person that claims it.")
    kind: Literal["question", "consequence", "repetition"] = Field(
        default="question",
        description="question: open before the runs; consequence: near certain beforehand; repetition: asks again.",
    )
    because: str = Field(default="", description="Why it is a consequence or a repetition.")
    metric: str = Field(description="A name of the vocabulary, or a stability quantity of the report.")
    contrast: Contrast | None = Field(default=None, description="Two arms by seed, or one against 0.")
    trend: Annotated[list[Name], Different] | None = Field(
        default=None, description="Instead of a contrast: arms in the order in which the metric rises or falls."
    )
    range_over: Name | None = Field(
        default=None, description="Instead of the metric: its range (max - min) over the levels of this factor."
    )
    where: dict[str, str] = Field(default={}, description="Levels of other factors to which the claim is limited.")
    provided: Precondition | None = Field(default=None, description="If it does not hold, the test is void.")
    direction: Literal["less", "greater", "equal"] = Field(description="equal: the difference is inside the margin.")
    scale: Literal["linear", "log"] = Field(default="linear", description="log: arms are compared as factors.")
    beyond: FiniteFloat = Field(default=0, ge=0, description="less, greater: by more than this; scale=log: a factor.")
    margin: FiniteFloat | None = Field(
        default=None,
        gt=0,
        description="The smallest difference that matters; scale=log: a factor. Left out: of a score .15 of the"
        " baseline's gain on the task, of a factor 1.1, of others every difference.",
    )
    by_construction: bool = Field(default=False, description="True: a check of the program, not a finding.")
    budget: Literal["rollouts", "updates"] = Field(description="All arms have the same number of these.")

    @model_validator(mode="after")
    def _fits_together(self) -> Hypothesis:
        if problems := [f"hypothesis {self.id}: {text}" for text in _find_misfits(self)]:
            raise ValueError("; ".join(problems))
        return self

    @property
    def arms(self) -> list[str]:
        """The compared arms, in the order of the hypothesis."""
        compared = [self.contrast.of, self.contrast.minus] if self.contrast else self.trend or []
        return [arm for arm in compared if arm is not None]

    def facets(self, compare: str, variants: Sequence[Levels]) -> list[list[Levels]]:
        """Group the compared variants by the levels of the other factors; a group that lacks an arm is left out."""
        groups = defaultdict[str, list[Levels]](list)
        for levels in variants:
            if self.where.items() <= levels.items() and levels[compare] in self.arms:
                others = {name: levels[name] for name in levels if name not in (compare, self.range_over)}
                groups[str(others)].append(levels)
        return [facet for facet in groups.values() if {levels[compare] for levels in facet} == set(self.arms)]


if TYPE_CHECKING:
    Stability: TypeAlias = Part
else:  # the thresholds of the stability labels, with their defaults
    bounded = {field.name: (Annotated[type(field.default), Field(ge=0)], field.default) for field in fields(Thresholds)}
    Stability = create_model("Stability", __base__=Part, **bounded)


def _check_looks(looks: list[int]) -> list[int]:
    if looks != list(LOOKS) and (len(looks) != 1 or looks[0] < 2):
        raise ValueError(f"looks={looks} is not allowed: one number from 2 on, or {list(LOOKS)}")
    return looks


class StudyFile(Part):
    """The fields of every study file."""

    name: StudyName
    file: str = Field(default="", description="Its path, as `within_project` writes it; empty: it has no file.")
    title: str = Field(default="", description="Its topic in a word or two; empty: its name.")
    question: str = Field(min_length=1)
    looks: Annotated[list[int], AfterValidator(_check_looks)] = Field(
        default=[*LOOKS], description="Numbers of seeds after which its hypotheses are tested."
    )
    figures: Figures = Field(default=[], description="Figures in its report.")

    @property
    def argument(self) -> str:
        """The study's name as an argument of commands: its path if the file is not in experiments/."""
        return self.name if self.file in ("", f"experiments/{self.name}.yaml") else self.file


class Study(StudyFile):
    """Factors whose levels are Hydra overrides; every combination of levels is a variant."""

    overrides: Overrides = Field(default=[], description="Common to all variants.")
    factors: Factors = Field(min_length=1)
    compare: Name = Field(description="The factor whose levels are the arms.")
    baseline: Name = Field(description="The arm that the others are compared with.")
    seeds: Seeds = Field(description="Their number (0, 1, ...), or a list.")
    primary_metric: str
    hypotheses: list[Hypothesis] = Field(default=[], description="Claims that are made before the study is run.")
    stability: Stability = Field(default=Stability(), description="Thresholds at which a quantity becomes a label.")
    placebo: list[Annotated[list[Name], Field(min_length=2, max_length=2)]] = Field(
        default=[], description="Pairs of arms that compute the same function."
    )
    skip: list[dict[str, str]] = Field(default=[], description="Combinations of levels that are left out.")
    tuning: Tuning | None = Field(default=None, description="The search of `grpolab tune`, for each arm.")

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        if problems := list(_find_problems(self)):
            raise ValueError("; ".join(problems))
        return self

    def variants(self) -> list[Levels]:
        every = [dict(zip(self.factors, levels, strict=True)) for levels in product(*self.factors.values())]
        return [levels for levels in every if not any(part.items() <= levels.items() for part in self.skip)]

    def overrides_of(self, levels: Levels) -> Overrides:
        """Return the overrides of one variant, in order of precedence.

        Raises RequestError if it names tuned values (`tuned=STUDY`) that do not exist.
        """
        arm, overrides = levels[self.compare], [*self.overrides]
        for factor, name in levels.items():
            level = self.factors[factor][name]
            overrides += level[arm] if isinstance(level, dict) else level
        return with_tuned_values(overrides, arm)

    @property
    def tunings(self) -> list[dict[str, Any]]:
        """The tunings whose values the study uses. Raises RequestError if one does not exist."""
        return named_tunings(self.overrides, self.factors)


class Collection(StudyFile):
    """A study that includes others and has no runs of its own."""

    includes: Annotated[list[StudyName], Different] = Field(min_length=1)
    seeds: Seeds | None = Field(default=None, description="Replaces the seeds of the included studies.")
    primary: Annotated[list[str], Different] = Field(
        default=[], description="Hypotheses (`study.id`) that are decided together; all others are only described."
    )
    shown: Annotated[list[str], Different] = Field(
        default=[], description="Figures (`study.F2`) in its report, whose runs are kept whole; empty: all."
    )
    said: Annotated[list[str], Different] = Field(
        default=[], description="Hypotheses (`study.id`) whose verdicts the first page says; empty: those it chooses."
    )

    @model_validator(mode="after")
    def _figures_need_no_run(self) -> Collection:
        if problems := list(unknown("figures", self.figures, ANALYTIC_FIGURES)):
            raise ValueError("; ".join(problems))
        return self


def load(name: str) -> Study | Collection:
    """Read the study of that name, or the file at that path. Raises RequestError with all of its problems."""
    file = study_file(name)
    shown = within_project(file)
    content = _with_text_keys(parse_yaml(shown, read_text(str(file)), _Unrepeated))
    if not isinstance(content, dict):
        raise RequestError(f"{shown} must be a mapping of question, factors, ...")
    for key in ("name", "file"):
        if key in content:
            raise RequestError(f"{shown}: {key} is unknown: a study is named by its file")
    model = Collection if "includes" in content else Study
    try:
        return model.model_validate({"name": file.stem, "file": shown, **content})
    except ValidationError as error:
        raise RequestError(f"{shown}: {text}" for text in sentences(model, error)) from error


class _Unrepeated(Lenient):  # a key that is repeated is refused
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [key.value for key, _ in node.value]
        if len({*keys}) < len(keys):
            raise RefusedDocument(f"has the duplicate key {max(keys, key=keys.count)}")
        return super().construct_mapping(node, deep)


def _with_text_keys(node: Any) -> Any:
    """Turn keys like `1:` and `8:` into text."""
    if isinstance(node, dict):
        return {str(key): _with_text_keys(item) for key, item in node.items()}
    return [_with_text_keys(item) for item in node] if isinstance(node, list) else node


def _find_problems(study: Study) -> Iterator[str]:
    """Yield a sentence for each field of a study that does not fit the others."""
    arms = study.factors.get(study.compare, {})
    for factor, choices in study.factors.items():
        if not choices:
            yield f"factors.{factor} has no level"
        for name in (factor, *choices):
            if not re.fullmatch(NAME, name):
                yield f"factors.{factor}: {name!r} is no name: leave out spaces and slashes"
        for name, level in choices.items():
            if isinstance(level, dict) and ({*level} != {*arms} or factor == study.compare):
                yield f"factors.{factor}.{name} must be a list of overrides, or one for each of {', '.join(arms)}"
    combinations = math.prod(len(choices) for choices in study.factors.values())
    variants = study.variants() if combinations <= MOST_VARIANTS else []
    if combinations > MOST_VARIANTS:
        yield f"factors make {combinations} variants: a study has at most {MOST_VARIANTS}"
    elif not variants:
        yield "skip leaves no variant"
    yield from unknown("figures", study.figures, FIGURES)
    yield from unknown("compare", [study.compare], study.factors)
    yield from unknown("baseline", [study.baseline], arms)
    yield from unknown("primary_metric", [study.primary_metric], METRICS)
    yield from unknown("placebo", [arm for pair in study.placebo for arm in pair], arms)
    for levels in study.skip:
        yield from unknown_levels("skip", levels, study.factors)
    ids = [claim.id for claim in study.hypotheses]
    yield from (f"hypothesis {name} stands twice: ids differ" for name in set(ids) if ids.count(name) > 1)
    for claim in study.hypotheses:
        problems = list(_find_unknown_names(claim, study.factors, study.compare))
        if not problems and not claim.facets(study.compare, variants):
            arms_together = f"{' and '.join(claim.arms)} are never planned together in the levels of `where`"
            problems.append(f"hypothesis {claim.id}: no seed is shared: {arms_together}")
        yield from problems
    if study.tuning:
        yield from study.tuning.problems(study.factors, study.compare, study.seeds)


def _find_unknown_names(claim: Hypothesis, factors: Factors, compare: str) -> Iterator[str]:
    label, arms, metrics = f"hypothesis {claim.id}", factors.get(compare, {}), [*METRICS, *QUANTITIES]
    known_at: dict[str, Iterable[str]] = {"contrast.of": arms, "contrast.minus": arms, "trend": arms, "metric": metrics}
    known_at |= {"range_over": factors, "provided.metric": metrics, "provided.of": arms}
    written = dict(dotted(claim.model_dump()))
    for key, known in known_at.items():
        names = written.get(key)
        yield from unknown(f"{label}: {key}", [names] if isinstance(names, str) else names or [], known)
    yield from unknown_levels(f"{label}: where", claim.where, factors)
    if compare in claim.where:
        yield f"{label}: where.{compare} is the factor that is compared: name levels of other factors"
    if claim.range_over and claim.range_over in (compare, *claim.where):
        yield f"{label}: range_over={claim.range_over} must be a factor that is neither compared nor in where"


def _find_misfits(claim: Hypothesis) -> list[str]:
    """Return a sentence for each field of a hypothesis that does not fit the others."""
    metric, arms, logarithmic = claim.metric, claim.arms, claim.scale == "log"
    if (claim.contrast is None) == (claim.trend is None):
        return ["give either contrast or trend"]
    if claim.trend is not None and len(arms) < LEAST_ARMS:
        return [f"trend=[{', '.join(arms)}] is too short: a trend has {LEAST_ARMS} arms or more"]
    label, equal = metric in LABELS, claim.direction == "equal"
    ranked = "a trend" if claim.trend else f"metric={metric}, a label of runs,"
    not_a_mean = claim.trend is not None or label
    needs_margin = equal and not not_a_mean and not logarithmic and metric not in GAINS
    one_arm = "scale=log" if logarithmic else f"metric={metric}"
    beyond = f"beyond={claim.beyond:g} is not allowed"
    margin = f"margin={claim.margin} is not allowed"
    rules = [
        (claim.kind != "question" and not claim.because, f"kind={claim.kind} needs its reason: because is missing"),
        (claim.kind == "question" and claim.because != "", "because is not allowed with kind=question"),
        (claim.contrast is not None and arms[1:] == arms[:1], f"contrast compares {arms[0]} with itself"),
        (len(arms) < 2 and (logarithmic or label), f"{one_arm} compares two arms: contrast.minus is missing"),
        (label and claim.trend is not None, f"metric={metric} is a label of runs: a trend needs a number"),
        (label and claim.range_over is not None, "range_over is a number: labels are counted"),
        (not_a_mean and equal, f"direction=equal needs a difference of means: {ranked} has none"),
        (not_a_mean and logarithmic, f"scale=log needs a difference of means: {ranked} has none"),
        (not_a_mean and claim.beyond != 0, f"{beyond}: {ranked} is tested against none"),
        (not_a_mean and claim.margin is not None, f"{margin}: {ranked} knows no margin"),
        (equal and claim.beyond != 0, f"{beyond} with direction=equal: use margin"),
        (needs_margin and claim.margin is None, "direction=equal needs a margin: within what?"),
        (logarithmic and 0 < claim.beyond < 1, f"{beyond} with scale=log: it is a factor, 1 or above"),
        (logarithmic and claim.margin is not None and claim.margin <= 1, f"{margin} with scale=log: a factor above 1"),
    ]
    return [sentence for is_wrong, sentence in rules if is_wrong]


def unequal_budgets(study: Study, variants: Sequence[tuple[Levels, RunSettings]]) -> Iterator[str]:
    """Yield a sentence for each hypothesis whose arms have unequal budgets, in the unit that it names."""
    settings_of = {variant_name(levels): settings for levels, settings in variants}
    for claim in study.hypotheses:
        unit = "completions" if claim.budget == "rollouts" else "optimiser steps"
        for facet in claim.facets(study.compare, [levels for levels, _ in variants]):
            runs = {name: settings_of[name] for name in map(variant_name, facet)}
            amounts = {
                name: run.planned_steps * run.batch_size if claim.budget == "rollouts" else run.optimizer_steps
                for name, run in runs.items()
            }
            few, many = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
            if amounts[few] != amounts[many]:
                have = f"{few} has {amounts[few]} {unit}, {many} has {amounts[many]}"
                yield f"hypothesis {claim.id}: budget={claim.budget} does not hold: {have}"
                break
