"""Where a `GRPOConfig` stands in a file as people write it: Python, a notebook, a recipe, the flags of a command.

Nothing is run. What the file leaves open is named; a file that has no `GRPOConfig` is told what it is instead.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from grpolab.bounded import parse_value, read_mapping
from grpolab.readers import trl_versions as versions
from grpolab.readers.given import ConfigFile, Given, Options
from grpolab.readers.python import Scope, Source, Unknown, last_name, parse_python, plain
from grpolab.readers.shell import Command, training_command

CLASSES = {"GRPOConfig", "UnslothGRPOConfig"}
# Fields that no other trainer's config has, or none that is as common.
# fmt: off
SIGNS = {
    "num_generations", "num_iterations", "scale_rewards", "reward_weights", "reward_funcs", "max_completion_length",
    "generation_batch_size", "steps_per_generation", "mask_truncated_completions", "epsilon_high", "vllm_device",
    "importance_sampling_level", "vllm_importance_sampling_correction", "off_policy_mask_threshold",
}
ELSEWHERE = {"areal", "mlx_lm_lora", "nemo_rl", "tunix", "verl"}  # packages with a GRPOConfig that is not TRL's
FIELDS = SIGNS | {"learning_rate", "beta", "temperature", "per_device_train_batch_size", "loss_type"}
# Keys that only such a file has -> what the file is.
OTHERS = {
    "actor_rollout_ref": "is a config of verl: use --from verl",
    "compute_environment": "says how accelerate starts processes",
    "distributed_type": "says how accelerate starts processes",
    "zero_optimization": "is a config of DeepSpeed",
    "actor_train": "is a config of ROLL",
    "stage": "is a config of LLaMA-Factory",
    "finetuning_type": "is a config of LLaMA-Factory",
    "max_seq_length": "is a config of another trainer, for supervised fine-tuning",
    "packing": "is a config of another trainer, for supervised fine-tuning",
    "assistant_only_loss": "is a config of another trainer, for supervised fine-tuning",
    "parameters": "is a sweep of W&B",
    "log_history": "is the log of a run: use grpolab diagnose --from trl",
}
# fmt: on
# Sections of a recipe that are not the trainer's.
ASIDE = re.compile(
    r"eval|test|valid|sft|dpo|ppo|kto|lora|peft|model|data|vllm|reward|judge|infer|server|sampling_params"
)
PROCESSES = ("nproc_per_node", "num_gpus", "num_processes")
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
FLAG = re.compile(r"--?([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
REST = re.compile(r"\"?\$(\{?[@*])")  # what the caller of a script adds
SWIFT = {"max_new_tokens": "max_completion_length", "model": "model_name_or_path"}


def read(file: ConfigFile) -> Given:
    """What a file gives of a `GRPOConfig`. Raises RequestError where it has none."""
    if file.kind == "python" or (file.kind == "words" and "GRPOConfig(" in file.text):
        return _python(file)
    if file.kind in ("shell", "words"):
        return _flags(file)
    return _recipe(file)


# Python.


def _python(file: ConfigFile) -> Given:
    try:
        tree, broken = parse_python(file.text)
        source, names = Source(tree), _class_names(tree)
        notes = [f"line {line}: it is no Python that can be read, and is passed over" for line in broken[:3]]
        calls = sorted((call for name in names for call in source.calls[name]), key=lambda call: call[0].lineno)
        overridable: Collection[str] = []
        if calls:
            call, scope = _trained_with(source, calls)
            given, overridable = source.config(call, scope)
            if len(calls) > 1:
                lines = ", ".join(str(other.lineno) for other, _ in calls if other is not call)
                notes.append(f"the GRPOConfig(...) of line {lines}: that of line {call.lineno} is read")
        else:  # the defaults that a subclass of it gives fields of it
            subclasses = [source.record(source.classes[name], None, ()) for name in names & source.classes.keys()]
            given = next((fields for fields in subclasses if fields.keys() & FIELDS), {})
            overridable = given
    except RecursionError as error:
        raise file.refusal("nests too deep to be read") from error
    if not calls and not given:
        raise file.refusal(_no_call(file, tree))
    options = {key: plain(item) for key, item in given.items() if not isinstance(item, Unknown)}
    left_open = {key: item.source for key, item in given.items() if isinstance(item, Unknown)}
    for key in [key for key in left_open if key.startswith("**")]:
        notes.append(f"{key}: the file alone does not say what is in it, whatever else it sets")
        del left_open[key]
    fork = "unsloth" if re.search(r"^\s*(from|import) unsloth", file.text, re.MULTILINE) else None
    rest = [key for key in options if key in overridable]
    return Given(options, left_open, notes, versions.pinned(file.text), fork=fork, overridable=rest)


def _trained_with(source: Source, calls: list[tuple[ast.Call, Scope]]) -> tuple[ast.Call, Scope]:
    """Return the call whose object a GRPOTrainer is given, else the first."""
    trainers = [trainer for name in source.calls if name.endswith("GRPOTrainer") for trainer, _ in source.calls[name]]
    given = [keyword.value for trainer in trainers for keyword in trainer.keywords if keyword.arg == "args"]
    names = {node.id for node in given if isinstance(node, ast.Name)}
    made = [change.value for name in names for change in source.changes[name] if change.key == ""]
    return next((call for call in calls if call[0] in made or call[0] in given), calls[0])


def _class_names(tree: ast.Module) -> set[str]:
    """GRPOConfig, the names that the file imports it by, and the file's own subclasses of it.

    A class of the file that is called so and is no TrainingArguments is its own trainer's.
    """
    names = set(CLASSES)
    nodes = [*ast.walk(tree)]
    for node in [node for node in nodes if isinstance(node, ast.ImportFrom)]:
        for alias in [alias for alias in node.names if alias.name in CLASSES]:
            change = names.discard if (node.module or "").partition(".")[0] in ELSEWHERE else names.add
            change(alias.asname or alias.name)
    for own in [node for node in nodes if isinstance(node, ast.ClassDef)]:
        bases = {last_name(base) for base in own.bases}
        if bases & names or (own.name in CLASSES and "TrainingArguments" in bases):
            names.add(own.name)
        else:
            names.discard(own.name)
    return names


def _no_call(file: ConfigFile, tree: ast.Module) -> str:
    """What a file of Python without a GRPOConfig is instead."""
    if re.search(r"(TrlParser|HfArgumentParser)\(", file.text) and "GRPOConfig" in file.text:
        return "takes its GRPOConfig from a recipe or its command line: give that file"
    others = [last_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    other = next((name for name in others if re.fullmatch(r"\w+(Config|TrainingArguments)", name)), None)
    if other is not None and re.search(r"(?i)(grpo|sft|dpo|ppo|kto|rloo|training)", other):
        return f"has no GRPOConfig(...): its {other}(...) is of another trainer"
    return "has no GRPOConfig(...): it is a script without a config of TRL's GRPO"


# Recipes.


def _recipe(file: ConfigFile) -> Given:
    """The fields of the section that has most of a GRPOConfig, of those beside it, and of the top level."""
    document = read_mapping(file.path)
    found = dict(_sections(document, ""))
    sections = {name: section for name, section in found.items() if not ASIDE.search(name.lower())}
    signs = [name for name, section in sections.items() if SIGNS & section.keys()]
    if not signs:
        raise file.refusal(_no_recipe(document))
    options: Options = {}
    left_open: dict[str, str] = {}
    main = max(signs, key=lambda name: len(SIGNS & sections[name].keys()))
    beside = [name for name in sections if main and name.rpartition(".")[0] == main.rpartition(".")[0]]
    for name in dict.fromkeys([main, "", *beside]):
        for key, item in sections[name].items():
            if isinstance(item, dict) and key not in ("lr_scheduler_kwargs", "gradient_checkpointing_kwargs"):
                continue
            if isinstance(item, str) and ("${" in item or "{{" in item):
                left_open.setdefault(key, item)
                continue
            if key in options and options[key] != item and key not in sections[main]:
                left_open[key] = f"{options[key]} or {item}"
            options.setdefault(key, item)
    aside = [name for name, section in found.items() if name not in sections and FIELDS & section.keys()]
    notes = [f"{', '.join(aside)}: by name no section of the trainer's"] if aside else []
    options = {key: item for key, item in options.items() if key not in left_open}
    told = options.get("num_processes")
    processes = told if type(told) is int and told > 0 else None
    return Given(options, left_open, notes, versions.pinned(file.text), processes)


def _sections(document: Mapping[str, Any], name: str) -> Iterator[tuple[str, Options]]:
    """The mappings of a document that may hold fields, by dotted name; that of its top level is empty."""
    yield name, dict(document)
    for key, item in document.items():
        if isinstance(item, dict) and isinstance(key, str) and not key.endswith("_kwargs"):
            yield from _sections(item, f"{name}.{key}" if name else key)


def _no_recipe(document: Mapping[str, Any]) -> str:
    """What a recipe without a GRPOConfig is instead."""
    says = next((text for key, text in OTHERS.items() if key in document), None)
    if says is not None:
        return f"{says}; no GRPOConfig is in it"
    return "has no key of TRL's GRPOConfig that tells it from another trainer's, as num_generations does"


# Commands.


def _flags(file: ConfigFile) -> Given:
    command = training_command(file.text, _is_grpo)
    if command is None:
        raise file.refusal("starts no training of TRL's GRPO")
    options, left_open = _values(command)
    notes = list(command.notes)
    if any(REST.match(word) for word in command.words):
        notes.append('"$@": what its caller adds is not in the file')
    recipe = options.pop("config", None)
    if not SIGNS & options.keys() and recipe is not None:
        raise file.refusal(f"takes its GRPOConfig from {recipe}: give that file")
    fork = None
    if "rlhf" in command.words and "swift" in command.words[: command.words.index("rlhf")]:
        fork, options = "ms-swift", {SWIFT.get(key, key): item for key, item in options.items()}
    return Given(options, left_open, notes, versions.pinned(file.text), _processes(command, file.text), fork)


def _is_grpo(words: list[str]) -> bool:
    """Whether a command trains with GRPO by TRL's fields: by a flag that only it has, or as its name says."""
    flags = {match[1].replace("-", "_") for word in words if (match := FLAG.fullmatch(word))}
    named = any("grpo" in word.lower() for word in words if not word.startswith("-"))
    return bool(SIGNS & flags) or (named and bool(flags & {"config", "learning_rate", "beta", "rlhf_type"}))


def _values(command: Command) -> tuple[Options, dict[str, str]]:
    """The flags of a command with their values, read as YAML reads them; and those whose value stayed open."""
    options: Options = {}
    left_open: dict[str, str] = {}
    words = command.words
    number = _program(command)
    while number < len(words):
        match = FLAG.fullmatch(words[number])
        start, number = number, number + 1
        if not match or not words[start].startswith("--"):
            continue
        key, text = match[1].replace("-", "_"), match[2]
        values = [] if text is None else [text]
        while text is None and number < len(words) and not (FLAG.fullmatch(words[number]) or REST.match(words[number])):
            values.append(words[number])
            number += 1
        options.pop(key, None)
        left_open.pop(key, None)
        if any(part in command.open for part in range(start, number)):
            left_open[key] = " ".join(values)
        else:
            options[key] = True if not values else _value(values[0]) if len(values) == 1 else [*map(_value, values)]
    return options, left_open


def _value(text: str) -> Any:
    """A flag's value; a colon makes no mapping of it."""
    found = parse_value(text)
    return found if not isinstance(found, dict) or text.startswith("{") else text


def _program(command: Command) -> int:
    """The number of the first word behind the program, whose flags are the trainer's."""
    for number, (left, word) in enumerate(itertools.pairwise(command.words), start=1):
        is_module = left in ("-m", "--module") and word not in LAUNCHERS
        if word.endswith(".py") or is_module or (left, word) in (("swift", "rlhf"), ("trl", "grpo")):
            return number + 1
    return 0


def _processes(command: Command, text: str) -> int | None:
    """How many processes the launcher starts, where the script says so."""
    first = command.words[: _program(command)]
    pairs = [word if "=" in word else f"{word}={behind}" for word, behind in itertools.pairwise(first)]
    launcher = [match for pair in pairs if (match := FLAG.fullmatch(pair))]
    told = {match[1].replace("-", "_"): match[2] for match in launcher}
    counts = [told[name] for name in PROCESSES if name in told] or re.findall(r"\bNPROC_PER_NODE=(\d+)", text)
    nodes = told.get("nnodes", "1") if "num_processes" not in told else "1"
    if len(set(counts)) != 1 or not counts[0].isdecimal() or not nodes.isdecimal():
        return None
    return int(counts[0][:6]) * int(nodes[:6]) or None
