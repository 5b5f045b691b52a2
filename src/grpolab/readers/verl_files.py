"""Find verl's config keys in a file: a run script, a list of overrides, or a config as Hydra or verl prints it.

Hydra's `key=value`, `+key=value` and `++key=value` set a key, `~key` removes it; the last one counts. The keys of
EasyR1, a fork, are read as verl's.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from grpolab.identity import dotted
from grpolab.readers import verl_keys as keys
from grpolab.readers.given import ConfigFile, Given, Options, describe_other, parse_document, shorten
from grpolab.readers.pairs import OVERRIDE, Open, find_program_end, follow_references, read_overrides, split_open
from grpolab.readers.shell import find_training_command
from grpolab.readers.verl_keys import ACTOR, ALGORITHM, RENAMED

_EASY = keys.TABLE["easyr1"]  # EasyR1's keys and words of values -> verl's
EASY_WORDS: dict[str, str] = _EASY["words"]
SECTION = "worker."  # what EasyR1's files have, and verl's do not
EASY_DEFAULTS: dict[str, Options] = _EASY["defaults"]
CODE, EXAMPLES = EASY_DEFAULTS

SECTIONS = ("actor_rollout_ref.", "algorithm.", "data.", "critic.", "reward_model.", SECTION, "trainer.")
# What only its trainer of RL has: keys, and programs.
OF_VERL = ("actor_rollout_ref.", *(f"algorithm.{name}" for name in ("adv_estimator", "kl_ctrl.", "use_kl_in_reward")))
OF_EASY = tuple(f"{SECTION}{part}." for part in ("actor", "rollout", "ref", "reward"))
PROGRAM = re.compile(r"\b(main_ppo\w*|main_dapo|fully_async_main|recipe\.\w+\.main\w*)\b")
# The base configs of verl's own whose values are known here.
OWN_BASES = [f"{part}ppo_{kind}trainer" for part in ("", "fully_async_", "one_step_off_") for kind in ("", "megatron_")]
PRINTED = re.compile(r"\{\s*'actor_rollout_ref'\s*:.*\}", re.DOTALL)


def read(file: ConfigFile, name: str) -> Given:
    """Return the keys that a file sets, under their present names. Raises RequestError if it holds no verl config."""
    if file.kind == "python":
        raise file.refusal("is Python: verl's config is YAML, or the key=value words of a script")
    if file.kind == "shell":
        return _read_script(file)
    if file.kind == "words" and not PRINTED.search(file.text):
        return _to_given(file, *read_overrides(file.split()))
    content, notes = (_parse_printed(file), []) if file.kind == "words" else parse_document(file)
    if isinstance(content.pop("defaults", None), list):
        notes = ["defaults: the files that it names are not read, verl's own defaults stand for what they set"]
    return _to_given(file, dict(dotted(content)), notes)


def _parse_printed(file: ConfigFile) -> Options:
    printed = PRINTED.search(re.sub(r"^\(\w+ pid=\d+[^)]*\) ?", "", file.text, flags=re.MULTILINE))
    try:
        return dict(ast.literal_eval(printed[0])) if printed else {}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise file.refusal("holds a config as verl prints it, which cannot be read to its end") from error


def _read_script(file: ConfigFile) -> Given:
    def find(sections: tuple[str, ...]) -> tuple[list[str], list[str]] | None:
        def is_training(words: list[str]) -> bool:
            pairs = [match for word in words if (match := OVERRIDE.fullmatch(word)) and match[3] is not None]
            return any(match[2].startswith(sections) for match in pairs)

        return find_training_command(file.text, is_training, lambda name: RENAMED.get(name, name) in keys.CARRIED)

    command = find((*OF_VERL, *OF_EASY)) or find(SECTIONS)
    if command is None:
        raise file.refusal("is a script that starts no training of verl")
    words, notes = command
    if OVERRIDE.fullmatch(words[0]) and "=" in words[0]:  # a list of overrides without a program
        return _to_given(file, *read_overrides(file.split()))
    (pairs, taken_away), end = read_overrides(words), find_program_end(words)
    return _to_given(file, pairs, [*notes, *taken_away, *_other_sources(words, words[end:])], " ".join(words[:end]))


def _other_sources(words: list[str], behind: list[str]) -> Iterator[str]:
    """Yield a sentence for each other source of values: arguments of the script's caller, another base config."""
    rest = [shorten(word) for word in behind if isinstance(word, Open) and "=" not in word.partition(" ")[0]]
    if rest:
        yield f"words that only a run can tell may change any of this: {', '.join(dict.fromkeys(rest))}"
    for word, following in itertools.pairwise([*words, ""]):
        option, _, named = word.partition("=")
        if option in ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd"):
            named = named or following
            if named.removesuffix(".yaml") not in OWN_BASES and not option.endswith(("path", "dir", "cp", "cd")):
                yield (
                    f"{option} {named}: that file is not read, and the file alone does not say what it sets; verl's own"
                    " defaults stand for it"
                )


def _to_given(file: ConfigFile, pairs: Options, notes: list[str], program: str = "") -> Given:
    """Follow references and rename old keys. Raises RequestError, which says what the file is, if no key is verl's."""
    is_easy = any(name.startswith(OF_EASY) for name in pairs)
    if not is_easy and not PROGRAM.search(program) and not any(name.startswith(OF_VERL) for name in pairs):
        what = describe_other({name.partition(".")[0] for name in pairs})
        what = "it is verl's supervised fine-tuning" if "sft_trainer" in program else what
        raise file.refusal(f"holds no config of verl: {what}" if what else "holds no key of verl's config")
    values, fork = follow_references(pairs), None
    if is_easy:
        values, fork, says = _translate_easy(values)
        notes = [*notes, says]
    return Given(*split_open(rename_keys(values)), notes, fork=fork, program=program)


def _translate_easy(named: Options) -> tuple[Options, str, str]:
    """Return EasyR1's keys as verl's, whose defaults stand for the others, and a sentence."""
    options: Options = {}
    for name, value in named.items():
        theirs = _EASY["renamed"].get(name, name.replace(SECTION, "actor_rollout_ref.", 1))
        words = _EASY["values"].get(theirs, {})
        options[theirs] = words.get(value, value) if isinstance(value, str) else value
    base = options.pop("config", None)
    fork = EXAMPLES if str(base).endswith("examples/config.yaml") else CODE
    given = {part: options.pop(f"{ALGORITHM}{part}") for part in _EASY["kl"][fork] if f"{ALGORITHM}{part}" in options}
    if given:
        kl = _EASY["kl"][fork] | given
        is_on = kl["disable_kl"] is not True
        options |= {keys.KL_LOSS: is_on and kl["use_kl_loss"], keys.KL_REWARD: is_on and not kl["use_kl_loss"]}
        in_loss, in_reward = (f"{ACTOR}kl_loss_coef", keys.KL_TYPE), (keys.KL_COEF, f"{ALGORITHM}kl_penalty")
        coefficient, kind = in_loss if kl["use_kl_loss"] else in_reward
        options |= {coefficient: kl["kl_coef"], kind: kl["kl_penalty"]}
    if fork == EXAMPLES:
        says = f"config={base} is taken as EasyR1 has it; what was changed in a copy the file alone does not say"
    elif base is None:
        says = "EasyR1's keys have verl's names here"
    else:
        says = (
            f"config={base}: that file is not read, and the file alone does not say what it sets, be it the size of a"
            f" group, the batch, the KL or the rate: the defaults of {CODE} stand for it"
        )
    return options, fork, says


def rename_keys(named: Mapping[str, Any]) -> Options:
    """Return options under their present names; an old name counts only if it says something."""
    renamed = {RENAMED[name]: value for name, value in named.items() if name in RENAMED and value is not None}
    return {name: value for name, value in named.items() if name not in RENAMED} | renamed
