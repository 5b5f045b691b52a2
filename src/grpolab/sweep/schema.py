"""Say in words what a pydantic model allows, from its JSON schema."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ValidationError

from grpolab.errors import format_value, near_matches, shorten
from grpolab.framework_names import suggest_our_names
from grpolab.identity import dotted
from grpolab.sweep.fields import StandsTwice

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
    """Return the model's JSON schema."""
    return model.model_json_schema()


def resolve(model: type[BaseModel], schema: Schema) -> Schema:
    """Return the group or union of groups that a schema refers to (null may be allowed too), else the schema."""
    group, *others = schema.get("anyOf", [schema])
    if others not in ([], [{"type": "null"}]):
        return schema
    reference = group.get("$ref")
    return root(model)["$defs"][reference.rsplit("/", 1)[1]] if reference else group if "oneOf" in group else schema


def options(model: type[BaseModel], schema: Schema) -> dict[str, Schema]:
    """Return the members of a union by the `name` that tells them apart; empty for anything else."""
    mapping = schema.get("discriminator", {}).get("mapping", {})
    return {name: resolve(model, {"$ref": reference}) for name, reference in mapping.items()}


def describe(model: type[BaseModel], schema: Schema) -> str:
    """Return what is allowed in words: `a number >= 0 or null`."""
    if "anyOf" in schema:
        return " or ".join(describe(model, part) for part in schema["anyOf"])
    schema = resolve(model, schema)
    if members := options(model, schema):
        return f"one of {', '.join(members)}"
    if "const" in schema or "enum" in schema:
        return " | ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array" and "$ref" not in schema["items"]:
        return f"a list of: {describe(model, schema['items'])}"
    bounds = " and ".join(form.format(schema[key]) for key, form in _BOUNDS.items() if key in schema)
    return " ".join(part for part in (_TYPES.get(schema.get("type", ""), "a value"), bounds) if part)


def sentences(model: type[BaseModel], error: ValidationError, also: Sequence[str] = ()) -> list[str]:
    """Return one sentence per problem: key, value, what is allowed. `also`: names of Hydra groups to suggest too."""
    every = [sentence for entry in error.errors() for sentence in _sentences(model, dict(entry), also)]
    return list(dict.fromkeys(every))


def _sentences(model: type[BaseModel], entry: dict[str, Any], also: Sequence[str]) -> list[str]:
    key, schema = locate(model, entry["loc"])
    if entry["type"] == "value_error":
        error = entry["ctx"]["error"]
        return [f"{key}: {error}"] if isinstance(error, StandsTwice) else str(error).split("; ")
    if entry["type"] == "extra_forbidden":
        prefix, parent = locate(model, entry["loc"][:-1])
        beside = [f"{prefix}.{name}" if prefix else name for name in parent.get("properties", {})]
        return _unknown_key(key, entry["input"], beside, also)
    may_be = describe(model, schema)
    if entry["type"] == "missing":
        return [f"{key} is missing: it must be {may_be}"]
    if entry["type"].startswith("union_tag"):
        value = entry["ctx"].get("tag", "")
        return [f"{key}.name={value} is not allowed: {key} must be {may_be}"]
    value = entry["input"]
    near = near_matches(str(value), map(str, schema.get("enum", [])))
    return [f"{key}={show(value)} is not allowed: it must be {may_be}{near}"]


def locate(model: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, Schema]:
    """Return the dotted key and the schema of a pydantic location, without the names of union members."""
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
    """Say what to write instead. `value` is a mapping if another framework's dotted name was given."""
    if "." in key or not also:
        return [f"{key} is unknown{near_matches(key, beside)}; allowed here: {', '.join(beside)}"]
    names = [name for name, _ in dotted({key: value})] or [key]
    if hints := {name: hint for name in names if (hint := suggest_our_names(name))}:
        return [f"{name} is unknown: write {hint}" for name, hint in hints.items()]
    near = near_matches(key, dict.fromkeys([*beside, *also]))
    return [f"{key} is unknown{near}; `grpolab train --help` lists every key"]


def show(value: Any) -> str:
    """Return a value as a user writes it, cut to 60 characters."""
    return shorten(format_value(value), 60)
