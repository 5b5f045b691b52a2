"""A study: a question, its factors, seeds, hypotheses and figures, read from experiments/<name>.yaml and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, ValidationError, create_model, model_validator

from grpolab.errors import RequestError, near_matches
from grpolab.paths import project_root
from grpolab.quantities import Thresholds
from grpolab.sweep import schema
from grpolab.sweep.hypothesis import Hypothesis, wrong_names
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
    unknown,
    unknown_levels,
)
from grpolab.sweep.tuning import settings
from grpolab.sweep.tuning.settings import Tuning
from grpolab.vocabulary import ANALYTIC_FIGURES, FIGURES, METRICS

MOST_NODES = 100_000  # of a study file; without a bound, a few aliases would fill the memory

if TYPE_CHECKING:
    Stability: TypeAlias = Part
else:  # every threshold of the stability labels; what a study file leaves out keeps its default
    bounded = {field.name: (Annotated[type(field.default), Field(ge=0)], field.default) for field in fields(Thresholds)}
    Stability = create_model("Stability", __base__=Part, **bounded)


class Study(Part):
    """Factors whose levels are Hydra overrides; every combination of levels is a variant."""

    name: StudyName
    question: str = Field(min_length=1)
    overrides: Overrides = Field(default=[], description="Common to all variants.")
    factors: Factors = Field(min_length=1)
    compare: Name = Field(description="The factor whose levels are the arms.")
    baseline: Name = Field(description="The arm that the others are compared with.")
    seeds: Seeds = Field(description="How many (0, 1, ...), or which.")
    primary_metric: str
    hypotheses: list[Hypothesis] = Field(default=[], description="What is claimed before the study is run.")
    stability: Stability = Field(default=Stability(), description="Where a quantity becomes a label.")
    figures: Figures = Field(default=[], description="What its report draws.")
    placebo: list[Annotated[list[Name], Field(min_length=2, max_length=2)]] = Field(
        default=[], description="Pairs of arms that are the same function."
    )
    skip: list[dict[str, str]] = Field(default=[], description="Combinations of levels that are left out.")
    tuning: Tuning | None = Field(default=None, description="What `grpolab tune` looks for, per arm.")

    @model_validator(mode="after")
    def _names_exist(self) -> Study:
        if problems := list(_unknown_names(self)):
            raise ValueError("; ".join(problems))
        return self

    @property
    def seed_list(self) -> list[int]:
        """The seeds themselves."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

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
        own = [level[arm] if isinstance(level, dict) else level for level in chosen]
        return settings.resolved([*self.overrides, *(text for overrides in own for text in overrides)], arm)

    @property
    def tunings(self) -> list[dict[str, Any]]:
        """The tunings whose values it names, and where. Raises RequestError where one is not there."""
        return settings.named(self.overrides, self.factors)


class Collection(Part):
    """A study that only includes others."""

    name: StudyName
    question: str = Field(min_length=1)
    includes: Annotated[list[StudyName], Different] = Field(min_length=1)
    seeds: Seeds | None = Field(default=None, description="Replaces the seeds of the included studies.")
    figures: Figures = Field(default=[], description="Those that need no run.")

    @model_validator(mode="after")
    def _figures_need_no_run(self) -> Collection:
        if problems := list(unknown("figures", self.figures, ANALYTIC_FIGURES)):
            raise ValueError("; ".join(problems))
        return self


def available() -> list[str]:
    """Names of the studies in experiments/."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def load(name: str) -> Study | Collection:
    """The study in experiments/<name>.yaml, or in the file at a path that ends in .yaml or .yml.

    Raises RequestError with every problem of the file, or the names that exist where `name` is none of them.
    """
    file, shown = _file(name)
    content = _read(file, shown)
    model = Collection if "includes" in content else Study
    if "name" in content:
        raise RequestError(f"{shown}: name is unknown: a study is named by its file")
    try:
        return model.model_validate({"name": file.stem, **content})
    except ValidationError as error:
        raise RequestError(f"{shown}: {text}" for text in schema.sentences(model, error)) from error


def _folder() -> Path:
    return project_root() / "experiments"


def _file(name: str) -> tuple[Path, str]:
    """A study's file, and what it is called in sentences. Raises RequestError where it is not there."""
    if name in available():
        return _folder() / f"{name}.yaml", f"experiments/{name}.yaml"
    if not name.endswith((".yaml", ".yml")):
        raise RequestError(f"study {name} is unknown{near_matches(name, available())}: have {', '.join(available())}")
    file = Path(name).expanduser()
    if not file.is_file():
        raise RequestError(f"study {name}: there is no such file")
    if file.stem in available() and file.resolve() != (_folder() / file.name).resolve():
        raise RequestError(f"study {name}: {file.stem} is a study of experiments/ already: rename the file")
    return file, name


def _read(file: Path, shown: str) -> dict[str, Any]:
    try:
        if _size(yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader), {}) > MOST_NODES:
            raise ValueError("its aliases (*name) make it too large, or contain themselves")
        # OmegaConf's YAML refuses a key that stands twice, and reads 1e-3 as a number.
        content = _with_text_keys(OmegaConf.to_container(OmegaConf.load(file)))
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise RequestError(f"{shown} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RequestError(f"{shown} must be a mapping of question, factors, ...")
    return content


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


def _unknown_names(study: Study) -> Iterator[str]:
    """Sentences about factors, levels and metrics that do not exist, or could not be told apart in a variant's name."""
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
    arms = study.factors.get(study.compare, {})
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
        yield from wrong_names(claim, study.factors, study.compare, len(study.seed_list), variants)
    if study.tuning:
        yield from study.tuning.misfits(study.factors, study.compare, study.seed_list)
