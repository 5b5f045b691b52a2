"""Find a `GRPOConfig` in a file as people write it: Python, a notebook, a recipe, the flags of a command."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from grpolab.bounded import parse_value
from grpolab.errors import listing
from grpolab.readers import adapters
from grpolab.readers import trl_fields as fields
from grpolab.readers.given import OTHERS, ConfigFile, Given, Options, parse_document, shorten
from grpolab.readers.pairs import FLAG, Open, find_program_end, read_flags, split_open
from grpolab.readers.python import Source, last_name, parse_python
from grpolab.readers.shell import find_training_command

CLASSES = {"GRPOConfig", "UnslothGRPOConfig"}
# Packages whose GRPOConfig is TRL's or inherits from it; names that a file with TRL's trainer imports from there.
TRLS = {"trl", "unsloth", "open_r1", "swift"}
WITH_TRL = {"GRPOConfig", "GRPOTrainer", "TrlParser", "ModelConfig", "ScriptArguments", "get_peft_config"}
ELSEWHERE = {"agilerl", "areal", "easydel", "mlx_grpo", "mlx_lm_lora", "nemo_rl", "oat", "tunix", "verifiers", "verl"}
SHOWN = 8  # sections in a sentence
SIGNS = frozenset(fields.TABLE["signs"].split())
OF_TRAINERS = frozenset(fields.TABLE["of_trainers"].split())
OTHER_WORDS = {word: name for name, words in fields.TABLE["other_words"].items() for word in words.split()}
FOREIGN = {key: whose for whose, keys in fields.TABLE["foreign"].items() for key in keys.split()}
# Sections of a recipe that are the trainer's, and those that never are.
TRAINERS = re.compile(r"grpo|trl|train|args|optim|hyper|generat|sampl|rollout|algo|config|^rl$")
ASIDE = re.compile(r"eval|test|valid|sft|dpo|ppo|kto|lora|peft|model|data|vllm|reward|judge|infer|sampling_params")
# Keys of axolotl's recipes, which have two at least, and those that only ms-swift's trainer on Megatron has.
AXOLOTL = {"base_model", "rl", "trl", "adapter", "sequence_len", "val_set_size", "micro_batch_size"}
MEGATRON = {"global_batch_size", "train_iters", "lr_decay_style", "tensor_model_parallel_size"}
ADDED = re.compile(r"^\$[@*]| --")  # words from the script's caller, or flags that a branch may add
# Fields of peft's LoraConfig that ModelConfig calls otherwise, and the defaults that differ there.
PEFT_NAMES = {"r": "lora_r"} | {
    name: f"lora_{name}" for name in ("target_modules", "modules_to_save", "target_parameters")
}
PEFT_DEFAULTS = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
PROCESSES = ("nproc_per_node", "num_gpus", "num_processes")
# What transformers prints of a config: `GRPOConfig(`, a line for each field, with texts without quotes, then `)`.
PRINTED = re.compile(r"\w*GRPOConfig\(\n((?:[ \t]*\w+=.*,\n)+)[ \t]*\)")
LINE = re.compile(r"[ \t]*(\w+)=((?:SchedulerType|OptimizerNames)\.)?(.*),$", re.MULTILINE)


def read(file: ConfigFile, name: str) -> Given:
    """Return a file's GRPOConfig. Raises RequestError if it has none, or is another trainer's than `name` asks."""
    fork = None if name == "trl" else name
    if file.kind == "words" and (printed := PRINTED.search(file.text)):
        pairs = {key: parse_value(text.lower() if enum else text) for key, enum, text in LINE.findall(printed[1])}
        given = _read_pairs(file, pairs, [], None)
    elif file.kind == "python" or (file.kind == "words" and "GRPOConfig(" in file.text):
        try:
            given = _read_python(file, fork)
        except RecursionError as error:
            raise file.refusal("nests too deep to be read") from error
    else:
        given = _read_command(file) if file.kind in ("shell", "words") else _read_recipe(file)
    found = given.fork and given.fork.replace("megatron", "ms")
    if fork not in (None, found):
        raise file.refusal(f"holds no config of {fork}: it is one of {found or 'TRL'}, --from {found or 'trl'}")
    return given


def _read_pairs(file: ConfigFile, pairs: Options, notes: list[str], fork: str | None, **known: Any) -> Given:
    options, left_open = split_open(_rename(pairs, fork))
    told = options.get("num_processes")
    known = {"processes": told if type(told) is int and told > 0 else None, **known}
    return Given(options, left_open, notes, fields.find_pin(file.text), fork=fork, **known)


def _rename(pairs: Options, fork: str | None) -> Options:
    """Return the options of a trainer that builds on TRL's, by TRL's names and with what TRL has for their values."""
    names = fields.of_fork(fork, "renamed")
    made = {names.get(key, key): item for key, item in pairs.items() if names.get(key, key) not in pairs.keys() - {key}}
    if type(kind := made.get("use_peft", True)) in (str, type(None)) and fork:
        made["use_peft"] = kind not in ("full", "none", "", None)
        made |= {"tuner": kind} if made["use_peft"] and kind != "lora" else {}
    if fork == "megatron-swift" and made.get("use_peft"):
        made |= {"use_peft": False, "tuner": "lora of Megatron's fused layers"}
    if fork == "axolotl" and made.pop("lora_target_linear", False) is True:
        made["lora_target_modules"] = adapters.EVERY
    targets = made.get("lora_target_modules")
    if fork not in (None, "unsloth") and isinstance(targets, str | list) and not isinstance(targets, Open):
        # A word is a list of one there.
        made["lora_target_modules"] = adapters.as_trl([targets] if isinstance(targets, str) else targets)
    floor = made.get("lr_scheduler_kwargs")
    if isinstance(floor, int | float):
        made["lr_scheduler_kwargs"] = {"min_lr_rate" if fork == "axolotl" else "min_lr": floor} if floor else None
        if floor and made.get("lr_scheduler_type", "cosine") == "cosine":
            made["lr_scheduler_type"] = "cosine_with_min_lr"
    if "rollout_importance_sampling_mode" in pairs:
        made["vllm_importance_sampling_correction"] = pairs["rollout_importance_sampling_mode"] is not None
    if made.get("scale_rewards") == "gdpo" or (fork == "axolotl" and made.pop("rl") == "gdpo"):
        made |= {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "group"}
    if fork == "megatron-swift":  # whose batches are of all processes
        whole, micro = pairs.get("global_batch_size", 16), pairs.get("micro_batch_size", 1)
        slices, whole_rollout = pairs.get("steps_per_generation", 1), made.pop("generation_batch_size", None)
        if all(type(size) is int and size > 0 for size in (whole, micro, slices)):
            window = max(whole // micro, 1)
            slices = whole_rollout // whole if type(whole_rollout) is int else slices
            made |= {"gradient_accumulation_steps": window, "steps_per_generation": max(slices, 1) * window}
            made["num_processes"] = 1
    return made


def _read_python(file: ConfigFile, fork: str | None) -> Given:
    if (tree := parse_python(file.text)) is None:
        raise file.refusal("is no Python that can be read")
    source, notes = Source(tree), list[str]()
    calls, whose = _find_calls(tree, source)
    if not calls:
        raise file.refusal(_describe_python(file, source, whose))
    call, *others = sorted(calls, key=lambda call: (not _is_trained_with(source, call), call.lineno))
    given, overridable = source.read_config(call)
    inherited = source.fields.get(last_name(call), {})  # the defaults of a class that inherits from GRPOConfig
    given = {key: source.evaluate(item) for key, item in inherited.items() if key in fields.CARRIED} | given
    if others:
        lines = ", ".join(str(other.lineno) for other in others)
        notes.append(f"the GRPOConfig(...) of line {lines}: that of line {call.lineno} is read")
    mappings = [key for key in given if key.startswith("**")]
    notes += [f"{key}: the file alone does not say what is in it, whatever else it sets" for key in mappings]
    pairs = {key: item for key, item in given.items() if key not in mappings}
    if mappings and not fields.CARRIED.keys() & pairs:
        raise file.refusal(f"says no values of its GRPOConfig ({mappings[0]}): give the file that has them")
    if last_name(call) in CLASSES and (why := _describe_keys(pairs, is_told=True)):
        raise file.refusal(f"has no GRPOConfig(...) of TRL's: {why}")
    pairs = _find_adapters(source) | pairs
    has_unsloth = fork == "unsloth" or re.search(r"^\s*(from|import) unsloth", file.text, re.MULTILINE)
    rest = [key for key in pairs if key in overridable]
    return _read_pairs(file, pairs, notes, "unsloth" if has_unsloth else None, overridable=rest)


def _of_peft(config: Mapping[str, Any]) -> Options:
    """Return what a LoraConfig of peft says, by its fields in TRL's ModelConfig and with peft's defaults."""
    named = {PEFT_NAMES.get(name, name): item for name, item in config.items()}
    targets = named.get("lora_target_modules")
    if isinstance(targets, list) and targets and all(isinstance(name, str) for name in targets):
        named["lora_target_modules"] = adapters.as_trl(targets)
    known = {*PEFT_NAMES.values(), "lora_alpha", "lora_dropout", "use_rslora", "use_dora"}
    return {"use_peft": True, **PEFT_DEFAULTS, **{name: item for name, item in named.items() if name in known}}


def _find_adapters(source: Source) -> Options:
    """Return what a script says of the adapters that it trains, by TRL's fields; open if it does not say which."""
    models, made = source.calls["ModelConfig"], source.calls["get_peft_model"]
    if len(models) == 1 and (said := source.read_config(models[0])[0]).get("use_peft"):
        return {name: item for name, item in said.items() if name in fields.list_known(None)}
    # What the trainer gets, and what a model is made with: a config, or unsloth's keywords.
    trainers = [call for name in source.calls if name.endswith("GRPOTrainer") for call in source.calls[name]]
    given = [each.value for call in trainers for each in call.keywords if each.arg == "peft_config"]
    given += [value for call in made for value in call.args[1:2]]
    given += [call for call in made if {"r", "lora_alpha", "target_modules"} <= {each.arg for each in call.keywords}]
    values = [
        value
        for node in given
        for value in (source.assigned.get(node.id, []) if isinstance(node, ast.Name) else [node])
        if not (isinstance(value, ast.Constant) and value.value is None)
    ]
    if not given or not values:
        return {}
    call = values[0]
    if (
        len(set(values)) > 1
        or last_name(call) not in ("LoraConfig", "get_peft_model")
        or not isinstance(call, ast.Call)
    ):
        return {"use_peft": Open(ast.unparse(given[0]))}
    return _of_peft(source.read_config(call)[0])


def _is_trained_with(source: Source, call: ast.Call) -> bool:
    trainers = [trainer for name in source.calls if name.endswith("GRPOTrainer") for trainer in source.calls[name]]
    given = [each.value for trainer in trainers for each in trainer.keywords if each.arg == "args"]
    return any(value is call or call in source.assigned.get(last_name(value), []) for value in given)


def _find_calls(tree: ast.Module, source: Source) -> tuple[list[ast.Call], str]:
    """Return the calls that make a GRPOConfig of TRL's, or of a class that inherits from it, and where it comes from.

    Where a file does not say, that is empty. A module of one's own counts if the file imports TRL's trainer beside it.
    """
    names, modules = set(CLASSES), dict[str, str]()  # modules: name in the file -> where it is imported from
    nodes = [*ast.walk(tree)]
    for node in nodes:
        match node:
            case ast.ImportFrom(module=module, level=level, names=aliases):
                modules |= {each.asname or each.name: "." * level + (module or "") for each in aliases}
                names |= {each.asname or each.name for each in aliases if each.name in CLASSES}
            case ast.Import(names=aliases):
                modules |= {each.asname or each.name.partition(".")[0]: each.name for each in aliases}
    has_trl = any(module.partition(".")[0] in TRLS and name in WITH_TRL for name, module in modules.items())

    def is_trls(name: str) -> bool:
        root = modules.get(name, "trl").partition(".")[0]
        return root in TRLS or (has_trl and root not in ELSEWHERE)

    whose = next((modules[name] for name in sorted(names) if name in modules), "")
    names = {name for name in names if is_trls(name)} | {"UnslothGRPOConfig"}
    for node in nodes:
        if isinstance(node, ast.ClassDef) and names & {last_name(base) for base in node.bases}:
            names.add(node.name)
        elif isinstance(node, ast.ClassDef) and node.name in names:
            names, whose = names - {node.name}, "a class of the file"
    calls = [call for name in names for call in source.calls[name]]
    owners = {call: re.split(r"\W", ast.unparse(call.func))[0] for call in calls}
    calls = [call for call, owner in owners.items() if owner in names or is_trls(owner) or "Unsloth" in owner]
    return calls, whose or next((modules[owner] for owner in owners.values() if owner in modules), "")


def _describe_python(file: ConfigFile, source: Source, whose: str) -> str:
    if re.search(r"(TrlParser|HfArgumentParser)\(", file.text) and "GRPOConfig" in file.text and "trl" in file.text:
        return "takes its GRPOConfig from a recipe or its command line: give that file"
    trainer = re.compile(r"(?i)(?=.*(grpo|sft|dpo|ppo|kto|rloo|training))\w+(Config|TrainingArguments)")
    other = next((name for name, calls in source.calls.items() if calls and trainer.fullmatch(name)), None)
    what = f"its {other}(...) is of another trainer" if other else "it is a script without a config of TRL's GRPO"
    return f"has no GRPOConfig(...) of TRL's: {what}" + (f", that of {whose}" if other in CLASSES and whose else "")


def _describe_keys(keys: Collection[str], is_told: bool = False) -> str:
    """Say why some keys are not those of a GRPOConfig; '' if they are. `is_told`: a class is called by that name."""
    others = {**(OTHERS if not SIGNS.intersection(keys) else {}), **FOREIGN}
    others.pop("per_device_train_batch_size", None)
    if other := next((key for key in others if key in keys), None):
        return f"by {other}, it seems to be {others[other]}"
    words = [word for word, field in OTHER_WORDS.items() if word in keys and field not in keys]
    if words and (is_told or len(words) > 1):
        theirs = ", ".join(OTHER_WORDS[word] for word in words)
        return f"{', '.join(words)} stand for {theirs} in a script of its own"
    ours = sorted((SIGNS | OF_TRAINERS).intersection(keys))
    if is_told or (SIGNS.intersection(ours) and len(ours) > 1):
        return ""
    lacks = f"{', '.join(ours)} alone tells" if len(ours) == 1 else f"{', '.join(ours) or 'no key'} tells"
    return f"{lacks} it from another trainer's: num_generations and per_device_train_batch_size would"


def _read_recipe(file: ConfigFile) -> Given:
    """Return the fields of the section that has most of a GRPOConfig's, of the trainer's others, of the top level."""
    document, notes = parse_document(file)
    if "log_history" in document:
        raise file.refusal(
            "is the log of a run, without its config: use grpolab diagnose --from trl, and give here what"
            " json.dumps(trainer.args.to_dict(), default=str) writes, or W&B's config.yaml"
        )
    every = dict(_sections(document, ""))
    leaves = {name: {key for key, item in part.items() if not isinstance(item, dict)} for name, part in every.items()}
    fork = _which_fork(file, document)
    sections = {name: section for name, section in every.items() if not ASIDE.search(name.lower()) or name == fork}
    main = max(sections, key=lambda name: len(SIGNS & leaves[name]))
    folder = main.rpartition(".")[0]
    beside = [f"{folder}.{last}".strip(".") for last in every.get(folder, ()) if main and TRAINERS.search(last.lower())]
    if fork:
        main, beside = ("trl", []) if fork == "axolotl" else ("", ["train", "rollout"])
    read = dict.fromkeys([main, "", *(name for name in beside if name in sections)])
    keys = {key for name in read for key in leaves.get(name, ())} | document.keys()
    if fork is None and (why := _describe_keys(keys)):
        raise file.refusal(f"holds no GRPOConfig: {why}")
    pairs = Options()
    for name in read:
        for key, item in every.get(name, {}).items():
            if isinstance(item, dict) and (f"{name}.{key}" if name else key) in every:
                continue
            if isinstance(item, str) and ("${" in item or "{{" in item):
                item = Open(item)
            if pairs.setdefault(key, item) != item and key not in every[main]:
                pairs[key] = Open(f"{pairs[key]} or {item}")
    aside = [name for name in every if name not in read and leaves[name] and not name.startswith("peft_config")]
    if aside:
        unread = sum(len(leaves[name]) for name in aside)
        notes.append(
            f"{listing(aside, SHOWN)}: by name no section of the trainer's, so that {unread} keys are not read"
        )
    words = [word for word, field in OTHER_WORDS.items() if word in pairs and field not in pairs]
    if words and fork is None and not fields.is_resolved(pairs):
        pairs |= {OTHER_WORDS[word]: Open(f"{word}={pairs.pop(word)}") for word in words}
    if peft := document.get("peft_config"):  # W&B has it beside the fields, by the name of its adapter
        first = next(iter(peft.values())) if isinstance(peft, dict) else None
        if isinstance(first, dict) and "r" in first:
            pairs = _of_peft(first) | pairs
        else:
            pairs.setdefault("use_peft", Open(f"peft_config={shorten(peft)}"))
    return _read_pairs(file, pairs, notes, fork)


def _which_fork(file: ConfigFile, document: Mapping[str, Any]) -> str | None:
    """Return the trainer on top of TRL's whose recipe it is. Raises RequestError if it does not train with GRPO."""
    of_swift, of_axolotl = "rlhf_type" in document, len(AXOLOTL & document.keys()) > 1
    told = document.get("rlhf_type" if of_swift else "rl")
    if not of_swift and not of_axolotl:
        return None
    if told not in (("grpo",) if of_swift else ("grpo", "gdpo")):
        fork = "ms-swift" if of_swift else "axolotl"
        raise file.refusal(f"holds no GRPOConfig: it is a config of {fork} for {told or 'supervised fine-tuning'}")
    return "axolotl" if not of_swift else "megatron-swift" if MEGATRON & document.keys() else "ms-swift"


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
        other = find_training_command(file.text, lambda words: len(_flags(words)) > 2)
        start = other[0][: find_program_end(other[0]) or 2] if other else ["none that trains"]
        raise file.refusal(f"starts no training of TRL's GRPO: its command is {shorten(' '.join(start))}")
    words, notes = command
    program = find_program_end(words)
    added = [word for word in words[program:] if isinstance(word, Open) and ADDED.search(word)]
    notes += [f"{shorten(word)}: what it adds is not in the file" for word in added]
    pairs = read_flags(word for word in words[program:] if word not in added)
    recipe = pairs.pop("config", None)
    if not SIGNS & pairs.keys() and recipe is not None:
        raise file.refusal(f"takes its GRPOConfig from {recipe}: give that file")
    fork = None if not _is_swift(words) else "megatron-swift" if "megatron" in words else "ms-swift"
    return _read_pairs(file, pairs, notes, fork, processes=_count_processes(words[:program], file.text))


def _flags(words: Iterable[str]) -> set[str]:
    return {match[1].replace("-", "_") for word in words if (match := FLAG.fullmatch(word))}


def _is_swift(words: list[str]) -> bool:
    return any(left in ("swift", "megatron") and word == "rlhf" for left, word in itertools.pairwise(words))


def _is_grpo(words: list[str]) -> bool:
    """Return True if a command trains with TRL's GRPO: by its program, its flags, or the recipe that it names."""
    flags = _flags(words)
    named = any("grpo" in word.lower() for word in words if not word.startswith("-"))
    if _is_swift(words):
        return named
    is_trl = ("trl", "grpo") in itertools.pairwise(words)
    return is_trl or not _describe_keys(flags) or (named and "config" in flags and not SIGNS & flags)


def _count_processes(launcher: list[str], text: str) -> int | None:
    """Return how many processes a launcher starts; None if the script does not say."""
    pairs = [word if "=" in word else f"{word}={behind}" for word, behind in itertools.pairwise(launcher)]
    told = {match[1].replace("-", "_"): match[2] for pair in pairs if (match := FLAG.fullmatch(pair))}
    counts = [told[name] for name in PROCESSES if name in told] or re.findall(r"\bNPROC_PER_NODE=(\d+)", text)
    nodes = told.get("nnodes", "1") if "num_processes" not in told else "1"
    if len(set(counts)) != 1 or not counts[0].isdecimal() or not nodes.isdecimal():
        return None
    return int(counts[0][:6]) * int(nodes[:6]) or None
