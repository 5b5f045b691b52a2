"""verl 1dda039b (2026-08-22): the overrides of `verl.trainer.main_ppo`, what they are here, read and written.

Of the hundreds of keys in verl/trainer/config/, those of the actor, the algorithm and the sizes of batches decide what
is learnt. The others are passed over; an unknown key of the actor or the algorithm is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from grpolab.errors import RequestError
from grpolab.frameworks.config_files import File, mapping, words
from grpolab.frameworks.exchange import (
    Config,
    Given,
    Options,
    flat,
    refuse_unknown,
    refuse_wrong_counts,
    refuse_wrong_types,
)
from grpolab.frameworks.names import VERL_NAMES
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
    f"{ACTOR}grad_clip": 1.0,
    **{ACTOR + name: value for name, value in LOSS.items() if not isinstance(value, dict)},
    **{f"{ACTOR}policy_loss.{name}": value for name, value in LOSS["policy_loss"].items()},
    f"{ACTOR}optim.lr": 1e-6,
    f"{ACTOR}optim.weight_decay": 0.01,
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
# Keys of actor and algorithm, or sections of them, that change no result here; and every top-level section.
# fmt: off
_OF_ACTOR = [
    "_target_", "rollout_n", "strategy", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz",
    "ppo_infer_micro_batch_size_per_gpu", "ppo_infer_max_token_len_per_gpu", "ppo_max_token_len_per_gpu",
    "freeze_vision_tower", "calculate_entropy", "calculate_sum_pi_squared", "use_prefix_grouper",
    "use_torch_compile", "shuffle", "data_loader_seed", "checkpoint", "use_fused_kernels", "profiler",
    "router_replay", "qat", "fsdp_config", "megatron", "veomni", "torchtitan", "ulysses_sequence_parallel_size",
    "entropy_from_logits_with_chunking", "use_remove_padding", "entropy_from_logits_chunk_size",
    "entropy_checkpointing", "pad_to_length", "load_weight", "use_rollout_log_probs", "policy_loss._target_",
    "optim._target_", "optim.optimizer", "optim.optimizer_impl", "optim.min_lr_ratio", "optim.lr_min",
    "optim.lr_start", "optim.lr_decay_ratio", "optim.num_cycles", "optim.warmup_style", "optim.zero_indexed_step",
    "optim.override_optimizer_config", "optim.total_training_steps", "optim.clip_grad", "optim.grad_clip",
    "optim.lr_warmup_init", "optim.lr_decay_steps", "optim.lr_decay_style", "optim.lr_warmup_style",
    "optim.weight_decay_incr_style", "optim.lr_wsd_decay_style", "optim.lr_wsd_decay_steps",
    "optim.use_checkpoint_opt_param_scheduler",
]
_OF_ALGORITHM = [
    "_target_", "gamma", "lam", "kl_ctrl.horizon", "kl_ctrl.target_kl", "kl_ctrl._target_", "filter_groups",
    "pf_ppo", "rollout_correction.rollout_rs_threshold", "rollout_correction._target_",
]
SECTIONS = {
    "actor_rollout_ref", "algorithm", "data", "trainer", "critic", "reward", "reward_model",
    "custom_reward_function", "reward_manager", "sandbox_fusion", "distillation", "transfer_queue",
    "global_profiler", "skip", "ray_kwargs", "hydra", "defaults", "model_engine", "global_batch_info",
}
# fmt: on
PASSED_OVER = [*(ACTOR + name for name in _OF_ACTOR), *(ALGORITHM + name for name in _OF_ALGORITHM)]

PROMPTS, GROUP = "data.train_batch_size", "actor_rollout_ref.rollout.n"
MINI, EPOCHS = f"{ACTOR}ppo_mini_batch_size", f"{ACTOR}ppo_epochs"
ESTIMATOR, BY_STD = f"{ALGORITHM}adv_estimator", f"{ALGORITHM}norm_adv_by_std_in_grpo"
MODE, CORRECTION = f"{ACTOR}policy_loss.loss_mode", f"{ALGORITHM}rollout_correction."
NEVER = 1e9  # above e^20, the largest ratio that verl knows
BETAS, SCHEDULE = f"{ACTOR}optim.betas", f"{ACTOR}optim.lr_scheduler_type"
SCHEDULES = ("constant", "cosine")
TOTAL_STEPS, MODEL = "trainer.total_training_steps", "actor_rollout_ref.model.path"
COUNTS = (PROMPTS, GROUP, MINI, EPOCHS)
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


def read(file: File) -> Given:
    """The keys of a YAML or JSON file, or of the `key=value` words of a script."""
    return Given(words(file) if file.kind in ("shell", "words") else mapping(file))


def options(given: Given) -> Options:
    """All keys that matter, dotted, defaults filled in. Raises RequestError for a key that verl does not have."""
    named = flat(given.options)
    refuse_unknown("verl", [name for name in named if not _known(name)], [*CARRIED, *PASSED_OVER])
    options = CARRIED | {name: value for name, value in named.items() if name in CARRIED}
    refuse_wrong_types("verl", options, CARRIED)
    refuse_wrong_counts("verl", options, COUNTS)
    if options[PROMPTS] % options[MINI]:
        raise RequestError(f"verl: {MINI}={options[MINI]} must divide {PROMPTS}={options[PROMPTS]}, both in prompts")
    if not isinstance(options[BETAS], list | tuple) or len(options[BETAS]) != 2:
        raise RequestError(f"verl: {BETAS}={options[BETAS]} is not allowed: it must be a list of two numbers")
    if options[SCHEDULE] not in SCHEDULES:
        raise RequestError(f"verl: {SCHEDULE}={options[SCHEDULE]} is not allowed: it is one of {', '.join(SCHEDULES)}")
    if options[f"{CORRECTION}bypass_mode"]:
        options[MODE] = "bypass_mode"
    return options


def _known(name: str) -> bool:
    """A key of the loss must be one that verl has; what stands elsewhere is passed over."""
    if name.startswith((ACTOR, ALGORITHM)):
        return name in CARRIED or any(f"{name}.".startswith(f"{known}.") for known in PASSED_OVER)
    return name.partition(".")[0] in SECTIONS


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
    warmup = options[f"{ACTOR}optim.lr_warmup_steps"]
    values: Options = {ours: options[theirs] for theirs, ours in VERL_NAMES.items()}
    values |= {
        "num_minibatches": options[PROMPTS] // options[MINI],
        "advantage_estimator": baseline,
        "scale_rewards": scale or ("group" if options[BY_STD] else "none"),
        "whiten_advantages": whitening,
        "warmup_steps": max(warmup, 0),
        "adam_beta1": options[BETAS][0],
        "adam_beta2": options[BETAS][1],
        "warm_start.max_steps": 0,
        "old_log_probs": "sampler" if options[MODE] == "bypass_mode" else "trainer",
    }
    if options[f"{ALGORITHM}use_kl_in_reward"]:
        values |= {"beta": options[f"{ALGORITHM}kl_ctrl.kl_coef"], "kl_estimator": "k1", "kl_gradient": "plain"}
        values |= {"kl_placement": "reward", "kl_input_clamp": None, "kl_output_clamp": None}
    if options[TOTAL_STEPS] is not None:
        values["rollout_steps"] = options[TOTAL_STEPS]
    if options[MODEL]:
        values |= {"model": "pretrained", "model.path": options[MODEL]}
    return values


def unread(_given: Given) -> Iterator[str]:
    """Nothing: a key that verl does not have is refused."""
    yield from ()


def defaults(_given: Given) -> Iterator[str]:
    """Nothing yet."""
    yield from ()


def left_out(options: Options) -> Iterator[str]:
    """What of verl's has no counterpart here."""
    if options[ESTIMATOR] not in ESTIMATORS:
        yield f"{ESTIMATOR}={options[ESTIMATOR]}: here it is one of {', '.join(ESTIMATORS)}; grpo stands for it"
    for name, says in NOT_CARRIED.items():
        if options[name] != CARRIED[name]:
            yield f"{name}={options[name]}: {says}"
    if options[f"{ALGORITHM}use_kl_in_reward"] and options[f"{ALGORITHM}kl_penalty"] not in ("kl", "k1"):
        yield f"{ALGORITHM}kl_penalty={options[f'{ALGORITHM}kl_penalty']}: the KL in the reward is k1 here"
    if options[f"{ALGORITHM}use_kl_in_reward"] and options[f"{ACTOR}use_kl_loss"]:
        yield f"{ACTOR}use_kl_loss=True: there is one KL here, and the one in the reward is kept"
    if options[TOTAL_STEPS] is None:
        yield "trainer.total_epochs: set rollout_steps, the length of a run here"
    scale = options[f"{ACTOR}loss_scale_factor"]
    if scale is not None and scale != options["data.max_response_length"]:
        yield f"{ACTOR}loss_scale_factor={scale}: token_sum_constant divides by max_completion_length here"


NOT_CARRIED = {
    f"{CORRECTION}rollout_rs": "nothing is rejected here",
    f"{CORRECTION}rollout_is_batch_normalize": "sampler weights are not normalised here",
    f"{ALGORITHM}filter_groups.enable": "groups are not sampled again here",
    f"{ALGORITHM}use_pf_ppo": "there is no preference feedback here",
    f"{ALGORITHM}kl_ctrl.type": "the weight of the KL is fixed here",
    f"{ACTOR}optim.lr_warmup_steps_ratio": "give warmup_steps",
    "actor_rollout_ref.rollout.top_p": "sampling is never truncated here",
    "actor_rollout_ref.rollout.top_k": "sampling is never truncated here",
}


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
