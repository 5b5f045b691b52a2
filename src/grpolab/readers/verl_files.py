"""Find verl's config keys in a file: a run script, a list of overrides, or a config as Hydra or verl prints it.

Hydra's `key=value`, `+key=value` and `++key=value` set a key, `~key` removes it; the last one counts.
"""

from __future__ import annotations

import ast
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from grpolab.identity import dotted
from grpolab.readers import verl_easy
from grpolab.readers.given import ConfigFile, Given, Options, describe_other, parse_document, shorten
from grpolab.readers.pairs import OVERRIDE, Open, find_program_end, follow_reference, read_overrides, split_open
from grpolab.readers.shell import find_training_command
from grpolab.readers.verl_keys import CARRIED

SECTIONS = ("actor_rollout_ref.", "algorithm.", "data.", "critic.", "reward_model.", verl_easy.SECTION, "trainer.")
# What only its trainer of RL has: keys, and programs.
OF_VERL = ("actor_rollout_ref.", *(f"algorithm.{name}" for name in ("adv_estimator", "kl_ctrl.", "use_kl_in_reward")))
OF_EASY = tuple(f"{verl_easy.SECTION}{part}." for part in ("actor", "rollout", "ref", "reward"))
PROGRAM = re.compile(r"\b(main_ppo\w*|main_dapo|fully_async_main|recipe\.\w+\.main\w*)\b")
# The base configs of verl's own whose values are known here.
OWN_BASES = [f"{part}ppo_{kind}trainer" for part in ("", "fully_async_", "one_step_off_") for kind in ("", "megatron_")]
PRINTED = re.compile(r"\{\s*'actor_rollout_ref'\s*:.*\}", re.DOTALL)
ACTOR = "actor_rollout_ref.actor."
# Keys of forks and of other versions -> what they are called now.
RENAMED = {
    f"{ACTOR}optim.grad_clip": f"{ACTOR}optim.clip_grad",
    f"{ACTOR}optim.warmup_style": f"{ACTOR}optim.lr_scheduler_type",
    f"{ACTOR}optim.lr_decay_style": f"{ACTOR}optim.lr_scheduler_type",
    **{f"{ACTOR}{name}": f"{ACTOR}policy_loss.{name}" for name in ("loss_mode", "clip_cov_ratio", "ppo_kl_coef")},
    **{f"{ACTOR}{name}": f"{ACTOR}policy_loss.{name}" for name in ("clip_cov_lb", "clip_cov_ub")},
    **{f"{ACTOR}policy_loss.{name}": f"{ACTOR}{name}" for name in ("tau_pos", "tau_neg")},
    "reward_model.overlong_buffer.enable": "reward.reward_kwargs.overlong_buffer_cfg.enable",
    "reward_model.reward_kwargs.overlong_buffer_cfg.enable": "reward.reward_kwargs.overlong_buffer_cfg.enable",
}


def read(file: ConfigFile) -> Given:
    """Return the keys that a file sets, under their present names. Raises RequestError if it holds no verl config."""
    if file.kind == "python":
        raise file.refusal("is Python: verl's config is YAML, or the key=value words of a script")
    if file.kind == "shell":
        return _read_script(file)
    if file.kind == "words" and not PRINTED.search(file.text):
        return _read_words(file)
    if file.kind == "words":
        content, notes = _parse_printed(file), list[str]()
    else:
        content, notes = parse_document(file)
    if isinstance(content.pop("defaults", None), list):
        notes = ["defaults: the files that it names are not read, verl's own defaults stand for what they set"]
    return _to_given(file, dict(dotted(content)), notes)


def _parse_printed(file: ConfigFile) -> Options:
    printed = PRINTED.search(re.sub(r"^\(\w+ pid=\d+[^)]*\) ?", "", file.text, flags=re.MULTILINE))
    try:
        return dict(ast.literal_eval(printed[0])) if printed else {}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise file.refusal("holds a config as verl prints it, which cannot be read to its end") from error


def _read_words(file: ConfigFile) -> Given:
    try:
        words = shlex.split(file.text, comments=True)
    except ValueError as error:
        raise file.refusal("is no list of words: a quotation mark is not closed") from error
    return _to_given(file, *read_overrides(words))


def _read_script(file: ConfigFile) -> Given:
    def find(sections: tuple[str, ...]) -> tuple[list[str], list[str]] | None:
        def is_training(words: list[str]) -> bool:
            pairs = [match for word in words if (match := OVERRIDE.fullmatch(word)) and match[3] is not None]
            return any(match[2].startswith(sections) for match in pairs)

        return find_training_command(file.text, is_training, lambda name: RENAMED.get(name, name) in CARRIED)

    command = find((*OF_VERL, *OF_EASY)) or find(SECTIONS)
    if command is None:
        raise file.refusal("is a script that starts no training of verl")
    words, notes = command
    if OVERRIDE.fullmatch(words[0]) and "=" in words[0]:  # a list of overrides without a program
        return _read_words(file)
    pairs, taken_away = read_overrides(words)
    program = " ".join(words[: find_program_end(words)])
    return _to_given(file, pairs, [*notes, *taken_away, *_other_sources(words)], program)


def _other_sources(words: list[str]) -> Iterator[str]:
    """Yield a sentence for each other source of values: arguments of the script's caller, another base config."""
    behind = words[find_program_end(words) :]
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
    values = {name: follow_reference(value, pairs) for name, value in pairs.items()}
    values = {name: Open(value) if "${" in str(value) else value for name, value in values.items()}
    fork = None
    if is_easy:
        values, fork, says = verl_easy.translate(values)
        notes = [*notes, says]
    return Given(*split_open(rename_keys(values)), notes, fork=fork, program=program)


def rename_keys(named: Mapping[str, Any]) -> Options:
    """Return options under their present names; an old name counts only if it says something."""
    renamed = {RENAMED[name]: value for name, value in named.items() if name in RENAMED and value is not None}
    return {name: value for name, value in named.items() if name not in RENAMED} | renamed
