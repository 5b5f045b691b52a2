"""Translate each framework's loss options into our settings. Imports no torch, so that readers of configs can use it.

A section is a table (option -> the framework's default; commits are in the framework's own file), the names that its
values have here, and the function that translates options, which raises ValueError for what the framework or our
settings lack. verl, TRL, SkyRL and ROLL, which have many options, have files of their own; `OPTIONS` has all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from grpolab.errors import choose
from grpolab.frameworks import roll_options, skyrl_options, trl_options, verl_options
from grpolab.settings.objective import Objective, SamplerCorrection, kl_axes

KL = {name: name for name in ("k1", "k2", "k3")}

# AReaL: `PPOActorConfig`. Its KL (`kl_ctl`) is in the reward.
AREAL: dict[str, Any] = {
    "importance_sampling_level": "token", "eps_clip": 0.2, "eps_clip_higher": None, "c_clip": None,
    "use_sapo_loss": False, "sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05, "rejection_sampling": None, "kl_estimator": "k1",
}  # fmt: skip
AREAL_LEVEL = {name: name for name in ("token", "sequence")}
# `rejection_sampling` -> its defaults where it is there, and what its values mean here.
REJECTION: dict[str, Any] = {
    "level": "token", "action": "mask", "metric": "ratio", "agg": "mean", "upper": 5.0, "lower": None,
}  # fmt: skip
REJECTION_VALUES = {
    "level": {"token": "token", "sequence": "geometric"},
    "action": {"mask": "mask", "clamp": "truncate"},
    "metric": {"ratio": "ratio", "kl_k1": "k1", "kl_k2": "k2", "kl_k3": "k3"},
    "agg": {name: name for name in ("sum", "mean", "max")},
}


def areal(options: Mapping[str, Any]) -> Objective:
    """Translate options of `PPOActorConfig`."""
    o, correction = AREAL | dict(options), None
    sapo = {"temperature_positive": o["sapo_tau_pos"], "temperature_negative": o["sapo_tau_neg"]}
    if o["rejection_sampling"] is not None:  # the behaviour weight, geometric mean of a sequence's
        rule = REJECTION | dict(o["rejection_sampling"])
        level, mode, metric, _ = (
            choose("AReaL", f"rejection_sampling.{name}", rule[name], values)
            for name, values in REJECTION_VALUES.items()
        )
        level = level if metric == "ratio" else "token"
        correction = SamplerCorrection.of(level, "truncate", 0.0, math.inf)  # the other bounds only change the mask
        if bounds_the_weight(rule):
            correction = SamplerCorrection.of(level, mode, rule["lower"] or 0.0, rule["upper"])
    return Objective.of(
        importance_sampling_level=choose(
            "AReaL", "importance_sampling_level", o["importance_sampling_level"], AREAL_LEVEL
        ),
        kernel="sapo" if o["use_sapo_loss"] else "clipped",
        kernel_options=sapo if o["use_sapo_loss"] else {},
        epsilon=o["eps_clip"],
        epsilon_high=o["eps_clip_higher"],
        dual_clip=o["c_clip"],
        loss_form="max_negative",
        kl_estimator=choose("AReaL", "kl_estimator", o["kl_estimator"], KL),
        kl_output_clamp=10.0,
        sampler_correction=correction,
    )


def bounds_the_weight(rule: Mapping[str, Any]) -> bool:
    """Return True if AReaL's rejection bounds the behaviour weight itself, instead of a KL, a sum or a maximum."""
    return (rule["metric"], rule["agg"]) == ("ratio", "mean")


# DeepSpeed-Chat: fields that `DeepSpeedPPOTrainer.__init__` sets. Its KL is in the reward.
DEEPSPEED_CHAT: dict[str, Any] = {"cliprange": 0.2}


def deepspeed_chat(options: Mapping[str, Any]) -> Objective:
    """Translate the trainer's fields."""
    o = DEEPSPEED_CHAT | dict(options)
    return Objective.of(epsilon=o["cliprange"], loss_form="max_negative", kl_estimator="k1")


# NeMo-RL: `ClippedPGLossConfig`.
NEMO_RL: dict[str, Any] = {
    "ratio_clip_min": 0.2, "ratio_clip_max": 0.2, "ratio_clip_c": None,
    "disable_ppo_ratio": False, "force_on_policy_ratio": False, "use_cispo": False,
    "token_level_loss": True, "sequence_level_importance_ratios": False,
    "reference_policy_kl_penalty": 0.01, "reference_policy_kl_type": "k3", "use_on_policy_kl_approximation": False,
    "kl_input_clamp_value": 20.0, "kl_output_clamp_value": 10.0,
    "use_importance_sampling_correction": False, "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio": None, "truncated_importance_sampling_ratio_min": None,
}  # fmt: skip
# The first of these that is on decides the kernel.
NEMO_RL_KERNEL = {"disable_ppo_ratio": "policy_gradient", "force_on_policy_ratio": "ratio", "use_cispo": "cispo"}
TRUNCATION = {None: "truncate", "tis": "truncate", "icepop": "mask", "seq-mask-tis": "mask"}


def nemo_rl(options: Mapping[str, Any]) -> Objective:
    """Translate NeMo-RL's options; with `force_on_policy_ratio` the old policy is the current one."""
    o, correction = NEMO_RL | dict(options), None
    level = "sequence" if o["sequence_level_importance_ratios"] else "token"
    if o["use_importance_sampling_correction"]:
        kind, high = o["truncated_importance_sampling_type"], o["truncated_importance_sampling_ratio"]
        mode = choose("NeMo-RL", "truncated_importance_sampling_type", kind, TRUNCATION)
        if kind is None:
            high = math.inf
        elif high is None:
            raise ValueError(f"truncated_importance_sampling_type={kind} needs truncated_importance_sampling_ratio")
        # seq-mask-tis keeps or drops a whole row; each token then has a weight of its own.
        of = "geometric" if kind == "seq-mask-tis" else level
        correction = SamplerCorrection.of(of, mode, o["truncated_importance_sampling_ratio_min"] or 0.0, high)
    return Objective.of(
        importance_sampling_level=level,
        kernel=next((kernel for option, kernel in NEMO_RL_KERNEL.items() if o[option]), "clipped"),
        epsilon=o["ratio_clip_min"],
        epsilon_high=o["ratio_clip_max"],
        dual_clip=o["ratio_clip_c"],
        loss_form="max_negative",
        aggregation="token_mean_minibatch" if o["token_level_loss"] else "sequence_mean_nonempty",
        beta=o["reference_policy_kl_penalty"],
        kl_estimator=choose("NeMo-RL", "reference_policy_kl_type", o["reference_policy_kl_type"], KL),
        kl_gradient="importance_weighted" if o["use_on_policy_kl_approximation"] else "score_function",
        kl_input_clamp=o["kl_input_clamp_value"],
        kl_output_clamp=o["kl_output_clamp_value"],
        sampler_correction=correction,
    )


# open-instruct: `GRPOExperimentConfig`.
RHO = 2.0  # default bound of the sampler's weight rho, which also holds after a mask
OPEN_INSTRUCT: dict[str, Any] = {
    "loss_fn": "dapo", "clip_lower": 0.2, "clip_higher": 0.272, "loss_denominator": "token",
    "beta": 0.05, "kl_estimator": 2, "use_rho_correction": True,
    "rho_clamp_lower_bound": 0.0, "rho_clamp_upper_bound": RHO,  # 0 is no bound, here and below
    "rho_mask_lower_bound": 0.0, "rho_mask_upper_bound": 0.0,
    "rho_mask_sequence_level": False, "rho_mask_tv_divergence": False,
}  # fmt: skip
OPEN_INSTRUCT_KERNEL = {"dapo": "clipped", "cispo": "cispo"}
# `kl_estimator`, the place in this row -> estimator and gradient.
OPEN_INSTRUCT_KL = (("k1", "plain"), ("k2", "plain"), ("k3", "plain"), ("k1", "importance_weighted"))
OPEN_INSTRUCT_CLAMP = 40.0  # of the log ratio to the reference


def open_instruct(options: Mapping[str, Any]) -> Objective:
    """Translate options of `GRPOExperimentConfig`."""
    o, correction = OPEN_INSTRUCT | dict(options), None
    kernel = choose("open-instruct", "loss_fn", o["loss_fn"], OPEN_INSTRUCT_KERNEL)
    kl = choose("open-instruct", "kl_estimator", o["kl_estimator"], dict(enumerate(OPEN_INSTRUCT_KL)))
    if o["use_rho_correction"]:  # the mask's bounds if there is one, else the clamp's
        level = "geometric" if o["rho_mask_sequence_level"] else "token"
        level = "tv" if o["rho_mask_tv_divergence"] else level  # exists in this framework only
        low, high, mode = o["rho_mask_lower_bound"], o["rho_mask_upper_bound"], "mask"
        clamps = o["rho_clamp_lower_bound"], o["rho_clamp_upper_bound"]
        if not (low or high):
            low, high, mode = *clamps, "truncate"
        elif clamps != (0.0, RHO):
            raise ValueError(f"rho is masked, and clamped to {list(clamps)}: only [0.0, {RHO}] has a place on our axes")
        correction = SamplerCorrection.of(level, mode, low, high or math.inf)
    return Objective.of(
        kernel=kernel,
        epsilon=1.0 if kernel == "cispo" else o["clip_lower"],  # cispo has no lower bound
        epsilon_high=o["clip_higher"],
        loss_form="max_negative",
        aggregation="token_mean_minibatch" if o["loss_denominator"] == "token" else "token_sum_constant",
        beta=o["beta"],
        kl_estimator=kl[0],
        kl_gradient=kl[1],
        kl_input_clamp=OPEN_INSTRUCT_CLAMP,
        sampler_correction=correction,
    )


# OpenRLHF: arguments of `PolicyLoss`, and of the actor's loss (`algo.kl.*`, `actor.entropy_coef`).
OPENRLHF: dict[str, Any] = {
    "policy_loss_type": "ppo", "clip_eps_low": 0.2, "clip_eps_high": 0.2, "dual_clip": None, "token_level_loss": True,
    "enable_vllm_is_correction": False, "vllm_is_correction_type": "tis", "vllm_is_truncated_threshold": (0.5, 5.0),
    "kl_use_loss": False, "kl_init_coef": 0.01, "kl_estimator": "k1", "entropy_coef": None,
}  # fmt: skip
OPENRLHF_LEVEL = {"ppo": "token", "gspo": "sequence"}
OPENRLHF_CORRECTION = {  # type -> level and mode
    "tis": ("token", "truncate"), "icepop": ("token", "mask"), "seq-mask-tis": ("geometric", "mask"),
}  # fmt: skip
OPENRLHF_KL_CLAMP = 10.0


def openrlhf(options: Mapping[str, Any]) -> Objective:
    """Translate OpenRLHF's arguments."""
    o, correction = OPENRLHF | dict(options), None
    level = choose("OpenRLHF", "policy_loss_type", o["policy_loss_type"], OPENRLHF_LEVEL)
    kind = choose("OpenRLHF", "vllm_is_correction_type", o["vllm_is_correction_type"], OPENRLHF_CORRECTION)
    estimator = choose("OpenRLHF", "kl_estimator", o["kl_estimator"], KL)
    if o["dual_clip"] is not None and o["dual_clip"] <= 1:
        raise ValueError(f"dual_clip={o['dual_clip']} must be more than 1")
    ppo = level == "token"  # gspo has the ratio to the sampler's policy instead of a weight
    if ppo and o["enable_vllm_is_correction"]:
        correction = SamplerCorrection.of(*kind, *o["vllm_is_truncated_threshold"])
    kl = kl_axes(o["kl_init_coef"], estimator, output_clamp=OPENRLHF_KL_CLAMP)
    if not o["kl_use_loss"]:
        kl["beta"] = 0.0  # it is in the reward
    return Objective.of(
        importance_sampling_level=level,
        log_ratio_clamp=20.0 if ppo else None,
        epsilon=o["clip_eps_low"],
        epsilon_high=o["clip_eps_high"],
        dual_clip=o["dual_clip"],
        aggregation="token_mean_minibatch" if ppo and o["token_level_loss"] else "sequence_mean_nonempty",
        **kl,
        entropy_coef=o["entropy_coef"] or 0.0,
        sampler_correction=correction,
    )


# prime-rl: `DefaultLossConfig`, or `IPOLossConfig` (type `ipo`).
PRIME_RL: dict[str, Any] = {
    "type": "default", "dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "ipo_threshold": 0.1,
    "adv_tau": 1.0, "kl_tau": 1e-3,
}  # fmt: skip
# Type -> kernel, and the options that are its lower and upper bound.
PRIME_RL_LOSSES = {
    "default": ("dppo_ratio", "dppo_mask_low", "dppo_mask_high"),
    "ipo": ("ipo", "ipo_threshold", "ipo_threshold"),
}


def prime_rl(options: Mapping[str, Any]) -> Objective:
    """Translate options of a loss of prime-rl."""
    o = PRIME_RL | dict(options)
    kernel, low, high = choose("prime-rl", "type", o["type"], PRIME_RL_LOSSES)
    return Objective.of(
        kernel=kernel,
        kernel_options={"advantage_weight": o["adv_tau"], "drift_weight": o["kl_tau"]},
        epsilon=o[low],
        epsilon_high=o[high],
        kl_estimator=None,
        kl_gradient=None,
    )


# slime: its arguments, with `_` for `-`.
SLIME: dict[str, Any] = {
    "advantage_estimator": "grpo", "eps_clip": 0.2, "eps_clip_high": None, "eps_clip_c": None,
    "calculate_per_token_loss": False, "entropy_coef": 0.0,
    "use_kl_loss": False, "kl_loss_coef": 0.0, "kl_loss_type": "k1", "use_unbiased_kl": False,
    "use_tis": False, "tis_clip": 2.0, "tis_clip_low": 0.0, "custom_tis_function_path": None,
    "use_opsm": False, "opsm_delta": 1e-4,
}  # fmt: skip
# Estimator -> ratio level and kernel.
SLIME_ESTIMATORS = {
    **dict.fromkeys(("grpo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"), ("token", "clipped")),
    "gspo": ("sequence", "clipped"),
    "cispo": ("token", "cispo"),
}
SLIME_KL = KL | {"low_var_kl": "k3"}


def slime(options: Mapping[str, Any]) -> Objective:
    """Translate slime's arguments."""
    o, correction = SLIME | dict(options), None
    level, kernel = choose("slime", "advantage_estimator", o["advantage_estimator"], SLIME_ESTIMATORS)
    estimator = choose("slime", "kl_loss_type", o["kl_loss_type"], SLIME_KL)
    if o["eps_clip_c"] is not None and o["eps_clip_c"] <= 1:
        raise ValueError(f"eps_clip_c={o['eps_clip_c']} must be more than 1")
    if o["use_tis"]:  # slime takes the path of any function; here it is the one of its example
        mode = "mask" if str(o["custom_tis_function_path"]).endswith("icepop_function") else "truncate"
        correction = SamplerCorrection.of("token", mode, o["tis_clip_low"], o["tis_clip"])
    gradient = "importance_weighted" if o["use_unbiased_kl"] else "plain"
    clamp = 10.0 if o["kl_loss_type"] == "low_var_kl" else None
    return Objective.of(
        importance_sampling_level=level,
        kernel=kernel,
        epsilon=o["eps_clip"],
        epsilon_high=o["eps_clip_high"],
        dual_clip=None if kernel == "cispo" else o["eps_clip_c"],
        loss_form="max_negative",
        aggregation="token_mean_minibatch" if o["calculate_per_token_loss"] else "sequence_mean",
        **kl_axes(o["kl_loss_coef"] if o["use_kl_loss"] else 0.0, estimator, gradient, output_clamp=clamp),
        entropy_coef=o["entropy_coef"],
        off_policy_mask_threshold=o["opsm_delta"] if o["use_opsm"] else None,
        sampler_correction=correction,
    )


# torchtune: the loss's class (`loss`) and its arguments.
TORCHTUNE: dict[str, Any] = {"loss": "GRPOLoss", "epsilon": 0.1, "kl_coeff": 0.1}
# Class -> ratio level, kernel, aggregation. `sequence` is here the product over the batch (see torchtune.py).
TORCHTUNE_LOSSES = {
    "GRPOLoss": ("token", "clipped", "token_mean_minibatch"),
    "GRPOSimpleLoss": ("token", "ratio", "sequence_mean"),
    "GRPOCompletionLoss": ("sequence", "clipped", "sequence_mean"),
}


def torchtune(options: Mapping[str, Any]) -> Objective:
    """Translate a loss's class and arguments; `GRPOSimpleLoss` also means that old = current."""
    o = TORCHTUNE | dict(options)
    level, kernel, aggregation = choose("torchtune", "loss", o["loss"], TORCHTUNE_LOSSES)
    return Objective.of(level, kernel, o["epsilon"], aggregation=aggregation, beta=o["kl_coeff"])


# Framework -> its options with their defaults, and the function that translates them.
OPTIONS: dict[str, tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Objective]]] = {
    "trl": (trl_options.LOSS, trl_options.objective),
    "verl": (verl_options.LOSS, verl_options.objective),
    "roll": (roll_options.LOSS, roll_options.objective),
    "openrlhf": (OPENRLHF, openrlhf),
    "slime": (SLIME, slime),
    "areal": (AREAL, areal),
    "nemo_rl": (NEMO_RL, nemo_rl),
    "open_instruct": (OPEN_INSTRUCT, open_instruct),
    "prime_rl": (PRIME_RL, prime_rl),
    "skyrl": (skyrl_options.LOSS, skyrl_options.objective),
    "torchtune": (TORCHTUNE, torchtune),
    "deepspeed_chat": (DEEPSPEED_CHAT, deepspeed_chat),
}
