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
from grpolab.frameworks.objectives import kl_axes, make_correction, make_objective
from grpolab.settings.objective import Objective, SamplerCorrection

KL = {name: name for name in ("k1", "k2", "k3")}

# AReaL: `PPOActorConfig`. Its KL (`kl_ctl`) is in the reward.
AREAL: dict[str, Any] = {
    "importance_sampling_level": "token", "eps_clip": 0.2, "eps_clip_higher": None, "c_clip": None,
    "use_sapo_loss": False, "sapo_tau_pos": 1.0, "sapo_tau_neg": 1.05, "use_cispo_loss": False,
    "rejection_sampling": None, "kl_estimator": "k1",
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
    kernel, sapo = "clipped", {"temperature_positive": o["sapo_tau_pos"], "temperature_negative": o["sapo_tau_neg"]}
    if o["use_cispo_loss"]:
        kernel = "cispo"
        if o["use_sapo_loss"] or not (o["eps_clip_higher"] or 0) > 0:
            raise ValueError("use_cispo_loss=True needs use_sapo_loss=False and an eps_clip_higher above 0")
        if o["importance_sampling_level"] != "token":
            raise ValueError(f"importance_sampling_level={o['importance_sampling_level']}: with CISPO it must be token")
    elif o["use_sapo_loss"]:
        kernel = "sapo"
    if o["rejection_sampling"] is not None:  # the behaviour weight, geometric mean of a sequence's
        rule = REJECTION | dict(o["rejection_sampling"])
        level, mode, metric, _ = (
            choose("AReaL", f"rejection_sampling.{name}", rule[name], values)
            for name, values in REJECTION_VALUES.items()
        )
        level = level if metric == "ratio" else "token"
        correction = make_correction(level, "truncate", 0.0, math.inf)  # the other bounds only change the mask
        if bounds_the_weight(rule):
            correction = make_correction(level, mode, rule["lower"] or 0.0, rule["upper"])
    return make_objective(
        importance_sampling_level=choose(
            "AReaL", "importance_sampling_level", o["importance_sampling_level"], AREAL_LEVEL
        ),
        kernel=kernel,
        kernel_options=sapo if kernel == "sapo" else {},
        epsilon=o["eps_clip"],
        epsilon_high=o["eps_clip_higher"],
        dual_clip=o["c_clip"] if kernel != "cispo" else None,
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
    return make_objective(epsilon=o["cliprange"], loss_form="max_negative", kl_estimator="k1")


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
        correction = make_correction(of, mode, o["truncated_importance_sampling_ratio_min"] or 0.0, high)
    return make_objective(
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
        correction = make_correction(level, mode, low, high or math.inf)
    return make_objective(
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


# OpenRLHF: arguments of `PolicyLoss`, and of the actor's loss (`algo.kl.*`, `actor.entropy_coef`); the row before the
# last has the names until 0.11.0.
OPENRLHF: dict[str, Any] = {
    "policy_loss_type": "ppo", "clip_eps_low": 0.2, "clip_eps_high": 0.2, "dual_clip": None, "token_level_loss": True,
    "loss_agg_mode": "token-mean", "is_correction_level": "off", "is_correction_mode": "mask",
    "is_correction_gating": "ratio", "is_correction_threshold": (0.5, 5.0),
    "enable_vllm_is_correction": False, "vllm_is_correction_type": "tis", "vllm_is_truncated_threshold": None,
    "kl_use_loss": False, "kl_init_coef": 0.01, "kl_estimator": "k1", "entropy_coef": None,
}  # fmt: skip
OPENRLHF_LEVEL = {"ppo": "token", "gspo": "sequence"}
OPENRLHF_CORRECTION = {  # type until 0.11.0 -> level and mode
    "tis": ("token", "truncate"), "icepop": ("token", "mask"), "seq-mask-tis": ("geometric", "mask"),
}  # fmt: skip
OPENRLHF_UNIT = {"token": "token", "seq": "geometric"}
OPENRLHF_TREATMENT = {"mask": "mask", "clip": "truncate"}
OPENRLHF_BY_TOKEN = {"token-mean": True, "seq-mean-token-mean": False}
OPENRLHF_KL_CLAMP = 10.0


def openrlhf(options: Mapping[str, Any]) -> Objective:
    """Translate OpenRLHF's arguments."""
    o = OPENRLHF | dict(options)
    level = choose("OpenRLHF", "policy_loss_type", o["policy_loss_type"], OPENRLHF_LEVEL)
    estimator = choose("OpenRLHF", "kl_estimator", o["kl_estimator"], KL)
    by_token = choose("OpenRLHF", "loss_agg_mode", o["loss_agg_mode"], OPENRLHF_BY_TOKEN) and o["token_level_loss"]
    if o["dual_clip"] is not None and o["dual_clip"] <= 1:
        raise ValueError(f"dual_clip={o['dual_clip']} must be more than 1")
    correction, ppo = openrlhf_correction(o), level == "token"
    kl = kl_axes(o["kl_init_coef"], estimator, output_clamp=OPENRLHF_KL_CLAMP)
    if not o["kl_use_loss"]:
        kl["beta"] = 0.0  # it is in the reward
    return make_objective(
        importance_sampling_level=level,
        log_ratio_clamp=20.0 if ppo else None,
        epsilon=o["clip_eps_low"],
        epsilon_high=o["clip_eps_high"],
        dual_clip=o["dual_clip"],
        aggregation="token_mean_minibatch" if ppo and by_token else "sequence_mean_nonempty",
        **kl,
        entropy_coef=o["entropy_coef"] or 0.0,
        sampler_correction=correction if ppo else None,  # gspo has the ratio to the sampler's policy instead
    )


def openrlhf_correction(o: Mapping[str, Any]) -> SamplerCorrection | None:
    """Translate the correction for the sampler, by its names since 0.11.2 or before."""
    kind = choose("OpenRLHF", "vllm_is_correction_type", o["vllm_is_correction_type"], OPENRLHF_CORRECTION)
    if o["enable_vllm_is_correction"]:
        return make_correction(*kind, *(o["vllm_is_truncated_threshold"] or o["is_correction_threshold"]))
    if o["is_correction_level"] == "off":
        return None
    unit = choose("OpenRLHF", "is_correction_level", o["is_correction_level"], OPENRLHF_UNIT)
    mode = choose("OpenRLHF", "is_correction_mode", o["is_correction_mode"], OPENRLHF_TREATMENT)
    choose("OpenRLHF", "is_correction_gating", o["is_correction_gating"], {"ratio": "ratio"})
    if (unit, mode) == ("geometric", "truncate"):
        raise ValueError("is_correction_mode=clip needs is_correction_level=token")
    low, high = (0.0, *o["is_correction_threshold"])[-2:]  # a single number is the upper bound
    return make_correction(unit, mode, low, high)


# prime-rl: `IPOLossConfig`, or another class by `type`; the second row is of versions until August or September 2026.
PRIME_RL: dict[str, Any] = {
    "type": "ipo", "eps": 0.3, "max_importance_ratio": 1e4, "ratio_low": None, "ratio_high": None, "adv_tau": 1.0,
    "dppo_mask_low": None, "dppo_mask_high": None, "ipo_threshold": None, "kl_tau": None,
    "score_centering": False,
}  # fmt: skip
PRIME_RL_BEFORE = {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "ipo_threshold": 0.1, "kl_tau": 1e-3}  # v0.8.1
PRIME_RL_TYPES = ("default", "ipo", "icepop", "ppo", "cispo")  # `default` was there until August 2026
# Type -> kernel, default of `ratio_low` and `ratio_high`.
PRIME_RL_BANDS = {"icepop": ("icepop", 0.2, 5.0), "ppo": ("clipped", 0.8, 1.2), "cispo": ("cispo", 0.0, 5.0)}


def prime_rl(options: Mapping[str, Any]) -> Objective:
    """Translate options of a loss of prime-rl, or of one until September 2026, known by the options that it alone has.

    Where both ends of DPPO's mask are given and no type, the loss is v0.8.1's default; with `ipo_threshold`, or a
    `kl_tau` that is not 0, it is the `ipo` with the pull back.
    """
    o = PRIME_RL | dict(options)
    kind = choose("prime-rl", "type", o["type"], {name: name for name in PRIME_RL_TYPES})
    if o["score_centering"]:
        raise ValueError(
            "score_centering=True needs the sampler's log-probs of all tokens: only False has a place here"
        )
    if kind in PRIME_RL_BANDS:
        kernel, *bounds = PRIME_RL_BANDS[kind]
        given = o["ratio_low"], o["ratio_high"]
        low, high = (bound if value is None else value for value, bound in zip(given, bounds, strict=True))
        if o["adv_tau"] != 1:
            raise ValueError(f"adv_tau={o['adv_tau']} has no place on our axes with type={kind}, only 1 has")
        return _prime_rl_loss(kernel, {}, round(1 - low, 12), round(high - 1, 12))  # 1 - .8 is .2 here
    of_before = PRIME_RL_BEFORE | {key: o[key] for key in PRIME_RL_BEFORE if o[key] is not None}
    drift = {"advantage_weight": o["adv_tau"], "drift_weight": of_before["kl_tau"]}
    if kind == "default" or o["dppo_mask_low"] is not None or o["dppo_mask_high"] is not None:
        return _prime_rl_loss("dppo_ratio", drift, of_before["dppo_mask_low"], of_before["dppo_mask_high"])
    if o["ipo_threshold"] is not None or o["kl_tau"]:
        eps = o["eps"] if o["ipo_threshold"] is None else o["ipo_threshold"]
        return _prime_rl_loss("ipo", drift, eps, eps)
    cap = {"advantage_weight": o["adv_tau"], "cap": o["max_importance_ratio"]}
    return _prime_rl_loss("ipo_capped", cap, o["eps"], o["eps"])


def _prime_rl_loss(kernel: str, numbers: Mapping[str, float], low: float, high: float) -> Objective:
    return make_objective(
        kernel=kernel, kernel_options=numbers, epsilon=low, epsilon_high=high, kl_estimator=None, kl_gradient=None
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
        correction = make_correction("token", mode, o["tis_clip_low"], o["tis_clip"])
    gradient = "importance_weighted" if o["use_unbiased_kl"] else "plain"
    clamp = 10.0 if o["kl_loss_type"] == "low_var_kl" else None
    return make_objective(
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
    return make_objective(level, kernel, o["epsilon"], aggregation=aggregation, beta=o["kl_coeff"])


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
