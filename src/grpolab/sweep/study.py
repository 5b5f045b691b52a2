"""A study: a question, its factors, seeds, hypotheses and figures, read from experiments/<name>.yaml and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grpolab.errors import RequestError, near_matches
from grpolab.paths import project_root
from grpolab.sweep import schema
from grpolab.vocabulary import METRICS

Overrides = list[str]
NAME = r"[^\s/]+"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
StudyName = Annotated[str, Field(pattern=r"^\w[\w.+-]*$")]  # also the name of a folder
Figure = Annotated[str, Field(pattern=r"^F\d+$")]
Seeds = Annotated[int, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Part(BaseModel):
    """Frozen, and closed to keys that it does not know; a name may be a number (`mu: {1: [...], 8: [...]}`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Contrast(Part):
    """A paired difference of two arms."""

    of: Name
    minus: Name


class Hypothesis(Part):
    """What is claimed before the study is run."""

    id: Name
    says: str = Field(min_length=1, description="The claim in plain words.")
    metric: str = Field(description="A name of the vocabulary, or a stability quantity of the report.")
    contrast: Contrast
    where: dict[str, str] = Field(default={}, description="Levels of other factors that the claim is about.")
    direction: Literal["less", "greater", "equal"]
    margin: float = Field(ge=0, description="less, greater: by more than this; equal: within this.")
    source: str = Field(min_length=1, description="Who claims it.")


class Study(Part):
    """Factors whose levels are Hydra overrides; every combination of levels is a variant."""

    name: StudyName
    question: str = Field(min_length=1)
    overrides: Overrides = Field(default=[], description="Common to all variants.")
    factors: dict[str, dict[str, Overrides]] = Field(min_length=1)
    compare: Name = Field(description="The factor whose levels are the arms.")
    baseline: Name = Field(description="The arm that the others are compared with.")
    seeds: Seeds = Field(description="How many (0, 1, ...), or which.")
    primary_metric: str
    hypotheses: list[Hypothesis] = []
    figures: list[Figure] = []
    placebo: list[Annotated[list[Name], Field(min_length=2, max_length=2)]] = Field(
        default=[], description="Pairs of arms that are the same function."
    )
    skip: list[dict[str, str]] = Field(default=[], description="Combinations of levels that are left out.")

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
        """The overrides of one variant, in order of precedence."""
        return [*self.overrides, *(text for factor, level in levels.items() for text in self.factors[factor][level])]


class Collection(Part):
    """A study that only includes others."""

    name: StudyName
    question: str = Field(min_length=1)
    includes: list[StudyName] = Field(min_length=1)
    seeds: Seeds | None = Field(default=None, description="Replaces the seeds of the included studies.")
    figures: list[Figure] = []


def available() -> list[str]:
    """Names of the studies in experiments/."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def load(name: str) -> Study | Collection:
    """The study in experiments/<name>.yaml.

    Raises RequestError with every problem of the file, or the names that exist where `name` is none of them.
    """
    if name not in available():
        raise RequestError(f"study {name} is unknown{near_matches(name, available())}: have {', '.join(available())}")
    file = _folder() / f"{name}.yaml"
    content = _read(file)
    model = Collection if "includes" in content else Study
    if "name" in content:
        raise RequestError(f"experiments/{file.name}: name is unknown: a study is named by its file")
    try:
        return model.model_validate({"name": name, **content})
    except ValidationError as error:
        raise RequestError(f"experiments/{file.name}: {text}" for text in schema.sentences(model, error)) from error


def _folder() -> Path:
    return project_root() / "experiments"


def _read(file: Path) -> dict[str, Any]:
    try:
        # OmegaConf's YAML refuses a key that stands twice, and reads 1e-3 as a number.
        content = OmegaConf.to_container(OmegaConf.load(file))
    except (OSError, yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise RequestError(f"experiments/{file.name} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RequestError(f"experiments/{file.name} must be a mapping of question, factors, ...")
    texts = _with_text_keys(content)
    assert isinstance(texts, dict)
    return texts


def _with_text_keys(node: Any) -> Any:
    """Levels like `1:` and `8:` are names, not numbers."""
    if isinstance(node, dict):
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
    yield from _unknown("compare", study.compare, study.factors)
    arms = study.factors.get(study.compare, {})
    yield from _unknown("baseline", study.baseline, arms)
    yield from _unknown("primary_metric", study.primary_metric, METRICS)
    for pair in study.placebo:
        for arm in pair:
            yield from _unknown("placebo", arm, arms)
    for levels in study.skip:
        yield from _unknown_levels("skip", levels, study)
    for claim in study.hypotheses:
        label = f"hypothesis {claim.id}"
        yield from _unknown(f"{label}: contrast.of", claim.contrast.of, arms)
        yield from _unknown(f"{label}: contrast.minus", claim.contrast.minus, arms)
        yield from _unknown_levels(f"{label}: where", claim.where, study)
        if "/" in claim.metric:  # names without a slash may be quantities of the report, such as final_score
            yield from _unknown(f"{label}: metric", claim.metric, METRICS)
    if not study.variants():
        yield "skip leaves no variant"


def _unknown_levels(label: str, levels: dict[str, str], study: Study) -> Iterator[str]:
    for factor, level in levels.items():
        yield from _unknown(label, factor, study.factors)
        yield from _unknown(f"{label}.{factor}", level, study.factors.get(factor, {level: []}))


def _unknown(label: str, name: str, known: Iterable[str]) -> Iterator[str]:
    names = list(known)
    if name not in names:
        shown = f": have {', '.join(names)}" if 0 < len(names) <= 12 else ""
        yield f"{label}={name} is unknown{near_matches(name, names)}{shown}"
