"""What study files are made of: closed models, names, lists of different things, the sentence about unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from grpolab.errors import near_matches
from grpolab.settings.base import Seed

# More than anybody trains; without bounds, a mistyped number would fill the memory.
MOST_SEEDS, MOST_VARIANTS = 10_000, 10_000

Overrides = list[str]
Level = Overrides | dict[str, Overrides]  # the same for every arm, or to each arm its own
Factors = dict[str, dict[str, Level]]


def different(names: Sequence[Any]) -> Sequence[Any]:
    """The names as they are. Raises ValueError where one stands twice."""
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise ValueError(f"{twice[0]} stands twice in [{', '.join(map(str, names))}]")
    return names


Different = AfterValidator(different)
NAME = r"[^\s/]+"
Name = Annotated[str, Field(pattern=f"^{NAME}$")]
StudyName = Annotated[str, Field(pattern=r"^\w[\w.+-]*$", max_length=100)]  # also the name of a folder
Figures = Annotated[list[str], Different]
SeedCount = Annotated[int, Field(ge=1, le=MOST_SEEDS, strict=True)]  # strict: `seeds: true` is not 1
Seeds = SeedCount | Annotated[list[Annotated[Seed, Field(strict=True)]], Field(min_length=1), Different]


class Part(BaseModel):
    """Frozen, and closed to keys that it does not know; a name may be a number (`mu: {1: [...], 8: [...]}`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


def unknown(label: str, names: Iterable[str], known: Iterable[str]) -> Iterator[str]:
    """A sentence for each name that is not among the known ones."""
    have = list(known)
    for name in names:
        if name not in have:
            shown = f": have {', '.join(have)}" if 0 < len(have) <= 12 else ""
            yield f"{label}={name} is unknown{near_matches(name, have)}{shown}"


def unknown_levels(label: str, levels: dict[str, str], factors: Factors) -> Iterator[str]:
    """A sentence for each factor, or level of one, that the study does not have."""
    for factor, level in levels.items():
        yield from unknown(label, [factor], factors)
        yield from unknown(f"{label}.{factor}", [level], factors.get(factor, {level: []}))
