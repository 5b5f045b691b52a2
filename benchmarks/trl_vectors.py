"""Vectors that are in no archive: random options and inputs of the installed TRL's `GRPOTrainer._compute_loss`.

Run by a Python that has TRL: `trl_vectors.py FOLDER [SEED [VARIANTS]]`; then `grpolab conformance FOLDER`.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import trl
from trl.trainer.grpo_trainer import GRPOTrainer

VARIANTS, CASES = 120, 10
CHOICES: dict[str, list[Any]] = {
    "loss_type": ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"],
    "importance_sampling_level": ["token", "token", "sequence"],
    "epsilon": [0.2, 0.1, 0.003],
    "epsilon_high": [None, 0.28, 5.0],
    "delta": [None, 2.0, 1.1, 0.7],
    "beta": [0.0, 0.04, 0.5],
    "use_bias_correction_kl": [True, True, False],
    "top_entropy_quantile": [1.0, 1.0, 0.2, 0.5],
    "entropy_coef": [0.0, 0.0, 0.01],
    "off_policy_mask_threshold": [None, None, 0.1],
    "sapo_temperature_neg": [1.05, 3.3],
    "vespo_lambda_neg": [2.0, 0.7],
    "vespo_k_pos": [2.0, 1.3],
    "gradient_accumulation_steps": [1, 1, 2, 3],
    "steps_per_generation": [1, 4, 7],
    "max_completion_length": [16, 512],
    "vllm_importance_sampling_mode": [None, None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"],
    "vllm_importance_sampling_clip_min": [None, 0.5],
    "vllm_importance_sampling_clip_max": [1.05, 3.0],
}
FUNCTIONS = ("GRPOTrainer._compute_loss", "GRPOTrainer._generate_and_score_completions + _compute_loss")
FIXED = {"sapo_temperature_pos": 1.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0}
PADDING = {"clean": 0.0, "finite": -1.3, "huge": -800.0, "infinite": -np.inf, "no number": np.nan}


def draw(random: np.random.Generator) -> dict[str, Any]:
    """Draw a case's inputs."""
    B, T = int(random.integers(1, 9)), int(random.integers(1, 12))
    spread = random.choice([0.1, 0.5, 3.0, 30.0])
    mask = (np.arange(T) < random.integers(0, T + 1, (B, 1))) & (random.random((B, T)) < random.choice([0.7, 1.0]))
    new = -random.exponential(1.0, (B, T))
    old = new if random.random() < 0.1 else new + random.normal(0, spread, (B, T))
    A = random.choice([-1.0, 1.0, 0.0], (B, 1)) if random.random() < 0.3 else random.normal(0, 1, (B, 1))
    reference = new + random.normal(0, random.choice([0.3, 7]), (B, T))
    given = {"logprobs": new, "old_logprobs": old, "ref_logprobs": reference}
    dirt = PADDING[random.choice(list(PADDING))]
    given = {name: np.where(mask, value, dirt) for name, value in given.items()}
    by_token = random.random() < 0.2
    advantages = random.normal(0, 1, (B, T)) if by_token else np.broadcast_to(A, (B, T)) * mask
    sampler = (old + random.normal(0, 0.1, (B, T))).astype(np.float32)  # clean at padding, as vLLM gives it
    sampler = np.where(random.random((B, T)) < random.choice([0.0, 0.2]), np.nan, sampler)  # it may know no number
    return {
        **{name: value.tolist() for name, value in given.items()},
        "rollout_logprobs": sampler.tolist(),
        "advantages": advantages.tolist(),
        "seq_advantages": A[:, 0].tolist(),
        "mask": mask.astype(int).tolist(),
        "entropies": random.exponential(1.0, (B, T)).tolist(),
        "tags": ["per_token_adv"] if by_token else [],
    }


def trainer(options: dict[str, Any], log_probs_BT: torch.Tensor, entropy_BT: torch.Tensor) -> GRPOTrainer:
    """Return a trainer with nothing but what `_compute_loss` looks at; its policy gives the log-probs."""
    stub = object.__new__(GRPOTrainer)
    names = ("loss_type", "importance_sampling_level", "beta", "top_entropy_quantile", "off_policy_mask_threshold")
    alone = {name: lambda tensor, *_, **__: tensor for name in ("gather", "reduce", "pad_across_processes")}
    stub.__dict__ |= {
        **{name: options[name] for name in (*names, "entropy_coef", "max_completion_length")},
        "epsilon_low": options["epsilon"],
        "epsilon_high": options["epsilon"] if options["epsilon_high"] is None else options["epsilon_high"],
        "current_gradient_accumulation_steps": options["gradient_accumulation_steps"],
        "_entropy_bonus_enabled": options["entropy_coef"] != 0,
        "use_vllm": options["vllm_importance_sampling_mode"] is not None,
        **{"vllm_importance_sampling_correction": True, "use_adaptive_entropy": False, "aux_loss_enabled": False},
        **{"args": SimpleNamespace(**options), "model": SimpleNamespace(training=True)},
        "_metrics": {"train": defaultdict(list)},
        "accelerator": SimpleNamespace(num_processes=1, sync_gradients=True, device=torch.device("cpu"), **alone),
        "_get_per_token_logps_and_entropies": lambda *args, **kwargs: (log_probs_BT, entropy_BT, None),
    }
    return stub


def sampler_ratio(options: dict[str, Any], tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the weight that `_generate_and_score_completions` passes on, which has no function of its own there."""
    sampler_BT = tensors["rollout_logprobs"].float()
    log_BT = torch.nan_to_num((tensors["old_logprobs"] - sampler_BT) * tensors["mask"], nan=0.0)
    level, _, mode = options["vllm_importance_sampling_mode"].partition("_")
    ratio = (log_BT if level == "token" else log_BT.sum(-1, keepdim=True)).exp()
    low, high = options["vllm_importance_sampling_clip_min"], options["vllm_importance_sampling_clip_max"]
    if mode == "truncate":
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < (low or -np.inf)) | (ratio > high), 0.0)


def outputs(options: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return TRL's loss, gradient and metrics of a case."""
    tensors = {name: torch.tensor(value, dtype=torch.double) for name, value in inputs.items() if name != "tags"}
    log_probs_BT, mask_BT = tensors["logprobs"].requires_grad_(), torch.tensor(inputs["mask"])
    stub = trainer(options, log_probs_BT, tensors["entropies"])
    nothing = torch.zeros(len(mask_BT), 0, dtype=torch.long)
    vllm = {}
    if stub.use_vllm:
        vllm["importance_sampling_ratio"] = sampler_ratio(options, tensors)
        vllm["sampling_per_token_logps"] = tensors["rollout_logprobs"].float()
    batch = {
        **{"prompt_ids": nothing, "prompt_mask": nothing, "completion_ids": torch.zeros_like(mask_BT)},
        **{"completion_mask": mask_BT, "num_items_in_batch": mask_BT.sum()},
        "advantages": tensors["advantages" if inputs["tags"] else "seq_advantages"],
        **{"old_per_token_logps": tensors["old_logprobs"], "ref_per_token_logps": tensors["ref_logprobs"]},
    }
    loss = stub._compute_loss(None, batch | vllm)
    (gradient,) = torch.autograd.grad(loss, log_probs_BT)
    metrics = {name: value for name, (value,) in stub._metrics["train"].items()}
    return {"loss": loss.item(), "grad_logprobs": gradient.tolist(), "metrics": metrics}


def main(folder: Path, seed: int = 0, variants: int = VARIANTS) -> None:
    """Write the variants' files."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(variants):
        options = FIXED | {name: values[random.integers(len(values))] for name, values in CHOICES.items()}
        cases = []
        vllm = options["vllm_importance_sampling_mode"] is not None
        for case in range(CASES):
            inputs = draw(random)
            if not vllm:
                del inputs["rollout_logprobs"]
            cases.append({"name": f"random_{case}", "inputs": inputs, **outputs(options, inputs)})
        found = {
            "framework": "trl",
            "version": trl.__version__,
            "function": "trl/trainer/grpo_trainer.py:" + FUNCTIONS[vllm],
            "variant": f"random_{number}_{options['loss_type']}_{options['importance_sampling_level']}",
            "options": {**options, "num_items_in_batch": "mask.sum()"},
            "cases": cases,
        }
        (folder / f"trl__{found['variant']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
