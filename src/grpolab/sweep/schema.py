"""What a pydantic model allows, in words: for error sentences and for `--help`.

Everything is read from the model's JSON schema, so that a field's type, range and sentence are written once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from grpolab.errors import format_value, near_matches
from grpolab.framework_names import our_names
from grpolab.identity import dotted
from grpolab.paths import STUDY_NAME
from grpolab.settings import Seed

Schema = dict[str, Any]

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}
_BOUNDS = {
    "minimum": ">= {:g}",
    "exclusiveMinimum": "> {:g}",
    "maximum": "<= {:g}",
    "exclusiveMaximum": "< {:g}",
    "pattern": "like {}",
    "minLength": "of length >= {}",
    "maxLength": "of length <= {}",
    "minItems": "of length >= {}",
    "maxItems": "of length <= {}",
    "minProperties": "that is not empty",
}


@lru_cache
def root(model: type[BaseModel]) -> Schema:
    """The model's JSON schema."""
    return model.model_json_schema()


def resolve(model: type[BaseModel], schema: Schema) -> Schema:
    """The group or union of groups that may stand here, also where null may instead, else the schema itself."""
    group, *others = schema.get("anyOf", [schema])
    if others not in ([], [{"type": "null"}]):
        return schema
    reference = group.get("$ref")
    return root(model)["$defs"][reference.rsplit("/", 1)[1]] if reference else group if "oneOf" in group else schema


def options(model: type[BaseModel], schema: Schema) -> dict[str, Schema]:
    """The members of a union that a `name` tells apart, by that name; empty for anything else."""
    mapping = schema.get("discriminator", {}).get("mapping", {})
    return {name: resolve(model, {"$ref": reference}) for name, reference in mapping.items()}


def allowed(model: type[BaseModel], schema: Schema) -> str:
    """What may stand here: `a number >= 0 or null`."""
    if "anyOf" in schema:
        return " or ".join(allowed(model, part) for part in schema["anyOf"])
    schema = resolve(model, schema)
    if members := options(model, schema):
        return f"one of {', '.join(members)}"
    if "const" in schema or "enum" in schema:
        return " | ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array" and "$ref" not in schema["items"]:
        return f"a list of: {allowed(model, schema['items'])}"
    bounds = " and ".join(form.format(schema[key]) for key, form in _BOUNDS.items() if key in schema)
    return " ".join(part for part in (_TYPES.get(schema.get("type", ""), "a value"), bounds) if part)


def words(model: type[BaseModel], schema: Schema) -> list[str]:
    """The words that may stand here, where they can be listed."""
    if "anyOf" in schema:
        return [word for part in schema["anyOf"] for word in words(model, part)]
    if "const" in schema or "enum" in schema:
        return [str(word) for word in schema.get("enum", [schema.get("const")])]
    return {"boolean": ["true", "false"], "null": ["null"]}.get(schema.get("type", ""), [])


def sentences(model: type[BaseModel], error: ValidationError, also: Sequence[str] = ()) -> list[str]:
    """One sentence per problem: key, value, what is allowed. `also`: the names of Hydra groups, where there are any."""
    every = [sentence for entry in error.errors() for sentence in _sentences(model, dict(entry), also)]
    return list(dict.fromkeys(every))


def _sentences(model: type[BaseModel], entry: dict[str, Any], also: Sequence[str]) -> list[str]:
    if entry["type"] == "value_error":
        return str(entry["ctx"]["error"]).split("; ")
    key, schema = locate(model, entry["loc"])
    if entry["type"] == "extra_forbidden":
        prefix, parent = locate(model, entry["loc"][:-1])
        beside = [f"{prefix}.{name}" if prefix else name for name in parent.get("properties", {})]
        return _unknown_key(key, entry["input"], beside, also)
    may_be = allowed(model, schema)
    if entry["type"] == "missing":
        return [f"{key} is missing: it must be {may_be}"]
    if entry["type"].startswith("union_tag"):
        value = entry["ctx"].get("tag", "")
        return [f"{key}.name={value} is not allowed: {key} must be {may_be}"]
    value = entry["input"]
    near = near_matches(str(value), map(str, schema.get("enum", [])))
    return [f"{key}={show(value)} is not allowed: it must be {may_be}{near}"]


def locate(model: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, Schema]:
    """Dotted key and schema of a pydantic location; the name of a union's member in it is no part of the key."""
    schema, key = root(model), ""
    for part in location:
        schema = resolve(model, schema)
        if members := options(model, schema):
            schema = members.get(str(part), {})
            continue
        if "anyOf" in schema:  # pydantic names here the member that it tried
            continue
        key = f"{key}.{part}" if key else str(part)
        inner = schema.get("properties", {}).get(part, schema.get("items", schema.get("additionalProperties")))
        schema = inner if isinstance(inner, dict) else {}
    return key, resolve(model, schema)


def _unknown_key(key: str, value: Any, beside: list[str], also: Sequence[str]) -> list[str]:
    """`value`: what was given for it, a mapping where another framework's dotted name was."""
    if "." in key or not also:
        return [f"{key} is unknown{near_matches(key, beside)}; allowed here: {', '.join(beside)}"]
    given = [name for name, _ in dotted({key: value})] or [key]
    if hints := {name: hint for name in given if (hint := our_names(name))}:
        return [f"{name} is unknown: write {hint}" for name, hint in hints.items()]
    near = near_matches(key, dict.fromkeys([*beside, *also]))
    return [f"{key} is unknown{near}; `grpolab train --help` lists every key"]


def show(value: Any) -> str:
    """Return a value as a user writes it, cut to 60 characters."""
    text = format_value(value)
    return text if len(text) <= 60 else text[:57] + "..."


# What study files are made of: closed models, names, lists of different things, the sentence about unknown names.

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
MOST_LETTERS = 100  # a study is also the name of a folder
StudyName = Annotated[str, Field(pattern=f"^{STUDY_NAME.pattern}$", max_length=MOST_LETTERS)]
Figures = Annotated[list[str], Different]
SeedCount = Annotated[int, Field(ge=1, le=MOST_SEEDS, strict=True)]  # strict: `seeds: true` is not 1
SeedNames = Annotated[list[Annotated[Seed, Field(strict=True)]], Field(min_length=1), Different]
if TYPE_CHECKING:
    Seeds: TypeAlias = list[int]
else:  # how many (0, 1, ...), or which: always a list in the end
    Seeds = Annotated[SeedCount | SeedNames, AfterValidator(lambda s: list(range(s)) if isinstance(s, int) else s)]


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
