"""`grpolab train --help` and `grpolab completion`: every word that may be written, from conf/, settings and parser."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from grpolab.errors import RequestError, near_matches
from grpolab.framework_names import suggest_our_names
from grpolab.paths import find_file
from grpolab.settings.run import RunSettings
from grpolab.sweep.compose import NO_VALUE, Composer
from grpolab.sweep.schema import Schema, describe, options, resolve, root, show

HEADER = """\
usage: grpolab train [-m] [--name NAME] [--jobs N] [--retry-failed] [--json-lines] [key=value ...]

Trains one run with Hydra overrides; `-m` runs every combination of comma lists: epsilon=0.1,0.2 seed=0,1,2
`grpolab train --help KEY ...` explains a group, a key or a section of keys.
"""
# What most runs set.
USUAL_KEYS = (
    *("seed", "rollout_steps", "prompts_per_step", "num_generations", "num_iterations", "num_minibatches"),
    *("learning_rate", "max_grad_norm", "temperature", "max_completion_length", "importance_sampling_level", "kernel"),
    *("epsilon", "epsilon_high", "delta", "aggregation", "beta", "scale_rewards", "warm_start.target_accuracy"),
    *("evaluation.every", "diagnostics.samples_every", "micro_batch_size", "device", "dtype", "machine.results"),
)
GROUPS = {
    "task": "what is learnt",
    "model": "what learns it",
    "loss_type": "kernel, aggregation and clip range under their usual name",
    "paper": "a paper's values",
    "dialect": "a framework's own loss, defaults and metrics, with its modes as NAME/MODE",
    "scale": "what suits a machine",
    "launcher": "who runs a sweep's cells beyond this machine",
    "fault": "an error to plant, for the doctor",
}
WIDTH = 120

Entry = tuple[str, str]  # a group or key, and its explanation


def help_text(wanted: Sequence[str] = ()) -> str:
    """Explain some groups and keys, or `all` of them, or the usual ones with the names of the others.

    Defaults are those of conf/run.yaml. Raises RequestError for a word that is no group, key or section of keys.
    """
    composer = Composer()
    keys = list(_key_entries(composer))
    if not wanted:
        return "\n".join(_overview(composer, keys))
    entries = [*_group_entries(composer), *keys]
    if list(wanted) == ["all"]:
        return "\n".join(text for _, text in entries)
    lines, problems = list[str](), list[str]()
    for name in (word.partition("=")[0] for word in wanted):
        texts = [text for key, text in entries if key == name or key.startswith(f"{name}.")]
        lines += texts
        if not texts:
            ours = suggest_our_names(name)
            hint = f": write {ours}" if ours else near_matches(name, dict.fromkeys(key for key, _ in entries))
            problems.append(f"{name} is unknown{hint}; `grpolab train --help` lists every key")
    if problems:
        raise RequestError(problems)
    return "\n".join(lines)


def _overview(composer: Composer, keys: Sequence[Entry]) -> Iterator[str]:
    yield f"{HEADER}\nThe usual keys, each with its default"
    texts = dict(keys)
    for name in USUAL_KEYS:
        values, _, meaning = texts[name].partition("\n")
        head = f"  {name}={values.rpartition('; default ')[2]}"
        yield f"{head:<42} {textwrap.shorten(meaning, WIDTH - max(len(head), 42) - 1, placeholder=' ...')}"
    yield "\nGroups, each a set of keys: GROUP=NAME"
    for group, meaning in GROUPS.items():
        names = ", ".join(name for name in composer.groups[group] if name != "null" and "/" not in name)
        head = f"  {group:<10} "
        yield textwrap.fill(f"{meaning}: {names}", WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
    yield "\nAll other keys"
    sections = dict[str, list[str]]()
    for name in texts:
        if name not in USUAL_KEYS and name not in GROUPS:
            sections.setdefault(name.partition(".")[0] if "." in name else "", []).append(name)
    for names_of_section in sections.values():
        yield textwrap.fill(" ".join(names_of_section), WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield "\nWhat a name means: `grpolab train --help dialect`, or another group, key or section; `--help all`: all"


def list_names() -> list[str]:
    """Return the name of every group and key."""
    composer = Composer()
    return list(dict.fromkeys([*composer.groups, *(name for name, _ in _key_entries(composer))]))


def guess_key(word: str) -> str:
    """Return the key or group that a word most likely means, by its end or another framework's name; or ''."""
    names = list_names()
    ends = [name for name in names if name.endswith(f".{word}")]
    theirs = suggest_our_names(word).partition(" ")[0].rstrip(",")
    return word if word in names else theirs or (ends[0] if len(ends) == 1 else "")


def _group_entries(composer: Composer) -> Iterator[Entry]:
    for group, names in composer.groups.items():
        for option in names:
            file, meaning = find_file("conf", group, f"{option}.yaml"), "No preset: the keys below hold."
            if file.exists():  # its first comment after Hydra's
                comments = [line[1:].strip() for line in file.read_text().splitlines() if line.startswith("#")]
                meaning = next((line for line in comments if not line.startswith("@package")), "")
            mark = " (default)" if option == str(composer.defaults[group] or "null") else ""
            yield group, f"  {f'{group}={option}':<24} {meaning}{mark}"


def _key_entries(composer: Composer) -> Iterator[Entry]:
    def explain(section: str, properties: Schema, values: dict[str, Any]) -> Iterator[Entry]:
        """Explain a section's keys, and those under each option of a group in it (`task=addition`)."""
        for name, field in properties.items():
            key, value = f"{section}.{name}" if section else name, values[name]
            inner = resolve(RunSettings, field)
            members = options(RunSettings, inner)
            is_section = "properties" in inner
            if "description" in field and (section or not (members or (is_section and value))):
                default = "no default" if value == NO_VALUE else f"default {show(value)}"
                yield key, f"  {key:<34} {describe(RunSettings, field)}; {default}\n      {field['description']}"
            for option, member in members.items():
                of_option = composer.values({name: option})
                yield key, f"  with {name}={option}: {member['description'].splitlines()[0]}"
                yield from explain(key, member["properties"], (of_option[section] if section else of_option)[name])
            if is_section:  # one that is switched off has no defaults: if it is set, all of its keys are
                yield from explain(key, inner["properties"], value or dict.fromkeys(inner["properties"], NO_VALUE))

    yield from explain("", root(RunSettings)["properties"], composer.values({}))


# Both shells read the words that may follow a command from one list. zsh uses bash's completion function.
COMPLETION = """\
# In ~/.{shell}rc: eval "$(grpolab completion {shell})"
{setup}
_grpolab_words() {{
  case "$1" in
{cases}
  esac
}}
_grpolab() {{
  local command="${{COMP_WORDS[1]}}" current="${{COMP_WORDS[COMP_CWORD]}}"
  [[ $COMP_CWORD -eq 1 ]] && command=""
  [[ $COMP_CWORD -ge 2 && -n "$(_grpolab_words "$command group")" ]] && command="$command group"
  [[ $COMP_CWORD -gt 2 && $command == *group ]] && command="${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}"
  COMPREPLY=()
  [[ $current == = || ${{COMP_WORDS[COMP_CWORD-1]}} == = ]] && return  # a value: files
  COMPREPLY=($(compgen -W "$(_grpolab_words "$command")" -- "$current"))
  [[ ${{COMPREPLY[0]}} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}}
complete -o default -F _grpolab grpolab  # files where no word fits
"""
SETUP = {"bash": "", "zsh": "autoload -U +X compinit bashcompinit && compinit && bashcompinit"}


def completion(shell: str, groups: dict[str, Any], studies: list[str], settings: list[str]) -> str:
    """Return the script of tab completion. `groups`: the parser's subcommands by group, '' for those without one."""
    cases = dict[str, list[str]]()
    for group, commands in groups.items():
        cases[f"{group} group" if group else ""] = list(commands.choices)
        for name, command in commands.choices.items():
            usage = command.format_usage()
            words = re.findall(r"--[a-z-]+", usage)
            words += studies if "STUDY" in usage else []
            words += [f"{key}=" for key in settings] if "key=value" in usage else []
            cases.setdefault(f"{group} {name}".strip(), words)
    lines = "\n".join(f"    '{name}') echo '{' '.join(words)}' ;;" for name, words in cases.items())
    return COMPLETION.format(shell=shell, setup=SETUP[shell], cases=lines)
