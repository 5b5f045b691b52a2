"""`grpolab train --help`: every group and every key, read from conf/ and settings/."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError, near_matches
from grpolab.peer_defaults import our_names
from grpolab.settings import RunSettings
from grpolab.sweep import schema
from grpolab.sweep.compose import MISSING, Composer

HEADER = """\
usage: grpolab train [-m] [--name NAME] [--jobs N] [--retry-failed] [--json-lines] [key=value ...]

Trains one run with Hydra overrides; `-m` runs every combination of comma lists: epsilon=0.1,0.2 seed=0,1,2
`grpolab train --help KEY ...` says only what KEY is, a group, a key or a section of keys.
"""

Entry = tuple[str, str, list[str]]  # a group or a key, what is said of it, the words that it may be


def help_text(wanted: Sequence[str] = ()) -> str:
    """The whole page, or what it says of some groups and keys; defaults are those of conf/run.yaml.

    Raises RequestError for a word that is neither a group, a key nor a section of keys.
    """
    composer = Composer()
    groups, keys = list(_groups(composer)), list(_keys(composer))
    if not wanted:
        sections = ["Groups (one option each)", *(text for _, text, _ in groups), "", "Keys"]
        return "\n".join([HEADER, *sections, *(text for _, text, _ in keys)])
    every = [*groups, *keys]
    lines, problems = list[str](), list[str]()
    for word in wanted:
        name = word.partition("=")[0]
        said = [text for of, text, _ in every if of == name or of.startswith(f"{name}.")]
        lines += said
        hint = f": write {ours}" if (ours := our_names(name)) else near_matches(name, {of for of, _, _ in every})
        problems += [] if said else [f"{name} is unknown{hint}; `grpolab train --help` lists every key"]
    if problems:
        raise RequestError(problems)
    return "\n".join(lines)


def key_for(word: str) -> str:
    """The key or group that a word most likely means: itself, another framework's, the end of one; empty: none."""
    names = list(choices())
    ends = [name for name in names if name.endswith(f".{word}")]
    theirs = our_names(word).partition(" ")[0].rstrip(",")
    return word if word in names else theirs or (ends[0] if len(ends) == 1 else "")


def choices() -> dict[str, list[str]]:
    """Every group and key with the words that it may be, where they can be listed."""
    composer, found = Composer(), dict[str, list[str]]()
    for name, _, words in (*_groups(composer), *_keys(composer)):
        found.setdefault(name, []).extend(word for word in words if word not in found[name])
    return found


def _groups(composer: Composer) -> Iterator[Entry]:
    for group, options in composer.groups.items():
        for option in options:
            mark = " (default)" if option == str(composer.defaults[group] or "null") else ""
            file = composer.conf / group / f"{option}.yaml"
            says = _first_comment(file) if file.exists() else "No preset: the keys below hold."
            yield group, f"  {f'{group}={option}':<24} {says}{mark}", [option]


def _first_comment(file: Path) -> str:
    comments = [line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#")]
    return next((line for line in comments if not line.startswith("@package")), "")


def _keys(composer: Composer) -> Iterator[Entry]:
    defaults = composer.values({})
    for name, field in schema.root(RunSettings)["properties"].items():
        inner = schema.resolve(RunSettings, field)
        if members := schema.options(RunSettings, inner):
            for option, member in members.items():
                yield name, f"  with {name}={option}: {member['description'].splitlines()[0]}", []
                yield from _section(name, member, composer.values({name: option})[name])
        elif "properties" in inner:
            if defaults[name] is None:  # switched off; where it is set, all of its keys are
                yield _key(name, field, None)
            yield from _section(name, inner, defaults[name] or dict.fromkeys(inner["properties"], MISSING))
        else:
            yield _key(name, field, defaults[name])


def _section(prefix: str, section: schema.Schema, values: dict[str, Any]) -> Iterator[Entry]:
    for name, field in section["properties"].items():
        if "description" in field:
            yield _key(f"{prefix}.{name}", field, values[name])


def _key(name: str, field: schema.Schema, default: Any) -> Entry:
    value = "no default" if default == MISSING else f"default {schema.show(default)}"
    text = f"  {name:<34} {schema.allowed(RunSettings, field)}; {value}\n      {field['description']}"
    return name, text, schema.words(RunSettings, field)
