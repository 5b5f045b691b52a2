"""What study files are made of: types of their fields, and checks that several of them share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from grpolab.errors import near_matches
from grpolab.paths import STUDY_NAME
from grpolab.settings import Seed

# More than anybody trains; without bounds, a mistyped number would fill the memory.
MOST_SEEDS, MOST_VARIANTS = 10_000, 10_000

Overrides = list[str]
Level = Overrides | dict[str, Overrides]  # the same for every arm, or to each arm its own
Factors = dict[str, dict[str, Level]]


class StandsTwice(ValueError):
    """A name stands twice in a list; `schema.sentences` puts the list's key before it."""


def check_different(names: Sequence[Any]) -> Sequence[Any]:
    """Return the names. Raises StandsTwice if one stands twice."""
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise StandsTwice(f"{twice[0]} stands twice in [{', '.join(map(str, names))}]")
    return names


Different = AfterValidator(check_different)
NAME = r"[^\s/]+"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
StudyName = Annotated[str, Field(pattern=f"^{STUDY_NAME.pattern}$")]
Figures = Annotated[list[str], Different]
SeedCount = Annotated[int, Field(ge=1, le=MOST_SEEDS, strict=True)]  # strict: `seeds: true` is not 1
SeedNames = Annotated[list[Annotated[Seed, Field(strict=True)]], Field(min_length=1), Different]
if TYPE_CHECKING:
    Seeds: TypeAlias = list[int]
else:  # how many (0, 1, ...), or which; read as a list
    Seeds = Annotated[SeedCount | SeedNames, AfterValidator(lambda s: list(range(s)) if isinstance(s, int) else s)]


class Part(BaseModel):
    """A part of a study file: frozen, without unknown keys; a name may be a number (`mu: {1: [...], 8: [...]}`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


def unknown(label: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each name that is not among the known ones."""
    have = list(known)
    for name in names:
        if name not in have:
            shown = f": have {', '.join(have)}" if 0 < len(have) <= 12 else ""
            yield f"{label}={name} is unknown{near_matches(name, have)}{shown}"


def unknown_levels(label: str, levels: dict[str, str], factors: Factors) -> Iterator[str]:
    """Yield a sentence for each factor or level that the study does not have."""
    for factor, level in levels.items():
        yield from unknown(label, [factor], factors)
        yield from unknown(f"{label}.{factor}", [level], factors.get(factor, {level: []}))
