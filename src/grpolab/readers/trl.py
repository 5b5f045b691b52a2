"""Read a `GRPOConfig` of TRL into our settings, write ours as one, and say what is lost on the way.

`trl_fields.py` has the fields and their defaults by version; `trl_files.py` finds them in a file.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from typing import Any

from grpolab.bounded import parse_value
from grpolab.errors import RequestError
from grpolab.framework_names import TRL_NAMES
from grpolab.frameworks.trl_options import KERNEL_OPTIONS, LOSS, LOSS_TYPES
from grpolab.frameworks.trl_options import objective as objective
from grpolab.readers import adapters, selection
from grpolab.readers import trl_fields as fields
from grpolab.readers.given import Given, Options, refuse_wrong_counts, refuse_wrong_types, shorten
from grpolab.readers.trl_fields import CARRIED
from grpolab.readers.trl_files import read as read
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel

whole = "json.dumps(training_args.to_dict(), default=str), or the run's config.yaml of W&B"
COUNTS = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "num_iterations")
REUSE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
LEAST_GROUP = 2
SAMPLING = ("top_k", "top_p", "min_p")
SCALES = {True: "group", False: "none"}
SCHEDULES = {name: name for name in ("constant", "linear", "cosine")}
SCHEDULES |= {"constant_with_warmup": "constant", "cosine_with_min_lr": "cosine"}
_COEF = "entropy_coef_"
ADAPTIVE = {"target": "entropy_target", "step": f"{_COEF}delta", "least": f"{_COEF}min", "most": f"{_COEF}max"}
PLAIN_ADAMW = re.compile(r"adamw?(_(?!.*(bit|anyprecision))|$)")
# Defaults that are not worth a sentence: those that do nothing, are resolved from others, or are of the launcher.
QUIET = {"top_entropy_quantile": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
NEVER_A_DEFAULT = {"steps_per_generation", "generation_batch_size", "num_processes", "model_name_or_path", "max_steps"}


# The fields that a file gives, with defaults.


def resolve_options(given: Given) -> Options:
    """Return all fields, with the version's defaults; `num_processes` stays None if unknown. Raises RequestError."""
    version = _version(given)
    options = {name: _default(name, given) for name in CARRIED} | _carried(given) | {"version": version}
    if options["vllm_importance_sampling_cap"] is not None:  # its name until 1.9
        options["vllm_importance_sampling_clip_max"] = options["vllm_importance_sampling_cap"]
    own = given.options.get("generation_kwargs")  # which go before the fields
    if isinstance(own := parse_value(own) if isinstance(own, str) else own, dict):
        options |= {name: own[name] for name in (*SAMPLING, "temperature") if own.get(name) is not None}
    refuse_wrong_types("TRL", options, CARRIED)
    refuse_wrong_counts("TRL", options, COUNTS)
    options["num_generations"] = max(options["num_generations"], LEAST_GROUP)
    told = given.processes or options["num_processes"]
    micro, whole, steps = _micro_batch(options), options["generation_batch_size"], options["steps_per_generation"]
    if whole and steps and fields.is_resolved(given.options):  # which holds both, and thereby the processes
        told, whole = told or whole // (micro * steps), None
    options["num_processes"] = told if type(told) is int and told > 0 else None
    if whole is not None and steps is not None:
        raise RequestError("TRL: generation_batch_size and steps_per_generation say the same thing: set one")
    if whole is not None:
        refuse_wrong_counts("TRL", options, ["generation_batch_size"])
        for name, part in (("per_device_train_batch_size", micro), ("num_generations", options["num_generations"])):
            if whole % part:
                raise RequestError(f"TRL: {name}={part} must divide generation_batch_size={whole}")
        steps = max(whole // (micro * (options["num_processes"] or 1)), 1)
    steps = options["gradient_accumulation_steps"] if steps is None else steps
    if given.fork == "unsloth" and micro * steps * (options["num_processes"] or 1) % options["num_generations"]:
        options["per_device_train_batch_size"] = options["num_generations"]  # its own repair
    options["steps_per_generation"] = steps  # micro-batches of a generation batch, of one process
    refuse_wrong_counts("TRL", options, ["steps_per_generation"])
    return options


def _version(given: Given) -> str:
    """Return the version whose defaults apply: the stated one, else the newest that has all fields of the file."""
    first, last, _ = fields.find_fitting(given.options, given.fork)
    return fields.VERSIONS[fields.find_version(given.version) if given.version else max(first, last)]


def _default(name: str, given: Given) -> Any:
    """Return a field's default by its version, or by the trainer that builds on TRL's."""
    if given.fork == "ms-swift" and name == "gradient_accumulation_steps":  # until 16 sequences are in a step
        micro = _carried(given).get("per_device_train_batch_size", 1)
        return max(1, math.ceil(16 / (micro * (given.processes or 1))))
    if name == "learning_rate" and given.fork in ("ms-swift", "megatron-swift") and "use_peft" in given.options:
        return 1e-4 if given.options["use_peft"] else 1e-5
    if name == "top_k" and _version(given) in ("0.14", "0.15") and given.options.get("use_vllm") is True:
        return 0  # 50 is that of transformers' generation
    if given.fork == "axolotl" and name == "warmup_ratio" and "warmup_steps" in given.options:
        return 0.0
    if name in (own := fields.of_fork(given.fork, "defaults")):
        return own[name]
    return fields.get_default(name, fields.find_version(_version(given)), CARRIED[name])


def _carried(given: Given) -> Options:
    """Return the values that we can represent, in their fields' types; null means the default if TRL forbids null."""
    names = given.options.keys() & CARRIED.keys() - _fork_choices(given).keys()
    typed = {name: _typed(value, CARRIED[name]) for name, value in given.options.items() if name in names}
    return {name: value for name, value in typed.items() if value is not None or CARRIED[name] is None}


def _fork_choices(given: Given) -> Options:
    """Return the choices of the file that a trainer built on TRL's adds."""
    choices = fields.CHOICES.items() if given.fork else ()
    return {name: given.options[name] for name, has in choices if given.options.get(name, next(iter(has))) not in has}


def _typed(value: Any, default: Any) -> Any:
    """Convert a text to the number or bool that the field's type asks for, as TRL's parser does."""
    if isinstance(value, float) and value.is_integer() and type(default) is int:
        return int(value)
    if not isinstance(value, str) or value in ("None", "null") or (value == "none" and not isinstance(default, str)):
        return None if isinstance(value, str) else value
    if isinstance(default, bool | str):
        return {"true": True, "false": False}.get(value.lower(), value)
    try:
        return int(value) if value.isdecimal() else float(value)
    except ValueError:
        return value


def _micro_batch(options: Options) -> int:
    """Return the number of sequences in one process's micro-batch; TRL 0.14 counts prompts."""
    prompts = options["version"] == "0.14"
    return int(options["per_device_train_batch_size"] * (options["num_generations"] if prompts else 1))


def _count_processes(options: Options) -> int:
    """Return the number of processes; if unknown, the smallest with whole groups in each generation batch."""
    told, group = options["num_processes"], options["num_generations"]
    least = int(group // math.gcd(_micro_batch(options) * options["steps_per_generation"], group))
    return told if told and told % least == 0 else least


# Theirs as ours.


def convert_run(options: Options) -> Options:
    """Return the settings besides the loss, by our keys. A batch is used for `generate_every` optimiser steps."""
    mu, slices, window = (options[name] for name in REUSE)
    prompts = _count_processes(options) * _micro_batch(options) * slices // options["num_generations"]
    if window % (slices * mu) == 0:  # several generation batches, each counted mu times, in one step
        passes, minibatches, prompts = 1, 1, prompts * (window // (slices * mu))
    elif slices % window == 0:
        passes, minibatches = mu, slices // window
    else:
        passes, minibatches = max(mu * slices // window, 1), 1
    parts = options["multi_objective_aggregation"] == "normalize_then_sum"
    values: Options = {ours: options[theirs] for theirs, ours in TRL_NAMES.items()}
    values |= {name: options[name] for name in (*SAMPLING, "mask_truncated_completions")}
    values |= {
        "scale_rewards": "batch" if parts else SCALES.get(options["scale_rewards"], options["scale_rewards"]),
        "advantage_estimator": "batch_mean" if parts else "group_mean",
        "scale_reward_parts": "group" if parts else None,
        "lr_scheduler_type": _schedule(options),
        "min_lr_ratio": _floor(options),
        "warmup_steps": _warmup(options) or 0,
        "max_grad_norm": options["max_grad_norm"] or math.inf,
        "dtype": "bfloat16" if options["bf16"] or options["fp16"] else "float32",
        "warm_start.max_steps": 0,
        "prompts_per_step": prompts,
        "num_iterations": passes,
        "num_minibatches": minibatches,
        "micro_batch_size": _micro_batch(options) if options["top_entropy_quantile"] == 1 else None,
    }
    if options["use_adaptive_entropy"]:
        values["entropy_coef"] = options["entropy_coef"]  # its start, which may be 0
        values["adaptive_entropy"] = {ours: options[theirs] for ours, theirs in ADAPTIVE.items()}
    if options["max_steps"] > 0:
        values |= {"rollout_steps": None, "max_optimizer_steps": options["max_steps"]}
    if options["model_name_or_path"]:
        values |= {"model": "pretrained", "model.path": options["model_name_or_path"]}
    return selection.settle(values) | _adapters(options)[0]


def _adapters(options: Options) -> tuple[Options, list[str]]:
    """Return our setting for adapters, and what is to be said of them; a list of one is a word for TRL."""
    if options["use_peft"] is not True:
        return {}, []
    targets, dropout = options["lora_target_modules"], options["lora_dropout"]
    targets = targets[0] if isinstance(targets, list) and len(targets) == 1 else targets
    values, said = adapters.translate("lora_target_modules", options["lora_r"], options["lora_alpha"], targets)
    return values, [*said, *([f"lora_dropout={dropout:g}: adapters have no dropout here"] if dropout else [])]


def _schedule(options: Options) -> str:
    named = str(options["lr_scheduler_type"])
    return SCHEDULES.get(named, "cosine" if "cosine" in named else "linear")


def _warmup(options: Options) -> int | None:
    """Return the warm-up's steps: given as steps, else as a share; None for a share of an unknown number of steps."""
    steps, ratio = options["warmup_steps"], options["warmup_ratio"]
    if 0 < steps < 1:  # a share, since transformers 5
        steps, ratio = 0, steps
    if steps or not ratio:
        return int(steps)
    return math.ceil(options["max_steps"] * ratio) if options["max_steps"] > 0 else None


def _floor(options: Options) -> float | None:
    """Return the schedule's last rate as a share of its peak; None if it has no floor, or an impossible one."""
    given, rate = options["lr_scheduler_kwargs"], options["learning_rate"]
    try:
        given = parse_value(given) if isinstance(given, str) else given  # as a flag has it
        if "with_min_lr" not in str(options["lr_scheduler_type"]) or not isinstance(given, dict):
            return None
        units = {"min_lr_rate": 1.0, "min_lr": rate or math.nan}
        shares = [float(given[name]) / unit for name, unit in units.items() if given.get(name) is not None]
    except (TypeError, ValueError):
        return None
    return shares[0] if len(shares) == 1 and 0 <= shares[0] <= 1 else None


# What is said.


def explain_unread(given: Given, options: Options) -> Iterator[str]:
    """Yield a sentence for each field whose value the file does not determine, and for those that TRL does not have."""
    for name, expression in given.open.items():
        if name in CARRIED:
            stands = f"the default {_default(name, given)} stands for it"
            yield f"{name} ({shorten(expression)}): the file alone does not say its value; {stands}"
    for name, choice in _fork_choices(given).items():
        yield f"{name}={choice}: {given.fork} has it and TRL has not; the default {_default(name, given)} stands for it"
    size = options["per_device_train_batch_size"]
    if size != (stood := _carried(given).get("per_device_train_batch_size", size)):
        yield f"per_device_train_batch_size={stood}: num_generations does not divide the batch, so unsloth takes {size}"
    if given.options.get("num_generations") == 1:
        yield (
            "num_generations=1: TRL refuses a group of one since 0.15, and in 0.14 its standard deviation, and with it"
            f" the loss, is no number; {LEAST_GROUP} stands for it"
        )
    for name, value in given.options.items():
        if lost := fields.find_change(name, value, given.fork):
            yield f"{name}={shorten(value)}: {lost}"
    known = fields.list_known(given.fork)
    others = [name for name in {**given.options, **given.open} if kind_of(name, given) == "unknown"]
    close = {name: near for name in others if (near := difflib.get_close_matches(name, known, n=2, cutoff=0.8))}
    for name, near in close.items():
        text = shorten(given.open.get(name) or given.options.get(name))
        yield f"{name}={text}: no version's GRPOConfig has it (did you mean {' or '.join(near)}?); its effect is lost"
    if quiet := [name for name in others if name not in close]:
        yield f"{', '.join(quiet)}: no fields of a GRPOConfig; what they do is lost"


def kind_of(name: str, given: Given) -> str:
    """Return what becomes of a key of the file: "carried", "not carried", "no effect" or "unknown".

    In a config that the run wrote itself, what is no field is of the model's config: it has no effect.
    """
    name = name.partition(".")[0]  # of lr_scheduler_kwargs.min_lr
    if name not in fields.list_known(given.fork):
        return "no effect" if fields.is_resolved(given.options) else "unknown"
    value = given.options.get(name)
    if name not in CARRIED:
        return "not carried" if fields.find_change(name, value, given.fork) else "no effect"
    if name in given.open or name in _fork_choices(given):
        return "not carried"
    if name == "num_train_epochs":
        return "no effect" if _carried(given).get("max_steps", -1) > 0 else "not carried"
    if name.startswith("lora_"):
        values, said = _adapters(resolve_options(given))
        is_lost = not values or any(sentence.startswith(f"{name}=") for sentence in said)
        return "no effect" if not (values or said) else "not carried" if is_lost else "carried"
    if name in fields.NOT_CARRIED:
        return "not carried" if _is_lost(name, _carried(given).get(name)) else "no effect"
    return "carried"


def _is_lost(name: str, value: Any) -> bool:
    return value not in (CARRIED[name], None) and not (name == "optim" and PLAIN_ADAMW.match(str(value)))


def explain_defaults(given: Given, options: Options) -> Iterator[str]:
    """Yield sentences about the defaults: their version, those that a user may change, those that were taken."""
    first, last, why = fields.find_fitting(given.options, given.fork)
    version, own = options["version"], fields.of_fork(given.fork, "defaults")
    fits = f"{fields.VERSIONS[first]} to {fields.VERSIONS[last]}"
    if given.version:
        told = fields.find_version(version)
        yield f"those of TRL {version}, as it was told" + (
            f"; {fits} fit the file" if not first <= told <= last else ""
        )
        first = last = told
    elif first > last:
        yield f"those of TRL {version}, though no version fits {', '.join(why)}"
    elif last < len(fields.VERSIONS) - 1:
        yield f"those of TRL {version}, the newest that fits {', '.join(why)} ({fits} do); --version says another"
    else:
        yield f"those of TRL {version}, the newest; {fits} fit the file, --version says another"
    if script := [f"{name}={options[name]}" for name in given.overridable if name in CARRIED]:
        yield f"{', '.join(script)}: those of the script, which its command line or its caller may change"
    of_fork, taken = list[str](), list[str]()
    for name in CARRIED.keys() - _carried(given).keys() - NEVER_A_DEFAULT:
        value = _default(name, given)
        others = list(fields.list_changes(name, first, last)) if name not in own and value is not None else []
        if name in own:
            of_fork.append(f"{name}={value}")
        elif _acts(name, options) and (others or (value != QUIET.get(name) and value not in (None, False, 0))):
            taken.append(f"{name}={value}" + (f" ({', '.join(others)})" if others else ""))
    if of_fork:
        yield f"{', '.join(sorted(of_fork))}: those of {given.fork}, which may change with its version"
    if taken:
        yield ", ".join(sorted(taken, key=lambda each: (" (" not in each, each)))


def _acts(name: str, options: Options) -> bool:
    if name.startswith(("vllm_", "lora_")):
        return bool(options["use_vllm" if name.startswith("vllm_") else "use_peft"])
    if name.startswith(("sapo_", "vespo_")):
        return name.startswith(f"{options['loss_type']}_")
    return not name.startswith("entropy_") or bool(options["use_adaptive_entropy"])


def explain_left_out(options: Options) -> Iterator[str]:
    """Yield a sentence for each field of a `GRPOConfig` that has no counterpart here."""
    mu, slices, window = (options[name] for name in REUSE)
    if window % (slices * mu) and slices % window and (window % slices or (mu * slices) % window):
        yield (
            f"gradient_accumulation_steps={window} cuts {mu} passes of steps_per_generation={slices} unevenly: here"
            " every optimiser step is on one batch"
        )
    if options["num_processes"] != (count := _count_processes(options)):
        told = f"num_processes={options['num_processes']}" if options["num_processes"] else "the number of processes"
        why = "TRL refuses it with this batch" if options["num_processes"] else "it is not in the file"
        yield f"{told}: {why}; prompts_per_step is that of {count}, the least that fits: --processes says another"
    for name, says in fields.NOT_CARRIED.items():
        if _is_lost(name, options[name]):
            yield f"{name}={options[name]}: {says}"
    yield from _adapters(options)[1]
    if options["version"] in ("0.14", "0.15") and options["temperature"] != 1:
        yield f"temperature={options['temperature']:g}: TRL {options['version']} trains on log-probs without it"
    if options["top_entropy_quantile"] != 1:
        yield "top_entropy_quantile: TRL compares the tokens of every process's micro-batch, here those of a minibatch"
    if _warmup(options) is None:
        ratio = options["warmup_ratio"] or options["warmup_steps"]
        yield f"warmup_ratio={ratio:g}: it is a share of a length that is not known: give warmup_steps"
    if options["max_steps"] <= 0:
        yield f"num_train_epochs={options['num_train_epochs']:g}: set rollout_steps, the length of a run here"
    schedule, given = str(options["lr_scheduler_type"]), shorten(options["lr_scheduler_kwargs"])
    if schedule not in SCHEDULES:
        more = f" {given}" if options["lr_scheduler_kwargs"] else ""
        stands = f"here it is one of constant, linear, cosine; {_schedule(options)} stands for it"
        yield f"lr_scheduler_type={schedule}{more}: {stands}"
    elif schedule == "cosine_with_min_lr" and _floor(options) is None:
        yield f"lr_scheduler_kwargs={given}: it needs min_lr_rate, a share, or min_lr; the schedule ends at 0"
    elif schedule != "cosine_with_min_lr" and options["lr_scheduler_kwargs"]:
        yield f"lr_scheduler_kwargs={given}: the schedule has no options here"


# Ours as theirs.


def propose_options(settings: RunSettings) -> Iterator[Options]:
    """Yield candidate options for a run: one for each loss of its kernel, first the one with its aggregation."""
    ours = (settings.kernel, settings.aggregation)
    names = [name for name, (kernel, _) in LOSS_TYPES.items() if kernel == settings.kernel]
    for loss_type in sorted(names, key=lambda name: LOSS_TYPES[name] != ours):
        yield {name: value for name, value in _write(settings, loss_type).items() if value != CARRIED[name]}


def _write(settings: RunSettings, loss_type: str) -> Options:
    run, kernel = resolve_run(settings), settings.kernel
    given = (run.kernel_options or {}).get(kernel, {})
    high = (run.epsilon_high or 0.0) + (1.0 if kernel == "cispo" and run.framework != "trl" else 0.0)
    epsilon = LOSS["epsilon"] if kernel == "cispo" else run.epsilon
    window, slices = run.minibatch_size // run.forward_size, run.batch_size // run.forward_size
    has_floor = run.lr_scheduler_type == "cosine" and run.min_lr_ratio is not None
    written: Options = {
        "loss_type": loss_type,
        "importance_sampling_level": "token" if run.importance_sampling_level == "token" else "sequence",
        "epsilon": epsilon,
        "epsilon_high": None if high == epsilon else high,
        "delta": run.delta or run.dual_clip,
        "beta": run.beta,
        "use_bias_correction_kl": not run.beta or run.kl_gradient == "importance_weighted",
        "top_entropy_quantile": 1.0 if run.top_entropy_quantile is None else run.top_entropy_quantile,
        "entropy_coef": run.entropy_coef or 0.0,
        "off_policy_mask_threshold": run.off_policy_mask_threshold,
        **{theirs: given[ours] for ours, theirs in KERNEL_OPTIONS.get(kernel, {}).items()},
        **{theirs: getattr(run, ours) for theirs, ours in TRL_NAMES.items()},
        "top_k": run.top_k,
        "top_p": run.top_p or 1.0,
        "min_p": run.min_p,
        "mask_truncated_completions": bool(run.mask_truncated_completions),
        "scale_rewards": run.scale_rewards,
        "lr_scheduler_type": "cosine_with_min_lr" if has_floor else run.lr_scheduler_type,
        "lr_scheduler_kwargs": {"min_lr_rate": run.min_lr_ratio} if has_floor else None,
        "max_grad_norm": 0.0 if run.max_grad_norm == math.inf else run.max_grad_norm,
        "bf16": run.dtype == "bfloat16",
        "per_device_train_batch_size": run.forward_size,
        "gradient_accumulation_steps": window,
        "steps_per_generation": None if slices == window else slices,
        "num_iterations": run.num_iterations,
        "model_name_or_path": run.model.path if isinstance(run.model, PretrainedModel) else None,
    }
    if run.scale_reward_parts:
        written |= {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "group"}
    if (rule := run.adaptive_entropy) is not None:
        written |= {"use_adaptive_entropy": True, **{theirs: getattr(rule, ours) for ours, theirs in ADAPTIVE.items()}}
    if run.lora:
        written |= {"use_peft": True, "lora_r": run.lora.rank, "lora_alpha": run.lora.alpha, "lora_dropout": 0.0}
        written["lora_target_modules"] = adapters.as_trl(run.lora.targets)
    if (weight := run.sampler_correction) is not None:
        written |= {
            "use_vllm": True,
            "vllm_importance_sampling_mode": f"{weight.level}_{weight.mode}",
            "vllm_importance_sampling_clip_min": weight.low or None,
            "vllm_importance_sampling_clip_max": None if weight.high == math.inf else weight.high,
        }
    return written


def format_options(options: Options) -> str:
    """Return `GRPOConfig(...)` with one keyword a line, and `ModelConfig(...)` if adapters are trained."""
    infinite, of_model = "float('inf')", ("model_name_or_path", "use_peft", "lora_")
    lines = {name: f"    {name}={infinite if value == math.inf else repr(value)}," for name, value in options.items()}
    first = [line for name, line in lines.items() if not name.startswith(of_model)]
    rest = [line for name, line in lines.items() if name.startswith(of_model)]
    model = ["ModelConfig(  # get_peft_config makes the trainer's peft_config of it", *rest, ")"]
    return "\n".join(["GRPOConfig(", *first, ")", *(model if "use_peft" in options else [])])


def explain_own_way(settings: RunSettings) -> Iterator[str]:
    """Yield a sentence for each thing that TRL computes differently with the same options."""
    if settings.entropy_coef:
        yield f"entropy_coef={settings.entropy_coef:g}: TRL averages the entropy over the tokens of each micro-batch"
    if settings.kernel == "vespo" and settings.sampler_correction is not None:
        yield "vespo multiplies the sampler's weight into the ratio of the sequence"
