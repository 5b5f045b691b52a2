"""Presets of conf/: a dialect is what its framework's options mean, and a paper says every axis that it stands for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from grpolab.frameworks.dialects_page import SOURCE
from grpolab.frameworks.framework import load_framework
from grpolab.frameworks.options import OPTIONS
from grpolab.frameworks.vectors import make_inputs, read_variants
from grpolab.grpo.advantages import Scored, advantages
from grpolab.paths import project_root
from grpolab.registry import FRAMEWORKS
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer

COMPOSER = Composer()


def mode(name: str, **options: Any) -> dict[str, Any]:
    return {"policy_loss": {"loss_mode": name}, **options}


BY_SEQUENCE = {"loss_agg_mode": "seq-mean-token-mean"}
SEQUENCES = {"loss_reduction": "sequence_mean"}
BINARY_KL = {"dppo": {"dppo_type": "binary_kl", "delta_low": 0.05, "delta_high": 0.05}}
WEIGHTED = {"use_importance_sampling_correction": True}


def truncated(kind: str, low: float, high: float) -> dict[str, Any]:
    given = {"type": kind, "ratio_min": low, "ratio": high}
    return WEIGHTED | {f"truncated_importance_sampling_{name}": value for name, value in given.items()}


# Dialect -> its framework's options.
MODES: dict[str, dict[str, Any]] = {
    "trl": {},
    **{f"trl/{name}": {"loss_type": name} for name in ("grpo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo")},
    "trl/luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence"},
    "trl/gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    "trl/gdpo": {},
    "trl/vllm": {"use_vllm": True},
    "verl": {},
    **{f"verl/{name}": mode(name) for name in ("gspo", "cispo", "gpg", "clip_cov", "kl_cov", "dppo_tv", "dppo_kl")},
    **{f"verl/{name}": mode(name, **BY_SEQUENCE) for name in ("sapo", "geo_mean")},
    "verl/v0.8.0_gspo": mode("gspo", **BY_SEQUENCE),
    "verl/dro": {"policy_loss": {"loss_mode": "dro", "dro_beta": 0.1}},
    "verl/bypass": mode("bypass_mode"),
    "verl/bypass_reinforce": mode("bypass_mode", rollout_correction={"loss_type": "reinforce", "rollout_is": "token"}),
    "roll": {},
    "roll/base": {},
    "roll/agentic": {"ratio_type": "segment"},
    "roll/seq": {"importance_sampling": "seq"},
    "roll/dual_clip": {"dual_clip_loss": True},
    "roll/token_mean": {"loss_agg_mode": "token-mean"},
    "roll/seq_mean_token_sum": {"loss_agg_mode": "seq-mean-token-sum"},
    "roll/seq_mean_token_sum_norm": {"loss_agg_mode": "seq-mean-token-sum-norm"},
    "roll/pg_cispo_masked": {"pg_variant": "cispo", "cispo_use_unified_mask": True},
    **{f"roll/pg_{name}": {"pg_variant": name} for name in ("vanilla", "ppo", "tis", "topr", "cispo", "kimi15")},
    "openrlhf": {},
    "openrlhf/gspo": {"policy_loss_type": "gspo"},
    "openrlhf/sequence_mean": {"loss_agg_mode": "seq-mean-token-mean"},
    "openrlhf/kl_loss": {"kl_use_loss": True, "kl_estimator": "k3"},
    "openrlhf/tis": {"is_correction_level": "token", "is_correction_mode": "clip"},
    "openrlhf/icepop": {"is_correction_level": "token"},
    "openrlhf/seq_mask_tis": {"is_correction_level": "seq"},
    # These differ by their advantages only.
    **{f"openrlhf/{name}": {} for name in ("dr_grpo", "rloo", "reinforce", "reinforce_baseline", "flash_reinforce")},
    "slime": {},
    "slime/gspo": {"advantage_estimator": "gspo"},
    "slime/cispo": {"advantage_estimator": "cispo"},
    "slime/per_token": {"calculate_per_token_loss": True},
    "slime/low_var_kl": {"use_kl_loss": True, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl"},
    "slime/opsm": {"use_opsm": True},
    "slime/tis": {"use_tis": True},
    "slime/reinforce_plus_plus_baseline": {"advantage_estimator": "reinforce_plus_plus_baseline"},
    "areal": {},
    "areal/grpo": {},
    "areal/gspo": {"importance_sampling_level": "sequence"},
    "areal/sapo": {"use_sapo_loss": True},
    "areal/cispo": {"use_cispo_loss": True, "eps_clip": 1.0, "eps_clip_higher": 4.0},
    "areal/dual_clip": {"c_clip": 3.0},
    "areal/decoupled": {"rejection_sampling": {}},
    "areal/prox_approx": {"rejection_sampling": {}},
    "nemo_rl": {},
    "nemo_rl/sequence_mean": {"token_level_loss": False},
    "nemo_rl/gspo": {"token_level_loss": False, "sequence_level_importance_ratios": True},
    "nemo_rl/cispo": {"use_cispo": True},
    "nemo_rl/dual_clip": {"ratio_clip_c": 3.0},
    "nemo_rl/reinforce": {"disable_ppo_ratio": True},
    "nemo_rl/on_policy": {"force_on_policy_ratio": True},
    "nemo_rl/importance_sampling": WEIGHTED,
    "nemo_rl/icepop": truncated("icepop", 0.5, 5.0),
    "nemo_rl/seq_mask_tis": truncated("seq-mask-tis", 0.999, 1.002),
    "open_instruct": {},
    "open_instruct/cispo": {"loss_fn": "cispo"},
    "open_instruct/standard": {},
    "prime_rl": {},
    **{f"prime_rl/{name}": {"type": name} for name in ("icepop", "ppo", "cispo")},
    "prime_rl/v0.8.1": {"type": "default"},
    "prime_rl/v0.8.1_ipo": {"type": "ipo", "ipo_threshold": 0.1},
    "skyrl": {},
    **{
        f"skyrl/{kind}": {"policy_loss_type": kind}
        for kind in ("dual_clip", "cispo", "dppo", "clip_cov", "kl_cov", "rollout_is", "importance_sampling")
    },
    **{f"skyrl/{kind}": {"policy_loss_type": kind, **SEQUENCES} for kind in ("gspo", "sapo")},
    "skyrl/cispo_rollout": {"policy_loss_type": "cispo", "cispo": {"cispo_anchor": "rollout"}},
    "skyrl/dppo_kl": {"policy_loss_type": "dppo"} | BINARY_KL,
    "skyrl/sequence_mean": SEQUENCES,
    "skyrl/seq_mean_token_sum_norm": {"loss_reduction": "seq_mean_token_sum_norm"},
    "skyrl/tis": {"off_policy_correction": {"tis_ratio_type": "token"}},
    "skyrl/tis_sequence": {"off_policy_correction": {"tis_ratio_type": "sequence"}},
    "skyrl/geometric_mask": {"off_policy_correction": {"sequence_mask_metric": "geometric"}},
    "torchtune": {},
    "torchtune/simple": {"loss": "GRPOSimpleLoss"},
    "torchtune/completion": {"loss": "GRPOCompletionLoss"},
    "deepspeed_chat": {},
}

CONF = project_root() / "conf"
PAPERS = sorted(file.stem for file in (CONF / "paper").glob("*.yaml"))
AXES = {"importance_sampling_level", "kernel", "aggregation", "beta", "advantage_estimator", "scale_rewards"}
VECTORS = Path(__file__).parents[1] / "vectors" / "peers.tar.xz"
# Dialect -> what its framework computed with the same options.
ADVANTAGES = {
    "trl": "trl__adv__sum_then_normalize__group",
    "verl": "verl__adv__grpo__std1",
    "nemo_rl": "nemo_rl__adv__grpo__loo1__norm1",
    "skyrl": "skyrl__adv__grpo__std1",
    "areal/grpo": "areal__adv__grpo_group_group",
}


@pytest.mark.parametrize("name", MODES)
def test_a_dialect_is_what_its_frameworks_options_mean(name: str) -> None:
    settings = COMPOSER.compose([f"dialect={name}"])
    assert settings.framework == name.partition("/")[0]
    assert resolve_run(settings).objective == load_framework(settings.framework).objective(MODES[name])


def test_every_framework_has_its_defaults() -> None:
    assert {name for name in MODES if "/" not in name} == set(OPTIONS) == set(FRAMEWORKS)
    for name, (defaults, translate) in OPTIONS.items():
        assert translate is load_framework(name).objective
        assert translate(defaults) == translate({})


def test_what_a_dialect_says_beside_the_loss() -> None:
    deepspeed_chat = COMPOSER.compose(["dialect=deepspeed_chat"])
    assert (deepspeed_chat.beta, deepspeed_chat.kl_placement) == (0.1, "advantage")
    assert {COMPOSER.compose([f"dialect={name}"]).old_log_probs for name in ("prime_rl", "prime_rl/icepop")} == {
        "sampler"
    }


def test_a_dialect_says_version_commit_and_date_of_what_was_read() -> None:
    """Once for a framework; a mode of an older version has its own, and its name begins with it."""
    read = {}
    for name in MODES:
        text = (CONF / "dialect" / f"{name}.yaml").read_text()
        (read[name],) = SOURCE.findall(text.replace("\n# ", " "))
    for name, (_, version, *_) in read.items():
        framework, _, mode = name.partition("/")
        older = re.match(r"v[\d.]+", mode)
        assert (read[name] == read[framework]) == (older is None), name
        assert older is None or version.startswith(older[0]), name


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_says_its_axes_and_its_reuse_of_a_batch(name: str) -> None:
    text = (CONF / "paper" / f"{name}.yaml").read_text()
    assert set(yaml.safe_load(text)) >= AXES
    assert "num_iterations:" in text or "reuse of a batch" in text  # else the run's default would pass for the paper's


def test_a_dialect_has_its_frameworks_advantages() -> None:
    variants = {variant.full_name: variant for variant in read_variants(VECTORS)}
    for dialect, name in ADVANTAGES.items():
        settings = COMPOSER.compose([f"dialect={dialect}"])
        case = next(case for case in variants[name].cases if case["name"] == "binary")
        inputs = make_inputs(case)
        scored = Scored(inputs["rewards"], torch.as_tensor(inputs["group_ids"]))
        ours_B = advantages(scored, settings.advantage_estimator, settings.scale_rewards, settings.scale_epsilon)
        expected = torch.tensor(case["advantages"], dtype=torch.double)
        if expected.ndim == 2:  # the same at every token
            expected = expected.gather(1, inputs["mask"].int().argmax(1, keepdim=True))[:, 0]
        torch.testing.assert_close(ours_B, expected, rtol=1e-6, atol=1e-7)
