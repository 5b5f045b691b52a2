"""Tell whose config a file is, by what only one framework's files have: keys, programs, imported packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from grpolab.errors import listing
from grpolab.identity import dotted
from grpolab.readers import flat, trl_files, verl_files
from grpolab.readers.given import ConfigFile, describe_other, parse_document, shorten
from grpolab.readers.pairs import FLAG, OVERRIDE
from grpolab.readers.python import parse_python
from grpolab.readers.shell import find_training_command

# Trainers that build on TRL's, with its fields; their own evidence comes on top of TRL's.
ON_TRL = ("ms-swift", "unsloth", "axolotl")
ON_VERL = ("easyr1",)  # a fork of verl's, whose keys are others
TITLES = {"trl": "TRL", "verl": "verl", **{name: name for name in ON_TRL}, "easyr1": "EasyR1"}
TITLES |= {name: flat.load_reader(name).title for name in flat.FLAT}
# Framework -> beginnings of keys, packages and parts of programs' names that only it has.
PREFIXES = {"verl": ("actor_rollout_ref.",), "easyr1": ("worker.actor.", "worker.rollout."), "axolotl": ("trl.",)}
PACKAGES = {"trl": ("trl",), "verl": ("verl",), "unsloth": ("unsloth",), "ms-swift": ("swift",)}
PROGRAMS = {
    "verl": ("main_ppo", "main_dapo"),
    "easyr1": ("verl.trainer.main",),
    "trl": ("trl grpo",),
    "ms-swift": ("swift rlhf", "megatron rlhf"),
}
KEYS = {"ms-swift": {"rlhf_type"}, "axolotl": {"rl"}}


@dataclass
class Traits:
    """The keys, imports, calls and commands in a file, by which its framework is recognised."""

    keys: dict[str, None] = field(default_factory=dict)  # dotted, in their order
    packages: set[str] = field(default_factory=set)  # that Python imports
    calls: set[str] = field(default_factory=set)  # the last parts of what Python calls
    commands: str = ""  # the words of all commands


def _read_traits(file: ConfigFile) -> Traits:
    traits = Traits()
    if file.kind in ("yaml", "json", "toml"):
        traits.keys = dict.fromkeys(key for key, _ in dotted(parse_document(file)[0]))
    elif file.kind == "python":
        for node in ast.walk(parse_python(file.text) or ast.Module([], [])):
            match node:
                case ast.Import(names=modules):
                    traits.packages |= {module.name.partition(".")[0] for module in modules}
                case ast.ImportFrom(module=str() as module, level=0):
                    traits.packages.add(module.partition(".")[0])
                case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), keywords=keywords):
                    traits.calls.add(called)
                    if called.endswith("GRPOConfig"):
                        traits.keys |= dict.fromkeys(str(keyword.arg) for keyword in keywords)
    else:
        words = list[str]()

        def keep(command: list[str]) -> bool:
            words.extend(command)
            return False

        find_training_command(file.text, keep)
        traits.commands = " ".join(words)
        flags = [match[1].replace("-", "_") for match in map(FLAG.fullmatch, words) if match]
        overrides = [match[2] for match in map(OVERRIDE.fullmatch, words) if match and match[3] is not None]
        traits.keys = dict.fromkeys([*flags, *overrides])
        if printed := trl_files.PRINTED.search(file.text):  # as a console log has a run's config
            traits.keys |= dict.fromkeys(key for key, *_ in trl_files.LINE.findall(printed[1]))
        elif verl_files.PRINTED.search(file.text):
            traits.keys["actor_rollout_ref."] = None
    return traits


def find_evidence(file: ConfigFile) -> dict[str, list[str]]:
    """Return what a file has that only one framework has, by framework, most first."""
    traits = _read_traits(file)
    evidence = {name: list(_list_signs(name, traits)) for name in TITLES}
    for name in ON_TRL:
        evidence[name] += evidence["trl"] if evidence[name] else []
    return dict(sorted(((name, signs) for name, signs in evidence.items() if signs), key=lambda pair: -len(pair[1])))


def _list_signs(name: str, traits: Traits) -> Iterator[str]:
    reader = flat.load_reader(name) if name in flat.FLAT else None
    own = reader.signs if reader else KEYS.get(name, set())
    for key in traits.keys:
        is_field = name == "trl" and key.rpartition(".")[2] in trl_files.SIGNS
        if is_field or key in own or key.startswith(PREFIXES.get(name, ())):
            yield key
    for program in reader.programs if reader else PROGRAMS.get(name, ()):
        if re.search(rf"{re.escape(program)}(?![\w-])", traits.commands):
            yield program
    packages = set(reader.packages if reader else PACKAGES.get(name, ())) & traits.packages
    if packages and any(call in reader.classes if reader else "GRPO" in call for call in traits.calls):
        yield f"import {', '.join(sorted(packages))}"


def identify(asked: str | None, file: ConfigFile) -> tuple[str, str]:
    """Return whose config a file is, and, if nobody asked, by what evidence. Raises RequestError if it is another's."""
    evidence = find_evidence(file)
    if not evidence:
        if asked is None:
            what = describe_other(_read_traits(file).keys)
            known = f"has no key, program or import of a trainer that is known here ({', '.join(TITLES.values())})"
            raise file.refusal(f"is no config of one of the known trainers: {what}" if what else f"{known}")
        return asked, ""
    name, signs = next(iter(evidence.items()))
    rivals = [other for other, theirs in evidence.items() if len(theirs) == len(signs) and not _are_kin(other, name)]
    shown = listing([*map(shorten, signs)], 3)
    if asked is None:
        if rivals:
            both = " or ".join(TITLES[each] for each in (name, *rivals))
            raise file.refusal(f"could be a config of {both}, by {shown}: name the framework, --from {name}")
        return name, f"read as a config of {TITLES[name]}, by {shown}"
    is_weak = name == "trl" and len(signs) == 1  # a field's name alone, which others may have too
    if len(evidence.get(asked, ())) < len(signs) and not _are_kin(asked, name) and not is_weak:
        raise file.refusal(f"is a config of {TITLES[name]}, by {shown}: --from {name} reads it")
    return asked, ""


def find_family(name: str) -> str:
    """Return the framework whose preset and rules a trainer has: that on which it builds, or itself."""
    return "trl" if name in ON_TRL else "verl" if name in ON_VERL else name


def _are_kin(one: str, other: str) -> bool:
    return one == other or {one, other} <= {"trl", *ON_TRL}
