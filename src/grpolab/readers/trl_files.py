"""Find a `GRPOConfig` in a file as people write it: Python, a notebook, a recipe, the flags of a command."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from grpolab.readers import trl_fields as fields
from grpolab.readers.given import ConfigFile, Given, Options, describe_other, parse_document, shorten
from grpolab.readers.pairs import FLAG, Open, find_program_end, read_flags, split_open
from grpolab.readers.python import Source, last_name, parse_python
from grpolab.readers.shell import find_training_command

CLASSES = {"GRPOConfig", "UnslothGRPOConfig"}
ELSEWHERE = {"areal", "mlx_lm_lora", "nemo_rl", "tunix", "verl"}  # packages with a GRPOConfig that is not TRL's
# Fields that no other common trainer's config has.
SIGNS = {
    "num_generations", "num_iterations", "scale_rewards", "reward_weights", "reward_funcs", "max_completion_length",
    "generation_batch_size", "steps_per_generation", "mask_truncated_completions", "epsilon_high", "vllm_device",
    "importance_sampling_level", "vllm_importance_sampling_correction", "off_policy_mask_threshold",
}  # fmt: skip
FIELDS = SIGNS | {"learning_rate", "beta", "temperature", "per_device_train_batch_size", "loss_type"}
# Sections of a recipe that are not the trainer's.
ASIDE = re.compile(
    r"eval|test|valid|sft|dpo|ppo|kto|lora|peft|model|data|vllm|reward|judge|infer|server|sampling_params"
)
ADDED = re.compile(r"^\$[@*]| --")  # words from the script's caller, or flags that a branch may add
PROCESSES = ("nproc_per_node", "num_gpus", "num_processes")
SWIFT = {"max_new_tokens": "max_completion_length", "model": "model_name_or_path"}


def read(file: ConfigFile) -> Given:
    """Return the fields of a `GRPOConfig` in a file. Raises RequestError if the file has none."""
    if file.kind == "python" or (file.kind == "words" and "GRPOConfig(" in file.text):
        try:
            return _read_python(file)
        except RecursionError as error:
            raise file.refusal("nests too deep to be read") from error
    return _read_command(file) if file.kind in ("shell", "words") else _read_recipe(file)


def _read_python(file: ConfigFile) -> Given:
    if (tree := parse_python(file.text)) is None:
        raise file.refusal("is no Python that can be read")
    source, notes = Source(tree), list[str]()
    calls = [call for name in _class_names(tree) for call in source.calls[name]]
    if not calls:
        raise file.refusal(_describe_python(file, source))
    call, *others = sorted(calls, key=lambda call: (not _is_trained_with(source, call), call.lineno))
    given, overridable = source.read_config(call)
    if others:
        lines = ", ".join(str(other.lineno) for other in others)
        notes.append(f"the GRPOConfig(...) of line {lines}: that of line {call.lineno} is read")
    mappings = [key for key in given if key.startswith("**")]
    notes += [f"{key}: the file alone does not say what is in it, whatever else it sets" for key in mappings]
    options, left_open = split_open({key: item for key, item in given.items() if key not in mappings})
    fork = "unsloth" if re.search(r"^\s*(from|import) unsloth", file.text, re.MULTILINE) else None
    rest = [key for key in options if key in overridable]
    return Given(options, left_open, notes, fields.find_pin(file.text), fork=fork, overridable=rest)


def _is_trained_with(source: Source, call: ast.Call) -> bool:
    """Return True if the object that a call makes is passed to a GRPOTrainer."""
    trainers = [trainer for name in source.calls if name.endswith("GRPOTrainer") for trainer in source.calls[name]]
    given = [keyword.value for trainer in trainers for keyword in trainer.keywords if keyword.arg == "args"]
    return any(value is call or call in source.assigned.get(last_name(value), []) for value in given)


def _class_names(tree: ast.Module) -> set[str]:
    """Return the names that mean TRL's GRPOConfig in the file, not those of other packages or of its own classes."""
    names = set(CLASSES)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported = {alias.asname or alias.name for alias in node.names if alias.name in CLASSES}
            names = names - imported if (node.module or "").partition(".")[0] in ELSEWHERE else names | imported
        elif isinstance(node, ast.ClassDef):
            names.discard(node.name)
    return names


def _describe_python(file: ConfigFile, source: Source) -> str:
    """Say what a Python file without a GRPOConfig is instead."""
    if re.search(r"(TrlParser|HfArgumentParser)\(", file.text) and "GRPOConfig" in file.text:
        return "takes its GRPOConfig from a recipe or its command line: give that file"
    trainer = re.compile(r"(?i)(?=.*(grpo|sft|dpo|ppo|kto|rloo|training))\w+(Config|TrainingArguments)")
    other = next((name for name, calls in source.calls.items() if calls and trainer.fullmatch(name)), None)
    what = f"its {other}(...) is of another trainer" if other else "it is a script without a config of TRL's GRPO"
    return f"has no GRPOConfig(...): {what}"


def _read_recipe(file: ConfigFile) -> Given:
    """Return the fields of the section with most of a GRPOConfig's fields, its sibling sections and the top level."""
    document, _ = parse_document(file)
    every = dict(_sections(document, ""))
    sections = {name: section for name, section in every.items() if not ASIDE.search(name.lower())}
    main = max(sections, key=lambda name: len(SIGNS & sections[name].keys()))
    if not SIGNS & sections[main].keys():
        lacks = "has no key of TRL's GRPOConfig that tells it from another trainer's, as num_generations does"
        what = describe_other(document.keys() - {"per_device_train_batch_size"})
        raise file.refusal(f"holds no GRPOConfig: {what}" if what else lacks)
    beside = [name for name in sections if main and name.rpartition(".")[0] == main.rpartition(".")[0]]
    pairs = Options()
    for name in dict.fromkeys([main, "", *beside]):
        for key, item in sections[name].items():
            if isinstance(item, dict) and key not in ("lr_scheduler_kwargs", "gradient_checkpointing_kwargs"):
                continue
            if isinstance(item, str) and ("${" in item or "{{" in item):
                item = Open(item)
            if pairs.setdefault(key, item) != item and key not in sections[main]:
                pairs[key] = Open(f"{pairs[key]} or {item}")
    aside = [name for name, section in every.items() if name not in sections and FIELDS & section.keys()]
    notes = [f"{', '.join(aside)}: by name no section of the trainer's"] if aside else []
    options, left_open = split_open(pairs)
    told = options.get("num_processes")
    processes = told if type(told) is int and told > 0 else None
    return Given(options, left_open, notes, fields.find_pin(file.text), processes)


def _sections(document: Mapping[str, Any], name: str) -> Iterator[tuple[str, Options]]:
    """Yield dotted name and content of each mapping that may hold fields; the top level's name is empty."""
    yield name, dict(document)
    for key, item in document.items():
        if isinstance(item, dict) and isinstance(key, str) and not key.endswith("_kwargs"):
            yield from _sections(item, f"{name}.{key}" if name else key)


def _read_command(file: ConfigFile) -> Given:
    """Return a command's flags with their values as YAML reads them; a repeated flag counts by its last value."""
    command = find_training_command(file.text, _is_grpo)
    if command is None:
        raise file.refusal("starts no training of TRL's GRPO")
    words, notes = command
    program = find_program_end(words)
    added = [word for word in words[program:] if isinstance(word, Open) and ADDED.search(word)]
    notes += [f"{shorten(word)}: what it adds is not in the file" for word in added]
    options, left_open = split_open(read_flags(word for word in words[program:] if word not in added))
    recipe = options.pop("config", None)
    if not SIGNS & options.keys() and recipe is not None:
        raise file.refusal(f"takes its GRPOConfig from {recipe}: give that file")
    is_swift = "rlhf" in words and "swift" in words[: words.index("rlhf")]
    options = {SWIFT.get(key, key): item for key, item in options.items()} if is_swift else options
    processes = _count_processes(words[:program], file.text)
    fork = "ms-swift" if is_swift else None
    return Given(options, left_open, notes, fields.find_pin(file.text), processes, fork)


def _is_grpo(words: list[str]) -> bool:
    """Return True if a command trains with TRL's GRPO: it has a flag that only TRL has, or its name says so."""
    flags = {match[1].replace("-", "_") for word in words if (match := FLAG.fullmatch(word))}
    named = any("grpo" in word.lower() for word in words if not word.startswith("-"))
    return bool(SIGNS & flags) or (named and bool(flags & {"config", "learning_rate", "beta", "rlhf_type"}))


def _count_processes(launcher: list[str], text: str) -> int | None:
    """Return how many processes a launcher starts; None if the script does not say."""
    pairs = [word if "=" in word else f"{word}={behind}" for word, behind in itertools.pairwise(launcher)]
    told = {match[1].replace("-", "_"): match[2] for pair in pairs if (match := FLAG.fullmatch(pair))}
    counts = [told[name] for name in PROCESSES if name in told] or re.findall(r"\bNPROC_PER_NODE=(\d+)", text)
    nodes = told.get("nnodes", "1") if "num_processes" not in told else "1"
    if len(set(counts)) != 1 or not counts[0].isdecimal() or not nodes.isdecimal():
        return None
    return int(counts[0][:6]) * int(nodes[:6]) or None
