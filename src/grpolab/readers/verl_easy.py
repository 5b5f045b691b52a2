"""EasyR1, a fork of verl: its keys (b44b311, 2026-07-30: verl/trainer/config.py, examples/config.yaml) as verl's."""

from __future__ import annotations

from typing import Any

from grpolab.readers import verl_keys as keys
from grpolab.readers.given import Options
from grpolab.readers.verl_keys import ACTOR, ALGORITHM

SECTION = "worker."  # what its files have, and verl's do not
# Its key -> verl's; any other `worker.KEY` is `actor_rollout_ref.KEY` there.
RENAMED = {
    "data.rollout_batch_size": keys.PROMPTS,
    "data.mini_rollout_batch_size": "data.gen_batch_size",
    "trainer.max_steps": keys.TOTAL_STEPS,
    "algorithm.online_filtering": f"{ALGORITHM}filter_groups.enable",
    "algorithm.kl_type": f"{ALGORITHM}kl_ctrl.type",
    "worker.actor.global_batch_size": keys.MINI,
    "worker.actor.micro_batch_size_per_device_for_update": f"{ACTOR}ppo_micro_batch_size_per_gpu",
    "worker.actor.micro_batch_size_per_device_for_experience": (
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu"
    ),
    "worker.actor.dynamic_batching": f"{ACTOR}use_dynamic_bsz",
    "worker.actor.ulysses_size": f"{ACTOR}ulysses_sequence_parallel_size",
    "worker.actor.max_grad_norm": f"{ACTOR}optim.clip_grad",
    "worker.actor.clip_ratio_dual": f"{ACTOR}clip_ratio_c",
    "worker.actor.tau_positive": f"{ACTOR}tau_pos",
    "worker.actor.tau_negative": f"{ACTOR}tau_neg",
    "worker.actor.loss_type": keys.MODE,
    "worker.actor.loss_avg_mode": keys.AVERAGE,
    "worker.actor.model.model_path": keys.MODEL,
    "worker.actor.model.lora.rank": "actor_rollout_ref.model.lora_rank",
    "worker.actor.model.lora_rank": "actor_rollout_ref.model.lora_rank",
    "worker.actor.optim.lr_warmup_ratio": f"{ACTOR}optim.lr_warmup_steps_ratio",
    "worker.actor.optim.strategy": f"{ACTOR}optim.optimizer",
}
VALUES = {
    keys.MODE: {"default": "vanilla", "gspo_token": "gspo"},
    keys.AVERAGE: {"token": "token-mean", "seq": "seq-mean-token-mean"},
    f"{ACTOR}optim.optimizer": {"adamw_bf16": "AdamW with its moments in bfloat16"},
}
# Whose defaults stand -> those that differ from verl's, and the ones of the KL. Its commands name a base config, mostly
# that of its examples.
_CODE: Options = {keys.PROMPTS: 512, f"{ACTOR}clip_ratio_high": 0.3, keys.ESTIMATOR: "grpo"}
CODE, EXAMPLES = "EasyR1's code", "EasyR1's examples/config.yaml"
DEFAULTS: dict[str, Options] = {
    CODE: {**_CODE, keys.KL_REWARD: True},
    EXAMPLES: {
        **_CODE, keys.MINI: 128, keys.GROUP: 5, "data.max_response_length": 2048, keys.KL_LOSS: True,
        f"{ACTOR}kl_loss_coef": 0.01,
    },
}  # fmt: skip
OF_THE_KL = {
    CODE: {"disable_kl": False, "use_kl_loss": False, "kl_coef": 0.001, "kl_penalty": "kl"},
    EXAMPLES: {"disable_kl": False, "use_kl_loss": True, "kl_coef": 0.01, "kl_penalty": "low_var_kl"},
}
# Section, as renamed -> words that verl does not have, and that change no result.
WORDS = {
    "data": "answer_key image_dir video_fps format_prompt override_chat_template min_pixels max_pixels",
    "trainer": """
        max_try_make_batch val_freq val_generations_to_log save_limit save_model_only save_checkpoint_path
        load_checkpoint_path ray_timeline find_last_checkpoint""",
    "algorithm": "filter_key filter_low filter_high kl_horizon kl_target",
    "actor_rollout_ref": "critic reward hybrid_engine",
    "actor_rollout_ref.actor": "model fsdp offload padding_free",
    "actor_rollout_ref.ref": "fsdp offload",
    "actor_rollout_ref.rollout": "tensor_parallel_size disable_tqdm val_override_config",
}


def translate(named: Options) -> tuple[Options, str, str]:
    """Return EasyR1's keys as verl's, whose defaults stand for the others, and a sentence."""
    options: Options = {}
    for name, value in named.items():
        theirs = RENAMED.get(name, name.replace(SECTION, "actor_rollout_ref.", 1))
        words = VALUES.get(theirs, {})
        options[theirs] = words.get(value, value) if isinstance(value, str) else value
    base = options.pop("config", None)
    fork = EXAMPLES if str(base).endswith("examples/config.yaml") else CODE
    given = {part: options.pop(f"{ALGORITHM}{part}") for part in OF_THE_KL[fork] if f"{ALGORITHM}{part}" in options}
    if given:
        kl: dict[str, Any] = OF_THE_KL[fork] | given
        is_on = kl["disable_kl"] is not True
        options |= {keys.KL_LOSS: is_on and kl["use_kl_loss"], keys.KL_REWARD: is_on and not kl["use_kl_loss"]}
        in_loss, in_reward = (f"{ACTOR}kl_loss_coef", keys.KL_TYPE), (keys.KL_COEF, f"{ALGORITHM}kl_penalty")
        coefficient, kind = in_loss if kl["use_kl_loss"] else in_reward
        options |= {coefficient: kl["kl_coef"], kind: kl["kl_penalty"]}
    if fork == EXAMPLES:
        says = f"config={base} is taken as EasyR1 has it; what was changed in a copy the file alone does not say"
    elif base is None:
        says = "EasyR1's keys have verl's names here"
    else:
        says = (
            f"config={base}: that file is not read, and the file alone does not say what it sets, be it the size of a"
            f" group, the batch, the KL or the rate: the defaults of {CODE} stand for it"
        )
    return options, fork, says
