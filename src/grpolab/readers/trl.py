"""What a `GRPOConfig` of TRL is here, read and written, and what is said of a file's.

The fields and their values are in `trl_fields.py`; those of transformers' TrainingArguments, which it inherits and
which change nothing here, are known from transformers itself.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

from grpolab.errors import near_matches
from grpolab.framework_names import TRL_NAMES
from grpolab.frameworks.trl_options import KERNEL_OPTIONS, LOSS, LOSS_TYPES
from grpolab.frameworks.trl_options import objective as objective
from grpolab.readers import trl_versions as versions
from grpolab.readers.given import Given, Options, shortened
from grpolab.readers.trl_fields import (
    CARRIED,
    LEAST_GROUP,
    PASSED_OVER,
    choices_of_fork,
    default,
    micro_batch,
    options,
    processes,
    taken,
    version_of,
)
from grpolab.readers.trl_files import read as read
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel

# What else a key may be that changes the training, by its name: a fork's, a misspelt one.
LOUD = re.compile(
    r"loss|clip|(^|_)kl(_|$)|adv|beta|epsilon|entropy|ratio|temperature|(^|_)top_|(^|_)lr(_|$)|learning|optim|warmup|decay"
    r"|grad_norm|sampl|generations|rollout|mask|filter|steps_per|batch_size|reward_(weight|scal|clip)|scale_|ref_model"
)
REUSE = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
SCALES = {True: "group", False: "none"}
SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
}
ADAPTIVE = {
    "target": "entropy_target", "step": "entropy_coef_delta", "least": "entropy_coef_min", "most": "entropy_coef_max",
}  # fmt: skip


def loss(options: Options) -> Options:
    """What `frameworks/trl.py` takes."""
    return {name: options[name] for name in LOSS}


def run(options: Options) -> Options:
    """What is no loss, by our keys.

    How often a batch is learnt from is the part of `generate_every` that is optimiser steps.
    """
    mu, slices, window = (options[name] for name in REUSE)
    prompts = processes(options) * micro_batch(options) * slices // options["num_generations"]
    if window % (slices * mu) == 0:  # several generation batches, each counted mu times, in one step
        passes, minibatches, prompts = 1, 1, prompts * (window // (slices * mu))
    elif slices % window == 0:
        passes, minibatches = mu, slices // window
    else:
        passes, minibatches = max(mu * slices // window, 1), 1
    parts = options["multi_objective_aggregation"] == "normalize_then_sum"
    scale = options["scale_rewards"]
    values: Options = {ours: options[theirs] for theirs, ours in TRL_NAMES.items()}
    values |= {
        "scale_rewards": "batch" if parts else SCALES.get(scale, scale),
        "advantage_estimator": "batch_mean" if parts else "group_mean",
        "scale_reward_parts": "group" if parts else None,
        "lr_scheduler_type": SCHEDULES.get(str(options["lr_scheduler_type"]), _nearest(options)),
        "min_lr_ratio": _floor(options),
        "warmup_steps": warmup(options) or 0,
        "max_grad_norm": options["max_grad_norm"] or math.inf,
        "dtype": "bfloat16" if options["bf16"] or options["fp16"] else "float32",
        "warm_start.max_steps": 0,
        "prompts_per_step": prompts,
        "num_iterations": passes,
        "num_minibatches": minibatches,
        "micro_batch_size": micro_batch(options) if options["top_entropy_quantile"] == 1 else None,
    }
    if options["use_adaptive_entropy"]:
        values["entropy_coef"] = options["entropy_coef"]  # its start, which may be 0
        values["adaptive_entropy"] = {ours: options[theirs] for ours, theirs in ADAPTIVE.items()}
    if options["max_steps"] > 0:
        values |= {"rollout_steps": None, "max_optimizer_steps": options["max_steps"]}
    if options["model_name_or_path"]:
        values |= {"model": "pretrained", "model.path": options["model_name_or_path"]}
    return values


def warmup(options: Options) -> int | None:
    """Steps of the warm-up; None where it is a share of a length that is not known. Steps count before a share."""
    steps, ratio = options["warmup_steps"], options["warmup_ratio"]
    if 0 < steps < 1:  # a share, since transformers 5
        steps, ratio = 0, steps
    if steps or not ratio:
        return int(steps)
    return math.ceil(options["max_steps"] * ratio) if options["max_steps"] > 0 else None


@functools.cache
def _training_arguments() -> set[str]:
    """Return the fields of transformers' TrainingArguments, from its source: importing it would import torch."""
    package = importlib.util.find_spec("transformers")
    folders = package.submodule_search_locations if package and package.submodule_search_locations else []
    trees = [ast.parse((Path(folder) / "training_args.py").read_text("utf-8")) for folder in folders]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = [each for node in classes if node.name == "TrainingArguments" for each in node.body]
    return {each.target.id for each in fields if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}


def _floor(options: Options) -> float | None:
    """Where the schedule ends, as a share of its peak; None where it has no floor, or one that transformers refuses."""
    given = options["lr_scheduler_kwargs"]
    try:
        given = json.loads(given) if isinstance(given, str) else given  # as a flag has it
        if "with_min_lr" not in str(options["lr_scheduler_type"]) or not isinstance(given, dict):
            return None
        floors = [float(given[name]) for name in ("min_lr_rate", "min_lr") if given.get(name) is not None]
    except (TypeError, ValueError, RecursionError):
        return None
    if len(floors) == 1 and given.get("min_lr") is not None:
        floors = [floors[0] / options["learning_rate"] if options["learning_rate"] else math.inf]
    return floors[0] if len(floors) == 1 and 0 <= floors[0] <= 1 else None


def _nearest(options: Options) -> str:
    return "cosine" if "cosine" in str(options["lr_scheduler_type"]) else "linear"


def unread(given: Given) -> Iterator[str]:
    """A sentence for each key whose value stands nowhere in the file, and for those that are no fields of TRL's."""
    for name, expression in given.open.items():
        if name in CARRIED:
            stands = f"the default {default(name, given)} stands for it"
            yield f"{name} ({shortened(expression)}): the file alone does not say its value; {stands}"
    for name, choice in choices_of_fork(given).items():
        yield f"{name}={choice}: {given.fork} has it and TRL has not; the default {default(name, given)} stands for it"
    size = options(given)["per_device_train_batch_size"]
    if size != (stood := taken(given).get("per_device_train_batch_size", size)):
        yield f"per_device_train_batch_size={stood}: num_generations does not divide the batch, so unsloth takes {size}"
    if given.options.get("num_generations") == 1:
        yield (
            "num_generations=1: TRL refuses a group of one since 0.15, and in 0.14 its standard deviation, and with it"
            f" the loss, is no number; {LEAST_GROUP} stands for it"
        )
    fields = {*CARRIED, *PASSED_OVER, *versions.SINCE, *versions.GONE}
    if {*given.options, *given.open} - fields:
        fields |= _training_arguments()
    others = [name for name in {**given.options, **given.open} if name not in fields]
    loud = [name for name in others if LOUD.search(name) or difflib.get_close_matches(name, CARRIED, cutoff=0.85)]
    for name in loud:
        text = shortened(given.open.get(name) or given.options.get(name))
        yield f"{name}={text}: no version's GRPOConfig has it{near_matches(name, fields)}; its effect is lost"
    if quiet := [name for name in others if name not in loud]:
        yield f"{', '.join(quiet)}: no fields of a GRPOConfig, and nothing here"
    told = versions.order(version_of(given))
    for name in {} if given.fork else given.options:
        if name in CARRIED and (why := versions.no_field(name, told)):
            yield f"{name}={given.options[name]} is carried, but {why}, and not in {versions.VERSIONS[told]}"


def defaults(given: Given) -> Iterator[str]:
    """Of which version they are and why; those that other versions that fit have otherwise; the rest."""
    first, last, why = versions.fitting(given.options, given.fork)
    version = version_of(given)
    fits = f"{versions.VERSIONS[first]} to {versions.VERSIONS[last]}"
    if given.version:
        first = last = versions.order(version)
        yield f"those of TRL {version}, as it was told"
    elif first > last:
        yield f"those of TRL {version}, though no version has all of {', '.join(why)}"
    elif last < len(versions.VERSIONS) - 1:
        yield f"those of TRL {version}, the newest that fits {', '.join(why)} ({fits} do); --version says another"
    else:
        yield f"those of TRL {version}, the newest; {fits} fit the file, --version says another"
    resolved, given_names = options(given), taken(given).keys()
    own, differing, same = [], [], []
    for name in CARRIED:
        if name in given_names or name in NEVER_A_DEFAULT or not _acts(name, resolved):
            continue
        value = default(name, given)
        if name in versions.FORKS.get(given.fork or "", {}):
            own.append(f"{name}={value}")
        elif value is not None and (others := list(versions.changes(name, first, last))):
            differing.append(f"{name}={value} ({', '.join(others)})")
        elif value != OFF.get(name) and (value not in (None, False, 0) or name in versions.DEFAULTS):
            same.append(f"{name}={value}")
    if script := [f"{name}={resolved[name]}" for name in given.overridable if name in CARRIED]:
        yield f"{', '.join(script)}: those of the script, which its command line or its caller may change"
    if own:
        yield f"{', '.join(own)}: those of {given.fork}, which may change with its version"
    if differing:
        yield ", ".join(differing)
    if same:
        yield ", ".join(same)


def _acts(name: str, options: Options) -> bool:
    """Whether an option belongs to a part that is switched on."""
    if name.startswith("vllm_"):
        return bool(options["use_vllm"])
    if name.startswith(("sapo_", "vespo_")):
        return name.startswith(f"{options['loss_type']}_")
    return not name.startswith("entropy_") or bool(options["use_adaptive_entropy"])


OFF = {"top_entropy_quantile": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
# Resolved from others, or of the launcher.
NEVER_A_DEFAULT = {"steps_per_generation", "generation_batch_size", "num_processes", "model_name_or_path", "max_steps"}


def left_out(options: Options) -> Iterator[str]:
    """What of a `GRPOConfig` has no counterpart here."""
    mu, slices, window = (options[name] for name in REUSE)
    if window % (slices * mu) and slices % window and (window % slices or (mu * slices) % window):
        yield (
            f"gradient_accumulation_steps={window} cuts {mu} passes of steps_per_generation={slices} unevenly: here"
            " every optimiser step is on one batch"
        )
    if options["num_processes"] != (count := processes(options)):
        told = f"num_processes={options['num_processes']}" if options["num_processes"] else "the number of processes"
        why = "TRL refuses it with this batch" if options["num_processes"] else "it is not in the file"
        yield f"{told}: {why}; prompts_per_step is that of {count}, the least that fits: --processes says another"
    for name, says in NOT_CARRIED.items():
        if options[name] not in (CARRIED[name], None) and not (name == "optim" and PLAIN_ADAMW.match(options[name])):
            yield f"{name}={options[name]}: {says}"
    if options["version"] in ("0.14", "0.15") and options["temperature"] != 1:
        yield f"temperature={options['temperature']:g}: TRL {options['version']} trains on log-probs without it"
    if options["top_entropy_quantile"] != 1:
        yield "top_entropy_quantile: TRL compares the tokens of every process's micro-batch, here those of a minibatch"
    if warmup(options) is None:
        ratio = options["warmup_ratio"] or options["warmup_steps"]
        yield f"warmup_ratio={ratio:g}: it is a share of a length that is not known: give warmup_steps"
    if options["max_steps"] <= 0:
        yield f"num_train_epochs={options['num_train_epochs']:g}: set rollout_steps, the length of a run here"
    if str(options["lr_scheduler_type"]) not in SCHEDULES:
        yield (
            f"lr_scheduler_type={options['lr_scheduler_type']} {options['lr_scheduler_kwargs'] or ''}".strip()
            + f": here it is one of constant, linear, cosine; {_nearest(options)} stands for it"
        )
    elif options["lr_scheduler_type"] == "cosine_with_min_lr":
        if _floor(options) is None:
            given = shortened(options["lr_scheduler_kwargs"])
            yield f"lr_scheduler_kwargs={given}: it needs min_lr_rate, a share, or min_lr; the schedule ends at 0"
    elif options["lr_scheduler_kwargs"]:
        yield f"lr_scheduler_kwargs={shortened(options['lr_scheduler_kwargs'])}: the schedule has no options here"


PLAIN_ADAMW = re.compile(r"adamw_(?!.*(bit|anyprecision))")
NOT_CARRIED = {
    "use_vllm": "there is no vLLM here; the weight for its log-probs is kept",
    "mask_truncated_completions": "truncated completions count here",
    "reward_weights": "give reward.weights, by the names of the reward's parts",
    "sync_ref_model": "the reference of the KL is the warm start, always",
    "top_p": "sampling is never truncated here",
    "top_k": "sampling is never truncated here",
    "min_p": "sampling is never truncated here",
    "repetition_penalty": "sampling is never penalised here",
    "router_aux_loss_coef": "there is no auxiliary loss of experts here",
    "use_peft": "all weights are trained here",
    "fp16": "half precision here is bfloat16",
    "optim": "the optimiser is AdamW here",
    "max_prompt_length": "prompts are never cut here",
}


def candidates(settings: RunSettings) -> Iterator[Options]:
    """Yield options that may say what a run does, one for each loss of its kernel, that of its average first."""
    ours = (settings.kernel, settings.aggregation)
    names = [name for name, (kernel, _) in LOSS_TYPES.items() if kernel == settings.kernel]
    for loss_type in sorted(names, key=lambda name: LOSS_TYPES[name] != ours):
        yield {name: value for name, value in _written(settings, loss_type).items() if value != CARRIED[name]}


def _written(settings: RunSettings, loss_type: str) -> Options:
    run, kernel = resolve_run(settings), settings.kernel
    given = (run.kernel_options or {}).get(kernel, {})
    absolute = 1.0 if kernel == "cispo" and run.framework != "trl" else 0.0
    floor = run.lr_scheduler_type == "cosine" and run.min_lr_ratio is not None
    guess: Options = {
        "loss_type": loss_type,
        "importance_sampling_level": "token" if run.importance_sampling_level == "token" else "sequence",
        "epsilon": LOSS["epsilon"] if kernel == "cispo" else run.epsilon,
        "epsilon_high": absolute + (run.epsilon_high or 0.0),
        "delta": run.delta or run.dual_clip,
        "beta": run.beta,
        "use_bias_correction_kl": not run.beta or run.kl_gradient == "importance_weighted",
        "top_entropy_quantile": 1.0 if run.top_entropy_quantile is None else run.top_entropy_quantile,
        "entropy_coef": run.entropy_coef or 0.0,
        "off_policy_mask_threshold": run.off_policy_mask_threshold,
        **{theirs: given[ours] for ours, theirs in KERNEL_OPTIONS.get(kernel, {}).items()},
        **{theirs: getattr(run, ours) for theirs, ours in TRL_NAMES.items()},
        "scale_rewards": run.scale_rewards,
        "lr_scheduler_type": "cosine_with_min_lr" if floor else run.lr_scheduler_type,
        "lr_scheduler_kwargs": {"min_lr_rate": run.min_lr_ratio} if floor else None,
        "max_grad_norm": 0.0 if run.max_grad_norm == math.inf else run.max_grad_norm,
        "bf16": run.dtype == "bfloat16",
        "per_device_train_batch_size": run.forward_size,
        "gradient_accumulation_steps": run.minibatch_size // run.forward_size,
        "steps_per_generation": run.batch_size // run.forward_size,
        "num_iterations": run.num_iterations,
    }
    if guess["epsilon_high"] == guess["epsilon"]:
        guess["epsilon_high"] = None
    if guess["steps_per_generation"] == guess["gradient_accumulation_steps"]:
        guess["steps_per_generation"] = None
    if run.scale_reward_parts:
        guess |= {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "group"}
    if (rule := run.adaptive_entropy) is not None:
        guess |= {"use_adaptive_entropy": True, **{theirs: getattr(rule, ours) for ours, theirs in ADAPTIVE.items()}}
    if (weight := run.sampler_correction) is not None:
        guess |= {
            "use_vllm": True,
            "vllm_importance_sampling_mode": f"{weight.level}_{weight.mode}",
            "vllm_importance_sampling_clip_min": weight.low or None,
            "vllm_importance_sampling_clip_max": None if weight.high == math.inf else weight.high,
        }
    if isinstance(run.model, PretrainedModel):
        guess["model_name_or_path"] = run.model.path
    return guess


def shown(options: Options) -> str:
    """`GRPOConfig(...)`, a line for each keyword; the model is named beside it."""
    said = {name: value for name, value in options.items() if name != "model_name_or_path"}
    infinite = f"float({str(math.inf)!r})"
    lines = [f"    {name}={infinite if value == math.inf else repr(value)}," for name, value in said.items()]
    return "\n".join(["GRPOConfig(", *lines, ")"])


def own_way(settings: RunSettings) -> Iterator[str]:
    """Where TRL computes something else by the same options."""
    if settings.entropy_coef:
        yield f"entropy_coef={settings.entropy_coef:g}: TRL averages the entropy over the tokens of each micro-batch"
    if settings.kernel == "vespo" and settings.sampler_correction is not None:
        yield "vespo multiplies the sampler's weight into the ratio of the sequence"
