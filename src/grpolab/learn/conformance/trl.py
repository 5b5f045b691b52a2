"""Replays TRL 1.16.0: losses of `_compute_loss`, with vLLM's weights too, and advantages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpolab.learn.advantages import Scored, advantages, by_group, weighted_sum
from grpolab.learn.aggregation import Totals
from grpolab.learn.conformance.common import loss_inputs, replay_loss
from grpolab.learn.conformance.replay import Peer
from grpolab.learn.conformance.vectors import Replayed
from grpolab.learn.dialects.trl import DIALECT, vllm_weight
from grpolab.peer_defaults import TRL

# What else of `GRPOConfig` the loss depends on; `steps_per_generation` is by default the accumulation.
TRAINER = {"gradient_accumulation_steps": 1, "steps_per_generation": None, "max_completion_length": 512}
EPSILON = 1e-4  # added to each std


def compute_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Loss and metrics of a micro-batch. `effective` has the values that `options` leaves to the defaults."""
    given = {**options, **options.get("effective", {})}
    objective = DIALECT.objective({name: given[name] for name in TRL if name in given})
    return replay_loss(DIALECT, objective, _loss_inputs({**TRAINER, **given}, inputs))


def vllm_loss(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """The same with a sampler whose log-probs are known, and its weights."""
    options = {**options, "use_vllm": True}
    found = compute_loss(options, inputs)
    objective = DIALECT.objective({name: options[name] for name in TRL if name in options})
    prepared = DIALECT.stages.prepare(objective, _loss_inputs({**TRAINER, **options}, inputs))
    return replace(found, tensors={"importance_sampling_ratio": vllm_weight(objective, prepared)})


def _loss_inputs(given: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
    """A micro-batch of one accumulation window, whose others are as large.

    TRL got one advantage per sequence, and one per token in the cases whose tag says that tokens differ.
    """
    by_token = "seq_advantages" not in inputs or {"dirty", "per_token_adv"} & set(inputs.get("tags") or ())
    A = inputs["advantages"] if by_token else inputs["seq_advantages"][:, None]
    mask_BT, windows = inputs["mask"], given["gradient_accumulation_steps"]
    items = given.get("num_items_in_batch", "mask.sum()")
    items = int(mask_BT.sum()) if items == "mask.sum()" else items
    totals = Totals(
        sequences=len(mask_BT) * windows,
        nonempty_sequences=int(mask_BT.any(1).sum()) * windows,
        tokens=int(mask_BT.sum()) * windows,
        rollout_tokens=max(items, 1) * windows / (given["steps_per_generation"] or windows),
        max_completion_length=given["max_completion_length"],
        micro_batches=windows,
    )
    return replace(loss_inputs(inputs, advantages=A), totals=totals)


def score(options: Mapping[str, Any], inputs: Mapping[str, Any]) -> Replayed:
    """Advantages and reward metrics; a row has one reward, or one of each reward function."""
    rewards_BK = inputs["rewards"].view(len(inputs["group_ids"]), -1)
    parts = {f"f{k}": rewards_B for k, rewards_B in enumerate(rewards_BK.unbind(1))}
    weights = dict(zip(parts, options.get("reward_weights") or [1.0] * len(parts), strict=True))
    group_B, scale = torch.arange(len(rewards_BK)) // inputs["group_size"], options.get("scale_rewards", "group")
    rewards_B = weighted_sum(parts, weights)
    source_B, batch_B = rewards_B, torch.zeros_like(group_B)
    if options.get("multi_objective_aggregation") == "normalize_then_sum":
        scaled = {
            name: normalized(part_B, group_B, group_B).where(~part_B.isnan(), part_B) for name, part_B in parts.items()
        }
        source_B, scale = weighted_sum(scaled, weights), "batch"
        found_B = normalized(source_B, batch_B, batch_B)
    else:
        found_B = normalized(source_B, group_B, {"group": group_B, "batch": batch_B}.get(scale))
    return Replayed(metrics=reward_metrics(parts, rewards_B, source_B, group_B, scale), tensors={"advantages": found_B})


def normalized(values_B: Tensor, group_B: Tensor, scaled_B: Tensor | None) -> Tensor:
    """Values less the mean of their group, over the std of all whose number in `scaled_B` is theirs; NaN gives 0."""
    centred_B = advantages(Scored(values_B, group_B), "group_mean", "none")
    std_B = torch.ones_like(values_B) if scaled_B is None else std_by_group(values_B, scaled_B) + EPSILON
    return torch.where(centred_B == 0, 0.0, centred_B / std_B)


def std_by_group(values_B: Tensor, group_B: Tensor) -> Tensor:
    """Std of the values with one number in `group_B`, (B,)."""
    return by_group(group_B, lambda values_PN: torch.stack([_row_std(row_N) for row_N in values_PN]), values_B)


def reward_metrics(
    parts: Mapping[str, Tensor], rewards_B: Tensor, normalized_B: Tensor, group_B: Tensor, scale: str
) -> dict[str, float]:
    """What a generation batch logs of its rewards: parts, their weighted sum, and how many rows have no variance.

    `normalized_B`: the sum that the advantages come from (`rewards_B` but for `normalize_then_sum`). With `scale` batch
    the share of rows without variance looks at the whole batch and is 0 or 1.
    """
    found: dict[str, float] = {}
    for name, part_B in parts.items():
        found |= {f"rewards/{name}/mean": _mean(part_B), f"rewards/{name}/std": _std(part_B)}
    one_B = group_B if scale != "batch" else torch.zeros_like(group_B)
    std_B = std_by_group(normalized_B, one_B)
    flat_B = torch.isclose(std_B, torch.zeros_like(std_B))
    return found | {
        "reward": _mean(rewards_B),
        "reward_std": _std(rewards_B),
        "frac_reward_zero_std": float(flat_B.double().mean()),
    }


def _mean(values_B: Tensor) -> float:
    return float(values_B.nanmean())


def _std(values_B: Tensor) -> float:
    """With Bessel's correction, NaN for fewer than two numbers."""
    return float(_row_std(values_B)[0])


def _row_std(row_N: Tensor) -> Tensor:
    """`nanstd`: its Bessel factor N / (N - 1), a quotient of two counts, is float32."""
    known_N, count = row_N[~row_N.isnan()], (~row_N.isnan()).sum()
    variance = known_N.var(correction=0) * (count / (count - 1)) if count > 1 else row_N.new_tensor(torch.nan)
    return variance.sqrt().reshape(1)


PEER = Peer(
    functions={
        "GRPOTrainer._compute_loss": compute_loss,
        "GRPOTrainer._generate_and_score_completions + _compute_loss": vllm_loss,
        "GRPOTrainer._generate_and_score_completions": score,
    },
    limits=("the Liger kernel and reductions over several ranks are not carried.",),
)
