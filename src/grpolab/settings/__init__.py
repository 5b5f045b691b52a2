"""Every setting of a run: its type, its range and one sentence. The values live in `conf/` only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetPydanticSchema, WrapValidator

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveOrInf = Annotated[float, Field(gt=0)]  # `.inf` switches something off
NonNegativeOrInf = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# Off is empty, so that a new switch does not change the signatures of older runs.
Switch = Annotated[Literal[True] | None, BeforeValidator(lambda value: None if value is False else value)]


class Settings(BaseModel):
    """A group of settings: frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


def setting(description: str, **bounds: Any) -> Any:
    """Declare a setting without a default, by its one sentence."""
    return Field(description=description, **bounds)


def among(names: Iterable[str], *, or_path: bool = False) -> GetPydanticSchema:
    """Restrict a text to some names, which a type checker cannot know, or to an import path, `package.module:name`."""
    allowed: Any = Literal[tuple(names)]
    if or_path:
        form = re.compile(r"[^\W\d][\w.]*:\w+")
        allowed = Annotated[
            allowed, WrapValidator(lambda text, named: text if form.fullmatch(str(text)) else named(text))
        ]
    return GetPydanticSchema(lambda _source, handler: handler(allowed))
