"""Read the overrides of `verl.trainer.main_ppo` (0.9.1, 2026-09-20) into our settings, write ours, say what is lost.

Of the hundreds of keys in verl/trainer/config/, those of the actor, the algorithm and the batch sizes decide what is
learnt; `verl_keys.py` names them, `verl.yaml` has all. A key that verl does not have is reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpolab.equalities import rewrite
from grpolab.errors import RequestError, near_matches
from grpolab.framework_names import VERL_NAMES
from grpolab.frameworks import verl_options
from grpolab.frameworks.verl_options import AGGREGATION, BYPASS, KERNEL, KERNEL_OPTIONS, KL, LOSS
from grpolab.identity import dotted
from grpolab.readers import adapters, selection, verl_selection
from grpolab.readers import verl_keys as keys
from grpolab.readers.given import Given, Options, refuse_wrong_counts, refuse_wrong_types, shorten
from grpolab.readers.verl_files import EASY_DEFAULTS, EASY_WORDS, rename_keys
from grpolab.readers.verl_files import read as read
from grpolab.readers.verl_keys import ACTOR, ALGORITHM, CARRIED, CORRECTION, ESTIMATORS, FILTER, RENAMED, ROLLOUT
from grpolab.settings.objective import Objective
from grpolab.settings.resolved import resolve_run
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel

whole = "the config that verl prints first, .hydra/config.yaml, or the run's config.yaml of W&B"
MODE, MINI, PROMPTS, GROUP = keys.MODE, keys.MINI, keys.PROMPTS, keys.GROUP
WARMUP, ESTIMATOR, AVERAGE = keys.WARMUP, keys.ESTIMATOR, keys.AVERAGE
LOW, HIGH, BOTH = f"{ACTOR}clip_ratio_low", f"{ACTOR}clip_ratio_high", f"{ACTOR}clip_ratio"
SAYING_NULL = (LOW, HIGH, keys.TARGETS)
CLIP_GRAD, BETAS, SCALE = f"{ACTOR}optim.clip_grad", f"{ACTOR}optim.betas", f"{ACTOR}loss_scale_factor"
FLOOR, FLOOR_RATE = f"{ACTOR}optim.min_lr_ratio", f"{ACTOR}optim.min_lr"  # megatron has the second, a rate
WARMUP_SHARE = f"{ACTOR}optim.lr_warmup_steps_ratio"
NEVER = 1e9  # above e^20, the largest ratio that verl knows
# Key -> the values that we can represent, and the one that replaces any other.
CHOICES = {
    MODE: (KERNEL, "vanilla"),
    keys.KL_TYPE: ([name + straight for name in KL for straight in ("", "+")], "low_var_kl"),
    AVERAGE: (AGGREGATION, "token-mean"),
    keys.SCHEDULE: (("constant", "cosine"), "constant"),
    ESTIMATOR: (ESTIMATORS, "grpo"),
}


# The keys that a file sets, with defaults.


def resolve_options(given: Given) -> Options:
    """Return all keys that matter, dotted, with defaults. Raises RequestError for values that verl itself refuses."""
    named, early = _named(given), _version(given) < keys.FIRST_OF_TODAY
    defaults = CARRIED | (keys.EARLY if early else {}) | EASY_DEFAULTS.get(given.fork or "", {})
    options = defaults | {key: value for key, value in named.items() if key in CARRIED}
    for name in [name for name in keys.FORKS_GROUP if name in named]:
        refuse_wrong_counts("verl", named, [name])
        options[GROUP] = named[name] * (options[GROUP] if isinstance(options[GROUP], int) else 1)
    options |= {side: options[BOTH] for side in (LOW, HIGH) if options[side] is None}
    refuse_wrong_types("verl", options, CARRIED)
    if options[keys.TOTAL_STEPS] is not None:
        refuse_wrong_counts("verl", options, [keys.TOTAL_STEPS])
    for name, (known, default) in CHOICES.items():
        if options[name] not in known and name != ESTIMATOR and (name, options[name]) != (MODE, "bypass_mode"):
            options[name] = default
    if early and not {LOW, HIGH} & named.keys():  # the only range that there was
        options |= {LOW: options[BOTH], HIGH: options[BOTH]}
    if early and f"{ACTOR}clip_ratio_c" not in named:  # there was no dual clip
        options[f"{ACTOR}clip_ratio_c"] = None
    if early and keys.KL_REWARD not in named:  # one of the two, always
        options[keys.KL_REWARD] = not options[keys.KL_LOSS]
    if CLIP_GRAD not in named:
        options[CLIP_GRAD] = named.get(f"{ACTOR}grad_clip", options[CLIP_GRAD])
    if options[WARMUP] < 0 and options[keys.TOTAL_STEPS]:
        options[WARMUP] = int(options[WARMUP_SHARE] * options[keys.TOTAL_STEPS])
    is_asynchronous = named.get(PROMPTS, 0) == 0 and any(name.startswith("async_training.") for name in named)
    if options[PROMPTS] == 0 or is_asynchronous:  # a step has no batch of its own, and takes some minibatches
        if options[keys.STALENESS] is None:
            options[keys.STALENESS] = 0.1
        if f"{CORRECTION}bypass_mode" not in named:  # as in its fully_async_ppo_trainer.yaml
            options[f"{CORRECTION}bypass_mode"] = True
        refuse_wrong_counts("verl", options, (MINI, keys.BATCHES))
        options[PROMPTS] = options[MINI] * options[keys.BATCHES]
    refuse_wrong_counts("verl", options, (PROMPTS, GROUP, MINI, keys.EPOCHS))
    options[MINI] = min(options[MINI], options[PROMPTS])
    if options[PROMPTS] % options[MINI]:
        raise RequestError(f"verl: {MINI}={options[MINI]} must divide {PROMPTS}={options[PROMPTS]}, both in prompts")
    if options[ESTIMATOR] == "grpo_passk" and options[GROUP] == 1:
        raise RequestError(f"verl: {ESTIMATOR}=grpo_passk needs two of a group: {GROUP}=1 is not allowed")
    if not isinstance(options[BETAS], list | tuple) or len(options[BETAS]) != 2:
        raise RequestError(f"verl: {BETAS}={options[BETAS]} is not allowed: it must be a list of two numbers")
    options |= {keys.ONE_STEP: True} if keys.ONE_STEP in given.program and options[keys.TOTAL_STEPS] != 1 else {}
    options[f"{FILTER}enable"] &= verl_selection.reads_filter(given.program, _version(given))
    if "main_ppo" in given.program:  # which has no limit
        options[f"{FILTER}max_num_gen_batches"] = 0
    options[keys.MANAGER] = options[keys.MANAGER] or ("dapo" if "dapo" in given.program else "naive")
    if options[f"{CORRECTION}bypass_mode"]:
        options[MODE] = "bypass_mode"
    if options[MODE] == "gspo" and _version(given) < keys.GSPO_BY_KEY:
        options[AVERAGE] = "seq-mean-token-mean"
    return options


def _named(given: Given) -> Options:
    """Return a file's keys under their present names; null means the default, except for those of SAYING_NULL."""
    named = rename_keys(dict(dotted(given.options)))
    return {name: value for name, value in named.items() if value is not None or name in SAYING_NULL}


def _version(given: Given) -> int:
    """Return the minor version whose defaults apply: told, 3 if keys fit only that, or the newest. May raise."""
    if given.version:
        match = re.fullmatch(r"0\.(\d)(\..*)?", given.version)
        if match is None or not 1 <= int(match[1]) <= keys.NEWEST:
            raise RequestError(f"verl: --version {given.version} is not allowed: it is 0.1 to 0.{keys.NEWEST}")
        return int(match[1])
    named = _named(given).keys()
    early = not named.isdisjoint(keys.ONLY_EARLY) and named.isdisjoint(keys.SINCE_TODAY)
    return keys.FIRST_OF_TODAY - 1 if early else keys.NEWEST


# Theirs as ours.


def objective(options: Options) -> Objective:
    """Translate the options of the loss. Raises ValueError for what verl does not have."""
    values: Options = {}
    for name, default in LOSS.items():
        prefix = CORRECTION if name == "rollout_correction" else f"{ACTOR}{name}."
        section = isinstance(default, dict)
        values[name] = {part: options[prefix + part] for part in default} if section else options[ACTOR + name]
    return verl_options.objective(values)


def convert_run(options: Options) -> Options:
    """Return the settings besides the loss, by our keys."""
    baseline, scale, whitening = ESTIMATORS.get(options[ESTIMATOR], ESTIMATORS["grpo"])
    if _is_alone(options):
        baseline, scale = "none", "none"
    rate = options[f"{ACTOR}optim.lr"]
    values: Options = {ours: options[theirs] for theirs, ours in VERL_NAMES.items()}
    values |= {name: options[f"{ROLLOUT}{name}"] for name in ("top_k", "top_p")}
    values |= verl_selection.translate(options)
    values |= {
        "num_minibatches": options[PROMPTS] // options[MINI],
        "advantage_estimator": baseline,
        "scale_rewards": scale or ("group" if options[keys.BY_STD] else "none"),
        "whiten_advantages": whitening,
        "min_lr_ratio": min(float(options[FLOOR] or (options[FLOOR_RATE] / rate if rate else 0.0)), 1.0) or None,
        "warmup_steps": max(options[WARMUP], 0),
        "adam_beta1": options[BETAS][0],
        "adam_beta2": options[BETAS][1],
        "warm_start.max_steps": 0,
        "old_log_probs": "sampler" if options[MODE] == "bypass_mode" and not _is_reweighted(options) else "trainer",
    }
    if options[keys.KL_REWARD]:
        values |= {"beta": options[keys.KL_COEF], "kl_estimator": "k1", "kl_gradient": "plain"}
        values |= {"kl_placement": "reward", "kl_input_clamp": None, "kl_output_clamp": None}
    if options[keys.TOTAL_STEPS] is not None:
        values["rollout_steps"] = options[keys.TOTAL_STEPS]
    if options[keys.STALENESS] is not None or keys.ONE_STEP in options:
        values["staleness"] = 1
    if options[keys.MODEL]:
        values |= {"model": "pretrained", "model.path": options[keys.MODEL]}
    return selection.settle(values) | _adapters(options)[0]


def _adapters(options: Options) -> tuple[Options, list[str]]:
    rank, alpha, targets = (options[name] for name in keys.ADAPTERS)
    return adapters.translate(keys.TARGETS, rank, alpha, targets) if rank > 0 else ({}, [])


def _is_alone(options: Options) -> bool:
    """Return True if groups have one completion: their mean counts as 0 and their std as 1, so the reward stays."""
    baseline, _, _ = ESTIMATORS.get(options[ESTIMATOR], ESTIMATORS["grpo"])
    return bool(options[GROUP] == 1 and baseline not in ("none", "given"))


def _is_reweighted(options: Options) -> bool:
    """Return True if a weight corrects for the sampler although its log-probs are also the old ones."""
    return bool(options[f"{CORRECTION}loss_type"] == "reinforce" and options[f"{CORRECTION}rollout_is"])


# What is said.


def explain_unread(given: Given, options: Options) -> Iterator[str]:
    """Yield a sentence for each key that is open or unknown, or whose value we cannot represent."""
    named, version = _named(given), _version(given)
    for name, text in given.open.items():
        if name in CARRIED:
            yield f"{name}={text}: only a run of the script can tell; its default {options[name]} stands for it"
    yield from _explain_sizes(given, options)
    unknown = [name for name in (*named, *given.open) if kind_of(name, given) == "unknown"]
    own = dict.fromkeys(f"{name.partition('.')[0]}.*" for name in unknown if not _section(name))  # a fork's sections
    said = {**given.open, **named}
    texts = [f"{name}={shorten(said[name])}{near_matches(name, options)}" for name in unknown if _section(name)]
    if unknown:
        yield f"{', '.join([*texts, *own])}: verl has no such key; what a fork does with it is lost"
    for name, (allowed, stands) in CHOICES.items():
        if named.get(name, stands) not in allowed and named[name] != "bypass_mode":
            yield f"{name}={named[name]}: here it is one of {', '.join(allowed)}; {stands} stands for it"
    if ESTIMATOR not in named and ESTIMATOR not in given.open and not given.fork:
        yield f"{ESTIMATOR} is gae by default, which needs a critic: grpo stands for it"
    if version < keys.WHOLE_MEANS and named.get(AVERAGE, CARRIED[AVERAGE]) == "token-mean":
        yield (
            f"{AVERAGE}=token-mean: verl before 0.{keys.WHOLE_MEANS} takes it over each micro batch and averages those,"
            " so that tokens of short micro batches weigh more; here it is over the minibatch"
        )
    if options[MODE] == "gspo" and version < keys.GSPO_BY_KEY:
        yield f"{MODE}=gspo: verl before 0.{keys.GSPO_BY_KEY} averages it by sequences, whatever {AVERAGE} is"
    old, new = named.get(f"{ACTOR}grad_clip"), named.get(CLIP_GRAD)
    if None not in (old, new) and old != new:
        yield f"{ACTOR}grad_clip={old}: since 0.8 verl clips by {CLIP_GRAD}={new}, which is carried"
    one, sides = named.get(BOTH), {named.get(LOW, CARRIED[LOW]), named.get(HIGH, CARRIED[HIGH])}
    if one is not None and version >= keys.FIRST_OF_TODAY and None not in sides and sides != {one}:
        yield f"{BOTH}={one}: since 0.4 verl takes {LOW} and {HIGH}, which are 0.2 unless they are set"
    for name, (quiet, says) in keys.NOT_READ.items():
        if named.get(name, quiet[0]) not in quiet:
            yield f"{name}={shorten(named[name])}: {says}"
    early = version < keys.FIRST_OF_TODAY
    if named.get(keys.KL_COEF) and named.get(keys.KL_LOSS) and (early or named.get(keys.KL_REWARD) is not True):
        why = f"with {keys.KL_LOSS}=True" if early else f"without {keys.KL_REWARD}=True"
        yield f"{keys.KL_COEF}={named[keys.KL_COEF]}: it does nothing {why}; kl_loss_coef weighs the KL"
    if named.get(f"{FILTER}enable") is True and not verl_selection.reads_filter(given.program, 0):
        ignored = "" if options[f"{FILTER}enable"] else ": this one does not"
        yield f"{FILTER}enable=True: DAPO's trainers read it, and main_ppo since 0.{keys.FILTER_IN_PPO}{ignored}"
    room = named.get("actor_rollout_ref.rollout.max_model_len")
    lengths = [named.get(f"data.max_{part}_length") for part in ("prompt", "response")]
    longest = sum(length for length in lengths if isinstance(length, int))
    if isinstance(room, int) and room < longest:
        yield (
            f"actor_rollout_ref.rollout.max_model_len={room}: max_prompt_length and max_response_length are {longest}"
            " together, so that the sampler ends long answers earlier, which verl does not count as cut"
        )


def _explain_sizes(given: Given, options: Options) -> Iterator[str]:
    named = _named(given)
    for name, fork in keys.FORKS_GROUP.items():
        if name in named:
            n = named.get(GROUP, 1)
            yield f"{name}={named[name]} is {fork}'s key: a group has that times rollout.n={n} completions"
        elif name in given.open:
            yield f"{name}={given.open[name]}, {fork}'s key: the file alone does not say the group"
    is_said = any(name in named or name in given.open for name in (GROUP, *keys.FORKS_GROUP))
    if not is_said and any("not read" in note for note in given.notes):
        yield f"the file alone does not say the group size ({GROUP}): its default of {options[GROUP]} stands for it"
    if keys.ONE_STEP in options:
        yield f"{keys.ONE_STEP} learns from a batch while it samples the next, from answers a step old: staleness=1"
    if options[keys.STALENESS] is not None:
        yield (
            f"{PROMPTS}={named.get(PROMPTS, 0)} is fully asynchronous: how many prompts a step has cannot be known;"
            f" here it has {MINI} * require_batches = {options[PROMPTS]}, as its trainer takes. Its weights reach the"
            f" sampler after {options[keys.SYNC]} such steps, and answers may be older by {keys.STALENESS}="
            f"{options[keys.STALENESS]:g} of those: here staleness=1"
        )
        if isinstance(total := named.get("rollout.total_rollout_steps"), int):
            yield f"rollout.total_rollout_steps={total} counts prompts: set rollout_steps={total // options[PROMPTS]}"
    elif (mini := named.get(MINI, CARRIED[MINI])) > options[PROMPTS]:
        is_written_out = mini == CARRIED[MINI] and named.keys() >= keys.WRITTEN_OUT
        refused = " which verl refuses since 0.4," if MINI in named and not is_written_out else ""
        yield (
            f"{MINI}={mini} is more than {PROMPTS}={options[PROMPTS]},{refused} and what its minibatch is then the file"
            " alone does not say: here the whole batch is one minibatch, and verl before 0.4 also divided its gradient"
            " by their ratio"
        )


def _section(name: str) -> str:
    """Return the longest section of verl's that a key is in, '' if there is none."""
    parts = name.split(".")
    return next((way for end in range(len(parts) - 1, 0, -1) if (way := ".".join(parts[:end])) in keys.WORDS), "")


def kind_of(name: str, given: Given) -> str:
    """Return what becomes of a key: it is carried, not carried, has no effect here, or is unknown."""
    name = RENAMED.get(name, name)
    named = _named(given)
    if name in CARRIED and name.startswith(tuple(verl_selection.PARTS)):
        return verl_selection.kind_of(name, resolve_options(given), named)
    if name in keys.NOT_READ or name in keys.NOT_CARRIED:
        quiet = keys.NOT_READ[name][0] if name in keys.NOT_READ else (CARRIED[name],)
        return "no effect" if named.get(name, quiet[0]) in quiet else "not carried"
    if name in CHOICES and name in named:
        return "carried" if named[name] in (*CHOICES[name][0], "bypass_mode") else "not carried"
    if name in keys.ADAPTERS:
        values, said = _adapters(resolve_options(given))
        return "carried" if values else "not carried" if said else "no effect"
    if name in CARRIED or name in keys.FORKS_GROUP or name == f"{ACTOR}grad_clip":
        return "carried"
    section = _section(name)
    words = keys.WORDS.get(section, set()) | set((EASY_WORDS if given.fork else {}).get(section, "").split())
    word = name.removeprefix(f"{section}.").partition(".")[0]
    is_known = word in words or "*" in words or name in keys.WORDS or name == "_target_"
    return "no effect" if is_known or name in keys.ONLY_EARLY else "unknown"


def explain_defaults(given: Given, options: Options) -> Iterator[str]:
    """Yield sentences about the version whose defaults apply, and the defaults that were taken."""
    version, named, today = _version(given), _named(given), f"0.{keys.FIRST_OF_TODAY}"
    if given.fork:
        yield f"those of {given.fork} of July 2026"
    elif given.version:
        yield f"those of verl 0.{version}, as it was told"
    elif version < keys.FIRST_OF_TODAY:
        old = next(name for name in keys.ONLY_EARLY if name in named)
        yield f"those of verl before {today}, whose key {old} is; --version says another"
    else:
        yield f"those of verl {today} to 0.{keys.NEWEST}, which are the same; --version says another"
    if version < keys.FIRST_OF_TODAY:
        yield (
            f"verl before {today}: the only clip range is clip_ratio, there is no dual clip, entropy_coeff"
            " is 0.001, and the KL is in the reward unless use_kl_loss is set"
        )
    taken = {name: value for name, value in options.items() if name not in named and _acts(name, options)}
    if listed := [f"{name}={value}" for name, value in taken.items() if value is not None]:
        yield ", ".join(listed)


def _acts(name: str, options: Options) -> bool:
    part = name.removeprefix(ACTOR)
    if name.startswith((FILTER, "reward.")):
        return bool(options[f"{FILTER if name.startswith(FILTER) else keys.OVERLONG}enable"])
    if part in ("kl_loss_coef", "kl_loss_type"):
        return bool(options[keys.KL_LOSS])
    if name.startswith(CORRECTION):
        return bool(options[f"{CORRECTION}rollout_is"]) or name == f"{CORRECTION}rollout_is"
    if name in (keys.KL_COEF, f"{ALGORITHM}kl_penalty", f"{ALGORITHM}kl_ctrl.type"):
        return bool(options[keys.KL_REWARD])
    if (part.startswith("policy_loss.") and name != MODE) or part in ("tau_pos", "tau_neg"):
        return part in KERNEL_OPTIONS.get(KERNEL.get(options[MODE], ""), {}).values()
    if name == FLOOR:
        return bool(options[keys.SCHEDULE] == "cosine" and not options[FLOOR_RATE])
    if name in (keys.SYNC, keys.BATCHES):
        return options[keys.STALENESS] is not None
    if name in keys.ADAPTERS:
        return bool(options[keys.RANK])
    return name not in (BOTH, SCALE, keys.MODEL, keys.TOTAL_STEPS, FLOOR_RATE, keys.ONE_STEP, keys.LOG_PROBS)


def explain_left_out(options: Options) -> Iterator[str]:
    """Yield a sentence for each option of verl that has no counterpart here."""
    if _is_alone(options):
        yield (
            f"{GROUP}=1 with {ESTIMATOR}={options[ESTIMATOR]}: a group of one has nothing to be compared with, and verl"
            " takes the reward itself for the advantage; so does this run"
        )
    for name, says in keys.NOT_CARRIED.items():
        if options[name] != CARRIED[name]:
            yield f"{name}={options[name]}: {says}"
    yield from (*verl_selection.explain(options), *_adapters(options)[1])
    if options[keys.KL_REWARD] and options[f"{ALGORITHM}kl_penalty"] not in ("kl", "k1"):
        yield f"{ALGORITHM}kl_penalty={options[f'{ALGORITHM}kl_penalty']}: the KL in the reward is k1 here"
    if options[keys.KL_REWARD] and options[keys.KL_LOSS]:
        yield f"{keys.KL_LOSS}=True: there is one KL here, and the one in the reward is kept"
    if options[keys.TOTAL_STEPS] is None:
        yield "trainer.total_epochs: set rollout_steps, the length of a run here"
        if options[WARMUP] < 0 and options[WARMUP_SHARE]:
            yield f"{WARMUP_SHARE}={options[WARMUP_SHARE]:g}: give warmup_steps, this share of the run's steps"
    updates = options[keys.EPOCHS] * (options[PROMPTS] // options[MINI])
    if options[WARMUP] > 0 and updates > 1:
        yield (
            f"{WARMUP}={options[WARMUP]} counts rollout steps in verl, warmup_steps optimiser steps, of which there are"
            f" {updates} in a rollout step: set {options[WARMUP] * updates} for the same warm-up"
        )
    weight = options[f"{CORRECTION}rollout_is"]
    if options[MODE] == "bypass_mode" and weight:
        yield (
            f"{CORRECTION}bypass_mode=True: verl weighs by the current policy, here by the one before the update"
            if _is_reweighted(options)
            else f"{CORRECTION}rollout_is={weight}: no weight where the ratio is to the sampler"
        )
    if options[SCALE] not in (None, options["data.max_response_length"]):
        yield f"{SCALE}={options[SCALE]}: token_sum_constant divides by max_completion_length here"


# Ours as theirs.


def propose_options(settings: RunSettings) -> Iterator[Options]:
    """Yield candidate options for a run: for each mode of its kernel, and each average that is equivalent here.

    If the rollout batch is a single minibatch, the mean over it is verl's mean over the minibatch.
    """
    same = str(rewrite(settings)["aggregation"])
    ours = {settings.aggregation, same, same.replace("token_mean_rollout", "token_mean_minibatch")}
    averages = [name for name, aggregation in AGGREGATION.items() if aggregation in ours] or ["token-mean"]
    by_sequence = settings.importance_sampling_level != "token"
    modes = [name for name, kernel in KERNEL.items() if kernel == settings.kernel]
    for mode in sorted(modes, key=lambda name: (name == "gspo") != by_sequence):
        for average in sorted(averages, key=lambda name: AGGREGATION[name] != settings.aggregation):
            yield {name: value for name, value in _write(settings, mode, average).items() if value != CARRIED[name]}


def _write(settings: RunSettings, mode: str, average: str) -> Options:
    run, bypass = resolve_run(settings), None
    if settings.old_log_probs == "sampler":
        bypass = {theirs: name for name, theirs in BYPASS.items()}.get(mode)
    given = (run.kernel_options or {}).get(run.kernel, {})
    scales = {run.scale_rewards, None} if run.scale_rewards in ("group", "none") else {run.scale_rewards}
    asked = (run.advantage_estimator, run.whiten_advantages)
    fits = [name for name, (base, scale, white) in ESTIMATORS.items() if (base, white) == asked and scale in scales]
    written: Options = {
        MODE: mode if bypass is None else "bypass_mode",
        f"{CORRECTION}loss_type": bypass or "ppo_clip",
        AVERAGE: average,
        LOW: run.epsilon,
        HIGH: run.epsilon_high,
        f"{ACTOR}entropy_coeff": run.entropy_coef or 0.0,
        **{theirs: getattr(run, ours) for theirs, ours in VERL_NAMES.items()},
        f"{ROLLOUT}top_k": run.top_k or -1,
        f"{ROLLOUT}top_p": run.top_p or 1,
        MINI: run.prompts_per_step // run.num_minibatches,
        BETAS: [run.adam_beta1, run.adam_beta2],
        FLOOR: run.min_lr_ratio or 0.0,
        WARMUP: run.warmup_steps or -1,
        keys.BY_STD: run.scale_rewards == "group",
        ESTIMATOR: next(iter(fits), "grpo"),
        **{ACTOR + theirs: given[ours] for ours, theirs in KERNEL_OPTIONS.get(run.kernel, {}).items()},
        keys.MODEL: run.model.path if isinstance(run.model, PretrainedModel) else None,
    }
    if run.lora:
        targets = run.lora.targets or CARRIED[keys.TARGETS]
        written |= {keys.RANK: run.lora.rank, keys.ALPHA: run.lora.alpha, keys.TARGETS: targets}
    if mode == "vanilla":  # dual clip is always on in verl: what no ratio reaches is off
        written[f"{ACTOR}clip_ratio_c"] = run.dual_clip or run.delta or NEVER
    if run.beta and run.kl_placement == "reward":
        written |= {keys.KL_REWARD: True, keys.KL_COEF: run.beta}
    elif run.beta:
        name = {estimator: name for name, estimator in reversed(KL.items())}[run.kl_estimator or "k3"]
        straight = "+" if run.kl_gradient == "straight_through" else ""
        written |= {keys.KL_LOSS: True, f"{ACTOR}kl_loss_coef": run.beta, keys.KL_TYPE: name + straight}
    if (weight := run.sampler_correction) is not None:
        bounds = f"{weight.low:g}_{weight.high:g}" if weight.mode == "mask" else weight.high
        written |= {f"{CORRECTION}rollout_is": weight.level, f"{CORRECTION}rollout_is_threshold": bounds}
    return written


def format_options(options: Options) -> str:
    """Return `key=value`, a line for each."""
    words = {"None": "null", "inf": ".inf"}
    texts = {name: str(value).replace(" ", "") for name, value in options.items()}
    return "\n".join(f"{name}={words.get(text, text)}" for name, text in texts.items())


def explain_own_way(settings: RunSettings) -> Iterator[str]:
    """Yield a sentence for each thing that verl computes differently with the same options."""
    if settings.kernel == "gmpo" and settings.sampler_correction is not None:
        yield "geo_mean takes the geometric mean of a sequence's sampler weights"
