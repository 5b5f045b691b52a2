"""What a file gives of verl's config: a run script, a list of overrides, a config as Hydra writes it, key by key.

Hydra's `key=value`, `+key=value` and `++key=value` set a key, `~key` takes it away; the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from grpolab.frameworks.config_files import File, document, value, words
from grpolab.frameworks.exchange import Given, Options, flat
from grpolab.frameworks.shell import Command, training_command

OVERRIDE = re.compile(r"(\+{0,2}|~)([A-Za-z_][\w./-]*)(?:@[\w.]*)?(?:=(.*))?", re.DOTALL)
OF_VERL = ("actor_rollout_ref.", "algorithm.", "data.", "critic.", "reward_model.")
# What a config is of that is not verl's, by a key that only it has.
OTHERS = {
    "worker": "a config of EasyR1, a fork of verl whose keys are others",
    "compute_environment": "a config of accelerate",
    "distributed_type": "a config of accelerate",
    "zero_optimization": "a config of DeepSpeed",
    "log_history": "a trainer_state.json of transformers",
    "per_device_train_batch_size": "a config of TRL or transformers",
    "lora_rank": "a config of LLaMA-Factory",
}
FOLLOWED = 10  # references from key to key
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*([^${}]*))?\}")

# Keys of forks and of other versions -> what they are called now.
RENAMED = {
    "actor_rollout_ref.actor.optim.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.optim.lr_decay_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.loss_mode": "actor_rollout_ref.actor.policy_loss.loss_mode",
    "actor_rollout_ref.actor.clip_cov_ratio": "actor_rollout_ref.actor.policy_loss.clip_cov_ratio",
    "actor_rollout_ref.actor.clip_cov_lb": "actor_rollout_ref.actor.policy_loss.clip_cov_lb",
    "actor_rollout_ref.actor.clip_cov_ub": "actor_rollout_ref.actor.policy_loss.clip_cov_ub",
    "actor_rollout_ref.actor.ppo_kl_coef": "actor_rollout_ref.actor.policy_loss.ppo_kl_coef",
    "actor_rollout_ref.actor.policy_loss.tau_pos": "actor_rollout_ref.actor.tau_pos",
    "actor_rollout_ref.actor.policy_loss.tau_neg": "actor_rollout_ref.actor.tau_neg",
    "reward_model.overlong_buffer.enable": "reward.reward_kwargs.overlong_buffer_cfg.enable",
    "reward_model.reward_kwargs.overlong_buffer_cfg.enable": "reward.reward_kwargs.overlong_buffer_cfg.enable",
}


def read(file: File) -> Given:
    """The keys that a file sets, by their present names. Raises RequestError where it holds no config of verl."""
    if file.kind == "python":
        raise file.refusal("is Python: verl's config is YAML, or the key=value words of a script")
    if file.kind == "shell":
        return _of_script(file)
    content = words(file) if file.kind == "words" else document(file)
    if isinstance(content, list) and content and all(isinstance(line, str) for line in content):  # overrides.yaml
        options, open_keys, notes = overridden(content, ())
        return _checked(file, Given(options, open_keys, notes))
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise file.refusal("must be a mapping of keys to values, or a list of key=value")
    named, notes = flat(content), []
    if isinstance(content.get("defaults"), list):
        notes.append("defaults: the files that it names are not read, verl's own defaults stand for what they set")
    options = {name: followed(value, named) for name, value in named.items()}
    open_keys = {name: str(value) for name, value in options.items() if isinstance(value, str) and "${" in value}
    return _checked(file, Given({name: options[name] for name in options if name not in open_keys}, open_keys, notes))


def _checked(file: File, given: Given) -> Given:
    """Under the present names. Raises RequestError, and says what the file is, where none of them is verl's."""
    names = {**given.options, **given.open}
    if not any(name.startswith(OF_VERL) for name in names) or any(name.startswith("worker.") for name in names):
        tops = {name.partition(".")[0] for name in names}
        what = next((what for key, what in OTHERS.items() if key in tops), "")
        raise file.refusal(f"holds no config of verl: it is {what}" if what else "holds no key of verl's config")
    open_keys = {RENAMED.get(name, name): text for name, text in given.open.items()}
    return replace(given, options=present(given.options), open=open_keys, otherwise=present(given.otherwise))


def present(named: Mapping[str, Any]) -> Options:
    """The same under the present names, where an old name counts only if it says something."""
    renamed = {RENAMED[name]: value for name, value in named.items() if name in RENAMED and value is not None}
    return {name: value for name, value in named.items() if name not in RENAMED} | renamed


def followed(text: Any, named: Mapping[str, Any]) -> Any:
    """What a reference `${a.b}` to another key of the file stands for; itself where that is none of them."""
    for _ in range(FOLLOWED):
        match = _REFERENCE.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match[1] not in named and match[2] is None):
            break
        text = named[match[1]] if match[1] in named else value(match[2])
    return text


def overridden(lines: Iterable[str], opened: Collection[int]) -> tuple[Options, dict[str, str], list[str]]:
    """Hydra's overrides: keys with values, keys whose value is open, and a sentence for what is neither.

    `opened` has the numbers of the lines in which something is open.
    """
    options: Options = {}
    open_keys: dict[str, str] = {}
    notes = []
    for at, line in enumerate(lines):
        match = OVERRIDE.fullmatch(line)
        if match is None or (match[3] is None and match[1] != "~"):
            continue
        sign, name, text = match.groups()
        options.pop(name, None)
        open_keys.pop(name, None)
        if sign == "~":
            notes.append(f"~{name}: the key is taken away, and verl's default is what counts here")
        elif at in opened or "${" in text:
            open_keys[name] = text
        else:
            options[name] = value(text)
    options = {name: followed(value, options) for name, value in options.items()}
    return options, open_keys, notes


def _of_script(file: File) -> Given:
    programs: list[str] = []

    def trains(line: list[str]) -> bool:
        """Whether a command has verl's overrides; any other Python program is kept, to be told."""
        if any(re.fullmatch(r"(.*/)?python[\d.]*", word) for word in line[:-1]):
            programs.append(" ".join(line[:3]))
        return any(match[2].startswith(_SECTIONS) for word in line if (match := OVERRIDE.fullmatch(word)) and match[3])

    command = training_command(file.text, trains)
    if command is None:
        starts = f": it starts `{programs[0][:60]}`" if programs else ""
        raise file.refusal(f"is a script that starts no training of verl{starts}")
    if "=" in command.words[0] and OVERRIDE.fullmatch(command.words[0]):  # no program, but a list of overrides
        options = words(file)
        return _checked(file, Given(options))
    options, open_keys, notes = overridden(command.words, command.open)
    notes = [*command.notes, *notes, *_of_the_command(command)]
    other = overridden(command.otherwise, ())[0] if command.otherwise else options
    differing = {name: value for name, value in other.items() if options.get(name) != value}
    return _checked(file, Given(options, open_keys, notes, otherwise=differing))


_SECTIONS = (*OF_VERL, "worker.", "trainer.")


def _of_the_command(command: Command) -> Iterator[str]:
    """A sentence for what else decides: the caller's own words, and another base config."""
    rest = [part for at, parts in command.open.items() if "=" not in command.words[at] for part in parts]
    if rest:
        yield f"{', '.join(dict.fromkeys(rest))}: words that only a run can tell may change any of this"
    for at, word in enumerate(command.words):
        option, _, given = word.partition("=")
        if option in ("--config-name", "-cn", "--config-path", "-cp", "--config-dir", "-cd"):
            given = given or command.words[at + 1] if at + 1 < len(command.words) else given
            if given.removesuffix(".yaml") not in ("ppo_trainer", "ppo_megatron_trainer"):
                yield f"{option} {given}: that file is not read, verl's own defaults stand for what it sets"
