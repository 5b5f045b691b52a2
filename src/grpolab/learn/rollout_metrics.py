"""What a rollout step's batch looks like. Names and meanings: `vocabulary.py`."""

from __future__ import annotations

from torch import Tensor

from grpolab.learn.advantages import equal_rewards
from grpolab.learn.batch import Rollout, TrainingBatch


def rollout_metrics(rollout: Rollout, trained: TrainingBatch, group: int) -> dict[str, float]:
    """Every metric of kind `rollout` that follows from the batch; `trained` has the old log-probs, in any order."""
    rewards_PG = rollout.rewards_B.view(-1, group)
    right_B = rollout.parts["correct"] > 0.5
    lengths_B = rollout.batch.mask_BT.sum(1).double().cpu()
    scorable_N = rollout.rewards_B[~rollout.rewards_B.isnan()]
    found = {"reward/mean": scorable_N.mean().item(), "reward/std": scorable_N.std().item()}
    found |= {
        f"reward/{name}": rollout.parts[name].nanmean().item()
        for name in ("correct", "format")
        if name in rollout.parts
    }
    found |= _zero_variance(rewards_PG, right_B.view(-1, group)) | _lengths(lengths_B, right_B, rollout.truncated_B)
    texts = [rollout.texts_B[start : start + group] for start in range(0, len(rollout.texts_B), group)]
    found["completions/unique"] = sum(len(set(row)) / group for row in texts) / len(texts)
    return found | _probabilities(trained)


def _zero_variance(rewards_PG: Tensor, right_PG: Tensor) -> dict[str, float]:
    equal_P = equal_rewards(rewards_PG)
    return {
        "zero_variance/share": equal_P.double().mean().item(),
        "zero_variance/all_right": (equal_P & right_PG.all(1)).double().mean().item(),
        "zero_variance/all_wrong": (equal_P & ~right_PG.any(1)).double().mean().item(),
    }


def _lengths(lengths_B: Tensor, right_B: Tensor, truncated_B: Tensor) -> dict[str, float]:
    found = {
        "length/mean": lengths_B.mean().item(),
        "length/std": lengths_B.std().item(),
        "length/p95": lengths_B.quantile(0.95).item(),
        "truncation/share": truncated_B.double().mean().item(),
    }
    for name, chosen_B in (("right", right_B), ("wrong", ~right_B)):
        if chosen_B.any():
            found[f"length/{name}_mean"] = lengths_B[chosen_B].mean().item()
            found[f"length/{name}_p95"] = lengths_B[chosen_B].quantile(0.95).item()
            found[f"truncation/{name}"] = truncated_B[chosen_B].double().mean().item()
    return found


def _probabilities(batch: TrainingBatch) -> dict[str, float]:
    assert batch.old_log_probs_BT is not None
    assert batch.old_entropy_BT is not None
    entropy_N = batch.old_entropy_BT[batch.mask_BT].double()
    old_N = batch.old_log_probs_BT[batch.mask_BT]
    return {
        "entropy/behaviour": entropy_N.mean().item(),
        "entropy/behaviour_p80": entropy_N.quantile(0.8).item(),
        "probability/below_0.1": (old_N.exp() < 0.1).double().mean().item(),
    }
