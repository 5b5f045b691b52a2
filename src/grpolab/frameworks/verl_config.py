"""verl 1dda039b (2026-08-22): the overrides of `verl.trainer.main_ppo`, what they are here, read and written.

Of the hundreds of keys in verl/trainer/config/, those of the actor, the algorithm and the sizes of batches decide what
is learnt. The others are passed over; an unknown key of the actor or the algorithm is told.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Any

from grpolab.errors import RequestError, near_matches
from grpolab.frameworks.exchange import Config, Given, Options, flat, refuse_wrong_counts, refuse_wrong_types
from grpolab.frameworks.names import VERL_NAMES
from grpolab.frameworks.verl_files import present, read, shortened
from grpolab.settings.equalities import rewritten
from grpolab.settings.run import RunSettings
from grpolab.settings.task import PretrainedModel

# The options of the loss: `actor_rollout_ref.actor` with `policy_loss` in it, and `algorithm.rollout_correction`.
LOSS: dict[str, Any] = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "loss_agg_mode": "token-mean",
    "entropy_coeff": 0.0,
    "use_kl_loss": False,
    "kl_loss_coef": 0.001,
    "kl_loss_type": "low_var_kl",
    "policy_loss": {
        "loss_mode": "vanilla",
        "clip_cov_ratio": 0.0002,
        "clip_cov_lb": 1.0,
        "clip_cov_ub": 5.0,
        "kl_cov_ratio": 0.0002,
        "ppo_kl_coef": 0.1,
        "dro_beta": None,
    },
    "rollout_correction": {"rollout_is": None, "rollout_is_threshold": 2.0, "loss_type": "ppo_clip"},
}

# loss_mode -> kernel; bypass_mode's `loss_type` -> the mode that it is.
KERNEL = {
    "vanilla": "clipped",
    "gspo": "clipped",
    "sapo": "sapo",
    "cispo": "cispo",
    "geo_mean": "gmpo",
    "gpg": "policy_gradient",
    "clip_cov": "clip_cov",
    "kl_cov": "kl_cov",
    "dro": "dro",
    "dppo_tv": "dppo_tv",
    "dppo_kl": "dppo_kl",
}
BYPASS = {"ppo_clip": "vanilla", "reinforce": "gpg"}
# Kernel -> our name of its options -> theirs.
KERNEL_OPTIONS = {
    "sapo": {"temperature_positive": "tau_pos", "temperature_negative": "tau_neg"},
    "clip_cov": {
        "share": "policy_loss.clip_cov_ratio",
        "lower": "policy_loss.clip_cov_lb",
        "upper": "policy_loss.clip_cov_ub",
    },
    "kl_cov": {"share": "policy_loss.kl_cov_ratio", "coefficient": "policy_loss.ppo_kl_coef"},
    "dro": {"coefficient": "policy_loss.dro_beta"},
    "dppo_tv": {"cap": "clip_ratio_c"},
    "dppo_kl": {"cap": "clip_ratio_c"},
}
# Sequences are counted as in training: all of the minibatch, empty ones too (`global_batch_size`).
AGGREGATION = {
    "token-mean": "token_mean_minibatch",
    "token-sum": "token_sum",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "token_sum_constant",
}
# Estimators; the first name of each is the one that is written.
KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}

ACTOR, ALGORITHM = "actor_rollout_ref.actor.", "algorithm."
CARRIED: dict[str, Any] = {
    "data.train_batch_size": 1024,  # prompts
    "data.max_response_length": 512,
    "actor_rollout_ref.rollout.n": 1,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.rollout.top_p": 1,
    "actor_rollout_ref.rollout.top_k": -1,
    "actor_rollout_ref.model.path": None,
    "trainer.total_training_steps": None,
    f"{ACTOR}ppo_mini_batch_size": 256,  # prompts, too
    f"{ACTOR}ppo_epochs": 1,
    f"{ACTOR}loss_scale_factor": None,
    **{ACTOR + name: value for name, value in LOSS.items() if not isinstance(value, dict)},
    **{f"{ACTOR}policy_loss.{name}": value for name, value in LOSS["policy_loss"].items()},
    f"{ACTOR}optim.lr": 1e-6,
    f"{ACTOR}optim.weight_decay": 0.01,
    f"{ACTOR}optim.clip_grad": 1.0,
    f"{ACTOR}optim.betas": [0.9, 0.999],
    f"{ACTOR}optim.lr_scheduler_type": "constant",
    f"{ACTOR}optim.lr_warmup_steps": -1,
    f"{ACTOR}optim.lr_warmup_steps_ratio": 0.0,
    f"{ALGORITHM}adv_estimator": "gae",
    f"{ALGORITHM}norm_adv_by_std_in_grpo": True,
    f"{ALGORITHM}use_kl_in_reward": False,
    f"{ALGORITHM}kl_penalty": "kl",
    f"{ALGORITHM}kl_ctrl.type": "fixed",
    f"{ALGORITHM}kl_ctrl.kl_coef": 0.001,
    f"{ALGORITHM}filter_groups.enable": False,
    f"{ALGORITHM}use_pf_ppo": False,
    **{f"{ALGORITHM}rollout_correction.{name}": value for name, value in LOSS["rollout_correction"].items()},
    f"{ALGORITHM}rollout_correction.rollout_is_threshold": "2.0",  # text there: it may be a range
    f"{ALGORITHM}rollout_correction.rollout_is_batch_normalize": False,
    f"{ALGORITHM}rollout_correction.rollout_rs": None,
    f"{ALGORITHM}rollout_correction.bypass_mode": False,
}
# Keys of actor and algorithm, or sections of them, that change no result here.
# fmt: off
_OF_ACTOR = [
    "_target_", "rollout_n", "strategy", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz",
    "ppo_infer_micro_batch_size_per_gpu", "ppo_infer_max_token_len_per_gpu", "ppo_max_token_len_per_gpu",
    "freeze_vision_tower", "calculate_entropy", "calculate_sum_pi_squared", "use_prefix_grouper",
    "use_torch_compile", "shuffle", "data_loader_seed", "checkpoint", "use_fused_kernels", "profiler",
    "router_replay", "qat", "fsdp_config", "megatron", "veomni", "torchtitan", "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking", "use_remove_padding", "entropy_from_logits_chunk_size",
    "entropy_checkpointing", "pad_to_length", "load_weight", "use_rollout_log_probs", "policy_loss._target_",
    "optim._target_", "optim.optimizer", "optim.optimizer_impl", "optim.min_lr_ratio", "optim.min_lr", "optim.lr_min",
    "optim.lr_start", "optim.lr_decay_ratio", "optim.num_cycles", "optim.warmup_style", "optim.zero_indexed_step",
    "optim.override_optimizer_config", "optim.total_training_steps", "grad_clip",
    "optim.lr_warmup_init", "optim.lr_decay_steps", "optim.lr_decay_style", "optim.lr_warmup_style",
    "optim.weight_decay_incr_style", "optim.lr_wsd_decay_style", "optim.lr_wsd_decay_steps",
    "optim.use_checkpoint_opt_param_scheduler", "model_engine", "engine", "mtp", "profile", "turbo_config",
]
_OF_ALGORITHM = [
    "_target_", "gamma", "lam", "kl_ctrl.horizon", "kl_ctrl.target_kl", "kl_ctrl._target_", "filter_groups",
    "pf_ppo", "rollout_correction.rollout_rs_threshold", "rollout_correction._target_",
]
# fmt: on
PASSED_OVER = [*(ACTOR + name for name in _OF_ACTOR), *(ALGORITHM + name for name in _OF_ALGORITHM)]

PROMPTS, GROUP = "data.train_batch_size", "actor_rollout_ref.rollout.n"
MINI, EPOCHS = f"{ACTOR}ppo_mini_batch_size", f"{ACTOR}ppo_epochs"
ESTIMATOR, BY_STD = f"{ALGORITHM}adv_estimator", f"{ALGORITHM}norm_adv_by_std_in_grpo"
KL_TYPE, AVERAGE = f"{ACTOR}kl_loss_type", f"{ACTOR}loss_agg_mode"
KL_TYPES = [name + straight for name in KL for straight in ("", "+")]
MODE, CORRECTION = f"{ACTOR}policy_loss.loss_mode", f"{ALGORITHM}rollout_correction."
NEVER = 1e9  # above e^20, the largest ratio that verl knows
BETAS, SCHEDULE = f"{ACTOR}optim.betas", f"{ACTOR}optim.lr_scheduler_type"
SCHEDULES = ("constant", "cosine")
TOTAL_STEPS, MODEL = "trainer.total_training_steps", "actor_rollout_ref.model.path"
COUNTS = (PROMPTS, GROUP, MINI, EPOCHS)
LOW, HIGH, CLIP_GRAD = f"{ACTOR}clip_ratio_low", f"{ACTOR}clip_ratio_high", f"{ACTOR}optim.clip_grad"
WARMUP, WARMUP_SHARE = f"{ACTOR}optim.lr_warmup_steps", f"{ACTOR}optim.lr_warmup_steps_ratio"
KL_LOSS, KL_REWARD, KL_COEF = f"{ACTOR}use_kl_loss", f"{ALGORITHM}use_kl_in_reward", f"{ALGORITHM}kl_ctrl.kl_coef"

WRITTEN_OUT = {LOW, HIGH, f"{ACTOR}clip_ratio", EPOCHS, f"{ACTOR}loss_agg_mode"}  # nobody writes all of these by hand

# Versions. Nothing that is carried has changed its default since 0.4 (May 2025); before, three things were others.
NEWEST, FIRST_OF_TODAY = 9, 4  # 0.9 and 0.4
EARLY = {f"{ACTOR}entropy_coeff": 0.001}
ONLY_EARLY = (  # keys that 0.4 has no longer
    f"{ACTOR}fsdp_config.grad_offload", "critic.model.fsdp_config.grad_offload", "actor_rollout_ref.ref.param_offload",
    "trainer.val_generations_to_log_to_wandb",
)  # fmt: skip
SINCE_TODAY = (LOW, HIGH, f"{ACTOR}clip_ratio_c", f"{ACTOR}loss_agg_mode", KL_REWARD, BY_STD)
# adv_estimator -> baseline, scale (None: the group's std if norm_adv_by_std_in_grpo), whitening.
ESTIMATORS: dict[str, tuple[str, str | None, str | None]] = {
    "grpo": ("group_mean", None, None),
    "grpo_passk": ("second_best", None, None),
    "rloo": ("leave_one_out", "none", None),
    "opo": ("length_weighted", "none", None),
    "gpg": ("group_mean", "nonzero_share", None),
    "remax": ("given", "none", None),
    "reinforce_plus_plus": ("none", "none", "bessel"),
    "reinforce_plus_plus_baseline": ("group_mean", "none", "bessel"),
}


def options(given: Given) -> Options:
    """All keys that matter, dotted, defaults filled in. Raises RequestError for what verl itself refuses."""
    named, early = _named(given), version_of(given) < FIRST_OF_TODAY
    options = CARRIED | (EARLY if early else {}) | {name: value for name, value in named.items() if name in CARRIED}
    options |= {side: options[f"{ACTOR}clip_ratio"] for side in (LOW, HIGH) if options[side] is None}
    refuse_wrong_types("verl", options, CARRIED)
    if options[TOTAL_STEPS] is not None:
        refuse_wrong_counts("verl", options, [TOTAL_STEPS])
    for name, known, default in ((MODE, [*KERNEL, "bypass_mode"], "vanilla"), (KL_TYPE, KL_TYPES, "low_var_kl")):
        options[name] = options[name] if options[name] in known else default
    if options[AVERAGE] not in AGGREGATION:
        options[AVERAGE] = CARRIED[AVERAGE]
    if options[SCHEDULE] not in SCHEDULES:
        options[SCHEDULE] = CARRIED[SCHEDULE]
    if early and not {LOW, HIGH} & named.keys():  # the only range that there was
        options |= {LOW: options[f"{ACTOR}clip_ratio"], HIGH: options[f"{ACTOR}clip_ratio"]}
    if early and f"{ACTOR}clip_ratio_c" not in named:  # there was no dual clip
        options[f"{ACTOR}clip_ratio_c"] = None
    if early and KL_REWARD not in named:  # one of the two, always
        options[KL_REWARD] = not options[KL_LOSS]
    if CLIP_GRAD not in named:
        options[CLIP_GRAD] = named.get(f"{ACTOR}grad_clip", options[CLIP_GRAD])
    if options[WARMUP] < 0 and options[TOTAL_STEPS]:
        options[WARMUP] = int(options[WARMUP_SHARE] * options[TOTAL_STEPS])
    if options[PROMPTS] == 0:
        raise RequestError(
            f"verl: {PROMPTS}=0 asks for its fully asynchronous training, in which a step has no batch of prompts: to"
            " read the rest, write the prompts of a step there"
        )
    refuse_wrong_counts("verl", options, COUNTS)
    if options[MINI] > options[PROMPTS]:
        # A config as Hydra writes it has the default of 256 in it, and dynamic batches let that pass.
        nobodys = options[MINI] == CARRIED[MINI] and named.keys() >= WRITTEN_OUT
        if MINI in named and not (nobodys and named.get(f"{ACTOR}use_dynamic_bsz")):
            raise RequestError(
                f"verl: {MINI}={options[MINI]} is more than {PROMPTS}={options[PROMPTS]}, which verl refuses since 0.4;"
                " before, the whole batch was one minibatch, whose gradient shrank by their ratio: to read it as one,"
                f" write {options[PROMPTS]}"
            )
        options[MINI] = options[PROMPTS]
    if options[PROMPTS] % options[MINI]:
        raise RequestError(f"verl: {MINI}={options[MINI]} must divide {PROMPTS}={options[PROMPTS]}, both in prompts")
    if options[ESTIMATOR] == "grpo_passk" and options[GROUP] == 1:
        raise RequestError(f"verl: {ESTIMATOR}=grpo_passk needs two of a group: {GROUP}=1 is not allowed")
    if not isinstance(options[BETAS], list | tuple) or len(options[BETAS]) != 2:
        raise RequestError(f"verl: {BETAS}={options[BETAS]} is not allowed: it must be a list of two numbers")
    if options[f"{CORRECTION}bypass_mode"]:
        options[MODE] = "bypass_mode"
    return options


def _named(given: Given) -> Options:
    """The file's keys, dotted, by their present names; null stands for the default, but for a clip range's side."""
    named = present(flat(given.options))
    return {name: value for name, value in named.items() if value is not None or name in (LOW, HIGH)}


def version_of(given: Given) -> int:
    """Minor version whose defaults count: as told, else 3 where a key is of then and none of later, else the newest.

    Raises RequestError for a version that is not known.
    """
    if given.version:
        match = re.fullmatch(r"0\.(\d)(\..*)?", given.version)
        if match is None or not 1 <= int(match[1]) <= NEWEST:
            raise RequestError(f"verl: --version {given.version} is not allowed: it is 0.1 to 0.{NEWEST}")
        return int(match[1])
    named = _named(given).keys()
    early = not named.isdisjoint(ONLY_EARLY) and named.isdisjoint(SINCE_TODAY)
    return FIRST_OF_TODAY - 1 if early else NEWEST


def _known(name: str) -> bool:
    """Whether verl has a key; in other sections than actor and algorithm every key counts as one."""
    if not name.startswith((ACTOR, ALGORITHM)):
        return True
    return name in CARRIED or any(f"{name}.".startswith(f"{known}.") for known in PASSED_OVER)


def loss(options: Options) -> Options:
    """What `frameworks/verl.py` takes."""
    values: Options = {}
    for name, default in LOSS.items():
        prefix = CORRECTION if name == "rollout_correction" else f"{ACTOR}{name}."
        section = isinstance(default, dict)
        values[name] = {part: options[prefix + part] for part in default} if section else options[ACTOR + name]
    return values


def run(options: Options) -> Options:
    """What is no loss, by our keys."""
    baseline, scale, whitening = ESTIMATORS.get(options[ESTIMATOR], ESTIMATORS["grpo"])
    if _alone(options):
        baseline, scale = "none", "none"
    values: Options = {ours: options[theirs] for theirs, ours in VERL_NAMES.items()}
    values |= {
        "num_minibatches": options[PROMPTS] // options[MINI],
        "advantage_estimator": baseline,
        "scale_rewards": scale or ("group" if options[BY_STD] else "none"),
        "whiten_advantages": whitening,
        "warmup_steps": max(options[WARMUP], 0),
        "adam_beta1": options[BETAS][0],
        "adam_beta2": options[BETAS][1],
        "warm_start.max_steps": 0,
        "old_log_probs": "sampler" if options[MODE] == "bypass_mode" and not _reweighted(options) else "trainer",
    }
    if options[KL_REWARD]:
        values |= {"beta": options[KL_COEF], "kl_estimator": "k1", "kl_gradient": "plain"}
        values |= {"kl_placement": "reward", "kl_input_clamp": None, "kl_output_clamp": None}
    if options[TOTAL_STEPS] is not None:
        values["rollout_steps"] = options[TOTAL_STEPS]
    if options[MODEL]:
        values |= {"model": "pretrained", "model.path": options[MODEL]}
    return values


def _alone(options: Options) -> bool:
    """A group of one where the estimator compares: there the mean is 0 and the std 1, and the reward itself stays."""
    baseline, _, _ = ESTIMATORS.get(options[ESTIMATOR], ESTIMATORS["grpo"])
    return bool(options[GROUP] == 1 and baseline not in ("none", "given"))


def _reweighted(options: Options) -> bool:
    """Whether the sampler's log-probs, which stand for the old ones, are corrected by a weight all the same."""
    return bool(options[f"{CORRECTION}loss_type"] == "reinforce" and options[f"{CORRECTION}rollout_is"])


def unread(given: Given) -> Iterator[str]:
    """A sentence for each key that is open, unknown, or not one of the values that are carried."""
    named = _named(given)
    for name, text in given.open.items():
        if name in CARRIED:
            yield f"{name}={text}: only a run of the script can tell; verl's default {CARRIED[name]} stands for it"
    for name, text in given.otherwise.items():
        if name in CARRIED and name not in given.open:
            yield f"{name}={shortened(text)}, where a condition fails that only a run of the script can tell"
    unknown = [name for name in named if not _known(name) and named[name] not in (None, False)]
    for section, group in itertools.groupby(unknown, lambda name: name.rpartition(".")[0]):
        names = list(group)
        near = "" if section + "." not in (ACTOR, ALGORITHM) else "".join(map(_near, names[:1]))
        values = ", ".join(f"{name}={shortened(named[name])}" for name in names)
        yield f"{values}: verl has no such key{near}; what a fork does with it to the loss is lost"
    if own := sorted({name.partition(".")[0] for name in named} - SECTIONS):
        yield f"{', '.join(own)}: no sections of verl's, and nothing here"
    standing = {MODE: KERNEL, KL_TYPE: KL_TYPES, AVERAGE: AGGREGATION, SCHEDULE: SCHEDULES, ESTIMATOR: ESTIMATORS}
    for name, allowed in standing.items():
        stands = "grpo" if name == ESTIMATOR else CARRIED[name]
        if named.get(name, stands) not in allowed and named[name] != "bypass_mode":
            yield f"{name}={named[name]}: here it is one of {', '.join(allowed)}; {stands} stands for it"
    if ESTIMATOR not in named and ESTIMATOR not in given.open:
        yield f"{ESTIMATOR} is gae by default, which needs a critic: grpo stands for it"
    early = version_of(given) < FIRST_OF_TODAY
    both = named.get(f"{ACTOR}grad_clip"), named.get(CLIP_GRAD)
    if named.get(MINI, CARRIED[MINI]) > named.get(PROMPTS, CARRIED[PROMPTS]):
        yield f"{MINI} is more than {PROMPTS}: the whole batch is one minibatch"
    if None not in both and both[0] != both[1]:
        yield f"{ACTOR}grad_clip={both[0]}: since 0.8 verl clips by {CLIP_GRAD}={both[1]}, which is carried"
    one, sides = named.get(f"{ACTOR}clip_ratio"), {named.get(LOW, CARRIED[LOW]), named.get(HIGH, CARRIED[HIGH])}
    if one is not None and not early and None not in sides and sides != {one}:
        yield f"{ACTOR}clip_ratio={one}: since 0.4 verl takes {LOW} and {HIGH}, which are 0.2 unless they are set"
    for name, (quiet, says) in NOT_READ.items():
        falls = not name.startswith(f"{ACTOR}optim.min_lr") or named.get(SCHEDULE) == "cosine"
        if falls and named.get(name, quiet[0]) not in quiet:
            yield f"{name}={shortened(named[name])}: {says}"
    in_reward = not named.get(KL_LOSS) if early else named.get(KL_REWARD) is True
    if named.get(KL_COEF) and named.get(KL_LOSS) and not in_reward:
        why = f"with {KL_LOSS}=True" if early else f"without {KL_REWARD}=True"
        yield f"{KL_COEF}={named[KL_COEF]}: it does nothing {why}; kl_loss_coef weighs the KL"
    room = named.get("actor_rollout_ref.rollout.max_model_len")
    lengths = [named.get(f"data.max_{part}_length") for part in ("prompt", "response")]
    longest = sum(length for length in lengths if isinstance(length, int))
    if isinstance(room, int) and room < longest:
        yield (
            f"actor_rollout_ref.rollout.max_model_len={room}: max_prompt_length and max_response_length are {longest}"
            " together, so that the sampler ends long answers earlier, which verl does not count as cut"
        )


def _near(name: str) -> str:
    """' (did you mean clip_ratio_high?)' for a mistyped key of the actor or the algorithm, or nothing."""
    prefix = ACTOR if name.startswith(ACTOR) else ALGORITHM
    known = [known.removeprefix(prefix) for known in (*CARRIED, *PASSED_OVER) if known.startswith(prefix)]
    return near_matches(name.removeprefix(prefix), known)


def defaults(given: Given) -> Iterator[str]:
    """Those that were taken, and of which version they are."""
    version, named, resolved = version_of(given), _named(given), options(given)
    if given.version:
        yield f"those of verl 0.{version}, as it was told"
    elif version < FIRST_OF_TODAY:
        old = next(name for name in ONLY_EARLY if name in named)
        yield f"those of verl before 0.{FIRST_OF_TODAY}, whose key {old} is; --version says another"
    else:
        yield f"those of verl 0.{FIRST_OF_TODAY} to 0.{NEWEST}, which are the same; --version says another"
    if version < FIRST_OF_TODAY:
        yield (
            f"verl before 0.{FIRST_OF_TODAY}: the only clip range is clip_ratio, there is no dual clip, entropy_coeff"
            " is 0.001, and the KL is in the reward unless use_kl_loss is set"
        )
    taken = [f"{name}={value}" for name, value in resolved.items() if name not in named and _acts(name, resolved)]
    taken = [default for default in taken if not default.endswith("=None")]
    if taken:
        yield ", ".join(taken)


def _acts(name: str, options: Options) -> bool:
    """Whether a key changes anything beside the others."""
    mode = options[MODE]
    if name in (f"{ACTOR}kl_loss_coef", KL_TYPE):
        return bool(options[KL_LOSS])
    if name.startswith(CORRECTION):
        return bool(options[f"{CORRECTION}rollout_is"]) or name == f"{CORRECTION}rollout_is"
    if name == KL_COEF or name == f"{ALGORITHM}kl_penalty" or name == f"{ALGORITHM}kl_ctrl.type":
        return bool(options[KL_REWARD])
    if name.startswith(f"{ACTOR}policy_loss.") and name != MODE:
        return name in [ACTOR + theirs for theirs in KERNEL_OPTIONS.get(KERNEL.get(mode, ""), {}).values()]
    if name in (f"{ACTOR}tau_pos", f"{ACTOR}tau_neg"):
        return bool(mode == "sapo")
    return name not in (f"{ACTOR}clip_ratio", f"{ACTOR}loss_scale_factor", MODEL, TOTAL_STEPS)


def left_out(options: Options) -> Iterator[str]:
    """What of verl's has no counterpart here."""
    if _alone(options):
        yield (
            f"{GROUP}=1 with {ESTIMATOR}={options[ESTIMATOR]}: a group of one has nothing to be compared with, and verl"
            " takes the reward itself for the advantage; so does this run"
        )
    for name, says in NOT_CARRIED.items():
        if options[name] != CARRIED[name]:
            yield f"{name}={options[name]}: {says}"
    if options[KL_REWARD] and options[f"{ALGORITHM}kl_penalty"] not in ("kl", "k1"):
        yield f"{ALGORITHM}kl_penalty={options[f'{ALGORITHM}kl_penalty']}: the KL in the reward is k1 here"
    if options[KL_REWARD] and options[KL_LOSS]:
        yield f"{KL_LOSS}=True: there is one KL here, and the one in the reward is kept"
    if options[TOTAL_STEPS] is None:
        yield "trainer.total_epochs: set rollout_steps, the length of a run here"
        if options[WARMUP] < 0 and options[WARMUP_SHARE]:
            yield f"{WARMUP_SHARE}={options[WARMUP_SHARE]:g}: give warmup_steps, this share of the run's steps"
    updates = options[EPOCHS] * (options[PROMPTS] // options[MINI])
    if options[WARMUP] > 0 and updates > 1:
        yield (
            f"{WARMUP}={options[WARMUP]} counts rollout steps in verl, warmup_steps optimiser steps, of which there are"
            f" {updates} in a rollout step: set {options[WARMUP] * updates} for the same warm-up"
        )
    weight = options[f"{CORRECTION}rollout_is"]
    if options[MODE] == "bypass_mode" and weight and not _reweighted(options):
        yield f"{CORRECTION}rollout_is={weight}: no weight where the ratio is to the sampler"
    if options[MODE] == "bypass_mode" and _reweighted(options):
        yield f"{CORRECTION}bypass_mode=True: verl weighs by the current policy, here by the one before the update"
    scale = options[f"{ACTOR}loss_scale_factor"]
    if scale is not None and scale != options["data.max_response_length"]:
        yield f"{ACTOR}loss_scale_factor={scale}: token_sum_constant divides by max_completion_length here"


NOT_CARRIED = {
    f"{CORRECTION}rollout_rs": "nothing is rejected here",
    f"{CORRECTION}rollout_is_batch_normalize": "sampler weights are not normalised here",
    f"{ALGORITHM}filter_groups.enable": "groups are not sampled again here",
    f"{ALGORITHM}use_pf_ppo": "there is no preference feedback here",
    f"{ALGORITHM}kl_ctrl.type": "the weight of the KL is fixed here",
    "actor_rollout_ref.rollout.top_p": "sampling is never truncated here",
    "actor_rollout_ref.rollout.top_k": "sampling is never truncated here",
}
# Other keys that change what is learnt: what they may be where they do not, and why they are not carried.
NOT_READ: dict[str, tuple[tuple[Any, ...], str]] = {
    "reward.reward_kwargs.overlong_buffer_cfg.enable": ((False,), "a long answer loses no reward here"),
    "actor_rollout_ref.model.lora_rank": ((0,), "all weights are trained here"),
    "actor_rollout_ref.rollout.multi_turn.enable": ((False,), "an answer is one turn here"),
    "trainer.critic_warmup": ((0,), "there is no critic here"),
    f"{ALGORITHM}gamma": ((1,), "returns are not discounted here"),
    f"{ACTOR}optim.min_lr_ratio": ((0,), "a schedule that falls ends at 0 here"),
    f"{ACTOR}optim.min_lr": ((0,), "a schedule that falls ends at 0 here"),
    f"{ACTOR}optim.optimizer": (("AdamW", "adam", "adamw"), "the optimiser is AdamW here"),
    f"{ACTOR}optim.num_cycles": ((0.5,), "a cosine here is half a wave"),
}
SECTIONS = {
    "actor_rollout_ref", "algorithm", "data", "trainer", "critic", "reward", "reward_model", "custom_reward_function",
    "reward_manager", "sandbox_fusion", "distillation", "transfer_queue", "global_profiler", "skip", "ray_kwargs",
    "ray_init", "hydra", "defaults", "model_engine", "global_batch_info", "async_training", "rollout",
}  # fmt: skip


def guesses(settings: RunSettings) -> Iterator[Options]:
    """Options that may say what a run does, one for each loss_mode and average: that of its kernel first.

    The mean over a rollout batch that is a single minibatch is verl's mean over the minibatch.
    """
    same = str(rewritten(settings)["aggregation"])
    ours = {settings.aggregation, same, same.replace("token_mean_rollout", "token_mean_minibatch")}
    averages = [name for name, aggregation in AGGREGATION.items() if aggregation in ours]
    averages.sort(key=lambda name: AGGREGATION[name] != settings.aggregation)
    by_sequence = settings.importance_sampling_level != "token"
    for mode in sorted(KERNEL, key=lambda name: (KERNEL[name] != settings.kernel, (name == "gspo") != by_sequence)):
        for average in averages or ["token-mean"]:
            guess = _guess(settings, mode, average)
            yield {name: value for name, value in guess.items() if value != CARRIED[name]}


def _guess(settings: RunSettings, mode: str, average: str) -> Options:
    run, bypass = settings.resolved(), None
    if settings.old_log_probs == "sampler":
        bypass = {theirs: name for name, theirs in BYPASS.items()}.get(mode)
    given = (run.kernel_options or {}).get(run.kernel, {})
    guess: Options = {
        MODE: mode if bypass is None else "bypass_mode",
        f"{CORRECTION}loss_type": bypass or "ppo_clip",
        f"{ACTOR}loss_agg_mode": average,
        f"{ACTOR}clip_ratio_low": run.epsilon,
        f"{ACTOR}clip_ratio_high": run.epsilon_high,
        f"{ACTOR}entropy_coeff": run.entropy_coef or 0.0,
        **{theirs: getattr(run, ours) for theirs, ours in VERL_NAMES.items()},
        MINI: run.prompts_per_step // run.num_minibatches,
        BETAS: [run.adam_beta1, run.adam_beta2],
        f"{ACTOR}optim.lr_warmup_steps": run.warmup_steps or -1,
        BY_STD: run.scale_rewards == "group",
        ESTIMATOR: "grpo",
        **{ACTOR + theirs: given[ours] for ours, theirs in KERNEL_OPTIONS.get(run.kernel, {}).items()},
    }
    scales = {run.scale_rewards, None} if run.scale_rewards in ("group", "none") else {run.scale_rewards}
    for name, (baseline, scale, whitening) in reversed(ESTIMATORS.items()):  # the first one of these stays
        if (baseline, whitening) == (run.advantage_estimator, run.whiten_advantages) and scale in scales:
            guess[ESTIMATOR] = name
    if mode == "vanilla":  # dual clip is always on in verl: what no ratio reaches is off
        guess[f"{ACTOR}clip_ratio_c"] = run.dual_clip or run.delta or NEVER
    if run.beta and run.kl_placement == "reward":
        guess |= {f"{ALGORITHM}use_kl_in_reward": True, f"{ALGORITHM}kl_ctrl.kl_coef": run.beta}
    elif run.beta:
        name = {estimator: name for name, estimator in reversed(KL.items())}[run.kl_estimator or "k3"]
        straight = "+" if run.kl_gradient == "straight_through" else ""
        guess |= {
            f"{ACTOR}use_kl_loss": True,
            f"{ACTOR}kl_loss_coef": run.beta,
            f"{ACTOR}kl_loss_type": name + straight,
        }
    if (weight := run.sampler_correction) is not None:
        bounds = f"{weight.low:g}_{weight.high:g}" if weight.mode == "mask" else weight.high
        guess |= {f"{CORRECTION}rollout_is": weight.level, f"{CORRECTION}rollout_is_threshold": bounds}
    if isinstance(run.model, PretrainedModel):
        guess[MODEL] = run.model.path
    return guess


def shown(options: Options) -> str:
    """`key=value`, a line for each."""
    lines = []
    for name, value in options.items():
        infinite = isinstance(value, float) and math.isinf(value)
        written = ".inf" if infinite else "null" if value is None else str(value).replace(" ", "")
        lines.append(f"{name}={written}")
    return "\n".join(lines)


def own_way(settings: RunSettings) -> Iterator[str]:
    """Where verl computes something else by the same options."""
    if settings.kernel == "gmpo" and settings.sampler_correction is not None:
        yield "geo_mean takes the geometric mean of a sequence's sampler weights"


CONFIG = Config(read, options, unread, defaults, loss, run, left_out, guesses, own_way, shown)
