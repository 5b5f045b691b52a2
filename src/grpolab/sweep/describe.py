"""`grpolab train --help`: every group and every key, read from conf/ and settings/."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpolab.settings import RunSettings
from grpolab.sweep import schema
from grpolab.sweep.compose import MISSING, Composer

HEADER = """\
usage: grpolab train [-m] [--name NAME] [--jobs N] [--retry-failed] [--json-lines] [key=value ...]

Trains one run with Hydra overrides; `-m` runs every combination of comma lists: epsilon=0.1,0.2 seed=0,1,2
"""


def help_text() -> str:
    """The whole page; defaults are those of conf/run.yaml."""
    composer = Composer()
    return "\n".join([HEADER, "Groups (one option each)", *_groups(composer), "", "Keys", *_keys(composer)])


def _groups(composer: Composer) -> Iterator[str]:
    for group, options in composer.groups.items():
        for option in options:
            mark = " (default)" if option == str(composer.defaults[group] or "null") else ""
            file = composer.conf / group / f"{option}.yaml"
            says = _first_comment(file) if file.exists() else "No preset: the keys below hold."
            yield f"  {f'{group}={option}':<24} {says}{mark}"


def _first_comment(file: Path) -> str:
    comments = [line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#")]
    return next((line for line in comments if not line.startswith("@package")), "")


def _keys(composer: Composer) -> Iterator[str]:
    defaults = composer.values({})
    for name, field in schema.root(RunSettings)["properties"].items():
        inner = schema.resolve(RunSettings, field)
        if members := schema.options(RunSettings, inner):
            for option, member in members.items():
                yield f"  with {name}={option}: {member['description'].splitlines()[0]}"
                yield from _section(name, member, composer.values({name: option})[name])
        elif "properties" in inner:
            if defaults[name] is None:  # switched off; where it is set, all of its keys are
                yield from _key(name, field, None)
            yield from _section(name, inner, defaults[name] or dict.fromkeys(inner["properties"], MISSING))
        else:
            yield from _key(name, field, defaults[name])


def _section(prefix: str, section: schema.Schema, values: dict[str, Any]) -> Iterator[str]:
    for name, field in section["properties"].items():
        if "description" in field:
            yield from _key(f"{prefix}.{name}", field, values[name])


def _key(name: str, field: schema.Schema, default: Any) -> Iterator[str]:
    value = "no default" if default == MISSING else f"default {schema.show(default)}"
    yield f"  {name:<34} {schema.allowed(RunSettings, field)}; {value}"
    yield f"      {field['description']}"
