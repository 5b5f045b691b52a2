"""A study: a question, its factors, seeds, hypotheses and figures, read from experiments/<name>.yaml and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from grpolab.errors import RequestError, near_matches
from grpolab.paths import project_root
from grpolab.settings.base import Seed
from grpolab.sweep import schema
from grpolab.vocabulary import ANALYTIC_FIGURES, FIGURES, METRICS, QUANTITIES

# More than anybody trains; without bounds, a mistyped number would fill the memory.
MOST_SEEDS, MOST_VARIANTS, MOST_NODES = 10_000, 10_000, 100_000


def _different(names: Sequence[Any]) -> Sequence[Any]:
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"{twice[0]} stands twice in [{', '.join(map(str, names))}]")
    return names


Different = AfterValidator(_different)
Overrides = list[str]
Level = Overrides | dict[str, Overrides]  # the same for every arm, or to each arm its own
NAME = r"[^\s/]+"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
StudyName = Annotated[str, Field(pattern=r"^\w[\w.+-]*$", max_length=100)]  # also the name of a folder
Figures = Annotated[list[str], Different]
SeedCount = Annotated[int, Field(ge=1, le=MOST_SEEDS, strict=True)]  # strict: `seeds: true` is not 1
Seeds = SeedCount | Annotated[list[Annotated[Seed, Field(strict=True)]], Field(min_length=1), Different]


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
    margin: FiniteFloat = Field(ge=0, description="less, greater: by more than this; equal: within this.")
    seeds: int = Field(default=2, ge=2, strict=True, description="With fewer shared seeds it stays undecided.")
    source: str = Field(min_length=1, description="Who claims it.")


class Study(Part):
    """Factors whose levels are Hydra overrides; every combination of levels is a variant."""

    name: StudyName
    question: str = Field(min_length=1)
    overrides: Overrides = Field(default=[], description="Common to all variants.")
    factors: dict[str, dict[str, Level]] = Field(min_length=1)
    compare: Name = Field(description="The factor whose levels are the arms.")
    baseline: Name = Field(description="The arm that the others are compared with.")
    seeds: Seeds = Field(description="How many (0, 1, ...), or which.")
    primary_metric: str
    hypotheses: list[Hypothesis] = []
    figures: Figures = []
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
        chosen = [self.factors[factor][level] for factor, level in levels.items()]
        arm = levels[self.compare]
        own = [level[arm] if isinstance(level, dict) else level for level in chosen]
        return [*self.overrides, *(text for overrides in own for text in overrides)]


class Collection(Part):
    """A study that only includes others."""

    name: StudyName
    question: str = Field(min_length=1)
    includes: Annotated[list[StudyName], Different] = Field(min_length=1)
    seeds: Seeds | None = Field(default=None, description="Replaces the seeds of the included studies.")
    figures: Figures = []

    @model_validator(mode="after")
    def _figures_need_no_run(self) -> Collection:
        if problems := list(_unknown("figures", self.figures, ANALYTIC_FIGURES)):
            raise ValueError("; ".join(problems))
        return self


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
        if _size(yaml.compose(file.read_text("utf-8"), Loader=yaml.SafeLoader), {}) > MOST_NODES:
            raise ValueError("its aliases (*name) make it too large, or contain themselves")
        # OmegaConf's YAML refuses a key that stands twice, and reads 1e-3 as a number.
        content = _with_text_keys(OmegaConf.to_container(OmegaConf.load(file)))
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise RequestError(f"experiments/{file.name} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise RequestError(f"experiments/{file.name} must be a mapping of question, factors, ...")
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
        _different([str(key) for key in node])
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
    yield from _unknown("figures", study.figures, FIGURES)
    yield from _unknown("compare", [study.compare], study.factors)
    arms = study.factors.get(study.compare, {})
    yield from _unknown("baseline", [study.baseline], arms)
    for factor, choices in study.factors.items():
        for name, level in choices.items():
            if isinstance(level, dict) and ({*level} != {*arms} or factor == study.compare):
                yield f"factors.{factor}.{name} must be a list of overrides, or one for each of {', '.join(arms)}"
    yield from _unknown("primary_metric", [study.primary_metric], METRICS)
    for pair in study.placebo:
        yield from _unknown("placebo", pair, arms)
    for levels in study.skip:
        yield from _unknown_levels("skip", levels, study)
    claims = [claim.id for claim in study.hypotheses]
    yield from (f"hypothesis {name} stands twice: ids differ" for name in set(claims) if claims.count(name) > 1)
    for claim in study.hypotheses:
        yield from _wrong_claim(claim, study, arms)


def _wrong_claim(claim: Hypothesis, study: Study, arms: Iterable[str]) -> Iterator[str]:
    label = f"hypothesis {claim.id}"
    yield from _unknown(f"{label}: contrast.of", [claim.contrast.of], arms)
    yield from _unknown(f"{label}: contrast.minus", [claim.contrast.minus], arms)
    if claim.contrast.of == claim.contrast.minus:
        yield f"{label}: contrast compares {claim.contrast.of} with itself"
    yield from _unknown_levels(f"{label}: where", claim.where, study)
    if study.compare in claim.where:
        yield f"{label}: where.{study.compare} is the factor that is compared: name levels of other factors"
    yield from _unknown(f"{label}: metric", [claim.metric], [*METRICS, *QUANTITIES])


def _unknown_levels(label: str, levels: dict[str, str], study: Study) -> Iterator[str]:
    for factor, level in levels.items():
        yield from _unknown(label, [factor], study.factors)
        yield from _unknown(f"{label}.{factor}", [level], study.factors.get(factor, {level: []}))


def _unknown(label: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    have = list(known)
    for name in names:
        if name not in have:
            shown = f": have {', '.join(have)}" if 0 < len(have) <= 12 else ""
            yield f"{label}={name} is unknown{near_matches(name, have)}{shown}"
